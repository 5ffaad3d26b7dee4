//! What the runtime asks of Redis, as a trait: the runtime's tests play the other side in memory.

use crate::model::{Bucket, Grant, LaneGroup, TaskId, UnixMs};
use bytes::Bytes;
use std::future::Future;
use std::time::Instant;

/// Placeholder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("no answer from redis to {script} within {timeout_ms} ms; the call may have been executed")]
    Timeout { script: &'static str, timeout_ms: u64 },
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
    pub fn cause(&self) -> &'static str {
        "timeout"
    }
}

#[derive(Debug, Clone, Default)]
pub struct ExecutorRecord {
    pub id: String,
    pub name: String,
    pub queues: Vec<String>,
    pub labels: Vec<String>,
    pub slots: u32,
    pub capacity: u32,
    pub urgent_slots: u32,
    pub version: String,
    pub host: String,
    pub pid: u32,
    pub load_ms: f64,
    pub busy: u32,
    pub draining: bool,
    pub journal: bool,
    pub clock_offset_us: i64,
    pub averages: Vec<(String, f64)>,
}

#[derive(Debug, Clone, Copy)]
pub struct Beat {
    pub now_ms: i64,
    pub epoch: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Take {
    pub normal: u32,
    pub urgent: u32,
    pub in_hand: u32,
    pub capacity: u32,
}

#[derive(Debug, Clone, Default)]
pub struct Taken {
    pub now_us: i64,
    pub offers: Vec<Offer>,
    pub more: bool,
    pub hungry: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Offer {
    pub id: TaskId,
    pub grant: Grant,
    pub group: u32,
    pub urgent: bool,
    pub due: UnixMs,
    pub attempt: u32,
    pub not_after: UnixMs,
    pub spec: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartRow {
    pub id: TaskId,
    pub grant: Grant,
    pub lease_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAnswer {
    Ok { deadline: UnixMs, cancel: bool },
    Stale,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckRow {
    pub id: TaskId,
    pub grant: Grant,
    pub outcome: Outcome,
    pub lag_ms: i64,
    pub took_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed { error: String },
    Fatal { error: String },
    RetryAfter { ms: i64, counted: bool, error: String },
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckAnswer {
    Succeeded,
    Retrying { due: UnixMs },
    Dead,
    Cancelled,
    Stale,
    Known,
}

/// Wake-ups: something was put into the inbox. A hint; a poll stands behind it.
pub(super) trait Wakes: Send + 'static {
    /// Completes at the next wake-up.
    fn recv(&mut self) -> impl Future<Output = ()> + Send;
}

/// Redis, as one executor sees it.
pub(super) trait Link: Send + Sync + 'static {
    /// Its wake-ups.
    type Wakes: Wakes;

    /// Redis time in µs, as estimated.
    fn now_us(&self) -> i64;
    /// The local monotonic clock.
    fn mono(&self) -> Instant;
    /// What a lane code stands for.
    fn group(&self, code: u32) -> impl Future<Output = Result<LaneGroup, StoreError>> + Send;
    /// Registers, or says that this executor is still there.
    fn beat(&self, record: &ExecutorRecord) -> impl Future<Output = Result<Beat, StoreError>> + Send;
    /// Leaves the registry; gives back what was still in the inbox.
    fn leave(&self) -> impl Future<Output = Result<Vec<Offer>, StoreError>> + Send;
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
    /// Hands back, uncounted.
    fn release(
        &self,
        bucket: Bucket,
        cause: &'static str,
        rows: &[(TaskId, Grant)],
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;
}
