//! Whether a claim costs more when more tasks wait.

use minutehand::model::Bucket;
use minutehand::store::{At, Reply};

use crate::kit::redis::Redis;
use crate::kit::shape::{BASE_MS, Batches, Shape, lanes};
use crate::kit::stat::{Failure, median};
use crate::lifecycle::{self, Holder};

/// What claims cost beside waiting tasks.
pub struct Growth {
    /// µs of the main thread a task, claims of a few tasks at a time.
    pub claim_us: f64,
    /// µs of the main thread a claim that finds nothing due.
    pub empty_us: f64,
}

/// Due tasks that are claimed beside those that wait.
const PROBES: usize = 20_000;
/// Claims that find nothing.
const EMPTY: usize = 2_000;

/// Fills a fresh server in the wide shape and claims, in the middle of the 30 days, tasks that fall due.
pub async fn run(redis: &mut Redis, waiting: usize) -> Result<Growth, Failure> {
    // One bucket: what one claim loop sees. More buckets only divide the numbers.
    let shape = Shape { sorted: false, ..Shape::wide(waiting, 1) };
    let space = lifecycle::open(redis, &shape, 1).await?;
    let lanes = lanes(&space, &shape).await?;
    let hour = 3_600_000;
    for (bucket, mut rows) in Batches::new(shape, &lanes) {
        // Nothing of these is due before the probes are.
        rows.retain(|row| row.spec.due.0 > BASE_MS + hour);
        lifecycle::submit(&space, bucket, &rows).await?;
    }
    let probes = Shape { span_ms: hour, ..Shape::wide(PROBES, 1) };
    for (bucket, rows) in Batches::new(probes, &lanes) {
        lifecycle::submit(&space, bucket, &rows).await?;
    }
    let bucket = Bucket::default();
    let (mut holder, mut claimed, mut now) = (Holder::new(bucket), 0, BASE_MS);
    // What was submitted without any pod has left more events than are kept. Pods cut them off as they pass, a piece with
    // each claim; here all of it goes first, else that would be measured.
    let meta = space.guard(bucket).keys[0].clone();
    loop {
        let asked = vec![meta.clone(), "evb".into()];
        let Reply::Bytes(bytes) = space.store().command("HGET", At::Key(&meta), asked).await? else {
            return Err("the bucket does not know the size of its events".into());
        };
        if std::str::from_utf8(&bytes)?.parse::<usize>()? <= holder.events_max_bytes() {
            break;
        }
        holder.claim(&space).await?;
    }
    let mut rates = Vec::new();
    // A third of a thousand probes fall due each minute.
    while now < BASE_MS + hour {
        now += 60_000;
        space.inject_now(Some(now));
        let mark = redis.cpu_us_outside();
        let tasks = holder.claim(&space).await?;
        let used = redis.cpu_us_outside() - mark;
        if tasks.len() >= 100 {
            rates.push(used / tasks.len() as f64);
        }
        claimed += tasks.len();
        lifecycle::ack(&space, bucket, tasks.iter().map(|task| (task.id, task.grant))).await?;
    }
    let before = redis.cpu_us()?;
    for _ in 0..EMPTY {
        holder.claim(&space).await?;
    }
    let empty_us = (redis.cpu_us()? - before) / EMPTY as f64;
    if claimed < PROBES * 9 / 10 {
        return Err(format!("only {claimed} of {PROBES} probes came").into());
    }
    Ok(Growth { claim_us: median(&rates), empty_us })
}
