//! What can be set for a queue: small sections, each optional, each in a file of its own.
//!
//! A section that is not there leaves the matter to the installation's settings. To add one: a type with a
//! `check` in a new file, a field in [`QueueSettings`], a line in [`QueueSettings::check`], an option in
//! `cli/queue.rs`. Sections that this version does not know are kept as they are, so that old and new
//! programs may change the same queue.

mod delivery;
mod downstream;
mod limits;
mod maintenance;
mod owner;
mod pause;
mod placement;
mod table;
mod tries;

pub use delivery::{DownstreamName, Lease, Routing, Weights};
pub use downstream::{DownstreamSettings, LimitOwner, Switches};
pub use limits::{BreakerSettings, Forced, LimitSettings, Rate, retry_window};
pub use maintenance::Maintenance;
pub use owner::Owner;
pub use pause::Pause;
pub use placement::{Collapse, PlacementSettings, placement_rate};
pub use table::{Hold, QueueTable};
pub use tries::{TimeoutDefaults, TryDefaults};

use super::field::{FieldError, Reason};
use crate::limits as bounds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is set for one queue. The default sets nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// Nothing of it is claimed while this is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// When its tasks are tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<TryDefaults>,
    /// Time-outs of its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutDefaults>,
    /// Lease of its started tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// What its tasks call upon, shared with other queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downstream: Option<DownstreamName>,
    /// Shares of its priorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Weights>,
    /// Who hears of its dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// How an executor is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<Routing>,
    /// How much of it may be handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitSettings>,
    /// Limits of each placement key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
    /// Most tasks of it that have not ended: further ones are refused when they are submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
    /// Times at which it is held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maintenance: Vec<Maintenance>,
    /// Sections of other versions.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

