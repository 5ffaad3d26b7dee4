//! Starting, renewing and ending granted tasks: `lua/run/`.

use super::StoreError;
use super::intake::clip;
use super::mutate;
use super::script::{self, Script};
use super::space::Space;
use crate::keys::Guard;
use crate::limits;
use crate::model::bins::bin_of;
use crate::model::{Bucket, Grant, TaskId, UnixMs, digits};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};

/// A task that starts or is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartRow {
    /// The task.
    pub id: TaskId,
    /// Its grant.
    pub grant: Grant,
    /// How long the grant shall be good from now on; at most a day. 0: as long as it is, but not for a renewal.
    pub lease_ms: i64,
}

/// What became of a start or renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAnswer {
    /// The grant is current and good until `deadline`.
    Ok {
        /// When the lease lapses without renewal, by Redis's clock.
        deadline: UnixMs,
        /// Someone wishes the task to stop.
        cancel: bool,
    },
    /// The grant is no longer current: the task is someone else's, or has ended.
    Stale,
}

/// Notes that handlers run, and renews their grants. One bucket, at most [`limits::BATCH_MAX_ROWS`] rows; idempotent.
pub async fn start(
    space: &Space,
    bucket: Bucket,
    executor: &str,
    rows: &[StartRow],
) -> Result<Vec<StartAnswer>, StoreError> {
    hold(space, &script::START, bucket, executor, rows.iter().map(|row| (row, ""))).await
}

/// Renews what an executor holds, started or not. One bucket; idempotent.
pub async fn renew(
    space: &Space,
    bucket: Bucket,
    executor: &str,
    rows: &[StartRow],
) -> Result<Vec<StartAnswer>, StoreError> {
    hold(space, &script::RENEW, bucket, executor, rows.iter().map(|row| (row, ""))).await
}

/// Notes in whose inbox tasks lie that have not started yet; an executor notes so what it has taken and may not have
/// begun. One bucket; idempotent.
pub async fn offer(
    space: &Space,
    bucket: Bucket,
    who: &str,
    rows: &[(StartRow, &str)],
) -> Result<Vec<StartAnswer>, StoreError> {
    hold(space, &script::OFFERED, bucket, who, rows.iter().map(|(row, to)| (row, *to))).await
}

async fn hold(
    space: &Space,
    script: &'static Script,
    bucket: Bucket,
    who: &str,
    rows: impl ExactSizeIterator<Item = (&StartRow, &str)>,
) -> Result<Vec<StartAnswer>, StoreError> {
    let count = rows.len();
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut args = space.args(1 + count, 32 + count * 60);
    args.bytes(clip(who, 32));
    for (row, to) in rows {
        let lease = row.lease_ms.clamp(0, limits::LEASE_MAX_MS);
        args.raw(row.id.as_bytes()).raw(row.grant.as_bytes());
        args.part(format_args!("{lease:08}")).raw(clip(to, 32)).cut();
    }
    let mut fields = space.call(script, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    if letters.len() != count || fields.left() != count {
        return Err(fields.bad("not one letter and deadline a row"));
    }
    let mut out = Vec::with_capacity(count);
    for letter in letters.iter() {
        let deadline = UnixMs(fields.int("deadline")?);
        out.push(match letter {
            b'K' => StartAnswer::Ok { deadline, cancel: false },
            b'C' => StartAnswer::Ok { deadline, cancel: true },
            _ => StartAnswer::Stale,
        });
    }
    Ok(out)
}

/// How a handler ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Succeeded,
    /// Failed: tried again if tries are left.
    Failed {
        /// What went wrong.
        error: String,
    },
    /// Failed for good.
    Fatal {
        /// What went wrong.
        error: String,
    },
    /// To be tried again after a while.
    RetryAfter {
        /// After how long.
        ms: i64,
        /// Whether it counts as a failure.
        counted: bool,
        /// Why.
        error: String,
    },
    /// Stopped because someone wished so.
    Cancelled,
    /// Not started, because its latest start had passed.
    Skipped,
}

impl Outcome {
    fn letter(&self) -> &'static [u8; 1] {
        match self {
            Self::Succeeded => b"S",
            Self::Cancelled => b"C",
            Self::Skipped => b"K",
            Self::Failed { .. } => b"F",
            Self::Fatal { .. } => b"D",
            Self::RetryAfter { .. } => b"A",
        }
    }

    /// Whether it counts as a failure.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Fatal { .. } | Self::RetryAfter { counted: true, .. })
    }

    fn error(&self) -> &str {
        match self {
            Self::Succeeded | Self::Cancelled | Self::Skipped => "",
            Self::Failed { error } | Self::Fatal { error } | Self::RetryAfter { error, .. } => error,
        }
    }
}

