//! A task as a body describes it.

use super::error::Problem;
use super::wire::{Payload, payload};
use crate::client::{Due, NewTask};
use crate::limits;
use crate::model::lane::check_name;
use crate::model::seal::NAME_MAX_BYTES;
use crate::model::{FieldError, Key, Labels, PlanName, QueueName, Reason, UnixMs};
use serde::Deserialize;
use utoipa::ToSchema;

/// A task to be submitted. All but the queue has a default.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "queue": "mail", "in_ms": 10_000, "key": "order-17", "payload": "hello", "priority": "P2"
}))]
pub(super) struct TaskBody {
    /// Its queue.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:/@+=][A-Za-z0-9._:/@+=-]*$")]
    pub queue: String,
    /// Due so many ms after Redis's time of now.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 316_224_000_000i64)]
    in_ms: Option<i64>,
    /// Due at this instant (RFC 3339); one in the past means at once.
    #[serde(default)]
    #[schema(example = "2026-12-24T18:00:00+01:00")]
    at: Option<String>,
    /// Due at this instant, in ms since 1970; one in the past means at once.
    #[serde(default)]
    #[schema(minimum = 0)]
    at_ms: Option<i64>,
    /// P0 (most urgent) to P5; P3 if not given.
    #[serde(default)]
    #[schema(pattern = "^P[0-5]$")]
    priority: Option<String>,
    /// Labels that an executor must have.
    #[serde(default)]
    #[schema(max_items = 8)]
    labels: Vec<String>,
    /// The payload as text (in msgpack: as text or bytes), at most 1 MiB.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    payload: Option<Payload>,
    /// The payload in base64, instead of `payload`.
    #[serde(default)]
    payload_base64: Option<String>,
    /// Idempotency key: a second task with the same key is not created. The header Idempotency-Key does the same.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    pub key: Option<String>,
    /// How long the key is remembered after the task's end, in ms; a day if not given, 0 releases it at the end.
    #[serde(default)]
    #[schema(minimum = 0)]
    key_window_ms: Option<i64>,
    /// Placement key: recipient, tenant or order.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    placement: Option<String>,
    /// Plan it belongs to.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128)]
    plan: Option<String>,
    /// Tries after the first one.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 254)]
    retries: Option<i64>,
    /// Wait before them: `fixed:200ms`, `linear:5s:10m` or `exponential:5s:x5:1h`.
    #[serde(default)]
    backoff: Option<String>,
    /// Longest run of its handler, in ms.
    #[serde(default)]
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// Longest time from hand-out to start, in ms; then it is handed out again.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 86_400_000)]
    dispatch_timeout_ms: Option<i64>,
    /// It is skipped when it has not started this long after it was due.
    #[serde(default)]
    #[schema(minimum = 1)]
    start_within_ms: Option<i64>,
    /// It expires this long after it was due, wherever it is then.
    #[serde(default)]
    #[schema(minimum = 1)]
    expire_after_ms: Option<i64>,
    /// How long a started task is good without renewal, in ms.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 86_400_000)]
    lease_ms: Option<i64>,
    /// How safe it must be before its submit answers: `memory`, `everysec`, `always`, `wait:N`, `waitaof:L:N`.
    #[serde(default)]
    durability: Option<String>,
    /// Estimated run time in ms, for routing.
    #[serde(default)]
    #[schema(minimum = 0)]
    cost_ms: Option<i64>,
    /// Key for consistent routing.
    #[serde(default)]
    routing_key: Option<String>,
    /// Name of the key that the payload was encrypted with by whoever sends it; executors with that key decrypt it.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 16)]
    sealed: Option<String>,
    /// Who hears of its end: a web address, or the name of a subscription.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 2_048)]
    notify: Option<String>,
    /// W3C trace context; the header traceparent does the same.
    #[serde(default)]
    pub traceparent: Option<String>,
}

