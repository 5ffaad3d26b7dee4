//! What a door knows of the workers that ask at it: when each was reported, what it was handed, how long that takes.

use super::worker::Worker;
use crate::executor::hands;
use crate::limits;
use crate::model::{ExecutionId, Grant, TaskId};
use crate::store::Subscription;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Work that is fetched ahead of a worker's free slots, in time: covers the way from "there is room" to the next offer.
const AHEAD_MS: f64 = 20.0;
/// A worker that has not asked for so long is not coming back for what was fetched ahead for it: five times as long as
/// what is fetched ahead should last.
pub(super) const LATE: Duration = Duration::from_millis(100);
/// Pods that wait for room are told after at most this time, however little there is.
pub(super) const TELL_LATER: Duration = Duration::from_millis(25);
/// Pods that wait for room, remembered until there is some.
const HUNGRY_MAX: usize = 1_024;
/// Tasks of one worker that are remembered from hand-over to outcome: what it may have in hand, and once more.
const OUT_MAX: usize = 2 * limits::SLOTS_MAX;

/// A task that was handed over here.
#[derive(Debug, Clone, Copy)]
struct Out {
    at: Instant,
    /// The worker has spoken of it since.
    heard: bool,
    /// The worker says with each poll what has arrived.
    told: bool,
}

/// What this door knows of a worker.
pub(super) struct Known {
    pub worker: Worker,
    pub reported: Instant,
    pub asked: Instant,
    /// The last look into its inbox for it.
    looked: Instant,
    pub wakes: Option<Subscription>,
    /// Polls of it that are open.
    pub open: u32,
    /// Tasks that it said it has in hand, with what it was handed since.
    pub in_hand: u32,
    /// Most tasks that may lie in its inbox beyond its free slots.
    pub ahead: u32,
    out: HashMap<ExecutionId, Out>,
    /// Moving average of the time from hand-over to outcome.
    run_ms: Option<f64>,
    /// Pods that wait for room, and since when.
    hungry: BTreeSet<String>,
    hungry_since: Option<Instant>,
}

impl Known {
    pub fn new(worker: Worker, now: Instant) -> Self {
        Self {
            worker,
            reported: now,
            asked: now,
            looked: now,
            wakes: None,
            open: 0,
            in_hand: 0,
            ahead: 0,
            out: HashMap::new(),
            run_ms: None,
            hungry: BTreeSet::new(),
            hungry_since: None,
        }
    }

    /// It asks. Answers how many tasks may be fetched ahead for it: the work of 20 ms, like any executor.
    pub fn asks(&mut self, in_hand: u32, now: Instant) -> u32 {
        (self.looked, self.in_hand) = (now, in_hand);
        self.ahead = ahead(self.worker.slots, self.run_ms);
        self.ahead
    }

    /// It is handed these. `told`: it says with each poll what has arrived.
    pub fn handed(
        &mut self,
        executions: impl ExactSizeIterator<Item = ExecutionId>,
        told: bool,
        now: Instant,
    ) {
        self.in_hand = self.in_hand.saturating_add(executions.len() as u32);
        if self.out.len() + executions.len() > OUT_MAX {
            // Outcomes come by another door.
            self.out.clear();
        }
        self.out.extend(executions.map(|execution| (execution, Out { at: now, heard: false, told })));
    }

    /// Whether a task was handed to it here, and no outcome came yet.
    pub fn holds(&self, execution: &ExecutionId) -> bool {
        self.out.contains_key(execution)
    }

    /// Whether it is known here to have spoken of a task.
    pub fn heard(&self, execution: &ExecutionId) -> bool {
        self.out.get(execution).is_some_and(|out| out.heard)
    }

    /// It has spoken of a task.
    pub fn hear(&mut self, execution: &ExecutionId) {
        if let Some(out) = self.out.get_mut(execution) {
            out.heard = true;
        }
    }

    /// A task is no longer its.
    pub fn gone(&mut self, id: TaskId, grant: Grant) {
        self.out.remove(&ExecutionId { id, grant });
    }

    /// What it was handed, has not spoken of, and does not name among what has arrived: the answer was lost.
    pub fn lost(&mut self, arrived: &[ExecutionId]) -> Vec<(TaskId, Grant)> {
        let silent = |out: &Out| out.told && !out.heard;
        if !self.out.values().any(silent) {
            return Vec::new();
        }
        let arrived: std::collections::HashSet<_> = arrived.iter().collect();
        let lost = self.out.extract_if(|execution, out| silent(out) && !arrived.contains(execution));
        lost.map(|(execution, _)| (execution.id, execution.grant)).collect()
    }

    /// An outcome of it is known.
    pub fn ended(&mut self, execution: &ExecutionId, now: Instant) {
        if let Some(out) = self.out.remove(execution) {
            let ms = now.saturating_duration_since(out.at).as_secs_f64() * 1_000.0;
            self.run_ms = Some(hands::averaged(self.run_ms, ms));
        }
    }

