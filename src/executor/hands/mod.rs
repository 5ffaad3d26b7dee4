//! What this executor holds: everything taken from the inbox until its outcome is accepted.
//!
//! One table behind one lock, since each move touches several things at once: slots, what waits,
//! the estimated load, and who must be told that there is room. Nothing here waits or does I/O, and
//! time is an argument.
//!
//! | phase | what it is | what the keeper does |
//! | --- | --- | --- |
//! | waiting | taken; its time has not come, or no slot is free yet | renews the grant well before it lapses |
//! | running | with its handler | says `start` if it lasts, then renews at a third of the lease |
//! | done | its outcome waits to be accepted | renews, in case that takes long |

mod grants;
mod held;
mod line;
mod queue;
mod size;
#[cfg(test)]
mod tests;

use self::held::Held;
use self::held::Phase;
pub(super) use self::held::{Arrived, Job, Pool, Recent, Verdict};
use self::line::Line;
pub(super) use self::queue::{Queue, Route, averaged};
use self::size::prefetch;
pub(super) use self::size::{PREFETCH_MAX, Size, View, ahead};
use super::handler::{Signal, Stop};
use crate::limits;
use crate::model::{ExecutionId, Grant, PlanName, QueueName, TaskId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A handler that ends within this time costs no `start`: its ack says everything. Most pushes do.
pub(super) const START_AFTER: Duration = Duration::from_millis(200);
/// A handler runs without a `start` only if its grant is good for this much longer: the time until
/// `start` is said, plus the longest gathering of acks, plus 50 ms for the call.
pub(super) const START_MARGIN: Duration =
    Duration::from_millis(START_AFTER.as_millis() as u64 + limits::ACK_GATHER_MAX_MS + 50);
/// A dispatch time-out is at least this long: what lay in the inbox for long has little left of it.
const DISPATCH_MIN: Duration = Duration::from_millis(limits::LEASE_MIN_MS as u64);
/// Wishes to cancel are remembered for so long, and so many of them, in case they come before their tasks.
const WISH_KEPT: Duration = Duration::from_secs(1);
const WISHES_MAX: usize = 256;

/// How long what is held and has not started is kept granted to this executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// For the dispatch time-out: should this process die, the task is soon run elsewhere.
    Dispatch,
    /// For its lease, from [`START_AFTER`] on: with a journal this process may come back and say how it ended.
    Lease,
}

/// What an execution came to, for the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    /// An outcome was made and waits for its ack.
    Outcome {
        /// Run time in ms, if the handler ran.
        took_ms: Option<f64>,
        /// Whether that counts as a failure.
        failed: bool,
    },
    /// Nothing will be reported: the grant is stale, or the task is handed back.
    Dropped,
}

#[derive(Default)]
struct Inner {
    held: HashMap<ExecutionId, Held>,
    recent: Recent,
    waiting: [Line; 2],
    /// Entries of `waiting` that still count; the others are skipped when they are reached.
    live: [u32; 2],
    /// What may not start yet, by the time from which on it may.
    early: BTreeMap<(Instant, u64), Arrived>,
    /// Entries of `early` that still count.
    early_live: [u32; 2],
    arrivals: u64,
    /// Wishes to cancel that came before their tasks, oldest first.
    wished: VecDeque<(Instant, TaskId)>,
    running: [u32; 2],
    load_ms: f64,
    /// Moving averages of the run times in ms, of all tasks and of urgent ones.
    run_ms: Option<f64>,
    urgent_run_ms: Option<f64>,
    closed: bool,
    /// The inbox loop wants to know when this little is in hand.
    notify_at: Option<u32>,
}

/// The table.
pub(super) struct Hands {
    size: Size,
    keep: Keep,
    inner: Mutex<Inner>,
    /// Fires when the level that [`Hands::notify_at`] named is reached.
    pub room: Notify,
    /// Fires when something came that may start sooner than all that was here.
    pub sooner: Notify,
}

const URGENT: usize = 0;
const NORMAL: usize = 1;

