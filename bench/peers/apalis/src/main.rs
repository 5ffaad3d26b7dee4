//! apalis-redis: push_all of 1,000; batches of 500, a poll each 10 ms (100 ms where tasks are due one by one, since a
//! shorter one makes its fetcher stall), handlers spawned, locks and events off. Its due times are whole seconds.
//!
//!   peer-apalis produce PORT TASKS DUE SPAN
//!   peer-apalis work PORT TASKS

use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use futures::stream;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Bench {
    due: i64,
    pad: String,
}

#[derive(Debug, Default)]
struct Notes {
    lags: Vec<f64>,
    first: f64,
    count: usize,
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1_000.0)
}

fn config() -> Config {
    Config::default().queue("bench").batch_size(500).lock_tasks(false).emit_events(false)
}

fn number(at: usize) -> i64 {
    std::env::args().nth(at).and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), BoxDynError> {
    let (role, port, tasks) = (std::env::args().nth(1).unwrap_or_default(), number(2), number(3));
    let conn = apalis_redis::connect(format!("redis://127.0.0.1:{port}")).await?;
    if role == "produce" { produce(conn, tasks, number(4), number(5)).await } else { work(conn, tasks as usize).await }
}

async fn produce(conn: apalis_redis::ConnectionManager, tasks: i64, due: i64, span: i64) -> Result<(), BoxDynError> {
    let mut storage = RedisStorage::<Bench>::new(conn).with_config(config());
    let start = now_ms();
    let rows: Vec<i64> = (0..tasks).collect();
    for rows in rows.chunks(1_000) {
        let batch: Vec<_> = rows
            .iter()
            .map(|n| {
                let at = if due == 0 { 0 } else { due + n * span / tasks };
                let task = TaskBuilder::new(Bench { due: at, pad: "x".repeat(68) });
                if at == 0 { task.build() } else { task.run_at_timestamp((at / 1_000) as u64).build() }
            })
            .collect();
        storage.push_all(stream::iter(batch)).await?;
    }
    println!("{}", serde_json::json!({ "ms": now_ms() - start }));
    Ok(())
}

async fn work(conn: apalis_redis::ConnectionManager, tasks: usize) -> Result<(), BoxDynError> {
    let poll = std::env::var("APALIS_POLL_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(10);
    let storage = RedisStorage::<Bench>::new(conn).with_config(config()).poll_with_interval(Duration::from_millis(poll));
    let notes: Arc<Mutex<Notes>> = Arc::default();
    let handler = move |task: Bench| {
        let notes = Arc::clone(&notes);
        async move {
            let at = now_ms();
            let mut notes = notes.lock().map_err(|_| "a handler panicked")?;
            if notes.count == 0 {
                notes.first = at;
            }
            notes.count += 1;
            if task.due != 0 {
                notes.lags.push(at - task.due as f64);
            }
            if notes.count == tasks {
                let first = notes.first;
                notes.lags.sort_by(f64::total_cmp);
                let lags = &notes.lags;
                let share = |share: f64| lags.get((lags.len().saturating_sub(1) as f64 * share) as usize);
                let early = lags.iter().filter(|lag| **lag < 0.0).count();
                println!(
                    "{}",
                    serde_json::json!({
                        "ms": at - first, "first": first, "last": at, "early": early,
                        "min": share(0.0), "p50": share(0.5), "p99": share(0.99), "max": share(1.0),
                    })
                );
                // Its last acks leave within this time.
                tokio::spawn(async {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    std::process::exit(0);
                });
            }
            Ok::<(), BoxDynError>(())
        }
    };
    println!("ready");
    WorkerBuilder::new("bench").backend(storage).parallelize(tokio::spawn).build(handler).run().await?;
    Ok(())
}
