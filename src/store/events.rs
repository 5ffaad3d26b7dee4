//! The event streams: what happened to whom, when, and why.

use super::StoreError;
use super::script;
use super::space::Space;
use crate::model::event::{self, Event};
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
    /// The instant before which history has been trimmed away, where some has.
    pub trimmed_before: Option<UnixMs>,
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
    let trimmed = fields.text("trimmed entry")?;
    let mut out = Stretch {
        last: (!last.is_empty()).then_some(last),
        more,
        trimmed_before: trimmed.split('-').next().and_then(|ms| ms.parse().ok()).map(UnixMs),
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

/// A task's whole life, as far as it is kept.
pub async fn trace(space: &Space, id: TaskId) -> Result<Stretch, StoreError> {
    let mut all = Stretch::default();
    loop {
        let next = stretch(space, id.bucket(), Some(id), all.last.as_deref()).await?;
        all.events.extend(next.events);
        all.trimmed_before = next.trimmed_before;
        all.unreadable += next.unreadable;
        all.last = next.last.or(all.last);
        if !next.more {
            return Ok(all);
        }
    }
}
