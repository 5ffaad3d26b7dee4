//! The SDK for those who have work to be done: submit, look up, cancel, move, and see how things stand.
//!
//! Every door (the CLI, HTTP, a program of yours) goes through [`Client`], so all of them check alike.

mod access;
mod buckets;
mod dead;
mod defaults;
mod edit;
mod executors;
mod history;
mod holds;
mod outcomes;
mod query;
mod queues;
mod quota;
mod stream;
mod submit;

pub use access::{NewToken, token_fits, token_hash};
pub use buckets::{AgendaView, BoundsChange, BucketView, SpreadView};
pub use dead::{DeadCursor, DeadFilter, DeadView, Redriven};
pub use defaults::Defaults;
pub use edit::{Edit, Edited};
pub use executors::{Drained, ExecutorView, Pools};
pub use history::{EventPlace, EventTail, Trace};
pub use holds::{BreakerStatus, HeldQueue, Holds};
pub use outcomes::{Behind, OutcomeBatch, OutcomeStream, SubscriptionView};
pub use query::{BucketStatus, Counts, LagStatus, RedisStatus, Status, TaskView};
pub use queues::{DownstreamChange, DownstreamView, QueueChange, QueueStats, QueueView, RetriesChange};
pub use quota::Quota;
pub use stream::{StreamProgress, StreamSettings, SubmitStream};
pub use submit::{Due, NewTask, SubmitError, Submitted};

use crate::limits;
use crate::model::field::FieldError;
use crate::model::seal::KeyRing;
use crate::model::{Namespace, TaskId, UnixMs};
use crate::store::intake::{self, WishAnswer};
use crate::store::queue::{self, Freeze, Scope};
use crate::store::{ConnectSettings, Shortfall, Space, Store, StoreError, member};
use std::sync::Arc;
use std::time::Duration;

/// Where a client connects and how long it tries.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// How Redis is reached.
    pub redis: ConnectSettings,
    /// The namespace.
    pub namespace: Namespace,
}

/// Why a call to a client failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// A field was refused; nothing was changed.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Redis did not answer, or not well.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such task, or it ended too long ago.
    #[error("there is no task {0}, or it ended too long ago to be remembered")]
    NotFound(TaskId),
    /// The wish cannot be granted in the task's state.
    #[error("task {id} is {state}; {advice}")]
    WrongState {
        /// The task.
        id: TaskId,
        /// Its state.
        state: String,
        /// What can be done.
        advice: &'static str,
    },
    /// A task is not as safe as it was to be. It may stand all the same; to submit it again by its
    /// idempotency key is safe.
    #[error("not durable: task {id} was to be as safe as {}, but {lacks}; it may or may not outlive a failure", lacks.level)]
    NotDurable {
        /// The task.
        id: TaskId,
        /// What is missing.
        lacks: Shortfall,
    },
    /// A queue has as many tasks as it may that have not ended; nothing was changed.
    #[error(
        "queue {queue} has as many tasks that have not ended as it may ({most}); try again when some have"
    )]
    OverBacklog {
        /// The queue.
        queue: crate::model::QueueName,
        /// Its bound.
        most: u64,
    },
    /// The namespace holds as much as it may; nothing was changed.
    #[error(
        "the namespace has a quota of {most} {field}, and there is no room for more; try again when tasks have ended, or \
         raise it"
    )]
    OverQuota {
        /// What there is too much of: `tasks` or `bytes`.
        field: &'static str,
        /// The quota.
        most: u64,
    },
    /// Somebody else has changed it meanwhile; nothing was changed.
    #[error("{what} has version {stands}, not {wanted}: somebody else changed it; look again")]
    Conflict {
        /// What was to be changed.
        what: String,
        /// The version that was to be replaced.
        wanted: u64,
        /// The one that stands; 0 where there is none.
        stands: u64,
    },
    /// A submit was repeated too late to tell whether its first sending arrived.
    #[error(
        "it is not known whether task {0} was created: its first sending got no answer for over two minutes; use an idempotency key to make this exact"
    )]
    FateUnknown(TaskId),
}

/// How long a freeze waits for the pods to follow.
const FOLLOW_MAX: Duration = Duration::from_secs(4);

/// What is frozen after a call, and who has heard of it.
#[derive(Debug, Clone, serde::Serialize, utoipa::ToSchema)]
pub struct Frost {
    /// What is frozen now.
    #[serde(flatten)]
    pub freeze: Freeze,
    /// Whether this call changed it.
    pub changed: bool,
    /// Live pods that do not follow yet; those that are dead without being missed yet are among them.
    pub pods_behind: Vec<String>,
}

