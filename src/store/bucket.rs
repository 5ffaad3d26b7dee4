//! How many buckets there are: `lua/bucket/`.

use super::StoreError;
use super::script;
use super::space::Space;
use crate::keys::Guard;
use crate::model::spread::{Bounds, Spread, hot_text, list_text};
use crate::model::{Bucket, UnixMs};

/// What is to be changed of a spread; nothing is changed that is not named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Buckets for new tasks.
    pub buckets: Option<u16>,
    /// Buckets that close.
    pub closing: Option<Vec<u16>>,
    /// Buckets with holders of their own.
    pub hot: Option<Vec<(u16, u8)>>,
    /// Bounds of the automatic, all of them.
    pub bounds: Option<Bounds>,
}

/// Changes the spread if it is still the one that `seen` shows; answers whether it was. Either way the space knows
/// the newest one afterwards.
pub async fn resize(space: &Space, seen: &Spread, change: &Change) -> Result<bool, StoreError> {
    let mut args = space.args(16, 256);
    args.number(seen.epoch);
    let mut put = |field: &str, value: &str| {
        args.bytes(field.as_bytes()).bytes(value.as_bytes());
    };
    if let Some(buckets) = change.buckets {
        put("buckets", &buckets.to_string());
    }
    if let Some(closing) = &change.closing {
        put("closing", &list_text(closing));
    }
    if let Some(hot) = &change.hot {
        put("hot", &hot_text(hot));
    }
    if let Some(bounds) = change.bounds {
        let text = |value: Option<u16>| value.map(|n| n.to_string()).unwrap_or_default();
        put("least", &text(bounds.min));
        put("most", &text(bounds.max));
        put("pin", &text(bounds.pin));
        put("manual", if bounds.manual { "1" } else { "" });
    }
    let guard = Guard::room(space.namespace(), "spread");
    let answer = space.call(&script::RESIZE, &guard, args).await?;
    let same = match &answer.word[..] {
        b"OK" => true,
        b"CHANGED" => false,
        _ => return Err(answer.unexpected()),
    };
    space.refresh_spread().await?;
    Ok(same)
}

/// Closes a bucket to tasks that the spread sends, or opens it again; answers whether that changed something.
pub async fn mark(space: &Space, bucket: Bucket, close: bool) -> Result<bool, StoreError> {
    let mut args = space.args(2, 16);
    args.bytes(if close { b"1" } else { b"" });
    Ok(space.call(&script::BUCKET_MARK, space.guard(bucket), args).await?.ok()?.int("changed")? == 1)
}

/// Whether a bucket is gone, and what keeps it if not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vanished {
    /// Nothing is left but its mark and its counters.
    Gone,
    /// It takes new tasks.
    Open,
    /// It was closed too short a time ago: late repetitions of submits must still find what they sent.
    Young,
    /// Something is left, such as `run` or `dead`.
    Holds(String),
}

/// Lets a bucket vanish that has been closed for `linger_ms` and in which nothing is left.
pub async fn vanish(space: &Space, bucket: Bucket, linger_ms: i64) -> Result<Vanished, StoreError> {
    let mut args = space.args(2, 16);
    args.number(linger_ms.max(0));
    let word = space.call(&script::VANISH, space.guard(bucket), args).await?.ok()?.text("a word")?;
    Ok(match word.as_str() {
        "gone" => Vanished::Gone,
        "open" => Vanished::Open,
        "young" => Vanished::Young,
        _ => Vanished::Holds(word),
    })
}

/// A stretch of a bucket's agenda.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agenda {
    /// Tasks due in each minute that has some; the minute is its first instant.
    pub minutes: Vec<(UnixMs, u64)>,
}

/// Entries of an agenda that one call looks at.
const AGENDA_ENTRIES: usize = 1_000;

/// How many tasks of a bucket are due in each minute from one instant to another, by the sizes of its due sets.
pub async fn agenda(space: &Space, bucket: Bucket, from: UnixMs, to: UnixMs) -> Result<Agenda, StoreError> {
    let (mut at, mut told, last) = (from.0.div_euclid(60_000), 0, to.0.div_euclid(60_000));
    let mut out = Agenda::default();
    loop {
        let mut args = space.args(5, 64);
        args.number(at).number(told).number(last).number(AGENDA_ENTRIES);
        let mut fields = space.call(&script::AGENDA, space.guard(bucket), args).await?.ok()?;
        let (next, done) = (fields.int("next minute")?, fields.int("entries told")?);
        while fields.left() > 0 {
            let minute = UnixMs(fields.int("minute")? * 60_000);
            let tasks = u64::try_from(fields.int("tasks")?).unwrap_or(0);
            match out.minutes.last_mut() {
                Some((known, sum)) if *known == minute => *sum += tasks,
                _ => out.minutes.push((minute, tasks)),
            }
        }
        if next < 0 {
            return Ok(out);
        }
        (at, told) = (next, done);
    }
}

/// Bytes of the specs of a bucket. `count`: whether they are counted from now on; nothing leaves it as it is.
pub async fn size(space: &Space, bucket: Bucket, count: Option<bool>) -> Result<u64, StoreError> {
    let mut args = space.args(2, 16);
    args.bytes(match count {
        Some(true) => b"1",
        Some(false) => b"0",
        None => b"",
    });
    let bytes = space.call(&script::SIZE, space.guard(bucket), args).await?.ok()?.int("bytes")?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}
