//! Sends one message and reads the answer.

use super::net::Allowed;
use super::sign::Keys;
use crate::clock;
use crate::limits;
use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How messages are sent.
#[derive(Debug, Clone)]
pub struct SenderSettings {
    /// Longest exchange, from the first packet to the end of the answer.
    pub timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Keys that messages are signed with; none: they are not signed.
    pub keys: Keys,
    /// Which inner addresses messages may go to.
    pub allowed: Allowed,
    /// Redirects that are followed; each goes through the same checks.
    pub redirects: usize,
    /// Calls to one host at a time. As many again may wait; further ones are refused for now.
    pub per_host: usize,
    /// Most bytes of an answer that are kept; the rest is read and dropped, up to as many again.
    pub answer_max_bytes: usize,
}

impl Default for SenderSettings {
    fn default() -> Self {
        Self {
            timeout: clock::ms(limits::WEBHOOK_TIMEOUT_MS),
            connect_timeout: Duration::from_secs(2),
            keys: Keys::default(),
            allowed: Allowed::default(),
            redirects: 0,
            per_host: 32,
            answer_max_bytes: limits::WEBHOOK_ANSWER_MAX_BYTES,
        }
    }
}

/// A message.
#[derive(Debug, Clone)]
pub struct Message {
    /// Where it goes.
    pub url: Url,
    /// Its id: `webhook-id` and `Idempotency-Key`.
    pub id: String,
    /// `content-type` of the body.
    pub content_type: &'static str,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
    /// Longest exchange, where it is to be shorter than usual.
    pub timeout: Option<Duration>,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// How long the server asks to wait, in ms.
    pub retry_after_ms: Option<i64>,
    /// The beginning of the body.
    pub body: Bytes,
}

impl Answer {
    /// The status and the beginning of the body, for people.
    pub fn text(&self) -> String {
        let status = reqwest::StatusCode::from_u16(self.status)
            .map_or_else(|_| self.status.to_string(), |status| status.to_string());
        let body = String::from_utf8_lossy(&self.body[..self.body.len().min(limits::ERROR_TAIL_MAX_BYTES)]);
        if body.trim().is_empty() { status } else { format!("{status}: {}", body.trim()) }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// A message may not go there; it is of no use to try again.
    #[error("{0}")]
    Refused(String),
    /// Too many calls to its host run and wait already.
    #[error("too many calls to {0} are under way")]
    Busy(String),
    /// No connection, no answer in time, or half of one.
    #[error("{0}")]
    Failed(String),
}

/// Sends messages. Cheap to clone; clones share connections and the count of calls to a host.
#[derive(Debug, Clone)]
pub struct Sender {
    client: reqwest::Client,
    settings: Arc<SenderSettings>,
    hosts: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

impl Sender {
    /// A sender.
    pub fn new(settings: SenderSettings) -> Result<Self, SendError> {
        // An error only says that one was installed before; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let allowed = Arc::new(settings.allowed.clone());
        let client = reqwest::Client::builder()
            .redirect(redirects(settings.redirects, Arc::clone(&allowed)))
            .timeout(settings.timeout)
            .connect_timeout(settings.connect_timeout)
            .pool_max_idle_per_host(settings.per_host)
            .pool_idle_timeout(Duration::from_secs(60))
            // A proxy would resolve names itself, behind the fence.
            .no_proxy()
            .referer(false)
            .dns_resolver(Fenced { allowed })
            .user_agent(concat!("minutehand/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| SendError::Refused(format!("no client can be made: {error:#}")))?;
        Ok(Self { client, settings: Arc::new(settings), hosts: Arc::default() })
    }

    /// Reads an address and checks all that can be seen in it.
    pub fn address(&self, url: &str) -> Result<Url, SendError> {
        let url = read(url).map_err(SendError::Refused)?;
        fits(&url, &self.settings.allowed).map_err(SendError::Refused)?;
        Ok(url)
    }

    /// Sends a message and reads its answer.
    pub async fn send(&self, message: Message) -> Result<Answer, SendError> {
        fits(&message.url, &self.settings.allowed).map_err(SendError::Refused)?;
        let _permit = self.permit(&message.url).await?;
        let at_s = clock::wall_us().div_euclid(1_000_000);
        let mut request = self
            .client
            .post(message.url)
            .header("content-type", message.content_type)
            .header("idempotency-key", &message.id)
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", at_s);
        if !self.settings.keys.is_empty() {
            request = request
                .header("webhook-signature", self.settings.keys.sign(&message.id, at_s, &message.body));
        }
        for (name, value) in message.headers {
            request = request.header(name, value);
        }
        if let Some(timeout) = message.timeout {
            request = request.timeout(timeout.min(self.settings.timeout));
        }
        let response = request.body(message.body).send().await.map_err(failed)?;
        self.read(response).await
    }

    async fn read(&self, mut response: reqwest::Response) -> Result<Answer, SendError> {
        let status = response.status().as_u16();
        let retry_after_ms = retry_after_ms(response.headers());
        let (mut body, mut read) = (Vec::new(), 0);
        // Read to its end, so that the connection can be used again; but not for ever.
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            read += piece.len();
            let room = self.settings.answer_max_bytes.saturating_sub(body.len());
            body.extend_from_slice(&piece[..piece.len().min(room)]);
            if read > 2 * self.settings.answer_max_bytes {
                break;
            }
        }
        Ok(Answer { status, retry_after_ms, body: body.into() })
    }

    /// A place among the calls to a host.
    async fn permit(&self, url: &Url) -> Result<OwnedSemaphorePermit, SendError> {
        let host = url.host_str().unwrap_or("").to_owned();
        let semaphore = {
            let mut hosts = self.hosts.lock();
            if hosts.len() >= limits::WEBHOOK_HOSTS_MAX {
                // Nobody else holds those of hosts to which nothing is under way.
                hosts.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            }
            let make = || Arc::new(Semaphore::new(self.settings.per_host));
            let semaphore = Arc::clone(hosts.entry(host.clone()).or_insert_with(make));
            // The map, this call, and two for each that runs or waits.
            if Arc::strong_count(&semaphore) > 2 * self.settings.per_host + 2 {
                return Err(SendError::Busy(host));
            }
            semaphore
        };
        semaphore.acquire_owned().await.map_err(|_| SendError::Busy(host))
    }
}

fn failed(error: reqwest::Error) -> SendError {
    // What the source says ("connection refused") stands at the end of the chain. The address is in the task.
    let error = error.without_url();
    let fenced = {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        loop {
            match source {
                None => break None,
                Some(found) => match found.downcast_ref::<Behind>() {
                    Some(behind) => break Some(behind.to_string()),
                    None => source = found.source(),
                },
            }
        }
    };
    match fenced {
        Some(refused) => SendError::Refused(refused),
        None => SendError::Failed(format!("{:#}", anyhow::Error::new(error))),
    }
}

/// Reads a web address. Where it leads is not looked at.
fn read(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is no web address: {error}"))?;
    fits(&url, &Allowed::All)?;
    Ok(url)
}

/// Whether a text is a web address; in words why it is none.
pub fn check_address(text: &str) -> Result<(), String> {
    read(text).map(drop)
}

/// What can be seen in an address: its scheme, and an inner address that is written as such.
fn fits(url: &Url, allowed: &Allowed) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{:?} must begin with http:// or https://", url.as_str()));
    }
    let host = url.host_str().unwrap_or("");
    if host.is_empty() {
        return Err(format!("{:?} names no host", url.as_str()));
    }
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) if !allowed.may_reach(address) => Err(Behind { place: address.to_string() }.to_string()),
        _ => Ok(()),
    }
}

