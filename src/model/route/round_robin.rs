//! One after the other.

use super::{Policy, Route, View, Work};

/// The next executor with room after the one that got the last task.
#[derive(Debug)]
pub struct RoundRobin;

impl Route for RoundRobin {
    fn policy(&self) -> Policy {
        Policy::RoundRobin
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.next_open(view.turn(), work.urgent)
    }
}
