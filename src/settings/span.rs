//! A length of time in settings: `"3s"`.

use crate::model::slice::{duration_text, parse_duration_ms};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// A length of time, in whole milliseconds. Written `250ms`, `3s`, `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(i64);

impl Span {
    /// So many milliseconds; nothing for a negative number.
    pub const fn from_ms(ms: i64) -> Self {
        Self(if ms < 0 { 0 } else { ms })
    }

    /// In milliseconds, never negative.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// For sleeping.
    pub fn duration(self) -> Duration {
        crate::clock::ms(self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration_text(self.0))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration_ms("value", &text).map(Self).map_err(|error| serde::de::Error::custom(error.detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back() {
        for (ms, text) in
            [(0, "0s"), (5, "5ms"), (3_000, "3s"), (5_400_000, "1h30m"), (90_061_001, "1d1h1m1s1ms")]
        {
            assert_eq!(Span::from_ms(ms).to_string(), text);
            assert_eq!(parse_duration_ms("value", text).unwrap(), ms);
        }
        assert_eq!(Span::from_ms(-1).duration(), Duration::ZERO);
    }
}
