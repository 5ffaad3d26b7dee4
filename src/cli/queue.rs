//! `minutehand queue`: what is set for queues.

use super::args::Output;
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::{Client, QueueChange, QueueStats, QueueView};
use crate::limits;
use crate::model::field::shown;
use crate::model::queue::{
    BreakerSettings, Collapse, DownstreamName, Lease, LimitOwner, LimitSettings, Owner, Rate, Routing,
    TimeoutDefaults, TryDefaults, Weights, placement_rate, retry_window,
};
use crate::model::slice::parse_duration_ms;
use crate::model::{FieldError, QueueName, QueueSettings, Reason};
use crate::settings::{Loaded, Span};
use clap::{Args, Subcommand};
use serde_json::Value;

/// What to do with queues.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List the queues that are known, with what is set for them
    List,
    /// Show what is set for a queue; the settings of the installation count for the rest
    Show(QueueArg),
    /// Show how long a queue's tasks run, how many fail, and which lease that suggests
    Stats(QueueArg),
    /// Change what is set for a queue; pods follow within a second
    #[command(after_help = "\
`default` takes a setting away again: the installation's then counts.
Examples:
  minutehand queue set push --retries 5 --backoff exponential:1s:x2:10m --timeout 30s
  minutehand queue set push --lease auto --downstream apns
  minutehand queue set push --rate 100/s --burst 20 --running 50
  minutehand queue set push --retry-window 5s=100 --retry-window 25s=200 --breaker 50%:20:30s
  minutehand queue set push --retries default")]
    Set(Box<QueueSet>),
    /// Claim nothing more of a queue; what was claimed goes on
    #[command(after_help = "Example:\n  minutehand queue pause push --why 'gateway is being moved'")]
    Pause {
        /// Which
        #[command(flatten)]
        queue: QueueArg,
        /// Why, for those who look at it later
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
    /// Let a paused queue go on
    Resume(QueueArg),
    /// Open its breaker by hand: what has failed is held
    Open(ForceArgs),
    /// Close its breaker by hand: failures do not open it
    Close(ForceArgs),
    /// Leave its breaker to itself again
    Reset(QueueArg),
}

/// Whose breaker, and why.
#[derive(Debug, Args)]
pub struct ForceArgs {
    /// Which
    #[command(flatten)]
    pub queue: QueueArg,
    /// Why, for those who look at it later
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub why: String,
}

/// Limits. Each is left alone where it is not named.
#[derive(Debug, Default, Args)]
pub struct LimitArgs {
    /// Most tasks handed out in a time: 100/s, 30/m, 100/5s
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub rate: Option<String>,
    /// How many of them at the same time [default: a tenth]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub burst: Option<String>,
    /// Most tasks that run at the same time
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub running: Option<String>,
    /// Most retries handed out in a time, such as 5s=100; several are for tasks that failed once, twice, …
    #[arg(long, value_name = "TIME=N", allow_hyphen_values = true)]
    pub retry_window: Vec<String>,
    /// Hold what has failed when so many fail: 50%:20:30s is half of at least 20 outcomes, tried again after 30s
    #[arg(long, value_name = "SHARE:LEAST:OPEN[:WINDOW][:fresh]")]
    pub breaker: Option<String>,
}

impl LimitArgs {
    pub(super) fn apply(&self, limits: &mut LimitSettings) -> Result<(), FieldError> {
        let burst = limits.rate.and_then(|rate| rate.burst);
        change(&mut limits.rate, self.rate.as_ref(), |text| {
            text.parse::<Rate>()
                .map(|rate| Rate { burst: burst.filter(|burst| *burst <= rate.count), ..rate })
        })?;
        if let Some(burst) = &self.burst {
            let Some(rate) = &mut limits.rate else {
                let detail = "belongs to a rate, and there is none; say --rate too";
                return Err(FieldError::new("burst", Reason::Missing, detail));
            };
            change(&mut rate.burst, Some(burst), |text| number("burst", text))?;
        }
        change(&mut limits.running, self.running.as_ref(), |text| number("running", text))?;
        match &self.retry_window[..] {
            [] => {}
            [text] if text == "default" => limits.retry_windows.clear(),
            texts => {
                limits.retry_windows =
                    texts.iter().map(|text| retry_window(text)).collect::<Result<_, _>>()?;
                limits.retry_windows.sort_by_key(|window| window.per_ms);
            }
        }
        change(&mut limits.breaker, self.breaker.as_ref(), str::parse::<BreakerSettings>)?;
        limits.check()
    }
}