/// One outcome to be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckRow {
    /// The task.
    pub id: TaskId,
    /// The grant it ran under.
    pub grant: Grant,
    /// How it ended.
    pub outcome: Outcome,
    /// Entry of the handler − due, in ms of Redis's time; negative if the handler was never entered.
    pub lag_ms: i64,
    /// How long the handler ran.
    pub took_ms: i64,
}

/// What became of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckAnswer {
    /// Accepted: the task has succeeded.
    Succeeded,
    /// Accepted: it is tried again.
    Retrying {
        /// When.
        due: UnixMs,
    },
    /// Accepted: it is a dead letter.
    Dead,
    /// Accepted: it is cancelled, by the handler or because someone had asked for it.
    Cancelled,
    /// Accepted: it is skipped; it never started.
    Skipped,
    /// Not accepted: the grant is no longer current.
    Stale,
    /// This grant's outcome had been accepted before; nothing changed.
    Known,
}

/// Accepts outcomes of tasks of one bucket, each once. Long lists go in pieces.
///
/// `again` says that some of the rows were sent before: then what was accepted is told from what is stale.
pub async fn ack(
    space: &Space,
    bucket: Bucket,
    executor: &str,
    rows: &[AckRow],
    again: bool,
) -> Result<Vec<AckAnswer>, StoreError> {
    if !rows.iter().any(|row| mutate::loses_ack(&row.id)) {
        return ack_rows(space, bucket, executor, rows, again).await;
    }
    // A fault planted on purpose: some outcomes are answered and never written.
    let kept: Vec<AckRow> = rows.iter().filter(|row| !mutate::loses_ack(&row.id)).cloned().collect();
    let mut answers = ack_rows(space, bucket, executor, &kept, again).await?.into_iter();
    let lost = |row: &AckRow| mutate::loses_ack(&row.id).then_some(AckAnswer::Succeeded);
    Ok(rows.iter().filter_map(|row| lost(row).or_else(|| answers.next())).collect())
}

async fn ack_rows(
    space: &Space,
    bucket: Bucket,
    executor: &str,
    rows: &[AckRow],
    again: bool,
) -> Result<Vec<AckAnswer>, StoreError> {
    let mut out = Vec::with_capacity(rows.len());
    let mut rest = rows;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(piece_len(rest));
        out.append(&mut ack_piece(space, bucket, executor, piece, again).await?);
        rest = after;
    }
    Ok(out)
}

/// How many rows from the front one script call takes; at least one.
fn piece_len(rows: &[AckRow]) -> usize {
    let mut weight = 0;
    let fits = |row: &&AckRow| {
        weight += match row.outcome {
            Outcome::Succeeded | Outcome::Cancelled | Outcome::Skipped => 1,
            Outcome::Failed { .. } | Outcome::Fatal { .. } | Outcome::RetryAfter { .. } => {
                limits::ACK_FAILURE_WEIGHT
            }
        };
        weight <= limits::ACK_MAX_WEIGHT
    };
    rows.iter().take_while(fits).count().max(1)
}

