//! Outcomes on their way to Redis: gathered by bucket, sent in batches, kept until they are accepted.
//!
//! An ack that travels alone costs Redis more than a task's whole life in a batch, and nobody's lag
//! hangs on it. So outcomes gather: until a bucket has [`limits::ACK_ROWS`] of them, or for a time
//! between 5 and 250 ms that follows the traffic, so that a call carries about [`AIM_ROWS`]. All
//! buckets leave together, which makes them one write on the wire.
//!
//! Acks are idempotent by grant. A call without an answer is sent again, with back-off, for as long
//! as it takes; meanwhile handlers that end wait for room here ([`UNSENT_MAX`]), so that a Redis that
//! is away costs no memory.

use super::link::{AckAnswer, AckRow, Link, Outcome};
use super::runner::Core;
use crate::limits;
use crate::model::{Bucket, ExecutionId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

/// Outcomes that may wait for their ack; beyond that handlers wait with theirs. A row has some 100
/// bytes, with its error at most 1,150: 23 MB at the very worst.
pub(super) const UNSENT_MAX: usize = 20_000;
/// Rows that a call should carry: the fixed cost of a call is then below a fifth of its rows'.
const AIM_ROWS: f64 = 128.0;

const GATHER_MIN: Duration = Duration::from_millis(limits::ACK_GATHER_MIN_MS);

/// What waits in one bucket.
#[derive(Default)]
struct Pile {
    rows: Vec<AckRow>,
    /// What is under way; one call a bucket at a time.
    flying: Option<Arc<Vec<AckRow>>>,
    failures: u32,
    /// Not before, after a failure.
    not_before: Option<Instant>,
    /// Its time to leave has come, though it could not.
    late: bool,
}

struct Piles {
    by_bucket: HashMap<Bucket, Pile>,
    /// When all piles leave.
    leave_at: Option<Instant>,
    gather: Duration,
    longest: Duration,
    /// Shutting down: gather as little as possible.
    hurry: bool,
    closed: bool,
}

/// The buffer of outcomes.
pub(super) struct Acks {
    piles: Mutex<Piles>,
    wake: Notify,
    room: Semaphore,
}

/// One call.
struct Batch {
    bucket: Bucket,
    rows: Arc<Vec<AckRow>>,
    /// Some of its rows were sent before, and no answer came.
    again: bool,
}

/// What to do now.
struct Plan {
    send: Vec<Batch>,
    next: Option<Instant>,
    empty: bool,
}

impl Acks {
    pub fn new(longest: Duration) -> Self {
        let piles = Piles {
            by_bucket: HashMap::new(),
            leave_at: None,
            gather: GATHER_MIN,
            longest: longest.max(GATHER_MIN),
            hurry: false,
            closed: false,
        };
        Self { piles: Mutex::new(piles), wake: Notify::new(), room: Semaphore::new(UNSENT_MAX) }
    }

    /// Waits until one more outcome has room. Each must be followed by one [`Acks::push`].
    pub async fn reserve(&self) {
        // The semaphore is never closed.
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
        }
    }

    /// The same, if there is room now.
    pub fn try_reserve(&self) -> bool {
        self.room.try_acquire().map(|permit| permit.forget()).is_ok()
    }

    /// Adds an outcome.
    pub fn push(&self, row: AckRow, now: Instant) {
        let mut piles = self.piles.lock();
        let gather = if piles.hurry { GATHER_MIN } else { piles.gather };
        let first = piles.leave_at.is_none();
        if first {
            piles.leave_at = Some(now + gather);
        }
        let pile = piles.by_bucket.entry(row.id.bucket()).or_default();
        pile.rows.push(row);
        if first || pile.rows.len() == limits::ACK_ROWS {
            self.wake.notify_one();
        }
    }

    /// Outcomes that are not accepted yet.
    pub fn unsent(&self) -> usize {
        UNSENT_MAX - self.room.available_permits().min(UNSENT_MAX)
    }

    /// From now on outcomes leave as soon as may be.
    pub fn hurry(&self, now: Instant) {
        let mut piles = self.piles.lock();
        piles.hurry = true;
        piles.leave_at = piles.leave_at.map(|_| now);
        self.wake.notify_one();
    }

    /// No more outcomes will come: the loop ends when all are accepted.
    pub fn close(&self) {
        let mut piles = self.piles.lock();
        (piles.hurry, piles.closed) = (true, true);
        self.wake.notify_one();
    }

    fn plan(&self, now: Instant) -> Plan {
        let mut guard = self.piles.lock();
        let piles = &mut *guard;
        let all = piles.closed || piles.leave_at.is_some_and(|at| at <= now);
        let mut send = Vec::new();
        let mut next = None::<Instant>;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        let (mut gathered, mut piles_gathered) = (0, 0);
        for (bucket, pile) in &mut piles.by_bucket {
            if pile.rows.is_empty() {
                continue;
            }
            if all {
                (gathered, piles_gathered) = (gathered + pile.rows.len(), piles_gathered + 1);
                pile.late = true;
            }
            if pile.flying.is_some() || !(pile.late || pile.rows.len() >= limits::ACK_ROWS) {
                continue;
            }
            if let Some(at) = pile.not_before.filter(|at| *at > now) {
                sooner(at);
                continue;
            }
            let rows = if pile.rows.len() > limits::BATCH_MAX_ROWS {
                let rest = pile.rows.split_off(limits::BATCH_MAX_ROWS);
                std::mem::replace(&mut pile.rows, rest)
            } else {
                pile.late = false;
                std::mem::take(&mut pile.rows)
            };
            let rows = Arc::new(rows);
            pile.flying = Some(Arc::clone(&rows));
            send.push(Batch { bucket: *bucket, rows, again: pile.failures > 0 });
        }
        if all {
            piles.leave_at = None;
            if piles_gathered > 0 && !piles.hurry {
                let rows = gathered as f64 / f64::from(piles_gathered);
                piles.gather = next_gather(piles.gather, rows).clamp(GATHER_MIN, piles.longest);
            }
        }
        if let Some(at) = piles.leave_at {
            sooner(at);
        }
        let empty = piles.by_bucket.values().all(|pile| pile.rows.is_empty() && pile.flying.is_none());
        Plan { send, next, empty: empty && piles.closed }
    }

    /// A call came back. `again`: its rows must be sent once more, not before that instant.
    fn landed(&self, bucket: Bucket, again: Option<Instant>) {
        let mut piles = self.piles.lock();
        let Some(pile) = piles.by_bucket.get_mut(&bucket) else { return };
        let rows = pile.flying.take();
        pile.not_before = again;
        if again.is_none() {
            pile.failures = 0;
            self.room.add_permits(rows.map_or(0, |rows| rows.len()));
            return;
        }
        pile.late = true;
        if let Some(rows) = rows {
            let mut rows = Arc::try_unwrap(rows).unwrap_or_else(|shared| shared.to_vec());
            rows.append(&mut pile.rows);
            pile.rows = rows;
        }
    }

    fn failed(&self, bucket: Bucket) -> u32 {
        let mut piles = self.piles.lock();
        let pile = piles.by_bucket.entry(bucket).or_default();
        pile.failures = pile.failures.saturating_add(1);
        pile.failures
    }
}

