//! A stream of tasks with back-pressure.

use super::submit::{NewTask, SubmitError};
use super::{Client, ClientError, Submitted};
use crate::limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How a stream sends.
#[derive(Debug, Clone, Copy)]
pub struct StreamSettings {
    /// Batches under way at a time; with the batch size it bounds what waits in memory.
    pub in_flight: usize,
    /// Tasks in a batch.
    pub batch: usize,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self { in_flight: 4, batch: 1_000 }
    }
}

/// What has become of a stream's tasks so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StreamProgress {
    /// Tasks that stand because of this stream.
    pub created: u64,
    /// Tasks whose key was taken.
    pub duplicates: u64,
    /// Tasks with a field that was refused.
    pub refused: u64,
    /// Tasks of which nobody knows.
    pub fate_unknown: u64,
    /// Tasks that were too many for their queue.
    pub over_backlog: u64,
    /// Tasks that are not as safe as they were to be.
    pub not_durable: u64,
}

#[derive(Default)]
struct Tally {
    created: AtomicU64,
    duplicates: AtomicU64,
    refused: AtomicU64,
    fate_unknown: AtomicU64,
    over_backlog: AtomicU64,
    not_durable: AtomicU64,
}

impl Tally {
    fn add(&self, answer: &Result<Submitted, SubmitError>) {
        let counter = match answer {
            Ok(Submitted { created: true, .. }) => &self.created,
            Ok(_) => &self.duplicates,
            Err(SubmitError::Field(_)) => &self.refused,
            Err(SubmitError::FateUnknown(_)) => &self.fate_unknown,
            Err(SubmitError::OverBacklog { .. }) => &self.over_backlog,
            Err(SubmitError::NotDurable { .. }) => &self.not_durable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

type OnRefused = Arc<dyn Fn(u64, &SubmitError) + Send + Sync>;

/// Takes tasks one by one and sends them in batches; pushing waits while too many are under way.
pub struct SubmitStream {
    client: Client,
    settings: StreamSettings,
    buffer: Vec<NewTask>,
    bytes: usize,
    pushed: u64,
    permits: Arc<Semaphore>,
    running: JoinSet<Result<(), ClientError>>,
    tally: Arc<Tally>,
    on_refused: Option<OnRefused>,
}

impl SubmitStream {
    pub(super) fn start(client: Client, settings: StreamSettings) -> Self {
        let batch = settings.batch.clamp(1, 10 * limits::BATCH_MAX_ROWS);
        let settings = StreamSettings { in_flight: settings.in_flight.clamp(1, 64), batch };
        Self {
            client,
            settings,
            buffer: Vec::with_capacity(batch),
            bytes: 0,
            pushed: 0,
            permits: Arc::new(Semaphore::new(settings.in_flight)),
            running: JoinSet::new(),
            tally: Arc::default(),
            on_refused: None,
        }
    }

    /// Calls `hear` for each task that was refused, with its number in the stream, from 0.
    pub fn on_refused(mut self, hear: impl Fn(u64, &SubmitError) + Send + Sync + 'static) -> Self {
        self.on_refused = Some(Arc::new(hear));
        self
    }

    /// Takes a task; waits while too many batches are under way. An error ends the stream.
    pub async fn push(&mut self, task: NewTask) -> Result<(), ClientError> {
        self.bytes += task.payload.len() + 256;
        self.buffer.push(task);
        self.pushed += 1;
        if self.buffer.len() >= self.settings.batch || self.bytes >= limits::BATCH_MAX_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends what has gathered.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        while let Some(done) = self.running.try_join_next() {
            done.map_err(|_| ClientError::Store(crate::store::StoreError::Closed))??;
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        let closed = |_| ClientError::Store(crate::store::StoreError::Closed);
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        let tasks = std::mem::replace(&mut self.buffer, Vec::with_capacity(self.settings.batch));
        self.bytes = 0;
        let first = self.pushed - tasks.len() as u64;
        let (client, tally, hear) = (self.client.clone(), Arc::clone(&self.tally), self.on_refused.clone());
        self.running.spawn(async move {
            let answers = client.submit_batch(tasks).await?;
            for (at, answer) in answers.iter().enumerate() {
                tally.add(answer);
                if let (Err(error), Some(hear)) = (answer, &hear) {
                    hear(first + at as u64, error);
                }
            }
            drop(permit);
            Ok(())
        });
        Ok(())
    }

    /// What has become of the tasks so far.
    pub fn progress(&self) -> StreamProgress {
        StreamProgress {
            created: self.tally.created.load(Ordering::Relaxed),
            duplicates: self.tally.duplicates.load(Ordering::Relaxed),
            refused: self.tally.refused.load(Ordering::Relaxed),
            fate_unknown: self.tally.fate_unknown.load(Ordering::Relaxed),
            over_backlog: self.tally.over_backlog.load(Ordering::Relaxed),
            not_durable: self.tally.not_durable.load(Ordering::Relaxed),
        }
    }

    /// Sends the rest and waits for all answers.
    pub async fn finish(mut self) -> Result<StreamProgress, ClientError> {
        self.flush().await?;
        while let Some(done) = self.running.join_next().await {
            done.map_err(|_| ClientError::Store(crate::store::StoreError::Closed))??;
        }
        Ok(self.progress())
    }
}
