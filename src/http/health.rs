//! Alive means that the process answers; ready means that it lately did its work.

use super::Ops;
use crate::clock;
use crate::pod::ready::ReadyReport;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

pub(super) async fn healthz() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "alive" }))
}

pub(super) async fn readyz(State(ops): State<Ops>) -> Response {
    let Some(ready) = ops.ready else { return healthz().await.into_response() };
    let report: ReadyReport = ready.report(clock::mono());
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}
