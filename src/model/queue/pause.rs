//! A queue that is paused: nothing of it is claimed; what was claimed before goes on.

use super::super::field::{FieldError, Reason};
use super::super::slice::{UnixMs, rfc3339};
use crate::limits;
use serde::{Deserialize, Serialize};

/// Since when a queue is paused, by whom and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Since when, by Redis's clock.
    #[serde(with = "rfc3339")]
    pub since: UnixMs,
    /// By whom.
    #[serde(default)]
    pub who: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Pause {
    /// Checks the lengths of its texts.
    pub fn check(&self) -> Result<(), FieldError> {
        for (field, text) in [("who", &self.who), ("why", &self.why)] {
            if text.len() > limits::CAUSE_MAX_BYTES {
                let detail =
                    format!("has {} bytes; at most {} are allowed", text.len(), limits::CAUSE_MAX_BYTES);
                return Err(FieldError::new(field, Reason::TooLong, detail));
            }
        }
        Ok(())
    }
}
