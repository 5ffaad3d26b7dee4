//! Runs tasks: an inbox, slots, leases, acks, and an orderly end.
//!
//! ```no_run
//! use minutehand::executor::{Executor, HandlerError};
//! # async fn example(space: minutehand::store::Space) -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::builder(space)
//!     .name("push-eu-1")
//!     .slots(64)
//!     .handle("push.sms", |task, ctx| async move {
//!         if task.payload.is_empty() {
//!             return Err(HandlerError::fatal("nothing to say"));
//!         }
//!         tokio::select! {
//!             sent = send(&task.payload, task.execution_id.to_string()) => Ok(sent?),
//!             () = ctx.cancelled() => Err(HandlerError::failed("stopped")),
//!         }
//!     })
//!     .build()?;
//!
//! let shutdown = tokio_util::sync::CancellationToken::new();
//! let report = executor.run(shutdown).await?;
//! println!("{} sent", report.succeeded);
//! # Ok(()) }
//! # async fn send(_: &[u8], _: String) -> std::io::Result<()> { Ok(()) }
//! ```
//!
//! An offer's way: `inbox` takes it, `hands` holds it, `runner` runs its handler in a slot, `acks`
//! reports the outcome; meanwhile `keeper` renews its grant, and `journal`, where one is kept, writes
//! down what the next process must report should this one die. `link` is all that the runtime asks of
//! Redis. Handlers run on threads of their own: one that blocks its thread delays other handlers
//! and nothing else.
//!
//! A task is run *at least* once. Each attempt has a name of its own, `execution_id`; a handler
//! whose effects must not double passes it on as an idempotency key.
//!
//! Deliberately absent: blocking reads of the inbox (a cut one loses what it popped), and a lease
//! per executor (two executors under one name would hide each other's death; every grant has its own).

mod acks;
mod command;
pub mod door;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod handler;
mod hands;
mod inbox;
mod journal;
mod keeper;
mod layer;
mod link;
mod marks;
mod observe;
mod predecessor;
mod recover;
mod report;
mod runner;
mod stats;
mod timer;
mod transport;
mod trial;
mod webhook;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use crate::model::Progress;
pub use command::{discard, exec};
pub use handler::{Context, HandlerError, HandlerFuture, HandlerResult, Stop, Task};
pub use journal::JournalError;
pub use layer::Next;
pub use marks::MarkError;
pub use stats::{ExecutorReport, Lag, Stats};
pub use transport::{Local, Transport};
pub use trial::{Trial, Tried};
pub use webhook::{Webhook, WebhookSettings, http};

use crate::limits;
use crate::model::seal::KeyRing;
use crate::model::{FieldError, Labels, QueueName, Reason};
use crate::store::{Space, StoreError};
use handler::Handler;
use hands::{Hands, Keep, Queue, Size};
use inbox::Queues;
use journal::{Journal, Recovered};
use link::{ExecutorRecord, Link, SpaceLink};
use runner::Core;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use timer::Timer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longest part of an instance id that comes from the name; with the random part it has at most 32 bytes.
const ID_NAME_MAX_BYTES: usize = 19;
/// In the record of an executor that serves all queues.
pub const ANY_QUEUE: &str = "*";
/// Most queues that one executor names; one that serves more should serve all.
const QUEUES_MAX: usize = 1_024;
/// Of the drain grace, at most this much is kept for handlers to stop, hand-backs and the last acks.
const DRAIN_TAIL: Duration = Duration::from_secs(2);

/// What handlers spend their time with, which says how many may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkKind {
    /// They wait: for servers, disks, people. Eight for each processor.
    #[default]
    Io,
    /// They compute. One for each processor, and one that is ready when one ends.
    Cpu,
}

impl WorkKind {
    /// Slots for so many processors.
    pub fn slots(self, processors: usize) -> u32 {
        let slots = match self {
            Self::Io => processors.saturating_mul(8),
            Self::Cpu => processors.saturating_add(1),
        };
        slots.clamp(1, limits::SLOTS_MAX) as u32
    }
}

