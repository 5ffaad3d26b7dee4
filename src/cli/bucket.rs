//! `minutehand bucket`: how many there are, why, and what comes.

use super::args::Output;
use super::connect;
use super::error::{CliError, Exit};
use super::import::chart::Timeline;
use super::import::due::find_zone;
use super::render::{self, grouped};
use crate::client::{AgendaView, BoundsChange, SpreadView};
use crate::model::UnixMs;
use crate::model::decide::Record;
use crate::model::field::{FieldError, Reason};
use crate::model::slice::parse_duration_ms;
use crate::settings::Loaded;
use clap::{Args, Subcommand};
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to do with buckets.
#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// Show how many there are, within which bounds, and what was last decided
    Spread,
    /// List those that may hold tasks: where they are, who holds them, what waits
    List,
    /// Show changes of their number with the reason of each; with --output json also the figures
    History {
        /// Show every window and not only those that changed something
        #[arg(long)]
        all: bool,
        /// Most that are shown
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: usize,
    },
    /// Draw how many tasks each coming minute has
    #[command(after_help = "\
Counts come from the sizes of due sets; nothing is read task by task.
Examples:
  minutehand bucket agenda
  minutehand bucket agenda --ahead 7d --tz Europe/Berlin --output json")]
    Agenda {
        /// How far to look, such as 30m, 24h or 7d
        #[arg(long, default_value = "24h", value_name = "TIME", allow_hyphen_values = true)]
        ahead: String,
        /// Time zone of the chart, such as Europe/Berlin
        #[arg(long, value_name = "ZONE")]
        tz: Option<String>,
    },
    /// Pin the number, bound it, or switch the automatic off; the deciding pod carries it out within seconds
    #[command(after_help = "\
Numbers are powers of two. `none` takes one away.
Examples:
  minutehand bucket set --pin 16
  minutehand bucket set --pin none --min 8 --max 64
  minutehand bucket set --manual")]
    Set(BucketSet),
    /// Decide again on the figures of `bucket history --output json`; exit code 1 if a decision differs
    Replay {
        /// The file, or - for stdin
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
    },
}

/// Options of `bucket set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["pin", "min", "max", "auto", "manual"]))]
pub struct BucketSet {
    /// So many, whatever the load
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    pub pin: Option<String>,
    /// Fewest
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    pub min: Option<String>,
    /// Most
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    pub max: Option<String>,
    /// Let the load decide
    #[arg(long, conflicts_with = "manual")]
    pub auto: bool,
    /// Change nothing by load; a pin and bounds still count
    #[arg(long)]
    pub manual: bool,
}

fn value<T: Serialize>(of: &T) -> Result<Value, CliError> {
    serde_json::to_value(of).map_err(|error| CliError::failed(error.to_string()))
}

/// Does what was asked.
pub async fn run(command: &BucketCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        BucketCommand::Spread => {
            let view = connect::client(loaded).await?.spread().await?;
            render::show(output, &value(&view)?, |_| spread(&view));
        }
        BucketCommand::List => {
            let list = connect::client(loaded).await?.buckets().await?;
            let rows = list.iter().map(|bucket| {
                vec![
                    bucket.bucket.to_string(),
                    bucket.state.to_owned(),
                    grouped(bucket.pending.unsigned_abs()),
                    grouped(bucket.ripe),
                    grouped(bucket.waiting_ms.unsigned_abs()),
                    grouped(bucket.running.unsigned_abs()),
                    grouped(bucket.dead.unsigned_abs()),
                    if bucket.holders.is_empty() {
                        "-".to_owned()
                    } else {
                        render::safe(&bucket.holders.join(", "))
                    },
                    bucket.holders_max.to_string(),
                    bucket.slot.to_string(),
                    bucket.node.as_deref().map(render::safe).unwrap_or_else(|| "-".to_owned()),
                ]
            });
            let head = [
                "bucket",
                "state",
                "pending",
                "ripe",
                "waiting ms",
                "running",
                "dead",
                "held by",
                "holders",
                "slot",
                "node",
            ];
            render::show(output, &value(&list)?, |_| render::table(&head, rows.collect()));
        }
        BucketCommand::History { all, limit } => {
            let mut records = connect::client(loaded).await?.decisions(!all, *limit).await?;
            records.reverse();
            render::show(output, &value(&records)?, |_| history(&records, *all));
        }
        BucketCommand::Agenda { ahead, tz } => {
            let ahead_ms = parse_duration_ms("ahead", ahead)?;
            if ahead_ms <= 0 {
                let detail = format!("{ahead} is not ahead");
                return Err(FieldError::new("ahead", Reason::OutOfRange, detail).into());
            }
            let zone = tz.as_deref().map(find_zone).transpose()?.unwrap_or(TimeZone::UTC);
            let view = connect::client(loaded).await?.agenda(ahead_ms).await?;
            render::show(output, &value(&view)?, |_| agenda(&view, &zone));
        }
        BucketCommand::Set(set) => {
            let wish = BoundsChange {
                pin: set.pin.as_deref().map(|text| number("pin", text)).transpose()?,
                min: set.min.as_deref().map(|text| number("min", text)).transpose()?,
                max: set.max.as_deref().map(|text| number("max", text)).transpose()?,
                manual: (set.auto || set.manual).then_some(set.manual),
            };
            let view = connect::client(loaded).await?.set_bounds(wish).await?;
            render::show(output, &value(&view)?, |_| spread(&view));
        }
        BucketCommand::Replay { file } => return replay(file, output),
    }
    Ok(Exit::Ok)
}

