//! What is set for queues: read, changed, and followed by the pods.

use super::{Client, ClientError, FOLLOW_MAX, repeat};
use crate::limits;
use crate::model::queue::{Lease, Pause};
use crate::model::runs::RunFigures;
use crate::model::{FieldError, QueueName, QueueSettings, UnixMs};
use crate::store::queue::{self, PutAnswer};
use crate::store::{StoreError, member};
use serde::Serialize;
use std::time::Duration;

/// Times that a change is made anew because somebody else changed the same record.
const CLASHES_MAX: u32 = 20;

/// A queue and what is set for it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueView {
    /// Its name.
    pub queue: String,
    /// What is set for it.
    #[schema(value_type = Object)]
    pub settings: QueueSettings,
}

/// How a queue's tasks run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: String,
    /// Its runs.
    #[serde(flatten)]
    pub figures: RunFigures,
    /// What is set for its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The lease of its tasks that name none, in ms.
    pub lease_ms: i64,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueChange {
    /// The queue.
    pub queue: String,
    /// Whether this call changed something.
    pub changed: bool,
    /// What is set for it now.
    #[schema(value_type = Object)]
    pub settings: QueueSettings,
    /// Live pods that do not follow yet; those that are dead without being missed yet are among them.
    pub pods_behind: Vec<String>,
}

impl Client {
    /// What is set for a queue.
    pub async fn queue(&self, queue: &QueueName) -> Result<QueueSettings, ClientError> {
        let space = self.space();
        Ok(repeat(space, || queue::refresh(space)).await?.of(queue).clone())
    }

    /// How long a queue's tasks run and how many fail, by what its executors reported of the last hours.
    pub async fn queue_stats(&self, queue: &QueueName) -> Result<QueueStats, ClientError> {
        let space = self.space();
        let set = repeat(space, || queue::refresh(space)).await?.of(queue).lease;
        let runs = repeat(space, || queue::runs(space, queue)).await?;
        let figures = runs.figures();
        let lease_ms = match set {
            Some(Lease::Fixed { ms }) => ms,
            Some(Lease::Auto) => figures.suggested_lease_ms.unwrap_or(limits::LEASE_MS),
            None => limits::LEASE_MS,
        };
        Ok(QueueStats { queue: queue.to_string(), figures, lease: set, lease_ms })
    }

    /// All queues that tasks have been submitted to or for which something is set, by name.
    pub async fn queues(&self) -> Result<Vec<QueueView>, ClientError> {
        let space = self.space();
        let table = repeat(space, || queue::refresh(space)).await?;
        let groups = repeat(space, || space.groups()).await?;
        let mut names: Vec<&QueueName> = groups.iter().map(|(_, group)| &group.queue).collect();
        names.extend(table.queues.keys());
        names.sort_unstable();
        names.dedup();
        let view =
            |queue: &QueueName| QueueView { queue: queue.to_string(), settings: table.of(queue).clone() };
        Ok(names.into_iter().map(view).collect())
    }

    /// Changes what is set for a queue, and waits until all live pods follow. `change` is called again where
    /// somebody else changed the same queue meanwhile.
    pub async fn queue_set(
        &self,
        queue: &QueueName,
        mut change: impl FnMut(&mut QueueSettings) -> Result<(), FieldError>,
    ) -> Result<QueueChange, ClientError> {
        let space = self.space();
        for _ in 0..CLASHES_MAX {
            let table = repeat(space, || queue::refresh(space)).await?;
            let version = queue::version_of(space, queue);
            let mut settings = table.of(queue).clone();
            change(&mut settings)?;
            settings.encode()?;
            if settings == *table.of(queue) {
                let pods_behind = self.behind(table.epoch).await?;
                return Ok(QueueChange { queue: queue.to_string(), changed: false, settings, pods_behind });
            }
            // A repeated call whose first sending arrived finds another version: the change is then made anew,
            // and finds that it stands.
            match repeat(space, || queue::put_queue(space, queue, version, &settings)).await? {
                PutAnswer::Done { epoch, changed } => {
                    let pods_behind = self.behind(epoch).await?;
                    return Ok(QueueChange { queue: queue.to_string(), changed, settings, pods_behind });
                }
                PutAnswer::Changed { .. } => {}
            }
        }
        let detail = format!("queue {queue} was changed by others {CLASHES_MAX} times in a row; try again");
        Err(StoreError::Script { name: "queue.put", detail }.into())
    }

    /// Pauses a queue: nothing more of it is claimed once this has returned; what was claimed goes on.
    /// A queue that is paused keeps its first cause.
    pub async fn pause(&self, queue: &QueueName, who: &str, why: &str) -> Result<QueueChange, ClientError> {
        let since = UnixMs(self.space().clock().now_ms());
        self.queue_set(queue, |settings| {
            settings.pause.get_or_insert_with(|| Pause { since, who: who.to_owned(), why: why.to_owned() });
            Ok(())
        })
        .await
    }

    /// Lets a paused queue go on.
    pub async fn resume(&self, queue: &QueueName) -> Result<QueueChange, ClientError> {
        self.queue_set(queue, |settings| {
            settings.pause = None;
            Ok(())
        })
        .await
    }

    /// Waits a while for all live pods to follow what is set for queues; answers those that do not.
    pub(super) async fn behind(&self, epoch: u64) -> Result<Vec<String>, ClientError> {
        let (space, start) = (self.space(), crate::clock::mono());
        loop {
            let pods = repeat(space, || member::pods(space)).await?;
            let behind = pods.iter().filter(|pod| pod.queues_epoch < epoch);
            let behind: Vec<String> = behind.map(|pod| pod.id.clone()).collect();
            if behind.is_empty() || start.elapsed() >= FOLLOW_MAX {
                return Ok(behind);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
