//! `/v1/executors`: who runs tasks; drained and resumed.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::Out;
use crate::client::{Drained, ExecutorView};
use crate::model::field::shown;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

/// Live executors.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecutorsAnswer {
    /// Each as it last reported itself, by name and id.
    executors: Vec<ExecutorView>,
}

fn not_live(id: &str) -> Problem {
    Problem::not_found(format!("no executor {} lives; GET /v1/executors lists those that do", shown(id)))
}

fn done(out: Out, id: &str, done: Option<Drained>) -> Result<Response, Problem> {
    out.ok(&done.ok_or_else(|| not_live(id))?)
}

/// Live executors.
#[utoipa::path(
    get, path = "/v1/executors", tag = "executors",
    responses((status = 200, description = "all live executors", body = ExecutorsAnswer))
)]
pub(super) async fn list(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    out.ok(&ExecutorsAnswer { executors: api.client.executor_views().await? })
}

/// Show one with all it says of itself.
#[utoipa::path(
    get, path = "/v1/executors/{id}", tag = "executors", params(("id" = String, Path, description = "its instance id")),
    responses((status = 200, description = "the executor", body = ExecutorView))
)]
pub(super) async fn show(
    State(api): State<Api>,
    out: Out,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let all = api.client.executor_views().await?;
    let found = all.into_iter().find(|view| view.record.id == id);
    out.ok(&found.ok_or_else(|| not_live(&id))?)
}

/// Give it nothing new; what lies in its inbox goes back at once, what it has taken goes on.
///
/// A restarted executor is a new instance and is not drained.
#[utoipa::path(
    post, path = "/v1/executors/{id}/drain", tag = "executors",
    params(("id" = String, Path, description = "its instance id")),
    responses((status = 200, description = "what was done", body = Drained))
)]
pub(super) async fn drain(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.must_have_all()?;
    done(out, &id, api.client.drain_executor(&id, caller.who()).await?)
}

/// Let it be given tasks again.
#[utoipa::path(
    post, path = "/v1/executors/{id}/resume", tag = "executors",
    params(("id" = String, Path, description = "its instance id")),
    responses((status = 200, description = "what was done", body = Drained))
)]
pub(super) async fn resume(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.must_have_all()?;
    done(out, &id, api.client.resume_executor(&id).await?)
}
