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

use super::handler::{Handler, Signal, Stop};
use super::link::{Offer, StartAnswer, StartRow};
use crate::limits;
use crate::model::runs::Runs;
use crate::model::{Bucket, ExecutionId, Grant, Labels, PlanName, QueueName, Spec, TaskId, UnixMs};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A handler that ends within this time costs no `start`: its ack says everything. Most pushes do.
pub(super) const START_AFTER: Duration = Duration::from_millis(200);
/// A handler runs without a `start` only if its grant is good for this much longer: the time until
/// `start` is said, plus the longest gathering of acks, plus 50 ms for the call.
pub(super) const START_MARGIN: Duration =
    Duration::from_millis(START_AFTER.as_millis() as u64 + limits::ACK_GATHER_MAX_MS + 50);
/// A dispatch time-out is at least this long: what lay in the inbox for long has little left of it.
const DISPATCH_MIN: Duration = Duration::from_millis(limits::LEASE_MIN_MS as u64);
/// A lease is taken for lost this long before its end, or an eighth of the lease if that is less:
/// a handler needs a moment to stop.
const LAPSE_MARGIN: Duration = Duration::from_millis(250);
/// Executions remembered after they ended, in each of two generations: an offer that comes a second
/// time is not run a second time. At 50,000 a second it covers a third of a second, which is more
/// than a repeated push takes.
const RECENT_MAX: usize = 16_384;
/// Work fetched ahead of free slots, in time: covers the way from "there is room" to the next offer.
const PREFETCH_MS: f64 = 10.0;
/// Most tasks fetched ahead unless set otherwise: one batch.
pub(super) const PREFETCH_MAX: u32 = limits::BATCH_MAX_ROWS as u32;
/// Wishes to cancel are remembered for so long, and so many of them, in case they come before their tasks.
const WISH_KEPT: Duration = Duration::from_secs(1);
const WISHES_MAX: usize = 256;
/// Weight of the latest run in the moving averages: the last ten or so count.
const AVERAGE_WEIGHT: f64 = 0.1;
/// Never: a time to act that does not come.
const FAR: Duration = Duration::from_secs(86_400);

/// A queue as this executor serves it.
pub(super) struct Queue {
    pub name: QueueName,
    /// None: offered by mistake.
    pub handler: Option<Handler>,
    /// Moving average of the run time in ms, as the bits of an `f64`; NaN until the first run.
    average_ms: AtomicU64,
    /// Runs that have not been reported yet.
    runs: Mutex<Runs>,
    /// Lease of tasks that name none, in ms.
    lease_ms: AtomicI64,
}

impl Queue {
    pub fn new(name: QueueName, handler: Option<Handler>) -> Self {
        Self {
            name,
            handler,
            average_ms: AtomicU64::new(f64::NAN.to_bits()),
            runs: Mutex::default(),
            lease_ms: AtomicI64::new(limits::LEASE_MS),
        }
    }

    pub fn average_ms(&self) -> Option<f64> {
        let value = f64::from_bits(self.average_ms.load(Ordering::Relaxed));
        (!value.is_nan()).then_some(value)
    }

    /// Runs since this was last asked.
    pub fn take_runs(&self) -> Runs {
        std::mem::take(&mut *self.runs.lock())
    }

    /// Runs that could not be reported count the next time.
    pub fn put_back(&self, runs: &Runs) {
        self.runs.lock().merge(runs);
    }

    /// Tasks that arrive from now on and name no lease get this one.
    pub fn set_lease(&self, ms: i64) {
        self.lease_ms.store(ms, Ordering::Relaxed);
    }

    /// Lease of tasks that name none, in ms.
    pub fn lease_ms(&self) -> i64 {
        self.lease_ms.load(Ordering::Relaxed)
    }

    /// Only called under the lock of the table.
    pub fn took(&self, ms: f64, failed: bool) {
        self.runs.lock().add(ms as i64, failed);
        let average = averaged(self.average_ms(), ms);
        self.average_ms.store(average.to_bits(), Ordering::Relaxed);
    }
}

