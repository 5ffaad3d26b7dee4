//! The whole scheduler in one process: a pod, handlers and a client around one Redis.
//!
//! ```no_run
//! use minutehand::client::{Due, NewTask};
//! use minutehand::embed::Scheduler;
//! use minutehand::model::QueueName;
//!
//! # #[tokio::main] async fn main() -> anyhow::Result<()> {
//! let scheduler = Scheduler::connect("redis://127.0.0.1:6379", "mh")
//!     .await?
//!     .handle("mail", |task, _ctx| async move {
//!         println!("{} bytes", task.payload.len());
//!         Ok(())
//!     })
//!     .start()?;
//! let task = NewTask { due: Due::In(5_000), ..NewTask::to(QueueName::new("mail")?) };
//! scheduler.client().submit(task).await?;
//! tokio::signal::ctrl_c().await?;
//! scheduler.stop().await?;
//! # Ok(()) }
//! ```
//!
//! Any number of such processes share the work, beside pods and executors of their own kind. A pod also has a
//! [`house`] executor beside it, for what belongs to no executor: broadcasts, and tasks that name a web address.

pub mod broadcast;
pub mod house;

use crate::client::Client;
use crate::executor::{
    Context, Executor, ExecutorBuilder, ExecutorError, ExecutorReport, HandlerResult, Task, Transport,
};
use crate::model::{FieldError, Namespace};
use crate::pod::{Pod, PodSettings, PodTally};
use crate::store::{ConnectSettings, Space, Store, StoreError};
use std::future::Future;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Collects what a [`Running`] scheduler is made of.
pub struct Scheduler {
    space: Space,
    pod: PodSettings,
    executor: ExecutorBuilder,
}

/// A scheduler at work.
#[derive(Debug)]
pub struct Running {
    client: Client,
    tally: Arc<PodTally>,
    stop_pod: CancellationToken,
    stop_executor: CancellationToken,
    pod: JoinHandle<Result<(), StoreError>>,
    executor: JoinHandle<Result<ExecutorReport, ExecutorError>>,
}

/// Why a scheduler could not begin or end.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// A name or a number is wrong.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Redis.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The executor.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// A loop broke off.
    #[error("the scheduler broke off: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

impl Scheduler {
    /// Connects to the Redis of a URL and opens a namespace, creating it where there is none.
    ///
    /// Fails within a second or two where Redis is not there; [`StoreError::is_retryable`] says whether to try again.
    pub async fn connect(url: &str, namespace: &str) -> Result<Self, EmbedError> {
        let settings = ConnectSettings { url: url.to_owned(), ..ConnectSettings::default() };
        let namespace = Namespace::new(namespace)?;
        Ok(Self::on(Space::open(Store::connect(settings).await?, namespace).await?))
    }

    /// On a space that is open already.
    pub fn on(space: Space) -> Self {
        Self { executor: Executor::builder(space.clone()), pod: PodSettings::default(), space }
    }

    /// Serves a queue with a function of this process.
    pub fn handle<F, Fut>(mut self, queue: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.executor = self.executor.handle(queue, handler);
        self
    }

    /// Serves a queue in any other way.
    pub fn deliver(mut self, queue: impl Into<String>, transport: impl Transport) -> Self {
        self.executor = self.executor.deliver(queue, transport);
        self
    }

    /// Changes the executor: its slots, name, labels, layers.
    pub fn executor(mut self, change: impl FnOnce(ExecutorBuilder) -> ExecutorBuilder) -> Self {
        self.executor = change(self.executor);
        self
    }

    /// Changes the pod.
    pub fn pod(mut self, change: impl FnOnce(&mut PodSettings)) -> Self {
        change(&mut self.pod);
        self
    }

    /// Begins. Must be called within a tokio runtime.
    pub fn start(self) -> Result<Running, EmbedError> {
        let executor = self.executor.build()?;
        let (stop_pod, stop_executor) = (CancellationToken::new(), CancellationToken::new());
        let pod = Pod::new(self.space.clone(), self.pod);
        Ok(Running {
            client: Client::new(self.space),
            tally: pod.tally(),
            pod: tokio::spawn(pod.run(stop_pod.clone())),
            executor: tokio::spawn(executor.run(stop_executor.clone())),
            stop_pod,
            stop_executor,
        })
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scheduler({:?})", self.space)
    }
}

impl Running {
    /// Submits and looks up.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What its pod has done so far.
    pub fn tally(&self) -> &PodTally {
        &self.tally
    }

    /// Ends in order: nothing more is claimed, handlers may finish, every outcome is reported.
    pub async fn stop(self) -> Result<ExecutorReport, EmbedError> {
        self.stop_pod.cancel();
        self.pod.await??;
        self.stop_executor.cancel();
        Ok(self.executor.await??)
    }
}
