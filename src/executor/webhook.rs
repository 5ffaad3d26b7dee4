//! Delivers tasks by calling a web address: the executor's, or the task's own; one by one or several together.
//!
//! Headers of every call: those of [`crate::webhook::sign`], `Idempotency-Key` (the execution id) and, for a
//! single task, `X-Minutehand-Task-Id`, `-Queue`, `-Attempt`, `-Due`; the body is the payload as it was submitted.
//! Several tasks go as JSON, `{"tasks": [{"id", "execution_id", "queue", "attempt", "due", "payload" or
//! "payload_base64"}]}`; the answer may have `{"results": [{"execution_id", "status", "error", "retry_after_ms"}]}`
//! with the status `ok`, `later`, `failed` or `dead` for each, and those that it does not name go by the answer's own.
//!
//! | answer | what follows |
//! | --- | --- |
//! | 202 | the receiver says later how it ended, under the execution id, within the task's lease |
//! | other 2xx | success |
//! | 408, 425, 429, 503 | tried again: with `Retry-After` then and (429, 503) not counted, else under the retry policy |
//! | 3xx, other 4xx | dead, or a failure where [`WebhookSettings::retry_refused`] is set |
//! | other 5xx, no answer | a failure; with `Retry-After`, tried again then |

use super::handler::{Context, HandlerError, HandlerFuture, HandlerResult, Task, tail};
use super::transport::Transport;
use crate::limits;
use crate::webhook::{Answer, Message, SendError, Sender, SenderSettings};
use parking_lot::Mutex;
use reqwest::Url;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long tasks gather for one call.
const GATHER: Duration = Duration::from_millis(5);
/// A task whose host has too many calls under way comes back this much later.
const BUSY_WAIT_MS: i64 = 1_000;

/// How tasks are delivered by web calls.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// How calls are made, signed and fenced in.
    pub sender: SenderSettings,
    /// Where tasks go that name no address of their own; none: they are dead letters.
    pub url: Option<String>,
    /// Whether a task's own address counts.
    pub own_urls: bool,
    /// Most tasks of one call; 1 sends each by itself.
    pub batch: usize,
    /// Whether answers that say that the request is wrong (3xx, 4xx) are tried again as failures.
    pub retry_refused: bool,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self { sender: SenderSettings::default(), url: None, own_urls: true, batch: 1, retry_refused: false }
    }
}

/// Delivers tasks by web calls. Made once, used for any number of queues.
#[derive(Clone)]
pub struct Webhook {
    inner: Arc<Inner>,
}

struct Inner {
    sender: Sender,
    url: Option<Url>,
    settings: WebhookSettings,
    gathering: Mutex<HashMap<Url, Vec<Waiting>>>,
}

