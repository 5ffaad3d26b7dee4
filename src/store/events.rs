//! The event streams: what happened to whom, when, and why.

use super::script;
use super::space::Space;
use super::{Reply, StoreError};
use crate::model::event::{self, Event, Trimmed};
use crate::model::{Bucket, TaskId, UnixMs};

/// Entries one call looks at.
const ENTRIES: usize = 500;

/// A stretch of a bucket's stream.
#[derive(Debug, Clone, Default)]
pub struct Stretch {
    /// The moves found, in order.
    pub events: Vec<Event>,
    /// The last entry looked at: where to go on; nothing where there was none.
    pub last: Option<String>,
    /// Whether there may be more.
    pub more: bool,
    /// What has been trimmed away, where something has.
    pub trimmed: Option<Trimmed>,
    /// Whether that was cut off behind the entry after which this stretch begins: there is a gap.
    pub gap: bool,
    /// Entries that could not be read.
    pub unreadable: u64,
}

/// Reads on in a bucket's stream after entry `after` (from the start where there is none), all moves or one task's.
pub async fn stretch(
    space: &Space,
    bucket: Bucket,
    id: Option<TaskId>,
    after: Option<&str>,
) -> Result<Stretch, StoreError> {
    let mut args = space.args(4, 64);
    match id {
        Some(id) => args.bytes(id.as_bytes()),
        None => args.bytes(b""),
    };
    args.bytes(after.unwrap_or("-").as_bytes()).number(ENTRIES);
    let mut fields = space.call(&script::TRACE, space.guard(bucket), args).await?.ok()?;
    let last = fields.text("last entry")?;
    let more = fields.int("more")? == 1;
    let cut_at = fields.text("trimmed entry")?;
    let mut cut = Vec::new();
    for (letter, count) in Reply::Array(fields.array("moves trimmed")?).pairs(script::TRACE.name)? {
        let count = u64::try_from(count.int(script::TRACE.name)?).unwrap_or(0);
        cut.push((letter.first().copied().unwrap_or(0), count));
    }
    let before = cut_at.split('-').next().and_then(|ms| ms.parse().ok()).map(UnixMs);
    let mut out = Stretch {
        last: (!last.is_empty()).then_some(last),
        more,
        trimmed: before.map(|before| Trimmed::new(bucket.number(), before, &cut)),
        gap: before.is_some() && place_of(&cut_at) > after.and_then(place_of),
        ..Stretch::default()
    };
    while fields.left() > 0 {
        fields.bytes("entry")?;
        let kind = fields.bytes("kind")?;
        let head = fields.bytes("head")?;
        let records = fields.bytes("records")?;
        match event::decode(kind.first().copied().unwrap_or(0), &head, &records) {
            Ok(events) => {
                out.events.extend(events.into_iter().filter(|event| id.is_none_or(|id| event.id == id)))
            }
            Err(_) => out.unreadable += 1,
        }
    }
    Ok(out)
}

/// Where an entry stands: its two numbers.
fn place_of(entry: impl AsRef<str>) -> Option<(u64, u64)> {
    let (ms, number) = entry.as_ref().split_once('-')?;
    Some((ms.parse().ok()?, number.parse().ok()?))
}

/// A task's whole life, as far as it is kept.
pub async fn trace(space: &Space, id: TaskId) -> Result<Stretch, StoreError> {
    let mut all = Stretch::default();
    loop {
        let next = stretch(space, id.bucket(), Some(id), all.last.as_deref()).await?;
        all.events.extend(next.events);
        all.trimmed = next.trimmed;
        all.unreadable += next.unreadable;
        all.last = next.last.or(all.last);
        if !next.more {
            return Ok(all);
        }
    }
}