impl Inner {
    fn in_hand(&self) -> u32 {
        let sum = |counts: [u32; 2]| counts[URGENT] + counts[NORMAL];
        sum(self.live) + sum(self.early_live) + sum(self.running)
    }

    /// Held and not started, of one class.
    fn unstarted(&self, class: usize) -> u32 {
        self.live[class] + self.early_live[class]
    }

    /// What may start by now waits for a slot.
    fn ripen(&mut self, now: Instant) {
        while let Some(first) = self.early.first_entry()
            && first.key().0 <= now
        {
            let task = first.remove();
            let Some(held) = self.held.get_mut(&task.execution).filter(|held| held.early) else { continue };
            held.early = false;
            let class = if task.urgent { URGENT } else { NORMAL };
            self.early_live[class] -= 1;
            self.live[class] += 1;
            self.waiting[class].push(task);
        }
    }

    fn forget(&mut self, execution: &ExecutionId) -> Option<Held> {
        let held = self.held.remove(execution)?;
        self.recent.add(execution);
        Some(held)
    }

    fn lighter(&mut self, cost_ms: f64) {
        self.load_ms -= cost_ms;
        // Sums of rounded figures drift; an empty hand weighs nothing.
        if self.in_hand() == 0 || self.load_ms < 0.0 {
            self.load_ms = 0.0;
        }
    }

    fn drop_waiting(&mut self, execution: &ExecutionId) {
        if let Some(held) = self.forget(execution) {
            let counts = if held.early { &mut self.early_live } else { &mut self.live };
            counts[if held.urgent { URGENT } else { NORMAL }] -= 1;
            self.lighter(held.cost_ms);
        }
    }

    fn pop(&mut self, class: usize) -> Option<Arrived> {
        while let Some(next) = self.waiting[class].pop() {
            if self.held.get(&next.execution).is_some_and(|held| held.phase == Phase::Waiting) {
                self.live[class] -= 1;
                return Some(next);
            }
        }
        None
    }

    fn pick(&mut self, pool: Pool, now: Instant) -> Option<Job> {
        if self.closed {
            return None;
        }
        self.ripen(now);
        let task = self.pop(URGENT).or_else(|| if pool == Pool::Normal { self.pop(NORMAL) } else { None })?;
        let signal = Arc::new(Signal::default());
        let held = self.held.get_mut(&task.execution)?;
        held.phase = Phase::Running;
        held.signal = Some(Arc::clone(&signal));
        held.act_at = now + START_AFTER;
        let must_ask = held.cancelled || now + START_MARGIN >= held.good_until;
        self.running[pool as usize] += 1;
        Some(Job { task, signal, must_ask, begun: false })
    }
}

impl Hands {
    pub fn new(size: Size, keep: Keep) -> Self {
        Self { size, keep, inner: Mutex::default(), room: Notify::new(), sooner: Notify::new() }
    }

