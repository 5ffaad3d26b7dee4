//! `/v1/poll`, `/v1/acks`, `/v1/renew`: executors in any language that reach nothing but this port.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Format, Out, Payload, Wire};
use crate::executor::door::{Handed, Held, WORKER_ID_MAX_BYTES, Wish, Worker};
use crate::limits;
use crate::model::field::shown;
use crate::model::lane::check_name;
use crate::model::{ExecutionId, Labels, QueueName, Reason, UnixMs};
use crate::store::run::{AckAnswer, AckRow, Outcome};
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

fn range(field: &'static str, value: i64, low: i64, high: i64) -> Result<i64, Problem> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Problem::field(field, Reason::OutOfRange, format!("{value} must lie between {low} and {high}")))
}

/// Take tasks, and say that this worker lives.
///
/// The answer comes with the first task, or when the wait is over; a worker that holds no poll open and renews
/// nothing for 9 seconds counts as lost. A task is started when it is handed over: report its outcome by
/// /v1/acks before its lease lapses, or renew it.
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
    let _room = api.rooms.polls.try_acquire().map_err(|_| {
        Problem::too_many("busy", format!("{} polls are open already", limits::HTTP_POLLS_MAX))
    })?;
    let executor = Worker::executor(&worker.id);
    let acks = acked(&api, &executor, rows, false).await?;
    let wish = Wish {
        in_hand: body.in_hand,
        most: small(most),
        wait: Duration::from_millis(wait.unsigned_abs()).min(api.poll_wait),
    };
    let handed = match api.door.poll(&worker, wish).await {
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

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutcomeName {
    /// Done.
    Succeeded,
    /// Failed: tried again if tries are left.
    Failed,
    /// Failed for good: a dead letter at once.
    Fatal,
    /// Not now: to be tried again after `retry_after_ms`.
    RetryAfter,
    /// Stopped because somebody wished so.
    Cancelled,
    /// Not begun: to be handed to somebody else, uncounted.
    HandedBack,
}

/// An outcome to be reported.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "outcome": "succeeded", "took_ms": 12, "lag_ms": 3
}))]
pub(super) struct AckBody {
    /// The attempt.
    execution_id: String,
    /// How it ended.
    outcome: OutcomeName,
    /// What went wrong; the last 1,024 bytes are kept.
    #[serde(default)]
    error: Option<String>,
    /// For `retry_after`: after how long, at most a week.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 604_800_000)]
    retry_after_ms: Option<i64>,
    /// For `retry_after`: whether it counts as a failure; it does not if not given.
    #[serde(default)]
    counted: bool,
    /// The `lag_ms` that the task was handed over with.
    #[serde(default)]
    lag_ms: Option<i64>,
    /// How long it ran.
    #[serde(default)]
    #[schema(minimum = 0)]
    took_ms: Option<i64>,
}

/// Outcomes to be reported.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "mailer-7f3a", "acks": [
    { "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "outcome": "failed", "error": "no route to host" }
] }))]
pub(super) struct AcksBody {
    /// Who reports.
    #[schema(min_length = 1, max_length = 27)]
    worker: String,
    /// The outcomes.
    #[schema(max_items = 1_000)]
    acks: Vec<AckBody>,
    /// Whether some of them were sent before and no answer came.
    #[serde(default)]
    again: bool,
}

/// What became of an outcome.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({ "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "state": "succeeded" }))]
pub(super) struct AckedRow {
    /// The attempt.
    execution_id: String,
    /// `succeeded`, `retrying`, `dead`, `cancelled`, `skipped`, `handed_back`; `known`: it had been accepted before;
    /// `stale`: the attempt is no longer the current one, and nothing was changed.
    state: &'static str,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
}

/// What became of the outcomes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AcksAnswer {
    /// In the order of the request.
    acks: Vec<AckedRow>,
}

/// An outcome, or nothing for a task that is handed back.
type Reported = (ExecutionId, Option<AckRow>);

