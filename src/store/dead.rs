//! Dead letters: `lua/dead/`.

use super::StoreError;
use super::intake::clip;
use super::read::{Attempt, read_attempts, read_place};
use super::script;
use super::space::Space;
use crate::limits;
use crate::model::{Bucket, LaneCode, TaskId, UnixMs};

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
