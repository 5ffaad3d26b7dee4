//! Starting, renewing and ending granted tasks: `lua/run/`.

use super::intake::clip;
use super::script::{self, Script};
use super::space::Space;
use super::StoreError;
use crate::limits;
use crate::model::{Bucket, Grant, State, TaskId, UnixMs, digits};

/// A task that starts or is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartRow {
    /// The task.
    pub id: TaskId,
    /// Its grant.
    pub grant: Grant,
    /// How long the grant shall be good from now on; at most a day.
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

/// Notes that handlers run. One bucket, at most [`limits::BATCH_MAX_ROWS`] rows; idempotent.
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

/// Notes in whose inbox tasks lie that have not started yet. One bucket; idempotent.
pub async fn offer(
    space: &Space,
    bucket: Bucket,
    pod: &str,
    rows: &[(StartRow, &str)],
) -> Result<Vec<StartAnswer>, StoreError> {
    hold(space, &script::OFFERED, bucket, pod, rows.iter().map(|(row, to)| (row, *to))).await
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

/// Bin of the lag histogram: exact below 32 ms, then 16 bins for each doubling (at most 6 % wide).
pub fn lag_bin(lag_ms: i64) -> u16 {
    let lag = lag_ms.clamp(0, (1 << 40) - 1) as u64;
    if lag < 32 {
        return lag as u16;
    }
    let power = 63 - lag.leading_zeros(); // ≥ 5
    (32 + (power - 5) * 16 + ((lag >> (power - 4)) as u32 & 15)) as u16
}

/// The smallest lag of a bin.
pub fn lag_of_bin(bin: u16) -> i64 {
    if bin < 32 {
        return i64::from(bin);
    }
    let (power, step) = ((bin - 32) / 16 + 5, (bin - 32) % 16);
    (16 + i64::from(step)) << (power - 4)
}

/// Accepts outcomes of tasks of one bucket, each once. At most [`limits::BATCH_MAX_ROWS`] rows.
///
/// `again` says that some of the rows were sent before: then what was accepted is told from what is stale.
pub async fn ack(
    space: &Space,
    bucket: Bucket,
    executor: &str,
    rows: &[AckRow],
    again: bool,
) -> Result<Vec<AckAnswer>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut args = space.args(3 + rows.len(), 64 + rows.len() * 52);
    args.bytes(clip(executor, 32)).bytes(if again { b"1" } else { b"" }).number(fastrand::f64());
    for row in rows {
        let (mut lag, mut took, mut bin) = ([0; 5], [0; 5], *b"zz");
        digits::write(&mut lag, row.lag_ms.clamp(0, (1 << 30) - 1) as u128);
        digits::write(&mut took, row.took_ms.clamp(0, (1 << 30) - 1) as u128);
        if row.lag_ms >= 0 {
            digits::write(&mut bin, u128::from(lag_bin(row.lag_ms)));
        }
        let (letter, text) = match &row.outcome {
            Outcome::Succeeded => (b"S", ""),
            Outcome::Cancelled => (b"C", ""),
            Outcome::Skipped => (b"K", ""),
            Outcome::Failed { error } => (b"F", error.as_str()),
            Outcome::Fatal { error } => (b"D", error.as_str()),
            Outcome::RetryAfter { error, .. } => (b"A", error.as_str()),
        };
        args.raw(row.id.as_bytes()).raw(row.grant.as_bytes()).raw(letter).raw(&lag).raw(&took).raw(&bin);
        if let Outcome::RetryAfter { ms, counted, .. } = &row.outcome {
            let ms = (*ms).clamp(0, limits::BACKOFF_MAX_MS);
            args.part(format_args!("{ms:013}{}", u8::from(*counted)));
        }
        // The end of an error says more than its beginning.
        let cut = text.len().saturating_sub(limits::ERROR_TAIL_MAX_BYTES);
        args.raw(&text.as_bytes()[text.ceil_char_boundary(cut)..]).cut();
    }
    let mut fields = space.call(&script::ACK, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    if letters.len() != rows.len() {
        return Err(fields.bad("not one letter a row"));
    }
    let mut out = Vec::with_capacity(rows.len());
    for letter in letters.iter() {
        out.push(match letter {
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
    debug_assert!(out.iter().all(|a| !matches!(a, AckAnswer::Succeeded) || State::Running.may_become(State::Succeeded)));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bins_hold_their_lags(lag in 0i64..(1 << 39)) {
            let bin = lag_bin(lag);
            let (low, high) = (lag_of_bin(bin), lag_of_bin(bin + 1));
            prop_assert!(low <= lag && lag < high, "{low} <= {lag} < {high}");
            prop_assert!(high - low <= 1 + lag / 16);
        }
    }

    #[test]
    fn bins_fit_two_digits_and_never_say_none() {
        assert_eq!((lag_bin(31), lag_bin(32), lag_of_bin(32)), (31, 32, 32));
        assert!(lag_bin(i64::MAX) < 4_000);
    }
}
