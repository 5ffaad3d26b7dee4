//! Events: every move of every task, packed one entry per script call.
//!
//! An entry of a bucket's stream has three fields: `k`, one letter for the kind; `d`, what its moves
//! share: the call's time (13 digits), the length of the actor's name (2 digits), the name; and `r`,
//! the records, one behind the other.
//!
//! | kind | moves | actor | record |
//! | --- | --- | --- | --- |
//! | `s` | submitted | | id 16, lane 4, due within its home minute 3 (digits of 64) |
//! | `g` | claimed for the first time | pod, then the grant of all | id 16 |
//! | `c` | claimed again | pod | id 16, grant 18 |
//! | `o` | offered | pod | id 16, grant 18, executor 2 digits of length + name |
//! | `b` | started | executor | id 16, grant 18 |
//! | `e` | ended | executor | id 16, grant 18, outcome 1, lag 5, took 5 (ms, digits of 64) |
//! | `v` | anything rarer | who did it | id 16, grant 18 or spaces, move 1, due 13, length 4, text |

use super::digits;
use super::grant::Grant;
use super::id::TaskId;
use super::slice::UnixMs;
use super::state::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What happened to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// Accepted into its due set.
    Submitted,
    /// Granted to a pod.
    Claimed,
    /// Put into an executor's inbox.
    Offered,
    /// Its handler runs.
    Started,
    /// Its outcome was accepted.
    Succeeded,
    /// Failed, to be tried again.
    Retried,
    /// Failed for good, or told not to retry.
    Died,
    /// Cancelled, before or while running.
    Cancelled,
    /// Asked to stop while running.
    CancelAsked,
    /// Its total time-out passed.
    Expired,
    /// Left out.
    Skipped,
    /// Given back before its handler started; not counted.
    HandedBack,
    /// Set aside for others of its placement key: still pending.
    SetAside,
    /// Not started within the dispatch time-out; not counted.
    Lost,
    /// Its due time or lane was changed.
    Moved,
    /// Its payload, retries or time-outs were changed.
    Edited,
    /// A dead letter was set back to pending.
    Redriven,
    /// A dead letter was removed.
    Deleted,
    /// Damage that was found and put right.
    Repaired,
}

impl Move {
    /// The letter in records of kind `v`.
    pub const fn letter(self) -> char {
        match self {
            Self::Submitted => 's',
            Self::Claimed => 'c',
            Self::Offered => 'o',
            Self::Started => 'b',
            Self::Succeeded => 'S',
            Self::Retried => 'R',
            Self::Died => 'D',
            Self::Cancelled => 'C',
            Self::CancelAsked => 'A',
            Self::Expired => 'X',
            Self::Skipped => 'K',
            Self::HandedBack => 'H',
            Self::SetAside => 'B',
            Self::Lost => 'L',
            Self::Moved => 'M',
            Self::Edited => 'E',
            Self::Redriven => 'V',
            Self::Deleted => 'Z',
            Self::Repaired => 'F',
        }
    }

    /// The move of a letter.
    pub fn from_letter(letter: u8) -> Option<Self> {
        const ALL: [Move; 19] = [
            Move::Submitted,
            Move::Claimed,
            Move::Offered,
            Move::Started,
            Move::Succeeded,
            Move::Retried,
            Move::Died,
            Move::Cancelled,
            Move::CancelAsked,
            Move::Expired,
            Move::Skipped,
            Move::HandedBack,
            Move::SetAside,
            Move::Lost,
            Move::Moved,
            Move::Edited,
            Move::Redriven,
            Move::Deleted,
            Move::Repaired,
        ];
        ALL.into_iter().find(|found| found.letter() as u8 == letter)
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its name in JSON.
        self.serialize(f)
    }
}

/// One move of one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// Redis's time of the script call.
    #[serde(with = "super::slice::rfc3339")]
    #[schema(value_type = String)]
    pub at: UnixMs,
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// What happened.
    pub event: Move,
    /// Number of the grant, where one was concerned.
    #[serde(default)]
    pub fence: Option<u32>,
    /// Pod, executor or person that did it; empty when not known.
    #[serde(rename = "executor")]
    pub actor: String,
    /// When the task is due now, where that changed; start − due of an ended task is in `cause`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub due: Option<UnixMs>,
    /// Why, in words.
    pub cause: String,
}

/// Where a bucket's stream was trimmed: what there was before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trimmed {
    /// The bucket.
    pub bucket: u16,
    /// Events before this instant are gone.
    #[serde(with = "super::slice::rfc3339")]
    pub before: UnixMs,
    /// How many have gone.
    pub events: u64,
    /// The same by what happened.
    pub by_type: BTreeMap<String, u64>,
}

impl Trimmed {
    /// Counts moves by their letters; letters that are none of ours count as `unknown`.
    pub fn new(bucket: u16, before: UnixMs, moves: &[(u8, u64)]) -> Self {
        let mut out = Self { bucket, before, ..Self::default() };
        for (letter, count) in moves {
            let name =
                Move::from_letter(*letter).map_or_else(|| "unknown".to_owned(), |found| found.to_string());
            *out.by_type.entry(name).or_default() += count;
            out.events += count;
        }
        out
    }
}

