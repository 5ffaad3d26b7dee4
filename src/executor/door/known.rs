//! What a door knows of the workers that ask at it: when each was reported, what it was handed, how long that takes.

use super::worker::Worker;
use crate::executor::hands::{self, Queue};
use crate::executor::keeper::{AVERAGES_MAX, NEWS_EVERY};
use crate::executor::link::ExecutorRecord;
use crate::limits;
use crate::model::{ExecutionId, Grant, QueueName, TaskId};
use crate::store::Subscription;
use crate::store::member::Offer;
use crate::store::run::StartRow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A worker that has not asked for so long is not coming back for what was fetched ahead for it: five times as long as
/// what is fetched ahead should last.
pub(super) const LATE: Duration = Duration::from_millis(100);
/// Pods that wait for room are told after at most this time, however little there is.
pub(super) const TELL_LATER: Duration = Duration::from_millis(25);
/// Work fetched ahead, in time: an answer and the next poll travel over HTTP in between.
const AHEAD_MS: f64 = 20.0;
/// What lies on a shelf here would be missed at another door: where outcomes of other doors' tasks come in, there is none
/// for so long.
const SHARED_FOR: Duration = Duration::from_secs(60);
/// Wishes to cancel, remembered in case they come before their tasks.
const WISHES_MAX: usize = 64;
/// Pods that wait for room, remembered until there is some.
const HUNGRY_MAX: usize = 1_024;
/// Tasks of one worker that are remembered from hand-over to outcome: what it may have in hand, and once more.
const OUT_MAX: usize = 2 * limits::SLOTS_MAX;

/// A task that was handed over here.
struct Out {
    at: Instant,
    queue: Arc<Queue>,
    /// Estimated work, in ms.
    cost_ms: f64,
    /// The lease that it was promised, in ms.
    lease_ms: i64,
    /// Redis knows of the hand-over.
    noted: bool,
    /// The worker has spoken of it since.
    heard: bool,
    /// The worker says with each poll what has arrived.
    told: bool,
}

/// What is handed over.
pub(super) struct Given {
    pub execution: ExecutionId,
    pub queue: Arc<Queue>,
    /// What the task says it costs, in ms.
    pub cost_ms: Option<u32>,
    /// The lease that the worker is promised, in ms.
    pub lease_ms: i64,
    /// Whether Redis knows; else it is told of the hand-over if that lasts.
    pub noted: bool,
}

/// How an execution ended, as far as the worker says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    /// For how long it ran, in ms.
    pub took_ms: Option<i64>,
    pub failed: bool,
    /// It may have been said before.
    pub again: bool,
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
    /// Tasks that were taken for it and not handed over yet, and bytes of all that lie here for anybody.
    shelf: VecDeque<Offer>,
    shelves: Arc<AtomicUsize>,
    /// More are being taken.
    refilling: bool,
    /// It asks at other doors too.
    shared_until: Option<Instant>,
    /// Tasks that somebody wishes to be cancelled, latest last.
    wished: VecDeque<TaskId>,
    out: HashMap<ExecutionId, Out>,
    /// Estimated work in `out`, in ms.
    load_ms: f64,
    /// Moving average of the time from hand-over to outcome.
    run_ms: Option<f64>,
    /// Moving averages of run times by queue, and how many of them were reported.
    averages: BTreeMap<QueueName, f64>,
    averages_told: usize,
    /// Reports so far.
    beats: u64,
    /// Pods that wait for room, and since when.
    hungry: BTreeSet<String>,
    hungry_since: Option<Instant>,
}

impl Known {
    pub fn new(worker: Worker, shelves: Arc<AtomicUsize>, now: Instant) -> Self {
        Self {
            worker,
            reported: now,
            asked: now,
            looked: now,
            wakes: None,
            open: 0,
            in_hand: 0,
            ahead: 0,
            shelf: VecDeque::new(),
            shelves,
            refilling: false,
            shared_until: None,
            wished: VecDeque::new(),
            out: HashMap::new(),
            load_ms: 0.0,
            run_ms: None,
            averages: BTreeMap::new(),
            averages_told: 0,
            beats: 0,
            hungry: BTreeSet::new(),
            hungry_since: None,
        }
    }

    /// It asks. Answers how many tasks may be fetched ahead for it: the work of 20 ms.
    pub fn asks(&mut self, in_hand: u32, now: Instant) -> u32 {
        (self.looked, self.in_hand) = (now, in_hand);
        self.ahead = hands::ahead(self.worker.slots, hands::PREFETCH_MAX, self.run_ms, AHEAD_MS);
        self.ahead
    }

