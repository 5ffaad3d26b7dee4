//! Whether a claim costs more when more tasks wait.

use std::collections::BTreeMap;

use minutehand::model::Bucket;
use minutehand::store::intake::Row;
use minutehand::store::{At, Reply};

use crate::floor;
use crate::kit::redis::{Bare, Redis};
use crate::kit::shape::{BASE_MS, Batches, Shape, lanes};
use crate::kit::stat::{Failure, median};
use crate::lifecycle::{self, Holder};

/// What claims cost beside waiting tasks, in µs of the main thread.
pub struct Growth {
    /// A task, claims of a few hundred at a time.
    pub claim: f64,
    /// The same by the bare commands that a claim cannot do without, on the same sets and hashes.
    pub bare: f64,
    /// A task whose memory is in no cache, as that of tasks submitted long ahead.
    pub cold_claim: f64,
    /// The same by bare commands.
    pub cold_bare: f64,
    /// A claim that finds nothing due.
    pub empty: f64,
}

/// Due tasks of each hour that are claimed beside those that wait.
const PROBES: usize = 20_000;
/// Claims that find nothing.
const EMPTY: usize = 2_000;
const HOUR_MS: i64 = 3_600_000;
/// Bytes read before each claim out of cold memory: more than any cache has.
const SWEEP_BYTES: usize = 128 << 20;

/// Fills a fresh server in the wide shape and claims tasks that fall due in the first hours of the 30 days: in turn through
/// the script and by bare commands, first as they were submitted and then out of cold memory.
pub async fn run(redis: &mut Redis, waiting: usize) -> Result<Growth, Failure> {
    // One bucket: what one claim loop sees. More buckets only divide the numbers.
    let shape = Shape { sorted: false, ..Shape::wide(waiting, 1) };
    let space = lifecycle::open(redis, &shape, 1).await?;
    let lanes = lanes(&space, &shape).await?;
    for (bucket, mut rows) in Batches::new(shape, &lanes) {
        // Nothing of these is due before the probes are.
        rows.retain(|row| row.spec.due.0 > BASE_MS + 4 * HOUR_MS);
        lifecycle::submit(&space, bucket, &rows).await?;
    }
    // Two hours are claimed through the script, and two by bare commands.
    let probes = Shape { span_ms: 4 * HOUR_MS, ..Shape::wide(4 * PROBES, 1) };
    let mut minutes: BTreeMap<i64, Vec<Row>> = BTreeMap::new();
    for (bucket, rows) in Batches::new(probes, &lanes) {
        lifecycle::submit(&space, bucket, &rows).await?;
        for row in rows {
            minutes.entry((row.spec.due.0 - BASE_MS) / 60_000).or_default().push(row);
        }
    }
    let bucket = Bucket::default();
    let mut holder = Holder::new(bucket);
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
    let prefix = String::from_utf8_lossy(&meta[..meta.len() - "meta".len()]).into_owned();
    let mut bare = redis.bare()?;
    bare.ask(&["SETRANGE", "sweep", &(SWEEP_BYTES - 1).to_string(), "x"])?;
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut claimed = 0;
    for minute in 0..120 {
        let cold = minute >= 60;
        let sweep = |bare: &mut Bare| if cold { bare.ask(&["BITCOUNT", "sweep"]).map(drop) } else { Ok(()) };
        space.inject_now(Some(BASE_MS + (minute + 1) * 60_000));
        sweep(&mut bare)?;
        let mark = redis.cpu_us_outside();
        let tasks = holder.claim(&space).await?;
        let used = redis.cpu_us_outside() - mark;
        if tasks.len() >= 100 {
            rates[2 * usize::from(cold)].push(used / tasks.len() as f64);
        }
        claimed += tasks.len();
        lifecycle::ack(&space, bucket, tasks.iter().map(|task| (task.id, task.grant))).await?;
        let rows = minutes.remove(&(minute + 120)).unwrap_or_default();
        sweep(&mut bare)?;
        let mark = redis.cpu_us_outside();
        floor::claim_from(&mut bare, &prefix, &rows)?;
        rates[2 * usize::from(cold) + 1].push((redis.cpu_us_outside() - mark) / rows.len() as f64);
    }
    let before = redis.cpu_us()?;
    for _ in 0..EMPTY {
        holder.claim(&space).await?;
    }
    let empty = (redis.cpu_us()? - before) / EMPTY as f64;
    if claimed < 2 * PROBES * 9 / 10 {
        return Err(format!("only {claimed} of {} probes came", 2 * PROBES).into());
    }
    let [claim, bare, cold_claim, cold_bare] = rates.map(|rates| median(&rates));
    Ok(Growth { claim, bare, cold_claim, cold_bare, empty })
}
