//! Server-sent events: what both streams have in common. Each is looked at again and again, from where it is.

use super::Api;
use super::error::Problem;
use crate::client::ClientError;
use crate::{clock, limits};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

/// How often is looked while there is something; up to [`LOOK_SELDOM`] while there is nothing.
const LOOK_OFTEN: Duration = Duration::from_millis(100);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// A stream on which nothing happens says so this often, so that nobody between takes it for dead.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// What a look has found.
pub(super) enum Found {
    /// Something to be told.
    Told(Told),
    /// Something that is of no interest; there may be more behind it.
    Passed,
    /// Nothing more for now.
    Nothing,
}

/// What is followed.
pub(super) trait Source: Send + 'static {
    /// Its name in logs.
    const WHAT: &'static str;
    /// What there is behind what was found before.
    fn look(&mut self) -> impl Future<Output = Result<Found, ClientError>> + Send;
    /// Where it has come to, if it says so while nothing happens.
    fn place_when_quiet(&self) -> Option<String>;
}

/// Events as they are written.
#[derive(Default)]
pub(super) struct Told(String);

impl Told {
    /// One more.
    pub fn push(&mut self, data: &impl Serialize) {
        let data = serde_json::to_string(data).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = write!(self.0, "data: {data}\n\n");
    }

    /// The last one gets an id. Where there is none, something was looked at or not.
    pub fn found(mut self, id: impl std::fmt::Display, looked: bool) -> Found {
        if self.0.is_empty() {
            return if looked { Found::Passed } else { Found::Nothing };
        }
        self.0.truncate(self.0.len() - 1);
        let _ = write!(self.0, "id: {id}\n\n");
        Found::Told(self)
    }
}

/// Room for one more stream.
pub(super) fn permit(api: &Api) -> Result<OwnedSemaphorePermit, Problem> {
    Arc::clone(&api.rooms.streams).try_acquire_owned().map_err(|_| {
        Problem::too_many("busy", format!("{} streams are open already", limits::HTTP_STREAMS_MAX))
    })
}

/// The answer that follows it; `once`: as far as it goes now.
pub(super) fn answer(api: &Api, source: impl Source, once: bool, permit: OwnedSemaphorePermit) -> Response {
    let follow = Follow {
        source,
        once,
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
    (headers, Body::from_stream(stream)).into_response()
}

struct Follow<S> {
    source: S,
    once: bool,
    pause: Duration,
    quiet_since: Instant,
    shutdown: CancellationToken,
    begun: bool,
    _permit: OwnedSemaphorePermit,
}

impl<S: Source> Follow<S> {
    /// The next batch. It is only asked for when the last one was sent, so a slow reader holds no memory here.
    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Self)> {
        if !std::mem::replace(&mut self.begun, true) {
            // Headers leave with the first bytes.
            return Some((Ok(Bytes::from_static(b"retry: 1000\n\n")), self));
        }
        loop {
            match self.source.look().await {
                Ok(Found::Told(Told(text))) => {
                    (self.pause, self.quiet_since) = (LOOK_OFTEN, clock::mono());
                    return Some((Ok(text.into()), self));
                }
                Ok(Found::Passed) => continue,
                Ok(Found::Nothing) if self.once => return None,
                Ok(Found::Nothing) => {}
                // What is followed is no longer there.
                Err(ClientError::Field(error)) => return Some((Err(std::io::Error::other(error)), self)),
                // It passes, or the pod's readiness says why not.
                Err(error) => {
                    tracing::warn!(%error, "a stream of {} waits", S::WHAT);
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
                let id = self.source.place_when_quiet().map(|place| format!("id: {place}\n"));
                return Some((Ok(format!(": alive\n{}\n", id.unwrap_or_default()).into()), self));
            }
        }
    }
}
