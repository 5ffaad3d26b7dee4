//! `/v1/freeze` and `/v1/thaw`: nothing more of a queue, or of everything, starts.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Out, Wire, clipped};
use crate::client::Frost;
use crate::model::{PlanName, QueueName, Reason};
use crate::store::queue::{Freeze, Scope};
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

/// What to freeze or thaw: a queue, a plan, or everything.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "queue": "push.sms", "why": "the gateway is down" }))]
pub(super) struct FreezeBody {
    /// This queue.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128)]
    queue: Option<String>,
    /// All tasks of this plan.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128)]
    plan: Option<String>,
    /// Everything in the namespace.
    #[serde(default)]
    all: bool,
    /// Why, for those who look at it later; at most 200 characters are kept.
    #[serde(default)]
    why: String,
}

impl FreezeBody {
    fn scope(&self, caller: &Caller) -> Result<Scope, Problem> {
        match (&self.queue, &self.plan, self.all) {
            (Some(queue), None, false) => {
                let queue = QueueName::new(queue)?;
                caller.must_have(queue.as_str())?;
                Ok(Scope::Queue(queue))
            }
            (None, Some(plan), false) => {
                caller.must_have_all()?;
                Ok(Scope::Plan(PlanName::new(plan)?))
            }
            (None, None, true) => {
                caller.must_have_all()?;
                Ok(Scope::All)
            }
            (None, None, false) => {
                Err(Problem::field("queue", Reason::Missing, "name a queue or a plan, or say all: true"))
            }
            _ => {
                let field = if self.all { "all" } else { "plan" };
                Err(Problem::field(field, Reason::InvalidType, "only one of queue, plan and all can hold"))
            }
        }
    }
}

/// What is frozen.
#[utoipa::path(
    get, path = "/v1/freeze", tag = "queues",
    responses((status = 200, description = "what is frozen", body = Freeze))
)]
pub(super) async fn show(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    out.ok(&api.client.frozen().await?)
}

/// Let nothing more of a queue or of everything start; what runs goes on.
#[utoipa::path(
    post, path = "/v1/freeze", tag = "queues", request_body = FreezeBody,
    responses((status = 200, description = "what is frozen now, and the pods that do not follow yet", body = Frost))
)]
pub(super) async fn freeze(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<FreezeBody>,
) -> Result<Response, Problem> {
    let scope = body.scope(&caller)?;
    out.ok(&api.client.freeze(&scope, caller.who(), &clipped(&body.why, 200)).await?)
}

/// Let what was frozen start again.
#[utoipa::path(
    post, path = "/v1/thaw", tag = "queues", request_body = FreezeBody,
    responses((status = 200, description = "what is frozen now, and the pods that do not follow yet", body = Frost))
)]
pub(super) async fn thaw(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<FreezeBody>,
) -> Result<Response, Problem> {
    let scope = body.scope(&caller)?;
    out.ok(&api.client.thaw(&scope, caller.who()).await?)
}
