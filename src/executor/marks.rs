//! What a handler keeps for its task beyond one attempt: how far it is, where to go on, and what is done already.
//!
//! It lies beside the task in Redis under its grant, so that only the attempt that counts can write it, and is
//! gone when the task has ended. It costs a task that keeps nothing nothing.

use super::handler::{Context, HandlerError};
use crate::clock;
use crate::limits;
use crate::model::lane::check_name;
use crate::model::{ExecutionId, Progress};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often progress is written at most; what comes between is left out, but for the end.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Field of the checkpoint, and what those of finished steps begin with.
pub(super) const CHECKPOINT: &[u8] = b"c";
const ONCE: &[u8] = b"o:";
const DAILY: &[u8] = b"d:";

/// Why something could not be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// The attempt no longer counts: its handler should stop.
    #[error("the grant no longer stands")]
    Stale,
    /// More than a task may keep.
    #[error("a task may keep {max} bytes in {fields} parts; this would be more", max = limits::MARK_MAX_BYTES, fields = limits::MARK_FIELDS_MAX)]
    TooLarge,
    /// Redis did not take it.
    #[error("{0}")]
    Store(String),
}

/// The result of one such call.
pub(super) type Kept<T> = Pin<Box<dyn Future<Output = Result<T, MarkError>> + Send>>;

/// Where it is kept.
pub(super) trait Marks: fmt::Debug + Send + Sync {
    fn put(self: Arc<Self>, execution: ExecutionId, field: Vec<u8>, value: Bytes) -> Kept<()>;
    fn get(self: Arc<Self>, execution: ExecutionId, field: Vec<u8>) -> Kept<Option<Bytes>>;
    fn daily(self: Arc<Self>, name: String, subject: u64) -> Kept<bool>;
}

/// In memory, for trials without Redis.
#[derive(Debug, Default)]
pub(super) struct MemoryMarks {
    pub fields: Mutex<BTreeMap<Vec<u8>, Bytes>>,
    pub progress: Mutex<Vec<Progress>>,
    pub met: Mutex<BTreeSet<(String, u64)>>,
}

impl Marks for MemoryMarks {
    fn put(self: Arc<Self>, _: ExecutionId, field: Vec<u8>, value: Bytes) -> Kept<()> {
        if field == Progress::FIELD {
            self.progress.lock().extend(serde_json::from_slice::<Progress>(&value).ok());
        }
        self.fields.lock().insert(field, value);
        Box::pin(async { Ok(()) })
    }

    fn get(self: Arc<Self>, _: ExecutionId, field: Vec<u8>) -> Kept<Option<Bytes>> {
        let found = self.fields.lock().get(&field).cloned();
        Box::pin(async move { Ok(found) })
    }

    fn daily(self: Arc<Self>, name: String, subject: u64) -> Kept<bool> {
        let first = self.met.lock().insert((name, subject));
        Box::pin(async move { Ok(first) })
    }
}

/// When progress was last written.
#[derive(Debug, Default)]
pub(super) struct LastProgress(Mutex<Option<Instant>>);

impl Context {
    /// Says how far the handler is, for those who look at the task: the part done, 0 to 1, and what it does.
    /// At most one a second is written; failing to is no failure of the task.
    pub async fn progress(&self, part: f64, text: impl Into<String>) {
        let progress = Progress::new(part, text);
        {
            let mut last = self.signal.last_progress.0.lock();
            let now = clock::mono();
            if progress.part < 1.0
                && last.is_some_and(|at| now.saturating_duration_since(at) < PROGRESS_EVERY)
            {
                return;
            }
            *last = Some(now);
        }
        let Ok(value) = serde_json::to_vec(&progress) else { return };
        if let Err(error) =
            Arc::clone(&self.marks).put(self.execution, Progress::FIELD.to_vec(), value.into()).await
        {
            tracing::debug!(execution = %self.execution, %error, "could not say how far a task is");
        }
    }

    /// Keeps where to go on: should this attempt fail or its executor die, the next one finds it by
    /// [`Self::last_checkpoint`]. It is gone when the task has ended.
    pub async fn checkpoint(&self, state: impl Into<Bytes>) -> Result<(), MarkError> {
        Arc::clone(&self.marks).put(self.execution, CHECKPOINT.to_vec(), state.into()).await
    }

    /// Where an earlier attempt, or this one, has got to.
    pub async fn last_checkpoint(&self) -> Result<Option<Bytes>, MarkError> {
        Arc::clone(&self.marks).get(self.execution, CHECKPOINT.to_vec()).await
    }

    /// Does a step whose effect must not double when the task is tried again: once it has succeeded, later
    /// attempts get its answer and do not do it. Between the effect and this note the executor may still die;
    /// pass `execution_id` on where the other side can tell doubles apart.
    pub async fn once<T, F>(&self, key: &str, step: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, HandlerError>>,
    {
        let field = [ONCE, key.as_bytes()].concat();
        if let Some(done) = Arc::clone(&self.marks).get(self.execution, field.clone()).await? {
            return rmp_serde::from_slice(&done).map_err(|error| {
                HandlerError::fatal(format!("step {key} is done, but its answer cannot be read: {error}"))
            });
        }
        let answer = step.await?;
        let bytes = rmp_serde::to_vec_named(&answer).map_err(|error| {
            HandlerError::fatal(format!("the answer of step {key} cannot be kept: {error}"))
        })?;
        Arc::clone(&self.marks).put(self.execution, field, bytes.into()).await?;
        Ok(answer)
    }

    /// Whether this task is the first today to meet a subject under a name, such as `("promotions", user_id)`: of all tasks
    /// of the namespace at most one is told so on each day of UTC, by Redis's clock, and told so again when it is tried
    /// again. Where its executor dies within this call, nobody is told so that day.
    ///
    /// It costs a bit of Redis's memory for each number up to the largest of each million (2^20) in use, for two days: so
    /// subjects should be numbered without large gaps.
    pub async fn first_today(&self, name: &str, subject: u64) -> Result<bool, HandlerError> {
        check_name("name", name, limits::DAILY_NAME_MAX_BYTES)
            .map_err(|error| HandlerError::fatal(error.to_string()))?;
        let field = [DAILY, name.as_bytes(), b"/", subject.to_string().as_bytes()].concat();
        if let Some(told) = Arc::clone(&self.marks).get(self.execution, field.clone()).await? {
            return Ok(&told[..] == b"1");
        }
        let first = Arc::clone(&self.marks).daily(name.to_owned(), subject).await?;
        let told = Bytes::from_static(if first { b"1" } else { b"0" });
        Arc::clone(&self.marks).put(self.execution, field, told).await?;
        Ok(first)
    }
}
