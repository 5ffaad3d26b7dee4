//! What choosing an executor costs, by policy, and how many tasks a second go out as web calls.

use crate::kit::report::{Report, table};
use crate::kit::stat::{Failure, median};
use clap::Args;
use minutehand::executor::{Transport, Trial, Webhook, WebhookSettings};
use minutehand::model::route::{Policy, Seat, View, Work};
use minutehand::webhook::{Allowed, SenderSettings};
use serde_json::json;
use std::time::{Duration, Instant};

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct RouteArgs {
    /// Numbers of executors.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000])]
    pub executors: Vec<usize>,
    /// Seconds of each run of web calls; 0 leaves them out.
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
}

/// Choices of one sample.
const BATCH: u32 = 500;
const SAMPLES: usize = 400;

/// Nanoseconds a task: choose, note, and hear of one executor that has room again.
fn choose(policy: Policy, executors: usize) -> f64 {
    let ids: Vec<String> = (0..executors).map(|n| format!("ex-{n:05}")).collect();
    let seats = ids.iter().enumerate().map(|(n, _)| Seat::of([4, 8, 16, 32][n % 4])).collect();
    let mut view = View::new(policy, seats, &ids);
    let mut random = fastrand::Rng::with_seed(7);
    let mut given = std::collections::VecDeque::new();
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let works: Vec<Work> = (0..BATCH)
            .map(|_| Work {
                cost_ms: random.f64() * 100.0,
                urgent: random.u8(..) < 26,
                key: Some(random.u64(..)),
                chance: random.u64(..),
            })
            .collect();
        let begin = now();
        for work in &works {
            if let Some(place) = view.choose(work) {
                view.give(place, work.cost_ms);
                given.push_back((place, work.cost_ms));
            }
            if given.len() > 2 * executors
                && let Some((place, cost_ms)) = given.pop_front()
            {
                let seat = view.seats()[place];
                let load_ms = (seat.load_ms - cost_ms).max(0.0);
                view.set(place, Seat { free: seat.free + 1, load_ms, ..seat });
            }
        }
        samples.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
    }
    median(&samples)
}

#[expect(clippy::disallowed_methods, reason = "a bench measures")]
fn now() -> Instant {
    Instant::now()
}

/// Tasks a second that go to a server of this process, one by one or together.
async fn calls(batch: usize, seconds: u64) -> Result<f64, Failure> {
    let router = axum::Router::new().route("/", axum::routing::post(|| async {}));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let sender = SenderSettings { allowed: Allowed::All, per_host: 64, ..SenderSettings::default() };
    let settings = WebhookSettings { sender, url: Some(url), batch, ..WebhookSettings::default() };
    let webhook = Webhook::new(settings).map_err(|error| error.to_string())?;
    let (begin, mut running, mut done) = (now(), tokio::task::JoinSet::new(), 0u64);
    let at_once = if batch > 1 { 4 * batch } else { 64 };
    while begin.elapsed() < Duration::from_secs(seconds) {
        while running.len() < at_once {
            let (task, context) = Trial::new("push")?.payload("x".repeat(100)).into_parts();
            running.spawn(webhook.deliver(task, context));
        }
        if let Some(result) = running.join_next().await {
            result?.map_err(|error| error.to_string())?;
            done += 1;
        }
    }
    server.abort();
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

/// Runs it.
pub async fn run(report: &mut Report, args: RouteArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut results = serde_json::Map::new();
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Broadcast) {
        let costs: Vec<f64> = args.executors.iter().map(|count| choose(policy, *count)).collect();
        let mut row = vec![policy.name().to_owned()];
        row.extend(costs.iter().map(|ns| format!("{ns:.0}")));
        rows.push(row);
        results.insert(policy.name().to_owned(), json!(costs));
    }
    let head: Vec<String> = args.executors.iter().map(|count| format!("{count} executors")).collect();
    let head: Vec<&str> = std::iter::once("policy").chain(head.iter().map(String::as_str)).collect();
    table("Choosing an executor, ns a task (median of batches of 500)", &head, &rows);
    report.add("route_ns", json!({ "executors": args.executors, "policies": results }));
    if args.seconds > 0 {
        let (single, batched) = (calls(1, args.seconds).await?, calls(100, args.seconds).await?);
        let rows = [("one by one", single), ("100 a call", batched)];
        let rows: Vec<_> =
            rows.iter().map(|(name, rate)| vec![(*name).to_owned(), format!("{rate:.0}")]).collect();
        table("Web calls to a server of the same process, tasks/s", &["", "tasks/s"], &rows);
        report.add("webhook_tasks_per_s", json!({ "single": single, "batched": batched }));
    }
    Ok(())
}
