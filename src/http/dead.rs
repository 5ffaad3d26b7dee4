//! `/v1/dead`: dead letters, listed, redriven, deleted.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::tasks::{TaskAnswer, answer, id};
use super::wire::{Asked, Out, Wire};
use crate::client::{DeadCursor, DeadFilter, DeadView, Redriven};
use crate::limits;
use crate::model::{QueueName, Reason, State as TaskState, TaskId};
use axum::extract::{Path, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Most dead letters of one answer, and most that one request redrives or deletes.
const LETTERS_MAX: usize = limits::HTTP_PAGE_MAX_ROWS;

/// Which dead letters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only of this queue.
    queue: Option<String>,
    /// Only where reason or last error fits this pattern; * stands for anything.
    reason: Option<String>,
    /// Only those dead for at least this long, in ms.
    #[param(minimum = 0)]
    older_than_ms: Option<i64>,
    /// At most so many, 100 if not given.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
    /// Where the last answer ended: its `next`.
    cursor: Option<String>,
}

/// A page of dead letters.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeadAnswer {
    /// Oldest first in each bucket.
    letters: Vec<DeadView>,
    /// Give it as `cursor` for the next page. Absent on the last one; a page before that may be short or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

fn filter(
    caller: &Caller,
    queue: Option<&str>,
    reason: Option<String>,
    older_than_ms: Option<i64>,
) -> Result<DeadFilter, Problem> {
    let queue = queue.map(QueueName::new).transpose()?;
    match &queue {
        Some(queue) => caller.must_have(queue.as_str())?,
        None => caller.must_have_all()?,
    }
    if older_than_ms.is_some_and(|ms| ms < 0) {
        return Err(Problem::field("older_than_ms", Reason::OutOfRange, "it is negative"));
    }
    Ok(DeadFilter { queue, older_than_ms, reason, limit: None })
}

/// List dead letters.
#[utoipa::path(
    get, path = "/v1/dead", tag = "dead letters", params(ListQuery),
    responses((status = 200, description = "a page of them", body = DeadAnswer))
)]
pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(100);
    if !(1..=LETTERS_MAX).contains(&limit) {
        let message = format!("{limit} must lie between 1 and {LETTERS_MAX}");
        return Err(Problem::field("limit", Reason::OutOfRange, message));
    }
    let filter = filter(&caller, query.queue.as_deref(), query.reason, query.older_than_ms)?;
    let cursor = query.cursor.as_deref().map(str::parse::<DeadCursor>).transpose()?;
    let (letters, next) = api
        .client
        .dead_page(&DeadFilter { limit: Some(limit), ..filter }, cursor.unwrap_or_default())
        .await?;
    out.ok(&DeadAnswer { letters, next: next.map(|cursor| cursor.to_string()) })
}

/// Show a dead letter with its attempts.
#[utoipa::path(
    get, path = "/v1/dead/{id}", tag = "dead letters", params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let id = id(&text)?;
    let found = api.client.get(id).await?.filter(|task| task.state == TaskState::Dead);
    let view = found.ok_or_else(|| Problem::not_found(format!("there is no dead letter {id}")))?;
    caller.must_see(&view)?;
    answer(view, out)
}

