//! `/v1/queues`: what is set for queues, and whether they go on.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Out, Wire, WireOr, clipped};
use crate::client::{QueueChange, QueueView};
use crate::model::{FieldError, QueueName, QueueSettings, Reason};
use axum::extract::{Path, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Queues.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueuesAnswer {
    /// By name; those that tasks have been submitted to, or for which something is set.
    queues: Vec<QueueView>,
}

/// List queues with what is set for them.
#[utoipa::path(
    get, path = "/v1/queues", tag = "queues",
    responses((status = 200, description = "the queues that the caller has to do with", body = QueuesAnswer))
)]
pub(super) async fn list(State(api): State<Api>, caller: Caller, out: Out) -> Result<Response, Problem> {
    let mut queues = api.client.queues().await?;
    queues.retain(|view| caller.has(&view.queue));
    out.ok(&QueuesAnswer { queues })
}

fn name(text: &str, caller: &Caller) -> Result<QueueName, Problem> {
    let queue = QueueName::new(text)?;
    caller.must_have(queue.as_str())?;
    Ok(queue)
}

/// Show what is set for a queue; the settings of the installation count for the rest.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", tag = "queues", params(("queue" = String, Path, description = "its name")),
    responses((status = 200, description = "what is set for it", body = QueueView))
)]
pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let queue = name(&text, &caller)?;
    let settings = api.client.queue(&queue).await?;
    out.ok(&QueueView { queue: queue.to_string(), settings })
}

/// Settings to be changed; what is not named is left alone, and `null` takes a setting away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Object, example = json!({
    "retry": { "retries": 5, "backoff": "exponential:1s:x2:10m" }, "timeouts": { "execution_ms": 30_000 },
    "lease": "auto", "downstream": "apns"
}))]
pub(super) struct QueueBody(Map<String, Value>);

/// Change what is set for a queue; pods follow within a second.
#[utoipa::path(
    patch, path = "/v1/queues/{queue}", tag = "queues", params(("queue" = String, Path, description = "its name")),
    request_body = QueueBody,
    responses((status = 200, description = "what is set for it now, and the pods that do not follow yet", body = QueueChange))
)]
pub(super) async fn set(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    Wire(QueueBody(patch)): Wire<QueueBody>,
) -> Result<Response, Problem> {
    let queue = name(&text, &caller)?;
    if patch.contains_key("pause") {
        return Err(Problem::field("pause", Reason::InvalidType, "a queue is paused by POST …/pause"));
    }
    let mut refused = None;
    let done = api
        .client
        .queue_set(&queue, |settings| match patched(settings, &patch) {
            Ok(new) => {
                *settings = new;
                Ok(())
            }
            Err(problem) => {
                refused = Some(problem);
                Err(FieldError::new("body", Reason::InvalidType, "it is refused"))
            }
        })
        .await;
    match (refused, done) {
        (Some(problem), _) => Err(problem),
        (None, done) => out.ok(&done?),
    }
}

/// Settings with a merge patch applied (RFC 7396).
fn patched(settings: &QueueSettings, patch: &Map<String, Value>) -> Result<QueueSettings, Problem> {
    let internal = |error: serde_json::Error| {
        Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
    };
    let mut value = serde_json::to_value(settings).map_err(internal)?;
    merge(&mut value, patch);
    let new: QueueSettings = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "body".to_owned() } else { path };
        Problem::field(field, Reason::InvalidType, error.into_inner().to_string())
    })?;
    // Sections of other versions stay; new ones are most likely a mistake.
    if let Some(unknown) = new.unknown.keys().find(|key| !settings.unknown.contains_key(*key)) {
        return Err(Problem::field(unknown.clone(), Reason::Unknown, "there is no such setting"));
    }
    new.check()?;
    Ok(new)
}

fn merge(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            Value::Object(inner) => merge(target.entry(key.clone()).or_insert(Value::Null), inner),
            other => drop(target.insert(key.clone(), other.clone())),
        }
    }
    target.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
}

/// Why a queue is paused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "why": "the gateway is being moved" }))]
pub(super) struct PauseBody {
    /// Why, for those who look at it later; at most 200 characters are kept.
    #[serde(default)]
    why: String,
}

/// Claim nothing more of a queue; what was claimed goes on.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", tag = "queues",
    params(("queue" = String, Path, description = "its name")), request_body = Option<PauseBody>,
    responses((status = 200, description = "what is set for it now, and the pods that do not follow yet", body = QueueChange))
)]
pub(super) async fn pause(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    WireOr(body): WireOr<PauseBody>,
) -> Result<Response, Problem> {
    let queue = name(&text, &caller)?;
    out.ok(&api.client.pause(&queue, caller.who(), &clipped(&body.why, 200)).await?)
}

/// Let a paused queue go on.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", tag = "queues",
    params(("queue" = String, Path, description = "its name")),
    responses((status = 200, description = "what is set for it now, and the pods that do not follow yet", body = QueueChange))
)]
pub(super) async fn resume(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let queue = name(&text, &caller)?;
    out.ok(&api.client.resume(&queue).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_sets_and_takes_away_and_names_what_is_wrong() {
        let apply = |settings: &QueueSettings, patch: Value| patched(settings, patch.as_object().unwrap());
        let nothing = QueueSettings::default();
        let set = apply(&nothing, json!({"retry": {"retries": 5, "backoff": "fixed:1s"}, "lease": "auto"}))
            .unwrap();
        assert_eq!(
            serde_json::to_value(&set).unwrap(),
            json!({"retry": {"retries": 5, "backoff": "fixed:1s"}, "lease": "auto"})
        );
        let less = apply(&set, json!({"retry": {"backoff": null}, "lease": null})).unwrap();
        assert_eq!(serde_json::to_value(&less).unwrap(), json!({"retry": {"retries": 5}}));
        assert_eq!(apply(&less, json!({"retry": {"retries": null}})).unwrap(), nothing);
        let code = |patch: Value| {
            let problem = serde_json::to_value(apply(&nothing, patch).unwrap_err().body()).unwrap();
            format!("{} {}", problem["code"].as_str().unwrap(), problem["field"].as_str().unwrap())
        };
        assert_eq!(code(json!({"colour": 1})), "unknown colour");
        assert_eq!(code(json!({"retry": {"retries": 255}})), "out_of_range retries");
        assert!(code(json!({"retry": 5})).starts_with("invalid_type "));
    }
}
