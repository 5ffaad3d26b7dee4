//! `/v1/quota`: how much the namespace may hold.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Out, Wire};
use crate::client::Quota;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

/// How much the namespace may hold.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "tasks": null, "bytes": 2_000_000_000, "held_bytes": 1_234_567 }))]
pub(super) struct QuotaAnswer {
    #[serde(flatten)]
    quota: Quota,
    /// Bytes that it holds now, where there is a quota for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_bytes: Option<u64>,
}

async fn told(api: &Api, out: Out, quota: Quota) -> Result<Response, Problem> {
    let held_bytes = api.client.quota_bytes().await?;
    out.ok(&QuotaAnswer { quota, held_bytes })
}

/// How much the namespace may hold.
#[utoipa::path(
    get, path = "/v1/quota", tag = "status",
    responses((status = 200, description = "the quota", body = QuotaAnswer))
)]
pub(super) async fn show(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    told(&api, out, api.client.quota().await?).await
}

/// Bound how many tasks, and bytes of them, the namespace may hold; who submits hears of it within a second.
#[utoipa::path(
    put, path = "/v1/quota", tag = "status", request_body = Quota,
    responses((status = 200, description = "the quota that holds now", body = QuotaAnswer))
)]
pub(super) async fn set(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<Quota>,
) -> Result<Response, Problem> {
    caller.must_have_all()?;
    let some = |most: Option<u64>| most.filter(|most| *most > 0);
    let wish = Quota { tasks: some(body.tasks), bytes: some(body.bytes) };
    told(&api, out, api.client.quota_set(wish).await?).await
}