    /// Takes in what was not seen before; answers how many that were. Hands back, once closed, all of it.
    pub fn arrive(&self, tasks: Vec<Arrived>) -> Result<usize, Vec<(TaskId, Grant)>> {
        let mut inner = self.inner.lock();
        if inner.closed {
            let back = tasks.iter().filter(|task| !inner.held.contains_key(&task.execution));
            return Err(back.map(|task| (task.execution.id, task.execution.grant)).collect());
        }
        let (mut fresh, mut sooner) = (0, false);
        for task in tasks {
            if inner.held.contains_key(&task.execution) || inner.recent.has(&task.execution) {
                tracing::debug!(execution = %task.execution, "offered twice; the second is left out");
                continue;
            }
            let usual = || task.route.queue.lease_ms();
            let lease = task.spec.lease_ms.map_or_else(usual, i64::from);
            let wished =
                inner.wished.iter().any(|(at, id)| *id == task.execution.id && task.taken < *at + WISH_KEPT);
            let dispatch = task.good_until.saturating_duration_since(task.taken).max(DISPATCH_MIN);
            let held = Held {
                phase: Phase::Waiting,
                started: false,
                urgent: task.urgent,
                early: task.start_at.is_some(),
                cancelled: wished,
                lease: crate::clock::ms(lease),
                dispatch,
                cost_ms: task.cost_ms(),
                good_until: task.good_until,
                act_at: match self.keep {
                    Keep::Dispatch => task.good_until.checked_sub(dispatch / 3).unwrap_or(task.good_until),
                    Keep::Lease => task.taken + START_AFTER,
                },
                signal: None,
                asked: None,
            };
            inner.load_ms += held.cost_ms;
            inner.held.insert(task.execution, held);
            let class = if task.urgent { URGENT } else { NORMAL };
            if let Some(at) = task.start_at {
                sooner |= inner.early.first_key_value().is_none_or(|((first, _), _)| at < *first);
                inner.arrivals += 1;
                inner.early_live[class] += 1;
                let key = (at, inner.arrivals);
                inner.early.insert(key, task);
            } else {
                inner.live[class] += 1;
                inner.waiting[class].push(task);
            }
            fresh += 1;
        }
        drop(inner);
        if sooner {
            self.sooner.notify_one();
        }
        Ok(fresh)
    }

    /// When the first of what waits for its time may start.
    pub fn next_start(&self) -> Option<Instant> {
        self.inner.lock().early.first_key_value().map(|((at, _), _)| *at)
    }

    /// Gives free slots to what waits: urgent tasks first, and normal slots first to them too.
    pub fn launch(&self, now: Instant) -> Vec<(Pool, Job)> {
        let mut inner = self.inner.lock();
        inner.ripen(now);
        let mut jobs = Vec::new();
        for (pool, slots) in [(Pool::Normal, self.size.slots), (Pool::Urgent, self.size.urgent_slots)] {
            while inner.running[pool as usize] < slots
                && let Some(job) = inner.pick(pool, now)
            {
                jobs.push((pool, job));
            }
        }
        jobs
    }