impl std::str::FromStr for WorkKind {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        match text {
            "io" => Ok(Self::Io),
            "cpu" => Ok(Self::Cpu),
            other => {
                let detail = format!("{} is neither io nor cpu", crate::model::field::shown(other));
                Err(FieldError::new("kind", Reason::BadName, detail))
            }
        }
    }
}

/// What an executor can be set to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorSettings {
    /// Its name in lists; the instance id gets a random part of its own. Empty: the host's name.
    pub name: String,
    /// Handlers that run at once; 0 for what suits [`Self::kind`].
    pub slots: u32,
    /// What the handlers spend their time with.
    pub kind: WorkKind,
    /// Slots beside these that only P0 and P1 may use.
    pub urgent_slots: u32,
    /// Tasks that it may fetch ahead of free slots. How many it does fetch follows from how long they
    /// run: what all slots together do in 10 ms, so none where runs are long.
    pub prefetch: u32,
    /// Labels it offers.
    pub labels: Vec<String>,
    /// How often it says that it lives.
    pub heartbeat_ms: u64,
    /// Longest gathering of outcomes while there are few of them.
    pub ack_gather_ms: u64,
    /// How long a shutdown may take in all.
    pub drain_grace_ms: u64,
    /// How long a handler that was told to stop may take before it is dropped.
    pub stop_grace_ms: u64,
    /// File in which begun and unreported work outlives this process; one for each executor.
    pub journal: Option<PathBuf>,
    /// Whether an outcome must be on the disk before it is reported, not only with the kernel.
    pub journal_fsync: bool,
}

impl Default for ExecutorSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            slots: 0,
            kind: WorkKind::default(),
            urgent_slots: 4,
            prefetch: hands::PREFETCH_MAX,
            labels: Vec::new(),
            heartbeat_ms: limits::HEARTBEAT_MS.unsigned_abs(),
            ack_gather_ms: limits::ACK_GATHER_MAX_MS,
            // Common platforms kill 30 s after they ask.
            drain_grace_ms: 25_000,
            stop_grace_ms: 5_000,
            journal: None,
            journal_fsync: false,
        }
    }
}

impl ExecutorSettings {
    /// Checks every field; names the one that is wrong.
    pub fn check(&self) -> Result<(), FieldError> {
        let range = |field, value: u64, low: u64, high: u64| {
            let detail = format!("{value} must lie between {low} and {high}");
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(FieldError::new(field, Reason::OutOfRange, detail))
            }
        };
        range("slots", self.slots.into(), 0, limits::SLOTS_MAX as u64)?;
        range("urgent_slots", self.urgent_slots.into(), 0, limits::SLOTS_MAX as u64)?;
        range("prefetch", self.prefetch.into(), 0, limits::SLOTS_MAX as u64)?;
        range("heartbeat_ms", self.heartbeat_ms, 100, limits::LOST_AFTER_MS.unsigned_abs() / 3)?;
        range("ack_gather_ms", self.ack_gather_ms, 0, limits::ACK_GATHER_MAX_MS)?;
        range("drain_grace_ms", self.drain_grace_ms, 0, 3_600_000)?;
        range("stop_grace_ms", self.stop_grace_ms, 0, 3_600_000)?;
        if !self.name.is_empty() {
            crate::model::lane::check_name("name", &self.name, limits::QUEUE_MAX_BYTES)?;
        }
        Labels::new(&self.labels).map(drop)
    }
}

/// Runs tasks of some queues with their handlers. Made by [`Executor::builder`].
pub struct Executor {
    space: Space,
    parts: Parts,
}

/// Collects what an [`Executor`] is made of.
pub struct ExecutorBuilder {
    space: Space,
    plan: Plan,
}

impl Executor {
    /// Begins an executor that takes its tasks from `space`.
    pub fn builder(space: Space) -> ExecutorBuilder {
        ExecutorBuilder { space, plan: Plan::default() }
    }

