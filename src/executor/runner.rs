//! Slots: each is a tokio task that runs one handler after the other while work waits.
//!
//! A slot that ends a task takes the next one itself, under the lock it needs anyway; the inbox loop
//! starts slots only for work that finds one free. So with work at hand nothing is woken between two
//! tasks, and never more handlers run than there are slots.
//!
//! Handlers run on threads of their own, so that one that blocks its thread holds up nothing but
//! other handlers: leases, acks and heartbeats go on.

use super::acks::Acks;
use super::handler::{Context, HandlerError, HandlerFuture, HandlerResult, Stop, Task, Then, tail};
use super::hands::{End, Hands, Job, Pool, Verdict};
use super::journal::Journal;
use super::link::{AckRow, Link, MarkAnswer, Outcome, StartRow};
use super::marks::{Kept, MarkError, Marks};
use super::stats::Stats;
use crate::limits;
use crate::model::complaints::Complaints;
use crate::model::seal::{KeyRing, SealError};
use crate::model::{ExecutionId, Grant, Namespace, Spec, TaskId};
use bytes::Bytes;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What all parts of one executor share.
pub(super) struct Core<L> {
    pub link: L,
    pub id: Arc<str>,
    pub hands: Hands,
    pub acks: Acks,
    /// What is begun and not yet reported, for the next process.
    pub journal: Option<Arc<Journal>>,
    pub stats: Arc<Stats>,
    /// Open payloads that were sealed.
    pub keys: Option<Arc<KeyRing>>,
    pub complaints: Complaints,
    pub wake_keeper: tokio::sync::Notify,
    /// How long a handler that was told to stop may take to do so.
    pub stop_grace: Duration,
    /// No new work.
    pub closing: CancellationToken,
    /// Running handlers are dropped now.
    pub kill: CancellationToken,
    /// Interrupted by a shutdown: to be handed back.
    pub given_back: Mutex<Vec<(TaskId, Grant)>>,
    /// Tasks for which something is kept, until they have ended.
    pub marked: Mutex<HashSet<TaskId>>,
    pub slots: TaskTracker,
    pub threads: tokio::runtime::Handle,
}

/// How a handler came to its end.
enum Ran {
    /// It answered.
    Answered(HandlerResult),
    /// It did not stop by itself in time.
    Dropped,
}

impl<L: Link> Core<L> {
    /// Starts slots for what waits and finds one free.
    pub fn launch(self: &Arc<Self>) {
        let mut jobs = self.hands.launch(self.link.mono());
        if let Some(journal) = self.journal.as_ref().filter(|_| !jobs.is_empty()) {
            let sure = jobs.iter_mut().map(|(_, job)| job).filter(|job| !job.must_ask);
            let begun: Vec<_> = sure.map(|job| (job.begun = true, job.task.execution).1).collect();
            journal.begin(&begun);
        }
        let mut jobs = jobs.into_iter();
        match (jobs.len(), jobs.next()) {
            (0, _) | (_, None) => {}
            (1, Some((pool, job))) => {
                self.slots.spawn_on(slot(Arc::clone(self), pool, job), &self.threads);
            }
            (_, Some(first)) => {
                // One hop to the handlers' threads for the whole batch.
                let core = Arc::clone(self);
                let batch = async move {
                    for (pool, job) in std::iter::once(first).chain(jobs) {
                        core.slots.spawn(slot(Arc::clone(&core), pool, job));
                    }
                };
                self.slots.spawn_on(batch, &self.threads);
            }
        }
    }

    /// Hands tasks back, uncounted; tries again for as long as `patience` lasts. Answers how many were accepted.
    pub async fn release(
        self: &Arc<Self>,
        cause: &'static str,
        rows: Vec<(TaskId, Grant)>,
        patience: Duration,
    ) -> u64 {
        if rows.is_empty() {
            return 0;
        }
        let until = self.link.mono() + patience;
        let mut by_bucket = BTreeMap::<_, Vec<_>>::new();
        for row in rows {
            by_bucket.entry(row.0.bucket()).or_default().push(row);
        }
        let mut calls = JoinSet::new();
        for (bucket, rows) in by_bucket {
            for rows in rows.chunks(limits::BATCH_MAX_ROWS) {
                let (core, rows) = (Arc::clone(self), rows.to_vec());
                calls.spawn(async move {
                    let mut failures = 0;
                    loop {
                        match core.link.release(bucket, cause, &rows).await {
                            Ok(accepted) => return accepted as u64,
                            Err(error) => {
                                failures += 1;
                                let pause = super::backoff(failures);
                                if !error.is_retryable() || core.link.mono() + pause > until {
                                    let count = rows.len();
                                    tracing::warn!(
                                        %bucket, count, %error,
                                        "could not hand tasks back; they come back when their grants lapse"
                                    );
                                    return 0;
                                }
                                tokio::time::sleep(pause).await;
                            }
                        }
                    }
                });
            }
        }
        let mut accepted = 0;
        while let Some(done) = calls.join_next().await {
            accepted += done.unwrap_or(0);
        }
        self.stats.handed_back(accepted);
        super::observe::handed_back(accepted);
        accepted
    }

