//! The states of a task and every move between them that is legal.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a task stands. `Deleted` is the end of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A dependency, barrier, signal or shards are outstanding.
    Waiting,
    /// In a due set, or ripe in its lane.
    Pending,
    /// Granted: at a pod, in an inbox or with its handler.
    Running,
    /// Its outcome was accepted as a success.
    Succeeded,
    /// Out of retries, or told not to retry; kept as a dead letter.
    Dead,
    /// Ended by somebody's wish.
    Cancelled,
    /// Its total time-out passed.
    Expired,
    /// Left out: too late to start, a collapsed double, or a branch not taken.
    Skipped,
    /// A dead letter that was removed.
    Deleted,
}

impl State {
    /// All states.
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Pending,
        Self::Running,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
        Self::Expired,
        Self::Skipped,
        Self::Deleted,
    ];

    /// The name in counters, JSON and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Skipped => "skipped",
            Self::Deleted => "deleted",
        }
    }

    /// The state of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// One character in packed records: the outcome of an ended task.
    pub const fn letter(self) -> char {
        match self {
            Self::Waiting => 'W',
            Self::Pending => 'P',
            Self::Running => 'R',
            Self::Succeeded => 'S',
            Self::Dead => 'D',
            Self::Cancelled => 'C',
            Self::Expired => 'X',
            Self::Skipped => 'K',
            Self::Deleted => 'Z',
        }
    }

    /// The state of a letter.
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.letter() == letter)
    }

    /// What a task in this state may become. The one list of legal moves; `lua/README.md` has the picture.
    pub const fn next(self) -> &'static [Self] {
        match self {
            Self::Waiting => &[Self::Pending, Self::Running, Self::Cancelled, Self::Expired, Self::Skipped],
            Self::Pending => &[Self::Running, Self::Cancelled, Self::Expired, Self::Skipped],
            Self::Running => &[
                Self::Succeeded,
                Self::Pending,
                Self::Waiting,
                Self::Dead,
                Self::Cancelled,
                Self::Expired,
                Self::Skipped,
            ],
            Self::Dead => &[Self::Pending, Self::Deleted],
            Self::Succeeded | Self::Cancelled | Self::Expired | Self::Skipped | Self::Deleted => &[],
        }
    }

    /// Whether a task may go from here to `to`.
    pub fn may_become(self, to: Self) -> bool {
        self.next().contains(&to)
    }

    /// Whether nothing follows.
    pub const fn is_final(self) -> bool {
        self.next().is_empty()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How far a running task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Granted to a pod.
    Claimed,
    /// In an executor's inbox.
    Offered,
    /// With its handler.
    Started,
}

impl Phase {
    /// The letter in a run record.
    pub const fn letter(self) -> u8 {
        match self {
            Self::Claimed => b'c',
            Self::Offered => b'o',
            Self::Started => b's',
        }
    }

    /// The phase of a letter.
    pub const fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'c' => Some(Self::Claimed),
            b'o' => Some(Self::Offered),
            b's' => Some(Self::Started),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_states_are_those_of_the_design() {
        let last: Vec<_> = State::ALL.into_iter().filter(|state| state.is_final()).collect();
        assert_eq!(
            last,
            [State::Succeeded, State::Cancelled, State::Expired, State::Skipped, State::Deleted]
        );
    }

    #[test]
    fn names_and_letters_are_unique_and_read_back() {
        for state in State::ALL {
            assert_eq!(State::from_name(state.name()), Some(state));
            assert_eq!(State::from_letter(state.letter()), Some(state));
            assert!(!state.may_become(state) && !state.may_become(State::Waiting) || state == State::Running);
        }
    }
}
