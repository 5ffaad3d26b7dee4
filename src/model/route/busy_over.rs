//! The first that is not busy.

use super::{LeastCost, Policy, Rank, Route, Seat, View, Work};

/// The first executor by id that has an idle slot; when all are busy, the one that would be done first.
#[derive(Debug)]
pub struct BusyOver;

impl Route for BusyOver {
    fn policy(&self) -> Policy {
        Policy::BusyOver
    }

    fn rank(&self, seat: &Seat) -> Option<Rank> {
        LeastCost.rank(seat)
    }

    fn shelf(&self, seat: &Seat) -> u32 {
        LeastCost.shelf(seat)
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.first_idle(work.urgent).or_else(|| LeastCost.choose(work, view))
    }
}
