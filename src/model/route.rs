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

/// Work per slot that an executor may be given beyond the least loaded, so that short tasks travel in batches, in ms.
/// It bounds what that may cost one of them; tasks that run for longer than this per slot never gather.
const TOGETHER_MS: f64 = 0.25;
/// Most tasks that go to one executor in a row for that reason.
const TOGETHER_MAX: u32 = 64;

/// The executor that would be done first: the least work in hand per slot, with this task added.
///
/// One executor with one huge task thus gets fewer than one with fifty small ones. Ties go round, so that equal
/// executors share. Differences of less than a quarter of a millisecond count as none: then the next task follows
/// the one before it, since an offer of one task costs Redis as much as twenty tasks in one.
#[derive(Debug, Default)]
pub struct LeastCost {
    turn: usize,
    /// Who was chosen last, and how often in a row.
    last: Option<(usize, u32)>,
}

impl LeastCost {
    /// The next task follows none: what went before has left already.
    pub fn part(&mut self) {
        self.last = None;
    }
}

impl Route for LeastCost {
    fn name(&self) -> &'static str {
        "least_cost"
    }

    fn choose(&mut self, work: &Work, candidates: &[Candidate]) -> Option<usize> {
        let count = candidates.len();
        let done =
            |candidate: &Candidate| (candidate.load_ms + work.cost_ms) / f64::from(candidate.slots.max(1));
        let mut best: Option<(f64, usize)> = None;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let candidate = &candidates[index];
            if candidate.free == 0 {
                continue;
            }
            let done = done(candidate);
            if best.is_none_or(|(least, _)| done < least) {
                best = Some((done, index));
            }
        }
        let (least, index) = best?;
        if let Some((last, times)) = self.last
            && times < TOGETHER_MAX
            && let Some(candidate) = candidates.get(last).filter(|candidate| candidate.free > 0)
            && work.cost_ms <= TOGETHER_MS * f64::from(candidate.slots)
            && done(candidate) <= least + TOGETHER_MS
        {
            self.last = Some((last, times + 1));
            return Some(last);
        }
        self.last = Some((index, 1));
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
    fn short_tasks_travel_together_and_share_in_the_end() {
        let mut route = LeastCost::default();
        let mut candidates = [candidate(10_000, 32, 0.0); 4];
        let mut rows = Vec::new();
        for _ in 0..1_024 {
            let index = route.choose(&Work { cost_ms: 0.02 }, &candidates).unwrap();
            candidates[index].load_ms += 0.02;
            candidates[index].free -= 1;
            match rows.last_mut() {
                Some((last, times)) if *last == index => *times += 1,
                _ => rows.push((index, 1)),
            }
        }
        assert!(rows.iter().all(|(_, times)| *times == TOGETHER_MAX), "{rows:?}");
        assert!(candidates.iter().all(|candidate| candidate.free == 10_000 - 256), "{candidates:?}");
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
