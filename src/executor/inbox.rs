//! The one loop that takes offers out of this executor's inbox.
//!
//! A take does two things in one round trip: it fetches offers, and it tells pods how much room
//! there is. So it is sent when something was put into the inbox, when slots run dry, and when pods
//! believe that there is less room than there is; as seldom as that allows, since a call that
//! travels alone costs Redis more than a task's whole life in a batch.

use super::hands::{Arrived, Queue, Route, View};
use super::link::{Link, Offer, Outcome, Take, Taken, Wake, Wakes};
use super::runner::Core;
use crate::limits;
use crate::model::{ExecutionId, Grant, Spec, TaskId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room that pods do not know of is told after at most this time when they believe there is little left.
const TELL_SOON: Duration = Duration::from_millis(5);
/// The same when they know of room enough.
const TELL_LATER: Duration = Duration::from_millis(100);
/// Shortest time between two takes, so that a trickle of wake-ups comes in batches. Pods that are busy gather
/// themselves; of a calm one's tasks the second waits for this.
const SPACING: Duration = Duration::from_millis(1);
/// Pods that wait for room here, remembered until there is some.
const HUNGRY_MAX: usize = 1_024;
/// A queue without a handler here, offered by mistake: the task is tried again this much later, elsewhere.
pub(super) const MISDIRECTED_MS: i64 = 5_000;
/// How long an offer that cannot be understood now may be tried to be handed back.
const HAND_BACK_PATIENCE: Duration = Duration::from_secs(5);

/// What the loop knows beside the table.
#[derive(Debug, Clone)]
struct Known {
    /// Something was put into the inbox, or was left in it.
    waiting: bool,
    /// Something urgent was put into the inbox.
    urgent: bool,
    /// In hand at the last take, with what it brought.
    told: u32,
    /// Room that pods believe in: what the last take left.
    believed: u32,
    /// Pods wait for room.
    hungry: bool,
    /// Since when there has been room that pods do not know of.
    freed_at: Option<Instant>,
    last: Instant,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Take,
    /// Wait until then, or until at most this many are in hand.
    Wait(Instant, Option<u32>),
}

/// Decides: take now, or wait for what.
fn decide(known: &Known, view: &View, now: Instant) -> Next {
    let poll = known.last + crate::clock::ms(limits::POLL_MS);
    let freed = known.told.saturating_sub(view.held);
    if view.room + view.urgent_room == 0 {
        return Next::Wait(
            poll.max(now + crate::clock::ms(limits::POLL_MS)),
            Some(view.held.saturating_sub(1)),
        );
    }
    let batch = (view.capacity / 4).max(1);
    let mut at = poll;
    if known.waiting {
        // Idle slots do not wait; busy ones let a batch gather.
        let idle = view.idle > 0 || (known.urgent && view.urgent_room > 0);
        at = at.min(known.last + if idle { SPACING } else { TELL_SOON });
    }
    if freed > 0 {
        let since = known.freed_at.unwrap_or(now);
        let scarce = known.hungry || known.believed < batch;
        at = at.min(since + if scarce { TELL_SOON } else { TELL_LATER });
        if freed >= batch || (scarce && view.running == 0) {
            at = at.min(known.last + SPACING);
        }
    }
    if at <= now {
        return Next::Take;
    }
    let level = if freed == 0 { known.told.saturating_sub(1) } else { known.told.saturating_sub(batch) };
    Next::Wait(at, (level < view.held).then_some(level))
}

/// Which handler serves what.
pub(super) struct Queues {
    known: parking_lot::Mutex<HashMap<String, Arc<Queue>>>,
    any: Option<super::handler::Handler>,
}

impl Queues {
    pub fn new(named: HashMap<String, Arc<Queue>>, any: Option<super::handler::Handler>) -> Self {
        Self { known: parking_lot::Mutex::new(named), any }
    }

    fn of(&self, name: &crate::model::QueueName) -> Arc<Queue> {
        self.meet(name).0
    }

    /// A queue, and whether it was not met before.
    pub fn meet(&self, name: &crate::model::QueueName) -> (Arc<Queue>, bool) {
        let mut known = self.known.lock();
        if let Some(queue) = known.get(name.as_str()) {
            return (Arc::clone(queue), false);
        }
        let queue = Arc::new(Queue::new(name.clone(), self.any.clone()));
        known.insert(name.to_string(), Arc::clone(&queue));
        (queue, true)
    }

    /// The queues that were met so far.
    pub fn all(&self) -> Vec<Arc<Queue>> {
        self.known.lock().values().cloned().collect()
    }

    /// Moving averages of the run times, in ms.
    pub fn averages(&self) -> Vec<(String, f64)> {
        let known = self.known.lock();
        let mut all: Vec<_> =
            known.iter().filter_map(|(name, queue)| Some((name.clone(), queue.average_ms()?))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// Takes until this executor closes. Answers what came too late to be taken in; it must be handed back.
pub(super) async fn run<L: Link>(core: Arc<Core<L>>, queues: Arc<Queues>) -> Vec<(TaskId, Grant)> {
    let mut wakes = core.link.wakes();
    let mut routes = HashMap::<u32, Route>::new();
    let mut hungry = BTreeSet::<String>::new();
    let mut failures = 0u32;
    let now = core.link.mono();
    let mut known = Known {
        waiting: true,
        urgent: false,
        told: 0,
        believed: 0,
        hungry: false,
        freed_at: None,
        last: now,
    };
    known.last = now.checked_sub(SPACING).unwrap_or(now);
    while !core.closing.is_cancelled() {
        let (view, now) = (core.hands.view(), core.link.mono());
        if view.held < known.told && known.freed_at.is_none() {
            known.freed_at = Some(now);
        }
        if let Next::Wait(until, level) = decide(&known, &view, now) {
            let watched = level.is_none_or(|level| core.hands.notify_at(level));
            if watched {
                tokio::select! {
                    () = core.closing.cancelled() => {}
                    wake = wakes.recv() => match wake {
                        Wake::Inbox => known.waiting = true,
                        Wake::Urgent => (known.waiting, known.urgent) = (true, true),
                        Wake::Cancel(id) => core.ask_at_once(id),
                        Wake::Freeze => give_back_frozen(&core),
                    },
                    () = core.hands.room.notified() => {}
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
            continue;
        }
        let normal = view.room.min(limits::BATCH_MAX_ROWS as u32);
        let urgent = view.urgent_room.min(limits::BATCH_MAX_ROWS as u32 - normal);
        let ask = Take {
            normal,
            urgent,
            in_hand: view.in_hand,
            capacity: view.capacity,
            urgent_capacity: view.urgent_capacity,
        };
        known.last = now;
        match core.link.take(ask).await {
            Ok(Taken { offers, waiting, hungry: told, .. }) => {
                if failures > 0 {
                    tracing::info!(failures, "the inbox is heard again");
                    failures = 0;
                }
                let count = u32::try_from(offers.len()).unwrap_or(u32::MAX);
                (known.waiting, known.urgent) = (waiting > 0, false);
                known.believed =
                    view.capacity.saturating_sub(view.in_hand.saturating_add(count).saturating_add(waiting));
                hungry.extend(told);
                while hungry.len() > HUNGRY_MAX {
                    hungry.pop_last();
                }
                if known.believed > 0 && !hungry.is_empty() {
                    tell(&core, std::mem::take(&mut hungry));
                }
                known.hungry = !hungry.is_empty();
                if !offers.is_empty()
                    && let Err(back) = take_in(&core, &queues, &mut routes, offers).await
                {
                    return back;
                }
                known.told = view.held + count;
                known.freed_at = None;
            }
            Err(error) => {
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(failures, %error, "could not take from the inbox; trying again");
                }
                // What the lost answer held comes back at the dispatch time-out.
                known.waiting = true;
                tokio::select! {
                    () = core.closing.cancelled() => {}
                    () = tokio::time::sleep(super::backoff(failures)) => {}
                }
            }
        }
    }
    Vec::new()
}

/// What has not started of a frozen queue goes back. A hint brings us here; pods recall the inbox meanwhile.
fn give_back_frozen<L: Link>(core: &Arc<Core<L>>) {
    let core = Arc::clone(core);
    tokio::spawn(async move {
        match core.link.frozen().await {
            Ok(freeze) => {
                let back = core.hands.withdraw(|queue, plan| freeze.of_task(queue, plan).is_some());
                core.release("frozen", back, HAND_BACK_PATIENCE).await;
            }
            Err(error) => tracing::warn!(%error, "could not look up what is frozen"),
        }
    });
}

/// Tells pods that there is room; hints, so nobody waits for it.
fn tell<L: Link>(core: &Arc<Core<L>>, pods: BTreeSet<String>) {
    let core = Arc::clone(core);
    tokio::spawn(async move {
        for pod in &pods {
            core.link.tell_room(pod).await;
        }
    });
}

/// Reads offers and gives them to slots. Once this executor is closed, they come back as an error.
async fn take_in<L: Link>(
    core: &Arc<Core<L>>,
    queues: &Queues,
    routes: &mut HashMap<u32, Route>,
    offers: Vec<Offer>,
) -> Result<(), Vec<(TaskId, Grant)>> {
    let (now, now_ms) = (core.link.mono(), core.link.now_us().div_euclid(1_000));
    let mut tasks = Vec::with_capacity(offers.len());
    let mut unknown = Vec::new();
    for offer in offers {
        let execution = ExecutionId { id: offer.id, grant: offer.grant };
        let route = match routes.get(&offer.group) {
            Some(route) => route.clone(),
            None => match core.link.group(offer.group).await {
                Ok(group) => {
                    let route = Route { queue: queues.of(&group.queue), labels: Arc::new(group.labels) };
                    routes.insert(offer.group, route.clone());
                    route
                }
                Err(error) => {
                    tracing::warn!(%execution, group = offer.group, %error, "could not look up the queue of an offer");
                    unknown.push((offer.id, offer.grant));
                    continue;
                }
            },
        };
        if route.queue.handler.is_none() {
            let queue = &route.queue.name;
            tracing::warn!(%execution, %queue, "offered a task of a queue without a handler here");
            let error = format!("executor {} has no handler for queue {queue}", core.id);
            core.refuse(execution, Outcome::RetryAfter { ms: MISDIRECTED_MS, counted: false, error }).await;
            continue;
        }
        match Spec::decode(&offer.spec, offer.id.home().start()) {
            Ok(spec) => {
                let due = offer.ahead.then(|| core.link.surely_at(offer.id.bucket(), offer.due)).flatten();
                tasks.push(Arrived::new(&offer, spec, route, now, now_ms, due));
            }
            Err(error) => {
                tracing::error!(%execution, %error, "a task cannot be read");
                core.refuse(execution, Outcome::Fatal { error: error.to_string() }).await;
            }
        }
    }
    let taken = core.hands.arrive(tasks);
    if let Err(mut back) = taken {
        back.append(&mut unknown);
        return Err(back);
    }
    core.launch();
    core.release("unknown queue", unknown, HAND_BACK_PATIENCE).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn view(held: u32, idle: u32) -> View {
        View {
            held,
            in_hand: held,
            capacity: 40,
            urgent_capacity: 0,
            room: 40 - held,
            urgent_room: 0,
            idle,
            running: held.min(8),
        }
    }

    #[test]
    fn it_takes_when_there_is_reason_and_not_before() {
        let start = crate::clock::mono();
        let quiet = Known {
            waiting: false,
            urgent: false,
            told: 8,
            believed: 32,
            hungry: false,
            freed_at: None,
            last: start,
        };
        let at = |known: &Known, view: &View, after: u64| decide(known, view, start + ms(after));
        // Nothing happens: the poll.
        assert_eq!(at(&quiet, &view(8, 0), 10), Next::Wait(start + ms(1_000), Some(7)));
        assert_eq!(at(&quiet, &view(8, 0), 1_000), Next::Take);
        // Something came and slots are idle: at once, but for the spacing.
        let woken = Known { waiting: true, ..quiet.clone() };
        assert_eq!(at(&woken, &view(8, 3), 0), Next::Wait(start + ms(1), Some(7)));
        assert_eq!(at(&woken, &view(8, 3), 1), Next::Take);
        // No slot is idle: a batch gathers.
        assert_eq!(at(&woken, &view(8, 0), 2), Next::Wait(start + ms(5), Some(7)));
        // Unless it is urgent, and a slot for such ones is idle.
        let urgent = Known { urgent: true, ..woken.clone() };
        assert_eq!(at(&urgent, &view(8, 0), 2), Next::Wait(start + ms(5), Some(7)));
        assert_eq!(at(&urgent, &View { urgent_room: 1, ..view(8, 0) }, 2), Next::Take);
        // Room that nobody misses is told later, room that somebody waits for soon.
        let freed = Known { freed_at: Some(start + ms(10)), ..quiet.clone() };
        assert_eq!(at(&freed, &view(5, 0), 10), Next::Wait(start + ms(110), Some(0)));
        let hungry = Known { hungry: true, ..freed.clone() };
        assert_eq!(at(&hungry, &view(5, 0), 10), Next::Wait(start + ms(15), Some(0)));
        let scarce = Known { believed: 0, told: 40, ..freed };
        assert_eq!(at(&scarce, &view(35, 0), 10), Next::Wait(start + ms(15), Some(30)));
        assert_eq!(at(&scarce, &view(30, 0), 10), Next::Take, "a quarter of the capacity is a batch");
        // No room at all: until there is some.
        assert_eq!(at(&woken, &view(40, 0), 50), Next::Wait(start + ms(1_050), Some(39)));
    }

    proptest! {
        /// It never waits for longer than the poll, never for a level that is reached already, and never
        /// takes sooner than the spacing allows.
        #[test]
        fn it_neither_spins_nor_sleeps_in(
            waiting: bool, urgent: bool, hungry: bool, freed: bool, told in 0u32..50, believed in 0u32..50,
            held in 0u32..50, idle in 0u32..9, running in 0u32..9, after in 0u64..2_000, capacity in 1u32..50,
        ) {
            let start = crate::clock::mono();
            let now = start + ms(after);
            let freed_at = freed.then_some(start);
            let known = Known { waiting, urgent, told, believed, hungry, freed_at, last: start };
            let room = capacity.saturating_sub(held);
            let view = View { held, in_hand: held, capacity, urgent_capacity: 0, room, urgent_room: 0, idle, running };
            match decide(&known, &view, now) {
                Next::Take => prop_assert!(room > 0 && after >= 1),
                Next::Wait(until, level) => {
                    prop_assert!(until > now && until <= now + ms(1_000));
                    prop_assert!(level.is_none_or(|level| level < held || held == 0));
                }
            }
        }
    }
}
