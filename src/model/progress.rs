//! How far a task that runs is.

use crate::limits;
use serde::{Deserialize, Serialize};

/// How far a handler is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({ "part": 0.5, "text": "page 3 of 6" }))]
pub struct Progress {
    /// The part that is done, 0 to 1.
    pub part: f64,
    /// What it does, in words.
    pub text: String,
}

impl Progress {
    /// The field of what is kept for a task that it lies in.
    pub const FIELD: &[u8] = b"p";

    /// A part, cut to 0 to 1, and a text, cut to [`limits::PROGRESS_TEXT_MAX_CHARS`] characters.
    pub fn new(part: f64, text: impl Into<String>) -> Self {
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        let mut text: String = text.into();
        if let Some((end, _)) = text.char_indices().nth(limits::PROGRESS_TEXT_MAX_CHARS) {
            text.truncate(end);
        }
        Self { part, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_cut_to_what_can_be_shown() {
        assert_eq!(Progress::new(f64::NAN, "a"), Progress { part: 0.0, text: "a".into() });
        assert_eq!(Progress::new(7.0, "").part, 1.0);
        let long = Progress::new(-1.0, "\u{e9}".repeat(limits::PROGRESS_TEXT_MAX_CHARS + 1));
        assert_eq!((long.part, long.text.chars().count()), (0.0, limits::PROGRESS_TEXT_MAX_CHARS));
    }
}
