//! `minutehand demo`: a real plan through the real thing, on a private Redis, in one process.
//!
//! The flights that left New York's airports on one day are loaded as pushes and replayed at high
//! speed. Several pods compete for them, each with its own connections; several executors run them.
//! Each handler writes down which task it got, so that the report does not have to believe anybody.

use super::args::{DemoArgs, Output};
use super::error::{CliError, Exit};
use super::import::due::{DueReader, find_zone};
use super::import::input::{Format, Input};
use super::import::progress::Progress;
use super::import::row::{From, Plan};
use super::import::sink::ClientSink;
use super::import::{self, Report};
use super::render::{self, grouped};
use super::signal;
use crate::client::{Client, Counts, LagStatus, NewTask};
use crate::clock;
use crate::dev::redis::{PrivateServer, ServerOptions};
use crate::executor::Executor;
use crate::model::{Namespace, Priority, QueueName, TaskId, UnixMs};
use crate::pod::{Pod, PodSettings};
use crate::store::{ConnectSettings, Space, Store};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const FLIGHTS: &str = include_str!("../../examples/flights-2013-11-27.csv");
/// First departure, and the zone in which the plan is written.
const FIRST: &str = "2013-11-27T05:00:00=now";
const ZONE: &str = "America/New_York";
const QUEUE: &str = "flights";
/// From the load to the first push, so that all pods stand ready.
const HEAD_START_MS: i64 = 2_000;
/// How long tasks may take beyond the end of the plan.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the counts.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What a push takes: a few ms, as a call to a push service would.
const PUSH_MS: std::ops::RangeInclusive<u64> = 2..=12;

/// How the demo went.
#[derive(Debug, Serialize)]
struct Outcome {
    sent: u64,
    succeeded: u64,
    exactly_once: bool,
    ran_twice: u64,
    pods: u32,
    executors: u32,
    lag_ms: LagStatus,
    seconds: f64,
    tasks_per_s: f64,
}

/// How often each task ran.
type Ledger = Arc<Mutex<HashMap<TaskId, u32>>>;

/// Plays the day and reports. Exit code 0 only if every task succeeded exactly once.
pub async fn run(args: &DemoArgs, output: Output) -> Result<Exit, CliError> {
    // What can be wrong is said before anything is started.
    DueReader::new(Some(find_zone(ZONE)?)).with_rebase(FIRST, Some(args.speed), UnixMs(0))?;
    let stop = signal::stop()?;
    let server = PrivateServer::start(ServerOptions::default()).await?;
    let outcome = play(args, output, &server, &stop).await;
    server.shutdown().await;
    let outcome = outcome?;
    let done = outcome.exactly_once && outcome.succeeded == outcome.sent;
    let value = serde_json::to_value(&outcome).unwrap_or_default();
    render::show(output, &value, |_| report(&outcome));
    Ok(if done { Exit::Ok } else { Exit::Failed })
}

async fn play(
    args: &DemoArgs,
    output: Output,
    server: &PrivateServer,
    stop: &CancellationToken,
) -> Result<Outcome, CliError> {
    let say = |text: String| {
        if output == Output::Table {
            eprintln!("{text}");
        }
    };
    let open = async || -> Result<Space, CliError> {
        let store =
            Store::connect(ConnectSettings { url: server.url(), ..ConnectSettings::default() }).await?;
        Ok(Space::open(store, Namespace::new("demo")?).await?)
    };
    let binary = server.binary();
    say(format!(
        "a private {} {}, {} pods, {} executors",
        if binary.valkey { "valkey" } else { "redis" },
        binary.version,
        args.pods,
        args.executors
    ));

    let ledger = Ledger::default();
    let (pods_stop, executors_stop) = (CancellationToken::new(), CancellationToken::new());
    // Dropped on every way out, also by an error: nothing goes on behind our back.
    let _pods = pods_stop.clone().drop_guard();
    let _executors = executors_stop.clone().drop_guard();
    let (mut pods, mut executors) = (JoinSet::new(), JoinSet::new());
    for number in 1..=args.executors {
        let ledger = Arc::clone(&ledger);
        let executor = Executor::builder(open().await?)
            .name(format!("push-{number}"))
            .slots(32)
            .handle(QUEUE, move |task, _context| {
                let ledger = Arc::clone(&ledger);
                async move {
                    *ledger.lock().entry(task.id).or_default() += 1;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(PUSH_MS))).await;
                    Ok(())
                }
            })
            .build()?;
        executors.spawn(executor.run(executors_stop.clone()));
    }
    for _ in 0..args.pods {
        pods.spawn(Pod::new(open().await?, PodSettings::default()).run(pods_stop.clone()));
    }

    let client = Client::new(open().await?);
    let now = UnixMs(client.space().clock().now_ms()).plus(HEAD_START_MS);
    let plan = Plan {
        placement: None,
        due: "departure".to_owned(),
        due_reader: DueReader::new(Some(find_zone(ZONE)?)).with_rebase(FIRST, Some(args.speed), now)?,
        queue: From::Fixed(QueueName::new(QUEUE)?),
        key: Some("flight".to_owned()),
        priority: From::Fixed(Priority::default()),
        now,
    };
    let input = Input::of_bytes("flights-2013-11-27.csv", FLIGHTS.as_bytes(), Format::Csv)?;
    let survey = import::survey(&input, &plan)?;
    let mut progress = Progress::new(true, None, Arc::default());
    let sink = ClientSink::new(client.clone(), NewTask::to(QueueName::new(QUEUE)?));
    let (loaded, result) = import::run(input, plan, sink, &mut progress).await;
    result?;
    let ends = survey.timeline.ends().map_or(now, |(_, last)| last);
    say(format!(
        "{} pushes of 27 November 2013 loaded in {:.0} ms; their 19 hours take {} s\n",
        grouped(loaded.created),
        loaded.seconds * 1_000.0,
        (ends.0 - now.0) / 1_000
    ));

    let outcome = watch(args, output, &client, &loaded, &ledger, (now, ends), stop).await;
    pods_stop.cancel();
    while pods.join_next().await.is_some() {}
    executors_stop.cancel();
    while executors.join_next().await.is_some() {}
    outcome
}