    /// A payload as its submitter gave it. What cannot be opened fails with the reason; the wrong key of a name for good.
    fn opened(&self, queue: &super::hands::Queue, spec: &Spec) -> Result<Bytes, HandlerError> {
        let Some(name) = &spec.extras.sealed else { return Ok(spec.payload.clone()) };
        let missing = || SealError::UnknownKey(name.clone());
        let namespace = Namespace::new(self.link.namespace())?;
        let opened = match &self.keys {
            Some(keys) => keys.open(&namespace, &queue.name, name, &spec.payload),
            None => Err(missing()),
        };
        opened.map_err(|error| match error {
            SealError::UnknownKey(_) => HandlerError::failed(error.to_string()),
            SealError::Wrong(_) => HandlerError::fatal(error.to_string()),
        })
    }

    /// Somebody wishes a task to stop: its grant is asked for at once instead of at its next renewal.
    pub fn ask_at_once(&self, id: TaskId) {
        if self.hands.hurry(id, self.link.mono()) {
            self.wake_keeper.notify_one();
        }
    }

    /// Of these nothing needs to be reported any more.
    pub fn settle(&self, executions: &[ExecutionId]) {
        if let Some(journal) = &self.journal {
            journal.settle(executions);
        }
    }

    /// Reports the outcome of an offer that came to no handler.
    pub async fn refuse(&self, execution: ExecutionId, outcome: Outcome) {
        self.acks.reserve().await;
        let ExecutionId { id, grant } = execution;
        self.acks.push(AckRow { id, grant, outcome, lag_ms: -1, took_ms: 0 }, self.link.mono());
    }
}

impl<L> std::fmt::Debug for Core<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Core({})", self.id)
    }
}

impl<L: Link> Marks for Core<L> {
    fn put(self: Arc<Self>, execution: ExecutionId, field: Vec<u8>, value: Bytes) -> Kept<()> {
        let core = self;
        Box::pin(async move {
            if core.marked.lock().len() < limits::JOURNAL_OPEN_MAX {
                core.marked.lock().insert(execution.id);
            }
            match core.link.mark(execution, &field, value).await {
                Ok(MarkAnswer::Kept) => Ok(()),
                Ok(MarkAnswer::Stale) => Err(MarkError::Stale),
                Ok(MarkAnswer::Full) => Err(MarkError::TooLarge),
                Err(error) => Err(MarkError::Store(error.to_string())),
            }
        })
    }

    fn daily(self: Arc<Self>, name: String, subject: u64) -> Kept<bool> {
        Box::pin(async move {
            self.link.daily(&name, subject).await.map_err(|error| MarkError::Store(error.to_string()))
        })
    }

    fn get(self: Arc<Self>, execution: ExecutionId, field: Vec<u8>) -> Kept<Option<Bytes>> {
        let core = self;
        Box::pin(async move {
            let found = core.link.marked(execution.id, &field).await;
            let found = found.map_err(|error| MarkError::Store(error.to_string()))?;
            if found.is_some() && core.marked.lock().len() < limits::JOURNAL_OPEN_MAX {
                core.marked.lock().insert(execution.id);
            }
            Ok(found)
        })
    }
}

/// Runs one task after the other until none waits for this slot.
async fn slot<L: Link>(core: Arc<Core<L>>, pool: Pool, mut job: Job) {
    loop {
        let next = run_one(&core, pool, job).await;
        match next {
            Some(next) => job = next,
            None => return,
        }
        // Handlers that never wait would else keep this thread from its other tasks.
        tokio::task::consume_budget().await;
    }
}

