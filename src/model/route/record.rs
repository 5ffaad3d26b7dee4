//! Decisions with all they were made of, and the same decisions made again.

use super::{Policy, Seat, View, Work};
use serde::{Deserialize, Serialize};

/// Most executors whose state is kept with a decision; beyond it decisions are counted and not kept.
pub const SEATS_RECORDED_MAX: usize = 256;

/// One decision and everything that it was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// How many decisions had been made before.
    pub number: u64,
    /// The task's id, its queue.
    pub task: String,
    /// Its queue.
    pub queue: String,
    /// The policy.
    pub policy: Policy,
    /// What was known of the task.
    pub work: Work,
    /// Whose turn it was.
    pub turn: usize,
    /// Ids of the executors that could have it, in order.
    pub executors: Vec<String>,
    /// What was known of them.
    pub seats: Vec<Seat>,
    /// The chosen one; nothing when the task had to wait.
    pub chosen: Option<String>,
}

impl Decision {
    /// Makes the decision again, from what was written down alone.
    pub fn replay(&self) -> Option<String> {
        let view = View::new(self.policy, self.seats.clone(), &self.executors).with_turn(self.turn);
        view.choose(&self.work).and_then(|place| self.executors.get(place).cloned())
    }

    /// Whether the same comes out.
    pub fn stands(&self) -> bool {
        self.replay() == self.chosen
    }
}

/// A fair sample of bounded size of all decisions.
///
/// Vitter, "Random sampling with a reservoir" (1985), algorithm R: after `n` decisions each of them is kept
/// with the same probability.
#[derive(Debug, Default)]
pub struct Sample {
    size: usize,
    seen: u64,
    kept: Vec<Decision>,
}

impl Sample {
    /// Keeps at most so many; 0 keeps none and costs nothing.
    pub fn new(size: usize) -> Self {
        Self { size, ..Self::default() }
    }

    /// Counts a decision. Answers its number and the place where it is to be kept, if it is; `chance` is drawn
    /// by the caller.
    pub fn place(&mut self, chance: u64) -> Option<(u64, usize)> {
        let number = self.seen;
        self.seen += 1;
        if self.kept.len() < self.size {
            return Some((number, self.kept.len()));
        }
        let at = ((u128::from(chance) * u128::from(self.seen)) >> 64) as u64;
        usize::try_from(at).ok().filter(|at| *at < self.size).map(|at| (number, at))
    }

    /// Keeps a decision where [`Self::place`] said.
    pub fn keep(&mut self, at: usize, decision: Decision) {
        match self.kept.get_mut(at) {
            Some(old) => *old = decision,
            None => self.kept.push(decision),
        }
    }

    /// Decisions so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Those that are kept, oldest first.
    pub fn kept(&self) -> Vec<Decision> {
        let mut kept = self.kept.clone();
        kept.sort_unstable_by_key(|decision| decision.number);
        kept
    }
}
