//! What must be true of a submitted task before its submitter is told that it stands.

use super::field::{FieldError, Reason, shown};
use crate::limits;
use std::fmt;
use std::str::FromStr;

/// How safe a task must be before a submit answers.
///
/// | level | written | the submit answers when | what is asked of Redis |
/// | --- | --- | --- | --- |
/// | memory | `memory` | Redis has it in memory | nothing |
/// | every second | `everysec` | it is in the append-only file, forced to the disk within a second or so | `appendfsync everysec` or `always` |
/// | always | `always` | it is on the disk | `appendfsync always` |
/// | replicas | `wait:N` | N replicas have it in memory | N replicas |
/// | files | `waitaof:L:N` | it is on the master's disk (L = 1) and on those of N replicas | Redis 7.2 or Valkey, append-only files |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// Redis answered.
    #[default]
    Memory,
    /// Appended to a file that is forced to the disk every second.
    EverySecond,
    /// Forced to the disk before the answer.
    Always,
    /// Received by so many replicas.
    Wait {
        /// At least one.
        replicas: u32,
    },
    /// Forced to the disk here, there, or both.
    WaitAof {
        /// Whether the master's own file counts.
        local: bool,
        /// Replicas whose files must have it.
        replicas: u32,
    },
}

impl Durability {
    /// Whether a call must wait for others after the script has run.
    pub const fn waits(self) -> bool {
        matches!(self, Self::Wait { .. } | Self::WaitAof { .. })
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::EverySecond => f.write_str("everysec"),
            Self::Always => f.write_str("always"),
            Self::Wait { replicas } => write!(f, "wait:{replicas}"),
            Self::WaitAof { local, replicas } => write!(f, "waitaof:{}:{replicas}", u8::from(*local)),
        }
    }
}

impl FromStr for Durability {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = |reason, why: &str| {
            let detail =
                format!("{} {why}; write memory, everysec, always, wait:1 or waitaof:1:1", shown(text));
            FieldError::new("durability", reason, detail)
        };
        let replicas = |part: &str, least: u32| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            match part.parse::<u32>() {
                Ok(n) if digits && (least..=limits::REPLICAS_MAX).contains(&n) => Ok(n),
                Ok(_) if digits => Err(wrong(Reason::OutOfRange, "names too many replicas, or none")),
                _ => Err(wrong(Reason::InvalidType, "has no number of replicas")),
            }
        };
        let mut parts = text.split(':');
        let level = match parts.next().unwrap_or_default() {
            "memory" => Self::Memory,
            "everysec" => Self::EverySecond,
            "always" => Self::Always,
            "wait" => Self::Wait { replicas: replicas(parts.next().unwrap_or_default(), 1)? },
            "waitaof" => {
                let local = match parts.next() {
                    Some("0") => false,
                    Some("1") => true,
                    _ => {
                        return Err(wrong(
                            Reason::InvalidType,
                            "has neither 0 nor 1 for the master's own file",
                        ));
                    }
                };
                let replicas = replicas(parts.next().unwrap_or_default(), u32::from(!local))?;
                Self::WaitAof { local, replicas }
            }
            _ => return Err(wrong(Reason::InvalidType, "is no level of durability")),
        };
        match parts.next() {
            None => Ok(level),
            Some(_) => Err(wrong(Reason::InvalidType, "has too many parts")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Durability, &'static str> {
        text.parse::<Durability>().map_err(|error| error.reason.code())
    }

    #[test]
    fn levels_are_read_back() {
        for (text, level) in [
            ("memory", Durability::Memory),
            ("everysec", Durability::EverySecond),
            ("always", Durability::Always),
            ("wait:2", Durability::Wait { replicas: 2 }),
            ("waitaof:1:0", Durability::WaitAof { local: true, replicas: 0 }),
            ("waitaof:0:3", Durability::WaitAof { local: false, replicas: 3 }),
        ] {
            assert_eq!(read(text), Ok(level));
            assert_eq!(level.to_string(), text);
        }
    }

    #[test]
    fn what_promises_nothing_is_refused() {
        for (text, code) in [
            ("", "invalid_type"),
            ("disk", "invalid_type"),
            ("memory:1", "invalid_type"),
            ("wait", "invalid_type"),
            ("wait:", "invalid_type"),
            ("wait:+1", "invalid_type"),
            ("wait:-1", "invalid_type"),
            ("wait:0", "out_of_range"),
            ("wait:1000", "out_of_range"),
            ("wait:1:1", "invalid_type"),
            ("waitaof:1", "invalid_type"),
            ("waitaof:2:1", "invalid_type"),
            ("waitaof:0:0", "out_of_range"),
        ] {
            assert_eq!(read(text), Err(code), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_level_or_an_error(text in "[a-z:0-9]{0,20}") {
            if let Ok(level) = text.parse::<Durability>() {
                prop_assert_eq!(level.to_string().parse::<Durability>().unwrap(), level);
            }
        }
    }
}
