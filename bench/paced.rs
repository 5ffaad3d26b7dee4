//! The whole way at a given pace, through real processes: pods, executors, the client.

use std::process::{Command, Stdio};
use std::time::Duration;

use minutehand::client::{Client, Due, LagStatus, NewTask, StreamSettings};
use minutehand::clock;
use minutehand::dev::redis::spawn;
use minutehand::model::{Key, Namespace, QueueName, UnixMs};
use minutehand::store::{Birth, Space, member};

use crate::kit::redis::Redis;
use crate::kit::stat::Failure;

/// What runs.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Tasks due a second, evenly.
    pub rate: usize,
    /// For how long.
    pub seconds: usize,
    /// Buckets.
    pub buckets: u16,
    /// Executor processes; all but the queue they serve by default settings.
    pub executors: usize,
    /// Give each task an idempotency key.
    pub keyed: bool,
}

/// What it took.
pub struct Paced {
    /// µs of the server's main thread a task, from the first due task to the last ack; submits not counted.
    pub redis_us: f64,
    /// Start − due, by Redis's clock.
    pub lag: LagStatus,
    /// Tasks that succeeded.
    pub succeeded: i64,
}

/// A child process that ends with this value.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Submits everything ahead of time, starts one pod and the executors, and waits until all is done.
pub async fn run(redis: &mut Redis, pace: Pace) -> Result<Paced, Failure> {
    let url = redis.url()?;
    let birth = Birth { key_buckets: pace.buckets, buckets: pace.buckets, holders: 1 };
    let space = Space::open_as(redis.store(4).await?, Namespace::new("paced")?, birth).await?;
    let client = Client::new(space.clone());
    let program = |words: &[&str]| -> Result<Running, Failure> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minutehand"));
        command.args(words).args(["--redis", &url, "--namespace", "paced", "--log-level", "warn"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Running(spawn(command)?))
    };
    let mut processes = vec![program(&["serve", "--listen", "127.0.0.1:0"])?];
    for _ in 0..pace.executors {
        processes.push(program(&["work", "--queue", "paced", "--discard"])?);
    }
    while member::executors(&space).await?.len() < pace.executors || member::pods(&space).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let total = pace.rate * pace.seconds;
    // As long as the submits take, and some more for quiet.
    let ahead_ms = 3_000 + total as i64 / 20;
    let begin = space.clock().now_ms() + ahead_ms;
    let queue = QueueName::new("paced")?;
    let mut stream = client.stream(StreamSettings::default());
    for n in 0..total {
        let due = UnixMs(begin + (n * 1_000 / pace.rate) as i64);
        let key = pace.keyed.then(|| Key::new(format!("order-{n:012}"), 3_600_000)).transpose()?;
        let payload = vec![b'x'; 100].into();
        stream.push(NewTask { due: Due::At(due), key, payload, ..NewTask::to(queue.clone()) }).await?;
    }
    let sent = stream.finish().await?;
    if sent.created != total as u64 || space.clock().now_ms() >= begin {
        return Err(format!("not all was submitted in time: {sent:?}").into());
    }
    tokio::time::sleep(space.clock().until_ms(begin)).await;
    let before = redis.cpu_us()?;
    tokio::time::sleep(Duration::from_secs(pace.seconds as u64)).await;
    let start = clock::mono();
    loop {
        let (counts, lag) = client.counts().await?;
        if counts.is_quiet() {
            let redis_us = (redis.cpu_us()? - before) / total as f64;
            return Ok(Paced { redis_us, lag, succeeded: counts.succeeded });
        }
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("not done a minute later: {counts:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
