//! From a grant to an inbox: room at executors, routing, offers.
//!
//! The pod knows how much room each executor has left for it: what it has reserved there, kept
//! current by the answer to each offer, or, where it has offered nothing lately, what the executor
//! reported. A claim first *holds* a part of that room, so that what it brings can be delivered.

mod notes;
mod offers;
mod outbox;
mod room;

use self::notes::Notes;
use self::outbox::{Outbox, Parcel, Wishes};
use super::tables::Tables;
use super::view::View;
use super::{PodTally, Shared};
use crate::clock;
use crate::metric;
use crate::model::route::record::{Decision, SEATS_RECORDED_MAX, Sample};
use crate::model::route::{Policy, Together, Work};
use crate::model::{Bucket, TaskId, UnixMs};
use crate::store::Space;
use crate::store::due::{Claim, Granted, hand_back};
use crate::store::member::{self, Offer, RESERVATION_MS};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

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
    notes: Notes,
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

    /// A sample of the routing decisions so far, and how many there were.
    pub fn decisions(&self) -> (Vec<Decision>, u64) {
        let inner = self.inner.lock();
        (inner.decisions.kept(), inner.decisions.seen())
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
