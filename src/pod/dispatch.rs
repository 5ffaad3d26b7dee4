//! From a grant to an inbox: room at executors, routing, offers.
//!
//! The pod knows how much room each executor has left for it: what it has reserved there, kept
//! current by the answer to each offer, or, where it has offered nothing lately, what the executor
//! reported. A claim first *holds* a part of that room, so that what it brings can be delivered.

use super::tables::Tables;
use super::view::{Class, Executor, View};
use super::{PodTally, Shared};
use crate::clock;
use crate::limits;
use crate::metric;
use crate::model::route::record::{Decision, SEATS_RECORDED_MAX, Sample};
use crate::model::route::{Policy, Seat, Together, Work};
use crate::model::{Bucket, Grant, PlanName, Spec, TaskId, UnixMs, spec};
use crate::store::due::{Claim, Granted, Quota, hand_back};
use crate::store::member::{self, Offer, OfferAnswer, RESERVATION_MS};
use crate::store::run::{self, StartRow};
use crate::store::{Space, StoreError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

/// Cost of a task of which nobody knows anything, in ms.
const COST_UNKNOWN_MS: f64 = 10.0;
/// How long a claimed task may wait here for room before it is handed back.
const WAIT_MAX: Duration = Duration::from_millis(2_000);
/// How often waiting tasks and tight executors are looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// News of an executor's room of this age is no longer trusted: reservations last as long.
const FRESH_FOR: Duration = Duration::from_millis(RESERVATION_MS as u64);
/// How long offers wait for other claims of this pod that are under way, while it is busy.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// Tasks that have lain in an inbox for this long are noted there, for those who ask where they are.
const NOTE_AFTER: Duration = Duration::from_millis(250);
/// Offers remembered until then; beyond it the oldest go without a note.
const NOTES_MAX: usize = 50_000;
/// Wishes to cancel are remembered for so long, and so many of them.
const WISH_KEPT: Duration = Duration::from_secs(1);
const WISHES_MAX: usize = 256;
/// Times an offer is sent again to the same executor when its answer was lost.
const OFFER_REPEATS_MAX: u32 = 5;

/// Where several loops wait for room each gets at least so much in its turn: a claim of one costs Redis as much as
/// one of some.
const PART_MIN: u32 = 2;
/// And what this pod claims in so long: where tasks are short a claim of many costs a fraction of several of few, and
/// the others' turn comes soon all the same.
const PART: Duration = Duration::from_millis(4);

/// A claimed task on its way.
#[derive(Debug, Clone)]
struct Parcel {
    id: TaskId,
    grant: Grant,
    group: u32,
    urgent: bool,
    cost_ms: f64,
    /// Hash of its routing key.
    key: Option<u64>,
    /// The executor that it is for, where it is a part of a broadcast.
    to: Option<Box<str>>,
    /// When its own dispatch time-out passes, where it has one.
    own_end: Option<Instant>,
    since: Instant,
    offer: Bytes,
}

/// An offer that was accepted.
#[derive(Debug)]
struct Offered {
    at: Instant,
    id: TaskId,
    grant: Grant,
    to: Arc<str>,
    own_end: Option<Instant>,
}

/// What this pod knows of one executor's room.
#[derive(Debug)]
struct Outbox {
    id: Arc<str>,
    slots: u32,
    /// Only for tasks that ask for a label of its own.
    exclusive: bool,
    /// Room for tasks of every priority, as last heard, less what was sent since.
    credit: u32,
    /// Room for urgent tasks beyond that.
    spare: u32,
    heard: Instant,
    /// The heartbeat whose figures are in here, and when they were brought up to date.
    beats: u64,
    weighed: Instant,
    load_ms: f64,
    idle: u32,
    /// Tasks given to it, and when it got the last of them, as a count of all.
    given: u64,
    last: u64,
    /// The last offer was answered.
    healthy: bool,
    urgent: VecDeque<Parcel>,
    normal: VecDeque<Parcel>,
    sending: bool,
    /// Room was announced: ask for it, even if there is nothing to offer.
    ask: bool,
    /// No room was left when last heard: a push will tell.
    tight: bool,
}

impl Parcel {
    /// Whether its plan is frozen.
    fn is_frozen(&self, view: &View) -> bool {
        !view.frozen_plans.is_empty()
            && Offer::peek_plan(&self.offer).is_some_and(|plan| view.freeze.of_plan(plan).is_some())
    }
}

impl Outbox {
    fn new(executor: &Executor, now: Instant) -> Self {
        let record = &executor.record;
        Self {
            id: record.id.as_str().into(),
            slots: record.slots.max(1),
            exclusive: record.is_exclusive(),
            credit: 0,
            spare: record.urgent_slots,
            heard: now,
            beats: u64::MAX,
            weighed: now,
            load_ms: 0.0,
            idle: 0,
            given: 0,
            last: 0,
            healthy: true,
            urgent: VecDeque::new(),
            normal: VecDeque::new(),
            sending: false,
            ask: false,
            tight: false,
        }
    }

    fn queued(&self) -> u32 {
        (self.urgent.len() + self.normal.len()) as u32
    }

    /// As routing sees it.
    fn seat(&self) -> Seat {
        Seat {
            free: self.credit,
            spare: self.spare,
            slots: self.slots,
            idle: self.idle,
            load_ms: self.load_ms,
            healthy: self.healthy,
            given: self.given,
            last: self.last,
        }
    }

    fn put(&mut self, seat: &Seat, parcel: Parcel) {
        (self.credit, self.spare, self.idle) = (seat.free, seat.spare, seat.idle);
        (self.load_ms, self.given, self.last) = (seat.load_ms, seat.given, seat.last);
        if parcel.urgent { self.urgent.push_back(parcel) } else { self.normal.push_back(parcel) }
    }

    /// Work in hand is a report of some seconds ago; since then the executor has worked.
    fn weigh(&mut self, executor: &Executor, now: Instant) {
        let record = &executor.record;
        if record.beats != self.beats {
            self.beats = record.beats;
            self.load_ms = record.load_ms.max(0.0);
            self.idle = record.slots.saturating_sub(record.busy);
        } else {
            let ms = now.saturating_duration_since(self.weighed).as_secs_f64() * 1_000.0;
            self.load_ms = (self.load_ms - ms * f64::from(self.slots)).max(0.0);
        }
        self.weighed = now;
    }
}

#[derive(Debug, Default)]
struct Inner {
    view: Arc<View>,
    /// One for each executor of the view, in its order.
    outboxes: Vec<Outbox>,
    tables: Tables,
    /// Moving averages of queues by their codes, in ms, as far as they were looked up in this view.
    averages: HashMap<u32, f64>,
    waiting: VecDeque<Parcel>,
    /// Room that claims under way have put aside.
    held: u32,
    /// Claims under way.
    claiming: u32,
    /// Offers wait for the other claims under way; a timer stands behind them.
    gathering: bool,
    /// A claim got nothing because others had put all room aside, or it was others' turn.
    starved: bool,
    /// Buckets whose claim loops wait for room, in turn: who got some goes to the end.
    turns: VecDeque<Bucket>,
    /// Queues with labels that the view does not know yet and of which tasks came: nothing more of them until it does.
    strangers: BTreeSet<u32>,
    decisions: Sample,
    together: Together,
    buckets: Vec<u16>,
    /// Offers accepted lately, oldest first.
    offered: VecDeque<Offered>,
    /// Wishes to cancel of late, oldest first: what they are about may be on its way.
    wished: VecDeque<(Instant, TaskId)>,
}

impl Inner {
    fn place(&self, executor: &str) -> Option<usize> {
        self.outboxes.binary_search_by(|outbox| (*outbox.id).cmp(executor)).ok()
    }

    fn outbox(&mut self, executor: &str) -> Option<&mut Outbox> {
        let place = self.place(executor)?;
        self.outboxes.get_mut(place)
    }

    /// What is known of an executor has changed.
    fn touched(&mut self, executor: &str) {
        if let Some(place) = self.place(executor) {
            self.tables.changed(place, self.outboxes.len());
        }
    }

    /// What a task of a queue costs that does not say so itself.
    fn average_ms(&mut self, view: &View, group: u32) -> f64 {
        *self.averages.entry(group).or_insert_with(|| {
            let Some((lane, class)) = view.groups.get(&group) else { return COST_UNKNOWN_MS };
            let known = view.classes[class.0]
                .iter()
                .filter_map(|at| view.executors[*at].average_ms(lane.queue.as_str()));
            let (count, sum) = known.fold((0.0, 0.0), |(count, sum), ms| (count + 1.0, sum + ms));
            if count > 0.0 { sum / count } else { COST_UNKNOWN_MS }
        })
    }

    /// Puts a part of a broadcast into the outbox of the executor that it is for, and a task that is to be spread
    /// into that of one that spreads; gives it back when it must wait.
    fn send_to(&mut self, view: &View, parcel: Parcel) -> Option<Parcel> {
        let open = |at: &usize| self.outboxes[*at].seat().has_room(parcel.urgent);
        let at = match &parcel.to {
            Some(to) => self.place(to).filter(open),
            None => view.spreaders.iter().copied().find(open),
        };
        let Some(at) = at else { return Some(parcel) };
        let mut seat = self.outboxes[at].seat();
        if seat.free > 0 {
            seat.free -= 1
        } else {
            seat.spare = seat.spare.saturating_sub(1)
        }
        seat.idle = seat.idle.saturating_sub(1);
        seat.load_ms += parcel.cost_ms;
        self.outboxes[at].put(&seat, parcel);
        self.tables.changed(at, self.outboxes.len());
        None
    }

    /// Chooses an executor for a task and puts it into its outbox; gives it back when it must wait.
    fn assign(&mut self, view: &View, parcel: Parcel) -> Option<Parcel> {
        let Some((lane, class)) = view.groups.get(&parcel.group) else { return Some(parcel) };
        let policy = view.policy(parcel.group);
        if parcel.to.is_some() || policy == Policy::Broadcast {
            return self.send_to(view, parcel);
        }
        let outboxes = &self.outboxes;
        let table = self.tables.of(view, *class, policy, |at| outboxes[at].seat());
        let work = Work {
            cost_ms: parcel.cost_ms,
            urgent: parcel.urgent,
            key: parcel.key,
            chance: fastrand::u64(..),
        };
        let chosen = table.choose(&work);
        let place = chosen.map(|chosen| self.together.settle(class.0, table, &work, chosen));
        let serving = &view.classes[class.0];
        // Whoever follows another is no decision.
        if place == chosen
            && serving.len() <= SEATS_RECORDED_MAX
            && let Some((number, at)) = self.decisions.place(fastrand::u64(..))
        {
            let executors: Vec<String> =
                serving.iter().map(|at| view.executors[*at].record.id.clone()).collect();
            let decision = Decision {
                number,
                task: parcel.id.to_string(),
                queue: lane.queue.to_string(),
                policy: table.policy(),
                work,
                turn: table.turn(),
                chosen: chosen.and_then(|place| executors.get(place).cloned()),
                executors,
                seats: table.seats().to_vec(),
            };
            self.decisions.keep(at, decision);
        }
        let Some(place) = place else { return Some(parcel) };
        let seat = table.give(place, parcel.cost_ms);
        let at = serving[place];
        self.outboxes[at].put(&seat, parcel);
        self.tables.changed(at, self.outboxes.len());
        None
    }
}

/// Room that a claim may use; given back when dropped.
pub(crate) struct Hold<'a> {
    shared: &'a Arc<Shared>,
    pub any: u32,
    pub normal: u32,
    pub default_quota: Quota,
    pub quotas: Vec<(u32, Quota)>,
    /// Those of which nothing may come and that are too many to be among them.
    pub closed: Vec<u32>,
    pub own_weights: Vec<(u32, [u32; 6])>,
    pub own_dispatch: Arc<BTreeMap<u32, i64>>,
    /// How long before its time every executor may be given a task.
    pub ahead_ms: i64,
    pub frozen_plans: Arc<[PlanName]>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let dispatcher = &self.shared.dispatcher;
        let mut inner = dispatcher.inner.lock();
        inner.held = inner.held.saturating_sub(self.any);
        inner.claiming = inner.claiming.saturating_sub(1);
        let all_here = inner.claiming == 0 && inner.gathering;
        let starved = std::mem::take(&mut inner.starved);
        drop(inner);
        if all_here {
            dispatcher.flush(self.shared);
        }
        if starved {
            dispatcher.tell_room();
        }
    }
}