/// When something is due, by one of three fields.
pub(super) fn due(
    in_ms: Option<i64>,
    at: Option<&str>,
    at_ms: Option<i64>,
) -> Result<Option<Due>, FieldError> {
    match (in_ms, at, at_ms) {
        (None, None, None) => Ok(None),
        (Some(ms), None, None) if ms < 0 => {
            Err(FieldError::new("in_ms", Reason::OutOfRange, format!("a delay of {ms} ms is negative")))
        }
        (Some(ms), None, None) => Ok(Some(Due::In(ms))),
        (None, Some(text), None) => Ok(Some(Due::At(
            UnixMs::parse_rfc3339(text).map_err(|error| FieldError { field: "at", ..error })?,
        ))),
        (None, None, Some(ms)) if ms < 0 => {
            Err(FieldError::new("at_ms", Reason::OutOfRange, format!("{ms} is before 1970")))
        }
        (None, None, Some(ms)) => Ok(Some(Due::At(UnixMs(ms)))),
        _ => Err(FieldError::new(
            if at.is_some() { "at" } else { "at_ms" },
            Reason::InvalidType,
            "only one of in_ms, at and at_ms can hold",
        )),
    }
}

fn small<T: TryFrom<i64>>(field: &'static str, value: Option<i64>) -> Result<Option<T>, FieldError> {
    let out_of_range =
        |value| FieldError::new(field, Reason::OutOfRange, format!("{value} is outside of what it can be"));
    value.map(|value| T::try_from(value).map_err(|_| out_of_range(value))).transpose()
}

/// Longest trace context that is carried: version, trace, parent and flags are 55 bytes.
const TRACEPARENT_MAX_BYTES: usize = 128;

impl TaskBody {
    /// The task; what it does not say is as in `template`.
    pub fn into_task(self, template: &NewTask) -> Result<NewTask, Problem> {
        let mut task = NewTask { queue: QueueName::new(&self.queue)?, ..template.clone() };
        task.labels = Labels::new(&self.labels)?;
        if let Some(due) = due(self.in_ms, self.at.as_deref(), self.at_ms)? {
            task.due = due;
        }
        if let Some(priority) = &self.priority {
            task.priority = priority.parse()?;
        }
        if let Some(backoff) = &self.backoff {
            task.backoff = Some(backoff.parse::<crate::model::Retry>()?);
        }
        if let Some(retries) = small::<u32>("retries", self.retries)? {
            crate::model::Retry::default().with_retries(retries)?;
            task.retries = Some(retries);
        }
        if let Some(key) = self.key {
            let window = self.key_window_ms.unwrap_or(limits::KEY_WINDOW_MS);
            task.key = Some(Key::new(key.into_bytes(), window)?);
        }
        if let Some(placement) = self.placement {
            task.placement = Some(placement.into_bytes().into());
        }
        if let Some(plan) = &self.plan {
            task.plan = Some(PlanName::new(plan)?);
        }
        task.timeout_ms = small("timeout_ms", self.timeout_ms)?.or(task.timeout_ms);
        task.lease_ms = small("lease_ms", self.lease_ms)?.or(task.lease_ms);
        task.extras.dispatch_ms =
            small("dispatch_timeout_ms", self.dispatch_timeout_ms)?.or(task.extras.dispatch_ms);
        task.start_within_ms = self.start_within_ms.or(task.start_within_ms);
        task.expire_after_ms = self.expire_after_ms.or(task.expire_after_ms);
        if let Some(durability) = &self.durability {
            task.durability = durability.parse()?;
        }
        task.extras.cost_ms = small("cost_ms", self.cost_ms)?;
        if self.routing_key.as_ref().is_some_and(|key| key.len() > limits::KEY_MAX_BYTES) {
            let detail = format!("longer than {} bytes", limits::KEY_MAX_BYTES);
            return Err(FieldError::new("routing_key", Reason::TooLong, detail).into());
        }
        task.extras.routing_key = self.routing_key;
        if self.traceparent.as_ref().is_some_and(|text| text.len() > TRACEPARENT_MAX_BYTES) {
            let detail = format!("longer than {TRACEPARENT_MAX_BYTES} bytes");
            return Err(FieldError::new("traceparent", Reason::TooLong, detail).into());
        }
        if let Some(name) = &self.sealed {
            check_name("sealed", name, NAME_MAX_BYTES)?;
        }
        task.extras.sealed = self.sealed;
        task.extras.notify = self.notify;
        task.extras.traceparent = self.traceparent;
        if let Some(payload) = payload(self.payload, self.payload_base64.as_deref())? {
            task.payload = payload;
        }
        Ok(task)
    }
}