async fn ack_piece(
    space: &Space,
    bucket: Bucket,
    executor: &str,
    rows: &[AckRow],
    again: bool,
) -> Result<Vec<AckAnswer>, StoreError> {
    // By home hour: each has a hash of its own, and its ids go to it in one stretch. Within it by grant: the tasks of
    // one claim share theirs, so it is sent once. Equal rows keep their order.
    let run_of = |row: &AckRow| (row.id.shelf(), row.grant);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|at| (run_of(&rows[*at]), rows[*at].id));
    let places = order.clone();
    let order: Vec<&AckRow> = order.into_iter().map(|at| &rows[at]).collect();
    let mut ids = HashSet::with_capacity(rows.len());
    let distinct = rows.iter().all(|row| ids.insert(row.id));
    let plain = distinct && rows.iter().all(|row| row.outcome == Outcome::Succeeded);
    let mut lags = BTreeMap::new();
    let mut worst = -1;
    let clipped = |ms: i64| ms.clamp(0, (1 << 30) - 1);
    let mut args = space.args(64 + rows.len() * 3, 256 + rows.len() * 128);
    args.bytes(clip(executor, 32)).bytes(if again { b"1" } else { b"" }).number(fastrand::f64());
    args.number(rows.len()).bytes(if plain { b"1" } else { b"" });
    for row in &order {
        let (mut lag, mut took) = ([0; 5], [0; 5]);
        digits::write(&mut lag, clipped(row.lag_ms) as u128);
        digits::write(&mut took, clipped(row.took_ms) as u128);
        args.raw(row.id.as_bytes()).raw(row.grant.as_bytes()).raw(row.outcome.letter()).raw(&lag).raw(&took);
    }
    args.cut();
    for row in &order {
        args.raw(row.id.as_bytes()).raw(row.outcome.letter()).raw(&row.grant.as_bytes()[..8]);
    }
    args.cut();
    for row in &order {
        let mut bin = *b"zz";
        if row.lag_ms >= 0 {
            digits::write(&mut bin, u128::from(bin_of(row.lag_ms)));
            *lags.entry(bin).or_insert(0) += 1;
            worst = worst.max(clipped(row.lag_ms));
        }
        args.raw(&bin);
    }
    args.cut();
    let runs = || order.chunk_by(|a, b| run_of(a) == run_of(b));
    args.number(runs().count()).number(if worst < 0 { 0 } else { lags.len() + 1 });
    for run in runs() {
        args.number(run[0].id.shelf()).bytes(run[0].grant.as_bytes()).number(run.len());
    }
    for (bin, count) in &lags {
        args.bytes(bin).number(count);
    }
    if worst >= 0 {
        let mut lag = [0; 5];
        digits::write(&mut lag, worst as u128);
        args.bytes(b"max").bytes(&lag);
    }
    for row in &order {
        args.bytes(row.id.as_bytes());
    }
    for row in order.iter().filter(|_| !plain) {
        if let Outcome::RetryAfter { ms, counted, .. } = &row.outcome {
            let ms = (*ms).clamp(0, limits::BACKOFF_MAX_MS);
            args.part(format_args!("{ms:013}{}", u8::from(*counted)));
        }
        // The end of an error says more than its beginning.
        let text = row.outcome.error();
        let cut = text.len().saturating_sub(limits::ERROR_TAIL_MAX_BYTES);
        args.raw(&text.as_bytes()[text.ceil_char_boundary(cut)..]).cut();
    }
    let mut fields = space.call(&script::ACK, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    if letters.len() != rows.len() {
        return Err(fields.bad("not one letter a row"));
    }
    let mut answers = Vec::with_capacity(rows.len());
    for letter in letters.iter() {
        answers.push(match letter {
            b'S' => AckAnswer::Succeeded,
            b'C' => AckAnswer::Cancelled,
            b'K' => AckAnswer::Skipped,
            b'D' => AckAnswer::Dead,
            b'R' => AckAnswer::Retrying { due: UnixMs(fields.int("due")?) },
            b'N' => AckAnswer::Known,
            b'Z' => AckAnswer::Stale,
            other => return Err(fields.bad(format!("unknown letter {other}"))),
        });
    }
    // Back into the caller's order.
    let mut out = vec![AckAnswer::Stale; rows.len()];
    for (place, answer) in places.into_iter().zip(answers) {
        out[place] = answer;
    }
    Ok(out)
}

/// What became of something to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkAnswer {
    /// It is kept.
    Kept,
    /// The grant is no longer current.
    Stale,
    /// More than a task may keep.
    Full,
}

/// Keeps something for a task that runs: progress, a checkpoint, a step that is done.
pub async fn mark(
    space: &Space,
    id: TaskId,
    grant: Grant,
    field: &[u8],
    value: Bytes,
) -> Result<MarkAnswer, StoreError> {
    let mut args = space.args(7, 96 + field.len());
    args.bytes(&[&id.as_bytes()[..], grant.as_bytes()].concat()).bytes(field).shared(value);
    args.number(limits::MARK_FIELDS_MAX).number(limits::MARK_MAX_BYTES).number(limits::MARK_KEEP_MS / 1_000);
    let answer = space.call(&script::MARK, space.guard(id.bucket()), args).await?;
    match &answer.word[..] {
        b"STALE" => Ok(MarkAnswer::Stale),
        b"FULL" => Ok(MarkAnswer::Full),
        _ => answer.ok().map(|_| MarkAnswer::Kept),
    }
}

/// Whether a subject is met for the first time on this day of UTC, under a name. A repeated call says that it is not.
pub async fn daily(space: &Space, name: &str, subject: u64) -> Result<bool, StoreError> {
    let (segment, bit) = (subject / limits::DAILY_SEGMENT_ROWS, subject % limits::DAILY_SEGMENT_ROWS);
    let guard = Guard::room(space.namespace(), &format!("days:{name}/{segment}"));
    let mut args = space.args(3, 64);
    args.number(bit).number(limits::DAILY_KEEP_MS / 1_000);
    Ok(space.call(&script::DAILY, &guard, args).await?.ok()?.int("first")? == 1)
}

fn mark_key(space: &Space, id: TaskId) -> Bytes {
    space.guard(id.bucket()).key(&format!("mark:{id}"))
}

/// What is kept for a task in one field.
pub async fn marked(space: &Space, id: TaskId, field: &[u8]) -> Result<Option<Bytes>, StoreError> {
    let key = mark_key(space, id);
    let args = vec![key.clone(), Bytes::copy_from_slice(field)];
    space.store().command("HGET", super::At::Key(&key), args).await?.maybe_bytes("HGET")
}

/// Drops what is kept for a task that has ended.
pub async fn unmark(space: &Space, id: TaskId) -> Result<(), StoreError> {
    let key = mark_key(space, id);
    space.store().command("UNLINK", super::At::Key(&key), vec![key.clone()]).await.map(drop)
}
