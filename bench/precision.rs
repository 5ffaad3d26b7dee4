//! Start − due through real processes, at arbitrary milliseconds.

use std::time::Duration;

use minutehand::client::{Due, NewTask, StreamSettings};
use minutehand::clock;
use minutehand::model::{QueueName, UnixMs};

use crate::kit::fleet::{Fleet, Lag, QUEUE};
use crate::kit::redis::Redis;
use crate::kit::stat::Failure;

/// What runs.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Tasks a second, each due at a millisecond drawn by chance.
    pub rate: usize,
    /// For how long.
    pub seconds: usize,
    /// Buckets.
    pub buckets: u16,
    /// Executor processes.
    pub executors: usize,
}

/// What it took.
pub struct Found {
    /// Start − due by the server's clock.
    pub lag: Lag,
    /// µs of the server's main thread a task, submits not counted.
    pub redis_us: f64,
    /// Commands a task that the server got from clients meanwhile, those inside scripts not counted.
    pub calls: f64,
    /// What the server's slow log held: see [`Redis::slow`].
    pub slow: Vec<String>,
}

/// Submits everything ahead of time and waits until it is done. A task that starts early is an error.
pub async fn run(redis: &mut Redis, load: Load) -> Result<Found, Failure> {
    let mut fleet = Fleet::open(redis, load.buckets, 1).await?;
    fleet.add_pods(1)?;
    fleet.add_workers(load.executors).await?;
    let total = load.rate * load.seconds;
    let begin = fleet.space.clock().now_ms() + 3_000 + total as i64 / 20;
    let mut chance = fastrand::Rng::with_seed(11);
    let mut dues: Vec<i64> = (0..total).map(|_| begin + chance.i64(0..load.seconds as i64 * 1_000)).collect();
    dues.sort_unstable();
    let queue = QueueName::new(QUEUE)?;
    let mut stream = fleet.client.stream(StreamSettings::default());
    for due in dues {
        let payload = vec![b'x'; 100].into();
        stream.push(NewTask { due: Due::At(UnixMs(due)), payload, ..NewTask::to(queue.clone()) }).await?;
    }
    let sent = stream.finish().await?;
    if sent.created != total as u64 || fleet.space.clock().now_ms() + 500 >= begin {
        return Err(format!("not all was submitted in time: {sent:?}").into());
    }
    tokio::time::sleep(fleet.space.clock().until_ms(begin - 200)).await;
    let (cpu, calls) = (redis.cpu_us()?, redis.calls()?);
    tokio::time::sleep(Duration::from_millis(200 + load.seconds as u64 * 1_000)).await;
    fleet.quiet(Duration::from_secs(60)).await?;
    let per = |value: f64| value / total as f64;
    let (redis_us, calls, slow) = (per(redis.cpu_us()? - cpu), per(redis.calls()? - calls), redis.slow()?);
    let starts = fleet.end().await?;
    if starts.len() != total {
        return Err(format!("{} of {total} started", starts.len()).into());
    }
    Ok(Found { lag: Lag::of(&starts)?, redis_us, calls, slow })
}

/// Tasks submitted one by one to start in 50 ms, while nothing else happens.
pub async fn alone(redis: &mut Redis, tasks: usize, buckets: u16) -> Result<Lag, Failure> {
    let mut fleet = Fleet::open(redis, buckets, 1).await?;
    fleet.add_pods(1)?;
    fleet.add_workers(1).await?;
    let queue = QueueName::new(QUEUE)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for _ in 0..tasks {
        fleet.client.submit(NewTask { due: Due::In(50), ..NewTask::to(queue.clone()) }).await?;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(120..280))).await;
    }
    let start = clock::mono();
    fleet.quiet(Duration::from_secs(10)).await?;
    tracing::debug!(waited = ?start.elapsed(), "all started");
    Lag::of(&fleet.end().await?)
}
