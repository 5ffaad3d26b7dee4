//! Time as Redis keeps it: whole milliseconds since 1970, cut into minutes.

use super::field::{FieldError, Reason};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// The minute this instant lies in.
    pub const fn minute(self) -> Minute {
        Minute(self.0.div_euclid(60_000) as u32)
    }

    /// Milliseconds since the start of its minute, 0 to 59,999.
    pub const fn offset_ms(self) -> u16 {
        self.0.rem_euclid(60_000) as u16
    }

    /// This instant, `ms` later; stops at the ends of the range.
    pub const fn plus(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Checks a due time against the limits and clamps a past one to `now`.
    ///
    /// Everything from 1970 to `now` starts at once; before 1970 and more than ten years ahead is refused.
    pub fn checked_due(self, now: Self) -> Result<Self, FieldError> {
        let latest = now.plus(limits::DUE_AHEAD_MAX_MS).0.min(limits::DUE_MAX_MS);
        if self.0 < 0 {
            return Err(FieldError::new(
                "due",
                Reason::OutOfRange,
                format!("{} ms lies before 1970", self.0),
            ));
        }
        if self.0 > latest {
            let shown =
                if self.0 <= limits::DUE_MAX_MS { self.to_string() } else { format!("{} ms", self.0) };
            let detail = format!("{shown} is more than 10 years ahead; the latest is {}", Self(latest));
            return Err(FieldError::new("due", Reason::OutOfRange, detail));
        }
        Ok(self.max(now))
    }

    /// Reads an instant with an offset, as RFC 3339 writes it.
    pub fn parse_rfc3339(text: &str) -> Result<Self, FieldError> {
        text.trim().parse::<jiff::Timestamp>().map(|at| Self(at.as_millisecond())).map_err(|error| {
            // Well written, and beyond what can be reckoned with.
            let pieces = jiff::fmt::temporal::Pieces::parse(text.trim());
            if pieces.is_ok_and(|pieces| pieces.time().is_some() && pieces.offset().is_some()) {
                let detail = format!(
                    "{} is out of range; at most 10 years ahead are allowed",
                    super::field::shown(text)
                );
                return FieldError::new("due", Reason::OutOfRange, detail);
            }
            let detail = format!(
                "{} is no RFC 3339 time such as 2026-12-24T18:00:00Z: {error}",
                super::field::shown(text)
            );
            FieldError::new("due", Reason::InvalidType, detail)
        })
    }
}

impl From<i64> for UnixMs {
    fn from(ms: i64) -> Self {
        Self(ms)
    }
}

impl fmt::Display for UnixMs {
    /// RFC 3339 in UTC with milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

/// For serde: an instant as RFC 3339 text; numbers of ms are read as well.
pub mod rfc3339 {
    use super::UnixMs;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the text.
    pub fn serialize<S: Serializer>(at: &UnixMs, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(at)
    }

    /// Reads text or a number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixMs, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(ms) => Ok(UnixMs(ms)),
            Form::Text(text) => UnixMs::parse_rfc3339(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// Minutes since 1970: the slice of time that shares a due set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minute(pub u32);

impl Minute {
    /// The first instant of this minute.
    pub const fn start(self) -> UnixMs {
        UnixMs(self.0 as i64 * 60_000)
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes a length of time as [`parse_duration_ms`] reads it: `250ms`, `1h30m`; a negative one as none.
pub fn duration_text(ms: i64) -> String {
    const UNITS: [(i64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let (mut rest, mut text) = (ms, String::new());
    for (size, unit) in UNITS {
        if rest >= size {
            text += &format!("{}{unit}", rest / size);
            rest %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Reads a length of time: `250ms`, `10s`, `5m`, `2h`, `3d`, or several in a row (`1h30m`).
pub fn parse_duration_ms(field: &'static str, text: &str) -> Result<i64, FieldError> {
    let wrong = |why: &str| {
        let detail =
            format!("{} {why}; write for example 250ms, 10s, 5m, 2h, 1h30m", super::field::shown(text));
        FieldError::new(field, Reason::InvalidType, detail)
    };
    let (mut total, mut rest) = (0i64, text.trim());
    if rest.is_empty() {
        return Err(wrong("is empty"));
    }
    if rest.starts_with('-') {
        return Err(FieldError::new(
            field,
            Reason::OutOfRange,
            format!("{} is negative", super::field::shown(text)),
        ));
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| wrong("has no unit"))?;
        let amount: i64 = rest[..end].parse().map_err(|_| wrong("is not a length of time"))?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong("has an unknown unit")),
        };
        rest = &rest[end..];
        total = amount.checked_mul(unit).and_then(|ms| total.checked_add(ms)).ok_or_else(|| {
            FieldError::new(field, Reason::OutOfRange, format!("{} is too long", super::field::shown(text)))
        })?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_total() {
        let now = UnixMs(1_764_511_260_123);
        let code = |ms: i64| UnixMs(ms).checked_due(now).map_err(|e| e.reason.code());
        assert_eq!(code(0), Ok(now));
        assert_eq!(code(1), Ok(now));
        assert_eq!(code(now.0 + 2_147_483_648), Ok(UnixMs(now.0 + 2_147_483_648)));
        assert_eq!(code(now.0 + limits::DUE_AHEAD_MAX_MS), Ok(UnixMs(now.0 + limits::DUE_AHEAD_MAX_MS)));
        assert_eq!(code(now.0 + limits::DUE_AHEAD_MAX_MS + 1), Err("out_of_range"));
        for wrong in [-1, i64::MIN, i64::MAX, 253_402_300_800_000] {
            assert_eq!(code(wrong), Err("out_of_range"), "{wrong}");
        }
    }

    #[test]
    fn minutes_and_offsets_join_again() {
        let at = UnixMs(1_764_511_260_123);
        assert_eq!(at.minute().start().plus(i64::from(at.offset_ms())), at);
        assert_eq!(at.to_string(), "2025-11-30T14:01:00.123Z");
    }

    #[test]
    fn durations() {
        let read = |text| parse_duration_ms("in", text).map_err(|e| e.reason.code());
        assert_eq!(read("250ms"), Ok(250));
        assert_eq!(read("1h30m"), Ok(5_400_000));
        assert_eq!(read("3d"), Ok(259_200_000));
        assert_eq!(read("-5s"), Err("out_of_range"));
        assert_eq!(read("9999999999999999d"), Err("out_of_range"));
        for wrong in ["", "5", "s", "5 s", "1.5s", "5x"] {
            assert_eq!(read(wrong), Err("invalid_type"), "{wrong}");
        }
    }
}
