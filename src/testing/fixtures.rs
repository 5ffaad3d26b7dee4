//! Tasks, rows and claims for tests, short to write.

use crate::model::lane::Tier;
use crate::model::spec::Extras;
use crate::model::{
    Bucket, LaneCode, LaneGroup, Namespace, Priority, QueueName, Retry, Spec, TaskId, UnixMs,
};
use crate::store::due::{self, Claim, ClaimAnswer, Claimed, Granted};
use crate::store::intake::{self, Row, RowAnswer, Sending, SubmitAnswer};
use crate::store::run::{self, AckAnswer, AckRow, Outcome};
use crate::store::{Birth, Space, check};
use bytes::Bytes;

use super::bed::Bed;

/// The time at which tests with injected time begin.
pub const T0: i64 = 1_764_511_260_000;

/// A namespace of its own with one bucket, at time [`T0`].
pub async fn space(bed: &Bed) -> Space {
    let store = bed.store().await.expect("store");
    let namespace = Namespace::new(bed.namespace()).expect("namespace");
    let birth = Birth { key_buckets: 1, buckets: 1, holders: 1 };
    let space = Space::open_as(store, namespace, birth).await.expect("space");
    space.inject_now(Some(T0));
    space
}

/// The only bucket.
pub fn bucket() -> Bucket {
    Bucket::default()
}

/// The code of a queue at a priority.
pub async fn lane(space: &Space, queue: &str, priority: Priority) -> LaneCode {
    let group = LaneGroup::of(QueueName::new(queue).expect("queue"));
    LaneCode::new(space.lane_group(&group).await.expect("lane"), priority, Tier::FRESH)
}

/// A plain spec.
pub fn spec(lane: LaneCode, due_ms: i64) -> Spec {
    Spec {
        lane,
        due: UnixMs(due_ms),
        retry: Retry { jitter_percent: 0, ..Retry::default() },
        key: None,
        placement: None,
        plan: None,
        deadline: None,
        start_before: None,
        lease_ms: None,
        timeout_ms: None,
        bound: false,
        extras: Extras::default(),
        payload: Bytes::from_static(b"payload"),
    }
}

/// A row with a fresh id.
pub fn row(spec: Spec) -> Row {
    Row::new(TaskId::new(spec.due.minute(), bucket(), fastrand::u64(..)), spec)
}

/// Submits rows; all must be answered.
pub async fn submit(space: &Space, rows: &[Row]) -> Vec<RowAnswer> {
    match intake::submit(space, bucket(), rows, Sending::default()).await.expect("submit") {
        SubmitAnswer::Rows { answers, .. } => answers,
        SubmitAnswer::SpreadChanged => panic!("the bucket is closed"),
    }
}

/// Submits one task of a queue and answers its id.
pub async fn task(space: &Space, queue: &str, due_ms: i64) -> TaskId {
    let row = row(spec(lane(space, queue, Priority::P3).await, due_ms));
    assert_eq!(submit(space, std::slice::from_ref(&row)).await, [RowAnswer::Created]);
    row.id
}

/// A claim that takes everything.
pub fn claim_all(pod: &str) -> Claim {
    Claim { limit: 1_000, normal_limit: 1_000, ..Claim::new(pod, *b"permit-of-a-test") }
}

/// Claims; the pod must hold the bucket.
pub async fn claim(space: &Space, claim: &Claim) -> Claimed {
    match due::claim(space, bucket(), claim).await.expect("claim") {
        ClaimAnswer::Held(claimed) => claimed,
        ClaimAnswer::NotHolder { until } => panic!("another pod holds the bucket until {until}"),
    }
}

/// Audits the namespace; nothing may be damaged.
pub async fn sound(space: &Space) {
    let report = check::check(space, check::CheckOptions::default()).await.expect("check");
    assert!(report.ok, "{report:#?}");
}

/// An ack of a granted task.
pub fn ack_row(task: &Granted, outcome: Outcome) -> AckRow {
    AckRow { id: task.id, grant: task.grant, outcome, lag_ms: 1, took_ms: 2 }
}

/// Acks all as done.
pub async fn ack_done(space: &Space, tasks: &[Granted]) -> Vec<AckAnswer> {
    let rows: Vec<_> = tasks.iter().map(|task| ack_row(task, Outcome::Succeeded)).collect();
    run::ack(space, bucket(), "ex", &rows, false).await.expect("ack")
}