/// Waits until every task has come to an end, showing how it goes.
async fn watch(
    args: &DemoArgs,
    output: Output,
    client: &Client,
    loaded: &Report,
    ledger: &Ledger,
    (from, to): (UnixMs, UnixMs),
    stop: &CancellationToken,
) -> Result<Outcome, CliError> {
    let start = clock::mono();
    let screen = Screen::new(output, loaded.created);
    let patience = clock::ms(to.0 - from.0) + PATIENCE;
    loop {
        let (counts, lag) = client.counts().await?;
        let now = UnixMs(client.space().clock().now_ms());
        let plan_ms = ((now.0 - from.0).max(0) as f64 * args.speed) as i64;
        screen.draw(&counts, &lag, plan_ms);
        let waited = clock::mono().saturating_duration_since(start);
        if counts.is_quiet() || waited > patience || stop.is_cancelled() {
            screen.end();
            let runs = ledger.lock();
            let ran_twice = runs.values().filter(|runs| **runs > 1).count() as u64;
            let succeeded = counts.succeeded.unsigned_abs();
            let seconds = ((now.0 - from.0).max(1)) as f64 / 1_000.0;
            return Ok(Outcome {
                sent: loaded.created,
                succeeded,
                exactly_once: ran_twice == 0 && runs.len() as u64 == loaded.created,
                ran_twice,
                pods: args.pods,
                executors: args.executors,
                lag_ms: lag,
                seconds,
                tasks_per_s: succeeded as f64 / seconds,
            });
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// A bar on a terminal; a line now and then elsewhere; nothing for machines.
struct Screen {
    bar: Option<ProgressBar>,
    lines: bool,
    last: Mutex<i64>,
}

/// Plan time between two lines where there is no terminal.
const LINE_EVERY_MS: i64 = 2 * 3_600_000;

impl Screen {
    fn new(output: Output, tasks: u64) -> Self {
        let people = output == Output::Table;
        let bar = (people && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(tasks);
            if let Ok(style) =
                ProgressStyle::with_template("{prefix}  {bar:40}  {pos:>5}/{len}\n       {msg}")
            {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar
        });
        Self { lines: people && bar.is_none(), bar, last: Mutex::new(i64::MIN) }
    }

    fn draw(&self, counts: &Counts, lag: &LagStatus, plan_ms: i64) {
        let minutes = (5 * 60 + plan_ms / 60_000).rem_euclid(24 * 60);
        let clock = format!("{:02}:{:02}", minutes / 60, minutes % 60);
        let ms = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
        let text = format!(
            "{} waiting, {} running, {} done; started late by p50 {}, p99 {}, max {}",
            counts.pending,
            counts.running,
            counts.succeeded,
            ms(lag.p50),
            ms(lag.p99),
            ms(lag.max)
        );
        if let Some(bar) = &self.bar {
            bar.set_prefix(clock);
            bar.set_message(text);
            bar.set_position(counts.succeeded.unsigned_abs());
        } else if self.lines {
            let mut last = self.last.lock();
            if plan_ms >= last.saturating_add(LINE_EVERY_MS) || counts.is_quiet() || *last == i64::MIN {
                *last = plan_ms;
                eprintln!("{clock}  {text}");
            }
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
            eprintln!();
        }
    }
}

fn report(outcome: &Outcome) -> String {
    let ms = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
    let lag = &outcome.lag_ms;
    let verdict = match (outcome.exactly_once, outcome.succeeded == outcome.sent) {
        (true, true) => "every task succeeded exactly once".to_owned(),
        (false, _) if outcome.ran_twice > 0 => format!("{} tasks ran more than once", outcome.ran_twice),
        _ => format!("{} tasks did not succeed", outcome.sent - outcome.succeeded.min(outcome.sent)),
    };
    let pairs = render::pairs(&[
        ("sent", grouped(outcome.sent)),
        ("succeeded", grouped(outcome.succeeded)),
        ("start lag", format!("p50 {}, p99 {}, max {}", ms(lag.p50), ms(lag.p99), ms(lag.max))),
        ("tasks/s", format!("{:.1} over {:.1} s", outcome.tasks_per_s, outcome.seconds)),
    ]);
    format!("\n{pairs}\n{verdict}\n")
}
