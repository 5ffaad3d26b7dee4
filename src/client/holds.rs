//! What holds queues back, and how that is said.

use crate::model::queue::{Hold, LimitOwner};
use crate::model::{PlanName, QueueName, QueueTable, Tier, UnixMs};
use crate::store::queue::{self, BreakerState, BreakerView, Freeze};
use crate::store::{Space, StoreError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What holds queues back at a moment.
#[derive(Debug, Clone, Default)]
pub struct Holds {
    /// What is frozen.
    pub freeze: Freeze,
    /// What is set for queues.
    pub queues: Arc<QueueTable>,
    breakers: BTreeMap<LimitOwner, Breaker>,
    now: UnixMs,
}

#[derive(Debug, Clone)]
struct Breaker {
    view: BreakerView,
    forced: bool,
    fresh: bool,
}

/// A breaker as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct BreakerStatus {
    /// Whose it is: `queue push`, `downstream apns`.
    pub owner: String,
    /// How it stands: `closed`, `open` or `half_open`.
    #[schema(value_type = String)]
    pub state: BreakerState,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::query::time_text")]
    #[schema(value_type = Option<String>)]
    pub since: Option<UnixMs>,
    /// Why.
    pub reason: String,
    /// Whether someone has set it by hand.
    pub forced: bool,
    /// All of that in a sentence.
    pub text: String,
}

/// A queue of which nothing is claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct HeldQueue {
    /// The queue.
    pub queue: String,
    /// Why, since when, and by whom.
    pub why: String,
}

impl Holds {
    /// Reads them as they stand now.
    pub async fn read(space: &Space) -> Result<Self, StoreError> {
        let (freeze, queues) = (queue::frozen(space).await?, queue::refresh(space).await?);
        let mut breakers = BTreeMap::new();
        let own = queues.queues.iter().filter_map(|(queue, settings)| {
            Some((LimitOwner::Queue(queue.clone()), settings.limits.as_ref()?))
        });
        let shared = queues.downstreams.iter();
        let shared = shared.map(|(name, settings)| (LimitOwner::Downstream(name.clone()), &settings.limits));
        for (owner, limits) in own.chain(shared) {
            let forced = limits.forced.as_ref();
            let view = match (forced, limits.breaker) {
                (Some(forced), _) => BreakerView {
                    state: if forced.open { BreakerState::Open } else { BreakerState::Closed },
                    since: forced.since,
                    until: forced.since,
                    reason: by(&forced.who, &forced.why),
                },
                (None, Some(_)) => queue::breaker(space, &owner).await?,
                (None, None) => continue,
            };
            let fresh = limits.breaker.is_some_and(|breaker| breaker.fresh);
            breakers.insert(owner, Breaker { view, forced: forced.is_some(), fresh });
        }
        let now = UnixMs(space.clock().now_ms());
        Ok(Self { freeze, queues, breakers, now })
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.freeze.frozen.is_empty() && *self.queues == QueueTable::default()
    }

    /// Whether everything is.
    pub fn all(&self) -> bool {
        self.freeze.all()
    }

    /// What holds a whole queue back: `queue push is paused since …`.
    pub fn of_queue(&self, queue: &QueueName) -> Option<String> {
        if let Some(frozen) = self.freeze.of_queue(queue) {
            let what = if self.freeze.all() { "everything".to_owned() } else { format!("queue {queue}") };
            return Some(sentence(&format!("{what} is frozen"), frozen.since, &frozen.who, &frozen.cause));
        }
        self.pause_of(queue)
    }

    fn pause_of(&self, queue: &QueueName) -> Option<String> {
        Some(match self.queues.hold_of(queue, self.now)? {
            Hold::Paused(pause) => {
                sentence(&format!("queue {queue} is paused"), pause.since, &pause.who, &pause.why)
            }
            Hold::Maintenance { until } => format!("queue {queue} is in maintenance until {until}"),
        })
    }

    /// What holds a queue's tasks of one tier back: the queue itself, a breaker, or that no retries may go.
    pub fn of_lane(&self, queue: &QueueName, tier: Tier) -> Option<String> {
        if let Some(why) = self.of_queue(queue) {
            return Some(why);
        }
        let failed = tier != Tier::FRESH;
        if let Some(pause) = self.queues.switches.no_retries.as_ref().filter(|_| failed) {
            return Some(sentence("no retries now", pause.since, &pause.who, &pause.why));
        }
        let owners = self.queues.limits_of(queue);
        owners.into_iter().find_map(|(owner, _)| {
            let breaker = self.breakers.get(&owner)?;
            let holds = breaker.view.state != BreakerState::Closed && (failed || breaker.fresh);
            holds.then(|| breaker_text(&owner, breaker))
        })
    }

    /// What holds a plan back: `plan sale is frozen since …`.
    pub fn of_plan(&self, plan: &PlanName) -> Option<String> {
        let frozen = self.freeze.of_plan(plan.as_str())?;
        Some(sentence(&format!("plan {plan} is frozen"), frozen.since, &frozen.who, &frozen.cause))
    }

    /// The queues that are held by more than a freeze.
    pub fn list(&self) -> Vec<HeldQueue> {
        let held = self
            .queues
            .queues
            .keys()
            .filter_map(|queue| Some(HeldQueue { queue: queue.to_string(), why: self.pause_of(queue)? }));
        held.collect()
    }

    /// The breakers, by owner.
    pub fn breakers(&self) -> Vec<BreakerStatus> {
        let status = |(owner, breaker): (&LimitOwner, &Breaker)| BreakerStatus {
            owner: owner.to_string(),
            state: breaker.view.state,
            since: (breaker.view.since.0 > 0).then_some(breaker.view.since),
            reason: breaker.view.reason.clone(),
            forced: breaker.forced,
            text: breaker_text(owner, breaker),
        };
        self.breakers.iter().map(status).collect()
    }

    /// Since when no retries may go, by whom and why.
    pub fn no_retries(&self) -> Option<String> {
        let pause = self.queues.switches.no_retries.as_ref()?;
        Some(sentence("no retries now", pause.since, &pause.who, &pause.why))
    }
}

fn breaker_text(owner: &LimitOwner, breaker: &Breaker) -> String {
    let BreakerView { state, since, reason, .. } = &breaker.view;
    let state = match state {
        BreakerState::Closed => "closed",
        BreakerState::Open => "open",
        BreakerState::HalfOpen => "half open",
    };
    let since = if since.0 > 0 { format!(" since {since}") } else { String::new() };
    let forced = if breaker.forced { " by hand" } else { "" };
    let reason = match (reason.as_str(), breaker.forced) {
        ("", _) => String::new(),
        (reason, true) => reason.to_owned(),
        (reason, false) => format!(": {reason}"),
    };
    format!("breaker of {owner} {state}{forced}{since}{reason}")
}

fn by(who: &str, why: &str) -> String {
    let by = if who.is_empty() { String::new() } else { format!(" by {who}") };
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    format!("{by}{why}")
}

fn sentence(what: &str, since: UnixMs, who: &str, why: &str) -> String {
    format!("{what} since {since}{}", by(who, why))
}