    /// Ends an execution and gives its slot to what waits.
    pub fn finish(
        &self,
        execution: &ExecutionId,
        pool: Pool,
        queue: &Queue,
        end: End,
        now: Instant,
    ) -> Option<Job> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.running[pool as usize] -= 1;
        let cost_ms = match end {
            End::Dropped => inner.forget(execution).map(|held| held.cost_ms),
            End::Outcome { took_ms, failed } => {
                if let Some(ms) = took_ms {
                    queue.took(ms, failed);
                    inner.run_ms = Some(averaged(inner.run_ms, ms));
                    if inner.held.get(execution).is_some_and(|held| held.urgent) {
                        inner.urgent_run_ms = Some(averaged(inner.urgent_run_ms, ms));
                    }
                }
                inner.held.get_mut(execution).map(|held| {
                    held.phase = Phase::Done;
                    held.signal = None;
                    if !held.started && self.keep == Keep::Dispatch {
                        held.act_at = held.renew_at().unwrap_or(now);
                    }
                    held.cost_ms
                })
            }
        };
        inner.lighter(cost_ms.unwrap_or(0.0));
        let next = inner.pick(pool, now);
        if inner.notify_at.is_some_and(|level| inner.in_hand() <= level) {
            inner.notify_at = None;
            self.room.notify_one();
        }
        next
    }

    /// Outcomes were accepted, or given up: nothing of them is held any more.
    pub fn settle<'a>(&self, executions: impl IntoIterator<Item = &'a ExecutionId>) {
        let mut inner = self.inner.lock();
        for execution in executions {
            inner.forget(execution);
        }
    }

    /// Asks for a wake-up by [`Hands::room`] once at most `level` are in hand. False: that is so already.
    pub fn notify_at(&self, level: u32) -> bool {
        let mut inner = self.inner.lock();
        if inner.in_hand() <= level {
            return false;
        }
        inner.notify_at = Some(level);
        true
    }

    /// What the inbox loop decides on.
    pub fn view(&self) -> View {
        let inner = self.inner.lock();
        let capacity = self.size.slots + prefetch(self.size, inner.run_ms);
        let in_hand = self.size.hand(&inner);
        let urgent_capacity = self.size.urgent_capacity(&inner);
        let spare = urgent_capacity.saturating_sub(inner.running[Pool::Urgent as usize]);
        View {
            held: inner.in_hand(),
            in_hand,
            capacity,
            urgent_capacity,
            room: capacity.saturating_sub(in_hand),
            urgent_room: spare.saturating_sub(inner.unstarted(URGENT)),
            idle: self.size.slots.saturating_sub(inner.running[Pool::Normal as usize] + inner.live[NORMAL]),
            running: inner.running[0] + inner.running[1],
        }
    }

    /// Handlers at work, what waits for a slot, and the estimated cost of both in ms.
    pub fn load(&self) -> (u32, u32, f64) {
        let inner = self.inner.lock();
        (inner.running[0] + inner.running[1], inner.unstarted(0) + inner.unstarted(1), inner.load_ms)
    }

    /// Has the keeper ask at once how a running task's grant stands; one that has not started has to ask before
    /// it does. False: it does not run here.
    pub fn hurry(&self, id: TaskId, now: Instant) -> bool {
        let mut inner = self.inner.lock();
        let (mut found, mut here) = (false, false);
        for (_, held) in inner.held.iter_mut().filter(|(execution, _)| execution.id == id) {
            here = true;
            match held.phase {
                Phase::Waiting => held.cancelled = true,
                Phase::Running => {
                    held.act_at = now;
                    found = true;
                }
                Phase::Done => {}
            }
        }
        if !here {
            if inner.wished.len() >= WISHES_MAX {
                inner.wished.pop_front();
            }
            inner.wished.push_back((now, id));
        }
        found
    }

    /// Nothing starts from now on. Answers what had not started: it must be handed back.
    pub fn close(&self) -> Vec<(TaskId, Grant)> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.closed = true;
        let mut back = Vec::new();
        for class in [URGENT, NORMAL] {
            let early = if class == URGENT { std::mem::take(&mut inner.early) } else { BTreeMap::new() };
            for task in inner.waiting[class].take().chain(early.into_values()) {
                if inner.held.get(&task.execution).is_some_and(|held| held.phase == Phase::Waiting) {
                    inner.drop_waiting(&task.execution);
                    back.push((task.execution.id, task.execution.grant));
                }
            }
        }
        back
    }

    /// Takes back what waits for a slot and is of a queue and a plan that `frozen` says are frozen: it must be handed back.
    pub fn withdraw(&self, frozen: impl Fn(&QueueName, Option<&str>) -> bool) -> Vec<(TaskId, Grant)> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut back = Vec::new();
        for (key, task) in std::mem::take(&mut inner.early) {
            if !frozen(&task.route.queue.name, task.spec.plan.as_ref().map(PlanName::as_str)) {
                inner.early.insert(key, task);
            } else if inner.held.get(&task.execution).is_some_and(|held| held.early) {
                inner.drop_waiting(&task.execution);
                back.push((task.execution.id, task.execution.grant));
            }
        }
        for class in [URGENT, NORMAL] {
            for task in inner.waiting[class].take() {
                if !frozen(&task.route.queue.name, task.spec.plan.as_ref().map(PlanName::as_str)) {
                    inner.waiting[class].push(task);
                } else if inner.held.get(&task.execution).is_some_and(|held| held.phase == Phase::Waiting) {
                    inner.drop_waiting(&task.execution);
                    back.push((task.execution.id, task.execution.grant));
                }
            }
        }
        back
    }

    /// Tells all running handlers to stop.
    pub fn stop_all(&self, why: Stop) -> usize {
        let inner = self.inner.lock();
        let signals = inner.held.values().filter(|held| held.phase == Phase::Running);
        signals.filter_map(|held| held.signal.as_ref()).map(|signal| signal.fire(why)).count()
    }
}
