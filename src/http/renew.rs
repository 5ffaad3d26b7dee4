//! `/v1/renew`: workers keep what they work on, and hear of wishes to stop it.

use super::Api;
use super::error::Problem;
use super::poll::{at_most, execution, range, worker_id};
use super::wire::{Out, Wire};
use crate::executor::door::{Held, Worker};
use crate::limits;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// How long it shall be good from now on; if not given, the `lease_ms` with which it was handed over.
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
    at_most("executions", body.executions.len())?;
    let rows = body
        .executions
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let allowed = |ms| range("lease_ms", ms, limits::LEASE_MIN_MS, limits::LEASE_MAX_MS);
            let lease_ms = row.lease_ms.map(allowed).transpose();
            let read = lease_ms.and_then(|lease_ms| Ok((execution(&row.execution_id)?, lease_ms)));
            read.map_err(|problem| problem.in_row("executions", at))
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
