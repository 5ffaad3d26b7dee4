//! From a new task to a row in its bucket.

use super::defaults::{Defaults, Resolved};
use super::{ClientError, is_refusal, patience, repeat, with_patience};
use crate::clock;
use crate::limits;
use crate::metric;
use crate::model::field::{FieldError, Reason};
use crate::model::lane::Tier;
use crate::model::route::WEBHOOK;
use crate::model::spec::{Extras, check_key};
use crate::model::{
    Bucket, Durability, Key, Labels, LaneCode, LaneGroup, PlanName, Priority, QueueName, Retry, Spec, TaskId,
    UnixMs,
};
use crate::store::intake::{self, Backlog, Row, RowAnswer, Sending, SubmitAnswer};
use crate::store::{Shortfall, Space, StoreError, queue};
use crate::webhook;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

/// When a task is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// So many ms after Redis's time of now.
    In(i64),
    /// At an instant; a past one means at once.
    At(UnixMs),
}

impl Due {
    /// The due time as seen at `now`, checked against the limits.
    pub fn resolve(self, now: UnixMs) -> Result<UnixMs, FieldError> {
        match self {
            Self::Now => Ok(now),
            Self::In(ms) if ms < 0 => {
                Err(FieldError::new("due", Reason::OutOfRange, format!("a delay of {ms} ms is negative")))
            }
            Self::In(ms) => now.plus(ms).checked_due(now),
            Self::At(at) => at.checked_due(now),
        }
    }
}

/// A task to be submitted. All but the queue has a default: what is not there is what the queue says, else the
/// installation. A time of 0 means none.
///
/// ```
/// use minutehand::client::{Due, NewTask};
/// use minutehand::model::{Priority, QueueName};
/// let task = NewTask {
///     due: Due::In(10_000),
///     priority: Priority::P1,
///     payload: "hello".into(),
///     ..NewTask::to(QueueName::new("push.sms").unwrap())
/// };
/// assert_eq!(task.retries, None);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// The queue.
    pub queue: QueueName,
    /// Labels that an executor must have.
    pub labels: Labels,
    /// How urgent it is.
    pub priority: Priority,
    /// When it is due.
    pub due: Due,
    /// Tries after the first one, 0 to 254.
    pub retries: Option<u32>,
    /// Waits before them; its own number of retries counts for nothing.
    pub backoff: Option<Retry>,
    /// Idempotency key.
    pub key: Option<Key>,
    /// Placement key: recipient, tenant or order.
    pub placement: Option<Bytes>,
    /// Plan it belongs to.
    pub plan: Option<PlanName>,
    /// Total time-out: it expires this long after it was due, wherever it is then.
    pub expire_after_ms: Option<i64>,
    /// It is skipped when it has not started this long after it was due.
    pub start_within_ms: Option<i64>,
    /// Lease of the started task.
    pub lease_ms: Option<u32>,
    /// Longest run of its handler.
    pub timeout_ms: Option<u32>,
    /// How safe it must be before its submit answers.
    pub durability: Durability,
    /// What only clients and executors read.
    pub extras: Extras,
    /// The payload, opaque.
    pub payload: Bytes,
}

impl NewTask {
    /// A task of a queue: due now, P3, no key, no payload.
    pub fn to(queue: QueueName) -> Self {
        Self {
            queue,
            labels: Labels::default(),
            priority: Priority::default(),
            due: Due::Now,
            retries: None,
            backoff: None,
            key: None,
            placement: None,
            plan: None,
            expire_after_ms: None,
            start_within_ms: None,
            lease_ms: None,
            timeout_ms: None,
            durability: Durability::default(),
            extras: Extras::default(),
            payload: Bytes::new(),
        }
    }

    fn group(&self) -> LaneGroup {
        LaneGroup { queue: self.queue.clone(), labels: self.labels.clone() }
    }