/// What a cancel did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// The task was pending, or had been cancelled before: it will not run.
    Done,
    /// The task runs; it was asked to stop.
    Asked {
        /// Pod or executor that holds it.
        holder: String,
    },
}

/// A connection for those who have work to be done. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
    keys: Option<Arc<KeyRing>>,
}

#[derive(Debug)]
struct Inner {
    space: Space,
    defaults: Defaults,
    batcher: submit::Batcher,
    quota: quota::QuotaWatch,
}

impl Client {
    /// Connects to Redis and opens a namespace.
    pub async fn connect(settings: ClientSettings) -> Result<Self, ClientError> {
        let store = Store::connect(settings.redis).await?;
        Ok(Self::new(Space::open(store, settings.namespace).await?))
    }

    /// A client on a space that is open already. Must be called within a tokio runtime.
    pub fn new(space: Space) -> Self {
        Self::with_defaults(space, Defaults::default())
    }

    /// The same, where the installation has defaults of its own for tasks. Must be called within a tokio runtime.
    pub fn with_defaults(space: Space, defaults: Defaults) -> Self {
        let batcher = submit::Batcher::start(space.clone(), defaults);
        let inner = Inner { space, defaults, batcher, quota: quota::QuotaWatch::default() };
        Self { inner: Arc::new(inner), keys: None }
    }

    /// The same with keys: payloads are sealed before they leave, and opened when they are looked at.
    #[must_use]
    pub fn with_keys(mut self, keys: Arc<KeyRing>) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Seals a task's payload, where there are keys and nobody has sealed it yet.
    fn sealed(&self, task: NewTask) -> Result<NewTask, ClientError> {
        seal(self.space(), self.keys.as_deref(), task)
    }

    /// The space.
    pub fn space(&self) -> &Space {
        &self.inner.space
    }

    /// Submits one task. Calls made at the same time share their round trips.
    ///
    /// Safe to repeat by an idempotency key; a lost reply is asked for again within.
    pub async fn submit(&self, task: NewTask) -> Result<Submitted, ClientError> {
        self.within_quota(std::slice::from_ref(&task)).await?;
        self.inner.batcher.submit(self.sealed(task)?).await
    }

    /// Submits any number of tasks; answers each, in order.
    ///
    /// `Err` means that Redis was lost on the way: the tasks may or may not stand, and those with an
    /// idempotency key are safe to send again.
    pub async fn submit_batch(
        &self,
        tasks: Vec<NewTask>,
    ) -> Result<Vec<Result<Submitted, SubmitError>>, ClientError> {
        self.within_quota(&tasks).await?;
        let tasks = tasks.into_iter().map(|task| self.sealed(task)).collect::<Result<_, _>>()?;
        submit::submit_batch(&self.inner.space, &self.inner.defaults, tasks).await
    }

    /// A stream of tasks with back-pressure, for large plans.
    pub fn stream(&self, settings: StreamSettings) -> SubmitStream {
        SubmitStream::start(self.clone(), settings)
    }

    /// Cancels a task. `who` and `cause` go into its history.
    pub async fn cancel(&self, id: TaskId, who: &str, cause: &str) -> Result<Cancelled, ClientError> {
        let space = self.space();
        let ids = [id];
        let answers = repeat(space, || intake::cancel(space, id.bucket(), who, cause, &ids)).await?;
        match answers.into_iter().next().unwrap_or(WishAnswer::Unknown) {
            WishAnswer::Done => Ok(Cancelled::Done),
            WishAnswer::Running { holder } => {
                // A hint; the executor hears of the flag at its next renewal anyway.
                let wish = format!("c{id}");
                // The holder is an executor, or the pod that has just handed the task out.
                let (executor, pod) = tokio::join!(
                    member::tell_executor(space, &holder, wish.as_bytes()),
                    member::tell_pod_cancel(space, &holder, id),
                );
                let _ = executor.and(pod);
                Ok(Cancelled::Asked { holder })
            }
            other => Err(wrong_state(id, other)),
        }
    }

    /// Gives a pending task another due time; answers the due time that stands.
    pub async fn reschedule(&self, id: TaskId, due: Due, who: &str) -> Result<UnixMs, ClientError> {
        let space = self.space();
        let due = due.resolve(UnixMs(space.clock().now_ms()))?;
        match repeat(space, || intake::reschedule(space, who, id, due)).await? {
            WishAnswer::Done => Ok(due),
            other => Err(wrong_state(id, other)),
        }
    }

