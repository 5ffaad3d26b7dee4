//! `GET /v1/events`: what happens, as server-sent events, resumable and bounded.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Asked, header_text};
use crate::client::EventTail;
use crate::model::event::{Event, Move};
use crate::model::{Reason, TaskId, UnixMs};
use crate::{clock, limits};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use std::fmt::Write;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;

/// How often new events are looked for while there are some; up to [`LOOK_SELDOM`] while there are none.
const LOOK_OFTEN: Duration = Duration::from_millis(100);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// A stream on which nothing happens says so this often, so that nobody between takes it for dead.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

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
    let permit = std::sync::Arc::clone(&api.rooms.streams).try_acquire_owned().map_err(|_| {
        Problem::too_many("busy", format!("{} streams are open already", limits::HTTP_STREAMS_MAX))
    })?;
    let follow = Follow {
        tail,
        kind,
        task,
        once: query.once.unwrap_or(false),
        pause: LOOK_OFTEN,
        quiet_since: clock::mono(),
        shutdown: api.shutdown.clone(),
        begun: false,
        _permit: permit,
    };
    let stream = futures_util::stream::unfold(follow, Follow::next);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

struct Follow {
    tail: EventTail,
    kind: Option<Move>,
    task: Option<TaskId>,
    once: bool,
    pause: Duration,
    quiet_since: std::time::Instant,
    shutdown: tokio_util::sync::CancellationToken,
    begun: bool,
    _permit: OwnedSemaphorePermit,
}

type Piece = (Result<Bytes, std::io::Error>, Follow);

impl Follow {
    /// The next batch. It is only asked for when the last one was sent, so a slow reader holds no memory here.
    async fn next(mut self) -> Option<Piece> {
        if !std::mem::replace(&mut self.begun, true) {
            // Headers leave with the first bytes.
            return Some((Ok(Bytes::from_static(b"retry: 1000\n\n")), self));
        }
        loop {
            match self.tail.next().await {
                Ok(events) => {
                    let moved = !events.is_empty();
                    let text = self.text(&events);
                    if !text.is_empty() {
                        (self.pause, self.quiet_since) = (LOOK_OFTEN, clock::mono());
                        return Some((Ok(text.into()), self));
                    }
                    if moved {
                        continue;
                    }
                    if self.once {
                        return None;
                    }
                }
                // It passes, or the pod's readiness says why not.
                Err(error) => {
                    tracing::warn!(%error, "a stream of events waits");
                    if self.once {
                        return Some((Err(std::io::Error::other(error)), self));
                    }
                }
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return None,
                () = tokio::time::sleep(self.pause) => {}
            }
            self.pause = (self.pause * 2).min(LOOK_SELDOM);
            if self.quiet_since.elapsed() >= ALIVE_EVERY {
                self.quiet_since = clock::mono();
                let alive = format!(": alive\nid: {}\n\n", self.tail.place());
                return Some((Ok(alive.into()), self));
            }
        }
    }

    fn text(&self, events: &[Event]) -> String {
        let wanted = |event: &&Event| {
            self.kind.is_none_or(|kind| event.event == kind) && self.task.is_none_or(|task| event.id == task)
        };
        let mut out = String::new();
        for event in events.iter().filter(wanted) {
            let data = serde_json::to_string(event).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = write!(out, "data: {data}\n\n");
        }
        if !out.is_empty() {
            out.truncate(out.len() - 1);
            let _ = write!(out, "id: {}\n\n", self.tail.place());
        }
        out
    }
}
