//! `/v1/status`, `/v1/check`, `/v1/buckets`, `/v1/spread` and `/v1/pods`: how things stand.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::Out;
use crate::client::{BucketStatus, SpreadView, Status};
use crate::store::check::{CheckOptions, check};
use crate::store::member::PodRecord;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

/// Counts, lag, pods, executors and Redis.
#[utoipa::path(
    get, path = "/v1/status", tag = "status",
    responses((status = 200, description = "how things stand", body = Status))
)]
pub(super) async fn status(State(api): State<Api>, caller: Caller, out: Out) -> Result<Response, Problem> {
    caller.must_have_all()?;
    out.ok(&api.client.status().await?)
}

/// What a look for damage found.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CheckAnswer {
    /// Whether there is none.
    ok: bool,
    /// What was looked at and what was found.
    #[schema(value_type = Object)]
    report: serde_json::Value,
}

/// Look for damage in the data. It reads everything there is: not for every minute.
#[utoipa::path(
    get, path = "/v1/check", tag = "status",
    responses((status = 200, description = "what was found", body = CheckAnswer))
)]
pub(super) async fn check_all(State(api): State<Api>, caller: Caller, out: Out) -> Result<Response, Problem> {
    caller.must_have_all()?;
    let _one = api.rooms.check.try_acquire().map_err(|_| {
        Problem::too_many("busy", "a check is under way already; ask again when it has ended")
    })?;
    let found = check(api.client.space(), CheckOptions::default()).await?;
    let ok = found.ok;
    let report = serde_json::to_value(&found).map_err(|error| {
        Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
    })?;
    out.ok(&CheckAnswer { ok, report })
}

/// The buckets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BucketsAnswer {
    /// Each with its holders and counts.
    buckets: Vec<BucketStatus>,
}

/// The buckets with their holders and counts.
#[utoipa::path(
    get, path = "/v1/buckets", tag = "status",
    responses((status = 200, description = "all buckets", body = BucketsAnswer))
)]
pub(super) async fn buckets(State(api): State<Api>, caller: Caller, out: Out) -> Result<Response, Problem> {
    caller.must_have_all()?;
    out.ok(&BucketsAnswer { buckets: api.client.status().await?.buckets })
}

/// How tasks are spread over buckets, within which bounds, what closes, what was last decided and how many pods and
/// executors would do.
#[utoipa::path(
    get, path = "/v1/spread", tag = "status",
    responses((status = 200, description = "the spread", body = SpreadView))
)]
pub(super) async fn spread(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    out.ok(&api.client.spread().await?)
}

/// Live pods.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PodsAnswer {
    /// Each as it last reported itself.
    pods: Vec<PodRecord>,
}

/// Live pods.
#[utoipa::path(
    get, path = "/v1/pods", tag = "status",
    responses((status = 200, description = "all live pods", body = PodsAnswer))
)]
pub(super) async fn pods(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    out.ok(&PodsAnswer { pods: api.client.pods().await? })
}
