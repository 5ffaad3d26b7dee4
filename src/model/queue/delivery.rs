//! How a queue's tasks are handed out: lease, downstream, weights, routing.

use super::super::field::{FieldError, Reason, shown};
use super::super::lane::check_name;
use super::super::route::Policy;
use super::super::slice::parse_duration_ms;
use crate::limits;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Lease of a queue's started tasks. In JSON: ms, or `"auto"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// Always this long.
    Fixed {
        /// Milliseconds, 1 s to 24 h.
        ms: i64,
    },
    /// It follows from how long the queue's tasks run.
    Auto,
}

impl Lease {
    /// Checks the range.
    pub fn check(&self) -> Result<(), FieldError> {
        match self {
            Self::Fixed { ms } if !(limits::LEASE_MIN_MS..=limits::LEASE_MAX_MS).contains(ms) => {
                let detail = format!("{ms} ms must lie between 1 s and 24 h");
                Err(FieldError::new("lease", Reason::OutOfRange, detail))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Lease {
    type Err = FieldError;

    /// Reads `auto` or a length of time.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let lease = match text {
            "auto" => Self::Auto,
            text => Self::Fixed { ms: parse_duration_ms("lease", text)? },
        };
        lease.check()?;
        Ok(lease)
    }
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed { ms } => serializer.serialize_i64(*ms),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Ms(i64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Ms(ms) => Ok(Self::Fixed { ms }),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A checked name of something that tasks of several queues call upon: a push gateway, a database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DownstreamName(Arc<str>);

impl DownstreamName {
    /// Checks a name; the same characters as in a queue's.
    pub fn new(name: &str) -> Result<Self, FieldError> {
        check_name("downstream", name, limits::QUEUE_MAX_BYTES)?;
        Ok(Self(name.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DownstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for DownstreamName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DownstreamName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Shares of P0 to P5 among a queue's own tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weights(pub [u32; 6]);

impl Weights {
    /// Each lies between 1 and 1,000.
    pub fn check(&self) -> Result<(), FieldError> {
        match self.0.iter().find(|weight| !(1..=1_000).contains(*weight)) {
            Some(weight) => {
                let detail = format!("{weight} must lie between 1 and 1000");
                Err(FieldError::new("weights", Reason::OutOfRange, detail))
            }
            None => Ok(()),
        }
    }
}

impl FromStr for Weights {
    type Err = FieldError;

    /// Reads six whole numbers with commas between them.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let numbers: Result<Vec<u32>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        let numbers = numbers.ok().and_then(|numbers| <[u32; 6]>::try_from(numbers).ok());
        let weights = Self(numbers.ok_or_else(|| {
            let detail =
                format!("{} are not six whole numbers; write for example 40,25,15,10,6,4", shown(text));
            FieldError::new("weights", Reason::InvalidType, detail)
        })?);
        weights.check()?;
        Ok(weights)
    }
}

/// Name of the [`Policy`] by which an executor is chosen. Kept as text, so that one that this version does not know
/// does not make the other settings unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Routing(pub String);

impl Routing {
    /// There must be such a policy.
    pub fn check(&self) -> Result<(), FieldError> {
        self.0.parse::<Policy>().map(drop)
    }

    /// The policy; nothing for one that only another version knows.
    pub fn policy(&self) -> Option<Policy> {
        self.0.parse().ok()
    }
}