/// A moving average with one more value.
pub(super) fn averaged(average: Option<f64>, value: f64) -> f64 {
    average.map_or(value, |average| average + (value - average) * AVERAGE_WEIGHT)
}

/// What a lane code stands for here.
#[derive(Clone)]
pub(super) struct Route {
    pub queue: Arc<Queue>,
    pub labels: Arc<Labels>,
}

/// An offer that was taken and understood.
pub(super) struct Arrived {
    pub execution: ExecutionId,
    pub spec: Spec,
    pub due: UnixMs,
    pub attempt: u32,
    pub urgent: bool,
    /// Local time until which the grant stands unless it is renewed.
    pub good_until: Instant,
    /// Local time at which it was taken.
    pub taken: Instant,
    /// Local time from which on it may start; none: at once.
    pub start_at: Option<Instant>,
    pub route: Route,
}

impl Arrived {
    /// `surely_due` is when its time has surely come, if that is known.
    pub fn new(
        offer: &Offer,
        spec: Spec,
        route: Route,
        now: Instant,
        now_ms: i64,
        surely_due: Option<Instant>,
    ) -> Self {
        // Whatever the clocks say, it was claimed at most so long before its time.
        let latest = now + crate::clock::ms(limits::LOOK_AHEAD_MAX_MS);
        let start_at = offer.ahead.then(|| surely_due.unwrap_or(latest).min(latest)).filter(|at| *at > now);
        let left = crate::clock::ms(offer.not_after.0 - now_ms);
        Self {
            execution: ExecutionId { id: offer.id, grant: offer.grant },
            spec,
            due: offer.due,
            attempt: offer.attempt,
            urgent: offer.urgent,
            good_until: now + left.min(FAR),
            taken: now,
            start_at,
            route,
        }
    }

    fn cost_ms(&self) -> f64 {
        let own = self.spec.extras.cost_ms.map(f64::from);
        own.or_else(|| self.route.queue.average_ms()).unwrap_or(0.0)
    }
}

/// Which kind of slot a task takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pool {
    /// For all.
    Normal,
    /// Only for P0 and P1.
    Urgent,
}

/// A task that has a slot.
pub(super) struct Job {
    pub task: Arrived,
    pub signal: Arc<Signal>,
    /// The grant may have lapsed: a `start` must be accepted before the handler runs.
    pub must_ask: bool,
    /// The journal says already that its handler is entered.
    pub begun: bool,
}

/// The answer to a `start` that had to come before the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    Cancelled,
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Done,
}

struct Held {
    phase: Phase,
    /// A `start` was accepted.
    started: bool,
    urgent: bool,
    /// It waits for its time, not for a slot.
    early: bool,
    /// Somebody asked for it to be cancelled while it waited.
    cancelled: bool,
    lease: Duration,
    /// What waits is renewed for so long: what was left of its dispatch time-out when it came.
    dispatch: Duration,
    cost_ms: f64,
    good_until: Instant,
    /// When the keeper must act.
    act_at: Instant,
    signal: Option<Arc<Signal>>,
    asked: Option<oneshot::Sender<Verdict>>,
}

impl Held {
    /// What waits is renewed a third of its time-out before that ends, so that two renewals may fail.
    fn renew_at(&self) -> Option<Instant> {
        self.good_until.checked_sub(self.dispatch / 3)
    }

    fn lapse_margin(&self) -> Duration {
        LAPSE_MARGIN.min(self.lease / 8)
    }
}

/// Ids of executions that ended lately: two generations, so that it is bounded without a queue.
#[derive(Default)]
pub(super) struct Recent {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Recent {
    fn mark(execution: &ExecutionId) -> u64 {
        let grant = execution.grant.as_bytes();
        let fence =
            grant.iter().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        xxh3_64_with_seed(execution.id.as_bytes(), fence)
    }

    pub fn add(&mut self, execution: &ExecutionId) {
        if self.young.len() >= RECENT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(Self::mark(execution));
    }