    fn into_spec(self, group: u32, now: UnixMs, resolved: Resolved) -> Result<Spec, FieldError> {
        let due = self.due.resolve(now)?;
        let later = |field, ms: Option<i64>| match ms {
            Some(ms) if ms <= 0 => {
                Err(FieldError::new(field, Reason::OutOfRange, format!("{ms} ms is not positive")))
            }
            Some(ms) => Ok(Some(UnixMs(due.plus(ms).0.min(limits::DUE_MAX_MS)))),
            None => Ok(None),
        };
        let spec = Spec {
            lane: LaneCode::new(group, self.priority, Tier::FRESH),
            due,
            retry: resolved.retry,
            key: self.key,
            placement: self.placement,
            plan: self.plan,
            deadline: later("expire_after", resolved.expire_after_ms)?,
            start_before: later("start_within", resolved.start_within_ms)?,
            lease_ms: resolved.lease_ms,
            timeout_ms: resolved.timeout_ms,
            bound: false,
            extras: self.extras,
            payload: self.payload,
        };
        spec.check()?;
        Ok(spec)
    }
}

/// A task that stands in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Submitted {
    /// The id that stands: the new task's, or that of the first with its key.
    pub id: TaskId,
    /// Whether this call made it; else its key was taken.
    pub created: bool,
    /// When the task of this call was to be due.
    pub due: UnixMs,
    /// Redis's time of the call.
    pub now: UnixMs,
}

/// Why one task of a batch was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A field was refused.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Sent again too late to tell whether the first sending arrived.
    #[error("it is not known whether task {0} was created; use an idempotency key to make this exact")]
    FateUnknown(TaskId),
    /// Its queue has as many tasks as it may that have not ended, at least where this one may lie. Nothing was made.
    #[error(
        "queue {queue} has as many tasks that have not ended as it may ({most}); try again when some have"
    )]
    OverBacklog {
        /// The queue.
        queue: QueueName,
        /// Its bound.
        most: u64,
    },
    /// It is not as safe as it was to be. It may stand all the same; to submit it again by its key is safe.
    #[error("not durable: task {id} was to be as safe as {}, but {lacks}", lacks.level)]
    NotDurable {
        /// The task.
        id: TaskId,
        /// What is missing.
        lacks: Shortfall,
    },
}

impl From<SubmitError> for ClientError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Field(error) => Self::Field(error),
            SubmitError::FateUnknown(id) => Self::FateUnknown(id),
            SubmitError::OverBacklog { queue, most } => Self::OverBacklog { queue, most },
            SubmitError::NotDurable { id, lacks } => Self::NotDurable { id, lacks },
        }
    }
}

/// Rows a script gets at most from here: larger ones gain nothing and hold Redis longer.
const CALL_ROWS: usize = 500;
/// Calls of one batch that are under way at a time.
const CALLS_AT_ONCE: usize = 4;

struct Pending {
    at: usize,
    row: Row,
    by_spread: bool,
    durability: Durability,
}

/// Bucket, whether it was chosen by the spread, how safe they must be, whether they may replace others.
type Shared = (Bucket, bool, Durability, bool);