/// Routes and delivers for all claim loops of a pod.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    space: Space,
    pod: String,
    tally: Arc<PodTally>,
    inner: Mutex<Inner>,
    room: Notify,
    room_version: AtomicU64,
    /// Grows when a queue is served that was not.
    opened: watch::Sender<u64>,
    /// Claim loops that left something ripe behind.
    demand: AtomicU64,
    draining: AtomicBool,
}

impl Dispatcher {
    /// `sample`: how many routing decisions are kept.
    pub fn new(space: Space, pod: String, tally: Arc<PodTally>, sample: usize) -> Self {
        let inner = Inner { decisions: Sample::new(sample), ..Inner::default() };
        Self {
            space,
            pod,
            tally,
            inner: Mutex::new(inner),
            room: Notify::new(),
            room_version: AtomicU64::new(0),
            opened: watch::Sender::new(0),
            demand: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        }
    }

    /// Told when room may have become free.
    pub fn room(&self) -> &Notify {
        &self.room
    }

    /// How often room has become free.
    pub fn room_version(&self) -> u64 {
        self.room_version.load(Ordering::Acquire)
    }

    /// Notes that a claim loop has left something ripe behind, or no longer has.
    pub fn wants_room(&self, before: bool, now: bool) {
        match (before, now) {
            (false, true) => self.demand.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.demand.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Asks the executors of which little room is known for more.
    pub fn seek_room(&self, shared: &Arc<Shared>) {
        let tight: Vec<String> = {
            let inner = self.inner.lock();
            let tight = |outbox: &&Outbox| outbox.credit == 0 && !outbox.tight && !outbox.sending;
            inner.outboxes.iter().filter(tight).map(|outbox| outbox.id.to_string()).collect()
        };
        for executor in tight {
            self.replenish(shared, &executor);
        }
    }

    /// Changes when a queue is served that was not before: what stood aside may be claimed.
    pub fn opened(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }

    fn tell_room(&self) {
        self.room_version.fetch_add(1, Ordering::Release);
        self.room.notify_waiters();
    }

    /// Buckets this pod claims from.
    pub fn buckets(&self) -> Vec<u16> {
        self.inner.lock().buckets.clone()
    }

    /// Notes which buckets this pod claims from.
    pub fn owns(&self, mut buckets: Vec<u16>) {
        buckets.sort_unstable();
        self.inner.lock().buckets = buckets;
    }

    /// Takes in a new view: outboxes for new executors, none for lost ones.
    pub fn learn(&self, view: &Arc<View>) {
        let mut inner = self.inner.lock();
        let now = clock::mono();
        let mut before: HashMap<Arc<str>, Outbox> = std::mem::take(&mut inner.outboxes)
            .into_iter()
            .map(|outbox| (Arc::clone(&outbox.id), outbox))
            .collect();
        // A new one is not to be given all that the others have got already.
        let fewest = before.values().map(|outbox| outbox.given).min().unwrap_or(0);
        let same = inner.view.classes == view.classes && before.len() == view.executors.len();
        let mut kept = 0;
        let pods = view.pods.len().max(1) as u32;
        let mut outboxes = Vec::with_capacity(view.executors.len());
        for executor in &view.executors {
            let record = &executor.record;
            // What it reported, shared among the pods; the answer to the first offer corrects it.
            let free = record.capacity.saturating_sub(record.busy);
            let share = if record.draining { 0 } else { free.div_ceil(pods) };
            let mut outbox = match before.remove(record.id.as_str()) {
                Some(outbox) => {
                    kept += 1;
                    outbox
                }
                None => Outbox { credit: share, given: fewest, ..Outbox::new(executor, now) },
            };
            outbox.slots = record.slots.max(1);
            outbox.weigh(executor, now);
            if now.saturating_duration_since(outbox.heard) > FRESH_FOR && !outbox.sending {
                outbox.credit = share.saturating_sub(outbox.queued());
                outbox.spare = record.urgent_slots;
                outbox.tight = false;
            }
            outboxes.push(outbox);
        }
        inner.outboxes = outboxes;
        inner.averages.clear();
        inner.strangers.clear();
        if same && kept == view.executors.len() {
            inner.tables.all_changed();
        } else {
            inner.tables.clear();
        }
        let lost: Vec<Parcel> = before
            .into_values()
            .flat_map(|mut outbox| outbox.urgent.drain(..).chain(outbox.normal.drain(..)).collect::<Vec<_>>())
            .collect();
        let served = |view: &View, code: &u32| view.serving(*code).is_some_and(|serving| !serving.is_empty());
        let opened = inner.view.frozen_plans != view.frozen_plans
            || view.groups.keys().any(|code| served(view, code) && !served(&inner.view, code));
        inner.view = Arc::clone(view);
        inner.waiting.extend(lost);
        drop(inner);
        if opened {
            self.opened.send_modify(|count| *count += 1);
        }
        self.tell_room();
    }

    /// A claim loop has left something ripe behind for which it had no room: it waits for its turn.
    pub fn wait_turn(&self, bucket: Bucket) {
        let mut inner = self.inner.lock();
        if !inner.turns.contains(&bucket) {
            inner.turns.push_back(bucket);
        }
    }

    /// A claim loop ends.
    pub fn leave_turn(&self, bucket: Bucket) {
        self.inner.lock().turns.retain(|other| *other != bucket);
    }

    /// Whether loops wait for room.
    pub fn others_wait(&self) -> bool {
        !self.inner.lock().turns.is_empty()
    }

    /// Puts room aside for one claim, and says how much of each queue may come.
    pub fn hold<'a>(&self, shared: &'a Arc<Shared>, bucket: Bucket, most: u32) -> Hold<'a> {
        let mut inner = self.inner.lock();
        let (mut credit, mut spare) = (0, 0);
        let counted = |outbox: &&Outbox| inner.view.exclusive_in_use || !outbox.exclusive;
        for outbox in inner.outboxes.iter().filter(counted) {
            credit += outbox.credit;
            spare += outbox.spare;
        }
        let queued = inner.waiting.len() as u32;
        let free = credit.saturating_sub(inner.held + queued);
        let waiting = inner.turns.len() as u32;
        let normal = if waiting == 0 {
            // Half of what is free, rounded up: loops that claim at the same time find some as well.
            free.div_ceil(2).min(most)
        } else {
            // Each in its turn gets its part, and nothing is taken away from those before it.
            let pace = (shared.pace.per_second() * PART.as_secs_f64()) as u32;
            let part = credit.saturating_sub(queued).div_ceil(waiting).max(PART_MIN).max(pace);
            let before = inner.turns.iter().position(|other| *other == bucket);
            let before = before.map_or(waiting, |before| before as u32);
            free.saturating_sub(before.saturating_mul(part)).min(part).min(most)
        };
        if normal > 0 {
            inner.turns.retain(|other| *other != bucket);
        }
        let any = (normal + spare).min(most);
        inner.claiming += 1;
        if self.draining.load(Ordering::Relaxed) {
            return Hold {
                shared,
                any: 0,
                normal: 0,
                default_quota: Quota::Closed,
                quotas: Vec::new(),
                closed: Vec::new(),
                own_weights: Vec::new(),
                own_dispatch: Arc::default(),
                ahead_ms: 0,
                frozen_plans: Arc::clone(&inner.view.frozen_plans),
            };
        }
        inner.starved |= normal == 0 && inner.held > 0;
        inner.held += any;
        let (default_quota, quotas, closed) = quotas(&inner);
        let ahead_ms = inner.view.ahead_ms;
        let frozen_plans = Arc::clone(&inner.view.frozen_plans);
        let own_weights = inner.view.own_weights.clone();
        let own_dispatch = Arc::clone(&inner.view.own_dispatch);
        Hold {
            shared,
            any,
            normal,
            default_quota,
            quotas,
            closed,
            own_weights,
            own_dispatch,
            ahead_ms,
            frozen_plans,
        }
    }

