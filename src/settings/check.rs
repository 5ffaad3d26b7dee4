//! What must hold between settings, and what is legal but unwise.

use super::layer::{Origin, SettingsError};
use super::{Settings, Span};
use crate::limits;
use crate::model::queue::{Owner, Weights};
use crate::model::{Durability, Namespace, Retry};
use crate::webhook::Allowed;
use std::fmt;

/// A setting that works but that somebody will regret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The key.
    pub key: &'static str,
    /// What follows from it.
    pub detail: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.detail)
    }
}

/// Most connections of a pool: Redis answers one call at a time, more only queue there.
const POOL_MAX: u32 = 32;

/// Checks every rule; names the first key that breaks one.
pub fn check(s: &Settings, origin: &dyn Fn(&str) -> Origin) -> Result<Vec<Warning>, SettingsError> {
    let blame = |key: &str, detail: String| SettingsError::new(key, origin(key), detail);
    let refuse = |key: &str, detail: String| Err(blame(key, detail));

    if let Err(error) = Namespace::new(&s.namespace) {
        return refuse("namespace", error.detail);
    }
    match s.defaults.backoff.parse::<Retry>().and_then(|retry| retry.with_retries(s.defaults.retries)) {
        Err(error) if error.field == "retries" => return refuse("defaults.retries", error.detail),
        Err(error) => return refuse("defaults.backoff", error.detail),
        Ok(_) => {}
    }
    if let Err(error) = s.defaults.durability.parse::<Durability>() {
        return refuse("defaults.durability", error.detail);
    }
    if let Err(error) = s.log.level.parse::<tracing_subscriber::EnvFilter>() {
        return refuse("log.level", format!("is no level or filter: {error}"));
    }

    let number = |key: &str, value: u32, least: u32, most: u32| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(blame(key, format!("{value} must lie between {least} and {most}")))
    };
    let slots_max = limits::SLOTS_MAX as u32;
    number("redis.pool", s.redis.pool, 1, POOL_MAX)?;
    number("executor.slots", s.executor.slots, 0, slots_max)?;
    number("pod.route_sample", s.pod.route_sample, 1, limits::ROUTE_SAMPLE_MAX)?;
    if let Err(error) = s.pod.weights.parse::<Weights>() {
        return refuse("pod.weights", error.detail);
    }
    number("executor.urgent_slots", s.executor.urgent_slots, 0, slots_max)?;
    number("executor.prefetch", s.executor.prefetch, 0, slots_max)?;

    let span = |key: &str, value: Span, least: i64, most: i64| {
        if (least..=most).contains(&value.ms()) {
            return Ok(());
        }
        let (least, most) = (Span::from_ms(least), Span::from_ms(most));
        Err(blame(key, format!("{value} must lie between {least} and {most}")))
    };
    span("redis.call_timeout", s.redis.call_timeout, 100, 60_000)?;
    span("redis.connect_timeout", s.redis.connect_timeout, 50, 60_000)?;
    span("alerts.dead_every", s.alerts.dead_every, 3_000, 86_400_000)?;
    if !s.alerts.dead_webhook.is_empty()
        && let Err(error) = (Owner { webhook: s.alerts.dead_webhook.clone() }).check()
    {
        return refuse("alerts.dead_webhook", error.detail);
    }
    span("pod.lock", s.pod.lock, 500, 60_000)?;
    span("pod.poll", s.pod.poll, 10, 60_000)?;
    span("pod.gather", s.pod.gather, 0, 1_000)?;
    span("pod.ageing", s.pod.ageing, 0, limits::DUE_AHEAD_MAX_MS)?;
    span("decider.target", s.decider.target, 1, 3_600_000)?;
    span("decider.window", s.decider.window, 100, 60_000)?;
    span("decider.linger", s.decider.linger, limits::BUCKET_LINGER_MIN_MS, 86_400_000)?;
    span("pod.look_ahead", s.pod.look_ahead, 0, limits::LOOK_AHEAD_MAX_MS)?;
    span("executor.heartbeat", s.executor.heartbeat, 100, limits::LOST_AFTER_MS / 3)?;
    span("executor.ack_gather", s.executor.ack_gather, 0, limits::ACK_GATHER_MAX_MS as i64)?;
    span("executor.drain", s.executor.drain, 0, 3_600_000)?;
    span("executor.stop_grace", s.executor.stop_grace, 0, 3_600_000)?;
    span("defaults.lease", s.defaults.lease, limits::LEASE_MIN_MS, limits::LEASE_MAX_MS)?;
    span(
        "defaults.dispatch_timeout",
        s.defaults.dispatch_timeout,
        limits::LEASE_MIN_MS,
        limits::LEASE_MAX_MS,
    )?;
    // Milliseconds of a time-out lie in 32 bits.
    span("defaults.timeout", s.defaults.timeout, 0, i64::from(u32::MAX))?;
    span("defaults.start_within", s.defaults.start_within, 0, limits::DUE_AHEAD_MAX_MS)?;
    span("defaults.expire_after", s.defaults.expire_after, 0, limits::DUE_AHEAD_MAX_MS)?;
    span("webhook.timeout", s.webhook.timeout, 10, 600_000)?;
    number("webhook.per_host", s.webhook.per_host, 1, 1_000)?;
    number("webhook.batch", s.webhook.batch, 1, limits::BATCH_MAX_ROWS as u32)?;
    number("webhook.redirects", s.webhook.redirects, 0, 10)?;
    if let Err(error) = Allowed::read(&s.webhook.allow) {
        return refuse("webhook.allow", error.detail);
    }
    if !s.executor.listen.is_empty() && s.executor.listen.parse::<std::net::SocketAddr>().is_err() {
        let detail = format!("{} is no address such as 127.0.0.1:8701", s.executor.listen);
        return refuse("executor.listen", detail);
    }
    span("http.poll_wait", s.http.poll_wait, 0, limits::POLL_WAIT_MAX_MS)?;
    span("metrics.upkeep", s.metrics.upkeep, 1_000, 5_000)?;

    if s.pod.poll >= s.pod.lock {
        let detail = format!(
            "{} must be below pod.lock ({}), else a sleeping pod loses its permit",
            s.pod.poll, s.pod.lock
        );
        return refuse("pod.poll", detail);
    }
    if s.redis.connect_timeout > s.redis.call_timeout {
        let detail = format!(
            "{} must not be above redis.call_timeout ({})",
            s.redis.connect_timeout, s.redis.call_timeout
        );
        return refuse("redis.connect_timeout", detail);
    }
    if s.http.insecure && s.http.require_token {
        return refuse("http.insecure", "http.require_token says the opposite".to_owned());
    }
    if s.http.tls_cert.as_os_str().is_empty() != s.http.tls_key.as_os_str().is_empty() {
        let detail = "certificate and key are given together or not at all".to_owned();
        return refuse(
            if s.http.tls_cert.as_os_str().is_empty() { "http.tls_cert" } else { "http.tls_key" },
            detail,
        );
    }
    Ok(warnings(s))
}

