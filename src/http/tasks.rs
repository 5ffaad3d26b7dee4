//! `/v1/tasks`: submitted, looked up, cancelled, moved.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::new_task::{TaskBody, due};
use super::wire::{Out, Payload, Wire, WireOr, clipped, header_text};
use crate::client::{Cancelled, Due, TaskView};
use crate::model::event::Event;
use crate::model::{FieldError, Reason, TaskId};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A task that stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": "0mBBZ-RGXFDo9dTn", "created": true, "due": "2026-12-24T17:00:00Z", "now": "2026-12-01T08:30:00Z"
}))]
pub(super) struct SubmittedBody {
    /// The id that stands: the new task's, or that of the first with its key.
    #[schema(value_type = String)]
    id: TaskId,
    /// Whether this request made it; else its key was taken.
    created: bool,
    /// When the task of this request was to be due.
    due: String,
    /// Redis's time of the request.
    now: String,
}

/// A task as it stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TaskAnswer {
    #[serde(flatten)]
    view: TaskView,
    /// The payload, where it is still kept and is text (in msgpack: its bytes).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    payload: Option<Payload>,
    /// The payload in base64, where it is still kept and is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// An id from a path.
pub(super) fn id(text: &str) -> Result<TaskId, Problem> {
    text.parse().map_err(|error: FieldError| FieldError { field: "id", ..error }.into())
}

/// Submit a task.
#[utoipa::path(
    post, path = "/v1/tasks", tag = "tasks", request_body = TaskBody,
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "the same as the field key"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context, carried to the executor"),
    ),
    responses(
        (status = 201, description = "created", body = SubmittedBody),
        (status = 200, description = "its key was taken: the id of the task that stands", body = SubmittedBody),
    )
)]
pub(super) async fn submit(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    out: Out,
    Wire(mut body): Wire<TaskBody>,
) -> Result<Response, Problem> {
    if let Some(key) = header_text(&headers, "idempotency-key")? {
        if body.key.as_deref().is_some_and(|given| given != key) {
            let message = "the header Idempotency-Key says something else";
            return Err(Problem::field("key", Reason::InvalidType, message));
        }
        body.key = Some(key.to_owned());
    }
    if body.traceparent.is_none() {
        body.traceparent = header_text(&headers, "traceparent")?.map(str::to_owned);
    }
    let task = body.into_task(&api.template)?;
    caller.must_have(task.queue.as_str())?;
    let done = api.client.submit(task).await?;
    let status = if done.created { StatusCode::CREATED } else { StatusCode::OK };
    let (due, now) = (done.due.to_string(), done.now.to_string());
    out.with(status, &SubmittedBody { id: done.id, created: done.created, due, now })
}

/// Show a task.
#[utoipa::path(
    get, path = "/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    let found = api.client.get(id).await?;
    let view = found.ok_or_else(|| {
        Problem::not_found(format!("there is no task {id}, or it ended too long ago to be remembered"))
    })?;
    caller.must_see(&view)?;
    answer(view, out)
}

/// A task with its payload.
pub(super) fn answer(mut view: TaskView, out: Out) -> Result<Response, Problem> {
    let (payload, payload_base64) = match view.payload.take() {
        Some(bytes) => out.payload(&bytes),
        None => (None, None),
    };
    out.ok(&TaskAnswer { view, payload, payload_base64 })
}

/// A task's life.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TraceAnswer {
    /// Its moves, in order.
    events: Vec<Event>,
    /// Events before this instant have been trimmed away; its submission may be among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    gone_before: Option<String>,
}

/// Tell a task's whole life.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/trace", tag = "tasks", params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "its moves, in order", body = TraceAnswer))
)]
pub(super) async fn trace(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    caller.must_have_task(&api.client, id).await?;
    let trace = api.client.trace(id).await?;
    if trace.events.is_empty() {
        return Err(Problem::not_found(format!("nothing is kept of a task {id}")));
    }
    let gone_before = trace.trimmed.map(|trimmed| trimmed.before.to_string());
    out.ok(&TraceAnswer { events: trace.events, gone_before })
}

/// Why a task is cancelled.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "cause": "the flight was cancelled" }))]
pub(super) struct CancelBody {
    /// Why, for its history; at most 200 characters are kept.
    #[serde(default)]
    cause: String,
}

/// What a cancel did.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CancelAnswer {
    /// The task.
    #[schema(value_type = String)]
    id: TaskId,
    /// `cancelled`: it will not run. `asked`: it runs, and its executor was asked to stop it.
    state: &'static str,
    /// Pod or executor that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
}

/// Cancel a task.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path, description = "its id")),
    request_body = Option<CancelBody>,
    responses((status = 200, description = "what was done", body = CancelAnswer))
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    WireOr(body): WireOr<CancelBody>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    caller.must_have_task(&api.client, id).await?;
    let cause = clipped(&body.cause, 200);
    let (state, holder) = match api.client.cancel(id, caller.who(), &cause).await? {
        Cancelled::Done => ("cancelled", None),
        Cancelled::Asked { holder } => ("asked", Some(holder)),
    };
    out.ok(&CancelAnswer { id, state, holder })
}

/// When a task shall be due.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "in_ms": 60_000 }))]
pub(super) struct RescheduleBody {
    /// So many ms after Redis's time of now.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 316_224_000_000i64)]
    in_ms: Option<i64>,
    /// At this instant (RFC 3339); one in the past means at once.
    #[serde(default)]
    at: Option<String>,
    /// At this instant, in ms since 1970.
    #[serde(default)]
    #[schema(minimum = 0)]
    at_ms: Option<i64>,
}

/// A task's due time that stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DueAnswer {
    /// The task.
    #[schema(value_type = String)]
    id: TaskId,
    /// When it is due.
    due: String,
}

/// Give a pending task another due time.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/reschedule", tag = "tasks", params(("id" = String, Path, description = "its id")),
    request_body = RescheduleBody,
    responses((status = 200, description = "the due time that stands", body = DueAnswer))
)]
pub(super) async fn reschedule(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    Wire(body): Wire<RescheduleBody>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    let due: Due = due(body.in_ms, body.at.as_deref(), body.at_ms)?.ok_or_else(|| {
        Problem::field("in_ms", Reason::Missing, "one of in_ms, at and at_ms must be given")
    })?;
    caller.must_have_task(&api.client, id).await?;
    let due = api.client.reschedule(id, due, caller.who()).await?.to_string();
    out.ok(&DueAnswer { id, due })
}

/// How urgent a task shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "priority": "P1" }))]
pub(super) struct ReprioritizeBody {
    /// P0 (most urgent) to P5.
    #[schema(pattern = "^P[0-5]$")]
    priority: String,
}

/// A task's priority that stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PriorityAnswer {
    /// The task.
    #[schema(value_type = String)]
    id: TaskId,
    /// How urgent it is.
    priority: String,
}

/// Give a pending task another priority.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/reprioritize", tag = "tasks",
    params(("id" = String, Path, description = "its id")), request_body = ReprioritizeBody,
    responses((status = 200, description = "the priority that stands", body = PriorityAnswer))
)]
pub(super) async fn reprioritize(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    Wire(body): Wire<ReprioritizeBody>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    let priority = body.priority.parse()?;
    caller.must_have_task(&api.client, id).await?;
    api.client.reprioritize(id, priority, caller.who()).await?;
    out.ok(&PriorityAnswer { id, priority: priority.to_string() })
}