    /// Routes what `claim` has brought and starts to send it.
    pub fn deliver(&self, shared: &Arc<Shared>, tasks: Vec<Granted>, claimed: UnixMs, claim: &Claim) {
        let now = clock::mono();
        let parcels = tasks.into_iter().map(|task| {
            let group = task.lane.group();
            let urgent = task.lane.priority().is_urgent();
            let Wishes { cost_ms, key, to, dispatch_ms } = Wishes::of(&task);
            let queues = || claim.own_dispatch.get(&group).copied().unwrap_or(claim.dispatch_ms);
            let not_after = claimed.plus(dispatch_ms.unwrap_or_else(queues));
            let own_end = dispatch_ms.map(|ms| now + clock::ms(ms));
            let offer = Offer {
                id: task.id,
                grant: task.grant,
                group,
                urgent,
                ahead: task.due > claimed,
                due: task.due,
                attempt: task.failures + 1,
                not_after,
                spec: task.spec,
            };
            let (id, grant) = (offer.id, offer.grant);
            let offer = offer.encode();
            Parcel { id, grant, group, urgent, cost_ms, key, to, own_end, since: now, offer }
        });
        self.route(shared, parcels.collect());
    }

    fn route(&self, shared: &Arc<Shared>, parcels: Vec<Parcel>) {
        let mut stranded: Vec<Parcel> = Vec::new();
        let mut inner = self.inner.lock();
        let view = Arc::clone(&inner.view);
        // A calm pod's offers leave at once: to follow the one before would only mean to wait for its executor.
        if shared.pace.gather().is_zero() {
            inner.together.part();
        }
        for mut parcel in parcels {
            let serving = view.serving(parcel.group);
            if serving.is_none_or(<[usize]>::is_empty) || parcel.is_frozen(&view) {
                if serving.is_none() {
                    inner.strangers.insert(parcel.group);
                }
                stranded.push(parcel);
                continue;
            }
            if parcel.cost_ms.is_nan() {
                parcel.cost_ms = inner.average_ms(&view, parcel.group);
            }
            let waits = inner.assign(&view, parcel);
            inner.waiting.extend(waits);
        }
        // Other claims of this moment may bring more for the same executors.
        let gather = inner.claiming > 1 && !shared.pace.gather().is_zero();
        let first = gather && !std::mem::replace(&mut inner.gathering, true);
        drop(inner);
        if first {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                tokio::time::sleep(GATHER_MAX).await;
                shared.dispatcher.flush(&shared);
            });
        } else if !gather {
            self.flush(shared);
        }
        if !stranded.is_empty() {
            let shared = Arc::clone(shared);
            tokio::spawn(async move { shared.dispatcher.strand(stranded).await });
        }
    }

    /// Starts to send what is queued.
    fn flush(&self, shared: &Arc<Shared>) {
        let mut inner = self.inner.lock();
        inner.gathering = false;
        let ready: Vec<Arc<str>> = inner
            .outboxes
            .iter_mut()
            .filter(|outbox| outbox.queued() > 0 && !outbox.sending)
            .map(|outbox| {
                outbox.sending = true;
                Arc::clone(&outbox.id)
            })
            .collect();
        drop(inner);
        for executor in ready {
            let shared = Arc::clone(shared);
            tokio::spawn(async move { shared.dispatcher.send(&shared, &executor).await });
        }
    }

    /// Tasks that nobody serves go back; their queue is then known as closed.
    async fn strand(&self, parcels: Vec<Parcel>) {
        let view = Arc::clone(&self.inner.lock().view);
        let queue_of = |parcel: &Parcel| view.groups.get(&parcel.group).map(|(group, _)| &group.queue);
        let frozen = |parcel: &&Parcel| {
            parcel.is_frozen(&view) || queue_of(parcel).is_some_and(|q| view.freeze.of_queue(q).is_some())
        };
        let now = UnixMs(self.space.clock().now_ms());
        let paused =
            |parcel: &&Parcel| queue_of(parcel).is_some_and(|q| view.queues.hold_of(q, now).is_some());
        let (held, others): (Vec<_>, Vec<_>) = parcels.iter().partition(frozen);
        let (resting, unserved): (Vec<_>, Vec<_>) = others.into_iter().partition(paused);
        let kinds = [
            (held, "frozen", "frozen"),
            (resting, "paused", "its queue is held"),
            (unserved, "no_executor", "no executor serves its queue and labels"),
        ];
        for (parcels, label, cause) in kinds {
            metric::handles().handed_back.add(label, parcels.len() as u64);
            let rows = parcels.iter().map(|parcel| (parcel.id, parcel.grant)).collect();
            hand_back(&self.space, &self.pod, cause, rows).await;
        }
        self.tally.handed_back.fetch_add(parcels.len() as u64, Ordering::Relaxed);
    }

    /// Sends what is queued for one executor, batch after batch, until nothing is.
    async fn send(&self, shared: &Arc<Shared>, executor: &str) {
        loop {
            let Some((urgent, normal, want, epoch)) = self.load(executor) else { return };
            let sent = clock::mono();
            let answer = self.offer_with_repeats(executor, &urgent, &normal, want, epoch).await;
            self.sent(shared, executor, sent, urgent, normal, want, answer);
        }
    }

    /// The next batch for an executor, the room wanted afterwards, and the freeze it was made under; nothing when its
    /// outbox is empty.
    fn load(&self, executor: &str) -> Option<(Vec<Parcel>, Vec<Parcel>, u32, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.view.freeze.epoch;
        let want = if self.demand.load(Ordering::Relaxed) > 0 { want(&inner.view, executor) } else { 0 };
        let outbox = inner.outbox(executor)?;
        let mut bytes = 0;
        let mut take = |queue: &mut VecDeque<Parcel>, room: usize| {
            let mut out = Vec::new();
            while out.len() < room {
                let Some(head) = queue.front() else { break };
                if bytes > 0 && bytes + head.offer.len() > limits::CALL_MAX_BYTES {
                    break;
                }
                bytes += head.offer.len();
                out.extend(queue.pop_front());
            }
            out
        };
        let urgent = take(&mut outbox.urgent, limits::BATCH_MAX_ROWS);
        let normal = take(&mut outbox.normal, limits::BATCH_MAX_ROWS - urgent.len());
        if urgent.is_empty() && normal.is_empty() && !outbox.ask {
            outbox.sending = false;
            return None;
        }
        outbox.ask = false;
        Some((urgent, normal, want, epoch))
    }

    async fn offer_with_repeats(
        &self,
        executor: &str,
        urgent: &[Parcel],
        normal: &[Parcel],
        want: u32,
        epoch: u64,
    ) -> Result<OfferAnswer, StoreError> {
        let offers =
            |parcels: &[Parcel]| parcels.iter().map(|parcel| parcel.offer.clone()).collect::<Vec<_>>();
        let (urgent, normal) = (offers(urgent), offers(normal));
        let mut repeats = 0;
        loop {
            match member::offer(&self.space, &self.pod, executor, &urgent, &normal, want, epoch).await {
                // Only the same executor may be asked again: it drops what it has seen.
                Err(error) if error.is_retryable() && repeats < OFFER_REPEATS_MAX => {
                    repeats += 1;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..=50 * u64::from(repeats))))
                        .await;
                }
                answer => return answer,
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the whole of one exchange")]
    fn sent(
        &self,
        shared: &Arc<Shared>,
        executor: &str,
        at: Instant,
        mut urgent: Vec<Parcel>,
        mut normal: Vec<Parcel>,
        want: u32,
        answer: Result<OfferAnswer, StoreError>,
    ) {
        tracing::trace!(executor, urgent = urgent.len(), normal = normal.len(), want, ?answer, "offered");
        let metrics = metric::handles();
        metrics.offers.increment(1);
        let mut back = Vec::new();
        let mut inner = self.inner.lock();
        match answer {
            Ok(OfferAnswer::Accepted { urgent: u, normal: n, reserved, free, spare }) => {
                back.extend(urgent.drain(u.min(urgent.len())..));
                back.extend(normal.drain(n.min(normal.len())..));
                let accepted = (urgent.len() + normal.len()) as u64;
                let to: Arc<str> = executor.into();
                let fit = NOTES_MAX.saturating_sub(urgent.len() + normal.len());
                while inner.offered.len() > fit {
                    inner.offered.pop_front();
                }
                for parcel in urgent.iter().chain(&normal) {
                    if inner.wished.iter().any(|(_, wished)| *wished == parcel.id) {
                        let (space, to, id) = (self.space.clone(), Arc::clone(&to), parcel.id);
                        tokio::spawn(async move {
                            let _ = member::tell_executor(&space, &to, format!("c{id}").as_bytes()).await;
                        });
                    }
                    let (id, grant, own_end) = (parcel.id, parcel.grant, parcel.own_end);
                    inner.offered.push_back(Offered { at, id, grant, to: Arc::clone(&to), own_end });
                }
                metrics.offered_tasks.increment(accepted);
                self.tally.offered.fetch_add(accepted, Ordering::Relaxed);
                // What nobody has reserved is there for all pods: each counts on its share.
                let pods = inner.view.pods.len().max(1) as u32;
                if let Some(outbox) = inner.outbox(executor) {
                    outbox.credit = (reserved + free.div_ceil(pods)).saturating_sub(outbox.queued());
                    outbox.spare = spare.saturating_sub(outbox.urgent.len() as u32);
                    outbox.idle = outbox.idle.min(reserved + free);
                    outbox.healthy = true;
                    outbox.heard = at;
                    outbox.tight = reserved < low(want);
                }
            }
            Ok(OfferAnswer::Gone) => {
                back.append(&mut urgent);
                back.append(&mut normal);
                if let Some(outbox) = inner.outbox(executor) {
                    back.extend(outbox.urgent.drain(..).chain(outbox.normal.drain(..)));
                    (outbox.credit, outbox.spare, outbox.heard) = (0, 0, at);
                    outbox.healthy = false;
                }
            }
            // The news of the freeze is on its way; then they are routed anew or go back.
            Ok(OfferAnswer::Frozen) => inner.waiting.extend(urgent.drain(..).chain(normal.drain(..))),
            Err(error) if !error.fate_unknown() => {
                // None of them was sent: they are routed anew when the executor is heard of again.
                if let Some(more) = shared.complaints.tell("offer", clock::mono()) {
                    let tasks = urgent.len() + normal.len();
                    tracing::warn!(executor, %error, tasks, more_like_it = more, "offer was not sent; trying again");
                }
                shared.ready.failing(clock::mono(), format!("offer: {error}"));
                back.append(&mut urgent);
                back.append(&mut normal);
                if let Some(outbox) = inner.outbox(executor) {
                    (outbox.credit, outbox.heard) = (0, at);
                    outbox.healthy = false;
                }
            }
            Err(error) => {
                // They may lie in the inbox already: nobody else may get them under this grant.
                // Whatever did not arrive comes back by its dispatch time-out.
                if let Some(more) = shared.complaints.tell("lost offer", clock::mono()) {
                    let tasks = urgent.len() + normal.len();
                    tracing::warn!(executor, %error, tasks, more_like_it = more, "offer got no answer; its tasks come back by their time-out");
                }
                shared.ready.failing(clock::mono(), format!("offer: {error}"));
                if let Some(outbox) = inner.outbox(executor) {
                    (outbox.credit, outbox.heard) = (0, at);
                    outbox.healthy = false;
                }
            }
        }
        for parcel in &back {
            if let Some(outbox) = inner.outbox(executor) {
                outbox.load_ms = (outbox.load_ms - parcel.cost_ms).max(0.0);
            }
        }
        inner.touched(executor);
        drop(inner);
        if !back.is_empty() {
            self.route(shared, back);
        }
        self.reroute(shared);
        self.tell_room();
    }

    /// Asks an executor for room, with the next offer or without one.
    fn replenish(&self, shared: &Arc<Shared>, executor: &str) {
        {
            let mut inner = self.inner.lock();
            let Some(outbox) = inner.outbox(executor) else { return };
            outbox.ask = true;
            if outbox.sending {
                return;
            }
            outbox.sending = true;
        }
        let (shared, executor) = (Arc::clone(shared), executor.to_owned());
        tokio::spawn(async move {
            shared.dispatcher.send(&shared, &executor).await;
        });
    }

    /// Routes once more what found no room, and hands back what has waited too long.
    fn reroute(&self, shared: &Arc<Shared>) {
        let waiting: Vec<Parcel> = self.inner.lock().waiting.drain(..).collect();
        if waiting.is_empty() {
            return;
        }
        let (late, again): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|parcel| parcel.since.elapsed() > WAIT_MAX);
        if !late.is_empty() {
            let shared = Arc::clone(shared);
            tokio::spawn(async move { shared.dispatcher.give_back(late, "no executor had room").await });
        }
        self.route(shared, again);
    }

    /// Notes in Redis where tasks lie that were offered a while ago. Most have ended by then, and cost a look.
    async fn note(&self) {
        let mut by_bucket: HashMap<Bucket, Vec<(StartRow, Arc<str>)>> = HashMap::new();
        {
            let mut inner = self.inner.lock();
            let now = clock::mono();
            while inner.offered.front().is_some_and(|one| now >= one.at + NOTE_AFTER) {
                if let Some(Offered { id, grant, to, own_end, .. }) = inner.offered.pop_front() {
                    let left = |end: Instant| end.saturating_duration_since(now).as_millis().max(1) as i64;
                    let row = StartRow { id, grant, lease_ms: own_end.map_or(0, left) };
                    by_bucket.entry(id.bucket()).or_default().push((row, to));
                }
            }
        }
        for (bucket, rows) in by_bucket {
            for piece in rows.chunks(limits::BATCH_MAX_ROWS) {
                let rows: Vec<(StartRow, &str)> = piece.iter().map(|(row, to)| (*row, &**to)).collect();
                if let Err(error) = run::offer(&self.space, bucket, &self.pod, &rows).await {
                    tracing::debug!(%bucket, %error, "could not note offers");
                }
            }
        }
    }

    /// A sample of the routing decisions so far, and how many there were.
    pub fn decisions(&self) -> (Vec<Decision>, u64) {
        let inner = self.inner.lock();
        (inner.decisions.kept(), inner.decisions.seen())
    }

    /// Tells the executor that was just given this task that somebody wishes it to stop. Redis does not know yet
    /// where it is. A hint: the flag of its grant is the truth.
    async fn pass_on_cancel(&self, id: TaskId) {
        let to = {
            let mut inner = self.inner.lock();
            while inner.wished.len() >= WISHES_MAX
                || inner.wished.front().is_some_and(|(at, _)| at.elapsed() > WISH_KEPT)
            {
                inner.wished.pop_front();
            }
            inner.wished.push_back((clock::mono(), id));
            inner.offered.iter().rev().find(|one| one.id == id).map(|one| Arc::clone(&one.to))
        };
        if let Some(to) = to {
            let _ = member::tell_executor(&self.space, &to, format!("c{id}").as_bytes()).await;
        }
    }

    async fn give_back(&self, parcels: Vec<Parcel>, cause: &str) {
        metric::handles().handed_back.add("no_room", parcels.len() as u64);
        self.tally.handed_back.fetch_add(parcels.len() as u64, Ordering::Relaxed);
        let rows = parcels.iter().map(|parcel| (parcel.id, parcel.grant)).collect();
        hand_back(&self.space, &self.pod, cause, rows).await;
    }

    /// Hands back everything that is not in an inbox yet.
    pub async fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        let parcels: Vec<Parcel> = {
            let mut inner = self.inner.lock();
            let mut all: Vec<Parcel> = inner.waiting.drain(..).collect();
            for outbox in &mut inner.outboxes {
                all.extend(outbox.urgent.drain(..).chain(outbox.normal.drain(..)));
            }
            all
        };
        if !parcels.is_empty() {
            self.give_back(parcels, "its pod stopped").await;
        }
        // Offers under way end within their time-out.
        while self.inner.lock().outboxes.iter().any(|outbox| outbox.sending) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Room this pod wants at an executor: its capacity, shared among the pods that are busy.