pub(super) fn execution(text: &str) -> Result<ExecutionId, Problem> {
    text.parse::<ExecutionId>().map_err(|_| {
        Problem::field("execution_id", Reason::InvalidType, format!("{} is no execution id", shown(text)))
    })
}

fn rows(acks: Vec<AckBody>) -> Result<Vec<Reported>, Problem> {
    if acks.len() > limits::BATCH_MAX_ROWS {
        let message =
            format!("{} are given; at most {} at a time are allowed", acks.len(), limits::BATCH_MAX_ROWS);
        return Err(Problem::field("acks", Reason::TooMany, message));
    }
    acks.into_iter().map(reported).collect()
}

fn reported(ack: AckBody) -> Result<Reported, Problem> {
    let execution = execution(&ack.execution_id)?;
    let mut error = ack.error.unwrap_or_default();
    if error.len() > limits::ERROR_TAIL_MAX_BYTES {
        let mut from = error.len() - limits::ERROR_TAIL_MAX_BYTES;
        while !error.is_char_boundary(from) {
            from += 1;
        }
        error.drain(..from);
    }
    let outcome = match ack.outcome {
        OutcomeName::Succeeded => Outcome::Succeeded,
        OutcomeName::Failed => Outcome::Failed { error },
        OutcomeName::Fatal => Outcome::Fatal { error },
        OutcomeName::Cancelled => Outcome::Cancelled,
        OutcomeName::HandedBack => return Ok((execution, None)),
        OutcomeName::RetryAfter => {
            let ms = ack
                .retry_after_ms
                .ok_or_else(|| Problem::field("retry_after_ms", Reason::Missing, "retry_after needs it"))?;
            Outcome::RetryAfter {
                ms: range("retry_after_ms", ms, 0, limits::BACKOFF_MAX_MS)?,
                counted: ack.counted,
                error,
            }
        }
    };
    let row = AckRow {
        id: execution.id,
        grant: execution.grant,
        outcome,
        lag_ms: ack.lag_ms.unwrap_or(-1).max(-1),
        took_ms: ack.took_ms.unwrap_or(0).max(0),
    };
    Ok((execution, Some(row)))
}

async fn acked(
    api: &Api,
    executor: &str,
    rows: Vec<Reported>,
    again: bool,
) -> Result<Vec<AckedRow>, Problem> {
    let mut out: Vec<AckedRow> = rows
        .iter()
        .map(|(execution, _)| AckedRow { execution_id: execution.to_string(), state: "stale", due: None })
        .collect();
    let (mut places, mut acks, mut back) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (execution, row)) in rows.into_iter().enumerate() {
        match row {
            Some(row) => {
                places.push(at);
                acks.push(row);
            }
            None => back.push((at, (execution.id, execution.grant))),
        }
    }
    if !acks.is_empty() {
        for (place, answer) in places.into_iter().zip(api.door.ack(executor, acks, again).await?) {
            let (state, due) = match answer {
                AckAnswer::Succeeded => ("succeeded", None),
                AckAnswer::Retrying { due } => ("retrying", Some(due)),
                AckAnswer::Dead => ("dead", None),
                AckAnswer::Cancelled => ("cancelled", None),
                AckAnswer::Skipped => ("skipped", None),
                AckAnswer::Stale => ("stale", None),
                AckAnswer::Known => ("known", None),
            };
            (out[place].state, out[place].due) = (state, due.map(|due: UnixMs| due.to_string()));
        }
    }
    for (place, row) in back {
        if api.door.give_back(executor, "the worker gave it back", &[row]).await == 1 {
            out[place].state = "handed_back";
        }
    }
    Ok(out)
}