fn redirects(most: usize, allowed: Arc<Allowed>) -> reqwest::redirect::Policy {
    if most == 0 {
        return reqwest::redirect::Policy::none();
    }
    reqwest::redirect::Policy::custom(move |attempt| {
        if attempt.previous().len() > most {
            return attempt.error(format!("more than {most} redirects"));
        }
        match fits(attempt.url(), &allowed) {
            Ok(()) => attempt.follow(),
            Err(why) => attempt.error(why),
        }
    })
}

/// An inner address that a message may not go to.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{place} is an inner address: webhook.allow does not permit it")]
struct Behind {
    /// The address, or a name and where it leads.
    place: String,
}

/// Resolves names, and leaves out where messages may not go. The connection is made to what is answered here,
/// so that a name cannot show one face to the check and another to the call.
struct Fenced {
    allowed: Arc<Allowed>,
}

impl Resolve for Fenced {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = Arc::clone(&self.allowed);
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let (may, not): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|address| allowed.may_reach(address.ip()));
            match (may.is_empty(), not.first()) {
                (true, Some(address)) => {
                    Err(Box::new(Behind { place: format!("{host} leads to {}, which", address.ip()) }) as _)
                }
                _ => Ok(Box::new(may.into_iter()) as Addrs),
            }
        })
    }
}

/// How long a server asks to wait: seconds, or a date, which is compared with the server's own.
fn retry_after_ms(headers: &HeaderMap) -> Option<i64> {
    let text = |name| headers.get(name).and_then(|value: &reqwest::header::HeaderValue| value.to_str().ok());
    let after = text("retry-after")?.trim();
    let ms = match after.parse::<i64>() {
        Ok(seconds) => seconds.saturating_mul(1_000),
        Err(_) => {
            let read =
                |date: &str| jiff::fmt::rfc2822::parse(date).ok().map(|at| at.timestamp().as_millisecond());
            let now = text("date").and_then(read).unwrap_or_else(|| clock::wall_us() / 1_000);
            read(after)? - now
        }
    };
    Some(ms.clamp(0, limits::WEBHOOK_RETRY_AFTER_MAX_MS))
}
