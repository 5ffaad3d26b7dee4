//! Dead letters: `lua/dead/`.

use super::StoreError;
use super::intake::clip;
use super::read::{Attempt, read_attempts, read_place};
use super::script;
use super::space::Space;
use crate::keys::Guard;
use crate::limits;
use crate::model::{Bucket, LaneCode, QueueName, TaskId, UnixMs};
use std::collections::BTreeMap;

/// A dead letter.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The task.
    pub id: TaskId,
    /// When it died.
    pub at: UnixMs,
    /// Why, in one word: `handler_error`, `fatal`, `lease_expired`, `lost_unstarted`.
    pub reason: String,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Its lane.
    pub lane: Option<LaneCode>,
}

/// Most dead letters of one page.
pub const PAGE_MAX: usize = 200;

/// A page of a bucket's dead letters, oldest first, that died at `from` or later; `skip` of them are left out.
pub async fn page(
    space: &Space,
    bucket: Bucket,
    from: UnixMs,
    skip: usize,
) -> Result<Vec<DeadLetter>, StoreError> {
    let mut args = space.args(4, 64);
    args.number(from.0).number(skip).number(PAGE_MAX);
    let mut fields = space.call(&script::DEAD, space.guard(bucket), args).await?.ok()?;
    let mut out = Vec::with_capacity(fields.left() / 5);
    while fields.left() > 0 {
        let id = fields.bytes("id")?;
        let id = TaskId::from_bytes(&id).ok_or_else(|| fields.bad("bad id"))?;
        let at = UnixMs(fields.int("died at")?);
        let reason = fields.text("reason")?;
        let attempts = read_attempts(&fields.bytes("attempts")?);
        let lane = read_place(&fields.bytes("place")?).map(|place| place.lane);
        out.push(DeadLetter { id, at, reason, attempts, lane });
    }
    Ok(out)
}

/// What became of a wish to redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedriveAnswer {
    /// It is pending again.
    Pending,
    /// Another task has its idempotency key; nothing was changed.
    KeyConflict(TaskId),
    /// There is no such dead letter.
    Unknown,
}

/// Sets dead letters of one bucket back to pending, each at its due time. Long lists go in pieces.
pub async fn redrive(
    space: &Space,
    bucket: Bucket,
    who: &str,
    rows: &[(TaskId, UnixMs)],
) -> Result<Vec<RedriveAnswer>, StoreError> {
    let mut out = Vec::with_capacity(rows.len());
    for piece in rows.chunks(limits::SINGLE_MAX_ROWS) {
        out.append(&mut redrive_piece(space, bucket, who, piece).await?);
    }
    Ok(out)
}

async fn redrive_piece(
    space: &Space,
    bucket: Bucket,
    who: &str,
    rows: &[(TaskId, UnixMs)],
) -> Result<Vec<RedriveAnswer>, StoreError> {
    let mut args = space.args(2 + rows.len(), 64 + rows.len() * 32);
    args.bytes(clip(who, 99));
    for (id, due) in rows {
        args.raw(id.as_bytes()).part(format_args!("{:013}", due.0.max(0))).cut();
    }
    let mut fields = space.call(&script::REDRIVE, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    let mut out = Vec::with_capacity(rows.len());
    for letter in letters.iter() {
        out.push(match letter {
            b'P' => RedriveAnswer::Pending,
            b'K' => {
                let id = fields.bytes("other id")?;
                RedriveAnswer::KeyConflict(TaskId::from_bytes(&id).ok_or_else(|| fields.bad("bad id"))?)
            }
            _ => RedriveAnswer::Unknown,
        });
    }
    if out.len() == rows.len() { Ok(out) } else { Err(fields.bad("not one letter a row")) }
}

/// Removes dead letters of one bucket; answers which of them there were. Long lists go in pieces.
pub async fn delete(
    space: &Space,
    bucket: Bucket,
    who: &str,
    ids: &[TaskId],
) -> Result<Vec<bool>, StoreError> {
    let mut out = Vec::with_capacity(ids.len());
    for piece in ids.chunks(limits::SINGLE_MAX_ROWS) {
        out.append(&mut delete_piece(space, bucket, who, piece).await?);
    }
    Ok(out)
}

async fn delete_piece(
    space: &Space,
    bucket: Bucket,
    who: &str,
    ids: &[TaskId],
) -> Result<Vec<bool>, StoreError> {
    let mut args = space.args(2 + ids.len(), 64 + ids.len() * TaskId::LEN);
    args.bytes(clip(who, 99));
    for id in ids {
        args.bytes(id.as_bytes());
    }
    let mut fields = space.call(&script::DELETE, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    if letters.len() != ids.len() {
        return Err(fields.bad("not one letter a row"));
    }
    Ok(letters.iter().map(|letter| *letter == b'Z').collect())
}

/// Whose turn it is to tell owners of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DigestTurn {
    /// The caller's, for the length of its lease.
    Ours {
        /// Redis's time.
        now: UnixMs,
        /// Owners have been told of what died before this …
        told: UnixMs,
        /// … but those of these queues only of what died before that.
        untold: BTreeMap<QueueName, UnixMs>,
    },
    /// Another pod's, or nobody's yet.
    Wait {
        /// When it is worth to ask again.
        until: UnixMs,
    },
}

fn digest_guard(space: &Space) -> Guard {
    Guard::room(space.namespace(), "digest")
}

/// Takes the turn to tell owners, at most once in `every_ms`, for `lease_ms`.
pub async fn digest_take(
    space: &Space,
    pod: &str,
    lease_ms: i64,
    every_ms: i64,
) -> Result<DigestTurn, StoreError> {
    let mut args = space.args(4, 64);
    args.bytes(clip(pod, 32)).bytes(b"take").number(lease_ms).number(every_ms);
    let mut answer = space.call(&script::DIGEST, &digest_guard(space), args).await?;
    let now = UnixMs(answer.now_ms());
    if &answer.word[..] == b"WAIT" {
        return Ok(DigestTurn::Wait { until: UnixMs(answer.fields.int("until")?) });
    }
    let mut fields = answer.ok()?;
    let told = UnixMs(fields.int("told until")?);
    let mut untold = BTreeMap::new();
    while fields.left() > 0 {
        let queue = fields.text("queue")?;
        let since = UnixMs(fields.int("since")?);
        untold.extend(QueueName::new(&queue).ok().map(|queue| (queue, since)));
    }
    Ok(DigestTurn::Ours { now, told, untold })
}

/// Notes that owners have been told of what died before `told`, but for those of `untold`; answers whether the turn
/// was still the caller's.
pub async fn digest_done(
    space: &Space,
    pod: &str,
    told: UnixMs,
    untold: &BTreeMap<QueueName, UnixMs>,
) -> Result<bool, StoreError> {
    let mut args = space.args(5 + 2 * untold.len(), 64 + 64 * untold.len());
    args.bytes(clip(pod, 32)).bytes(b"done").part(format_args!("{:013}", told.0.max(0))).cut().bytes(b"");
    for (queue, since) in untold {
        args.bytes(queue.as_str().as_bytes()).number(since.0);
    }
    let answer = space.call(&script::DIGEST, &digest_guard(space), args).await?;
    if &answer.word[..] == b"LOST" {
        return Ok(false);
    }
    answer.ok()?;
    Ok(true)
}
