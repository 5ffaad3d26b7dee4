//! Many tasks due within one second, and how many pods help with one hot bucket.

use std::time::Duration;

use minutehand::client::{Due, NewTask, StreamSettings};
use minutehand::model::{QueueName, UnixMs};

use crate::kit::fleet::{Fleet, Lag, QUEUE, Start};
use crate::kit::redis::Redis;
use crate::kit::stat::Failure;

/// What runs.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Tasks in all.
    pub tasks: usize,
    /// Due within so many ms, evenly; 0: all at one instant.
    pub span_ms: i64,
    /// Buckets.
    pub buckets: u16,
    /// Pods, each of which may hold each bucket.
    pub pods: usize,
    /// Executor processes.
    pub executors: usize,
}

/// What came of it.
pub struct Found {
    /// Start − due by the server's clock.
    pub lag: Lag,
    /// When the last handler was entered, in ms after the first task was due.
    pub last_ms: f64,
    /// Tasks a second that could be submitted.
    pub submit_rate: f64,
    /// µs of the server's main thread a task, submits not counted.
    pub redis_us: f64,
    /// What the server's slow log held: see [`Redis::slow`].
    pub slow: Vec<String>,
    /// All starts, in order.
    pub starts: Vec<Start>,
    /// When the first task was due, in µs.
    pub begin_us: i64,
}

/// Submits a burst ahead of time and waits until it is done.
pub async fn run(redis: &mut Redis, burst: Burst) -> Result<Found, Failure> {
    let holders = u8::try_from(burst.pods)?;
    let mut fleet = Fleet::open(redis, burst.buckets, holders).await?;
    let queue = QueueName::new(QUEUE)?;
    // At 50,000 a second there is time to submit them, and to start the fleet.
    let begin = fleet.space.clock().now_ms() + 5_000 + burst.tasks as i64 / 50;
    let submitting = {
        let start = minutehand::clock::mono();
        let mut stream = fleet.client.stream(StreamSettings::default());
        for n in 0..burst.tasks {
            let due = UnixMs(begin + n as i64 * burst.span_ms / burst.tasks as i64);
            let payload = vec![b'x'; 100].into();
            stream.push(NewTask { due: Due::At(due), payload, ..NewTask::to(queue.clone()) }).await?;
        }
        let sent = stream.finish().await?;
        if sent.created != burst.tasks as u64 {
            return Err(format!("not all was submitted: {sent:?}").into());
        }
        start.elapsed()
    };
    fleet.add_pods(burst.pods)?;
    fleet.add_workers(burst.executors).await?;
    let left = fleet.space.clock().until_ms(begin - 500);
    if left.is_zero() {
        return Err("the burst was due before everything stood ready".into());
    }
    tokio::time::sleep(left).await;
    let cpu = redis.cpu_us()?;
    tokio::time::sleep(Duration::from_millis(500 + burst.span_ms.unsigned_abs())).await;
    fleet.quiet(Duration::from_secs(120)).await?;
    let redis_us = (redis.cpu_us()? - cpu) / burst.tasks as f64;
    let slow = redis.slow()?;
    let starts = fleet.end().await?;
    if starts.len() != burst.tasks {
        return Err(format!("{} of {} started", starts.len(), burst.tasks).into());
    }
    let begin_us = begin * 1_000;
    let last_ms = starts.last().map_or(0, |start| start.start_us - begin_us) as f64 / 1_000.0;
    let submit_rate = burst.tasks as f64 / submitting.as_secs_f64();
    Ok(Found { lag: Lag::of(&starts)?, last_ms, submit_rate, redis_us, slow, starts, begin_us })
}