    /// Its instance id: the name and a random part.
    pub fn id(&self) -> &str {
        &self.parts.id
    }

    /// What it has done so far, live.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.parts.stats)
    }

    /// Runs until `shutdown` is cancelled, then ends in order: nothing is taken any more, what has not
    /// started goes back at once, running handlers may finish, and every outcome is reported.
    ///
    /// Returns within the drain grace, 25 s by default.
    pub async fn run(self, shutdown: CancellationToken) -> Result<ExecutorReport, ExecutorError> {
        self.run_until(shutdown, CancellationToken::new()).await
    }

    /// Like [`Executor::run`]; `now`, as for a second signal, ends it without waiting for handlers:
    /// they are dropped, and their tasks handed back.
    pub async fn run_until(
        self,
        shutdown: CancellationToken,
        now: CancellationToken,
    ) -> Result<ExecutorReport, ExecutorError> {
        let timer = Timer::new()?;
        let link = SpaceLink { space: self.space, id: Arc::clone(&self.parts.id), timer };
        // Behind a pointer, so that the caller's compiler need not look through all its layers.
        let running: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(run(link, self.parts, shutdown, now));
        running.await
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({})", self.parts.id)
    }
}

impl ExecutorBuilder {
    /// Takes all settings at once; those set after it count.
    pub fn settings(mut self, settings: ExecutorSettings) -> Self {
        self.plan.settings = settings;
        self
    }

    /// Its name in lists, the host's by default. Need not be unique: instances are told apart.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.plan.settings.name = name.into();
        self
    }

    /// How many handlers run at once. By default what suits their [`kind`](Self::kind).
    pub fn slots(mut self, slots: u32) -> Self {
        self.plan.settings.slots = slots;
        self
    }

    /// What the handlers spend their time with: by default they wait, and eight run for each processor.
    pub fn kind(mut self, kind: WorkKind) -> Self {
        self.plan.settings.kind = kind;
        self
    }

    /// How many slots beside these only P0 and P1 may use, 4 by default.
    pub fn urgent_slots(mut self, slots: u32) -> Self {
        self.plan.settings.urgent_slots = slots;
        self
    }

    /// Offers a label; tasks that ask for it come only where it is offered.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.plan.settings.labels.push(label.into());
        self
    }

    /// How long a shutdown may take in all, 25 s by default.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.plan.settings.drain_grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// How long a handler that was told to stop may take before it is dropped, 5 s by default.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.plan.settings.stop_grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Keeps a journal in this file: should this process be killed, the next one that is given the file
    /// reports first what was begun and what had ended, each under its own grant. One file for each
    /// executor; it is made where there is none.
    pub fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.settings.journal = Some(path.into());
        self
    }

    /// Opens payloads that were sealed with one of these keys; see [`crate::model::seal`].
    pub fn keys(mut self, keys: Arc<KeyRing>) -> Self {
        self.plan.keys = Some(keys);
        self
    }

    /// Serves a queue.
    pub fn handle<F, Fut>(mut self, queue: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.plan.queues.push((queue.into(), Plan::handler(handler)));
        self
    }

    /// Serves all queues that have no handler of their own here.
    pub fn handle_any<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.plan.any = Some(Plan::handler(handler));
        self
    }

    /// Serves a queue whose payloads are JSON of one type. A payload that is not is a dead letter at once.
    ///
    /// ```
    /// # use minutehand::executor::{Context, ExecutorBuilder, HandlerResult};
    /// #[derive(serde::Deserialize)]
    /// struct Mail {
    ///     to: String,
    /// }
    ///
    /// async fn send(mail: Mail, ctx: Context) -> HandlerResult {
    ///     ctx.progress(0.5, format!("sending to {}", mail.to)).await;
    ///     Ok(())
    /// }
    ///
    /// fn serve(executor: ExecutorBuilder) -> ExecutorBuilder {
    ///     executor.handle_json("mail", send)
    /// }
    /// ```
    pub fn handle_json<T, F, Fut>(self, queue: impl Into<String>, handler: F) -> Self
    where
        T: serde::de::DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handle_read(queue, Task::json, handler)
    }

    /// The same for payloads that are msgpack, as an import writes them.
    pub fn handle_msgpack<T, F, Fut>(self, queue: impl Into<String>, handler: F) -> Self
    where
        T: serde::de::DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handle_read(queue, Task::msgpack, handler)
    }

    /// Serves a queue whose payloads are read by `read`.
    fn handle_read<T, F, Fut>(
        self,
        queue: impl Into<String>,
        read: fn(&Task) -> Result<T, HandlerError>,
        handler: F,
    ) -> Self
    where
        T: Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.handle(queue, move |task, context| {
            let handler = Arc::clone(&handler);
            async move { handler(read(&task)?, context).await }
        })
    }

    /// Serves a queue by a [`Transport`]: a web call, a command, whatever delivers tasks.
    pub fn deliver(self, queue: impl Into<String>, transport: impl Transport) -> Self {
        self.handle(queue, move |task, context| transport.deliver(task, context))
    }

    /// Wraps all handlers: the first layer is the outermost. It sees every task before and every answer after.
    ///
    /// ```
    /// # use minutehand::executor::ExecutorBuilder;
    /// fn logged(executor: ExecutorBuilder) -> ExecutorBuilder {
    ///     executor.layer(|task, ctx, next| async move {
    ///         let id = task.execution_id;
    ///         let answer = next.run(task, ctx).await;
    ///         println!("{id}: {answer:?}");
    ///         answer
    ///     })
    /// }
    /// ```
    pub fn layer<F, Fut>(mut self, wrap: F) -> Self
    where
        F: Fn(Task, Context, Next) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.plan.layers.push(layer::layer(wrap));
        self
    }

    /// Runs handlers on the threads of `runtime` instead of on threads of their own. Then a handler
    /// that blocks its thread may hold up leases, acks and heartbeats, if they run there too.
    pub fn handlers_on(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.plan.threads = Some(runtime);
        self
    }

    /// Checks everything; an error names the field.
    pub fn build(self) -> Result<Executor, FieldError> {
        Ok(Executor { space: self.space, parts: self.plan.build()? })
    }
}