fn number<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, FieldError> {
    text.parse().map_err(|_| {
        FieldError::new(field, Reason::InvalidType, format!("{} is no whole number", shown(text)))
    })
}

/// A queue's name.
#[derive(Debug, Args)]
pub struct QueueArg {
    /// The queue
    #[arg(value_name = "QUEUE")]
    pub queue: String,
}

/// Options of `queue set`. Each is left alone where it is not named.
#[derive(Debug, Args)]
pub struct QueueSet {
    /// Which
    #[command(flatten)]
    pub queue: QueueArg,
    /// Tries after the first one, 0 to 254
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub retries: Option<String>,
    /// Wait before them: fixed:200ms, linear:5s:10m or exponential:5s:x5:1h
    #[arg(long, value_name = "POLICY")]
    pub backoff: Option<String>,
    /// Longest run of a handler; 0s for none
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub timeout: Option<String>,
    /// Longest time from hand-out to start
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub dispatch_timeout: Option<String>,
    /// Skip tasks that have not started this long after they were due; 0s for never
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub start_within: Option<String>,
    /// Let tasks expire, wherever they are, this long after they were due; 0s for never
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub expire_after: Option<String>,
    /// How long a started task is good without renewal, 1s to 24h, or auto: from how long its tasks run
    #[arg(long, value_name = "TIME|auto", allow_hyphen_values = true)]
    pub lease: Option<String>,
    /// What its tasks call upon, shared with other queues
    #[arg(long, value_name = "NAME")]
    pub downstream: Option<String>,
    /// Shares of P0 to P5, such as 40,25,15,10,6,4
    #[arg(long, value_name = "W0,…,W5", allow_hyphen_values = true)]
    pub weights: Option<String>,
    /// Address that is told of dead letters
    #[arg(long, value_name = "URL")]
    pub owner: Option<String>,
    /// How an executor is chosen: least_cost, first, last, round_robin, random, consistent_hash, least_frequent,
    /// least_recent, failover, busy_over, broadcast
    #[arg(long, value_name = "POLICY")]
    pub routing: Option<String>,
    /// Most tasks of one placement key that run at the same time, 1 to 64
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub placement_running: Option<String>,
    /// Run tasks of one placement key one after the other, in due order: on
    #[arg(long, value_name = "on", allow_hyphen_values = true)]
    pub placement_order: Option<String>,
    /// Most tasks of one placement key handed out in a time: 3/h, 1/5s
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub placement_rate: Option<String>,
    /// Most tasks of one placement key handed out in any 24 hours, 1 to 100
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub placement_day: Option<String>,
    /// While a task of a placement key is pending, a further one takes its place (replace) or is not made (keep)
    #[arg(long, value_name = "replace|keep", allow_hyphen_values = true)]
    pub placement_collapse: Option<String>,
    /// Most tasks of it that have not ended: further ones are refused when they are submitted
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub backlog: Option<String>,
    /// Hold it at a time of the day: 'sun 02:00-04:00 Europe/Berlin'; may be given several times
    #[arg(long, value_name = "TIMES")]
    pub maintenance: Vec<String>,
    /// How much of it may be handed out
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Sets what an option says: nothing where it is not given, taken away for `default`.
pub(super) fn change<T>(
    slot: &mut Option<T>,
    option: Option<&String>,
    read: impl FnOnce(&str) -> Result<T, FieldError>,
) -> Result<(), FieldError> {
    match option.map(String::as_str) {
        None => {}
        Some("default") => *slot = None,
        Some(text) => *slot = Some(read(text)?),
    }
    Ok(())
}

impl QueueSet {
    /// Applies the options; refuses the first that is wrong.
    pub fn apply(&self, settings: &mut QueueSettings) -> Result<(), FieldError> {
        let time = |field| move |text: &str| parse_duration_ms(field, text);
        let mut retry = settings.retry.take().unwrap_or_default();
        change(&mut retry.retries, self.retries.as_ref(), |text| number("retries", text))?;
        change(&mut retry.backoff, self.backoff.as_ref(), |text| Ok(text.to_owned()))?;
        settings.retry = Some(retry).filter(|retry| *retry != TryDefaults::default());
        let mut timeouts = settings.timeouts.take().unwrap_or_default();
        change(&mut timeouts.execution_ms, self.timeout.as_ref(), time("timeout"))?;
        change(&mut timeouts.dispatch_ms, self.dispatch_timeout.as_ref(), time("dispatch_timeout"))?;
        change(&mut timeouts.start_within_ms, self.start_within.as_ref(), time("start_within"))?;
        change(&mut timeouts.total_ms, self.expire_after.as_ref(), time("expire_after"))?;
        settings.timeouts = Some(timeouts).filter(|timeouts| *timeouts != TimeoutDefaults::default());
        change(&mut settings.lease, self.lease.as_ref(), str::parse::<Lease>)?;
        change(&mut settings.downstream, self.downstream.as_ref(), DownstreamName::new)?;
        change(&mut settings.weights, self.weights.as_ref(), str::parse::<Weights>)?;
        change(&mut settings.owner, self.owner.as_ref(), |url| Ok(Owner { webhook: url.to_owned() }))?;
        change(&mut settings.routing, self.routing.as_ref(), |name| Ok(Routing(name.to_owned())))?;
        change(&mut settings.backlog, self.backlog.as_ref(), |text| number("backlog", text))?;
        let mut placement = settings.placement.take().unwrap_or_default();
        change(&mut placement.running, self.placement_running.as_ref(), |text| {
            number("placement_running", text)
        })?;
        let mut ordered = placement.ordered.then_some(true);
        change(&mut ordered, self.placement_order.as_ref(), |text| match text {
            "on" => Ok(true),
            _ => {
                let detail = format!("{} is neither on nor default", shown(text));
                Err(FieldError::new("placement_order", Reason::InvalidType, detail))
            }
        })?;
        placement.ordered = ordered.is_some();
        change(&mut placement.rate, self.placement_rate.as_ref(), placement_rate)?;
        change(&mut placement.per_day, self.placement_day.as_ref(), |text| number("placement_day", text))?;
        change(&mut placement.collapse, self.placement_collapse.as_ref(), str::parse::<Collapse>)?;
        settings.placement = Some(placement).filter(|placement| !placement.is_empty());
        match &self.maintenance[..] {
            [] => {}
            [text] if text == "default" => settings.maintenance.clear(),
            texts => {
                settings.maintenance = texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
            }
        }
        let mut limits = settings.limits.take().unwrap_or_default();
        self.limits.apply(&mut limits)?;
        settings.limits = Some(limits).filter(|limits| !limits.is_empty());
        settings.check()
    }
}

fn figures(stats: &QueueStats) -> String {
    let figures = &stats.figures;
    let ms = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), |ms| Span::from_ms(ms).to_string());
    let mut lines = vec![format!(
        "queue {}: {} in the last hours",
        stats.queue,
        format_args!("{} {}", figures.runs, if figures.runs == 1 { "run" } else { "runs" })
    )];
    if figures.runs > 0 {
        let rate = figures.failure_rate * 100.0;
        lines.push(format!("failed     {} ({rate:.1} %)", figures.failed));
        lines.push(format!(
            "run time   P50 {}, P99 {}, max {}",
            ms(figures.p50_ms),
            ms(figures.p99_ms),
            ms(figures.max_ms)
        ));
    }
    let how = match stats.lease {
        Some(Lease::Auto) => "auto",
        Some(Lease::Fixed { .. }) => "set for the queue",
        None => "the usual one",
    };
    lines.push(format!("lease      {} ({how})", ms(Some(stats.lease_ms))));
    lines.push(match figures.suggested_lease_ms {
        Some(lease) => format!(
            "suggested  {} (P99 \u{d7} 3 + 30s); `minutehand queue set {} --lease auto` follows it",
            ms(Some(lease)),
            stats.queue
        ),
        None => format!("suggested  none yet: {} runs are needed", limits::LEASE_AUTO_RUNS),
    });
    lines.join("\n")
}

