//! What a worker says of itself and asks for, and what it is handed.

use crate::executor::ANY_QUEUE;
use crate::executor::link::ExecutorRecord;
use crate::model::spec::Extras;
use crate::model::{ExecutionId, Labels, LaneGroup, Priority, QueueName, Spec, UnixMs};
use crate::store::member::Offer;
use bytes::Bytes;
use std::time::Duration;

/// A worker as it describes itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its id, unique among workers: two that share one take each other's tasks.
    pub id: String,
    /// Its name in lists.
    pub name: String,
    /// Queues it serves; none for all.
    pub queues: Vec<QueueName>,
    /// Labels it has.
    pub labels: Labels,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Its version.
    pub version: String,
    /// Where it is.
    pub host: String,
}

/// Before a worker's id, it is an executor's.
const PREFIX: &str = "poll.";

/// Longest id of a worker: with the prefix it fits into an executor's id.
pub const WORKER_ID_MAX_BYTES: usize = 27;

impl Worker {
    /// Its id as an executor: no executor that runs by itself has one that begins so.
    pub fn executor(id: &str) -> String {
        format!("{PREFIX}{id}")
    }

    /// The id of the worker that is this executor.
    pub(super) fn of_executor(id: &str) -> Option<&str> {
        id.strip_prefix(PREFIX)
    }

    /// What it says of itself; who knows more of it adds that.
    pub(super) fn record(&self, in_hand: u32, clock_offset_us: i64) -> ExecutorRecord {
        let mut queues: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        if queues.is_empty() {
            queues.push(ANY_QUEUE.to_owned());
        }
        ExecutorRecord {
            id: Self::executor(&self.id),
            name: self.name.clone(),
            queues,
            labels: self.labels.as_slice().to_vec(),
            slots: self.slots,
            capacity: self.slots,
            version: self.version.clone(),
            host: self.host.clone(),
            busy: in_hand,
            clock_offset_us,
            ..ExecutorRecord::default()
        }
    }
}

/// A task that is handed to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Handed {
    /// This attempt's name; its outcome is reported under it.
    pub execution: ExecutionId,
    /// Its queue.
    pub queue: QueueName,
    /// Labels it asked for.
    pub labels: Labels,
    /// How urgent it is.
    pub priority: Priority,
    /// When it was due.
    pub due: UnixMs,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Its idempotency key.
    pub key: Option<Bytes>,
    /// Its placement key.
    pub placement: Option<Bytes>,
    /// Its plan.
    pub plan: Option<crate::model::PlanName>,
    /// Hand-over − due, in ms of Redis's time.
    pub lag_ms: i64,
    /// How long its lease is.
    pub lease_ms: i64,
    /// When its lease lapses unless it is renewed.
    pub lease_until: UnixMs,
    /// How long it may run.
    pub timeout_ms: Option<u32>,
    /// Cost estimate, routing key, trace context.
    pub extras: Extras,
    /// The payload, byte for byte.
    pub payload: Bytes,
}

/// What a worker asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish {
    /// Tasks it has in hand.
    pub in_hand: u32,
    /// At most so many more, within its slots.
    pub most: u32,
    /// How long it waits for the first.
    pub wait: Duration,
    /// Whether it says with each poll what has arrived of earlier answers.
    pub tells: bool,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It is still the worker's, until then; whether somebody wishes it to stop.
    Until(UnixMs, bool),
    /// It is somebody else's, or has ended.
    Stale,
}

pub(super) fn handed(
    execution: ExecutionId,
    offer: &Offer,
    group: LaneGroup,
    spec: Spec,
    lease_ms: i64,
    lease_until: UnixMs,
    lag_ms: i64,
) -> Handed {
    Handed {
        execution,
        queue: group.queue,
        labels: group.labels,
        priority: spec.lane.priority(),
        due: offer.due,
        attempt: offer.attempt,
        key: spec.key.map(|key| key.bytes),
        placement: spec.placement,
        plan: spec.plan,
        lag_ms,
        lease_ms,
        lease_until,
        timeout_ms: spec.timeout_ms,
        extras: spec.extras,
        payload: spec.payload,
    }
}