fn want(view: &View, executor: &str) -> u32 {
    let found = view.executors.binary_search_by(|e| e.record.id.as_str().cmp(executor));
    found.map_or(0, |at| view.executors[at].record.capacity.div_ceil(view.busy_pods.max(1) as u32))
}

/// Below this room a pod wants to hear when there is more.
fn low(want: u32) -> u32 {
    want.div_ceil(4)
}

/// How much of each queue there is room for: the commonest figure as default, the others as exceptions. Where these
/// are too many, the closed ones are answered apart: they must not fall under the default, nor the others under a
/// default of nothing.
fn quotas(inner: &Inner) -> (Quota, Vec<(u32, Quota)>, Vec<u32>) {
    let view = &inner.view;
    let mut by_kind: HashMap<(Class, Policy), (Quota, usize)> = HashMap::new();
    let rooms = |class: Class, policy: Policy| {
        let serving = &view.classes[class.0];
        if serving.is_empty() {
            return Quota::Closed;
        }
        let (normal, spare) = policy.room(
            serving
                .iter()
                .map(|at| inner.outboxes.get(*at).map_or((0, 0), |outbox| (outbox.credit, outbox.spare))),
        );
        Quota::Open { any: normal + spare, normal }
    };
    for (code, (_, class)) in &view.groups {
        let kind = (*class, view.policy(*code));
        by_kind.entry(kind).or_insert_with(|| (rooms(kind.0, kind.1), 0)).1 += 1;
    }
    let of = |code: &u32, class: Class| {
        by_kind.get(&(class, view.policy(*code))).map_or(Quota::Closed, |kind| kind.0)
    };
    let common = |open_only: bool| {
        let kinds = by_kind.iter().filter(|(_, (quota, _))| !open_only || *quota != Quota::Closed);
        let common = kinds.max_by_key(|(kind, (_, count))| (*count, **kind));
        common.map_or(Quota::Closed, |(_, (quota, _))| *quota)
    };
    let others = |default: Quota| {
        let all = view.groups.iter().map(|(code, (_, class))| (*code, of(code, *class)));
        let strangers = inner.strangers.iter().filter(|code| !view.groups.contains_key(code));
        let all = all.chain(strangers.map(|code| (*code, Quota::Closed)));
        let mut out: Vec<(u32, Quota)> = all.filter(|(_, quota)| *quota != default).collect();
        out.sort_unstable_by_key(|(code, quota)| (*quota != Quota::Closed, *code));
        out
    };
    let default = common(false);
    let out = others(default);
    if out.len() <= limits::QUOTAS_MAX {
        return (default, out, Vec::new());
    }
    let default = common(true);
    let (closed, mut open): (Vec<_>, Vec<_>) =
        others(default).into_iter().partition(|(_, quota)| *quota == Quota::Closed);
    open.truncate(limits::QUOTAS_MAX);
    (default, open, closed.into_iter().map(|(code, _)| code).collect())
}

