//! `POST /v1/progress`: how far a worker is with its tasks, for those who look at them.

use super::Api;
use super::error::Problem;
use super::poll::{at_most, execution, worker_id};
use super::wire::{Out, Wire};
use crate::executor::door::Worker;
use crate::model::{Progress, Reason};
use crate::store::run::MarkAnswer;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far a worker is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "mailer-7f3a", "executions": [
    { "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "part": 0.5, "text": "page 3 of 6" }
] }))]
pub(super) struct ProgressBody {
    /// Who reports.
    #[schema(min_length = 1, max_length = 27)]
    worker: String,
    /// What it works on.
    #[schema(max_items = 1_000)]
    executions: Vec<ProgressRow>,
}

/// How far it is with one task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgressRow {
    /// The attempt.
    execution_id: String,
    /// The part that is done, 0 to 1.
    #[schema(minimum = 0.0, maximum = 1.0)]
    part: f64,
    /// What it does, in words; the first 200 characters are kept.
    #[serde(default)]
    text: String,
}

/// What became of a report.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "state": "kept" }))]
pub(super) struct ProgressedRow {
    /// The attempt.
    execution_id: String,
    /// `kept`; `stale`: the attempt is no longer the current one, so stop it; `full`: the task keeps as much as it may.
    state: &'static str,
}

/// What became of the reports.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProgressAnswer {
    /// In the order of the request.
    executions: Vec<ProgressedRow>,
}

/// Say how far tasks are.
///
/// It is shown with the task while it runs, and is gone when the task has ended. Once a second for a task is enough; it
/// does not renew the lease.
#[utoipa::path(
    post, path = "/v1/progress", tag = "work", request_body = ProgressBody,
    responses((status = 200, description = "one answer for each, in order", body = ProgressAnswer))
)]
pub(super) async fn progress(
    State(api): State<Api>,
    out: Out,
    Wire(body): Wire<ProgressBody>,
) -> Result<Response, Problem> {
    worker_id(&body.worker)?;
    at_most("executions", body.executions.len())?;
    let rows = body
        .executions
        .into_iter()
        .enumerate()
        .map(|(at, row)| {
            if !(0.0..=1.0).contains(&row.part) {
                let message = format!("{} must lie between 0 and 1", row.part);
                return Err(Problem::field("part", Reason::OutOfRange, message).in_row("executions", at));
            }
            let execution =
                execution(&row.execution_id).map_err(|problem| problem.in_row("executions", at))?;
            Ok((execution, Progress::new(row.part, row.text)))
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let answers = api.door.progress(&Worker::executor(&body.worker), &rows).await?;
    let executions = rows
        .iter()
        .zip(answers)
        .map(|((execution, _), answer)| {
            let state = match answer {
                MarkAnswer::Kept => "kept",
                MarkAnswer::Stale => "stale",
                MarkAnswer::Full => "full",
            };
            ProgressedRow { execution_id: execution.to_string(), state }
        })
        .collect();
    out.ok(&ProgressAnswer { executions })
}