/// One line of `events tail --output json`: an event, or that the events before are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A move.
    Event(Event),
    /// The stream of a bucket begins here, or goes on here after a gap.
    Trimmed {
        /// What is gone.
        trimmed: Trimmed,
    },
}

/// An entry that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an event entry: {0}")]
pub struct BadEvent(pub &'static str);

/// Reads one entry of a bucket's stream, its fields `k`, `d` and `r`, into the moves it packs, in order.
pub fn decode(kind: u8, head: &[u8], data: &[u8]) -> Result<Vec<Event>, BadEvent> {
    let mut at = Cursor { data: head, at: 0 };
    let now = UnixMs(at.decimal(13)?);
    let len = at.decimal(2)? as usize;
    let actor = text(at.take(len)?);
    let shared = if kind == b'g' { Some(at.take(Grant::LEN)?) } else { None };
    if at.at != head.len() {
        return Err(BadEvent("head too long"));
    }
    let mut at = Cursor { data, at: 0 };
    let mut out = Vec::with_capacity(data.len() / 24);
    while at.at < data.len() {
        let id = TaskId::from_bytes(at.take(TaskId::LEN)?).ok_or(BadEvent("bad id"))?;
        let mut event = Event {
            at: now,
            id,
            event: Move::Submitted,
            fence: None,
            actor: actor.clone(),
            due: None,
            cause: String::new(),
        };
        if kind != b's' {
            let grant = shared.map_or_else(|| at.take(Grant::LEN), Ok)?;
            event.fence = match Grant::from_bytes(grant) {
                Some(grant) => Some(grant.fence()),
                None if grant.iter().all(|b| *b == b' ') => None,
                None => return Err(BadEvent("bad grant")),
            };
        }
        match kind {
            b's' => {
                at.take(4)?;
                event.due = Some(id.home().start().plus(at.number(3)?));
            }
            b'g' | b'c' => event.event = Move::Claimed,
            b'o' => {
                event.event = Move::Offered;
                let len = at.decimal(2)? as usize;
                event.cause = format!("offered to {}", text(at.take(len)?));
            }
            b'b' => event.event = Move::Started,
            b'e' => {
                let state = State::from_letter(char::from(at.take(1)?[0]));
                event.event = match state {
                    Some(State::Succeeded) => Move::Succeeded,
                    Some(State::Cancelled) => Move::Cancelled,
                    _ => return Err(BadEvent("bad outcome")),
                };
                let (lag, took) = (at.number(5)?, at.number(5)?);
                event.cause = format!("started {lag} ms after due, ran {took} ms");
            }
            b'v' => {
                event.event = Move::from_letter(at.take(1)?[0]).ok_or(BadEvent("bad move"))?;
                let due = at.decimal(13)?;
                event.due = (due > 0).then_some(UnixMs(due));
                let len = at.decimal(4)? as usize;
                event.cause = text(at.take(len)?);
            }
            _ => return Err(BadEvent("unknown kind")),
        }
        out.push(event);
    }
    Ok(out)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadEvent> {
        let found = self.data.get(self.at..self.at + len).ok_or(BadEvent("too short"))?;
        self.at += len;
        Ok(found)
    }

    fn decimal(&mut self, len: usize) -> Result<i64, BadEvent> {
        let digits = self.take(len)?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(BadEvent("bad number"));
        }
        Ok(digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
    }

    fn number(&mut self, len: usize) -> Result<i64, BadEvent> {
        digits::read(self.take(len)?).map(|value| value as i64).ok_or(BadEvent("bad digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Minute};
    use proptest::prelude::*;

    fn id() -> TaskId {
        TaskId::new(Minute(29_408_521), Bucket::new(1).unwrap(), 5)
    }

    #[test]
    fn each_kind_is_read() {
        let head = "176451126012304ex-1";
        let grant = "00000002aaaaaaaaaa";
        let read = |kind, records: String| decode(kind, head.as_bytes(), records.as_bytes()).unwrap();
        let ended = read(b'e', format!("{}{grant}S----2----A", id()));
        assert_eq!((ended[0].event, ended[0].fence), (Move::Succeeded, Some(2)));
        assert_eq!(ended[0].cause, "started 3 ms after due, ran 11 ms");
        let retried = read(
            b'v',
            format!("{}{grant}R17645112800000004boom{}{}H00000000000000000", id(), id(), " ".repeat(18)),
        );
        assert_eq!(retried.len(), 2);
        assert_eq!((retried[0].due, retried[0].cause.as_str()), (Some(UnixMs(1_764_511_280_000)), "boom"));
        assert_eq!((retried[1].event, retried[1].fence, retried[1].due), (Move::HandedBack, None, None));
        let submitted = read(b's', format!("{}--6F--0", id()));
        assert_eq!(submitted[0].due, Some(id().home().start().plus(1)));
        assert_eq!(read(b'c', format!("{0}{grant}{0}{grant}", id())).len(), 2);
        let first =
            decode(b'g', format!("{head}{grant}").as_bytes(), format!("{0}{0}", id()).as_bytes()).unwrap();
        assert!(decode(b'c', format!("{head}x").as_bytes(), b"").is_err());
        assert_eq!((first.len(), first[1].event, first[1].fence), (2, Move::Claimed, Some(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value_or_an_error(kind in any::<u8>(), data in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = decode(kind, &data, &data);
            let _ = decode(kind, b"176451126012304ex-1", &data);
        }
    }
}