/// A body that says which dead letters, and perhaps more. Serde's `flatten` would do, but then a field that is wrong is not
/// named any more.
macro_rules! body {
    ($(#[$of_it:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $kind:ty,)* }) => {
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$of_it])*
        pub(super) struct $name {
            /// These.
            #[serde(default)]
            #[schema(max_items = 1_000)]
            ids: Vec<String>,
            /// Or all of this queue.
            #[serde(default)]
            queue: Option<String>,
            /// Or all whose reason or last error fits this pattern; * stands for anything.
            #[serde(default)]
            reason: Option<String>,
            /// Or all that are dead for at least this long, in ms.
            #[serde(default)]
            #[schema(minimum = 0)]
            older_than_ms: Option<i64>,
            /// Or every one.
            #[serde(default)]
            all: bool,
            /// At most so many of those that fit, 1,000 if not given.
            #[serde(default)]
            #[schema(minimum = 1, maximum = 1_000)]
            limit: Option<usize>,
            $($(#[$of_field])* $field: $kind,)*
        }

        impl From<$name> for Which {
            fn from(body: $name) -> Self {
                let $name { ids, queue, reason, older_than_ms, all, limit, .. } = body;
                Self { ids, queue, reason, older_than_ms, all, limit }
            }
        }
    };
}

body! {
    /// Which dead letters to redrive: by their ids, or all that fit.
    #[schema(example = json!({ "queue": "push.sms", "reason": "gateway*", "per_second": 100.0 }))]
    RedriveBody {
        /// How many of them become due in a second; all at once if not given.
        #[serde(default)]
        #[schema(minimum = 0.001)]
        per_second: Option<f64>,
    }
}

body! {
    /// Which dead letters to delete: by their ids, or all that fit.
    #[schema(example = json!({ "queue": "push.sms", "older_than_ms": 86_400_000 }))]
    DeleteBody {}
}

/// Which dead letters, as a body says it.
struct Which {
    ids: Vec<String>,
    queue: Option<String>,
    reason: Option<String>,
    older_than_ms: Option<i64>,
    all: bool,
    limit: Option<usize>,
}

async fn chosen(api: &Api, caller: &Caller, body: Which) -> Result<Vec<TaskId>, Problem> {
    let filtered = body.queue.is_some() || body.reason.is_some() || body.older_than_ms.is_some();
    let limit = body.limit.unwrap_or(LETTERS_MAX);
    if !(1..=LETTERS_MAX).contains(&limit) {
        let message = format!("{limit} must lie between 1 and {LETTERS_MAX}");
        return Err(Problem::field("limit", Reason::OutOfRange, message));
    }
    if body.ids.len() > LETTERS_MAX {
        let message = format!("{} are given; at most {LETTERS_MAX} at a time are allowed", body.ids.len());
        return Err(Problem::field("ids", Reason::TooMany, message));
    }
    if !body.ids.is_empty() {
        if filtered || body.all {
            let message = "give either ids, or what they must fit";
            return Err(Problem::field("ids", Reason::InvalidType, message));
        }
        let ids: Vec<TaskId> = body
            .ids
            .iter()
            .map(|text| {
                text.parse().map_err(|_| {
                    Problem::field(
                        "ids",
                        Reason::InvalidType,
                        format!("{} is no id", crate::model::field::shown(text)),
                    )
                })
            })
            .collect::<Result<_, _>>()?;
        if !caller.sees_all() {
            for id in &ids {
                caller.must_have_task(&api.client, *id).await?;
            }
        }
        return Ok(ids);
    }
    if !filtered && !body.all {
        return Err(Problem::field("ids", Reason::Missing, "give ids, what they must fit, or all: true"));
    }
    let filter = filter(caller, body.queue.as_deref(), body.reason, body.older_than_ms)?;
    let letters = api.client.dead_list(&DeadFilter { limit: Some(limit), ..filter }).await?;
    Ok(letters.into_iter().map(|letter| letter.id).collect())
}

/// Set dead letters back to pending, with their history and fresh tries.
#[utoipa::path(
    post, path = "/v1/dead:redrive", tag = "dead letters", request_body = RedriveBody,
    responses((status = 200, description = "what was done", body = Redriven))
)]
pub(super) async fn redrive(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<RedriveBody>,
) -> Result<Response, Problem> {
    if body.per_second.is_some_and(|rate| !(0.001..=1e9).contains(&rate)) {
        return Err(Problem::field("per_second", Reason::OutOfRange, "it must be at least 0.001"));
    }
    let per_second = body.per_second;
    let ids = chosen(&api, &caller, body.into()).await?;
    out.ok(&api.client.redrive(&ids, per_second, caller.who()).await?)
}

/// What a delete did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "deleted": 3, "unknown": 0 }))]
pub(super) struct DeletedAnswer {
    /// Gone for good.
    deleted: u64,
    /// Not dead, or no longer.
    unknown: u64,
}

/// Remove dead letters for good.
#[utoipa::path(
    post, path = "/v1/dead:delete", tag = "dead letters", request_body = DeleteBody,
    responses((status = 200, description = "what was done", body = DeletedAnswer))
)]
pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<DeleteBody>,
) -> Result<Response, Problem> {
    let ids = chosen(&api, &caller, body.into()).await?;
    let deleted = api.client.dead_delete(&ids, caller.who()).await?;
    out.ok(&DeletedAnswer { deleted, unknown: (ids.len() as u64).saturating_sub(deleted) })
}
