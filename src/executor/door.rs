//! Executors that live elsewhere and poll: a worker in any language, seen through a door such as HTTP.
//!
//! Each worker is an executor with an inbox of its own; the door takes for it, says `start` for what it hands over, and
//! reports outcomes under the grants that the worker gives back. It keeps nothing that another door must know: when a
//! worker was last reported, and a subscription. So a worker may ask any pod, each time another one.
//!
//! A task is started when it is handed over: from then on its lease runs, and a worker that dies has failed an attempt.
//! What cannot be handed over, because the worker went away meanwhile, is given back uncounted.

use super::link::{ExecutorRecord, Outcome, Take};
use super::{ANY_QUEUE, backoff};
use crate::model::spec::Extras;
use crate::model::{
    Bucket, ExecutionId, Grant, Labels, LaneGroup, Priority, Progress, QueueName, Spec, TaskId, UnixMs,
};
use crate::store::member::{self, Offer};
use crate::store::run::{self, AckAnswer, AckRow, MarkAnswer, StartAnswer, StartRow};
use crate::store::{Space, StoreError, Subscription, due};
use crate::{clock, limits};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A worker as it describes itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its id, unique among workers: two that share one take each other's tasks.
    pub id: String,
    /// Its name in lists.
    pub name: String,
    /// Queues it serves; none for all.
    pub queues: Vec<QueueName>,
    /// Labels it has.
    pub labels: Labels,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Its version.
    pub version: String,
    /// Where it is.
    pub host: String,
}

/// Longest id of a worker: with the prefix it fits into an executor's id.
pub const WORKER_ID_MAX_BYTES: usize = 27;

impl Worker {
    /// Its id as an executor: no executor that runs by itself has one that begins so.
    pub fn executor(id: &str) -> String {
        format!("poll.{id}")
    }

    fn record(&self, in_hand: u32, clock_offset_us: i64) -> ExecutorRecord {
        let mut queues: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        if queues.is_empty() {
            queues.push(ANY_QUEUE.to_owned());
        }
        ExecutorRecord {
            id: Self::executor(&self.id),
            name: self.name.clone(),
            queues,
            labels: self.labels.as_slice().to_vec(),
            slots: self.slots,
            capacity: self.slots,
            version: self.version.clone(),
            host: self.host.clone(),
            busy: in_hand,
            clock_offset_us,
            ..ExecutorRecord::default()
        }
    }
}

/// A task that is handed to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Handed {
    /// This attempt's name; its outcome is reported under it.
    pub execution: ExecutionId,
    /// Its queue.
    pub queue: QueueName,
    /// Labels it asked for.
    pub labels: Labels,
    /// How urgent it is.
    pub priority: Priority,
    /// When it was due.
    pub due: UnixMs,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Its idempotency key.
    pub key: Option<Bytes>,
    /// Its placement key.
    pub placement: Option<Bytes>,
    /// Its plan.
    pub plan: Option<crate::model::PlanName>,
    /// Hand-over − due, in ms of Redis's time.
    pub lag_ms: i64,
    /// How long its lease is.
    pub lease_ms: i64,
    /// When its lease lapses unless it is renewed.
    pub lease_until: UnixMs,
    /// How long it may run.
    pub timeout_ms: Option<u32>,
    /// Cost estimate, routing key, trace context.
    pub extras: Extras,
    /// The payload, byte for byte.
    pub payload: Bytes,
}

/// What a worker asks for.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Tasks it has in hand.
    pub in_hand: u32,
    /// At most so many more, within its slots.
    pub most: u32,
    /// How long it waits for the first.
    pub wait: Duration,
}

/// Notes of progress that are written at the same time.
const MARKS_AT_ONCE: usize = 32;

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It is still the worker's, until then; whether somebody wishes it to stop.
    Until(UnixMs, bool),
    /// It is somebody else's, or has ended.
    Stale,
}

/// Hands tasks to workers that poll. Cheap to clone.
#[derive(Clone)]
pub struct Door {
    inner: Arc<Inner>,
}