    pub fn has(&self, execution: &ExecutionId) -> bool {
        let mark = Self::mark(execution);
        self.young.contains(&mark) || self.old.contains(&mark)
    }
}

/// What the inbox loop decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// Taken and not finished.
    pub held: u32,
    /// The same without what uses the urgent slots: what counts against `capacity`.
    pub in_hand: u32,
    /// Slots plus what may be fetched ahead.
    pub capacity: u32,
    /// The same of the urgent slots.
    pub urgent_capacity: u32,
    /// What may be taken now for any slot, and for urgent slots alone.
    pub room: u32,
    pub urgent_room: u32,
    /// Free normal slots for which nothing waits.
    pub idle: u32,
    /// Handlers at work, in both pools.
    pub running: u32,
}

/// How much work this executor may hold and does hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub slots: u32,
    pub urgent_slots: u32,
    /// Most tasks fetched ahead.
    pub prefetch: u32,
}

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
    waiting: [VecDeque<Arrived>; 2],
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
            self.waiting[class].push_back(task);
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
        while let Some(next) = self.waiting[class].pop_front() {
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

/// Rows for the keeper's next calls, by bucket: to start, to renew.
pub(super) type Calls = BTreeMap<Bucket, (Vec<StartRow>, Vec<StartRow>)>;

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
                inner.waiting[class].push_back(task);
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
            for task in std::mem::take(&mut inner.waiting[class]).into_iter().chain(early.into_values()) {
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
            for task in std::mem::take(&mut inner.waiting[class]) {
                if !frozen(&task.route.queue.name, task.spec.plan.as_ref().map(PlanName::as_str)) {
                    inner.waiting[class].push_back(task);
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

    /// Asks for a `start` before the handler runs; the keeper must be woken afterwards.
    pub fn ask_start(&self, execution: &ExecutionId, now: Instant) -> oneshot::Receiver<Verdict> {
        let (tell, told) = oneshot::channel();
        if let Some(held) = self.inner.lock().held.get_mut(execution) {
            held.act_at = now;
            held.asked = Some(tell);
        }
        told
    }

    /// What the keeper has to say now, except to `busy` buckets, where a call is under way.
    /// Handlers whose lease ran out meanwhile are told to stop.
    pub fn calls(&self, now: Instant, busy: &HashSet<Bucket>) -> Calls {
        let mut calls = Calls::new();
        let mut inner = self.inner.lock();
        for (execution, held) in &mut inner.held {
            if let Some(signal) = held.signal.as_ref().filter(|_| held.phase == Phase::Running)
                && held.asked.is_none()
                && now + held.lapse_margin() >= held.good_until
                && !signal.has(Stop::LeaseLost)
            {
                tracing::warn!(%execution, "lease could not be renewed in time; the handler is told to stop");
                signal.fire(Stop::LeaseLost);
            }
            if now < held.act_at {
                continue;
            }
            // What is done and has lapsed is for its ack to find out.
            if held.phase == Phase::Done && now >= held.good_until {
                held.act_at = now + FAR;
                continue;
            }
            let bucket = execution.id.bucket();
            if busy.contains(&bucket) {
                continue;
            }
            let start = held.phase == Phase::Running && !held.started;
            let lease =
                if start || held.started || self.keep == Keep::Lease { held.lease } else { held.dispatch };
            // If no answer comes it is asked again: ten times in a lease, at most ten times a second.
            held.act_at = now + (lease / 10).clamp(Duration::from_millis(100), Duration::from_secs(2));
            let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(limits::LEASE_MAX_MS);
            let row = StartRow { id: execution.id, grant: execution.grant, lease_ms };
            let (starts, renews) = calls.entry(bucket).or_default();
            if start { starts.push(row) } else { renews.push(row) }
        }
        calls
    }

    /// Takes in the answers to one call that left at `sent`. Answers how many grants were stale.
    pub fn answered(
        &self,
        start: bool,
        rows: &[StartRow],
        answers: &[StartAnswer],
        sent: Instant,
        now: Instant,
        now_ms: i64,
    ) -> usize {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut stale = 0;
        for (row, answer) in rows.iter().zip(answers) {
            let execution = ExecutionId { id: row.id, grant: row.grant };
            let Some(held) = inner.held.get_mut(&execution) else { continue };
            let (deadline, cancel) = match *answer {
                StartAnswer::Ok { deadline, cancel } => (deadline, cancel),
                StartAnswer::Stale => {
                    stale += 1;
                    match held.phase {
                        Phase::Waiting => inner.drop_waiting(&execution),
                        Phase::Running => {
                            held.act_at = now + FAR;
                            if let Some(signal) = &held.signal {
                                signal.fire(Stop::Stale);
                            }
                            if let Some(asked) = held.asked.take() {
                                let _ = asked.send(Verdict::Stale);
                            }
                        }
                        Phase::Done => held.act_at = now + FAR,
                    }
                    continue;
                }
            };
            // The lease counts from before the request left; a shorter one that Redis names is believed.
            let asked_for = sent + crate::clock::ms(row.lease_ms);
            let named = now + crate::clock::ms(deadline.0 - now_ms).min(FAR);
            held.good_until = held.good_until.max(asked_for.min(named));
            held.started |= start;
            let soonest = now + Duration::from_millis(100);
            held.act_at = if held.started || (self.keep == Keep::Lease && held.phase != Phase::Running) {
                (sent + held.lease / 3).max(soonest)
            } else if held.phase == Phase::Running {
                // Renewed while it waited, and it has begun since.
                held.act_at.min(now + START_AFTER)
            } else {
                held.renew_at().unwrap_or(soonest).max(soonest)
            };
            if cancel {
                held.cancelled = true;
                if let Some(signal) = &held.signal {
                    signal.fire(Stop::Cancelled);
                }
            }
            if let Some(asked) = held.asked.take_if(|_| start) {
                let _ = asked.send(if cancel { Verdict::Cancelled } else { Verdict::Go });
            }
        }
        stale
    }
}

impl Size {
    /// Urgent tasks that may be here beside those that normal slots have or will have: what the urgent slots do next is
    /// fetched ahead as for other slots. So it can be claimed before it is due also while those are all taken.
    fn urgent_capacity(self, inner: &Inner) -> u32 {
        self.urgent_slots + ahead(self.urgent_slots, self.prefetch, inner.urgent_run_ms, PREFETCH_MS)
    }

    /// In hand, without what the urgent slots hold or will hold.
    fn hand(self, inner: &Inner) -> u32 {
        let spare = self.urgent_capacity(inner).saturating_sub(inner.running[Pool::Urgent as usize]);
        let urgent = inner.unstarted(URGENT).saturating_sub(spare);
        inner.running[Pool::Normal as usize] + inner.unstarted(NORMAL) + urgent
    }
}

/// What may be fetched ahead when a run takes `run_ms` on average: what all slots do in 10 ms, so nothing where runs
/// are long. What is fetched cannot be overtaken by another queue's tasks any more.
fn prefetch(size: Size, run_ms: Option<f64>) -> u32 {
    ahead(size.slots, size.prefetch, run_ms, PREFETCH_MS)
}

/// What `slots` do in `of_ms`, `most` at most.
pub(super) fn ahead(slots: u32, most: u32, run_ms: Option<f64>, of_ms: f64) -> u32 {
    let Some(ms) = run_ms else { return 0 };
    let ahead = f64::from(slots) * of_ms / ms.max(0.001);
    if ahead >= f64::from(most) { most } else { ahead as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LaneCode, Nonce, Priority, Tier};

    const SIZE: Size = Size { slots: 2, urgent_slots: 1, prefetch: PREFETCH_MAX };

    fn arrived(number: u64, priority: Priority, now: Instant) -> Arrived {
        let id = TaskId::new(crate::model::Minute(29_408_521), Bucket::default(), number);
        let queue = Arc::new(Queue::new(QueueName::new("q").unwrap(), None));
        let mut spec = crate::model::spec::tests::plain(b"");
        spec.lane = LaneCode::new(1, priority, Tier::FRESH);
        Arrived {
            execution: ExecutionId { id, grant: Grant::new(1, Nonce::new(number)) },
            spec,
            due: UnixMs(0),
            attempt: 1,
            urgent: priority.is_urgent(),
            good_until: now + Duration::from_secs(15),
            taken: now,
            start_at: None,
            route: Route { queue, labels: Arc::default() },
        }
    }

    #[test]
    fn prefetch_is_ten_milliseconds_of_work() {
        let size = Size { slots: 8, ..SIZE };
        let cases = [
            (None, 0),
            (Some(900.0), 0),
            (Some(81.0), 0),
            (Some(80.0), 1),
            (Some(20.0), 4),
            (Some(1.0), 80),
            (Some(0.0), 1_000),
        ];
        for (run_ms, expected) in cases {
            assert_eq!(prefetch(size, run_ms), expected, "{run_ms:?}");
        }
        assert_eq!(prefetch(Size { prefetch: 32, ..size }, Some(0.5)), 32, "the setting caps it");
    }

    #[test]
    fn urgent_tasks_take_normal_slots_first_and_then_their_own() {
        let (hands, now) = (Hands::new(SIZE, Keep::Dispatch), crate::clock::mono());
        let tasks = [Priority::P3, Priority::P3, Priority::P0, Priority::P1, Priority::P1];
        let tasks =
            tasks.into_iter().zip(0..).map(|(priority, number)| arrived(number, priority, now)).collect();
        assert_eq!(hands.arrive(tasks).unwrap(), 5);
        let mut jobs = hands.launch(now);
        let shape: Vec<_> = jobs.iter().map(|(pool, job)| (*pool, job.task.spec.lane.priority())).collect();
        let expected =
            [(Pool::Normal, Priority::P0), (Pool::Normal, Priority::P1), (Pool::Urgent, Priority::P1)];
        assert_eq!(shape, expected);
        let view = hands.view();
        assert_eq!((view.held, view.in_hand, view.room, view.urgent_room, view.idle), (5, 4, 0, 0, 0));
        // The urgent slot is free again: nothing of what waits may have it.
        let (_, last) = jobs.pop().unwrap();
        let end = End::Outcome { took_ms: Some(50.0), failed: false };
        assert!(hands.finish(&last.task.execution, Pool::Urgent, &last.task.route.queue, end, now).is_none());
        assert_eq!((hands.view().held, hands.view().urgent_room), (4, 1));
        let (_, first) = jobs.remove(0);
        let next = hands.finish(&first.task.execution, Pool::Normal, &first.task.route.queue, end, now);
        assert_eq!(next.unwrap().task.spec.lane.priority(), Priority::P3);
    }

    /// Else an executor with four urgent slots could be given four tasks ahead of their time, and the fifth only when it is due.
    #[test]
    fn urgent_tasks_are_fetched_ahead_of_their_slots_as_others_are() {
        let size = Size { slots: 1, urgent_slots: 4, prefetch: PREFETCH_MAX };
        let (hands, now) = (Hands::new(size, Keep::Dispatch), crate::clock::mono());
        let of = |numbers: std::ops::Range<u64>, priority| -> Vec<_> {
            numbers.map(|number| arrived(number, priority, now)).collect()
        };
        let room = || (hands.view().room, hands.view().urgent_room, hands.view().urgent_capacity);
        assert_eq!(room(), (1, 4, 4), "nothing is known of how long they run");
        let run = |priority, took_ms: f64, numbers| {
            hands.arrive(of(numbers, priority)).unwrap();
            for (pool, job) in hands.launch(now) {
                let end = End::Outcome { took_ms: Some(took_ms), failed: false };
                hands.finish(&job.task.execution, pool, &job.task.route.queue, end, now);
                hands.settle([&job.task.execution]);
            }
        };
        run(Priority::P3, 1.0, 0..1);
        assert_eq!(room(), (11, 4, 4), "others say nothing of urgent ones");
        run(Priority::P1, 4.0, 1..2);
        assert_eq!(room().1, 14, "four slots, and what they do in 10 ms");
        hands.arrive(of(2..3, Priority::P3)).unwrap();
        hands.launch(now);
        let (before, ..) = room();
        hands.arrive(of(3..16, Priority::P0)).unwrap();
        assert_eq!(room(), (before, 1, 14), "13 of them take no room from others");
        hands.arrive(of(16..19, Priority::P0)).unwrap();
        assert_eq!(room(), (before - 2, 0, 14), "but what is beyond does");
    }

    #[test]
    fn with_a_journal_what_is_held_unstarted_stays_held_for_its_lease() {
        let now = crate::clock::mono();
        let all = || (0..4).map(|number| arrived(number, Priority::P3, now)).collect::<Vec<_>>();
        // Before START_AFTER nothing is said; then each row has the lease that it asks for.
        for (keep, soon) in [(Keep::Dispatch, vec![]), (Keep::Lease, vec![limits::LEASE_MS; 2])] {
            let hands = Hands::new(SIZE, keep);
            assert_eq!(hands.arrive(all()).unwrap(), 4);
            let jobs = hands.launch(now);
            assert_eq!(jobs.len(), 2, "the two others wait");
            let renewed = |at: Instant| -> Vec<(TaskId, i64)> {
                let calls = hands.calls(at, &HashSet::new());
                calls.into_values().flat_map(|(_, renews)| renews).map(|row| (row.id, row.lease_ms)).collect()
            };
            assert!(renewed(now + START_AFTER / 2).is_empty());
            let at = now + START_AFTER;
            let rows = renewed(at);
            assert_eq!(rows.iter().map(|(_, lease_ms)| *lease_ms).collect::<Vec<_>>(), soon, "{keep:?}");
            if keep == Keep::Dispatch {
                continue;
            }
            // Answered, it is renewed at a third of its lease.
            let rows: Vec<_> = rows
                .into_iter()
                .map(|(id, lease_ms)| {
                    let task = all().into_iter().find(|task| task.execution.id == id).unwrap();
                    StartRow { id, grant: task.execution.grant, lease_ms }
                })
                .collect();
            let answers = [StartAnswer::Ok { deadline: UnixMs(limits::LEASE_MS), cancel: false }; 2];
            assert_eq!(hands.answered(false, &rows, &answers, at, at, 0), 0);
            let third = Duration::from_millis(limits::LEASE_MS as u64 / 3);
            assert!(renewed(at + third - Duration::from_millis(1)).is_empty());
            assert_eq!(renewed(at + third).len(), 2);
        }
    }

    #[test]
    fn what_ended_is_remembered_and_closing_gives_the_rest_back() {
        let (hands, now) = (Hands::new(SIZE, Keep::Dispatch), crate::clock::mono());
        let all = || (0..4).map(|number| arrived(number, Priority::P3, now)).collect::<Vec<_>>();
        assert_eq!(hands.arrive(all()).unwrap(), 4);
        assert_eq!(hands.arrive(all()).unwrap(), 0, "all are held");
        let jobs = hands.launch(now);
        assert_eq!(jobs.len(), 2);
        for (pool, job) in &jobs {
            hands.finish(&job.task.execution, *pool, &job.task.route.queue, End::Dropped, now);
        }
        let back = hands.close();
        assert!(back.is_empty(), "both waiting ones had got the free slots: {back:?}");
        assert_eq!(hands.arrive(all()).unwrap_err().len(), 2, "closed: what is not held goes back");
    }

    #[test]
    fn the_memory_of_ended_executions_is_bounded() {
        let mut recent = Recent::default();
        let now = crate::clock::mono();
        let execution = |number| arrived(number, Priority::P3, now).execution;
        for number in 0..3 * RECENT_MAX as u64 {
            recent.add(&execution(number));
            assert!(recent.young.len() + recent.old.len() <= 2 * RECENT_MAX);
        }
        assert!(recent.has(&execution(3 * RECENT_MAX as u64 - 1)) && !recent.has(&execution(0)));
    }
}
