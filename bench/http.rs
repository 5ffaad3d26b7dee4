//! The HTTP port under load: one pod, callers on one thread pool beside it, keep-alive connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use minutehand::client::{Client, NewTask};
use minutehand::clock;
use minutehand::http::{Api, Door, Ops, router, serve};
use minutehand::model::{Namespace, QueueName};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::Space;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::kit::redis::Redis;
use crate::kit::stat::Failure;

/// What the port did.
pub struct Found {
    /// Single submits a second, by callers that each wait for their answer.
    pub submit_single: f64,
    /// Rows of bulk submits a second, in requests of 10,000.
    pub submit_bulk: f64,
    /// Tasks a second through poll and ack, one at a time for each worker.
    pub poll_single: f64,
    /// The same in batches, outcomes travelling with the next poll.
    pub poll_batched: f64,
}

struct Caller {
    http: reqwest::Client,
    base: String,
}

impl Caller {
    async fn post(&self, path: &str, kind: &str, body: String) -> Result<Vec<u8>, Failure> {
        let request = self.http.post(format!("{}{path}", self.base)).header("content-type", kind.to_owned());
        let answer = request.body(body).send().await?;
        if !answer.status().is_success() {
            return Err(format!("{path}: {} {}", answer.status(), answer.text().await?).into());
        }
        Ok(answer.bytes().await?.to_vec())
    }
}

const JSON: &str = "application/json";

/// Runs all four with `tasks` tasks each (a tenth for the single ways) and `callers` callers.
pub async fn run(redis: &mut Redis, tasks: usize, callers: usize) -> Result<Found, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let space = Space::open(redis.store(4).await?, Namespace::new("http")?).await?;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let template = NewTask::to(QueueName::new("any")?);
    let api = Api::new(Client::new(space.clone()), template, Door::Loopback, stop.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let base = format!("http://{}", listener.local_addr()?);
    tokio::spawn(serve(listener, router(Ops::default(), Some(api)), None, stop.clone()));
    let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
    let caller = Arc::new(Caller { http, base });
    let payload = "x".repeat(100);

    let single = tasks / 10;
    let body = json!({ "queue": "single", "payload": payload }).to_string();
    let submit_single = rate(single, callers, {
        let caller = Arc::clone(&caller);
        move || {
            let (caller, body) = (Arc::clone(&caller), body.clone());
            async move { caller.post("/v1/tasks", JSON, body).await.map(|_| 1) }
        }
    })
    .await?;
    let rows = 10_000.min(tasks);
    let line = json!({ "queue": "batched", "payload": payload }).to_string() + "\n";
    let body = line.repeat(rows);
    let submit_bulk = rate(tasks, 2, {
        let caller = Arc::clone(&caller);
        move || {
            let (caller, body) = (Arc::clone(&caller), body.clone());
            async move { caller.post("/v1/tasks:bulk", "application/x-ndjson", body).await.map(|_| rows) }
        }
    })
    .await?;

    let pod = tokio::spawn(Pod::new(space, PodSettings::default()).run(stop.clone()));
    let poll_single = drain(&caller, "single", single, callers, 1).await?;
    let poll_batched = drain(&caller, "batched", tasks, 4, 256).await?;
    stop.cancel();
    pod.await??;
    Ok(Found { submit_single, submit_bulk, poll_single, poll_batched })
}

/// How many a second, where each of so many callers does the next piece when its last one is done.
async fn rate<F>(
    total: usize,
    callers: usize,
    piece: impl Fn() -> F + Clone + Send + 'static,
) -> Result<f64, Failure>
where
    F: Future<Output = Result<usize, Failure>> + Send + 'static,
{
    let (begun, done) = (clock::mono(), Arc::new(AtomicUsize::new(0)));
    let mut running = JoinSet::new();
    for _ in 0..callers {
        let (piece, done) = (piece.clone(), Arc::clone(&done));
        running.spawn(async move {
            while done.load(Ordering::Relaxed) < total {
                done.fetch_add(piece().await?, Ordering::Relaxed);
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

/// Takes and acknowledges what waits in a queue; tasks a second.
async fn drain(
    caller: &Arc<Caller>,
    queue: &'static str,
    total: usize,
    workers: usize,
    slots: usize,
) -> Result<f64, Failure> {
    let (begun, done) = (clock::mono(), Arc::new(AtomicUsize::new(0)));
    let mut running = JoinSet::new();
    for number in 0..workers {
        let (caller, done) = (Arc::clone(caller), Arc::clone(&done));
        running.spawn(async move {
            let mut acks: Vec<Value> = Vec::new();
            while done.load(Ordering::Relaxed) < total || !acks.is_empty() {
                let body = json!({
                    "worker": format!("{queue}-{number}"), "queues": [queue], "slots": slots, "wait_ms": 500, "acks": acks,
                });
                let answer: Value =
                    serde_json::from_slice(&caller.post("/v1/poll", JSON, body.to_string()).await?)?;
                done.fetch_add(acks.len(), Ordering::Relaxed);
                let tasks = answer["tasks"].as_array().cloned().unwrap_or_default();
                acks = tasks
                    .iter()
                    .map(|task| json!({ "execution_id": task["execution_id"], "outcome": "succeeded", "lag_ms": task["lag_ms"] }))
                    .collect();
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}