/// Runs one task. Answers the next one for the slot.
async fn run_one<L: Link>(core: &Arc<Core<L>>, pool: Pool, job: Job) -> Option<Job> {
    let execution = job.task.execution;
    let queue = Arc::clone(&job.task.route.queue);
    if job.must_ask {
        match ask(core, &execution).await {
            Some(Verdict::Go) => {}
            Some(Verdict::Cancelled) => {
                let unrun = Ended { outcome: Outcome::Cancelled, lag_ms: -1, took: None };
                return end(core, pool, &execution, &queue, unrun).await;
            }
            Some(Verdict::Stale) => {
                core.stats.stale();
                tracing::info!(%execution, "grant no longer stands; the handler is not run");
                return core.hands.finish(&execution, pool, &queue, End::Dropped, core.link.mono());
            }
            None => return give_back(core, pool, &execution, &queue),
        }
    }

    if let Some(latest) = job.task.spec.start_before
        && core.link.now_us() >= latest.0.saturating_add(1).saturating_mul(1_000)
    {
        tracing::info!(%execution, %latest, "its latest start has passed; the handler is not run");
        let unrun = Ended { outcome: Outcome::Skipped, lag_ms: -1, took: None };
        return end(core, pool, &execution, &queue, unrun).await;
    }

    // A claim grants nothing before its time; that an estimate of Redis's clock says otherwise is its error.
    let lag_ms = (core.link.now_us() - job.task.due.0.saturating_mul(1_000)).div_euclid(1_000).max(0);
    let entered = core.link.mono();
    core.stats.started(lag_ms);
    super::observe::started(lag_ms);

    if let Some(journal) = core.journal.as_ref().filter(|_| !job.begun) {
        journal.begin(&[execution]);
    }
    let signal = job.signal;
    let time_out = job.task.spec.timeout_ms.map(|ms| Duration::from_millis(u64::from(ms)));
    let context = Context {
        signal: Arc::clone(&signal),
        executor: Arc::clone(&core.id),
        execution,
        marks: Arc::clone(core) as Arc<dyn Marks>,
        lag_ms,
        time_out,
    };
    let spec = job.task.spec;
    let payload = match core.opened(&queue, &spec) {
        Ok(payload) => payload,
        Err(error) => {
            tracing::warn!(%execution, %error, "a task cannot be run here");
            let unrun = Ended { outcome: outcome_of(error), lag_ms, took: Some(Duration::ZERO) };
            return end(core, pool, &execution, &queue, unrun).await;
        }
    };
    let task = Task {
        id: execution.id,
        execution_id: execution,
        queue: queue.name.clone(),
        labels: job.task.route.labels,
        priority: spec.lane.priority(),
        due: job.task.due,
        attempt: job.task.attempt,
        key: spec.key.map(|key| key.bytes),
        placement: spec.placement,
        plan: spec.plan.map(|plan| plan.to_string()),
        deadline: spec.deadline,
        lease_ms: spec.lease_ms,
        timeout_ms: spec.timeout_ms,
        extras: spec.extras,
        payload,
    };
    let ran = match &queue.handler {
        Some(handler) => {
            let mut handler = Guarded::start(|| handler(task, context));
            let ran = run_handler(core, &mut handler, &signal, time_out).await;
            handler.drop_quietly();
            ran
        }
        None => Ran::Answered(Err(HandlerError::failed("this executor has no handler for the queue"))),
    };

    let took = core.link.mono().saturating_duration_since(entered);
    if signal.has(Stop::Stale) {
        core.stats.stale();
        tracing::info!(%execution, "grant no longer stands; the outcome is dropped");
        core.settle(&[execution]);
        return core.hands.finish(&execution, pool, &queue, End::Dropped, core.link.mono());
    }
    let outcome = if signal.has(Stop::Cancelled) {
        Outcome::Cancelled
    } else if signal.has(Stop::TimedOut) {
        let ms = time_out.unwrap_or_default().as_millis();
        Outcome::Failed { error: format!("timed out after {ms} ms") }
    } else {
        match ran {
            Ran::Answered(Ok(())) => Outcome::Succeeded,
            Ran::Answered(Err(_)) if signal.has(Stop::Draining) => {
                return give_back(core, pool, &execution, &queue);
            }
            Ran::Answered(Err(error)) => match error.reported_later_ms() {
                Some(ms) => return let_go(core, pool, &execution, &queue, ms).await,
                None => outcome_of(error),
            },
            Ran::Dropped if signal.has(Stop::LeaseLost) => {
                Outcome::Failed { error: "stopped: its lease could not be renewed".into() }
            }
            Ran::Dropped => return give_back(core, pool, &execution, &queue),
        }
    };
    end(core, pool, &execution, &queue, Ended { outcome, lag_ms, took: Some(took) }).await
}

struct Ended {
    outcome: Outcome,
    lag_ms: i64,
    took: Option<Duration>,
}