/// A task that waits for its call, and who waits for its answer.
type Waiting = (Task, oneshot::Sender<HandlerResult>);

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Checks the settings; an error says which address may not be called.
    pub fn new(mut settings: WebhookSettings) -> Result<Self, HandlerError> {
        let fatal = |error: SendError| HandlerError::fatal(error.to_string());
        settings.batch = settings.batch.clamp(1, limits::BATCH_MAX_ROWS);
        let sender = Sender::new(settings.sender.clone()).map_err(fatal)?;
        let url = settings.url.as_deref().map(|url| sender.address(url)).transpose().map_err(fatal)?;
        Ok(Self { inner: Arc::new(Inner { sender, url, settings, gathering: Mutex::default() }) })
    }

    fn address(&self, task: &Task) -> Result<Url, HandlerError> {
        let inner = &self.inner;
        match task.extras.url.as_deref().filter(|_| inner.settings.own_urls) {
            Some(own) => inner.sender.address(own).map_err(|error| HandlerError::fatal(error.to_string())),
            None => inner
                .url
                .clone()
                .ok_or_else(|| HandlerError::fatal("the task names no address, and its executor has none")),
        }
    }

    async fn single(&self, url: Url, task: Task) -> HandlerResult {
        let lease_ms = lease_ms(&task);
        let mut headers = vec![
            ("x-minutehand-task-id", task.id.to_string()),
            ("x-minutehand-queue", task.queue.to_string()),
            ("x-minutehand-attempt", task.attempt.to_string()),
            ("x-minutehand-due", task.due.to_string()),
        ];
        headers.extend(task.extras.traceparent.clone().map(|parent| ("traceparent", parent)));
        let message = Message {
            url,
            id: task.execution_id.to_string(),
            content_type: "application/octet-stream",
            headers,
            timeout: time_out(&task),
            body: task.payload,
        };
        let answer = self.inner.sender.send(message).await.map_err(unsent)?;
        verdict(&answer, lease_ms, self.inner.settings.retry_refused)
    }

    /// Puts a task to those that go to the same address; the first of them sees to the call.
    async fn gathered(&self, url: Url, task: Task) -> HandlerResult {
        let (tell, told) = oneshot::channel();
        let full = {
            let mut gathering = self.inner.gathering.lock();
            let waiting = gathering.entry(url.clone()).or_default();
            waiting.push((task, tell));
            let first = waiting.len() == 1;
            if waiting.len() >= self.inner.settings.batch {
                gathering.remove(&url)
            } else {
                if first {
                    let (own, url) = (self.clone(), url.clone());
                    tokio::spawn(async move {
                        tokio::time::sleep(GATHER).await;
                        let waiting = own.inner.gathering.lock().remove(&url);
                        own.call(url, waiting.unwrap_or_default()).await;
                    });
                }
                None
            }
        };
        if let Some(waiting) = full {
            let own = self.clone();
            tokio::spawn(async move { own.call(url, waiting).await });
        }
        told.await.unwrap_or_else(|_| Err(HandlerError::failed("its call broke off")))
    }

    /// Sends tasks in calls that are no larger than they may be.
    async fn call(&self, url: Url, waiting: Vec<Waiting>) {
        let mut part: Vec<Waiting> = Vec::new();
        let mut bytes = 0;
        for one in waiting {
            let size = one.0.payload.len() * 4 / 3 + 512;
            if !part.is_empty() && bytes + size > limits::BATCH_MAX_BYTES {
                self.call_once(&url, std::mem::take(&mut part)).await;
                bytes = 0;
            }
            bytes += size;
            part.push(one);
        }
        if !part.is_empty() {
            self.call_once(&url, part).await;
        }
    }

    async fn call_once(&self, url: &Url, waiting: Vec<Waiting>) {
        let rows: Vec<_> = waiting.iter().map(|(task, _)| row(task)).collect();
        let first = &waiting[0].0;
        let message = Message {
            url: url.clone(),
            id: first.execution_id.to_string(),
            content_type: "application/json",
            headers: vec![("x-minutehand-tasks", waiting.len().to_string())],
            timeout: waiting.iter().filter_map(|(task, _)| time_out(task)).min(),
            body: json!({ "tasks": rows }).to_string().into(),
        };
        let answer = self.inner.sender.send(message).await;
        let own: HashMap<String, RowAnswer> = match &answer {
            Ok(answer) if (200..300).contains(&answer.status) => results(&answer.body),
            _ => HashMap::new(),
        };
        for (task, tell) in waiting {
            let result = match (&answer, own.get(&task.execution_id.to_string())) {
                (Err(error), _) => Err(unsent(error.clone())),
                (Ok(_), Some(row)) => row.verdict(lease_ms(&task)),
                (Ok(answer), None) => verdict(answer, lease_ms(&task), self.inner.settings.retry_refused),
            };
            let _ = tell.send(result);
        }
    }
}