fn warnings(s: &Settings) -> Vec<Warning> {
    let mut out = Vec::new();
    let mut warn = |unwise: bool, key: &'static str, detail: &str| {
        if unwise {
            out.push(Warning { key, detail: detail.to_owned() });
        }
    };
    warn(
        s.redis.allow_evicting,
        "redis.allow_evicting",
        "a Redis that evicts keys loses tasks when its memory is full",
    );
    warn(
        s.redis.call_timeout > s.pod.lock,
        "redis.call_timeout",
        "is above pod.lock: one slow call costs a pod its bucket",
    );
    warn(
        s.pod.lock.ms() < 1_000,
        "pod.lock",
        "below 1s a short stall of the network moves buckets between pods",
    );
    warn(
        s.defaults.lease.ms() < limits::LOST_AFTER_MS,
        "defaults.lease",
        "is below the 9s after which an executor counts as lost: a task runs twice before that is known",
    );
    warn(
        s.defaults.lease.ms() < 3 * s.redis.call_timeout.ms(),
        "defaults.lease",
        "is below three calls' time-outs: a slow Redis makes running tasks lapse",
    );
    warn(
        !s.pod.listen.ip().is_loopback() && s.http.insecure,
        "http.insecure",
        "whoever reaches pod.listen may do everything; put it behind something that asks who they are",
    );
    warn(
        !s.pod.listen.ip().is_loopback() && !s.http.insecure && s.http.tls_cert.as_os_str().is_empty(),
        "pod.listen",
        "answers other machines without TLS: tokens travel in the clear; set http.tls_cert, or put it behind a proxy",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn with(change: impl FnOnce(&mut Settings)) -> Result<Vec<&'static str>, (String, String)> {
        let mut settings = Settings::load(&Sources::default()).unwrap().settings;
        change(&mut settings);
        check(&settings, &|_| Origin::Default)
            .map(|warnings| warnings.iter().map(|warning| warning.key).collect())
            .map_err(|error| (error.key.unwrap_or_default(), error.detail))
    }

    #[test]
    fn rules_between_keys() {
        let key = |change: fn(&mut Settings)| with(change).unwrap_err().0;
        assert_eq!(key(|s| s.pod.poll = s.pod.lock), "pod.poll");
        assert_eq!(key(|s| s.redis.connect_timeout = Span::from_ms(2_001)), "redis.connect_timeout");
        assert_eq!(key(|s| s.pod.weights = "1,2,3".into()), "pod.weights");
        assert_eq!(key(|s| s.pod.route_sample = 0), "pod.route_sample");
        assert_eq!(key(|s| s.executor.heartbeat = Span::from_ms(3_001)), "executor.heartbeat");
        assert_eq!(key(|s| s.executor.slots = 10_001), "executor.slots");
        assert_eq!(key(|s| s.defaults.retries = 255), "defaults.retries");
        assert_eq!(key(|s| s.defaults.durability = "wait:0".into()), "defaults.durability");
        assert_eq!(key(|s| s.defaults.timeout = Span::from_ms(1 << 32)), "defaults.timeout");
        assert_eq!(key(|s| s.defaults.backoff = "often".into()), "defaults.backoff");
        assert_eq!(key(|s| s.defaults.lease = Span::from_ms(999)), "defaults.lease");
        assert_eq!(key(|s| s.log.level = "minutehand=loud".into()), "log.level");
        assert_eq!(key(|s| s.namespace = String::new()), "namespace");
        let (_, detail) = with(|s| s.redis.pool = 33).unwrap_err();
        assert_eq!(detail, "33 must lie between 1 and 32");
    }

    #[test]
    fn unwise_is_legal() {
        assert_eq!(with(|s| s.redis.allow_evicting = true), Ok(vec!["redis.allow_evicting"]));
        assert_eq!(with(|s| s.redis.call_timeout = Span::from_ms(4_000)), Ok(vec!["redis.call_timeout"]));
        assert_eq!(with(|s| s.defaults.lease = Span::from_ms(7_000)), Ok(vec!["defaults.lease"]));
        assert_eq!(with(|s| s.pod.listen = "0.0.0.0:1".parse().unwrap()), Ok(vec!["pod.listen"]));
        assert_eq!(with(|_| ()), Ok(vec![]));
    }
}
