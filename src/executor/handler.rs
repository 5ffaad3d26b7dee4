//! What a handler gets, what it may answer, and how it is told to stop.

use super::marks::{LastProgress, Marks};
use crate::limits;
use crate::model::spec::Extras;
use crate::model::{ExecutionId, Labels, Priority, QueueName, TaskId, UnixMs};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What a handler answers.
pub type HandlerResult = Result<(), HandlerError>;

/// A handler at work.
pub type HandlerFuture = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// A handler as the runtime keeps it.
pub(super) type Handler = Arc<dyn Fn(Task, Context) -> HandlerFuture + Send + Sync>;

/// One task, handed to its handler.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its id, the same in every attempt.
    pub id: TaskId,
    /// The name of this attempt: fit as an idempotency key of what the handler does elsewhere.
    pub execution_id: ExecutionId,
    /// The queue it was submitted to.
    pub queue: QueueName,
    /// Labels it asked for.
    pub labels: Arc<Labels>,
    /// How urgent it was when it was submitted.
    pub priority: Priority,
    /// When it was due in this attempt.
    pub due: UnixMs,
    /// 1 for the first attempt; hand-backs do not count.
    pub attempt: u32,
    /// Its idempotency key.
    pub key: Option<Bytes>,
    /// Its placement key.
    pub placement: Option<Bytes>,
    /// The plan it belongs to.
    pub plan: Option<String>,
    /// When it expires, wherever it is.
    pub deadline: Option<UnixMs>,
    /// How long it is good without renewal; none: the usual time.
    pub lease_ms: Option<u32>,
    /// How long its handler may run.
    pub timeout_ms: Option<u32>,
    /// Cost estimate, routing key, trace context.
    pub extras: Extras,
    /// The payload as submitted, byte for byte.
    pub payload: Bytes,
}

impl Task {
    /// The payload as JSON. What cannot be read is fatal: another attempt would read the same bytes.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_slice(&self.payload)
            .map_err(|error| HandlerError::fatal(format!("payload is not the JSON expected: {error}")))
    }

    /// The payload as msgpack, which is what an import writes. What cannot be read is fatal.
    pub fn msgpack<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        rmp_serde::from_slice(&self.payload)
            .map_err(|error| HandlerError::fatal(format!("payload is not the msgpack expected: {error}")))
    }
}

/// How a handler failed, and what shall follow.
///
/// Any error converts into one that is tried again under the task's retry policy:
///
/// ```
/// use minutehand::executor::{HandlerError, HandlerResult};
///
/// fn parse(text: &str) -> HandlerResult {
///     let number: u32 = text.parse()?;
///     if number == 0 {
///         return Err(HandlerError::fatal("there is no flight 0"));
///     }
///     Ok(())
/// }
/// assert!(!parse("x").unwrap_err().is_fatal());
/// assert!(parse("0").unwrap_err().is_fatal());
/// ```
///
/// It is deliberately no `std::error::Error`: that is what lets `?` convert all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerError {
    message: String,
    then: Then,
}

/// What shall follow a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Retry,
    Die,
    RetryAfter { ms: i64, counted: bool },
    Later { ms: i64 },
}

impl HandlerError {
    /// A failure: the task's retry policy says what follows.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), then: Then::Retry }
    }

    /// A failure that no retry can cure: the task becomes a dead letter at once.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), then: Then::Die }
    }

    /// Not now: try again in `ms` milliseconds. Counted as an attempt or, as when a server asks
    /// everybody to come back later, not. Waits beyond a week are cut to a week.
    pub fn retry_after(ms: i64, counted: bool, message: impl Into<String>) -> Self {
        let ms = ms.clamp(0, limits::BACKOFF_MAX_MS);
        Self { message: message.into(), then: Then::RetryAfter { ms, counted } }
    }

    /// No failure: whoever was given the task reports its outcome within `ms`, under the execution id, and this
    /// executor does not. It must renew or report in time, else the lease lapses, which is a failure.
    pub fn reported_later(ms: i64) -> Self {
        let ms = ms.clamp(limits::LEASE_MIN_MS, limits::LEASE_MAX_MS);
        Self { message: "its outcome is reported later".into(), then: Then::Later { ms } }
    }

    pub(super) fn reported_later_ms(&self) -> Option<i64> {
        match self.then {
            Then::Later { ms } => Some(ms),
            _ => None,
        }
    }

    /// Whether somebody else reports the outcome.
    pub fn is_reported_later(&self) -> bool {
        matches!(self.then, Then::Later { .. })
    }

    /// What went wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether no retry shall follow.
    pub fn is_fatal(&self) -> bool {
        self.then == Then::Die
    }

    /// The wait asked for, and whether the attempt counts.
    pub fn wait_ms(&self) -> Option<(i64, bool)> {
        match self.then {
            Then::RetryAfter { ms, counted } => Some((ms, counted)),
            Then::Retry | Then::Die | Then::Later { .. } => None,
        }
    }

    pub(super) fn into_parts(self) -> (String, Then) {
        (self.message, self.then)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Into<anyhow::Error>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::failed(format!("{:#}", error.into()))
    }
}

/// Cuts an error text to what is kept of one attempt. The end is kept: that is where causes stand.
pub(super) fn tail(mut text: String) -> String {
    let max = limits::ERROR_TAIL_MAX_BYTES;
    if text.len() > max {
        let mut from = text.len() - max;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
    text
}

/// Why a handler was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stop {
    /// Somebody cancelled the task. Whatever the handler answers, the task ends as cancelled.
    Cancelled,
    /// It ran longer than the task's time-out. Whatever the handler answers, the attempt has failed.
    TimedOut,
    /// Its lease could not be renewed in time, so another executor may have the task by now.
    LeaseLost,
    /// Its grant no longer stands: the outcome of this attempt is of no interest.
    Stale,
    /// The executor shuts down. `Ok` still counts as a success; an error hands the task back, uncounted.
    Draining,
}

