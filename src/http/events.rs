//! `GET /v1/events`: what happens, as server-sent events, resumable and bounded.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::follow::{self, Found, Source, Told};
use super::wire::{Asked, header_text};
use crate::client::{ClientError, EventTail};
use crate::model::event::{Event, Move};
use crate::model::{Reason, TaskId, UnixMs};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// `now` (if not given) or `start`: the oldest that are kept. The header Last-Event-ID goes before it.
    from: Option<String>,
    /// Only of this type: submitted, claimed, started, succeeded, retried, died …
    #[serde(rename = "type")]
    #[param(rename = "type")]
    kind: Option<String>,
    /// Only of this task.
    task: Option<String>,
    /// `true` ends the stream when there is nothing more.
    once: Option<bool>,
}

/// Follow what happens, as server-sent events.
///
/// The data of each is an event as JSON. Events come in order of time within a bucket, batch by batch; the last of a
/// batch has an id, with which the header Last-Event-ID goes on exactly behind that batch. Who reads too slowly loses
/// nothing before events are trimmed.
#[utoipa::path(
    get, path = "/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "go on behind this id")),
    responses((status = 200, description = "one event after the other", body = Event, content_type = "text/event-stream"))
)]
pub(super) async fn follow(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    Asked(query): Asked<EventsQuery>,
) -> Result<Response, Problem> {
    caller.must_have_all()?;
    let kind = match &query.kind {
        Some(name) => Some(serde_json::from_value::<Move>(name.clone().into()).map_err(|_| {
            Problem::field(
                "type",
                Reason::Unknown,
                format!("{} is no type of event", crate::model::field::shown(name)),
            )
        })?),
        None => None,
    };
    let task = match &query.task {
        Some(text) => {
            Some(text.parse::<TaskId>().map_err(|error| Problem::field("task", error.reason, error.detail))?)
        }
        None => None,
    };
    let from = header_text(&headers, "last-event-id")?.filter(|text| !text.is_empty());
    let tail = match (from, query.from.as_deref()) {
        (Some(place), _) => api.client.events_from(place.parse()?),
        (None, None | Some("now")) => api.client.events_since(UnixMs(api.client.space().clock().now_ms())),
        (None, Some("start")) => api.client.events(),
        (None, Some(_)) => {
            return Err(Problem::field("from", Reason::InvalidType, "it must be now or start"));
        }
    };
    let permit = follow::permit(&api)?;
    Ok(follow::answer(&api, Events { tail, kind, task }, query.once.unwrap_or(false), permit))
}

/// Events of some type and task.
struct Events {
    tail: EventTail,
    kind: Option<Move>,
    task: Option<TaskId>,
}

impl Source for Events {
    const WHAT: &'static str = "events";

    async fn look(&mut self) -> Result<Found, ClientError> {
        let events = self.tail.next().await?;
        let wanted = |event: &&Event| {
            self.kind.is_none_or(|kind| event.event == kind) && self.task.is_none_or(|task| event.id == task)
        };
        let mut told = Told::default();
        events.iter().filter(wanted).for_each(|event| told.push(event));
        Ok(told.found(self.tail.place(), !events.is_empty()))
    }

    fn place_when_quiet(&self) -> Option<String> {
        Some(self.tail.place().to_string())
    }
}
