//! What a task costs beside Redis's time: allocations, processor time, calls and bytes on the wire.
//!
//! Client, pod and executor run in this process, one step after the other, so that each step's allocations and
//! processor time can be told apart: this program counts its allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use minutehand::client::{Client, Due, NewTask, StreamSettings};
use minutehand::clock;
use minutehand::executor::Executor;
use minutehand::model::{Namespace, QueueName, UnixMs};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::Space;
use tokio_util::sync::CancellationToken;

use crate::kit::fleet::QUEUE;
use crate::kit::redis::Redis;
use crate::kit::stat::Failure;

/// The system's allocator, counted.
pub struct Counted;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size() as u64, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(size.saturating_sub(layout.size()) as u64, Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

/// What one task took in one step.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Cost {
    /// Allocations.
    pub allocations: f64,
    /// Bytes allocated.
    pub allocated: f64,
    /// µs of processor time of this process.
    pub cpu_us: f64,
    /// Commands sent to the server.
    pub calls: f64,
    /// Bytes that the server received and sent.
    pub wire_in: f64,
    pub wire_out: f64,
    /// µs of the server's main thread.
    pub redis_us: f64,
}

/// Counters of one moment.
struct Mark([f64; 7]);

fn cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may hold blanks: utime and stime are the 12th and 13th, in hundredths of a second.
    let rest = text.rsplit(')').next().unwrap_or("");
    let ticks: f64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}

impl Mark {
    fn now(redis: &mut Redis) -> Result<Self, Failure> {
        let (wire_in, wire_out) = redis.wire()?;
        let (calls, redis_us) = (redis.calls()?, redis.cpu_us()?);
        Ok(Self([
            CALLS.load(Relaxed) as f64,
            BYTES.load(Relaxed) as f64,
            cpu_us(),
            calls,
            wire_in,
            wire_out,
            redis_us,
        ]))
    }

    fn since(&self, before: &Self, tasks: usize) -> Cost {
        let per = |at: usize| (self.0[at] - before.0[at]) / tasks as f64;
        Cost {
            allocations: per(0),
            allocated: per(1),
            cpu_us: per(2),
            calls: per(3),
            wire_in: per(4),
            wire_out: per(5),
            redis_us: per(6),
        }
    }
}

/// Submits tasks, then runs them: `span_ms` 0 lets all be due before the first claim, else they fall due over it.
pub async fn run(redis: &mut Redis, tasks: usize, span_ms: i64) -> Result<(Cost, Cost), Failure> {
    let space = Space::open(redis.store(2).await?, Namespace::new("cost")?).await?;
    let (client, queue) = (Client::new(space.clone()), QueueName::new(QUEUE)?);
    let begin = space.clock().now_ms() + 2_000 + tasks as i64 / 50;
    let before = Mark::now(redis)?;
    let mut stream = client.stream(StreamSettings::default());
    for n in 0..tasks {
        let due = Due::At(UnixMs(begin + n as i64 * span_ms / tasks as i64));
        let payload = bytes::Bytes::from(vec![b'x'; 100]);
        stream.push(NewTask { due, payload, ..NewTask::to(queue.clone()) }).await?;
    }
    let sent = stream.finish().await?;
    let submit = Mark::now(redis)?.since(&before, tasks);
    if sent.created != tasks as u64 {
        return Err(format!("not all was submitted: {sent:?}").into());
    }
    let stop = CancellationToken::new();
    if span_ms == 0 {
        tokio::time::sleep(space.clock().until_ms(begin)).await;
    }
    let before = Mark::now(redis)?;
    let executor = Executor::builder(space.clone()).handle(QUEUE, |_, _| async { Ok(()) }).build()?;
    let stats = executor.stats();
    let working = tokio::spawn(executor.run(stop.clone()));
    let pod = tokio::spawn(Pod::new(space, PodSettings::default()).run(stop.clone()));
    let start = clock::mono();
    while stats.report().succeeded < tasks as u64 {
        if start.elapsed() > Duration::from_secs(90) {
            return Err("not done in time".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let life = Mark::now(redis)?.since(&before, tasks);
    stop.cancel();
    working.await??;
    pod.await??;
    Ok((submit, life))
}