/// Why an executor could not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// It could not register.
    #[error("could not register: {0}")]
    Store(#[from] StoreError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Threads for the handlers or for starting on time could not be made.
    #[error("could not make threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// What all executors are made of, whatever they are linked to.
struct Parts {
    id: Arc<str>,
    settings: ExecutorSettings,
    queues: HashMap<String, Arc<Queue>>,
    any: Option<Handler>,
    keys: Option<Arc<KeyRing>>,
    threads: Option<tokio::runtime::Handle>,
    stats: Arc<Stats>,
}

/// Collects handlers and settings.
#[derive(Default)]
struct Plan {
    settings: ExecutorSettings,
    queues: Vec<(String, Handler)>,
    any: Option<Handler>,
    layers: Vec<layer::Layer>,
    keys: Option<Arc<KeyRing>>,
    threads: Option<tokio::runtime::Handle>,
}

impl Plan {
    fn handler<F, Fut>(handler: F) -> Handler
    where
        F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        Arc::new(move |task, context| Box::pin(handler(task, context)) as HandlerFuture)
    }

    fn build(self) -> Result<Parts, FieldError> {
        let mut settings = self.settings;
        settings.check()?;
        if self.queues.is_empty() && self.any.is_none() {
            return Err(FieldError::new(
                "queue",
                Reason::BadName,
                "none is named: an executor needs a handler",
            ));
        }
        if self.queues.len() > QUEUES_MAX {
            let detail = format!("{} are named; at most {QUEUES_MAX} are allowed", self.queues.len());
            return Err(FieldError::new("queue", Reason::TooMany, detail));
        }
        if settings.name.is_empty() {
            settings.name = host();
        }
        if settings.slots == 0 {
            let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            settings.slots = settings.kind.slots(processors);
        }
        let mut queues = HashMap::new();
        for (name, handler) in self.queues {
            let name = QueueName::new(&name)?;
            let handler = layer::wrapped(handler, &self.layers);
            let queue = Arc::new(Queue::new(name.clone(), Some(handler)));
            if queues.insert(name.to_string(), queue).is_some() {
                return Err(FieldError::new("queue", Reason::TooMany, format!("{name} has two handlers")));
            }
        }
        let id = instance_id(&settings.name).into();
        let stats = Arc::new(Stats::new());
        let any = self.any.map(|handler| layer::wrapped(handler, &self.layers));
        Ok(Parts { id, settings, queues, any, keys: self.keys, threads: self.threads, stats })
    }
}

