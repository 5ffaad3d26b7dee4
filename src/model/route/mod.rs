//! Which executor gets a task: pure functions over a view.
//!
//! A pod keeps one [`View`] for each set of executors that serve the same queues and each policy in use.
//! A [`Route`] chooses in it, [`View::give`] notes the choice, [`View::set`] what is heard since. Neither
//! reads a clock nor draws a number, so a decision that was written down ([`record`]) can be made again.
//!
//! Labels are looked at before: a view has only executors that may take the task. Whom nobody can
//! serve is explained by [`why`].

mod busy_over;
mod ends;
mod failover;
mod hash;
mod index;
mod least_cost;
mod random;
pub mod record;
mod round_robin;
#[cfg(test)]
mod simulation;
mod together;
mod usage;
mod view;
pub mod why;

pub use busy_over::BusyOver;
pub use ends::{First, Last};
pub use failover::Failover;
pub use hash::ConsistentHash;
pub use least_cost::LeastCost;
pub use random::Random;
pub use round_robin::RoundRobin;
pub use together::Together;
pub use usage::{LeastFrequent, LeastRecent};
pub use view::View;

use super::field::{FieldError, Reason, shown};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Label of those who spread broadcasts.
pub const BROADCAST: &str = "@broadcast";
/// Label that a task asks for which names a web address.
pub const WEBHOOK: &str = "@webhook";

/// How a queue's tasks are given to executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// To the one that would be done first: the least work in hand per slot, with this task added.
    #[default]
    LeastCost,
    /// Always to the first by id (ids begin with names); when it is full, tasks wait for it.
    First,
    /// Always to the last by id; when it is full, tasks wait for it.
    Last,
    /// To one after the other.
    RoundRobin,
    /// To any with room, by chance.
    Random,
    /// Tasks with the same `routing_key` to the same one, as long as it lives and has room.
    ConsistentHash,
    /// To the one that was given the fewest.
    LeastFrequent,
    /// To the one that was given none for the longest time.
    LeastRecent,
    /// To the first by id that answers and has room.
    Failover,
    /// To the first by id that has an idle slot; when none has, by least cost.
    BusyOver,
    /// To every one: each gets a task of its own, and the task is done when all of these are.
    Broadcast,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LeastCost,
        Self::First,
        Self::Last,
        Self::RoundRobin,
        Self::Random,
        Self::ConsistentHash,
        Self::LeastFrequent,
        Self::LeastRecent,
        Self::Failover,
        Self::BusyOver,
        Self::Broadcast,
    ];

    /// Its name in settings, records and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeastCost => "least_cost",
            Self::First => "first",
            Self::Last => "last",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::ConsistentHash => "consistent_hash",
            Self::LeastFrequent => "least_frequent",
            Self::LeastRecent => "least_recent",
            Self::Failover => "failover",
            Self::BusyOver => "busy_over",
            Self::Broadcast => "broadcast",
        }
    }

    /// Room that tasks may be claimed for, of that of each executor in order: for every priority, and for urgent
    /// tasks beyond it.
    pub fn room(self, mut rooms: impl DoubleEndedIterator<Item = (u32, u32)>) -> (u32, u32) {
        match self {
            Self::First => rooms.next().unwrap_or_default(),
            Self::Last => rooms.next_back().unwrap_or_default(),
            _ => rooms.fold((0, 0), |(free, spare), (f, s)| (free + f, spare + s)),
        }
    }

    /// What chooses. A broadcast has nothing to choose: whoever makes its tasks names their executors, and the
    /// task that is to be spread goes where it costs least.
    pub fn route(self) -> &'static dyn Route {
        match self {
            Self::LeastCost | Self::Broadcast => &LeastCost,
            Self::First => &First,
            Self::Last => &Last,
            Self::RoundRobin => &RoundRobin,
            Self::Random => &Random,
            Self::ConsistentHash => &ConsistentHash,
            Self::LeastFrequent => &LeastFrequent,
            Self::LeastRecent => &LeastRecent,
            Self::Failover => &Failover,
            Self::BusyOver => &BusyOver,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = FieldError;

    /// Reads a name; `-` stands for `_` too.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let name = text.trim().to_ascii_lowercase().replace('-', "_");
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            let detail = format!("{} is no way of routing; there are {}", shown(text), names.join(", "));
            FieldError::new("routing", Reason::BadName, detail)
        })
    }
}

/// What routing knows of one executor that may take the task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Seat {
    /// Tasks of every priority that it may still be given.
    pub free: u32,
    /// Urgent tasks that it may be given beyond these.
    pub spare: u32,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Slots without a task, as far as is known; never more than `free` where it fetches nothing ahead.
    pub idle: u32,
    /// Estimated milliseconds of work it has in hand.
    pub load_ms: f64,
    /// Whether the last offer to it was answered.
    pub healthy: bool,
    /// Tasks it was given by this view's owner.
    pub given: u64,
    /// When it was given the last of them, as a count of all that were given; 0 for never.
    pub last: u64,
}

impl Seat {
    /// An idle executor of so many slots.
    pub fn of(slots: u32) -> Self {
        Self { free: slots, spare: 0, slots, idle: slots, load_ms: 0.0, healthy: true, given: 0, last: 0 }
    }

    /// Whether it may be given one more.
    pub fn has_room(&self, urgent: bool) -> bool {
        self.free > 0 || (urgent && self.spare > 0)
    }
}

/// What routing knows of the task.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Work {
    /// Estimated run time in ms: the task's own figure, else its queue's moving average.
    pub cost_ms: f64,
    /// Whether it may use slots that are kept for P0 and P1.
    pub urgent: bool,
    /// Hash of its `routing_key`.
    pub key: Option<u64>,
    /// A number drawn for this decision.
    pub chance: u64,
}

/// An order of executors in which the least is best: a figure, then when it was last given a task, so that
/// equals take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(u128);

impl Rank {
    /// Ranks by a figure that is not negative.
    pub fn by(figure: f64, last: u64) -> Self {
        // The bits of floats that are not negative are in the order of the floats; adding 0 drops the sign of -0.
        Self((u128::from((figure.max(0.0) + 0.0).to_bits()) << 64) | u128::from(last))
    }

    /// Ranks by a count.
    pub fn count(count: u64, last: u64) -> Self {
        Self((u128::from(count) << 64) | u128::from(last))
    }

    /// Behind all that have room.
    pub(super) const FULL: Self = Self(u128::MAX);
}

/// A way to choose. One small type each; none does I/O or keeps anything.
pub trait Route: fmt::Debug + Send + Sync {
    /// Which it is.
    fn policy(&self) -> Policy;

    /// The order in which the view keeps executors ready, where this one wants an order.
    fn rank(&self, _seat: &Seat) -> Option<Rank> {
        None
    }

    /// Executors are ordered within their shelf.
    fn shelf(&self, _seat: &Seat) -> u32 {
        0
    }

    /// The chosen place in the view; nothing when the task has to wait.
    fn choose(&self, work: &Work, view: &View) -> Option<usize>;
}

#[cfg(test)]
mod tests;