/// How long to gather next, after `rows` a bucket came together in `gather`. At most a doubling or
/// a halving at a time, so that one odd moment does not upset it.
fn next_gather(gather: Duration, rows: f64) -> Duration {
    let factor = (AIM_ROWS / rows.max(1.0)).clamp(0.5, 2.0);
    gather.mul_f64(factor)
}

/// Sends outcomes until the buffer is closed and empty.
pub(super) async fn run<L: Link>(core: Arc<Core<L>>) {
    let acks = &core.acks;
    let mut flights = JoinSet::new();
    let mut buckets = HashMap::new();
    loop {
        let plan = acks.plan(core.link.mono());
        for batch in plan.send {
            let bucket = batch.bucket;
            let flight = flights.spawn(send(Arc::clone(&core), batch));
            buckets.insert(flight.id(), bucket);
        }
        if plan.empty {
            return;
        }
        let pause = async {
            match plan.next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(done) = flights.join_next_with_id(), if !flights.is_empty() => {
                let (id, again) = match done {
                    Ok((id, again)) => (id, again),
                    // The call itself broke down; its rows are still here.
                    Err(error) => (error.id(), Some(core.link.mono() + super::backoff(1))),
                };
                if let Some(bucket) = buckets.remove(&id) {
                    acks.landed(bucket, again);
                }
            }
            () = acks.wake.notified() => {}
            () = pause => {}
        }
    }
}

/// Sends one batch. Answers when to try again, if it must.
async fn send<L: Link>(core: Arc<Core<L>>, batch: Batch) -> Option<Instant> {
    let Batch { bucket, rows, again } = batch;
    let sent = core.link.mono();
    match core.link.ack(bucket, &rows, again).await {
        Ok(answers) => {
            super::observe::acked(&answers, core.link.mono().saturating_duration_since(sent));
            if answers.len() != rows.len() {
                tracing::error!(%bucket, sent = rows.len(), answered = answers.len(), "acks were not all answered");
            }
            for (row, answer) in rows.iter().zip(&answers) {
                count(&core, row, *answer);
            }
        }
        Err(error) if error.is_retryable() => {
            let failures = core.acks.failed(bucket);
            if failures.is_power_of_two() {
                tracing::warn!(%bucket, rows = rows.len(), failures, %error, "could not report outcomes; trying again");
            }
            return Some(core.link.mono() + super::backoff(failures));
        }
        Err(error) => {
            core.stats.lost(rows.len());
            tracing::error!(
                %bucket, rows = rows.len(), %error,
                "could not report outcomes; they are dropped, and the tasks come back when their leases lapse"
            );
        }
    }
    forget_marks(&core, &rows);
    let done: Vec<_> = rows.iter().map(|row| ExecutionId { id: row.id, grant: row.grant }).collect();
    core.hands.settle(&done);
    core.settle(&done);
    None
}