/// What a task says itself about its way.
struct Wishes {
    /// Not a number where it names none.
    cost_ms: f64,
    /// Hash of its routing key.
    key: Option<u64>,
    /// The executor that it is for.
    to: Option<Box<str>>,
    /// Longest time from hand-out to start.
    dispatch_ms: Option<i64>,
}

impl Wishes {
    fn of(task: &Granted) -> Self {
        let none = Self { cost_ms: f64::NAN, key: None, to: None, dispatch_ms: None };
        if task.spec.get(1).is_none_or(|flags| flags & spec::EXTRAS == 0) {
            return none;
        }
        let Ok(spec) = Spec::decode(&task.spec, task.id.home().start()) else { return none };
        Self {
            cost_ms: spec.extras.cost_ms.map_or(f64::NAN, f64::from),
            key: spec.extras.routing_key.as_deref().map(|key| xxh3_64(key.as_bytes())),
            to: spec.extras.part.map(|part| part.to.into_boxed_str()),
            dispatch_ms: spec.extras.dispatch_ms.map(i64::from),
        }
    }
}

/// Hears of room, and looks after what waits, until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut wakes = member::room_wakes(&shared.space, &shared.settings.id);
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let executor = tokio::select! {
            () = stop.cancelled() => return,
            wake = wakes.recv() => match wake {
                Some(wake) => String::from_utf8_lossy(&wake.payload).into_owned(),
                None => return,
            },
            _ = look.tick() => {
                shared.dispatcher.reroute(&shared);
                shared.dispatcher.note().await;
                let tight: Vec<String> = {
                    let inner = shared.dispatcher.inner.lock();
                    let old = |outbox: &Outbox| outbox.tight && !outbox.sending && outbox.heard.elapsed() > Duration::from_secs(1);
                    inner.outboxes.iter().filter(|outbox| old(outbox)).map(|outbox| outbox.id.to_string()).collect()
                };
                for executor in tight {
                    shared.dispatcher.replenish(&shared, &executor);
                }
                continue;
            }
        };
        if let Some(id) = executor.strip_prefix(member::CANCEL_MARK) {
            if let Some(id) = TaskId::from_bytes(id.as_bytes()) {
                shared.dispatcher.pass_on_cancel(id).await;
            }
            continue;
        }
        if !executor.is_empty() {
            tracing::trace!(executor, "room");
            shared.dispatcher.replenish(&shared, &executor);
        }
    }
}
