//! Alive means that the process answers; ready means that it lately did its work.

use super::HttpState;
use crate::clock;
use crate::pod::ready::ReadyReport;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

pub(super) async fn healthz() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "alive" }))
}

pub(super) async fn readyz(State(state): State<HttpState>) -> (StatusCode, Json<ReadyReport>) {
    let report = state.ready.report(clock::mono());
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report))
}
