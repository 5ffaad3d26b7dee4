//! Where the task would be done first.

use super::{Policy, Rank, Route, Seat, View, Work};

/// The executor that would be done first: the least work in hand per slot, with this task added.
///
/// One executor with one huge task thus gets fewer than one with fifty small ones. Equals take turns.
#[derive(Debug)]
pub struct LeastCost;

fn per_slot(ms: f64, seat: &Seat) -> f64 {
    ms / f64::from(seat.slots.max(1))
}

impl Route for LeastCost {
    fn policy(&self) -> Policy {
        Policy::LeastCost
    }

    fn rank(&self, seat: &Seat) -> Option<Rank> {
        Some(Rank::by(per_slot(seat.load_ms, seat), seat.last))
    }

    /// Which of two executors is done first depends on the task where they differ in slots. Those on a
    /// shelf differ by less than a fifth; their order is that of the work in hand.
    fn shelf(&self, seat: &Seat) -> u32 {
        (f64::from(seat.slots.max(1)).log2() * 4.0) as u32
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        let done = |place: &usize| {
            let seat = &view.seats()[*place];
            Rank::by(per_slot(seat.load_ms + work.cost_ms, seat), seat.last)
        };
        view.best(work.urgent).min_by_key(done)
    }
}