/// Submits tasks; answers each, in order.
pub(super) async fn submit_batch(
    space: &Space,
    defaults: &Defaults,
    tasks: Vec<NewTask>,
) -> Result<Vec<Result<Submitted, SubmitError>>, ClientError> {
    let mut codes: HashMap<LaneGroup, u32> = HashMap::new();
    let mut answers: Vec<Option<Result<Submitted, SubmitError>>> = vec![None; tasks.len()];
    let spread = space.keep_spread().await?;
    let queues = match queue::settings(space).await {
        Ok(queues) => queues,
        // What was read before holds for as long as nothing newer can be had.
        Err(error) => queue::known_settings(space).ok_or(error)?,
    };
    let now = UnixMs(space.clock().now_ms());
    let mut rows = Vec::with_capacity(tasks.len());
    let mut last: Option<(LaneGroup, u32)> = None;
    let mut turn = fastrand::u16(..);
    let mut last_bound: Option<Arc<Backlog>> = None;
    for (at, mut task) in tasks.into_iter().enumerate() {
        if let Some(url) = &task.extras.url {
            let checked = webhook::check_address(url)
                .map_err(|why| FieldError::new("url", Reason::InvalidType, why))
                .and_then(|()| task.labels.with(WEBHOOK));
            match checked {
                Ok(labels) => task.labels = labels,
                Err(error) => {
                    answers[at] = Some(Err(error.into()));
                    continue;
                }
            }
        }
        if let Some(text) = task.extras.notify.take().filter(|text| !text.is_empty()) {
            match super::outcomes::named(space, &queues, &text).await {
                Ok(name) => task.extras.notify = Some(name),
                Err(ClientError::Field(error)) => {
                    answers[at] = Some(Err(error.into()));
                    continue;
                }
                Err(error) => return Err(error),
            }
        } else if !queues.subscriptions.is_empty() {
            let key = task.key.as_ref().map(|key| &key.bytes[..]);
            let plan = task.plan.as_ref().map(PlanName::as_str);
            let announced = queues.announces(task.queue.as_str(), plan, key);
            task.extras.notify = announced.then(String::new);
        }
        let group = match &last {
            Some((group, code)) if group.queue == task.queue && group.labels == task.labels => *code,
            _ => {
                let group = task.group();
                let code = match codes.get(&group) {
                    Some(code) => *code,
                    None => space.lane_group(&group).await?,
                };
                codes.insert(group.clone(), code);
                last = Some((group, code));
                code
            }
        };
        if let Some(placement) = &task.placement
            && let Err(error) = check_key("placement", placement)
        {
            answers[at] = Some(Err(error.into()));
            continue;
        }
        let durability = task.durability;
        let own = queues.of(&task.queue);
        let resolved = defaults.resolve(&task, own);
        let backlog = own.backlog.map(|most| {
            let same = last_bound.take().filter(|last| last.queue == task.queue && last.most == most);
            let own = same.unwrap_or_else(|| Arc::new(Backlog { queue: task.queue.clone(), most }));
            Arc::clone(last_bound.insert(own))
        });
        match resolved.and_then(|resolved| task.into_spec(group, now, resolved)) {
            Ok(spec) => {
                let spec = Spec { bound: backlog.is_some(), ..spec };
                let key = spec.placement.as_ref().or(spec.key.as_ref().map(|key| &key.bytes));
                let fixed = key.map(|key| Bucket::of_key(key, spread.key_buckets));
                if at % CALL_ROWS == 0 {
                    turn = turn.wrapping_add(1);
                }
                let bucket = fixed.or_else(|| Bucket::new(turn % spread.buckets)).unwrap_or_default();
                let id = TaskId::new(spec.due.minute(), bucket, fastrand::u64(..));
                let collapse = own.placement.as_ref().and_then(|own| own.collapse);
                let collapse = collapse.filter(|_| spec.placement.is_some());
                let row = Row { backlog, collapse, ..Row::new(id, spec) };
                rows.push(Pending { at, row, by_spread: fixed.is_none(), durability });
            }
            Err(error) => answers[at] = Some(Err(error.into())),
        }
    }
    send(space, rows, &mut answers).await?;
    // Every row was either refused or sent, and what was sent is answered.
    Ok(answers.into_iter().flatten().collect())
}

async fn send(
    space: &Space,
    rows: Vec<Pending>,
    answers: &mut [Option<Result<Submitted, SubmitError>>],
) -> Result<(), ClientError> {
    let mut calls: Vec<Vec<Pending>> = Vec::new();
    // By what rows of one call share.
    let mut open: HashMap<Shared, (Vec<Pending>, usize)> = HashMap::new();
    for pending in rows {
        let collapses = pending.row.collapse.is_some();
        let most = if collapses { limits::SINGLE_MAX_ROWS } else { CALL_ROWS };
        let key = (pending.row.id.bucket(), pending.by_spread, pending.durability, collapses);
        let size = pending.row.bytes.len() + 128;
        let (call, bytes) = open.entry(key).or_default();
        if !call.is_empty() && (call.len() >= most || *bytes + size > limits::BATCH_MAX_BYTES) {
            calls.push(std::mem::take(call));
            *bytes = 0;
        }
        *bytes += size;
        call.push(pending);
    }
    calls.extend(open.into_values().map(|(call, _)| call));
    let mut running = JoinSet::new();
    let mut calls = calls.into_iter();
    loop {
        while running.len() < CALLS_AT_ONCE {
            let Some(call) = calls.next() else { break };
            let space = space.clone();
            running.spawn(with_patience(patience(), async move { send_call(&space, call).await }));
        }
        match running.join_next().await {
            None => return Ok(()),
            Some(Ok(done)) => {
                for (at, answer) in done? {
                    answers[at] = Some(answer);
                }
            }
            Some(Err(_)) => return Err(ClientError::Store(StoreError::Closed)),
        }
    }
}

