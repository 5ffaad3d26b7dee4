//! One task that this executor holds, from its arrival on, and the memory of those that ended.

use super::queue::Route;
use crate::executor::handler::Signal;
use crate::executor::link::Offer;
use crate::limits;
use crate::model::{ExecutionId, Spec, UnixMs};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A lease is taken for lost this long before its end, or an eighth of the lease if that is less:
/// a handler needs a moment to stop.
pub(super) const LAPSE_MARGIN: Duration = Duration::from_millis(250);
/// Executions remembered after they ended, in each of two generations: an offer that comes a second
/// time is not run a second time. At 50,000 a second it covers a third of a second, which is more
/// than a repeated push takes.
pub(super) const RECENT_MAX: usize = 16_384;
/// Never: a time to act that does not come.
pub(super) const FAR: Duration = Duration::from_secs(86_400);

/// An offer that was taken and understood.
pub(in crate::executor) struct Arrived {
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

    pub fn cost_ms(&self) -> f64 {
        let own = self.spec.extras.cost_ms.map(f64::from);
        own.or_else(|| self.route.queue.average_ms()).unwrap_or(0.0)
    }
}

/// Which kind of slot a task takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) enum Pool {
    /// For all.
    Normal,
    /// Only for P0 and P1.
    Urgent,
}

/// A task that has a slot.
pub(in crate::executor) struct Job {
    pub task: Arrived,
    pub signal: Arc<Signal>,
    /// The grant may have lapsed: a `start` must be accepted before the handler runs.
    pub must_ask: bool,
    /// The journal says already that its handler is entered.
    pub begun: bool,
}

/// The answer to a `start` that had to come before the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) enum Verdict {
    Go,
    Cancelled,
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Running,
    Done,
}

pub(super) struct Held {
    pub phase: Phase,
    /// A `start` was accepted.
    pub started: bool,
    pub urgent: bool,
    /// It waits for its time, not for a slot.
    pub early: bool,
    /// Somebody asked for it to be cancelled while it waited.
    pub cancelled: bool,
    pub lease: Duration,
    /// What waits is renewed for so long: what was left of its dispatch time-out when it came.
    pub dispatch: Duration,
    pub cost_ms: f64,
    pub good_until: Instant,
    /// When the keeper must act.
    pub act_at: Instant,
    pub signal: Option<Arc<Signal>>,
    pub asked: Option<oneshot::Sender<Verdict>>,
}

impl Held {
    /// What waits is renewed a third of its time-out before that ends, so that two renewals may fail.
    pub fn renew_at(&self) -> Option<Instant> {
        self.good_until.checked_sub(self.dispatch / 3)
    }

    pub fn lapse_margin(&self) -> Duration {
        LAPSE_MARGIN.min(self.lease / 8)
    }
}

/// Ids of executions that ended lately: two generations, so that it is bounded without a queue.
#[derive(Default)]
pub(in crate::executor) struct Recent {
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

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub fn has(&self, execution: &ExecutionId) -> bool {
        let mark = Self::mark(execution);
        self.young.contains(&mark) || self.old.contains(&mark)
    }
}
