//! `/v1/subscriptions`: who wants to hear how tasks end, and outcomes as server-sent events.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::follow::{self, Found, Source, Told};
use super::wire::{Asked, Out, Wire, header_text};
use crate::client::{Behind, ClientError, EventPlace, OutcomeStream, SubscriptionView};
use crate::model::outcome::Outcome;
use crate::model::{FieldError, Subscription, SubscriptionName, TaskId, UnixMs};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

fn name(text: &str) -> Result<SubscriptionName, Problem> {
    Ok(SubscriptionName::new(text).map_err(|error| FieldError { field: "name", ..error })?)
}

fn missing(name: &SubscriptionName) -> Problem {
    Problem::not_found(format!("there is no subscription {name}"))
}

/// Refuses a subscription to tasks that are not the caller's.
fn must_have(caller: &Caller, wish: &Subscription) -> Result<(), Problem> {
    match &wish.queue {
        Some(queue) => caller.must_have(queue),
        None => caller.must_have_all(),
    }
}

async fn found(api: &Api, caller: &Caller, name: &SubscriptionName) -> Result<SubscriptionView, Problem> {
    let view = api.client.subscription(name).await?.ok_or_else(|| missing(name))?;
    must_have(caller, &view.subscription)?;
    Ok(view)
}

/// Subscriptions.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SubscriptionsAnswer {
    /// By name; those to tasks that the caller has to do with.
    subscriptions: Vec<SubscriptionView>,
}

/// List subscriptions.
#[utoipa::path(
    get, path = "/v1/subscriptions", tag = "outcomes",
    responses((status = 200, description = "those to tasks that the caller has to do with", body = SubscriptionsAnswer))
)]
pub(super) async fn list(State(api): State<Api>, caller: Caller, out: Out) -> Result<Response, Problem> {
    let mut subscriptions = api.client.subscriptions().await?;
    subscriptions.retain(|view| must_have(&caller, &view.subscription).is_ok());
    out.ok(&SubscriptionsAnswer { subscriptions })
}

/// A subscription, and how far it is behind.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ShownAnswer {
    #[serde(flatten)]
    view: SubscriptionView,
    #[serde(flatten)]
    behind: Behind,
}

/// Show a subscription, and how far it is behind.
#[utoipa::path(
    get, path = "/v1/subscriptions/{name}", tag = "outcomes", params(("name" = String, Path, description = "its name")),
    responses((status = 200, description = "the subscription", body = ShownAnswer))
)]
pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let name = name(&text)?;
    let view = found(&api, &caller, &name).await?;
    let behind = api.client.subscription_behind(&name).await?;
    out.ok(&ShownAnswer { view, behind })
}

/// Of which tasks somebody wants to hear, and where it is sent. All that is named must fit; with nothing named it is for
/// tasks that name it themselves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "queue": "mail", "url": "https://example.com/done" }))]
pub(super) struct SubscriptionBody {
    /// Tasks of this queue.
    #[serde(default)]
    queue: Option<String>,
    /// Tasks of this plan.
    #[serde(default)]
    plan: Option<String>,
    /// Tasks with this idempotency key.
    #[serde(default)]
    key: Option<String>,
    /// This task; it may stand already.
    #[serde(default)]
    task: Option<String>,
    /// Web address that outcomes are sent to; without one they are fetched.
    #[serde(default)]
    #[schema(max_length = 2_048)]
    url: Option<String>,
    /// Only where this version stands; 0 where there is none yet.
    #[serde(default)]
    version: Option<u64>,
}

/// Make a subscription, or change it.
///
/// It hears of tasks that are submitted from then on: through this pod at once, by others within a second or so.
#[utoipa::path(
    put, path = "/v1/subscriptions/{name}", tag = "outcomes", params(("name" = String, Path, description = "its name")),
    request_body = SubscriptionBody,
    responses((status = 200, description = "the subscription that stands", body = SubscriptionView))
)]
pub(super) async fn put(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    Wire(body): Wire<SubscriptionBody>,
) -> Result<Response, Problem> {
    let name = name(&text)?;
    let task = body.task.as_deref().map(str::parse::<TaskId>).transpose();
    let wish = Subscription {
        queue: body.queue,
        plan: body.plan,
        key: body.key,
        task: task.map_err(|error| FieldError { field: "task", ..error })?,
        url: body.url,
        since: UnixMs(0),
        by: caller.who().to_owned(),
    };
    wish.check()?;
    must_have(&caller, &wish)?;
    if let Some(task) = wish.task {
        caller.must_have_task(&api.client, task).await?;
    }
    if let Some(before) = api.client.subscription(&name).await? {
        must_have(&caller, &before.subscription)?;
    }
    out.ok(&api.client.subscribe(&name, wish, body.version).await?)
}

