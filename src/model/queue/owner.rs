//! Who looks after a queue.

use super::super::field::{FieldError, Reason, shown};
use crate::limits;
use serde::{Deserialize, Serialize};

/// Whom to tell of a queue's dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Address that is told, `http` or `https`.
    pub webhook: String,
}

impl Owner {
    /// Checks the address.
    pub fn check(&self) -> Result<(), FieldError> {
        check_address("owner", &self.webhook)
    }
}

/// Checks what can be seen in the address of a web call, wherever it may lead.
pub fn check_address(field: &'static str, url: &str) -> Result<(), FieldError> {
    if url.len() > limits::URL_MAX_BYTES {
        let detail = format!("has {} bytes; at most {} are allowed", url.len(), limits::URL_MAX_BYTES);
        return Err(FieldError::new(field, Reason::TooLong, detail));
    }
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let host = host.and_then(|rest| rest.split(['/', '?', '#']).next());
    if host.is_none_or(str::is_empty) || url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let detail = format!("{} is no address; write https://host/path", shown(url));
        return Err(FieldError::new(field, Reason::InvalidType, detail));
    }
    Ok(())
}
