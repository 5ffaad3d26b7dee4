//! `/v1/poll`: executors in any language that reach nothing but this port ask for tasks.

use super::Api;
use super::acks::{AckBody, AckedRow, acked, rows};
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Format, Out, Payload, Wire};
use crate::executor::door::{Handed, WORKER_ID_MAX_BYTES, Wish, Worker};
use crate::limits;
use crate::model::field::shown;
use crate::model::lane::check_name;
use crate::model::{ExecutionId, Labels, QueueName, Reason};
use axum::extract::{Path, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// A worker that asks for tasks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "worker": "mailer-7f3a", "queues": ["mail"], "slots": 16, "in_hand": 0, "max": 16, "wait_ms": 20_000
}))]
pub(super) struct PollBody {
    /// Its id, unique among workers: two that share one take each other's tasks.
    #[schema(min_length = 1, max_length = 27)]
    worker: String,
    /// Its name in lists; its id if not given.
    #[serde(default)]
    name: Option<String>,
    /// Queues it serves; all if not given.
    #[serde(default)]
    #[schema(max_items = 1_024)]
    queues: Vec<String>,
    /// Labels it has.
    #[serde(default)]
    #[schema(max_items = 8)]
    labels: Vec<String>,
    /// Tasks it runs at once.
    #[schema(minimum = 1, maximum = 10_000)]
    slots: u32,
    /// Tasks it has in hand, whose outcomes it has not reported yet.
    #[serde(default)]
    in_hand: u32,
    /// At most so many more; as many as it has slots free if not given.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000)]
    max: Option<u32>,
    /// How long to wait for the first one, in ms; 20,000 if not given. The answer comes with the first.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30_000)]
    wait_ms: Option<i64>,
    /// Its version, for lists.
    #[serde(default)]
    version: Option<String>,
    /// Outcomes to be reported on the way, as by /v1/acks.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    acks: Vec<AckBody>,
    /// Executions of earlier answers that have arrived, each once. A worker that gives this with every poll, be it empty,
    /// and has one poll open at a time, gets back at once what was in an answer that it did not get; of one that
    /// never gives it such tasks come back when their leases lapse.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    arrived: Option<Vec<String>>,
}

/// A task that was handed over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "id": "0mBBZ-RGXFDo9dTn", "queue": "mail", "priority": "P3",
    "due": "2026-12-24T17:00:00Z", "attempt": 1, "lag_ms": 3, "lease_ms": 30_000,
    "lease_until": "2026-12-24T17:00:30Z", "payload_base64": "aGVsbG8="
}))]
pub(super) struct PolledTask {
    /// The name of this attempt: its outcome is reported under it, and it is fit as an idempotency key.
    execution_id: String,
    /// The task, the same in every attempt.
    id: String,
    /// Its queue.
    queue: String,
    /// Labels it asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    /// How urgent it is.
    priority: String,
    /// When it was due.
    due: String,
    /// 1 for the first attempt.
    attempt: u32,
    /// Its idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Its placement key.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    /// Its plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    /// Hand-over − due, by Redis's clock. Send it back with the outcome.
    lag_ms: i64,
    /// How long its lease is.
    lease_ms: i64,
    /// When its lease lapses unless it is renewed; the attempt has then failed.
    lease_until: String,
    /// How long it may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u32>,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// Name of the key that the payload was encrypted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
    /// The payload, byte for byte (msgpack only).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    payload: Option<Payload>,
    /// The payload in base64 (JSON only).
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// What a poll brought.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PollAnswer {
    /// The executor as lists and histories show it.
    executor: String,
    /// The tasks; none when nothing came in time.
    tasks: Vec<PolledTask>,
    /// What became of the outcomes that came along, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    acks: Vec<AckedRow>,
}

pub(super) fn worker_id(text: &str) -> Result<(), Problem> {
    check_name("worker", text, WORKER_ID_MAX_BYTES)?;
    Ok(())
}

pub(super) fn range(field: &'static str, value: i64, low: i64, high: i64) -> Result<i64, Problem> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Problem::field(field, Reason::OutOfRange, format!("{value} must lie between {low} and {high}")))
}

