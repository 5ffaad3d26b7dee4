//! What the runtime asks of Redis, as a trait: the runtime's tests play the other side in memory.

pub(super) use crate::store::StoreError;
pub(super) use crate::store::member::{ExecutorRecord, Offer, Take, Taken};
pub(super) use crate::store::queue::Freeze;
pub(super) use crate::store::run::{AckAnswer, AckRow, MarkAnswer, Outcome, StartAnswer, StartRow};

use super::timer::Timer;
use crate::clock;
use crate::model::queue::Lease;
use crate::model::runs::Runs;
use crate::model::{Bucket, ExecutionId, Grant, LaneGroup, QueueName, TaskId, UnixMs};
use crate::store::due::ReleaseAnswer;
use crate::store::{Space, Subscription, due, member, queue, run};
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// Why an executor is woken. A hint; polls and renewals stand behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// Something may have been put into the inbox.
    Inbox,
    /// Something urgent was.
    Urgent,
    /// Somebody wishes this task to stop; its grant's flag is the truth.
    Cancel(TaskId),
    /// Something was frozen: what has not started of it must be given back.
    Freeze,
}

impl Wake {
    /// What a message on an inbox's channel says.
    pub fn read(payload: &[u8]) -> Self {
        match payload.split_first() {
            Some((b'c', id)) => TaskId::from_bytes(id).map_or(Self::Inbox, Self::Cancel),
            Some((b'f', _)) => Self::Freeze,
            Some((b'u', _)) => Self::Urgent,
            _ => Self::Inbox,
        }
    }
}

/// Wake-ups.
pub(super) trait Wakes: Send + 'static {
    /// The next one. Dropping the future loses nothing.
    fn recv(&mut self) -> impl Future<Output = Wake> + Send;
}

/// Redis, as one executor sees it.
pub(super) trait Link: Send + Sync + 'static {
    /// Its wake-ups.
    type Wakes: Wakes;

    /// Whose tasks these are.
    fn namespace(&self) -> &str;
    /// Redis time in µs, as estimated.
    fn now_us(&self) -> i64;
    /// The local monotonic clock.
    fn mono(&self) -> Instant;
    /// When the clock of a bucket's server surely shows `at`; none where that server was not heard lately.
    fn surely_at(&self, bucket: Bucket, at: UnixMs) -> Option<Instant>;
    /// Sleeps until `at`, as exactly as can be had.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send;
    /// What a lane code stands for.
    fn group(&self, code: u32) -> impl Future<Output = Result<LaneGroup, StoreError>> + Send;
    /// What is frozen.
    fn frozen(&self) -> impl Future<Output = Result<Freeze, StoreError>> + Send;
    /// Registers, or says that this executor is still there.
    fn beat(&self, record: &ExecutorRecord) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Adds up runs of queues with those of others; answers for each queue what all know together, and what is set for
    /// its lease.
    fn runs(
        &self,
        new: &[(QueueName, Runs)],
    ) -> impl Future<Output = Result<Vec<(Runs, Option<Lease>)>, StoreError>> + Send;
    /// Leaves the registry; gives back what was still in the inbox.
    fn leave(&self) -> impl Future<Output = Result<Vec<Offer>, StoreError>> + Send;
    /// The live executors.
    fn roll(&self) -> impl Future<Output = Result<Vec<ExecutorRecord>, StoreError>> + Send;
    /// Signs off an executor that is known to be dead; gives back what was in its inbox.
    fn sign_off(&self, id: &str) -> impl Future<Output = Result<Vec<Offer>, StoreError>> + Send;
    /// Subscribes to the wake-ups.
    fn wakes(&self) -> Self::Wakes;
    /// Takes offers out of the inbox and reports what is in hand.
    fn take(&self, ask: Take) -> impl Future<Output = Result<Taken, StoreError>> + Send;
    /// Tells a pod that there is room here.
    fn tell_room(&self, pod: &str) -> impl Future<Output = ()> + Send;
    /// Says that handlers run, for at most [`crate::limits::BATCH_MAX_ROWS`] rows of one bucket.
    fn start(
        &self,
        bucket: Bucket,
        rows: &[StartRow],
    ) -> impl Future<Output = Result<Vec<StartAnswer>, StoreError>> + Send;
    /// Renews grants, started or only held.
    fn renew(
        &self,
        bucket: Bucket,
        rows: &[StartRow],
    ) -> impl Future<Output = Result<Vec<StartAnswer>, StoreError>> + Send;
    /// Reports outcomes; `again` if some of them were sent before and no answer came.
    fn ack(
        &self,
        bucket: Bucket,
        rows: &[AckRow],
        again: bool,
    ) -> impl Future<Output = Result<Vec<AckAnswer>, StoreError>> + Send;
    /// Keeps something for a task under its grant.
    fn mark(
        &self,
        execution: ExecutionId,
        field: &[u8],
        value: Bytes,
    ) -> impl Future<Output = Result<MarkAnswer, StoreError>> + Send;
    /// What is kept for a task.
    fn marked(
        &self,
        id: TaskId,
        field: &[u8],
    ) -> impl Future<Output = Result<Option<Bytes>, StoreError>> + Send;
    /// Drops what is kept for a task that has ended.
    fn unmark(&self, id: TaskId) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Whether a subject is met for the first time today under a name.
    fn daily(&self, name: &str, subject: u64) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// Hands back, uncounted; answers how many grants still stood.
    fn release(
        &self,
        bucket: Bucket,
        cause: &'static str,
        rows: &[(TaskId, Grant)],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;
}