    /// Whether there is nothing to report of it yet.
    pub fn is_reported(&self, worker: &Worker, now: Instant) -> bool {
        // Until pods know of a queue's run times, they take each of its tasks for a long one.
        let news = self.averages.len() > self.averages_told;
        let every = if news { NEWS_EVERY } else { crate::clock::ms(limits::HEARTBEAT_MS) };
        self.worker == *worker && now.duration_since(self.reported) < every
    }

    /// What is known here goes into its record.
    pub fn add_to(&self, record: &mut ExecutorRecord) {
        record.capacity = record.slots.saturating_add(self.ahead);
        (record.load_ms, record.beats) = (self.load_ms, self.beats);
        record.averages = self.averages.iter().map(|(queue, ms)| (queue.to_string(), *ms)).collect();
    }

    /// Its record was heard.
    pub fn reported(&mut self, record: &ExecutorRecord, now: Instant) {
        (self.reported, self.asked) = (now, now);
        self.averages_told = record.averages.len();
        self.beats += 1;
    }

    /// Whether its tasks are so short that most have ended before anybody asks who has them.
    pub fn is_quick(&self) -> bool {
        self.ahead > 0
    }

    /// How many tasks may be taken for it beyond those that it is handed now.
    pub fn shelf_room(&self, now: Instant) -> u32 {
        let full = self.shelves.load(Ordering::Relaxed) >= limits::POLL_SHELVES_MAX_BYTES;
        if full || self.shared_until.is_some_and(|until| now < until) {
            return 0;
        }
        self.ahead.saturating_sub(self.shelf.len() as u32)
    }

    /// At most so many of the tasks that were taken for it before.
    pub fn unshelve(&mut self, most: u32) -> Vec<Offer> {
        let some = self.shelf.len().min(most as usize);
        let offers: Vec<Offer> = self.shelf.drain(..some).collect();
        self.shelves.fetch_sub(bytes(&offers), Ordering::Relaxed);
        offers
    }

    /// Tasks that were taken for it.
    pub fn shelve(&mut self, offers: Vec<Offer>) {
        self.shelves.fetch_add(bytes(&offers), Ordering::Relaxed);
        self.shelf.extend(offers);
    }

    /// What was taken for it is to go back.
    pub fn clear_shelf(&mut self) -> Vec<(TaskId, Grant)> {
        self.unshelve(u32::MAX).iter().map(|offer| (offer.id, offer.grant)).collect()
    }

    /// Whether more is to be taken while it works. Answers how much it has in hand and on its shelf; it must be told when
    /// that is done.
    pub fn refills(&mut self, handed: u32, now: Instant) -> Option<u32> {
        let room = self.shelf_room(now);
        if self.refilling || room == 0 || room < self.ahead.div_ceil(2) {
            return None;
        }
        self.refilling = true;
        Some(self.in_hand.saturating_add(handed).saturating_add(self.shelf.len() as u32))
    }

    /// More was taken, or was not there.
    pub fn refilled(&mut self) {
        self.refilling = false;
    }

    /// Somebody wishes a task to be cancelled.
    pub fn wish(&mut self, id: TaskId) {
        if self.wished.len() >= WISHES_MAX {
            self.wished.pop_front();
        }
        self.wished.push_back(id);
    }

    /// Whether somebody wishes so, as far as that was heard.
    pub fn is_wished(&self, id: &TaskId) -> bool {
        self.wished.contains(id)
    }

    /// It is handed these. `told`: it says with each poll what has arrived.
    pub fn handed(&mut self, given: Vec<Given>, told: bool, now: Instant) {
        self.in_hand = self.in_hand.saturating_add(given.len() as u32);
        if self.out.len() + given.len() > OUT_MAX {
            // Outcomes come by another door.
            self.out.clear();
            self.load_ms = 0.0;
        }
        for Given { execution, queue, cost_ms, lease_ms, noted } in given {
            let average = || self.averages.get(&queue.name).copied();
            let cost_ms = cost_ms.map(f64::from).or_else(average).unwrap_or(0.0);
            self.load_ms += cost_ms;
            let out = Out { at: now, queue, cost_ms, lease_ms, noted, heard: false, told };
            self.out.insert(execution, out);
        }
    }

