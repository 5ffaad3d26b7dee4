//! Minutehand as one of the peers: a producer and a worker that speak as their adapters do.

use clap::Args;
use minutehand::client::{Client, Due, NewTask, StreamSettings};
use minutehand::clock;
use minutehand::executor::Executor;
use minutehand::model::{Namespace, QueueName, UnixMs};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::{ConnectSettings, Space, Store};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

use crate::kit::fleet::QUEUE;
use crate::kit::stat::Failure;

/// `produce PORT TASKS DUE SPAN` or `work PORT TASKS`, as the adapters in `bench/peers/`.
#[derive(Debug, Clone, Args)]
pub struct OwnArgs {
    role: String,
    port: u16,
    tasks: usize,
    #[arg(default_value_t = 0)]
    due: i64,
    #[arg(default_value_t = 0)]
    span: i64,
}

/// Does what it is told, and says in JSON how it went.
pub async fn run(args: OwnArgs) -> Result<(), Failure> {
    let url = format!("redis://127.0.0.1:{}", args.port);
    let store = Store::connect(ConnectSettings { url, ..ConnectSettings::default() }).await?;
    let space = Space::open(store, Namespace::new("bench")?).await?;
    if args.role == "produce" { produce(&space, &args).await } else { work(space, args.tasks).await }
}

async fn produce(space: &Space, args: &OwnArgs) -> Result<(), Failure> {
    let (client, queue) = (Client::new(space.clone()), QueueName::new(QUEUE)?);
    let start = clock::mono();
    let mut stream = client.stream(StreamSettings::default());
    for n in 0..args.tasks {
        let at = args.due + n as i64 * args.span / args.tasks as i64;
        let due = if args.due == 0 { Due::Now } else { Due::At(UnixMs(at)) };
        let mut payload = format!("{{\"due\":{at},\"pad\":\"");
        while payload.len() < 98 {
            payload.push('x');
        }
        payload.push_str("\"}");
        stream.push(NewTask { due, payload: payload.into(), ..NewTask::to(queue.clone()) }).await?;
    }
    let sent = stream.finish().await?;
    if sent.created != args.tasks as u64 {
        return Err(format!("not all was submitted: {sent:?}").into());
    }
    println!("{}", json!({ "ms": start.elapsed().as_secs_f64() * 1_000.0 }));
    Ok(())
}

/// A pod and an executor in one process, both with default settings.
async fn work(space: Space, tasks: usize) -> Result<(), Failure> {
    let notes: Arc<Mutex<Vec<(i64, i64)>>> = Arc::new(Mutex::new(Vec::with_capacity(tasks)));
    let stop = CancellationToken::new();
    let (own, all) = (Arc::clone(&notes), stop.clone());
    let executor = Executor::builder(space.clone())
        .handle(QUEUE, move |task, _| {
            let start = clock::wall_us();
            if let Ok(mut notes) = own.lock() {
                notes.push((start, start - task.due.0 * 1_000));
                if notes.len() == tasks {
                    all.cancel();
                }
            }
            async { Ok(()) }
        })
        .build()?;
    let pod = Pod::new(space, PodSettings::default());
    let (pod_stop, listening) = (CancellationToken::new(), pod.ready());
    let running = tokio::spawn(pod.run(pod_stop.clone()));
    let said = tokio::spawn(async move {
        while !listening.report(clock::mono()).ready {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        println!("ready");
    });
    executor.run(stop).await?;
    said.await?;
    pod_stop.cancel();
    running.await??;
    let notes = notes.lock().map_err(|_| "a handler panicked")?;
    let mut lags: Vec<f64> = notes.iter().map(|(_, lag)| *lag as f64 / 1_000.0).collect();
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| lags[((lags.len() - 1) as f64 * share) as usize];
    let times = || notes.iter().map(|(start, _)| *start as f64 / 1_000.0);
    let (first, last) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let early = lags.iter().filter(|lag| **lag < 0.0).count();
    println!(
        "{}",
        json!({
            "ms": last - first, "first": first, "last": last, "early": early,
            "min": at(0.0), "p50": at(0.5), "p99": at(0.99), "max": at(1.0),
        })
    );
    Ok(())
}