impl Transport for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn deliver(&self, task: Task, context: Context) -> HandlerFuture {
        let own = self.clone();
        Box::pin(async move {
            let url = own.address(&task)?;
            let batched = own.inner.settings.batch > 1;
            let sent =
                async { if batched { own.gathered(url, task).await } else { own.single(url, task).await } };
            tokio::select! {
                biased;
                result = sent => result,
                () = context.cancelled() => Err(super::command::stopped(&context)),
            }
        })
    }
}

fn lease_ms(task: &Task) -> i64 {
    task.lease_ms.map_or(limits::LEASE_MS, i64::from)
}

fn time_out(task: &Task) -> Option<Duration> {
    task.timeout_ms.map(|ms| Duration::from_millis(ms.into()))
}

fn row(task: &Task) -> serde_json::Value {
    let mut row = json!({
        "id": task.id.as_str(),
        "execution_id": task.execution_id.to_string(),
        "queue": task.queue.as_str(),
        "attempt": task.attempt,
        "due": task.due.to_string(),
    });
    match std::str::from_utf8(&task.payload) {
        Ok(text) => row["payload"] = text.into(),
        Err(_) => row["payload_base64"] = crate::model::base64::encode(&task.payload).into(),
    }
    row
}

/// What an answer says of one task of several.
#[derive(Debug, Deserialize)]
struct RowAnswer {
    execution_id: String,
    status: RowStatus,
    #[serde(default)]
    error: String,
    #[serde(default)]
    retry_after_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RowStatus {
    Ok,
    Later,
    Failed,
    Dead,
}

impl RowAnswer {
    fn verdict(&self, lease_ms: i64) -> HandlerResult {
        let error = tail(self.error.clone());
        match (self.status, self.retry_after_ms) {
            (RowStatus::Ok, _) => Ok(()),
            (RowStatus::Later, _) => Err(HandlerError::reported_later(lease_ms)),
            (RowStatus::Failed, Some(ms)) => Err(HandlerError::retry_after(ms, true, error)),
            (RowStatus::Failed, None) => Err(HandlerError::failed(error)),
            (RowStatus::Dead, _) => Err(HandlerError::fatal(error)),
        }
    }
}

/// What an answer says of each task, as far as it can be read.
fn results(body: &[u8]) -> HashMap<String, RowAnswer> {
    #[derive(Deserialize)]
    struct Results {
        results: Vec<RowAnswer>,
    }
    let Ok(found) = serde_json::from_slice::<Results>(body) else { return HashMap::new() };
    found.results.into_iter().map(|row| (row.execution_id.clone(), row)).collect()
}

fn unsent(error: SendError) -> HandlerError {
    match error {
        SendError::Refused(why) => HandlerError::fatal(why),
        SendError::Busy(_) => HandlerError::retry_after(BUSY_WAIT_MS, false, error.to_string()),
        SendError::Failed(why) => HandlerError::failed(why),
    }
}

/// What follows from an answer.
fn verdict(answer: &Answer, lease_ms: i64, retry_refused: bool) -> HandlerResult {
    let status = answer.status;
    match (status, answer.retry_after_ms) {
        (202, _) => Err(HandlerError::reported_later(lease_ms)),
        (200..=299, _) => Ok(()),
        (408 | 425 | 429 | 500.., Some(ms)) => {
            Err(HandlerError::retry_after(ms, !matches!(status, 429 | 503), answer.text()))
        }
        (408 | 425 | 429 | 500.., None) => Err(HandlerError::failed(answer.text())),
        _ if retry_refused => Err(HandlerError::failed(answer.text())),
        _ => Err(HandlerError::fatal(answer.text())),
    }
}

/// A handler that posts each payload to an address that the operator names: inner addresses are allowed.
/// For all else that can be set, make a [`Webhook`].
pub fn http(url: &str) -> Result<Webhook, HandlerError> {
    let sender = SenderSettings { allowed: crate::webhook::Allowed::All, ..SenderSettings::default() };
    Webhook::new(WebhookSettings { sender, url: Some(url.to_owned()), own_urls: false, ..Default::default() })
}

#[cfg(test)]
mod tests;