/// Report outcomes.
///
/// Each is accepted once, and only while its attempt is the current one. Safe to send again, with `again`.
#[utoipa::path(
    post, path = "/v1/acks", tag = "work", request_body = AcksBody,
    responses((status = 200, description = "one answer for each, in order", body = AcksAnswer))
)]
pub(super) async fn acks(
    State(api): State<Api>,
    out: Out,
    Wire(body): Wire<AcksBody>,
) -> Result<Response, Problem> {
    worker_id(&body.worker)?;
    let rows = rows(body.acks)?;
    let acks = acked(&api, &Worker::executor(&body.worker), rows, body.again).await?;
    out.ok(&AcksAnswer { acks })
}

/// What a worker still holds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "mailer-7f3a", "executions": [
    { "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "lease_ms": 30_000 }
] }))]
pub(super) struct RenewBody {
    /// Who holds it.
    #[schema(min_length = 1, max_length = 27)]
    worker: String,
    /// What it holds.
    #[schema(max_items = 1_000)]
    executions: Vec<RenewRow>,
}

/// An attempt that goes on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewRow {
    /// The attempt.
    execution_id: String,
    /// How long it shall be good from now on; 30 s if not given.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 86_400_000)]
    lease_ms: Option<i64>,
}

/// What became of a renewal.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "state": "held", "lease_until": "2026-12-24T17:01:00Z", "cancel": false
}))]
pub(super) struct RenewedRow {
    /// The attempt.
    execution_id: String,
    /// `held`, or `stale`: it is somebody else's, or has ended; stop it.
    state: &'static str,
    /// When its lease lapses.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// Somebody wishes it to stop: stop it, and report it as cancelled.
    cancel: bool,
}

/// What became of the renewals.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RenewAnswer {
    /// In the order of the request.
    executions: Vec<RenewedRow>,
}

/// Renew what is still worked on, and hear of wishes to stop it.
#[utoipa::path(
    post, path = "/v1/renew", tag = "work", request_body = RenewBody,
    responses((status = 200, description = "one answer for each, in order", body = RenewAnswer))
)]
pub(super) async fn renew(
    State(api): State<Api>,
    out: Out,
    Wire(body): Wire<RenewBody>,
) -> Result<Response, Problem> {
    worker_id(&body.worker)?;
    if body.executions.len() > limits::BATCH_MAX_ROWS {
        let message = format!("at most {} at a time are allowed", limits::BATCH_MAX_ROWS);
        return Err(Problem::field("executions", Reason::TooMany, message));
    }
    let rows = body
        .executions
        .iter()
        .map(|row| {
            let lease_ms = row.lease_ms.unwrap_or(limits::LEASE_MS);
            let lease_ms = range("lease_ms", lease_ms, limits::LEASE_MIN_MS, limits::LEASE_MAX_MS)?;
            Ok((execution(&row.execution_id)?, lease_ms))
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let answers = api.door.renew(&Worker::executor(&body.worker), &rows).await?;
    let executions = rows
        .iter()
        .zip(answers)
        .map(|((execution, _), answer)| {
            let execution_id = execution.to_string();
            match answer {
                Held::Until(until, cancel) => {
                    RenewedRow { execution_id, state: "held", lease_until: Some(until.to_string()), cancel }
                }
                Held::Stale => RenewedRow { execution_id, state: "stale", lease_until: None, cancel: false },
            }
        })
        .collect();
    out.ok(&RenewAnswer { executions })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_cut_at_a_character() {
        let body = |error: String| AckBody {
            execution_id: "0mBBZ-RGXFDo9dTn.1.b73a057faa".to_owned(),
            outcome: OutcomeName::Failed,
            error: Some(error),
            retry_after_ms: None,
            counted: false,
            lag_ms: None,
            took_ms: None,
        };
        let Ok((_, Some(row))) = reported(body("é".repeat(600))) else { return };
        let Outcome::Failed { error } = row.outcome else { panic!("another outcome") };
        assert!(error.len() <= limits::ERROR_TAIL_MAX_BYTES && error.chars().all(|c| c == 'é'));
    }
}