/// A subscription that was taken away.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RemovedAnswer {
    /// Its name.
    removed: String,
}

/// Take a subscription away; what it has not got is not delivered any more.
#[utoipa::path(
    delete, path = "/v1/subscriptions/{name}", tag = "outcomes",
    params(("name" = String, Path, description = "its name")),
    responses((status = 200, description = "it is gone", body = RemovedAnswer))
)]
pub(super) async fn remove(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
) -> Result<Response, Problem> {
    let name = name(&text)?;
    found(&api, &caller, &name).await?;
    if !api.client.unsubscribe(&name).await? {
        return Err(missing(&name));
    }
    out.ok(&RemovedAnswer { removed: name.to_string() })
}

/// Up to where outcomes were got.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "place": "1796112660123-0,,1796112661456-2" }))]
pub(super) struct ConfirmBody {
    /// An `id` of the stream.
    place: String,
}

/// What was confirmed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConfirmedAnswer {
    /// The place.
    place: String,
}

/// Confirm outcomes that were fetched: they do not come again.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/confirm", tag = "outcomes",
    params(("name" = String, Path, description = "its name")), request_body = ConfirmBody,
    responses((status = 200, description = "what was confirmed", body = ConfirmedAnswer))
)]
pub(super) async fn confirm(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(text): Path<String>,
    Wire(body): Wire<ConfirmBody>,
) -> Result<Response, Problem> {
    let name = name(&text)?;
    found(&api, &caller, &name).await?;
    let place: EventPlace =
        body.place.parse().map_err(|error: FieldError| FieldError { field: "place", ..error })?;
    api.client.confirm_outcomes(&name, &place).await?;
    out.ok(&ConfirmedAnswer { place: body.place })
}

/// How to fetch outcomes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FollowQuery {
    /// `true` ends the stream when there is nothing more.
    once: Option<bool>,
}

/// Fetch the outcomes of a subscription without an address, as server-sent events.
///
/// The data of each is an outcome as JSON, or `{"missed": N}` where up to N were lost before they were fetched. The last of
/// a batch has an id. The header Last-Event-ID, or POST …/confirm, says that all up to it were got: those do not come
/// again, and make room. What was not confirmed comes again when the stream is opened anew.
#[utoipa::path(
    get, path = "/v1/subscriptions/{name}/outcomes", tag = "outcomes",
    params(
        ("name" = String, Path, description = "its name"), FollowQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "confirm all up to this id, and go on behind it"),
    ),
    responses((status = 200, description = "one outcome after the other", body = Outcome, content_type = "text/event-stream"))
)]
pub(super) async fn follow(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    Path(text): Path<String>,
    Asked(query): Asked<FollowQuery>,
) -> Result<Response, Problem> {
    let name = name(&text)?;
    let last = header_text(&headers, "last-event-id")?.filter(|text| !text.is_empty());
    let last = last.map(str::parse::<EventPlace>).transpose()?;
    found(&api, &caller, &name).await?;
    let permit = follow::permit(&api)?;
    let mut stream = api.client.outcomes(&name).await?;
    if let Some(place) = last {
        stream.go_to(&place);
        stream.confirm().await?;
    }
    Ok(follow::answer(&api, stream, query.once.unwrap_or(false), permit))
}

/// Outcomes that were lost.
#[derive(Serialize)]
struct Missed {
    missed: u64,
}

impl Source for OutcomeStream {
    const WHAT: &'static str = "outcomes";

    async fn look(&mut self) -> Result<Found, ClientError> {
        let before = self.place();
        let batch = OutcomeStream::look(self).await?;
        let mut told = Told::default();
        if batch.missed > 0 {
            told.push(&Missed { missed: batch.missed });
        }
        batch.outcomes.iter().for_each(|outcome| told.push(outcome));
        Ok(told.found(self.place(), self.place() != before))
    }

    fn place_when_quiet(&self) -> Option<String> {
        None
    }
}