    fn remove(&mut self, execution: &ExecutionId) -> Option<Out> {
        let out = self.out.remove(execution)?;
        // Sums of rounded figures drift; an empty hand weighs nothing.
        self.load_ms = if self.out.is_empty() { 0.0 } else { (self.load_ms - out.cost_ms).max(0.0) };
        Some(out)
    }

    /// Whether a task was handed to it here, and no outcome came yet.
    pub fn holds(&self, execution: &ExecutionId) -> bool {
        self.out.contains_key(execution)
    }

    /// Whether it is known here to have spoken of a task.
    pub fn heard(&self, execution: &ExecutionId) -> bool {
        self.out.get(execution).is_some_and(|out| out.heard)
    }

    /// The lease of a task that Redis does not know it has, in ms; 0 where it knows.
    pub fn unnoted_ms(&self, execution: &ExecutionId) -> i64 {
        self.out.get(execution).filter(|out| !out.noted).map_or(0, |out| out.lease_ms)
    }

    /// The lease with which a task was handed to it here, in ms.
    pub fn lease_ms(&self, execution: &ExecutionId) -> Option<i64> {
        self.out.get(execution).map(|out| out.lease_ms)
    }

    /// It has spoken of a task, and Redis knows.
    pub fn hear(&mut self, execution: &ExecutionId) {
        if let Some(out) = self.out.get_mut(execution) {
            (out.heard, out.noted) = (true, true);
        }
    }

    /// What it has had in hand for longer than most, and Redis does not know yet. Each is answered once.
    fn take_unnoted(&mut self, now: Instant) -> Vec<StartRow> {
        let lasts = |out: &Out| now.saturating_duration_since(out.at) >= hands::START_AFTER;
        let late = self.out.iter_mut().filter(|(_, out)| !out.noted && lasts(out));
        let row = |(execution, out): (&ExecutionId, &mut Out)| {
            out.noted = true;
            StartRow { id: execution.id, grant: execution.grant, lease_ms: out.lease_ms }
        };
        late.map(row).collect()
    }

    /// A task is no longer its.
    pub fn gone(&mut self, id: TaskId, grant: Grant) {
        self.remove(&ExecutionId { id, grant });
    }

    /// What it was handed, has not spoken of, and does not name among what has arrived: the answer was lost.
    pub fn lost(&mut self, arrived: &[ExecutionId]) -> Vec<(TaskId, Grant)> {
        let silent = |out: &Out| out.told && !out.heard;
        if !self.out.values().any(silent) {
            return Vec::new();
        }
        let arrived: std::collections::HashSet<_> = arrived.iter().collect();
        let lost = self.out.iter().filter(|(execution, out)| silent(out) && !arrived.contains(execution));
        let lost: Vec<ExecutionId> = lost.map(|(execution, _)| *execution).collect();
        lost.iter().for_each(|execution| drop(self.remove(execution)));
        lost.into_iter().map(|execution| (execution.id, execution.grant)).collect()
    }

    /// An outcome of it is known. Answers how long it ran, in ms: what the worker says, else the time from hand-over to
    /// here; nothing where it was handed over elsewhere and the worker does not say.
    pub fn ended(&mut self, execution: &ExecutionId, ran: Ran, now: Instant) -> Option<i64> {
        let Some(out) = self.remove(execution) else {
            if !ran.again {
                self.shared_until = Some(now + SHARED_FOR);
            }
            return ran.took_ms;
        };
        let held_ms = now.saturating_duration_since(out.at).as_secs_f64() * 1_000.0;
        self.run_ms = Some(hands::averaged(self.run_ms, held_ms));
        let took_ms = ran.took_ms.map_or(held_ms, |ms| ms as f64);
        out.queue.took(took_ms, ran.failed);
        if let Some(average) = self.averages.get_mut(&out.queue.name) {
            *average = hands::averaged(Some(*average), took_ms);
        } else if self.averages.len() < AVERAGES_MAX {
            self.averages.insert(out.queue.name.clone(), took_ms);
        }
        Some(took_ms as i64)
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
        let ahead = self.ahead > 0 || !self.shelf.is_empty();
        // A poll of one whose slots are all taken fetches nothing.
        let away = self.open == 0 || self.in_hand >= self.worker.slots;
        let late = ahead && away && now.saturating_duration_since(self.looked) >= LATE;
        if late {
            self.ahead = 0;
        }
        let note = self.take_unnoted(now);
        let unnoted = self.out.values().any(|out| !out.noted);
        let recall = late.then(|| self.clear_shelf());
        let more = self.ahead > 0 || unnoted || self.hungry_since.is_some();
        Chores { tell, recall, note, more }
    }
}

