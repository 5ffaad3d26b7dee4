//! Who decides on the number of buckets, on what, and what was decided: `lua/decider/`, `lua/read/load.lua`.

use super::script;
use super::space::Space;
use super::{At, Reply, StoreError};
use crate::keys::Guard;
use crate::limits;
use crate::model::{Bucket, UnixMs, digits};
use bytes::Bytes;
use std::collections::BTreeMap;

fn room(space: &Space) -> Guard {
    Guard::room(space.namespace(), "decider")
}

/// Whether a pod leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lead {
    /// Whether the asking pod does.
    pub mine: bool,
    /// Who does.
    pub leader: String,
    /// What the last decision left to be remembered; empty before the first.
    pub state: Bytes,
    /// Redis's time of the answer.
    pub now: UnixMs,
}

/// Takes or renews the lead for `lease_ms`; 0 gives it up.
pub async fn lead(space: &Space, pod: &str, lease_ms: i64) -> Result<Lead, StoreError> {
    let mut args = space.args(3, 64);
    args.bytes(super::intake::clip(pod, 32)).number(lease_ms);
    let answer = space.call(&script::LEAD, &room(space), args).await?;
    let now = UnixMs(answer.now_ms());
    let mut fields = answer.ok()?;
    let mine = fields.int("leads")? == 1;
    Ok(Lead { mine, leader: fields.text("leader")?, state: fields.bytes("state")?, now })
}

/// Notes a decision before it is acted on; false when another pod leads meanwhile, and then nothing was noted.
pub async fn note(
    space: &Space,
    pod: &str,
    state: &[u8],
    record: &[u8],
    changes: bool,
) -> Result<bool, StoreError> {
    let mut args = space.args(8, 64 + state.len() + record.len());
    args.bytes(super::intake::clip(pod, 32)).bytes(state).bytes(record);
    args.bytes(if changes { b"1" } else { b"" }).number(limits::DECISIONS_MAX).number(limits::CHANGES_MAX);
    Ok(space.call(&script::DECIDED, &room(space), args).await?.ok()?.int("noted")? == 1)
}

/// Notes as they were written, newest first: of every window, or only of those that changed something.
pub async fn notes(space: &Space, changes_only: bool, most: usize) -> Result<Vec<Bytes>, StoreError> {
    let key = room(space).key(if changes_only { "changes" } else { "windows" });
    let last = Bytes::from(most.saturating_sub(1).to_string());
    let args = vec![key.clone(), Bytes::from_static(b"0"), last];
    let list = space.store().command("LRANGE", At::Key(&key), args).await?.array("LRANGE")?;
    list.into_iter().map(|item| item.bytes("LRANGE")).collect()
}

/// How a bucket fares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketLoad {
    /// Whether it takes no new tasks by the spread.
    pub closed: bool,
    /// Whether it has vanished.
    pub gone: bool,
    /// Tasks that are not running.
    pub pending: u64,
    /// Tasks that are granted.
    pub running: u64,
    /// Ripe tasks that may be claimed and are not.
    pub ripe: u64,
    /// When the oldest of them was due.
    pub oldest: Option<UnixMs>,
    /// Lags by minute and bin, of two minutes.
    pub lags: BTreeMap<i64, BTreeMap<u16, u64>>,
    /// Tasks due in this minute and the coming ones.
    pub coming: Vec<u64>,
    /// Redis's time of the answer.
    pub now: UnixMs,
}

/// Reads how a bucket fares, in one script.
pub async fn load(space: &Space, bucket: Bucket) -> Result<BucketLoad, StoreError> {
    let mut args = space.args(2, 16);
    args.number(limits::DECISION_AHEAD_MINUTES);
    let answer = space.call(&script::LOAD, space.guard(bucket), args).await?;
    let mut out = BucketLoad { now: UnixMs(answer.now_ms()), ..BucketLoad::default() };
    let mut fields = answer.ok()?;
    out.closed = fields.int("closed")? == 1;
    out.gone = fields.int("gone")? == 1;
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    out.pending = positive(fields.int("pending")?);
    out.running = positive(fields.int("running")?);
    out.ripe = positive(fields.int("ripe")?);
    out.oldest = fields.text("oldest")?.parse().ok().map(UnixMs);
    let minute = fields.int("minute")?;
    for minute in [minute, minute - 1] {
        let mut bins = BTreeMap::new();
        for (bin, value) in Reply::Array(fields.array("lags")?).pairs(script::LOAD.name)? {
            if let Some(bin) = digits::read(&bin).filter(|_| &bin[..] != b"max") {
                *bins.entry(bin as u16).or_default() += positive(value.int(script::LOAD.name)?);
            }
        }
        out.lags.insert(minute, bins);
    }
    while fields.left() > 0 {
        out.coming.push(positive(fields.int("coming")?));
    }
    Ok(out)
}