/// The link of an executor that runs in earnest.
pub(super) struct SpaceLink {
    pub space: Space,
    pub id: Arc<str>,
    pub timer: Timer,
}

/// Adds runs of queues to what is known of them; answers that, and the lease that is set for each.
pub(super) async fn add_runs(
    space: &Space,
    new: &[(QueueName, Runs)],
) -> Result<Vec<(Runs, Option<Lease>)>, StoreError> {
    let table = queue::settings(space).await?;
    let runs = queue::add_runs(space, new).await?;
    Ok(runs.into_iter().zip(new).map(|(runs, (name, _))| (runs, table.of(name).lease)).collect())
}

impl Wakes for Subscription {
    async fn recv(&mut self) -> Wake {
        match Self::recv(self).await {
            Some(wake) => Wake::read(&wake.payload),
            // The store is closed; what the calls say counts.
            None => std::future::pending().await,
        }
    }
}

impl Link for SpaceLink {
    type Wakes = Subscription;

    fn namespace(&self) -> &str {
        self.space.namespace().as_str()
    }

    fn now_us(&self) -> i64 {
        self.space.clock().now_us()
    }

    fn mono(&self) -> Instant {
        clock::mono()
    }

    fn surely_at(&self, bucket: Bucket, at: UnixMs) -> Option<Instant> {
        self.space.surely_at(bucket, at)
    }

    async fn sleep_until(&self, at: Instant) {
        self.timer.until(at).await;
    }

    async fn group(&self, code: u32) -> Result<LaneGroup, StoreError> {
        self.space.group_of(code).await
    }

    async fn frozen(&self) -> Result<Freeze, StoreError> {
        queue::frozen(&self.space).await
    }

    async fn beat(&self, record: &ExecutorRecord) -> Result<(), StoreError> {
        self.space.keep_spread().await?;
        member::beat_executor(&self.space, record).await
    }

    async fn runs(&self, new: &[(QueueName, Runs)]) -> Result<Vec<(Runs, Option<Lease>)>, StoreError> {
        add_runs(&self.space, new).await
    }

    async fn leave(&self) -> Result<Vec<Offer>, StoreError> {
        member::leave_executor(&self.space, &self.id).await
    }

    async fn roll(&self) -> Result<Vec<ExecutorRecord>, StoreError> {
        member::executors(&self.space).await
    }

    async fn sign_off(&self, id: &str) -> Result<Vec<Offer>, StoreError> {
        member::leave_executor(&self.space, id).await
    }

    fn wakes(&self) -> Subscription {
        member::inbox_wakes(&self.space, &self.id)
    }

    async fn take(&self, ask: Take) -> Result<Taken, StoreError> {
        member::take(&self.space, &self.id, ask).await
    }

    async fn tell_room(&self, pod: &str) {
        // Nobody depends on a hint.
        let _ = member::tell_room(&self.space, pod, &self.id).await;
    }

    async fn start(&self, bucket: Bucket, rows: &[StartRow]) -> Result<Vec<StartAnswer>, StoreError> {
        run::start(&self.space, bucket, &self.id, rows).await
    }

    async fn renew(&self, bucket: Bucket, rows: &[StartRow]) -> Result<Vec<StartAnswer>, StoreError> {
        run::renew(&self.space, bucket, &self.id, rows).await
    }

    async fn ack(&self, bucket: Bucket, rows: &[AckRow], again: bool) -> Result<Vec<AckAnswer>, StoreError> {
        run::ack(&self.space, bucket, &self.id, rows, again).await
    }

    async fn mark(
        &self,
        execution: ExecutionId,
        field: &[u8],
        value: Bytes,
    ) -> Result<MarkAnswer, StoreError> {
        run::mark(&self.space, execution.id, execution.grant, field, value).await
    }

    async fn marked(&self, id: TaskId, field: &[u8]) -> Result<Option<Bytes>, StoreError> {
        run::marked(&self.space, id, field).await
    }

    async fn unmark(&self, id: TaskId) -> Result<(), StoreError> {
        run::unmark(&self.space, id).await
    }

    async fn daily(&self, name: &str, subject: u64) -> Result<bool, StoreError> {
        run::daily(&self.space, name, subject).await
    }

    async fn release(
        &self,
        bucket: Bucket,
        cause: &'static str,
        rows: &[(TaskId, Grant)],
    ) -> Result<usize, StoreError> {
        let answers = due::release(&self.space, bucket, &self.id, cause, rows).await?;
        Ok(answers.iter().filter(|answer| !matches!(answer, ReleaseAnswer::Stale)).count())
    }
}
