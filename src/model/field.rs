//! What is wrong with a field: a code for machines, the field's name and a sentence for people.

use std::fmt;

/// Why a value was refused. The codes are stable; scripts and the HTTP door use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Outside of the stated limits.
    OutOfRange,
    /// Not of the type or form asked for.
    InvalidType,
    /// Longer than allowed.
    TooLong,
    /// Has characters that are not allowed, or is empty.
    BadName,
    /// Names something that does not exist.
    Unknown,
    /// A field that must be there is not.
    Missing,
    /// The namespace has no room for more of these.
    TooMany,
}

impl Reason {
    /// The code, as scripts and APIs write it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::OutOfRange => "out_of_range",
            Self::InvalidType => "invalid_type",
            Self::TooLong => "too_long",
            Self::BadName => "bad_name",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::TooMany => "too_many",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// One field that was refused; nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail} ({reason})")]
pub struct FieldError {
    /// Name of the field as the user wrote it: `queue`, `due`, `priority` …
    pub field: &'static str,
    /// The code.
    pub reason: Reason,
    /// What is wrong, the value (shortened) and the limit.
    pub detail: String,
}

impl FieldError {
    /// A refusal of `field`.
    pub fn new(field: &'static str, reason: Reason, detail: impl Into<String>) -> Self {
        Self { field, reason, detail: detail.into() }
    }
}

/// A value as it may stand in a message: at most 60 characters, control characters escaped.
pub fn shown(value: &str) -> String {
    let mut out: String = value.chars().take(60).flat_map(char::escape_debug).collect();
    if value.chars().nth(60).is_some() {
        out.push('…');
    }
    format!("`{out}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_field_value_and_code() {
        let error = FieldError::new("queue", Reason::BadName, format!("{} has a space", shown("a b")));
        assert_eq!(error.to_string(), "queue: `a b` has a space (bad_name)");
        assert_eq!(shown("a\nb"), "`a\\nb`");
        assert_eq!(shown(&"x".repeat(61)).chars().count(), 63);
    }
}