fn number(field: &'static str, text: &str) -> Result<Option<u16>, FieldError> {
    if text == "none" {
        return Ok(None);
    }
    let wrong =
        |_| FieldError::new(field, Reason::InvalidType, format!("{text} is neither a number nor `none`"));
    text.parse().map(Some).map_err(wrong)
}

fn spread(view: &SpreadView) -> String {
    let list = |numbers: &[u16]| numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let some = |number: Option<u16>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let bounds = &view.bounds;
    let mode = match (bounds.pin, bounds.manual) {
        (Some(pin), _) => format!("pinned to {pin}"),
        (None, true) => "manual: the load changes nothing".to_owned(),
        (None, false) => format!("automatic, {} to {}", view.floor, view.ceiling),
    };
    let mut rows = vec![
        ("buckets", format!("{} for new tasks, {} of them for keyed ones", view.buckets, view.key_buckets)),
        ("mode", mode),
    ];
    if !view.closing.is_empty() {
        rows.push(("closing", list(&view.closing)));
    }
    if !view.hot.is_empty() {
        let hot = view.hot.iter().map(|(bucket, holders)| format!("{bucket} has {holders} holders"));
        rows.push(("hot", hot.collect::<Vec<_>>().join(", ")));
    }
    let leader =
        if view.leader.is_empty() { "no pod decides".to_owned() } else { render::safe(&view.leader) };
    rows.push(("decided by", leader));
    rows.push((
        "wanted",
        format!("{} pods, {} executors", some(view.wanted_pods), some(view.wanted_executors)),
    ));
    if let (Some(at), Some(decision)) = (&view.decided, &view.decision) {
        rows.push(("last decision", format!("{at}: {}, {}", decision.action, decision.reason.name())));
        rows.push(("", render::safe(&decision.why)));
    }
    render::pairs(&rows)
}

fn history(records: &[Record], all: bool) -> String {
    if records.is_empty() {
        let what = if all { "nothing was decided yet" } else { "the number of buckets was never changed" };
        return what.to_owned();
    }
    let rows = records.iter().map(|record| {
        let decision = &record.decision;
        vec![
            UnixMs(record.inputs.at_ms).to_string(),
            decision.action.to_string(),
            decision.reason.name().to_owned(),
            render::safe(&decision.why),
        ]
    });
    render::table(&["at", "decision", "reason", "why"], rows.collect())
}

/// Minutes that are listed below the chart.
const FULLEST: usize = 5;

