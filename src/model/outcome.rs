//! How a task ended, for who wants to hear of it.
//!
//! A record of an outbox, as `lua/lib/outcome.lua` writes it: time (13 digits), id (16), state (1), fence (8 hexadecimal
//! digits), length of the text (4 digits), text, and the task's spec without its payload.

use super::slice::UnixMs;
use super::spec::Spec;
use super::state::State;
use super::{Grant, TaskId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({
    "delivery": "3-1796112660123-0", "task": "0mBBZ-RGXFDo9dTn", "state": "succeeded", "at": "2026-12-01T08:31:00.123Z",
    "queue": "mail", "key": "order-17", "attempt": 1, "reason": ""
}))]
pub struct Outcome {
    /// Names this end of the task: the same however often it is delivered.
    pub delivery: String,
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskId,
    /// succeeded, dead, cancelled, expired or skipped. A dead letter that is redriven ends a second time.
    #[schema(value_type = String)]
    pub state: State,
    /// When, by Redis's clock.
    #[serde(with = "super::slice::rfc3339")]
    #[schema(value_type = String)]
    pub at: UnixMs,
    /// Its queue.
    pub queue: String,
    /// Its idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Number of its last grant; 0 if it was never granted.
    pub attempt: u32,
    /// Why, in words; empty for a success.
    pub reason: String,
    /// The subscription that the task names itself.
    #[serde(skip)]
    pub notify: Option<String>,
}

/// A record of an outbox that was read, before the name of its queue is looked up.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// When.
    pub at: UnixMs,
    /// The task.
    pub task: TaskId,
    /// How.
    pub state: State,
    /// Number of its last grant.
    pub attempt: u32,
    /// Why.
    pub reason: String,
    /// What it was, without its payload.
    pub spec: Spec,
}

/// A record that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a record of an outbox")]
pub struct BadOutcome;

impl Ended {
    /// Reads a record.
    pub fn decode(record: &Bytes) -> Result<Self, BadOutcome> {
        let text = |from: usize, to: usize| {
            record.get(from..to).and_then(|bytes| std::str::from_utf8(bytes).ok()).ok_or(BadOutcome)
        };
        let number = |from, to| text(from, to)?.parse::<u32>().map_err(|_| BadOutcome);
        let at = UnixMs(text(0, 13)?.parse::<u64>().map_err(|_| BadOutcome)? as i64);
        let task = record.get(13..29).and_then(TaskId::from_bytes).ok_or(BadOutcome)?;
        let letter = *record.get(29).ok_or(BadOutcome)?;
        let state = State::from_letter(char::from(letter)).ok_or(BadOutcome)?;
        let attempt = u32::from_str_radix(text(30, 38)?, 16).map_err(|_| BadOutcome)?;
        let end = 42 + number(38, 42)? as usize;
        // A text that was cut may end within a character.
        let reason = String::from_utf8_lossy(record.get(42..end).ok_or(BadOutcome)?).into_owned();
        let spec = Spec::decode(&record.slice(end..), task.home().start()).map_err(|_| BadOutcome)?;
        Ok(Self { at, task, state, attempt, reason, spec })
    }

    /// With the name of its queue, and how this end is called.
    pub fn named(self, bucket: u16, entry: &str, queue: String) -> Outcome {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        Outcome {
            delivery: format!("{bucket}-{entry}"),
            task: self.task,
            state: self.state,
            at: self.at,
            queue,
            key: self.spec.key.as_ref().map(|key| text(&key.bytes)),
            plan: self.spec.plan.map(|plan| plan.to_string()),
            attempt: self.attempt,
            reason: self.reason,
            notify: self.spec.extras.notify,
        }
    }
}

/// An entry of an outbox: two numbers, in the order of time.
pub type EntryId = (u64, u64);

/// Reads the name of an entry.
pub fn entry(text: &str) -> Option<EntryId> {
    let (ms, number) = text.split_once('-')?;
    Some((ms.parse().ok()?, number.parse().ok()?))
}

