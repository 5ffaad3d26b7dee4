//! The first that answers.

use super::{Policy, Route, View, Work};

/// The first executor by id that has room and answered the last offer; when none did, the first with room.
#[derive(Debug)]
pub struct Failover;

impl Route for Failover {
    fn policy(&self) -> Policy {
        Policy::Failover
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.first_healthy(work.urgent).or_else(|| view.next_open(0, work.urgent))
    }
}