/// Take tasks, and say that this worker lives.
///
/// The answer comes with the first task, or when the wait is over; a worker that holds no poll open and renews
/// nothing for 9 seconds counts as lost. A task that is handed over is the worker's until its lease lapses: report its
/// outcome by /v1/acks before that, or renew it. Its attempt has begun with the worker's first word about it (an
/// outcome, a renewal, progress, `arrived`); one that lapses without any is not counted as failed.
#[utoipa::path(
    post, path = "/v1/poll", tag = "work", request_body = PollBody,
    responses((status = 200, description = "tasks, if there are any", body = PollAnswer))
)]
pub(super) async fn poll(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<PollBody>,
) -> Result<Response, Problem> {
    worker_id(&body.worker)?;
    let queues: Vec<QueueName> =
        body.queues.iter().map(|queue| QueueName::new(queue)).collect::<Result<_, _>>()?;
    if queues.len() > limits::POLL_QUEUES_MAX {
        let message =
            format!("at most {} are allowed; one that serves more serves all", limits::POLL_QUEUES_MAX);
        return Err(Problem::field("queues", Reason::TooMany, message));
    }
    if queues.is_empty() {
        caller.must_have_all()?;
    }
    queues.iter().try_for_each(|queue| caller.must_have(queue.as_str()))?;
    let slots = range("slots", body.slots.into(), 1, limits::SLOTS_MAX as i64)?;
    range("in_hand", body.in_hand.into(), 0, i64::from(u32::MAX))?;
    let most = range(
        "max",
        body.max.map_or(limits::BATCH_MAX_ROWS as i64, i64::from),
        1,
        limits::BATCH_MAX_ROWS as i64,
    )?;
    let wait = range("wait_ms", body.wait_ms.unwrap_or(20_000), 0, limits::POLL_WAIT_MAX_MS)?;
    let name = body.name.unwrap_or_else(|| body.worker.clone());
    check_name("name", &name, limits::QUEUE_MAX_BYTES)?;
    let version = body.version.unwrap_or_default();
    if version.len() > limits::LABEL_MAX_BYTES {
        return Err(Problem::field("version", Reason::TooLong, "at most 64 bytes are allowed"));
    }
    let small = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    let worker = Worker {
        id: body.worker,
        name,
        queues,
        labels: Labels::new(&body.labels)?,
        slots: small(slots),
        version,
        host: caller.who().to_owned(),
    };
    let rows = rows(body.acks)?;
    let arrived = body.arrived.map(|arrived| {
        at_most("arrived", arrived.len())?;
        let one = |(at, text): (usize, &String)| {
            execution(text).map_err(|problem| problem.of(format!("arrived[{at}]")))
        };
        arrived.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()
    });
    let arrived = arrived.transpose()?;
    let _room = api.rooms.polls.try_acquire().map_err(|_| {
        Problem::too_many("busy", format!("{} polls are open already", limits::HTTP_POLLS_MAX))
    })?;
    let executor = Worker::executor(&worker.id);
    let acks = acked(&api, &executor, rows, false).await?;
    let wish = Wish {
        in_hand: body.in_hand,
        most: small(most),
        wait: Duration::from_millis(wait.unsigned_abs()).min(api.poll_wait),
        tells: arrived.is_some(),
    };
    let handed = async {
        if let Some(arrived) = &arrived {
            api.door.arrived(&worker.id, arrived).await?;
        }
        api.door.poll(&worker, wish).await
    };
    let handed = match handed.await {
        Ok(handed) => handed,
        // The outcomes that came along stand; the next poll brings tasks again.
        Err(error) if !acks.is_empty() => {
            tracing::warn!(%error, "a poll brings nothing");
            Vec::new()
        }
        Err(error) => return Err(error.into()),
    };
    let tasks = handed.into_iter().map(|task| polled(task, out)).collect();
    out.ok(&PollAnswer { executor, tasks, acks })
}

/// An execution as it is written.
pub(super) fn execution(text: &str) -> Result<ExecutionId, Problem> {
    text.parse::<ExecutionId>().map_err(|_| {
        Problem::field("execution_id", Reason::InvalidType, format!("{} is no execution id", shown(text)))
    })
}

/// Refuses a list that is longer than a batch.
pub(super) fn at_most(field: &'static str, given: usize) -> Result<(), Problem> {
    if given <= limits::BATCH_MAX_ROWS {
        return Ok(());
    }
    let message = format!("{given} are given; at most {} at a time are allowed", limits::BATCH_MAX_ROWS);
    Err(Problem::field(field, Reason::TooMany, message))
}

fn polled(task: Handed, out: Out) -> PolledTask {
    let text = |bytes: bytes::Bytes| String::from_utf8_lossy(&bytes).into_owned();
    let (payload, payload_base64) = match out.0 {
        Format::Msgpack => (Some(Payload(task.payload)), None),
        Format::Json => (None, Some(STANDARD.encode(&task.payload))),
    };
    PolledTask {
        execution_id: task.execution.to_string(),
        id: task.execution.id.to_string(),
        queue: task.queue.to_string(),
        labels: task.labels.as_slice().to_vec(),
        priority: task.priority.to_string(),
        due: task.due.to_string(),
        attempt: task.attempt,
        key: task.key.map(text),
        placement: task.placement.map(text),
        plan: task.plan.map(|plan| plan.to_string()),
        lag_ms: task.lag_ms,
        lease_ms: task.lease_ms,
        lease_until: task.lease_until.to_string(),
        timeout_ms: task.timeout_ms,
        traceparent: task.extras.traceparent,
        sealed: task.extras.sealed,
        payload,
        payload_base64,
    }
}

/// A worker that left.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "handed_back": 2 }))]
pub(super) struct LeftAnswer {
    /// Tasks that lay in its inbox and went back at once.
    handed_back: usize,
}

/// Leave in order: what was on its way to this worker goes back at once.
#[utoipa::path(
    delete, path = "/v1/workers/{worker}", tag = "work", params(("worker" = String, Path, description = "its id")),
    responses((status = 200, description = "it is no longer listed", body = LeftAnswer))
)]
pub(super) async fn leave(
    State(api): State<Api>,
    out: Out,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    worker_id(&id)?;
    out.ok(&LeftAnswer { handed_back: api.door.leave(&id).await? })
}
