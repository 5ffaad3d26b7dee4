//! The same key to the same executor.

use super::{LeastCost, Policy, Rank, Route, Seat, View, Work};

/// The executor that owns the task's `routing_key` on a ring of hashes (Karger et al., "Consistent hashing and
/// random trees", 1997). One that comes or goes moves only its own share of the keys. While the owner is full,
/// the next on the ring with room takes its place; a task without a key goes where it costs least.
#[derive(Debug)]
pub struct ConsistentHash;

impl Route for ConsistentHash {
    fn policy(&self) -> Policy {
        Policy::ConsistentHash
    }

    fn rank(&self, seat: &Seat) -> Option<Rank> {
        LeastCost.rank(seat)
    }

    fn shelf(&self, seat: &Seat) -> u32 {
        LeastCost.shelf(seat)
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        match work.key {
            Some(hash) => view.on_ring(hash, work.urgent),
            None => LeastCost.choose(work, view),
        }
    }
}