/// Puts the outcome on its way and frees the slot, in that order: when nothing can be reported,
/// nothing new shall begin.
async fn end<L: Link>(
    core: &Arc<Core<L>>,
    pool: Pool,
    execution: &ExecutionId,
    queue: &super::hands::Queue,
    ended: Ended,
) -> Option<Job> {
    let Ended { outcome, lag_ms, took } = ended;
    let took_ms = took.map_or(0, |took| i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
    let ExecutionId { id, grant } = *execution;
    let failed = outcome.is_failure();
    let row = AckRow { id, grant, outcome, lag_ms, took_ms };
    let mut journal = core.journal.as_ref();
    if !core.acks.try_reserve() {
        // It may have to wait for long; what is known is written down before.
        if let Some(journal) = journal.take() {
            journal.sync(journal.finish(&row, None)).await;
        }
        core.acks.reserve().await;
    }
    let now = core.link.mono();
    let took_ms = took.map(|took| took.as_secs_f64() * 1_000.0);
    let mut next = core.hands.finish(execution, pool, queue, End::Outcome { took_ms, failed }, now);
    if let Some(journal) = journal {
        let sure = next.as_mut().filter(|next| !next.must_ask);
        let mark = journal.finish(&row, sure.as_ref().map(|next| &next.task.execution));
        if let Some(next) = sure {
            next.begun = true;
        }
        journal.sync(mark).await;
    }
    core.acks.push(row, now);
    next
}

/// Leaves a task to whoever reports its outcome: its lease is made as long as that may take.
async fn let_go<L: Link>(
    core: &Arc<Core<L>>,
    pool: Pool,
    execution: &ExecutionId,
    queue: &super::hands::Queue,
    lease_ms: i64,
) -> Option<Job> {
    let ExecutionId { id, grant } = *execution;
    let row = StartRow { id, grant, lease_ms };
    if let Err(error) = core.link.start(id.bucket(), &[row]).await {
        tracing::warn!(%execution, %error, "could not lengthen the lease of a task that is reported later");
    }
    core.settle(&[*execution]);
    core.hands.finish(execution, pool, queue, End::Dropped, core.link.mono())
}

fn give_back<L: Link>(
    core: &Arc<Core<L>>,
    pool: Pool,
    execution: &ExecutionId,
    queue: &super::hands::Queue,
) -> Option<Job> {
    core.given_back.lock().push((execution.id, execution.grant));
    core.settle(&[*execution]);
    core.hands.finish(execution, pool, queue, End::Dropped, core.link.mono())
}

/// Has a `start` accepted before the handler runs. None: this executor closes first.
async fn ask<L: Link>(core: &Core<L>, execution: &ExecutionId) -> Option<Verdict> {
    let told = core.hands.ask_start(execution, core.link.mono());
    core.wake_keeper.notify_one();
    tokio::select! {
        biased;
        verdict = told => verdict.ok(),
        () = core.closing.cancelled() => None,
    }
}

/// Runs the handler until it answers, or until it was told to stop and took too long.
async fn run_handler<L: Link>(
    core: &Core<L>,
    handler: &mut Guarded,
    signal: &super::handler::Signal,
    time_out: Option<Duration>,
) -> Ran {
    let timer = async {
        match time_out {
            Some(time_out) => tokio::time::sleep(time_out).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        result = handler.run() => return Ran::Answered(result),
        () = core.kill.cancelled() => return Ran::Dropped,
        () = signal.fired() => {}
        () = timer => signal.fire(Stop::TimedOut),
    }
    tokio::select! {
        biased;
        result = handler.run() => Ran::Answered(result),
        () = core.kill.cancelled() => Ran::Dropped,
        () = tokio::time::sleep(core.stop_grace) => Ran::Dropped,
    }
}

fn outcome_of(error: HandlerError) -> Outcome {
    let (error, then) = error.into_parts();
    let error = tail(error);
    match then {
        Then::Retry => Outcome::Failed { error },
        Then::Die => Outcome::Fatal { error },
        Then::RetryAfter { ms, counted } => Outcome::RetryAfter { ms, counted, error },
        // Whoever answers it is not asked again.
        Then::Later { .. } => Outcome::Failed { error },
    }
}

/// A handler whose panics are failures, wherever they happen: in the call, while it runs, or in its drop.
enum Guarded {
    Running(HandlerFuture),
    Panicked(HandlerError),
    Ended,
}

impl Guarded {
    fn start(call: impl FnOnce() -> HandlerFuture) -> Self {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(future) => Self::Running(future),
            Err(panic) => Self::Panicked(panicked(&*panic)),
        }
    }

    async fn run(&mut self) -> HandlerResult {
        poll_fn(|cx| match self {
            Self::Running(future) => match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                Ok(poll) => poll,
                Err(panic) => Poll::Ready(Err(panicked(&*panic))),
            },
            Self::Panicked(error) => Poll::Ready(Err(error.clone())),
            Self::Ended => Poll::Pending,
        })
        .await
    }

    fn drop_quietly(&mut self) {
        let handler = std::mem::replace(self, Self::Ended);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
            tracing::warn!(error = %panicked(&*panic), "a handler panicked while it was dropped");
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> HandlerError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    HandlerError::failed(format!("handler panicked: {text}"))
}