struct Inner {
    space: Space,
    known: Mutex<HashMap<String, Known>>,
    /// Tasks for which progress was kept through this door; dropped when they end through it.
    marked: Mutex<HashSet<TaskId>>,
    shutdown: CancellationToken,
}

/// What this door knows of a worker.
struct Known {
    worker: Worker,
    reported: Instant,
    asked: Instant,
    wakes: Option<Subscription>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Door({:?})", self.inner.space)
    }
}

impl Door {
    /// A door; `shutdown` ends what waits at it.
    pub fn new(space: Space, shutdown: CancellationToken) -> Self {
        Self { inner: Arc::new(Inner { space, known: Mutex::default(), marked: Mutex::default(), shutdown }) }
    }

    /// Hands over at most as many tasks as the worker wishes and has slots for; waits for the first.
    ///
    /// Dropping the future loses nothing: what was taken meanwhile is given back.
    pub async fn poll(&self, worker: &Worker, wish: Wish) -> Result<Vec<Handed>, StoreError> {
        let until = clock::mono() + wish.wait;
        let id = Worker::executor(&worker.id);
        let mut wakes = None;
        loop {
            self.report(worker, wish.in_hand).await?;
            let (to, handed) = oneshot::channel();
            let (door, taker) = (self.clone(), worker.clone());
            // It runs to its end even if nobody waits for it any more.
            tokio::spawn(async move {
                let found = door.take(&taker, wish).await;
                if let Err(Ok(unheard)) = to.send(found)
                    && !unheard.is_empty()
                {
                    let rows: Vec<_> =
                        unheard.iter().map(|task| (task.execution.id, task.execution.grant)).collect();
                    door.give_back(&Worker::executor(&taker.id), "the worker went away", &rows).await;
                }
            });
            let handed = handed.await.map_err(|_| StoreError::Closed)??;
            let now = clock::mono();
            if !handed.is_empty() || now >= until || self.inner.shutdown.is_cancelled() {
                self.keep(&worker.id, wakes);
                return Ok(handed);
            }
            let Some(waiting) = &mut wakes else {
                // What came before the subscription stood is looked for once more.
                wakes = Some(match self.kept(&worker.id) {
                    Some(wakes) => wakes,
                    None => member::inbox_wakes(&self.inner.space, &id),
                });
                continue;
            };
            let poll = (now + clock::ms(limits::POLL_MS)).min(until);
            tokio::select! {
                _ = waiting.recv() => {}
                () = tokio::time::sleep_until(poll.into()) => {}
                () = self.inner.shutdown.cancelled() => {}
            }
        }
    }

    fn kept(&self, id: &str) -> Option<Subscription> {
        self.inner.known.lock().get_mut(id).and_then(|known| known.wakes.take())
    }

    fn keep(&self, id: &str, wakes: Option<Subscription>) {
        if let (Some(wakes), Some(known)) = (wakes, self.inner.known.lock().get_mut(id)) {
            known.wakes = Some(wakes);
        }
    }

    /// Says that the worker lives, unless that was said lately and has not changed.
    async fn report(&self, worker: &Worker, in_hand: u32) -> Result<(), StoreError> {
        let now = clock::mono();
        let every = clock::ms(limits::HEARTBEAT_MS);
        {
            let mut known = self.inner.known.lock();
            match known.get_mut(&worker.id) {
                Some(known) if known.worker == *worker && now.duration_since(known.reported) < every => {
                    known.asked = now;
                    return Ok(());
                }
                _ => {}
            }
            if known.len() >= limits::POLL_WORKERS_MAX {
                // Those that have gone without a word.
                known.retain(|_, known| now.duration_since(known.asked) < clock::ms(limits::LOST_AFTER_MS));
            }
        }
        let space = &self.inner.space;
        let offset = space.clock().now_us() - clock::wall_us();
        member::beat_executor(space, &worker.record(in_hand, offset)).await?;
        let mut known = self.inner.known.lock();
        if known.len() < limits::POLL_WORKERS_MAX || known.contains_key(&worker.id) {
            let wakes = known.get_mut(&worker.id).and_then(|known| known.wakes.take());
            let fresh = Known { worker: worker.clone(), reported: now, asked: now, wakes };
            known.insert(worker.id.clone(), fresh);
        }
        Ok(())
    }