    /// A look into its inbox left this much room. Answers which pods to tell of it: not of each single place, since an
    /// offer of several tasks costs little more than one of one.
    pub fn room(&mut self, free: u32, waiting: u32, hungry: Vec<String>, now: Instant) -> BTreeSet<String> {
        if !hungry.is_empty() && self.hungry.len() < HUNGRY_MAX {
            self.hungry.extend(hungry);
            self.hungry_since.get_or_insert(now);
        }
        let batch = (self.worker.slots.saturating_add(self.ahead) / 2).max(1);
        if free >= batch || (waiting == 0 && free > 0) { self.take_hungry() } else { BTreeSet::new() }
    }

    fn take_hungry(&mut self) -> BTreeSet<String> {
        self.hungry_since = None;
        std::mem::take(&mut self.hungry)
    }

    /// What is to be done without being asked.
    pub fn chores(&mut self, now: Instant) -> Chores {
        let waits = self.hungry_since.is_some_and(|since| now.saturating_duration_since(since) >= TELL_LATER);
        let tell = if waits { self.take_hungry() } else { BTreeSet::new() };
        let late = self.ahead > 0 && self.open == 0 && now.saturating_duration_since(self.looked) >= LATE;
        if late {
            self.ahead = 0;
        }
        Chores { tell, recall: late, more: self.ahead > 0 || self.hungry_since.is_some() }
    }
}

/// What a look at a worker found.
#[derive(Debug)]
pub(super) struct Chores {
    /// Pods to be told that there is room.
    pub tell: BTreeSet<String>,
    /// What lies in its inbox is to go back.
    pub recall: bool,
    /// There may be more to do soon.
    pub more: bool,
}

/// What may be fetched ahead when a run takes `run_ms` on average: nothing when runs are long or not known yet.
fn ahead(slots: u32, run_ms: Option<f64>) -> u32 {
    let Some(ms) = run_ms.filter(|ms| *ms < AHEAD_MS) else { return 0 };
    (f64::from(slots) * AHEAD_MS / ms.max(0.001)).min(f64::from(hands::PREFETCH_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Labels, Minute, Nonce};

    fn known(slots: u32, now: Instant) -> Known {
        let worker = Worker {
            id: "w".to_owned(),
            name: "w".to_owned(),
            queues: Vec::new(),
            labels: Labels::default(),
            slots,
            version: String::new(),
            host: String::new(),
        };
        Known::new(worker, now)
    }

    fn execution(number: u64) -> ExecutionId {
        let id = TaskId::new(Minute(29_408_521), Bucket::default(), number);
        ExecutionId { id, grant: Grant::new(1, Nonce::new(number)) }
    }

    #[test]
    fn as_much_is_fetched_ahead_as_lasts_twenty_milliseconds_and_goes_back_when_nobody_comes() {
        let start = crate::clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut known = known(1, start);
        assert_eq!(known.asks(0, at(0)), 0, "nothing is known yet");
        known.handed([execution(1)].into_iter(), false, at(0));
        known.ended(&execution(1), at(4));
        assert_eq!(known.asks(0, at(4)), 5, "4 ms each");
        known.open = 1;
        let chores = known.chores(at(200));
        assert!(!chores.recall && chores.more, "its poll is open");
        known.open = 0;
        assert!(!known.chores(at(50)).recall);
        let chores = known.chores(at(104));
        assert!(chores.recall && !chores.more, "once");
        assert!(!known.chores(at(500)).recall);
        // A long one, and nothing is fetched ahead for a while.
        known.handed([execution(2)].into_iter(), false, at(500));
        known.ended(&execution(2), at(1_500));
        assert_eq!(known.asks(0, at(1_500)), 0);
        known.ended(&execution(3), at(1_500));
        assert_eq!(known.run_ms.map(f64::round), Some(104.0), "what was not handed over here says nothing");
    }

    #[test]
    fn what_does_not_arrive_is_lost_where_the_worker_says_what_does() {
        let now = crate::clock::mono();
        let mut known = known(4, now);
        known.handed([execution(1), execution(2), execution(3)].into_iter(), true, now);
        known.handed([execution(4)].into_iter(), false, now);
        known.hear(&execution(3));
        assert!(known.heard(&execution(3)) && !known.heard(&execution(1)));
        let lost = known.lost(&[execution(1)]);
        assert_eq!(
            lost,
            [(execution(2).id, execution(2).grant)],
            "3 was heard of; of 4 nothing is ever said"
        );
        assert!(known.holds(&execution(1)) && !known.holds(&execution(2)));
        known.gone(execution(1).id, execution(1).grant);
        assert_eq!(known.lost(&[]), [], "each once");
    }

    #[test]
    fn pods_are_told_of_room_for_several() {
        let now = crate::clock::mono();
        let mut known = known(8, now);
        let pod = || vec!["p1".to_owned()];
        assert!(known.room(3, 5, pod(), now).is_empty());
        assert_eq!(known.room(4, 4, Vec::new(), now).len(), 1, "half of it is free");
        assert_eq!(known.room(1, 0, pod(), now).len(), 1, "nothing is left to do");
        assert!(known.room(0, 0, pod(), now).is_empty() && known.chores(now).more);
        assert_eq!(known.chores(now + TELL_LATER).tell.len(), 1, "after a while in any case");
    }
}
