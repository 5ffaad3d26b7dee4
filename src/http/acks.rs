//! `/v1/acks`: workers report how attempts ended.

use super::Api;
use super::error::Problem;
use super::poll::{at_most, execution, range, worker_id};
use super::wire::{Out, Wire};
use crate::executor::door::Worker;
use crate::limits;
use crate::model::{ExecutionId, Reason, UnixMs};
use crate::store::run::{AckAnswer, AckRow, Outcome};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutcomeName {
    /// Done.
    Succeeded,
    /// Failed: tried again if tries are left.
    Failed,
    /// Failed for good: a dead letter at once.
    Fatal,
    /// Not now: to be tried again after `retry_after_ms`.
    RetryAfter,
    /// Stopped because somebody wished so.
    Cancelled,
    /// Not begun: to be handed to somebody else, uncounted.
    HandedBack,
}

/// An outcome to be reported.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "outcome": "succeeded", "took_ms": 12, "lag_ms": 3
}))]
pub(super) struct AckBody {
    /// The attempt.
    execution_id: String,
    /// How it ended.
    outcome: OutcomeName,
    /// What went wrong; the last 1,024 bytes are kept.
    #[serde(default)]
    error: Option<String>,
    /// For `retry_after`: after how long, at most a week.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 604_800_000)]
    retry_after_ms: Option<i64>,
    /// For `retry_after`: whether it counts as a failure; it does not if not given.
    #[serde(default)]
    counted: bool,
    /// The `lag_ms` that the task was handed over with.
    #[serde(default)]
    lag_ms: Option<i64>,
    /// How long it ran, if not since it was handed over: estimates of its queue's run time follow.
    #[serde(default)]
    #[schema(minimum = 0)]
    took_ms: Option<i64>,
}

/// Outcomes to be reported.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "mailer-7f3a", "acks": [
    { "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "outcome": "failed", "error": "no route to host" }
] }))]
pub(super) struct AcksBody {
    /// Who reports.
    #[schema(min_length = 1, max_length = 27)]
    worker: String,
    /// The outcomes.
    #[schema(max_items = 1_000)]
    acks: Vec<AckBody>,
    /// Whether some of them were sent before and no answer came.
    #[serde(default)]
    again: bool,
}

/// What became of an outcome.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({ "execution_id": "0mBBZ-RGXFDo9dTn.1.b73a057faa", "state": "succeeded" }))]
pub(super) struct AckedRow {
    /// The attempt.
    execution_id: String,
    /// `succeeded`, `retrying`, `dead`, `cancelled`, `skipped`, `handed_back`; `known`: it had been accepted before;
    /// `stale`: the attempt is no longer the current one, and nothing was changed.
    state: &'static str,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
}

/// What became of the outcomes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AcksAnswer {
    /// In the order of the request.
    acks: Vec<AckedRow>,
}

/// An outcome, or nothing for a task that is handed back.
pub(super) type Reported = (ExecutionId, Option<AckRow>);

pub(super) fn rows(acks: Vec<AckBody>) -> Result<Vec<Reported>, Problem> {
    at_most("acks", acks.len())?;
    let one = |(at, ack)| reported(ack).map_err(|problem| problem.in_row("acks", at));
    acks.into_iter().enumerate().map(one).collect()
}

fn reported(ack: AckBody) -> Result<Reported, Problem> {
    let execution = execution(&ack.execution_id)?;
    let mut error = ack.error.unwrap_or_default();
    if error.len() > limits::ERROR_TAIL_MAX_BYTES {
        let mut from = error.len() - limits::ERROR_TAIL_MAX_BYTES;
        while !error.is_char_boundary(from) {
            from += 1;
        }
        error.drain(..from);
    }
    let outcome = match ack.outcome {
        OutcomeName::Succeeded => Outcome::Succeeded,
        OutcomeName::Failed => Outcome::Failed { error },
        OutcomeName::Fatal => Outcome::Fatal { error },
        OutcomeName::Cancelled => Outcome::Cancelled,
        OutcomeName::HandedBack => return Ok((execution, None)),
        OutcomeName::RetryAfter => {
            let ms = ack
                .retry_after_ms
                .ok_or_else(|| Problem::field("retry_after_ms", Reason::Missing, "retry_after needs it"))?;
            Outcome::RetryAfter {
                ms: range("retry_after_ms", ms, 0, limits::BACKOFF_MAX_MS)?,
                counted: ack.counted,
                error,
            }
        }
    };
    let row = AckRow {
        id: execution.id,
        grant: execution.grant,
        outcome,
        lag_ms: ack.lag_ms.unwrap_or(-1).max(-1),
        took_ms: ack.took_ms.map_or(-1, |ms| ms.max(0)),
    };
    Ok((execution, Some(row)))
}

pub(super) async fn acked(
    api: &Api,
    executor: &str,
    rows: Vec<Reported>,
    again: bool,
) -> Result<Vec<AckedRow>, Problem> {
    let mut out: Vec<AckedRow> = rows
        .iter()
        .map(|(execution, _)| AckedRow { execution_id: execution.to_string(), state: "stale", due: None })
        .collect();
    let (mut places, mut acks, mut back) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (execution, row)) in rows.into_iter().enumerate() {
        match row {
            Some(row) => {
                places.push(at);
                acks.push(row);
            }
            None => back.push((at, (execution.id, execution.grant))),
        }
    }
    if !acks.is_empty() {
        for (place, answer) in places.into_iter().zip(api.door.ack(executor, acks, again).await?) {
            let (state, due) = match answer {
                AckAnswer::Succeeded => ("succeeded", None),
                AckAnswer::Retrying { due } => ("retrying", Some(due)),
                AckAnswer::Dead => ("dead", None),
                AckAnswer::Cancelled => ("cancelled", None),
                AckAnswer::Skipped => ("skipped", None),
                AckAnswer::Stale => ("stale", None),
                AckAnswer::Known => ("known", None),
            };
            (out[place].state, out[place].due) = (state, due.map(|due: UnixMs| due.to_string()));
        }
    }
    for (place, row) in back {
        if api.door.give_back(executor, "the worker gave it back", &[row]).await == 1 {
            out[place].state = "handed_back";
        }
    }
    Ok(out)
}

/// Report outcomes.
///
/// Each is accepted once, and only while its attempt is the current one. Safe to send again, with `again`.
#[utoipa::path(
    post, path = "/v1/acks", tag = "work", request_body = AcksBody,
    responses((status = 200, description = "one answer for each, in order", body = AcksAnswer))
)]
pub(super) async fn acks(
    State(api): State<Api>,
    out: Out,
    Wire(body): Wire<AcksBody>,
) -> Result<Response, Problem> {
    worker_id(&body.worker)?;
    let rows = rows(body.acks)?;
    let acks = acked(&api, &Worker::executor(&body.worker), rows, body.again).await?;
    out.ok(&AcksAnswer { acks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_cut_at_a_character() {
        let body = |error: String| AckBody {
            execution_id: "0mBBZ-RGXFDo9dTn.1.b73a057faa".to_owned(),
            outcome: OutcomeName::Failed,
            error: Some(error),
            retry_after_ms: None,
            counted: false,
            lag_ms: None,
            took_ms: None,
        };
        let Ok((_, Some(row))) = reported(body("é".repeat(600))) else { return };
        let Outcome::Failed { error } = row.outcome else { panic!("another outcome") };
        assert!(error.len() <= limits::ERROR_TAIL_MAX_BYTES && error.chars().all(|c| c == 'é'));
    }
}
