//! Which executor gets a task: pure functions over a view.

/// What routing knows of one executor that may take the task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Tasks it may still be given.
    pub free: u32,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Estimated milliseconds of work it has in hand.
    pub load_ms: f64,
}

/// What routing knows of the task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Estimated run time in ms: the task's own figure, else its queue's moving average.
    pub cost_ms: f64,
}

/// A way to choose. One small type each; none does I/O.
pub trait Route: Send + Sync {
    /// Its name in settings and traces.
    fn name(&self) -> &'static str;

    /// The index of the chosen candidate; nothing when none has room.
    fn choose(&mut self, work: &Work, candidates: &[Candidate]) -> Option<usize>;
}

/// The executor that would be done first: the least work in hand per slot, with this task added.
///
/// One executor with one huge task thus gets fewer than one with fifty small ones. Ties go round,
/// so that equal executors share.
#[derive(Debug, Default)]
pub struct LeastCost {
    turn: usize,
}

impl Route for LeastCost {
    fn name(&self) -> &'static str {
        "least_cost"
    }

    fn choose(&mut self, work: &Work, candidates: &[Candidate]) -> Option<usize> {
        let count = candidates.len();
        let mut best: Option<(f64, usize)> = None;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let candidate = &candidates[index];
            if candidate.free == 0 {
                continue;
            }
            let done = (candidate.load_ms + work.cost_ms) / f64::from(candidate.slots.max(1));
            if best.is_none_or(|(least, _)| done < least) {
                best = Some((done, index));
            }
        }
        let (_, index) = best?;
        self.turn = (index + 1) % count;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(free: u32, slots: u32, load_ms: f64) -> Candidate {
        Candidate { free, slots, load_ms }
    }

    proptest! {
        #[test]
        fn only_executors_with_room_are_chosen(frees in proptest::collection::vec(0u32..3, 0..20), cost in 0f64..1e6) {
            let candidates: Vec<_> = frees.iter().map(|free| candidate(*free, 4, f64::from(*free))).collect();
            match LeastCost::default().choose(&Work { cost_ms: cost }, &candidates) {
                Some(index) => prop_assert!(frees[index] > 0),
                None => prop_assert!(frees.iter().all(|free| *free == 0)),
            }
        }
    }

    #[test]
    fn one_huge_task_weighs_more_than_fifty_small_ones() {
        let mut route = LeastCost::default();
        let (huge, small) = (candidate(9, 10, 60_000.0), candidate(9, 10, 50.0 * 10.0));
        assert_eq!(route.choose(&Work { cost_ms: 10.0 }, &[huge, small]), Some(1));
    }

    #[test]
    fn equal_executors_take_turns() {
        let mut route = LeastCost::default();
        let candidates = [candidate(9, 4, 0.0); 3];
        let chosen: Vec<_> =
            (0..6).filter_map(|_| route.choose(&Work { cost_ms: 5.0 }, &candidates)).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }
}
