//! Room: claim loops wait for their turn, and hold a part of it for what they claim.

use super::outbox::Outbox;
use super::{Dispatcher, Inner};
use crate::limits;
use crate::model::route::Policy;
use crate::model::{Bucket, PlanName};
use crate::pod::Shared;
use crate::pod::view::Class;
use crate::store::due::Quota;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Where several loops wait for room each gets at least so much in its turn: a claim of one costs Redis as much as
/// one of some.
const PART_MIN: u32 = 2;
/// And what this pod claims in so long: where tasks are short a claim of many costs a fraction of several of few, and
/// the others' turn comes soon all the same.
const PART: Duration = Duration::from_millis(4);

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

impl Dispatcher {
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

    /// Changes when a queue is served that was not before: what stood aside may be claimed.
    pub fn opened(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }

    pub(super) fn tell_room(&self) {
        self.room_version.fetch_add(1, Ordering::Release);
        self.room.notify_waiters();
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
