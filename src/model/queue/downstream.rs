//! What is set for a downstream: something that tasks of several queues call upon.

use super::super::field::{FieldError, Reason};
use super::super::lane::QueueName;
use super::{DownstreamName, LimitSettings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whose limits they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitOwner {
    /// A queue, whatever the labels.
    Queue(QueueName),
    /// All queues that name this downstream.
    Downstream(DownstreamName),
}

impl LimitOwner {
    /// Its name in keys and records: `q:push`, `d:apns`.
    pub fn key(&self) -> String {
        match self {
            Self::Queue(queue) => format!("q:{queue}"),
            Self::Downstream(name) => format!("d:{name}"),
        }
    }
}

impl std::fmt::Display for LimitOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Downstream(name) => write!(f, "downstream {name}"),
        }
    }
}

/// What is set for a whole namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Switches {
    /// No task that has failed is handed out while this is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_retries: Option<super::Pause>,
    /// Sections of other versions.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

impl Switches {
    /// Text for Redis; nothing where nothing is set.
    pub fn encode(&self) -> Result<String, FieldError> {
        self.no_retries.iter().try_for_each(super::Pause::check)?;
        if *self == Self::default() { Ok(String::new()) } else { super::encode(self) }
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(text: &str) -> Result<Self, FieldError> {
        serde_json::from_str(text)
            .map_err(|error| FieldError::new("settings", Reason::InvalidType, error.to_string()))
    }
}

/// What is set for a downstream, and for all queues that name it together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DownstreamSettings {
    /// How much may be handed out.
    #[serde(default, skip_serializing_if = "LimitSettings::is_empty")]
    pub limits: LimitSettings,
    /// Sections of other versions.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

impl DownstreamSettings {
    /// Checks every section.
    pub fn check(&self) -> Result<(), FieldError> {
        self.limits.check()
    }

    /// Text for Redis; nothing where nothing is set.
    pub fn encode(&self) -> Result<String, FieldError> {
        self.check()?;
        if *self == Self::default() { Ok(String::new()) } else { super::encode(self) }
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(text: &str) -> Result<Self, FieldError> {
        serde_json::from_str(text)
            .map_err(|error| FieldError::new("settings", Reason::InvalidType, error.to_string()))
    }
}