/// A client, once what will be done by it was written down.
async fn noted(loaded: &Loaded, action: &str, queue: &QueueName, why: &str) -> Result<Client, CliError> {
    let client = connect::client(loaded).await?;
    client.note(&connect::who(), action, queue.as_str(), why).await?;
    Ok(client)
}

/// Does what was asked.
pub async fn run(command: &QueueCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let name = |arg: &QueueArg| QueueName::new(&arg.queue);
    let change = match command {
        QueueCommand::List => {
            let queues = connect::client(loaded).await?.queues().await?;
            render::show(output, &json(&queues)?, |_| list(&queues));
            return Ok(Exit::Ok);
        }
        QueueCommand::Show(queue) => {
            let queue = name(queue)?;
            let settings = connect::client(loaded).await?.queue(&queue).await?;
            let view = QueueView { queue: queue.to_string(), settings };
            render::show(output, &json(&view)?, |value| lines(&view.queue, &value["settings"]));
            return Ok(Exit::Ok);
        }
        QueueCommand::Stats(queue) => {
            let stats = connect::client(loaded).await?.queue_stats(&name(queue)?).await?;
            render::show(output, &json(&stats)?, |_| figures(&stats));
            return Ok(Exit::Ok);
        }
        QueueCommand::Set(set) => {
            let queue = name(&set.queue)?;
            // What can be wrong without Redis is said without it.
            let mut wish = QueueSettings::default();
            if set.limits.burst.is_none() || set.limits.rate.is_some() {
                set.apply(&mut wish)?;
            }
            noted(loaded, "queue.set", &queue, in_one_line(&json(&wish)?).trim_start_matches('-'))
                .await?
                .queue_set(&queue, |settings| set.apply(settings))
                .await?
        }
        QueueCommand::Pause { queue, why } => {
            let queue = name(queue)?;
            noted(loaded, "queue.pause", &queue, why).await?.pause(&queue, &connect::who(), why).await?
        }
        QueueCommand::Resume(queue) => {
            let queue = name(queue)?;
            noted(loaded, "queue.resume", &queue, "").await?.resume(&queue).await?
        }
        QueueCommand::Open(args) => {
            let owner = LimitOwner::Queue(name(&args.queue)?);
            return force(&owner, Some(true), &args.why, loaded, output).await;
        }
        QueueCommand::Close(args) => {
            let owner = LimitOwner::Queue(name(&args.queue)?);
            return force(&owner, Some(false), &args.why, loaded, output).await;
        }
        QueueCommand::Reset(queue) => {
            return force(&LimitOwner::Queue(name(queue)?), None, "", loaded, output).await;
        }
    };
    render::show(output, &json(&change)?, |value| said(command, &change, &value["settings"]));
    Ok(if change.pods_behind.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// Opens or closes a breaker by hand, or leaves it to itself.
pub(super) async fn force(
    owner: &LimitOwner,
    open: Option<bool>,
    why: &str,
    loaded: &Loaded,
    output: Output,
) -> Result<Exit, CliError> {
    let client = connect::client(loaded).await?;
    let action = match open {
        Some(true) => "breaker.open",
        Some(false) => "breaker.close",
        None => "breaker.reset",
    };
    client.note(&connect::who(), action, &owner.key(), why).await?;
    let (changed, behind) = client.force_breaker(owner, open, &connect::who(), why).await?;
    let value = serde_json::json!({ "owner": owner.to_string(), "changed": changed, "pods_behind": behind });
    render::show(output, &value, |_| {
        let state = match open {
            Some(true) => "is open by hand",
            Some(false) => "is closed by hand",
            None => "is left to itself",
        };
        let again = if changed { "" } else { ", as it was before" };
        format!("breaker of {owner} {state}{again}\n{}", late(&behind))
    });
    Ok(if behind.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// A line for each pod that does not follow yet.
pub(super) fn late(pods: &[String]) -> String {
    pods.iter().map(|pod| format!("pod {} has not followed yet\n", render::safe(pod))).collect()
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<Value, CliError> {
    serde_json::to_value(value).map_err(|error| CliError::failed(error.to_string()))
}

fn said(command: &QueueCommand, change: &QueueChange, settings: &Value) -> String {
    let queue = &change.queue;
    let mut out = match (command, change.changed) {
        (QueueCommand::Pause { .. }, true) => {
            format!("queue {queue} is paused: nothing more of it is claimed\n")
        }
        (QueueCommand::Pause { .. }, false) => format!("queue {queue} was paused already\n"),
        (QueueCommand::Resume(_), true) => format!("queue {queue} goes on\n"),
        (QueueCommand::Resume(_), false) => format!("queue {queue} was not paused\n"),
        _ => lines(queue, settings),
    };
    out.push_str(&late(&change.pods_behind));
    out
}

/// A line for each setting: `retry.retries  5`.
pub(super) fn lines(name: &str, settings: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", settings, &mut rows);
    if rows.is_empty() {
        return format!(
            "nothing is set for {}: the settings of the installation count\n",
            render::safe(name)
        );
    }
    let rows: Vec<(&str, String)> = rows.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    render::pairs(&rows)
}

/// Values with the names of their sections in front of theirs.
fn flatten(prefix: &str, value: &Value, out: &mut Vec<(String, String)>) {
    let Some(object) = value.as_object() else {
        out.push((prefix.to_owned(), render::plain(value)));
        return;
    };
    if let Some(rate) = rate(object) {
        out.push((prefix.to_owned(), rate));
        return;
    }
    for (name, value) in object {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        flatten(&name, value, out);
    }
}

/// A rate as it is given to `--rate`; nothing where it is none.
fn rate(object: &serde_json::Map<String, Value>) -> Option<String> {
    let number = |name: &str| object.get(name).and_then(Value::as_i64);
    let (count, per_ms) = (number("count")?, number("per_ms")?);
    let per = match per_ms {
        1_000 => "s".to_owned(),
        60_000 => "m".to_owned(),
        3_600_000 => "h".to_owned(),
        86_400_000 => "d".to_owned(),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    };
    let burst = number("burst").map_or_else(String::new, |burst| format!(", burst {burst}"));
    Some(format!("{count}/{per}{burst}"))
}

/// What is set, for a row of a table.
pub(super) fn in_one_line(settings: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", settings, &mut rows);
    let set: Vec<String> = rows.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(" ") }
}

fn list(queues: &[QueueView]) -> String {
    if queues.is_empty() {
        return "no queues yet\n".to_owned();
    }
    let row = |view: &QueueView| {
        let mut settings = view.settings.clone();
        let state = match settings.pause.take() {
            Some(pause) => format!("paused since {}", pause.since),
            None => "open".to_owned(),
        };
        vec![render::safe(&view.queue), state, in_one_line(&json(&settings).unwrap_or_default())]
    };
    render::table(&["queue", "state", "set"], queues.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn set(line: &str, on: &QueueSettings) -> Result<QueueSettings, &'static str> {
        let words = ["minutehand", "queue", "set", "push"].into_iter().chain(line.split_whitespace());
        let Command::Queue(QueueCommand::Set(set)) = Cli::try_parse_from(words).unwrap().command else {
            panic!("{line} is another command");
        };
        let mut settings = on.clone();
        set.apply(&mut settings).map_err(|error| error.field)?;
        Ok(settings)
    }

    #[test]
    fn options_set_and_take_away_one_by_one() {
        let nothing = QueueSettings::default();
        let some = set("--retries 5 --backoff fixed:200ms --lease auto --timeout 30s", &nothing).unwrap();
        assert_eq!(
            lines("push", &json(&some).unwrap()),
            "lease                  auto\nretry.backoff          fixed:200ms\nretry.retries          5\ntimeouts.execution_ms  30,000\n"
        );
        let less = set("--retries default --timeout default --lease 45s", &some).unwrap();
        assert_eq!(
            less.retry.as_ref().unwrap(),
            &TryDefaults { retries: None, backoff: Some("fixed:200ms".into()) }
        );
        assert_eq!((less.timeouts.clone(), less.lease), (None, Some(Lease::Fixed { ms: 45_000 })));
        let none = set("--backoff default --lease default", &less).unwrap();
        assert_eq!(none, nothing);
        let limited =
            set("--rate 100/s --burst 20 --retry-window 25s=200 --retry-window 5s=100", &nothing).unwrap();
        let limits = limited.limits.clone().unwrap();
        assert_eq!(limits.rate, Some(Rate { count: 100, per_ms: 1_000, burst: Some(20) }));
        assert_eq!(limits.retry_windows.iter().map(|window| window.count).collect::<Vec<_>>(), [100, 200]);
        assert_eq!(set("--rate default --retry-window default", &limited), Ok(nothing.clone()));
        for (wrong, field) in [
            ("--retries x", "retries"),
            ("--retries 255", "retries"),
            ("--retries -1", "retries"),
            ("--backoff often", "backoff"),
            ("--lease 1ms", "lease"),
            ("--lease -5s", "lease"),
            ("--timeout 5", "timeout"),
            ("--dispatch-timeout 0s", "dispatch_timeout"),
            ("--weights 1,2,3", "weights"),
            ("--weights 0,1,1,1,1,1", "weights"),
            ("--owner ftp://x", "owner"),
            ("--downstream a*b", "downstream"),
            ("--rate often", "rate"),
            ("--rate 0/s", "rate"),
            ("--burst 5", "burst"),
            ("--rate 5/s --burst 6", "rate"),
            ("--running 0", "running"),
            ("--retry-window 5s", "retry_window"),
            ("--breaker 50", "breaker"),
            ("--maintenance never", "maintenance"),
        ] {
            assert_eq!(set(wrong, &nothing), Err(field), "{wrong}");
        }
    }
}