/// What handlers kept for tasks goes when these have ended well; that of failed ones is for the next attempt.
fn forget_marks<L: Link>(core: &Arc<Core<L>>, rows: &[AckRow]) {
    let mut marked = core.marked.lock();
    if marked.is_empty() {
        return;
    }
    let held = rows.iter().filter(|row| marked.remove(&row.id));
    let ended =
        |row: &&AckRow| matches!(row.outcome, Outcome::Succeeded | Outcome::Cancelled | Outcome::Skipped);
    let ids: Vec<_> = held.filter(ended).map(|row| row.id).collect();
    drop(marked);
    if ids.is_empty() {
        return;
    }
    let core = Arc::clone(core);
    tokio::spawn(async move {
        for id in ids {
            // Where this fails, they go by their time.
            if let Err(error) = core.link.unmark(id).await {
                tracing::debug!(%id, %error, "could not drop what was kept for a task");
            }
        }
    });
}

fn count<L: Link>(core: &Core<L>, row: &AckRow, answer: AckAnswer) {
    let execution = ExecutionId { id: row.id, grant: row.grant };
    match answer {
        AckAnswer::Succeeded => core.stats.succeeded(),
        AckAnswer::Retrying { .. } | AckAnswer::Dead => core.stats.failed(),
        AckAnswer::Cancelled => core.stats.cancelled(),
        AckAnswer::Skipped => core.stats.skipped(),
        // Accepted before; the answer was lost.
        AckAnswer::Known => match row.outcome {
            Outcome::Succeeded => core.stats.succeeded(),
            Outcome::Cancelled => core.stats.cancelled(),
            Outcome::Skipped => core.stats.skipped(),
            Outcome::Failed { .. } | Outcome::Fatal { .. } | Outcome::RetryAfter { .. } => {
                core.stats.failed()
            }
        },
        AckAnswer::Stale => {
            core.stats.stale();
            tracing::info!(%execution, "outcome refused: the grant no longer stands");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_follows_the_traffic() {
        let longest = Duration::from_millis(limits::ACK_GATHER_MAX_MS);
        let settle = |rows_per_ms: f64| {
            let mut gather = GATHER_MIN;
            for _ in 0..20 {
                let rows = rows_per_ms * gather.as_secs_f64() * 1_000.0;
                gather = next_gather(gather, rows).clamp(GATHER_MIN, longest);
            }
            gather.as_secs_f64() * 1_000.0
        };
        assert!((settle(1.25) - 102.4).abs() < 1.0, "1,250 a second in a bucket: 128 rows in 102 ms");
        assert_eq!(settle(0.01), 250.0, "calm");
        assert_eq!(settle(100.0), 5.0, "busy");
        assert_eq!(next_gather(longest, 10_000.0), longest / 2, "one step at a time");
    }

    fn row(number: u64) -> AckRow {
        let id = crate::model::TaskId::new(crate::model::Minute(29_408_521), Bucket::default(), number);
        let grant = crate::model::Grant::new(1, crate::model::Nonce::new(number));
        AckRow { id, grant, outcome: Outcome::Succeeded, lag_ms: 0, took_ms: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn handlers_wait_while_too_much_is_unsent() {
        let (acks, now) = (Acks::new(Duration::from_millis(250)), crate::clock::mono());
        for number in 0..UNSENT_MAX as u64 {
            acks.reserve().await;
            acks.push(row(number), now);
        }
        assert_eq!(acks.unsent(), UNSENT_MAX);
        let full = tokio::time::timeout(Duration::from_secs(60), acks.reserve()).await;
        assert!(full.is_err(), "no room for one more");
        // A batch fails and comes again, as the same batch; then it is accepted.
        let first = acks.plan(now).send;
        assert_eq!((first.len(), first[0].rows.len(), first[0].again), (1, limits::BATCH_MAX_ROWS, false));
        assert!(acks.plan(now).send.is_empty(), "one call a bucket at a time");
        let rows = first[0].rows.to_vec();
        assert_eq!(acks.failed(Bucket::default()), 1);
        drop(first);
        let later = now + Duration::from_millis(50);
        acks.landed(Bucket::default(), Some(later));
        assert!(acks.plan(now).send.is_empty(), "not before its time");
        let second = acks.plan(later).send;
        assert_eq!((second[0].rows.to_vec(), second[0].again), (rows, true));
        acks.landed(Bucket::default(), None);
        assert_eq!(acks.unsent(), UNSENT_MAX - limits::BATCH_MAX_ROWS);
        acks.reserve().await;
    }
}
