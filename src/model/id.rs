//! Task ids that locate themselves: home minute, bucket, and 56 bits that are the task's own.

use super::bucket::Bucket;
use super::digits;
use super::field::{FieldError, Reason, shown};
use super::slice::Minute;
use std::fmt;
use std::str::FromStr;

/// Bits that make an id unique within its bucket and minute.
pub const UNIQUE_BITS: u32 = 56;

/// A task's id: 16 characters, URL-safe, sorting by home minute.
///
/// Five digits of 64 for the minute the task was first due in (its *home*), eleven for the bucket
/// (10 bits) and the unique part (56 bits). With a lane code it has 20 characters, which fill one
/// allocation class of Redis exactly. No look-up table is needed: the id says in which bucket and
/// hash its spec lies. The first digit is never `-` for a minute after 1970-06.
///
/// ```
/// use minutehand::model::{Bucket, Minute, TaskId};
/// let id = TaskId::new(Minute(29_408_521), Bucket::new(5).unwrap(), 42);
/// assert_eq!((id.home(), id.bucket().number()), (Minute(29_408_521), 5));
/// assert_eq!(id.to_string().parse::<TaskId>().unwrap(), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId([u8; Self::LEN]);

impl TaskId {
    /// Characters in an id.
    pub const LEN: usize = 16;

    /// Puts an id together. Of `unique` the low 56 bits are used.
    pub fn new(home: Minute, bucket: Bucket, unique: u64) -> Self {
        let mut text = [0; Self::LEN];
        digits::write(&mut text[..5], u128::from(home.0));
        let unique = u128::from(unique & ((1 << UNIQUE_BITS) - 1));
        digits::write(&mut text[5..], (u128::from(bucket.number()) << UNIQUE_BITS) | unique);
        Self(text)
    }

    /// Reads 16 characters.
    pub fn from_bytes(text: &[u8]) -> Option<Self> {
        let text: [u8; Self::LEN] = text.try_into().ok()?;
        let minute = digits::read(&text[..5])?;
        let bucket = digits::read(&text[5..])? >> UNIQUE_BITS;
        Bucket::new(u16::try_from(bucket).ok()?)?;
        u32::try_from(minute).ok()?;
        Some(Self(text))
    }

    /// The minute the task was first due in; its spec lies in that minute's hash for life.
    pub fn home(&self) -> Minute {
        let value = digits::read(&self.0[..5]).unwrap_or(0);
        Minute(value as u32)
    }

    /// The hour of the home minute: the hash in which the task's spec lies for life.
    pub fn shelf(&self) -> u32 {
        self.home().0 / 60
    }

    /// The bucket the task was born in and never leaves.
    pub fn bucket(&self) -> Bucket {
        let value = digits::read(&self.0[5..]).unwrap_or(0) >> UNIQUE_BITS;
        Bucket::new(value as u16).unwrap_or_default()
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }

    /// The id's bytes, as Redis has them.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TaskId {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        Self::from_bytes(text.as_bytes()).ok_or_else(|| {
            let detail =
                format!("{} is no task id: those have {} of A-Z a-z 0-9 _ -", shown(text), Self::LEN);
            FieldError::new("id", Reason::InvalidType, detail)
        })
    }
}

impl serde::Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for TaskId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_locate_themselves(minute in 0u32..(1 << 28), bucket in 0u16..1_024, unique in 0u64..(1 << 56)) {
            let id = TaskId::new(Minute(minute), Bucket::new(bucket).unwrap(), unique);
            prop_assert_eq!(id.home(), Minute(minute));
            prop_assert_eq!(id.bucket().number(), bucket);
            prop_assert_eq!(TaskId::from_bytes(id.as_bytes()), Some(id));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,24}") {
            if let Ok(id) = text.parse::<TaskId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn ids_sort_by_time_and_never_look_like_a_flag() {
        let early = TaskId::new(Minute(29_000_000), Bucket::new(9).unwrap(), u64::MAX);
        let late = TaskId::new(Minute(29_000_001), Bucket::new(0).unwrap(), 0);
        assert!(early < late && !late.as_str().starts_with('-'));
        assert!("0-zzzz".parse::<TaskId>().is_err());
    }
}
