//! `PATCH /v1/tasks/{id}`: what a task is, changed in whatever state it is.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::poll::execution;
use super::tasks::id;
use super::wire::{Out, Payload, Wire, payload};
use crate::client::{ClientError, Edit, Edited};
use crate::model::{FieldError, Reason, TaskId};
use axum::extract::{Path, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What of a task shall change; what is not named stays as it is, and a time of 0 takes a time-out away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "payload": "hello again", "retries": 5 }))]
pub(super) struct EditBody {
    /// The payload as text (in msgpack: as text or bytes), at most 1 MiB.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    payload: Option<Payload>,
    /// The payload in base64, instead of `payload`.
    #[serde(default)]
    payload_base64: Option<String>,
    /// Tries after the first one.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 254)]
    retries: Option<i64>,
    /// Wait before them: `fixed:200ms`, `linear:5s:10m` or `exponential:5s:x5:1h`.
    #[serde(default)]
    backoff: Option<String>,
    /// Longest run of its handler, in ms.
    #[serde(default)]
    #[schema(minimum = 0)]
    timeout_ms: Option<i64>,
    /// Lease of the started task, in ms.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 86_400_000)]
    lease_ms: Option<i64>,
    /// It is skipped when it has not started this long after it is due.
    #[serde(default)]
    #[schema(minimum = 0)]
    start_within_ms: Option<i64>,
    /// It expires this long after it is due, wherever it is then.
    #[serde(default)]
    #[schema(minimum = 0)]
    expire_after_ms: Option<i64>,
    /// The subscription that hears of its end: a name, or a web address.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 2_048)]
    notify: Option<String>,
    /// Only while this attempt is the current one: for a worker that edits its own task.
    #[serde(default)]
    execution_id: Option<String>,
}

/// What an edit did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "id": "0mBBZ-RGXFDo9dTn", "state": "pending", "changed": true }))]
pub(super) struct EditAnswer {
    /// The task.
    #[schema(value_type = String)]
    id: TaskId,
    /// The state it was in: pending, running or dead.
    state: String,
    /// Whether this request changed something.
    changed: bool,
}

/// A field as it is called in the body.
fn named(field: &'static str) -> &'static str {
    match field {
        "timeout" => "timeout_ms",
        "lease" => "lease_ms",
        "start_within" => "start_within_ms",
        "expire_after" => "expire_after_ms",
        "execution" => "execution_id",
        other => other,
    }
}

/// Change a task that is pending, running or dead.
///
/// What runs goes on with the payload and the time-outs it began with; its retries and total time-out count from now on, the
/// rest from the next attempt on.
#[utoipa::path(
    patch, path = "/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "its id")),
    request_body = EditBody,
    responses((status = 200, description = "what was done", body = EditAnswer))
)]
pub(super) async fn edit(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    Wire(body): Wire<EditBody>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    let wrong = |value: i64| {
        FieldError::new("retries", Reason::OutOfRange, format!("{value} must lie between 0 and 254"))
    };
    let edit = Edit {
        payload: payload(body.payload, body.payload_base64.as_deref())?,
        retries: body.retries.map(|n| u32::try_from(n).map_err(|_| wrong(n))).transpose()?,
        backoff: body.backoff.as_deref().map(str::parse).transpose()?,
        timeout_ms: body.timeout_ms,
        lease_ms: body.lease_ms,
        start_within_ms: body.start_within_ms,
        expire_after_ms: body.expire_after_ms,
        notify: body.notify,
    };
    if edit == Edit::default() {
        return Err(Problem::field("body", Reason::Missing, "it names nothing that shall change"));
    }
    let execution = body.execution_id.as_deref().map(execution).transpose()?;
    caller.must_have_task(&api.client, id).await?;
    let done = api.client.edit(id, &edit, execution, caller.who()).await;
    let Edited { state, changed } = done.map_err(|error| match error {
        ClientError::Field(error) => FieldError { field: named(error.field), ..error }.into(),
        error => Problem::from(error),
    })?;
    out.ok(&EditAnswer { id, state: state.to_string(), changed })
}