/// Where a subscription is in one outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// All up to this entry has been got.
    pub done: EntryId,
    /// What is being delivered ends here; [`Self::done`] where nothing is.
    pub planned: EntryId,
    /// Outcomes that had been cut off the outbox when it was here.
    pub cut_seen: u64,
    /// Outcomes given up since the last delivery that arrived.
    pub given_up: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, planned) = (self.done, self.planned);
        write!(f, "{}-{} {}-{} {} {}", done.0, done.1, planned.0, planned.1, self.cut_seen, self.given_up)
    }
}

impl FromStr for Place {
    type Err = BadOutcome;

    /// Reads what `Display` wrote; an empty text is the beginning.
    fn from_str(text: &str) -> Result<Self, BadOutcome> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut parts = text.split(' ');
        let mut next = || parts.next().ok_or(BadOutcome);
        let place = |text: &str| entry(text).ok_or(BadOutcome);
        let count = |text: &str| text.parse().map_err(|_| BadOutcome);
        Ok(Self {
            done: place(next()?)?,
            planned: place(next()?)?,
            cut_seen: count(next()?)?,
            given_up: count(next()?)?,
        })
    }
}

/// The wait before the n-th try again of a delivery that did not arrive, in ms, without chance: a second, doubled each time,
/// up to [`crate::limits::OUTCOME_WAIT_MAX_MS`].
pub fn wait_ms(failures: u32) -> i64 {
    let shift = failures.saturating_sub(1).min(20);
    (1_000i64 << shift).min(crate::limits::OUTCOME_WAIT_MAX_MS)
}

const _: () = assert!(Grant::LEN == 18, "a fence has 8 digits");

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::spec::Extras;
    use crate::model::spec::tests::plain;
    use crate::model::{Bucket, Key, Minute};
    use proptest::prelude::*;

    fn id() -> TaskId {
        TaskId::new(Minute(29_408_521), Bucket::new(3).unwrap(), 5)
    }

    pub(crate) fn ended() -> Outcome {
        Outcome {
            delivery: "3-1764511260123-0".into(),
            task: id(),
            state: State::Succeeded,
            at: UnixMs(1_764_511_260_123),
            queue: "q".into(),
            key: None,
            plan: None,
            attempt: 1,
            reason: String::new(),
            notify: None,
        }
    }

    #[test]
    fn a_record_is_read() {
        let extras = Extras { notify: Some("s".into()), ..Extras::default() };
        let spec = Spec { key: Some(Key::new("k", 0).unwrap()), extras, ..plain(b"") };
        let head = format!("1764511260123{}D00000002{:04}boom", id(), 4);
        let record: Bytes = [head.as_bytes(), &spec.encode()].concat().into();
        let read = Ended::decode(&record).unwrap();
        assert_eq!((read.state, read.attempt, read.reason.as_str()), (State::Dead, 2, "boom"));
        let outcome = read.named(3, "1764511260123-0", "mail".into());
        let wanted = Outcome {
            state: State::Dead,
            queue: "mail".into(),
            key: Some("k".into()),
            attempt: 2,
            reason: "boom".into(),
            notify: Some("s".into()),
            ..ended()
        };
        assert_eq!(outcome, wanted);
    }

    #[test]
    fn waits_grow_to_their_bound() {
        assert_eq!([wait_ms(0), wait_ms(1), wait_ms(2), wait_ms(4)], [1_000, 1_000, 2_000, 8_000]);
        assert_eq!(wait_ms(u32::MAX), crate::limits::OUTCOME_WAIT_MAX_MS);
    }

    proptest! {
        #[test]
        fn a_place_is_read_as_it_was_written(done: (u64, u64), planned: (u64, u64), cut_seen: u64, given_up: u64) {
            let place = Place { done, planned, cut_seen, given_up };
            prop_assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..120), text in ".{0,40}") {
            let _ = Ended::decode(&bytes.into());
            let _ = text.parse::<Place>();
        }
    }
}