    /// Takes what is in the inbox, and starts it.
    async fn take(&self, worker: &Worker, wish: Wish) -> Result<Vec<Handed>, StoreError> {
        let space = &self.inner.space;
        let id = Worker::executor(&worker.id);
        let normal = wish.most.min(worker.slots.saturating_sub(wish.in_hand));
        let ask = Take { normal, urgent: 0, in_hand: wish.in_hand, capacity: worker.slots, urgent_slots: 0 };
        let taken = member::take(space, &id, ask).await?;
        for pod in taken.hungry {
            // Hints; nobody waits for them.
            let (space, id) = (space.clone(), id.clone());
            tokio::spawn(async move {
                let _ = member::tell_room(&space, &pod, &id).await;
            });
        }
        if taken.offers.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.hand_over(worker, &id, taken.offers).await)
    }

    /// Starts what can be handed over; the rest is refused, or comes back by itself.
    async fn hand_over(&self, worker: &Worker, id: &str, offers: Vec<Offer>) -> Vec<Handed> {
        let space = &self.inner.space;
        let mut by_bucket: BTreeMap<Bucket, Vec<(StartRow, Offer, LaneGroup, Spec)>> = BTreeMap::new();
        let (mut refused, mut back) = (Vec::new(), Vec::new());
        for offer in offers {
            let execution = ExecutionId { id: offer.id, grant: offer.grant };
            let group = match space.group_of(offer.group).await {
                Ok(group) => group,
                Err(error) => {
                    tracing::warn!(%execution, %error, "could not look up the queue of an offer");
                    back.push((offer.id, offer.grant));
                    continue;
                }
            };
            if !worker.queues.is_empty() && !worker.queues.contains(&group.queue) {
                let error = format!("executor {id} does not serve queue {}", group.queue);
                let ms = super::inbox::MISDIRECTED_MS;
                refused.push(row(execution, Outcome::RetryAfter { ms, counted: false, error }));
                continue;
            }
            match Spec::decode(&offer.spec, offer.id.home().start()) {
                Ok(spec) => {
                    let now_ms = space.clock().now_ms();
                    if spec.start_before.is_some_and(|latest| now_ms > latest.0) {
                        refused.push(row(execution, Outcome::Skipped));
                        continue;
                    }
                    let lease_ms = spec.lease_ms.map_or(limits::LEASE_MS, i64::from);
                    let start = StartRow { id: offer.id, grant: offer.grant, lease_ms };
                    by_bucket.entry(offer.id.bucket()).or_default().push((start, offer, group, spec));
                }
                Err(error) => {
                    tracing::error!(%execution, %error, "a task cannot be read");
                    refused.push(row(execution, Outcome::Fatal { error: error.to_string() }));
                }
            }
        }
        let mut out = Vec::new();
        for (bucket, tasks) in by_bucket {
            let rows: Vec<StartRow> = tasks.iter().map(|(row, ..)| *row).collect();
            let answers = match run::start(space, bucket, id, &rows).await {
                Ok(answers) => answers,
                Err(error) => {
                    // They come back at their dispatch time-out, or at their lease if the call arrived.
                    tracing::warn!(%bucket, rows = rows.len(), %error, "could not start tasks for a worker");
                    continue;
                }
            };
            let now_ms = space.clock().now_ms();
            for ((start, offer, group, spec), answer) in tasks.into_iter().zip(answers) {
                let execution = ExecutionId { id: offer.id, grant: offer.grant };
                match answer {
                    StartAnswer::Ok { deadline, cancel: false } => {
                        let lag_ms = (now_ms - offer.due.0).max(0);
                        super::observe::started(lag_ms);
                        out.push(handed(execution, &offer, group, spec, start.lease_ms, deadline, lag_ms));
                    }
                    StartAnswer::Ok { cancel: true, .. } => refused.push(row(execution, Outcome::Cancelled)),
                    StartAnswer::Stale => {
                        tracing::info!(%execution, "grant no longer stands; not handed over")
                    }
                }
            }
        }
        self.give_back(id, "unknown queue", &back).await;
        if !refused.is_empty()
            && let Err(error) = self.ack(id, refused, false).await
        {
            tracing::warn!(%error, "could not refuse tasks for a worker; they come back when their grants lapse");
        }
        out
    }

    /// Reports outcomes; the answers stand in the order of the rows. `again`: some of them were sent before.
    pub async fn ack(
        &self,
        executor: &str,
        rows: Vec<AckRow>,
        again: bool,
    ) -> Result<Vec<AckAnswer>, StoreError> {
        let ended: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
        let mut answers = vec![AckAnswer::Stale; rows.len()];
        let mut by_bucket: BTreeMap<Bucket, Vec<(usize, AckRow)>> = BTreeMap::new();
        for (at, row) in rows.into_iter().enumerate() {
            by_bucket.entry(row.id.bucket()).or_default().push((at, row));
        }
        let sent = clock::mono();
        let calls = by_bucket.into_iter().map(|(bucket, rows)| async move {
            let (places, rows): (Vec<usize>, Vec<AckRow>) = rows.into_iter().unzip();
            let mut repeated = again;
            let mut failures = 0;
            loop {
                match run::ack(&self.inner.space, bucket, executor, &rows, repeated).await {
                    Ok(answers) => return Ok::<_, StoreError>((places, answers)),
                    Err(error) => {
                        failures += 1;
                        let pause = backoff(failures);
                        let late = sent.elapsed() + pause > clock::ms(limits::POLL_PATIENCE_MS);
                        if !error.is_retryable() || late {
                            return Err(error);
                        }
                        repeated |= error.fate_unknown();
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        });
        for done in futures_util::future::join_all(calls).await {
            let (places, found) = done?;
            super::observe::acked(&found, sent.elapsed());
            for (place, answer) in places.into_iter().zip(found) {
                answers[place] = answer;
            }
        }
        self.forget_progress(ended.into_iter().zip(&answers));
        Ok(answers)
    }

    /// Drops the progress of tasks that have ended, where it was said through this door. Where it was another one, or
    /// this fails, it goes by its time.
    fn forget_progress<'a>(&self, answers: impl Iterator<Item = (TaskId, &'a AckAnswer)>) {
        let mut marked = self.inner.marked.lock();
        if marked.is_empty() {
            return;
        }
        let ends = |answer: &AckAnswer| !matches!(answer, AckAnswer::Retrying { .. } | AckAnswer::Stale);
        let ids: Vec<TaskId> =
            answers.filter(|(id, answer)| ends(answer) && marked.remove(id)).map(|(id, _)| id).collect();
        drop(marked);
        let space = self.inner.space.clone();
        tokio::spawn(async move {
            for id in ids {
                if let Err(error) = run::unmark(&space, id).await {
                    tracing::debug!(%id, %error, "could not drop the progress of a task");
                }
            }
        });
    }

    /// Keeps how far workers are with their tasks; the answers stand in the order of the rows.
    pub async fn progress(&self, rows: &[(ExecutionId, Progress)]) -> Result<Vec<MarkAnswer>, StoreError> {
        let mut answers = Vec::with_capacity(rows.len());
        for some in rows.chunks(MARKS_AT_ONCE) {
            let calls = some.iter().map(|(execution, progress)| async move {
                let value = serde_json::to_vec(progress).unwrap_or_default();
                let space = &self.inner.space;
                run::mark(space, execution.id, execution.grant, Progress::FIELD, value.into()).await
            });
            for ((execution, _), answer) in some.iter().zip(futures_util::future::join_all(calls).await) {
                let answer = answer?;
                let mut marked = self.inner.marked.lock();
                if answer == MarkAnswer::Kept && marked.len() < limits::JOURNAL_OPEN_MAX {
                    marked.insert(execution.id);
                }
                answers.push(answer);
            }
        }
        Ok(answers)
    }

    /// Renews what a worker holds; the answers stand in the order of the rows.
    pub async fn renew(&self, executor: &str, rows: &[(ExecutionId, i64)]) -> Result<Vec<Held>, StoreError> {
        let mut answers = vec![Held::Stale; rows.len()];
        let mut by_bucket: BTreeMap<Bucket, (Vec<usize>, Vec<StartRow>)> = BTreeMap::new();
        for (at, (execution, lease_ms)) in rows.iter().enumerate() {
            let (places, rows) = by_bucket.entry(execution.id.bucket()).or_default();
            places.push(at);
            rows.push(StartRow { id: execution.id, grant: execution.grant, lease_ms: *lease_ms });
        }
        let calls = by_bucket.into_iter().map(|(bucket, (places, rows))| async move {
            Ok::<_, StoreError>((places, run::renew(&self.inner.space, bucket, executor, &rows).await?))
        });
        for done in futures_util::future::join_all(calls).await {
            let (places, found) = done?;
            for (place, answer) in places.into_iter().zip(found) {
                answers[place] = match answer {
                    StartAnswer::Ok { deadline, cancel } => Held::Until(deadline, cancel),
                    StartAnswer::Stale => Held::Stale,
                };
            }
        }
        self.alive(executor).await;
        Ok(answers)
    }

    /// A worker that renews lives, even while it has no time to poll.
    async fn alive(&self, executor: &str) {
        let Some(id) = executor.strip_prefix("poll.") else { return };
        let worker = self.inner.known.lock().get(id).map(|known| known.worker.clone());
        if let Some(worker) = worker
            && let Err(error) = self.report(&worker, worker.slots).await
        {
            tracing::debug!(%error, executor, "could not say that a worker lives");
        }
    }

    /// Gives back what a worker has not worked on, uncounted; answers how many grants still stood.
    pub async fn give_back(&self, executor: &str, cause: &str, rows: &[(TaskId, Grant)]) -> usize {
        let mut by_bucket: BTreeMap<Bucket, Vec<(TaskId, Grant)>> = BTreeMap::new();
        for row in rows {
            by_bucket.entry(row.0.bucket()).or_default().push(*row);
        }
        let mut stood = 0;
        for (bucket, rows) in by_bucket {
            match due::release(&self.inner.space, bucket, executor, cause, &rows).await {
                Ok(answers) => {
                    stood += answers.iter().filter(|a| !matches!(a, due::ReleaseAnswer::Stale)).count();
                }
                Err(error) => {
                    tracing::warn!(%bucket, rows = rows.len(), %error, "could not hand tasks back; they come back when their grants lapse");
                }
            }
        }
        super::observe::handed_back(stood as u64);
        stood
    }

    /// A worker goes: its inbox is closed, and what was in it goes back at once. Answers how many tasks that were.
    pub async fn leave(&self, id: &str) -> Result<usize, StoreError> {
        self.inner.known.lock().remove(id);
        let executor = Worker::executor(id);
        let offers = member::leave_executor(&self.inner.space, &executor).await?;
        let rows: Vec<_> = offers.iter().map(|offer| (offer.id, offer.grant)).collect();
        Ok(self.give_back(&executor, "the worker left", &rows).await)
    }
}

fn row(execution: ExecutionId, outcome: Outcome) -> AckRow {
    AckRow { id: execution.id, grant: execution.grant, outcome, lag_ms: -1, took_ms: 0 }
}

fn handed(
    execution: ExecutionId,
    offer: &Offer,
    group: LaneGroup,
    spec: Spec,
    lease_ms: i64,
    lease_until: UnixMs,
    lag_ms: i64,
) -> Handed {
    Handed {
        execution,
        queue: group.queue,
        labels: group.labels,
        priority: spec.lane.priority(),
        due: offer.due,
        attempt: offer.attempt,
        key: spec.key.map(|key| key.bytes),
        placement: spec.placement,
        plan: spec.plan,
        lag_ms,
        lease_ms,
        lease_until,
        timeout_ms: spec.timeout_ms,
        extras: spec.extras,
        payload: spec.payload,
    }
}