    /// What is frozen.
    pub async fn frozen(&self) -> Result<Freeze, ClientError> {
        let space = self.space();
        Ok(repeat(space, || queue::frozen(space)).await?)
    }

    /// Freezes a queue or everything, and waits until all live pods follow.
    pub async fn freeze(&self, scope: &Scope, who: &str, cause: &str) -> Result<Frost, ClientError> {
        let space = self.space();
        let (freeze, changed) = repeat(space, || queue::freeze(space, scope, who, cause)).await?;
        self.followed(freeze, changed).await
    }

    /// Thaws a queue or everything, and waits until all live pods follow.
    pub async fn thaw(&self, scope: &Scope, who: &str) -> Result<Frost, ClientError> {
        let space = self.space();
        let (freeze, changed) = repeat(space, || queue::thaw(space, scope, who)).await?;
        self.followed(freeze, changed).await
    }

    async fn followed(&self, freeze: Freeze, changed: bool) -> Result<Frost, ClientError> {
        let (space, start) = (self.space(), crate::clock::mono());
        loop {
            let pods = repeat(space, || member::pods(space)).await?;
            let behind = pods.iter().filter(|pod| pod.freeze_epoch < freeze.epoch);
            let pods_behind: Vec<String> = behind.map(|pod| pod.id.clone()).collect();
            if pods_behind.is_empty() || start.elapsed() >= FOLLOW_MAX {
                return Ok(Frost { freeze, changed, pods_behind });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Gives a pending task another priority.
    pub async fn reprioritize(
        &self,
        id: TaskId,
        priority: crate::model::Priority,
        who: &str,
    ) -> Result<(), ClientError> {
        let space = self.space();
        match repeat(space, || intake::reprioritize(space, who, id, priority)).await? {
            WishAnswer::Done => Ok(()),
            other => Err(wrong_state(id, other)),
        }
    }
}

/// Seals a task's payload, where there are keys and nobody has sealed it yet.
fn seal(space: &Space, keys: Option<&KeyRing>, mut task: NewTask) -> Result<NewTask, ClientError> {
    if let Some(keys) = keys.filter(|_| task.extras.sealed.is_none()) {
        let mut nonce = [0; crate::model::seal::NONCE_BYTES];
        access::random(&mut nonce)?;
        let sealed = keys.seal(space.namespace(), &task.queue, &task.payload, nonce);
        let (name, payload) = sealed.map_err(|error| {
            FieldError::new("payload", crate::model::Reason::InvalidType, error.to_string())
        })?;
        (task.extras.sealed, task.payload) = (Some(name), payload);
    }
    Ok(task)
}

fn wrong_state(id: TaskId, answer: WishAnswer) -> ClientError {
    let (state, advice) = match answer {
        WishAnswer::Unknown => return ClientError::NotFound(id),
        WishAnswer::Running { .. } => ("running".to_owned(), "it has started already; cancel it instead"),
        WishAnswer::Dead => ("dead".to_owned(), "it is a dead letter; redrive or delete it"),
        WishAnswer::Ended(state) => (state.to_string(), "it has ended; submit a new one"),
        WishAnswer::Done => ("pending".to_owned(), "try again"),
    };
    ClientError::WrongState { id, state, advice }
}

/// Longest time in which a call is repeated after errors that pass by themselves.
const REPEAT_MAX: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// The same for callers that would rather hear of them.
    static PATIENCE: Duration;
}

/// Runs `work`, whose calls are repeated for at most so long.
pub(crate) async fn with_patience<F: Future>(most: Duration, work: F) -> F::Output {
    PATIENCE.scope(most, work).await
}

fn patience() -> Duration {
    PATIENCE.try_with(|most| *most).unwrap_or(REPEAT_MAX)
}

/// Repeats an idempotent call while its errors are of the kind that passes, with growing waits.
async fn repeat<T, F>(space: &Space, mut call: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let start = crate::clock::mono();
    let mut wait_ms = 20;
    loop {
        match call().await {
            Err(error) if error.is_retryable() && start.elapsed() < patience() && !is_refusal(&error) => {
                tracing::debug!(%error, url = %space.store().url(), "call is repeated");
                tokio::time::sleep(Duration::from_millis(fastrand::u64(wait_ms / 2..=wait_ms))).await;
                wait_ms = (wait_ms * 2).min(limits::RECONNECT_MAX_MS);
            }
            answer => return answer,
        }
    }
}

/// Refusals that a caller should hear of at once: waiting a few seconds changes nothing.
fn is_refusal(error: &StoreError) -> bool {
    matches!(error.cause(), "oom" | "misconf" | "busy" | "noreplicas" | "readonly")
}