fn agenda(view: &AgendaView, zone: &TimeZone) -> String {
    if view.tasks == 0 {
        return format!("no tasks are due from {} to {}", view.from, view.to);
    }
    let mut timeline = Timeline::default();
    let mut minutes: Vec<(i64, u64, u16, u64)> = Vec::new();
    for (at, buckets) in &view.minutes {
        let tasks = buckets.values().sum();
        timeline.add_many(UnixMs(*at), tasks);
        let fullest = buckets.iter().max_by_key(|(_, tasks)| **tasks).map_or((0, 0), |(b, n)| (*b, *n));
        minutes.push((*at, tasks, fullest.0, fullest.1));
    }
    minutes.sort_by_key(|(at, tasks, ..)| (std::cmp::Reverse(*tasks), *at));
    let rows = minutes.iter().take(FULLEST).map(|(at, tasks, bucket, most)| {
        let buckets = view.minutes.get(at).map_or(0, |buckets| buckets.len());
        let share = format!("{} in bucket {bucket}", grouped(*most));
        vec![UnixMs(*at).to_string(), grouped(*tasks), buckets.to_string(), share]
    });
    let table = render::table(&["fullest minutes", "tasks", "buckets", "most"], rows.collect());
    format!("{}\n{table}", timeline.draw(zone, render::width()))
}

/// Decides again on noted figures, and tells which decisions differ.
pub fn replay(file: &std::path::Path, output: Output) -> Result<Exit, CliError> {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin().lock())
    } else {
        std::fs::read_to_string(file)
    };
    let text =
        text.map_err(|error| CliError::usage("file", format!("{} cannot be read: {error}", file.display())))?;
    let records = records(&text).map_err(|error| {
        CliError::usage("file", format!("is not what `bucket history --output json` prints: {error}"))
    })?;
    let mut differing = Vec::new();
    for record in &records {
        let again = record.again();
        if again != record.decision {
            let at = UnixMs(record.inputs.at_ms).to_string();
            differing.push(json!({ "at": at, "noted": record.decision, "again": again }));
        }
    }
    let told = json!({ "decisions": records.len(), "differing": differing });
    render::show(output, &told, |_| {
        let mut lines = vec![format!("{} decisions, {} differ", records.len(), differing.len())];
        lines.extend(differing.iter().map(|one| render::safe(&one.to_string())));
        lines.join("\n")
    });
    Ok(if differing.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// One JSON list, or one record a line.
fn records(text: &str) -> Result<Vec<Record>, serde_json::Error> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text);
    }
    text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::decide::{Inputs, Rules, State, decide};
    use std::collections::BTreeMap;

    fn record(buckets: u16) -> Record {
        let inputs =
            Inputs { at_ms: 1_764_511_260_000, buckets, floor: 8, ceiling: 1_024, ..Inputs::default() };
        let (rules, state) = (Rules::default(), State::default());
        let decision = decide(&rules, &state, &inputs).1;
        Record { rules, state, inputs, decision }
    }

    #[test]
    fn a_history_for_people_and_its_replay() {
        let changed = record(4);
        assert_eq!(
            history(std::slice::from_ref(&changed), false),
            "AT                        DECISION       REASON         WHY\n\
             2025-11-30T14:01:00.000Z  4 → 8 buckets  out_of_bounds  the bounds are 8 to 1024\n"
        );
        let text = serde_json::to_string(&vec![changed.clone(), record(8)]).unwrap();
        let lines = format!(
            "{}\n\n{}\n",
            serde_json::to_string(&changed).unwrap(),
            serde_json::to_string(&record(8)).unwrap()
        );
        for text in [&text, &lines] {
            let read = records(text).unwrap();
            assert!(read.len() == 2 && read.iter().all(|record| record.again() == record.decision));
        }
        assert!(records("{}").is_err() && records("[1]").is_err());
    }

    #[test]
    fn an_agenda_for_people() {
        let minute = 1_764_511_260_000;
        let buckets = |n: u64| BTreeMap::from([(0, n), (3, 2 * n)]);
        let view = AgendaView {
            tasks: 33,
            minutes: BTreeMap::from([(minute, buckets(1)), (minute + 3_600_000, buckets(10))]),
            ..AgendaView::default()
        };
        let text = agenda(&view, &TimeZone::UTC);
        assert!(text.contains("busiest minute: 30 tasks at 2025-11-30 15:01"), "{text}");
        assert!(
            text.ends_with(
                "FULLEST MINUTES           TASKS  BUCKETS  MOST\n\
             2025-11-30T15:01:00.000Z     30        2  20 in bucket 3\n\
             2025-11-30T14:01:00.000Z      3        2  2 in bucket 3\n"
            ),
            "{text}"
        );
        assert_eq!([number("pin", "none"), number("pin", "16")], [Ok(None), Ok(Some(16))]);
        assert!(number("pin", "-1").is_err() && number("pin", "many").is_err());
    }
}
