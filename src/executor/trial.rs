//! A handler tried out without Redis.

use super::handler::{Context, HandlerResult, Signal, Stop, Task};
use super::marks::{CHECKPOINT, MemoryMarks};
use crate::model::Progress;
use crate::model::field::FieldError;
use crate::model::spec::Extras;
use crate::model::{Bucket, ExecutionId, Grant, Labels, Minute, Nonce, Priority, QueueName, TaskId, UnixMs};
use bytes::Bytes;
use serde::Serialize;
use std::future::Future;
use std::sync::Arc;

/// One attempt of a task, made up for a test.
///
/// ```
/// use minutehand::executor::{Context, HandlerError, HandlerResult, Task, Trial};
///
/// async fn greet(task: Task, ctx: Context) -> HandlerResult {
///     if task.payload.is_empty() {
///         return Err(HandlerError::fatal("nobody to greet"));
///     }
///     ctx.checkpoint("greeted").await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// let tried = Trial::new("greetings")?.payload("Ada").run(greet).await;
/// assert_eq!(tried.result, Ok(()));
/// assert_eq!(tried.checkpoint.as_deref(), Some(&b"greeted"[..]));
/// assert!(Trial::new("greetings")?.run(greet).await.result.unwrap_err().is_fatal());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Trial {
    task: Task,
    signal: Arc<Signal>,
    marks: Arc<MemoryMarks>,
}

/// How it went.
#[derive(Debug)]
pub struct Tried {
    /// What the handler answered.
    pub result: HandlerResult,
    /// What it said of its progress.
    pub progress: Vec<Progress>,
    /// Its last checkpoint, or that of the attempt before.
    pub checkpoint: Option<Bytes>,
    /// What it keeps, for the next attempt's [`Trial::after`].
    kept: Arc<MemoryMarks>,
}

impl Trial {
    /// A first attempt of a task of this queue: P3, due when it is tried, no payload.
    pub fn new(queue: &str) -> Result<Self, FieldError> {
        let due = UnixMs(crate::clock::wall_us() / 1_000);
        let id = TaskId::new(Minute((due.0 / 60_000) as u32), Bucket::default(), fastrand::u64(..));
        let task = Task {
            id,
            execution_id: ExecutionId { id, grant: Grant::new(1, Nonce::new(fastrand::u64(..))) },
            queue: QueueName::new(queue)?,
            labels: Arc::new(Labels::default()),
            priority: Priority::default(),
            due,
            attempt: 1,
            key: None,
            placement: None,
            plan: None,
            deadline: None,
            lease_ms: None,
            timeout_ms: None,
            extras: Extras::default(),
            payload: Bytes::new(),
        };
        Ok(Self { task, signal: Arc::default(), marks: Arc::default() })
    }

    /// With this payload.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.task.payload = payload.into();
        self
    }

    /// With this value as JSON.
    pub fn json<T: Serialize>(self, value: &T) -> Result<Self, serde_json::Error> {
        Ok(self.payload(serde_json::to_vec(value)?))
    }

    /// Changed in any other way.
    pub fn with(mut self, change: impl FnOnce(&mut Task)) -> Self {
        change(&mut self.task);
        self
    }

    /// The attempt after another one: it finds what that one kept.
    pub fn after(mut self, before: &Tried) -> Self {
        self.task.attempt += 1;
        self.marks = Arc::clone(&before.kept);
        self.marks.progress.lock().clear();
        self
    }

    /// Told to stop before it begins.
    pub fn stopped(self, why: Stop) -> Self {
        self.signal.fire(why);
        self
    }

    #[cfg(test)]
    pub(super) fn signal(&self) -> Arc<Signal> {
        Arc::clone(&self.signal)
    }

    /// The task and its context, for what is no plain function: a [`Transport`](super::Transport).
    pub fn into_parts(self) -> (Task, Context) {
        (self.task.clone(), self.into_context())
    }

    fn into_context(self) -> Context {
        Context {
            execution: self.task.execution_id,
            time_out: self.task.timeout_ms.map(|ms| std::time::Duration::from_millis(ms.into())),
            signal: self.signal,
            executor: "trial".into(),
            lag_ms: 0,
            marks: self.marks,
        }
    }

    /// Runs a handler. A panic in it is the test's.
    pub async fn run<F, Fut>(self, handler: F) -> Tried
    where
        F: FnOnce(Task, Context) -> Fut,
        Fut: Future<Output = HandlerResult>,
    {
        let (task, kept) = (self.task.clone(), Arc::clone(&self.marks));
        let result = handler(task, self.into_context()).await;
        let progress = kept.progress.lock().clone();
        let checkpoint = kept.fields.lock().get(CHECKPOINT).cloned();
        Tried { result, progress, checkpoint, kept }
    }
}