impl QueueSettings {
    /// Checks every section; names the field that is wrong.
    pub fn check(&self) -> Result<(), FieldError> {
        self.pause.iter().try_for_each(Pause::check)?;
        self.retry.iter().try_for_each(TryDefaults::check)?;
        self.timeouts.iter().try_for_each(TimeoutDefaults::check)?;
        self.lease.iter().try_for_each(Lease::check)?;
        self.weights.iter().try_for_each(Weights::check)?;
        self.owner.iter().try_for_each(Owner::check)?;
        self.routing.iter().try_for_each(Routing::check)?;
        self.limits.iter().try_for_each(LimitSettings::check)?;
        self.placement.iter().try_for_each(PlacementSettings::check)?;
        if let Some(backlog) = self.backlog.filter(|most| !(1..=bounds::BACKLOG_MAX_ROWS).contains(most)) {
            let detail = format!("{backlog} must lie between 1 and {}", bounds::BACKLOG_MAX_ROWS);
            return Err(FieldError::new("backlog", Reason::OutOfRange, detail));
        }
        if self.maintenance.len() > bounds::MAINTENANCE_MAX {
            let detail = format!(
                "{} windows; at most {} are allowed",
                self.maintenance.len(),
                bounds::MAINTENANCE_MAX
            );
            return Err(FieldError::new("maintenance", Reason::TooMany, detail));
        }
        Ok(())
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Text for Redis; nothing where nothing is set. Refused where it is wrong or longer than a record may be.
    pub fn encode(&self) -> Result<String, FieldError> {
        self.check()?;
        if self.is_empty() {
            return Ok(String::new());
        }
        encode(self)
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(text: &str) -> Result<Self, FieldError> {
        serde_json::from_str(text)
            .map_err(|error| FieldError::new("settings", Reason::InvalidType, error.to_string()))
    }

    /// These settings changed by a JSON object: what it names is set, `null` takes a section or field away
    /// (RFC 7386). Names that this version does not know are refused.
    pub fn patched(&self, patch: &serde_json::Value) -> Result<Self, FieldError> {
        let wrong = |detail: String| FieldError::new("settings", Reason::InvalidType, detail);
        let mut value = serde_json::to_value(self).map_err(|error| wrong(error.to_string()))?;
        if !patch.is_object() {
            return Err(wrong("is no JSON object".to_owned()));
        }
        merge(&mut value, patch);
        let new: Self = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if let Some(name) = new.unknown.keys().find(|name| !self.unknown.contains_key(*name)) {
            let detail = format!("{} is no section of a queue's settings", super::field::shown(name));
            return Err(FieldError::new("settings", Reason::Unknown, detail));
        }
        new.check()?;
        Ok(new)
    }
}

/// A record as text, within its bound.
fn encode<T: Serialize>(record: &T) -> Result<String, FieldError> {
    let text = serde_json::to_string(record)
        .map_err(|error| FieldError::new("settings", Reason::InvalidType, error.to_string()))?;
    if text.len() > bounds::QUEUE_RECORD_MAX_BYTES {
        let detail =
            format!("have {} bytes; at most {} are allowed", text.len(), bounds::QUEUE_RECORD_MAX_BYTES);
        return Err(FieldError::new("settings", Reason::TooLong, detail));
    }
    Ok(text)
}

fn merge(into: &mut serde_json::Value, patch: &serde_json::Value) {
    let (Some(patch), serde_json::Value::Object(object)) = (patch.as_object(), &mut *into) else {
        *into = patch.clone();
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            object.remove(name);
        } else if value.is_object() {
            let own = object.entry(name.clone()).or_insert_with(|| serde_json::json!({}));
            if !own.is_object() {
                *own = serde_json::json!({});
            }
            merge(own, value);
        } else {
            object.insert(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UnixMs;
    use serde_json::json;

    #[test]
    fn settings_are_read_back_with_what_others_wrote() {
        let mut settings = QueueSettings {
            pause: Some(Pause { since: UnixMs(1_764_511_260_000), who: "op".into(), why: "gateway".into() }),
            lease: Some(Lease::Auto),
            downstream: Some(DownstreamName::new("apns").unwrap()),
            ..QueueSettings::default()
        };
        settings.unknown.insert("later".into(), json!({ "x": 1 }));
        let text = settings.encode().unwrap();
        assert_eq!(
            text,
            r#"{"pause":{"since":"2025-11-30T14:01:00.000Z","who":"op","why":"gateway"},"lease":"auto","downstream":"apns","later":{"x":1}}"#
        );
        assert_eq!(QueueSettings::decode(&text), Ok(settings));
        assert_eq!(QueueSettings::default().encode(), Ok(String::new()));
    }

    #[test]
    fn patches_set_take_away_and_refuse() {
        let base = QueueSettings::default();
        let set = base
            .patched(&json!({ "retry": { "retries": 5, "backoff": "fixed:200ms" }, "lease": 45_000 }))
            .unwrap();
        assert_eq!(set.retry.as_ref().unwrap().retries, Some(5));
        assert_eq!(set.lease, Some(Lease::Fixed { ms: 45_000 }));
        let less = set.patched(&json!({ "retry": { "backoff": null }, "lease": null })).unwrap();
        assert_eq!((less.retry.unwrap().backoff, less.lease), (None, None));
        let code = |patch| base.patched(&patch).map_err(|error| (error.field, error.reason.code()));
        assert_eq!(code(json!({ "later": 1 })), Err(("settings", "unknown")));
        assert_eq!(code(json!([1])), Err(("settings", "invalid_type")));
        assert_eq!(code(json!({ "lease": 5 })), Err(("lease", "out_of_range")));
        assert_eq!(code(json!({ "retry": { "retries": 255 } })), Err(("retries", "out_of_range")));
        assert_eq!(code(json!({ "timeouts": { "total_ms": -1 } })), Err(("expire_after", "out_of_range")));
        assert_eq!(code(json!({ "owner": { "webhook": "ftp://x" } })), Err(("owner", "invalid_type")));
    }
}