type Answered = Vec<(usize, Result<Submitted, SubmitError>)>;

/// Sends one call's rows until they are answered. After an error they are sent again as such, so that
/// what arrived is not made twice; a closed bucket's rows move to another.
async fn send_call(space: &Space, call: Vec<Pending>) -> Result<Answered, ClientError> {
    let start = clock::mono();
    let (mut first_sent, mut wait_ms) = (None, 20);
    // All rows of a call share their bucket and how they are sent.
    let Some(head) = call.first() else { return Ok(Vec::new()) };
    let (mut bucket, by_spread, durability) = (head.row.id.bucket(), head.by_spread, head.durability);
    let (mut places, mut rows): (Vec<usize>, Vec<Row>) =
        call.into_iter().map(|pending| (pending.at, pending.row)).unzip();
    let mut done: Answered = Vec::with_capacity(rows.len());
    let mut tried = vec![bucket];
    loop {
        let again_after_ms = first_sent.map(clock::elapsed_ms);
        let sending = Sending { again_after_ms, by_spread, durability };
        let sent = clock::mono();
        // Rows that may replace others go by themselves.
        let answer = match rows.first() {
            Some(Row { collapse: Some(_), .. }) => intake::collapse(space, bucket, "", &rows, sending).await,
            _ => intake::submit(space, bucket, &rows, sending).await,
        };
        match answer {
            Ok(SubmitAnswer::Rows { answers, now, lacks }) => {
                count(&answers);
                let (mut late_places, mut late) = (Vec::new(), Vec::new());
                for ((at, row), answer) in places.into_iter().zip(rows).zip(answers) {
                    let (id, created) = match answer {
                        RowAnswer::Created => (row.id, true),
                        RowAnswer::Duplicate(id) => (id, false),
                        RowAnswer::FateUnknown => {
                            done.push((at, Err(SubmitError::FateUnknown(row.id))));
                            continue;
                        }
                        // Another bucket may have room.
                        RowAnswer::OverBacklog if by_spread && tried.len() < most_tries(space) => {
                            late_places.push(at);
                            late.push(row);
                            continue;
                        }
                        RowAnswer::OverBacklog => {
                            let Backlog { queue, most } =
                                row.backlog.as_deref().cloned().ok_or_else(unasked)?;
                            done.push((at, Err(SubmitError::OverBacklog { queue, most })));
                            continue;
                        }
                        RowAnswer::SpreadChanged => {
                            late_places.push(at);
                            late.push(row);
                            continue;
                        }
                    };
                    let answer = match lacks {
                        Some(lacks) => Err(SubmitError::NotDurable { id, lacks }),
                        None => Ok(Submitted { id, created, due: row.spec.due, now }),
                    };
                    done.push((at, answer));
                }
                if late.is_empty() {
                    return Ok(done);
                }
                (places, rows) = (late_places, late);
                bucket = elsewhere(space, &mut rows, &mut tried).await?;
                first_sent = None;
            }
            Ok(SubmitAnswer::SpreadChanged) => {
                bucket = elsewhere(space, &mut rows, &mut tried).await?;
                first_sent = None;
            }
            Err(error) if error.is_retryable() && !is_refusal(&error) && start.elapsed() < patience() => {
                if error.fate_unknown() {
                    first_sent = first_sent.or(Some(sent));
                }
                tracing::debug!(%error, rows = rows.len(), "submit is repeated");
                tokio::time::sleep(Duration::from_millis(fastrand::u64(wait_ms / 2..=wait_ms))).await;
                wait_ms = (wait_ms * 2).min(limits::RECONNECT_MAX_MS);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Buckets in which a task may be tried that may lie in any of them.
fn most_tries(space: &Space) -> usize {
    limits::BACKLOG_TRIES_MAX.min(usize::from(space.spread().buckets))
}

fn unasked() -> StoreError {
    StoreError::BadReply { script: "intake.submit", what: "a bound was met that nobody asked for".to_owned() }
}

/// Gives rows that a closed or full bucket refused another one, if there is one that was not tried, and so new ids:
/// none of them was made.
async fn elsewhere(space: &Space, rows: &mut [Row], tried: &mut Vec<Bucket>) -> Result<Bucket, ClientError> {
    let spread = repeat(space, || space.refresh_spread()).await?;
    let left: Vec<Bucket> =
        (0..spread.buckets).filter_map(Bucket::new).filter(|bucket| !tried.contains(bucket)).collect();
    let any = || Bucket::new(fastrand::u16(0..spread.buckets)).unwrap_or_default();
    let bucket = fastrand::choice(&left).copied().unwrap_or_else(any);
    tried.push(bucket);
    for row in rows {
        row.id = TaskId::new(row.spec.due.minute(), bucket, fastrand::u64(..));
    }
    Ok(bucket)
}

fn count(answers: &[RowAnswer]) {
    let of = |wanted: fn(&RowAnswer) -> bool| answers.iter().filter(|answer| wanted(answer)).count() as u64;
    let submitted = &metric::handles().tasks_submitted;
    submitted.add("created", of(|answer| *answer == RowAnswer::Created));
    submitted.add("duplicate", of(|answer| matches!(answer, RowAnswer::Duplicate(_))));
    submitted.add("over_backlog", of(|answer| *answer == RowAnswer::OverBacklog));
    submitted.add("fate_unknown", of(|answer| *answer == RowAnswer::FateUnknown));
}

type One = (NewTask, oneshot::Sender<Result<Submitted, ClientError>>);

/// Gathers single submits that are made at the same time into shared calls. It waits for nothing:
/// what comes while calls are under way goes with the next one.
#[derive(Debug)]
pub(super) struct Batcher {
    queue: mpsc::Sender<One>,
}

impl Batcher {
    pub fn start(space: Space, defaults: Defaults) -> Self {
        let (queue, mut tasks) = mpsc::channel::<One>(limits::COMMAND_BUFFER_MAX);
        tokio::spawn(async move {
            let permits = Arc::new(Semaphore::new(CALLS_AT_ONCE));
            loop {
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                let mut batch = Vec::new();
                if tasks.recv_many(&mut batch, limits::BATCH_MAX_ROWS).await == 0 {
                    return;
                }
                let space = space.clone();
                tokio::spawn(async move {
                    let (tasks, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                    match submit_batch(&space, &defaults, tasks).await {
                        Ok(done) => {
                            for (answer, to) in done.into_iter().zip(answers) {
                                let _ = to.send(answer.map_err(ClientError::from));
                            }
                        }
                        Err(error) => {
                            for to in answers {
                                let _ = to.send(Err(error.clone()));
                            }
                        }
                    }
                    drop(permit);
                });
            }
        });
        Self { queue }
    }

    pub async fn submit(&self, task: NewTask) -> Result<Submitted, ClientError> {
        let (to, answer) = oneshot::channel();
        let closed = || ClientError::Store(StoreError::Closed);
        self.queue.send((task, to)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_exact_and_total() {
        let now = UnixMs(1_764_511_260_123);
        for ms in [0, 2_147_483_647, 2_147_483_648, 4_294_967_296, limits::DUE_AHEAD_MAX_MS] {
            assert_eq!(Due::In(ms).resolve(now), Ok(now.plus(ms)));
        }
        for ms in [-1, i64::MIN, i64::MAX, limits::DUE_AHEAD_MAX_MS + 1] {
            assert_eq!(Due::In(ms).resolve(now).unwrap_err().reason, Reason::OutOfRange, "{ms}");
        }
        assert_eq!(Due::At(UnixMs(5)).resolve(now), Ok(now));
    }
}