/// A name that no other instance has, however it was configured.
fn instance_id(name: &str) -> String {
    let fits = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = name.chars().filter(fits).take(ID_NAME_MAX_BYTES).collect();
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{name}-{}", &random[..12])
}

fn host() -> String {
    let text = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let fits = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = text.unwrap_or_default().trim().chars().filter(fits).take(64).collect();
    let name = name.trim_start_matches('-');
    if name.is_empty() { "executor".into() } else { name.into() }
}

fn whole_path(path: &std::path::Path) -> String {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

/// Waits longer after each failure, never longer than [`limits::RECONNECT_MAX_MS`], and never all alike.
fn backoff(failures: u32) -> Duration {
    let ms = 25u64.saturating_mul(1 << failures.min(10)).min(limits::RECONNECT_MAX_MS);
    Duration::from_millis(ms).mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Registers, runs until `shutdown`, and ends in order; `now` ends it without waiting for handlers.
async fn run<L: Link>(
    link: L,
    parts: Parts,
    shutdown: CancellationToken,
    now: CancellationToken,
) -> Result<ExecutorReport, ExecutorError> {
    let Parts { id, settings, queues: named, any, keys, threads, stats } = parts;
    // Handlers have threads of their own unless the caller lends some.
    let (_own, threads) = match threads {
        Some(threads) => (None, threads),
        None => {
            let own = Threads::new()?;
            let handle = own.handle();
            (Some(own), handle)
        }
    };
    let size =
        Size { slots: settings.slots, urgent_slots: settings.urgent_slots, prefetch: settings.prefetch };
    let mut names: Vec<_> = named.keys().cloned().collect();
    names.sort();
    names.extend(any.is_some().then(|| ANY_QUEUE.to_owned()));
    let queues = Arc::new(Queues::new(named, any));
    let (journal, recovered) = match open_journal(link.namespace(), &settings).await? {
        Some((journal, recovered)) => (Some(Arc::new(journal)), recovered),
        None => (None, Recovered::default()),
    };
    let keep = if journal.is_some() { Keep::Lease } else { Keep::Dispatch };
    let core = Arc::new(Core {
        link,
        complaints: crate::model::complaints::Complaints::default(),
        id: Arc::clone(&id),
        hands: Hands::new(size, keep),
        acks: acks::Acks::new(Duration::from_millis(settings.ack_gather_ms)),
        journal,
        stats: Arc::clone(&stats),
        keys,
        wake_keeper: tokio::sync::Notify::new(),
        stop_grace: Duration::from_millis(settings.stop_grace_ms),
        closing: CancellationToken::new(),
        kill: CancellationToken::new(),
        given_back: parking_lot::Mutex::default(),
        marked: parking_lot::Mutex::default(),
        slots: TaskTracker::new(),
        threads,
    });
    let record = ExecutorRecord {
        id: id.to_string(),
        name: settings.name.clone(),
        queues: names,
        labels: Labels::new(&settings.labels).map(|labels| labels.as_slice().to_vec()).unwrap_or_default(),
        slots: settings.slots,
        urgent_slots: settings.urgent_slots,
        version: env!("CARGO_PKG_VERSION").into(),
        host: host(),
        pid: std::process::id(),
        machine: predecessor::machine(),
        began: predecessor::began(std::process::id()).unwrap_or(0),
        journal_at: core
            .journal
            .as_ref()
            .and(settings.journal.as_deref())
            .map(whole_path)
            .unwrap_or_default(),
        ahead_ms: limits::LOOK_AHEAD_MAX_MS,
        ..ExecutorRecord::default()
    };
    let averages = Arc::clone(&queues);
    let identity = keeper::Identity {
        record,
        beats: std::sync::atomic::AtomicU64::new(0),
        queues: Box::new(move || averages.averages()),
    };
    predecessor::sign_off(&core, &identity.record).await;
    if recover::run(&core, recovered, &shutdown).await && register(&core, &identity, &shutdown).await? {
        tracing::info!(executor = %id, slots = settings.slots, urgent_slots = settings.urgent_slots, "executor runs");
        serve(&core, identity, queues, size, &settings, &shutdown, &now).await;
    }
    Ok(stats.report())
}

async fn open_journal(
    namespace: &str,
    settings: &ExecutorSettings,
) -> Result<Option<(Journal, Recovered)>, ExecutorError> {
    let Some(path) = settings.journal.clone() else { return Ok(None) };
    let (namespace, fsync) = (namespace.to_owned(), settings.journal_fsync);
    let opened = tokio::task::spawn_blocking(move || Journal::open(&path, &namespace, fsync)).await;
    Ok(Some(opened.map_err(std::io::Error::other)??))
}

/// The handlers' threads. At the end those that a handler still blocks are left behind.
struct Threads(Option<tokio::runtime::Runtime>);

impl Threads {
    fn new() -> std::io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().thread_name("handler").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.0.as_ref().map_or_else(tokio::runtime::Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A loop that ends with whoever waits for it.
struct Loop<T>(tokio::task::JoinHandle<T>);

impl<T: Send + 'static> Loop<T> {
    fn start(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// None: the loop broke down.
    async fn end(mut self) -> Option<T> {
        (&mut self.0).await.ok()
    }
}

impl<T> Drop for Loop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The first heartbeat: nothing is taken before it was heard. False: told to end before that.
async fn register<L: Link>(
    core: &Core<L>,
    identity: &keeper::Identity,
    shutdown: &CancellationToken,
) -> Result<bool, ExecutorError> {
    let mut failures = 0;
    while !shutdown.is_cancelled() {
        match core.link.beat(&keeper::record(core, identity)).await {
            Ok(_) => return Ok(true),
            Err(error) if !error.is_retryable() => return Err(error.into()),
            Err(error) => {
                failures += 1;
                tracing::warn!(failures, %error, "could not register; trying again");
                let pause = tokio::time::sleep(backoff(failures));
                shutdown.run_until_cancelled(pause).await;
            }
        }
    }
    Ok(false)
}

/// Longest that an executor stays for its last report of run times.
const REPORT_MAX: Duration = Duration::from_secs(1);

/// Runs all loops, and brings them down in order.
async fn serve<L: Link>(
    core: &Arc<Core<L>>,
    identity: keeper::Identity,
    queues: Arc<Queues>,
    size: Size,
    settings: &ExecutorSettings,
    shutdown: &CancellationToken,
    now: &CancellationToken,
) {
    let (keeping, beating) = (CancellationToken::new(), CancellationToken::new());
    // Should the caller drop this future, everything ends with it.
    let _closing = core.closing.clone().drop_guard();
    let _kill = core.kill.clone().drop_guard();
    let every = Duration::from_millis(settings.heartbeat_ms);
    let keeper = Loop::start(keeper::run(Arc::clone(core), keeping.clone()));
    let beats = Loop::start(keeper::beat(Arc::clone(core), identity, size, every, beating.clone()));
    let acks = Loop::start(acks::run(Arc::clone(core)));
    let reports = Loop::start(report::run(Arc::clone(core), Arc::clone(&queues), keeping.clone()));
    let inbox = Loop::start(inbox::run(Arc::clone(core), queues));
    let _starter = Loop::start(timer::start_in_time(Arc::clone(core)));

    tokio::select! {
        () = shutdown.cancelled() => {}
        () = now.cancelled() => {}
    }
    let end = Drain::new(core.link.mono(), Duration::from_millis(settings.drain_grace_ms));
    let unstarted = core.hands.close();
    core.closing.cancel();
    core.acks.hurry(core.link.mono());
    let (running, _, _) = core.hands.load();
    tracing::info!(executor = %core.id, running, unstarted = unstarted.len(), "executor drains");
    beating.cancel();

    // What has not started goes back at once, from the hand and from the inbox.
    let patience = end.all;
    let empty_inbox = async {
        let late = inbox.end().await.unwrap_or_default();
        beats.end().await;
        let left = match core.link.leave().await {
            Ok(left) => left.iter().map(|offer| (offer.id, offer.grant)).collect(),
            Err(error) => {
                tracing::warn!(%error, "could not leave in order; pods will miss this executor soon");
                Vec::new()
            }
        };
        tokio::join!(core.release("drain", late, patience), core.release("drain", left, patience));
    };
    let hand_back = async { tokio::join!(core.release("drain", unstarted, patience), empty_inbox) };

    core.slots.close();
    let finish = async {
        tokio::select! {
            () = core.slots.wait() => return,
            () = tokio::time::sleep(end.stop_after) => {}
            () = now.cancelled() => {}
        }
        let told = core.hands.stop_all(Stop::Draining);
        tracing::info!(executor = %core.id, running = told, "handlers are told to stop");
        tokio::select! {
            () = core.slots.wait() => return,
            () = tokio::time::sleep(end.kill_after) => {}
            () = now.cancelled() => {}
        }
        core.kill.cancel();
        // Only a handler that blocks its thread is still there after that.
        if tokio::time::timeout(end.kill_wait, core.slots.wait()).await.is_err() {
            let (running, _, _) = core.hands.load();
            tracing::warn!(executor = %core.id, running, "handlers block their threads; their leases will lapse");
        }
    };
    tokio::join!(hand_back, finish);
    let given_back = std::mem::take(&mut *core.given_back.lock());
    core.release("drain", given_back, end.kill_wait).await;

    core.acks.close();
    let mut left = end.left(core.link.mono());
    if now.is_cancelled() {
        left = left.min(Duration::from_millis(limits::CALL_TIMEOUT_MS));
    }
    if tokio::time::timeout(left, acks.end()).await.is_err() {
        let unsent = core.acks.unsent();
        core.stats.lost(unsent);
        tracing::warn!(executor = %core.id, unsent, "outcomes could not be reported in time; their leases will lapse");
    }
    keeping.cancel();
    keeper.end().await;
    // Figures: nobody waits for them where Redis is away.
    let _ = tokio::time::timeout(REPORT_MAX, reports.end()).await;
    tracing::info!(executor = %core.id, report = ?core.stats.report(), "executor ended");
}

/// How the drain grace is spent: handlers finish, are told to stop, are dropped, and the last acks leave.
struct Drain {
    end: std::time::Instant,
    all: Duration,
    stop_after: Duration,
    kill_after: Duration,
    kill_wait: Duration,
}

impl Drain {
    fn new(start: std::time::Instant, all: Duration) -> Self {
        let tail = DRAIN_TAIL.min(all / 4);
        Self { end: start + all, all, stop_after: all - tail, kill_after: tail / 2, kill_wait: tail / 8 }
    }

    fn left(&self, now: std::time::Instant) -> Duration {
        self.end.saturating_duration_since(now).max(self.kill_wait)
    }
}
