//! Memory of tasks that wait.

use crate::kit::redis::Redis;
use crate::kit::shape::{Batches, PAYLOAD, Shape, lanes};
use crate::kit::stat::Failure;
use crate::lifecycle;

/// Bytes a task.
pub struct Size {
    /// Above the payload, by `used_memory`.
    pub above: f64,
    /// Of that, the events: a log of bounded size, not part of what a waiting task needs.
    pub events: f64,
    /// By kind of key, payload included: kind, keys, bytes a task.
    pub kinds: Vec<(String, usize, f64)>,
}

/// Submits tasks to a fresh server and weighs it.
pub async fn run(redis: &mut Redis, shape: Shape) -> Result<Size, Failure> {
    let space = lifecycle::open(redis, &shape, 1).await?;
    let lanes = lanes(&space, &shape).await?;
    let before = redis.dataset_bytes()?;
    for (bucket, rows) in Batches::new(shape, &lanes) {
        lifecycle::submit(&space, bucket, &rows).await?;
    }
    // Client buffers are let go of after a second or two; they are no data.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let tasks = shape.tasks as f64;
    let above = (redis.dataset_bytes()? - before) / tasks - PAYLOAD as f64;
    let mut kinds = redis.bytes_by_kind()?;
    for kind in &mut kinds {
        kind.2 /= tasks;
    }
    let events = kinds.iter().find(|kind| kind.0 == "events").map_or(0.0, |kind| kind.2);
    Ok(Size { above, events, kinds })
}