impl Stop {
    const ALL: [Self; 5] = [Self::Cancelled, Self::TimedOut, Self::LeaseLost, Self::Stale, Self::Draining];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed out",
            Self::LeaseLost => "lease lost",
            Self::Stale => "grant is stale",
            Self::Draining => "executor shuts down",
        })
    }
}

/// How one execution is told to stop, every reason given so far, and what else its contexts share: one allocation a task.
#[derive(Debug, Default)]
pub(super) struct Signal {
    told: Notify,
    /// Made when a handler asks for one.
    token: OnceLock<CancellationToken>,
    reasons: AtomicU8,
    /// Number of the first reason, plus one.
    first: AtomicU8,
    pub(super) last_progress: LastProgress,
}

impl Signal {
    pub fn fire(&self, why: Stop) {
        self.reasons.fetch_or(why.bit(), Ordering::AcqRel);
        // The first reason stands; the others are still in `reasons`.
        let _ = self.first.compare_exchange(0, why as u8 + 1, Ordering::AcqRel, Ordering::Acquire);
        self.told.notify_waiters();
        // Either this sees a token that is made just now, or who makes it sees that this was fired.
        fence(Ordering::SeqCst);
        if let Some(token) = self.token.get() {
            token.cancel();
        }
    }

    pub fn has(&self, why: Stop) -> bool {
        self.reasons.load(Ordering::Acquire) & why.bit() != 0
    }

    pub fn first(&self) -> Option<Stop> {
        let number = usize::from(self.first.load(Ordering::Acquire));
        Stop::ALL.get(number.checked_sub(1)?).copied()
    }

    pub async fn fired(&self) {
        let told = self.told.notified();
        if self.first().is_none() {
            told.await;
        }
    }

    fn token(&self) -> CancellationToken {
        let token = self.token.get_or_init(CancellationToken::new);
        fence(Ordering::SeqCst);
        if self.first().is_some() {
            token.cancel();
        }
        token.child_token()
    }
}

/// What a handler may ask about its execution.
#[derive(Debug, Clone)]
pub struct Context {
    pub(super) signal: Arc<Signal>,
    pub(super) executor: Arc<str>,
    pub(super) execution: ExecutionId,
    pub(super) marks: Arc<dyn Marks>,
    pub(super) lag_ms: i64,
    pub(super) time_out: Option<Duration>,
}

impl Context {
    /// Completes when the handler shall stop. It then has the stop grace, 5 s by default, to end by
    /// itself; after that its future is dropped.
    ///
    /// A handler that stops early must answer an error: `Ok` says that the work was done.
    pub async fn cancelled(&self) {
        self.signal.fired().await;
    }

    /// Whether the handler shall stop.
    pub fn is_cancelled(&self) -> bool {
        self.signal.first().is_some()
    }

    /// A token that is cancelled when the handler shall stop, to hand on to what it starts.
    pub fn token(&self) -> CancellationToken {
        self.signal.token()
    }

    /// Why the handler shall stop: the first reason, if there is one.
    pub fn stop(&self) -> Option<Stop> {
        self.signal.first()
    }

    /// The instance id of this executor.
    pub fn executor(&self) -> &str {
        &self.executor
    }

    /// How late the handler was entered, by Redis's clock, in ms, rounded down.
    pub fn lag_ms(&self) -> i64 {
        self.lag_ms
    }

    /// How long the handler may run.
    pub fn time_out(&self) -> Option<Duration> {
        self.time_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_convert_with_their_causes_and_keep_their_end() {
        fn chain() -> HandlerResult {
            Err(anyhow::anyhow!("no route to host").context("gateway"))?
        }
        assert_eq!(chain().unwrap_err().to_string(), "gateway: no route to host");
        let io: HandlerError = std::io::Error::other("disk").into();
        assert_eq!((io.message(), io.is_fatal(), io.wait_ms()), ("disk", false, None));
        assert_eq!(HandlerError::retry_after(-5, true, "").wait_ms(), Some((0, true)));
        let long = tail(format!("{}é{}", "x".repeat(600), "y".repeat(1_023)));
        assert_eq!(long, "y".repeat(1_023), "a half character is left out");
    }

    #[test]
    fn the_first_reason_stands_and_none_is_forgotten() {
        let signal = Signal::default();
        assert_eq!(signal.first(), None);
        signal.fire(Stop::TimedOut);
        signal.fire(Stop::Cancelled);
        assert_eq!(signal.first(), Some(Stop::TimedOut));
        assert!(signal.has(Stop::Cancelled) && signal.has(Stop::TimedOut) && !signal.has(Stop::Stale));
        for why in Stop::ALL {
            let one = Signal::default();
            one.fire(why);
            assert_eq!(one.first(), Some(why));
        }
    }

    #[tokio::test]
    async fn who_waits_and_every_token_is_told_whenever_it_came() {
        let signal = Signal::default();
        let (before, waiting) = (signal.token(), signal.fired());
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err() && !before.is_cancelled());
        // What a handler does with its own token is its own affair.
        before.cancel();
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        assert!(!signal.token().is_cancelled());
        let other = signal.token();
        signal.fire(Stop::Draining);
        waiting.await;
        signal.fired().await;
        assert!(other.is_cancelled() && signal.token().is_cancelled());
        let late = Signal::default();
        late.fire(Stop::Cancelled);
        assert!(late.token().is_cancelled());
    }
}
