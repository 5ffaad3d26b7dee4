//! Who wants to hear how tasks end: of which ones, and where it is sent.
//!
//! A task's spec says whether somebody wants to hear of its end: the submitter looks at the subscriptions and at what the
//! task names itself. So a task of which nobody wants to hear costs nothing when it ends; and a subscription hears of
//! tasks that are submitted after it was made.

use super::field::{FieldError, Reason, shown};
use super::lane::{PlanName, QueueName, check_name};
use super::queue::check_address;
use super::slice::UnixMs;
use super::spec::check_key;
use super::{TaskId, outcome::Outcome};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

/// Name of a subscription: letters, digits and . _ -, up to 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionName(String);

impl SubscriptionName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, FieldError> {
        check_name("subscription", name, limits::SUBSCRIPTION_NAME_MAX_BYTES)?;
        // It is part of addresses.
        if name.contains(['/', ':', '@', '+', '=']) || name.starts_with('.') {
            let detail = format!("{} may only have letters, digits and . _ -", shown(name));
            return Err(FieldError::new("subscription", Reason::BadName, detail));
        }
        Ok(Self(name.to_owned()))
    }

    /// That of the tasks that name an address themselves.
    pub fn of_address(url: &str) -> Self {
        Self(format!("url-{:016x}", xxh3_64(url.as_bytes())))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SubscriptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SubscriptionName {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        Self::new(text)
    }
}

/// Of which tasks somebody wants to hear, and where it is sent. All that is named must fit; a task that names the
/// subscription itself always does. With nothing named only those do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Subscription {
    /// Tasks of this queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Tasks of this plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Tasks with this idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// This task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskId>,
    /// Web address that outcomes are sent to; without one they are fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// When it was made, by Redis's clock.
    #[serde(with = "super::slice::rfc3339")]
    #[schema(value_type = String)]
    pub since: UnixMs,
    /// Who made it.
    #[serde(default)]
    pub by: String,
}

impl Subscription {
    /// Checks every part; names the field that is wrong.
    pub fn check(&self) -> Result<(), FieldError> {
        if let Some(queue) = &self.queue {
            QueueName::new(queue)?;
        }
        if let Some(plan) = &self.plan {
            PlanName::new(plan)?;
        }
        if let Some(key) = &self.key {
            check_key("key", key.as_bytes())?;
        }
        self.url.as_deref().map_or(Ok(()), |url| check_address("url", url))
    }

    fn filters(&self) -> bool {
        self.queue.is_some() || self.plan.is_some() || self.key.is_some() || self.task.is_some()
    }

    fn fits(&self, queue: &str, plan: Option<&str>, key: Option<&[u8]>) -> bool {
        self.queue.as_deref().is_none_or(|own| own == queue)
            && self.plan.as_deref().is_none_or(|own| Some(own) == plan)
            && self.key.as_deref().is_none_or(|own| Some(own.as_bytes()) == key)
    }

    /// Whether it is for a task that is about to be submitted.
    pub fn wants_new(&self, queue: &str, plan: Option<&str>, key: Option<&[u8]>) -> bool {
        self.filters() && self.task.is_none() && self.fits(queue, plan, key)
    }

    /// Whether it is for a task that has ended.
    pub fn wants(&self, name: &SubscriptionName, outcome: &Outcome) -> bool {
        if outcome.notify.as_deref() == Some(name.as_str()) {
            return true;
        }
        let (plan, key) = (outcome.plan.as_deref(), outcome.key.as_deref());
        self.filters()
            && outcome.at >= self.since
            && self.task.is_none_or(|task| task == outcome.task)
            && self.fits(&outcome.queue, plan, key.map(str::as_bytes))
    }

    /// Text for Redis.
    pub fn encode(&self) -> Result<String, FieldError> {
        self.check()?;
        super::queue::encode(self)
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(text: &str) -> Result<Self, FieldError> {
        serde_json::from_str(text)
            .map_err(|error| FieldError::new("subscription", Reason::InvalidType, error.to_string()))
    }

    /// What it is for, in words.
    pub fn of(&self) -> String {
        let named = [("queue", &self.queue), ("plan", &self.plan), ("key", &self.key)];
        let mut parts: Vec<String> = named
            .iter()
            .filter_map(|(what, value)| value.as_ref().map(|value| format!("{what} {value}")))
            .collect();
        parts.extend(self.task.map(|task| format!("task {task}")));
        if parts.is_empty() { "tasks that name it".to_owned() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outcome::tests::ended;

    fn name(text: &str) -> SubscriptionName {
        SubscriptionName::new(text).unwrap()
    }

    #[test]
    fn all_that_is_named_must_fit_and_a_task_may_name_it() {
        let outcome =
            Outcome { queue: "mail".into(), plan: Some("sale".into()), key: Some("k".into()), ..ended() };
        let wish = |queue: &str, plan: Option<&str>| Subscription {
            queue: Some(queue.into()),
            plan: plan.map(str::to_owned),
            ..Subscription::default()
        };
        assert!(wish("mail", None).wants(&name("s"), &outcome));
        assert!(wish("mail", Some("sale")).wants(&name("s"), &outcome));
        assert!(!wish("mail", Some("other")).wants(&name("s"), &outcome));
        assert!(!wish("mail2", Some("sale")).wants(&name("s"), &outcome));
        let late = Subscription { since: UnixMs(outcome.at.0 + 1), ..wish("mail", None) };
        assert!(!late.wants(&name("s"), &outcome), "it ended before somebody wanted to hear");
        let nothing = Subscription::default();
        assert!(!nothing.wants(&name("s"), &outcome) && !nothing.wants_new("mail", None, None));
        assert!(nothing.wants(&name("s"), &Outcome { notify: Some("s".into()), ..outcome.clone() }));
        let one = Subscription { task: Some(outcome.task), ..Subscription::default() };
        assert!(one.wants(&name("s"), &outcome) && !one.wants_new("mail", None, None));
        let keyed = Subscription { key: Some("k".into()), ..Subscription::default() };
        assert!(keyed.wants_new("any", None, Some(b"k")) && !keyed.wants_new("any", None, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for bad in ["", "a/b", "a b", "-a", ".", "a:b", &"x".repeat(65)] {
            assert_eq!(SubscriptionName::new(bad).unwrap_err().field, "subscription", "{bad}");
        }
        let field = |wish: Subscription| wish.check().unwrap_err().field;
        assert_eq!(field(Subscription { url: Some("ftp://x".into()), ..Subscription::default() }), "url");
        assert_eq!(field(Subscription { key: Some(String::new()), ..Subscription::default() }), "key");
        assert_eq!(field(Subscription { queue: Some("a b".into()), ..Subscription::default() }), "queue");
        let wish =
            Subscription { url: Some("https://h/p".into()), by: "me".into(), ..Subscription::default() };
        assert_eq!(Subscription::decode(&wish.encode().unwrap()).unwrap(), wish);
        assert!(Subscription::decode("{").is_err());
        assert_eq!(SubscriptionName::of_address("https://h/p").as_str().len(), 20);
    }
}
