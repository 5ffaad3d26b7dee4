//! By what executors were given before.

use super::{Policy, Rank, Route, Seat, View, Work};

/// The executor that was given the fewest tasks. A new one begins with as many as the one that has the fewest,
/// so that it is not flooded.
#[derive(Debug)]
pub struct LeastFrequent;

/// The executor that was given none for the longest time.
#[derive(Debug)]
pub struct LeastRecent;

impl Route for LeastFrequent {
    fn policy(&self) -> Policy {
        Policy::LeastFrequent
    }

    fn rank(&self, seat: &Seat) -> Option<Rank> {
        Some(Rank::count(seat.given, seat.last))
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.best(work.urgent).next()
    }
}

impl Route for LeastRecent {
    fn policy(&self) -> Policy {
        Policy::LeastRecent
    }

    fn rank(&self, seat: &Seat) -> Option<Rank> {
        Some(Rank::count(seat.last, 0))
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.best(work.urgent).next()
    }
}