fn bytes(offers: &[Offer]) -> usize {
    offers.iter().map(|offer| offer.spec.len()).sum()
}

/// What a look at a worker found.
#[derive(Debug)]
pub(super) struct Chores {
    /// Pods to be told that there is room.
    pub tell: BTreeSet<String>,
    /// What lies in its inbox is to go back, and this too.
    pub recall: Option<Vec<(TaskId, Grant)>>,
    /// Hand-overs that Redis is to know of now.
    pub note: Vec<StartRow>,
    /// There may be more to do soon.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Labels, Minute, Nonce, UnixMs};

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
        Known::new(worker, Arc::default(), now)
    }

    fn execution(number: u64) -> ExecutionId {
        let id = TaskId::new(Minute(29_408_521), Bucket::default(), number);
        ExecutionId { id, grant: Grant::new(1, Nonce::new(number)) }
    }

    fn queue(name: &str) -> Arc<Queue> {
        Arc::new(Queue::new(QueueName::new(name).unwrap(), None))
    }

    /// Tasks of a queue whose hand-over Redis knows.
    fn given(queue: &Arc<Queue>, numbers: &[u64]) -> Vec<Given> {
        let one = |number: &u64| Given {
            execution: execution(*number),
            queue: Arc::clone(queue),
            cost_ms: None,
            lease_ms: 5_000,
            noted: true,
        };
        numbers.iter().map(one).collect()
    }

    const SILENT: Ran = Ran { took_ms: None, failed: false, again: false };

    #[test]
    fn as_much_is_fetched_ahead_as_lasts_twenty_milliseconds_and_goes_back_when_nobody_comes() {
        let start = crate::clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (mut known, q) = (known(1, start), queue("q"));
        assert_eq!(known.asks(0, at(0)), 0, "nothing is known yet");
        known.handed(given(&q, &[1]), false, at(0));
        known.ended(&execution(1), SILENT, at(4));
        assert_eq!(known.asks(0, at(4)), 5, "4 ms each");
        known.open = 1;
        let chores = known.chores(at(200));
        assert!(chores.recall.is_none() && chores.more, "its poll is open");
        known.open = 0;
        assert!(known.chores(at(50)).recall.is_none());
        let chores = known.chores(at(104));
        assert!(chores.recall == Some(Vec::new()) && !chores.more, "once");
        assert!(known.chores(at(500)).recall.is_none());
        // A long one, and nothing is fetched ahead for a while.
        known.handed(given(&q, &[2]), false, at(500));
        known.ended(&execution(2), SILENT, at(1_500));
        assert_eq!(known.asks(0, at(1_500)), 0);
        known.ended(&execution(3), SILENT, at(1_500));
        assert_eq!(known.run_ms.map(f64::round), Some(104.0), "what was not handed over here says nothing");
    }

    fn offer(number: u64) -> Offer {
        let ExecutionId { id, grant } = execution(number);
        let (due, not_after, spec) = (UnixMs(0), UnixMs(15_000), bytes::Bytes::from_static(&[0; 100]));
        Offer { id, grant, group: 1, urgent: false, ahead: false, due, attempt: 1, not_after, spec }
    }

    #[test]
    fn what_is_taken_ahead_lies_on_a_shelf_unless_the_worker_asks_elsewhere_too() {
        let start = crate::clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (mut known, q) = (known(1, start), queue("q"));
        assert_eq!((known.shelf_room(at(0)), known.refills(0, at(0))), (0, None), "nothing is known yet");
        known.handed(given(&q, &[1]), false, at(0));
        known.ended(&execution(1), SILENT, at(5));
        assert_eq!((known.asks(0, at(5)), known.shelf_room(at(5))), (4, 4));
        known.shelve((2..=5).map(offer).collect());
        assert_eq!(known.shelves.load(Ordering::Relaxed), 400);
        assert_eq!(known.unshelve(1), [offer(2)]);
        assert_eq!(known.refills(1, at(5)), None, "more than half is there");
        assert_eq!(known.unshelve(1), [offer(3)]);
        assert_eq!(known.refills(1, at(5)), Some(3), "one in hand and two that lie here");
        assert_eq!(known.refills(1, at(5)), None, "one call at a time");
        known.shelve(vec![offer(6)]);
        known.refilled();
        assert_eq!(known.unshelve(9), [offer(4), offer(5), offer(6)], "in their order");
        assert_eq!(known.shelves.load(Ordering::Relaxed), 0);
        // It does not come, or its slots are all taken: what lies here goes back.
        known.shelve(vec![offer(7)]);
        known.open = 1;
        assert!(known.chores(at(300)).recall.is_none());
        known.handed(given(&q, &[8]), false, at(300));
        let ExecutionId { id, grant } = execution(7);
        assert_eq!(known.chores(at(300)).recall, Some(vec![(id, grant)]));
        // It tells of a task of another door.
        known.asks(0, at(310));
        assert!(known.shelf_room(at(310)) > 0);
        known.ended(&execution(9), Ran { again: true, ..SILENT }, at(310));
        assert!(known.shelf_room(at(310)) > 0, "it may have been one of here");
        known.ended(&execution(9), SILENT, at(310));
        assert_eq!((known.shelf_room(at(311)), known.refills(0, at(311))), (0, None));
        assert!(known.shelf_room(at(60_310)) > 0);
    }

    #[test]
    fn run_times_are_what_the_worker_says_else_the_time_in_hand() {
        let start = crate::clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (mut known, a, b) = (known(4, start), queue("a"), queue("b"));
        known.handed(given(&a, &[1, 2]), false, at(0));
        known.handed(given(&b, &[3]), false, at(0));
        assert!(known.is_reported(&known.worker, at(300)), "nothing new is known");
        let failed = Ran { took_ms: Some(30), failed: true, again: false };
        assert_eq!(known.ended(&execution(1), failed, at(50)), Some(30));
        assert_eq!(known.ended(&execution(3), SILENT, at(70)), Some(70));
        assert_eq!(known.ended(&execution(9), SILENT, at(70)), None, "not handed over here");
        assert_eq!(known.ended(&execution(9), failed, at(70)), Some(30));
        assert!(known.is_reported(&known.worker, at(249)) && !known.is_reported(&known.worker, at(250)));
        let mut record = known.worker.record(1, 0);
        known.add_to(&mut record);
        assert_eq!(record.averages, [("a".to_owned(), 30.0), ("b".to_owned(), 70.0)]);
        assert_eq!((record.capacity, record.beats), (4, 0));
        known.reported(&record, at(250));
        assert!(known.is_reported(&known.worker, at(3_249)) && !known.is_reported(&known.worker, at(3_250)));
        // What is known weighs what comes next; what a task says itself comes before.
        let own = Given { cost_ms: Some(7), ..given(&a, &[5]).remove(0) };
        known.handed(vec![own], false, at(300));
        known.handed(given(&b, &[6]), false, at(300));
        known.add_to(&mut record);
        assert_eq!(
            (record.load_ms, record.beats),
            (77.0, 1),
            "the first was handed over before anything was known"
        );
        let runs = (a.take_runs(), b.take_runs());
        assert_eq!((runs.0.count(), runs.0.failed(), runs.0.max_ms()), (1, 1, 30));
        assert_eq!((runs.1.count(), runs.1.failed(), runs.1.max_ms()), (1, 0, 70));
    }

    #[test]
    fn a_hand_over_is_noted_once_when_it_lasts() {
        let start = crate::clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (mut known, q) = (known(4, start), queue("q"));
        let quick = |number| Given { noted: false, ..given(&q, &[number]).remove(0) };
        known.handed(vec![quick(1), quick(2), quick(3)], false, at(0));
        known.handed(given(&q, &[4]), false, at(0));
        known.ended(&execution(1), SILENT, at(3));
        assert_eq!((known.unnoted_ms(&execution(2)), known.unnoted_ms(&execution(4))), (5_000, 0));
        known.hear(&execution(2));
        assert_eq!((known.unnoted_ms(&execution(2)), known.lease_ms(&execution(2))), (0, Some(5_000)));
        let chores = known.chores(at(199));
        assert!(chores.note.is_empty() && chores.more);
        let chores = known.chores(at(200));
        let ExecutionId { id, grant } = execution(3);
        assert_eq!(chores.note, [StartRow { id, grant, lease_ms: 5_000 }]);
        assert!(!chores.more && known.chores(at(400)).note.is_empty());
    }

    #[test]
    fn what_does_not_arrive_is_lost_where_the_worker_says_what_does() {
        let now = crate::clock::mono();
        let (mut known, q) = (known(4, now), queue("q"));
        known.handed(given(&q, &[1, 2, 3]), true, now);
        known.handed(given(&q, &[4]), false, now);
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
