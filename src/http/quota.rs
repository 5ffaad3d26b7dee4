//! `/v1/quota`: how many tasks the namespace may hold.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Out, Wire};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many tasks that have not ended the namespace may hold.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "tasks": 1_000_000 }))]
pub(super) struct QuotaBody {
    /// At most so many; null for any number.
    #[schema(minimum = 1, maximum = 1_000_000_000_000u64)]
    tasks: Option<u64>,
}

/// How many tasks the namespace may hold.
#[utoipa::path(
    get, path = "/v1/quota", tag = "status",
    responses((status = 200, description = "the quota", body = QuotaBody))
)]
pub(super) async fn show(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    out.ok(&QuotaBody { tasks: api.client.quota().await? })
}

/// Bound how many tasks the namespace may hold; who submits hears of it within a second.
#[utoipa::path(
    put, path = "/v1/quota", tag = "status", request_body = QuotaBody,
    responses((status = 200, description = "the quota that holds now", body = QuotaBody))
)]
pub(super) async fn set(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<QuotaBody>,
) -> Result<Response, Problem> {
    caller.must_have_all()?;
    let most = body.tasks.filter(|most| *most > 0);
    out.ok(&QuotaBody { tasks: api.client.quota_set(most).await? })
}
