//! How many buckets, and how many holders of a hot one: decided from figures of a window, with a reason.
//!
//! [`decide`] is a pure function of rules, what was remembered, and figures that [`Inputs::new`] has
//! made small; all four are kept with each decision, so that anybody can make it again ([`Record::again`]).
//!
//! More buckets help where claim loops are the limit, and nowhere else: each open guard below names a
//! limit that more buckets would only hit harder. A change is one step; the next waits until the first shows.

mod inputs;
#[cfg(test)]
mod tests;

pub use inputs::{BucketInput, Inputs, Readings};

use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the decider goes by. The defaults suit almost everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Start − due that 99 in 100 tasks shall not exceed, in ms.
    pub target_ms: i64,
    /// Time from one decision to the next, in ms.
    pub window_ms: i64,
    /// Windows in a row that a bucket must be late before something is added.
    pub late_windows: u16,
    /// Windows in a row that all must be calm before buckets are halved.
    pub calm_windows: u16,
    /// Share of its time that a claim loop is at work from which it counts as saturated, in thousandths.
    pub saturated_permille: u16,
    /// The share below which all loops must be before buckets are halved: twice as much is still well below saturated.
    pub idle_permille: u16,
    /// Share of its time that a claim loop waits for room from which it counts as starved.
    pub starved_permille: u16,
    /// Share of its main thread at which Redis is the limit.
    pub redis_permille: u16,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            target_ms: 100,
            window_ms: 5_000,
            late_windows: 3,
            calm_windows: 120,
            saturated_permille: 800,
            idle_permille: 300,
            starved_permille: 500,
            redis_permille: 700,
        }
    }
}

/// Windows for which a doubling that brought nothing forbids another: half an hour of windows of 5 s.
const TRIAL_WINDOWS: u16 = 360;
/// Windows without lateness after which such a doubling is forgotten.
const TRIAL_QUIET_WINDOWS: u16 = 12;
/// Longest wait before a halving, in multiples of the usual one.
const PATIENCE_MAX: u16 = 16;
/// A coming minute with fewer tasks than this is no reason to keep buckets.
const SLICE_AHEAD_MIN: u64 = 10_000;
/// Windows in a row for which fewer pods or executors must do before fewer are asked for.
const WANTED_LOW_WINDOWS: u16 = 60;
/// Share of a pod's processors, and of an executor's slots, that is planned to be used, in thousandths.
const POD_USE_PERMILLE: u64 = 600;
const SLOT_USE_PERMILLE: u64 = 700;
/// Executors are asked for so that a backlog is gone in this time.
const BACKLOG_GONE_MS: u64 = 30_000;

/// A figure that rises at once and falls late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// What is asked for.
    pub value: u16,
    /// Windows in a row for which less would have done.
    low: u16,
    /// The most of these windows.
    most: u16,
}

impl Wanted {
    fn next(self, raw: u16) -> Self {
        if raw >= self.value {
            return Self { value: raw, low: 0, most: 0 };
        }
        let (low, most) = (self.low + 1, self.most.max(raw));
        if low >= WANTED_LOW_WINDOWS {
            Self { value: most, low: 0, most: 0 }
        } else {
            Self { value: self.value, low, most }
        }
    }
}

/// A doubling whose gain is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    /// Starts a minute before it.
    per_minute: u64,
    /// Windows left.
    left: u16,
}

/// What is remembered from one decision to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Windows in a row in which claim loops were too slow for their buckets.
    late: u16,
    /// Windows in a row in which all was calm.
    calm: u16,
    /// Windows in a row without lateness.
    quiet: u16,
    /// Windows since the last halving, where it matters still.
    since_halving: Option<u16>,
    /// How many times the usual wait a halving waits: grows when one was taken back soon.
    patience: u16,
    trial: Option<Trial>,
    /// The bucket that alone is late, and for how many windows.
    hot: Option<(u16, u16)>,
    /// Hot buckets that have become cool, and for how many windows.
    cool: Vec<(u16, u16)>,
    backlog: u64,
    /// Pods asked for.
    pub pods: Wanted,
    /// Executors asked for.
    pub executors: Wanted,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Hold,
    /// More buckets.
    Double {
        /// Buckets now.
        from: u16,
        /// Buckets then.
        to: u16,
    },
    /// Fewer buckets: the others close.
    Halve {
        /// Buckets now.
        from: u16,
        /// Buckets then.
        to: u16,
    },
    /// Another number of holders of one bucket.
    Holders {
        /// The bucket.
        bucket: u16,
        /// Holders now.
        from: u8,
        /// Holders then.
        to: u8,
    },
}

impl Action {
    /// Whether something changes.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Hold)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hold => f.write_str("hold"),
            Self::Double { from, to } | Self::Halve { from, to } => write!(f, "{from} → {to} buckets"),
            Self::Holders { bucket, from, to } => write!(f, "bucket {bucket}: {from} → {to} holders"),
        }
    }
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Lags are below the target.
    OnTarget,
    /// Late, but not for long enough to act.
    LateForNow,
    /// Late, and claim loops are saturated: more of them help.
    LoopsSaturated,
    /// Late, and Redis is the limit: more buckets would hurt.
    RedisBound,
    /// Late, and the use of Redis's main thread is not known.
    RedisUnknown,
    /// Late, and all slots of the executors are busy: more executors help.
    ExecutorsFull,
    /// Late, but the backlog is being worked off.
    Draining,
    /// Late, and the last doubling brought nothing.
    NoGain,
    /// Late, and there are as many buckets as there may be.
    AtMost,
    /// One bucket alone is late and its holders do not keep up: another one helps.
    BucketHot,
    /// One bucket alone is late, and has all the holders it can have.
    HoldersAtMost,
    /// A bucket is late, but neither its loops nor its executors are the limit: more of them would not help.
    NotOurs,
    /// A hot bucket has been cool for long.
    BucketCool,
    /// All has been calm for long.
    Calm,
    /// All is calm, but a large slice comes.
    SliceAhead,
    /// All is calm, and there are as few buckets as there may be.
    AtLeast,
    /// Someone pinned the number.
    Pinned,
    /// There were fewer or more buckets than the bounds allow.
    OutOfBounds,
    /// Someone switched the automatic off.
    Manual,
    /// Too many buckets did not answer.
    Blind,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::OnTarget,
        Self::LateForNow,
        Self::LoopsSaturated,
        Self::RedisBound,
        Self::RedisUnknown,
        Self::ExecutorsFull,
        Self::Draining,
        Self::NoGain,
        Self::AtMost,
        Self::BucketHot,
        Self::HoldersAtMost,
        Self::NotOurs,
        Self::BucketCool,
        Self::Calm,
        Self::SliceAhead,
        Self::AtLeast,
        Self::Pinned,
        Self::OutOfBounds,
        Self::Manual,
        Self::Blind,
    ];

    /// Its name in records and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnTarget => "on_target",
            Self::LateForNow => "late_for_now",
            Self::LoopsSaturated => "loops_saturated",
            Self::RedisBound => "redis_bound",
            Self::RedisUnknown => "redis_unknown",
            Self::ExecutorsFull => "executors_full",
            Self::Draining => "draining",
            Self::NoGain => "no_gain",
            Self::AtMost => "at_most",
            Self::BucketHot => "bucket_hot",
            Self::HoldersAtMost => "holders_at_most",
            Self::NotOurs => "not_ours",
            Self::BucketCool => "bucket_cool",
            Self::Calm => "calm",
            Self::SliceAhead => "slice_ahead",
            Self::AtLeast => "at_least",
            Self::Pinned => "pinned",
            Self::OutOfBounds => "out_of_bounds",
            Self::Manual => "manual",
            Self::Blind => "blind",
        }
    }
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What is to be done.
    #[serde(flatten)]
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// The same in words, with the figures it rests on.
    pub why: String,
    /// Pods that would do.
    pub wanted_pods: u16,
    /// Executors that would do.
    pub wanted_executors: u16,
}

/// A decision with all it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The rules that held.
    pub rules: Rules,
    /// What was remembered.
    pub state: State,
    /// The figures.
    pub inputs: Inputs,
    /// What followed from them.
    pub decision: Decision,
}

impl Record {
    /// Decides again on the same figures.
    pub fn again(&self) -> Decision {
        decide(&self.rules, &self.state, &self.inputs).1
    }
}

/// Decides on the figures of one window; answers what is to be remembered, and what is to be done.
pub fn decide(rules: &Rules, before: &State, now: &Inputs) -> (State, Decision) {
    let mut state = before.clone();
    state.pods = state.pods.next(wanted_pods(now));
    state.executors = state.executors.next(wanted_executors(now));
    state.since_halving = state.since_halving.map(|windows| windows.saturating_add(1));
    let long_ago = u32::from(rules.calm_windows) * 4;
    if state.since_halving.is_some_and(|windows| u32::from(windows) > long_ago) {
        // It stood: the next one need not wait longer than usual.
        state.since_halving = None;
        state.patience /= 2;
    }
    let (action, reason, why) = choose(rules, before, &mut state, now);
    state.backlog = now.backlog;
    if action.changes() {
        (state.late, state.calm, state.hot) = (0, 0, None);
    }
    match action {
        Action::Double { .. } if reason == Reason::LoopsSaturated => {
            state.trial = Some(Trial { per_minute: now.starts_per_minute(), left: TRIAL_WINDOWS });
            if state.since_halving.take().is_some() {
                state.patience = (state.patience.max(1) * 2).min(PATIENCE_MAX);
            }
        }
        Action::Halve { .. } => state.since_halving = Some(0),
        _ => {}
    }
    let (wanted_pods, wanted_executors) = (state.pods.value, state.executors.value);
    (state, Decision { action, reason, why, wanted_pods, wanted_executors })
}

type Choice = (Action, Reason, String);

fn hold(reason: Reason, why: impl Into<String>) -> Choice {
    (Action::Hold, reason, why.into())
}

fn choose(rules: &Rules, before: &State, state: &mut State, now: &Inputs) -> Choice {
    // What people want goes before what the figures say.
    let from = now.buckets;
    let toward = |goal: u16, reason, why: String| -> Choice {
        let to = if goal > from { doubled(from).min(goal) } else { halved(from).max(goal) };
        let action = if to > from { Action::Double { from, to } } else { Action::Halve { from, to } };
        (action, reason, why)
    };
    if let Some(pin) = now.pin {
        let pin = pin.clamp(now.floor, limits::BUCKETS_MAX);
        if pin != from {
            return toward(pin, Reason::Pinned, format!("pinned to {pin} buckets"));
        }
    } else if from < now.floor || from > now.ceiling {
        let goal = from.clamp(now.floor, now.ceiling);
        return toward(goal, Reason::OutOfBounds, format!("the bounds are {} to {}", now.floor, now.ceiling));
    }
    if now.unreadable > 0 && now.unreadable * 2 >= from {
        return hold(Reason::Blind, format!("{} of {from} buckets did not answer", now.unreadable));
    }

    count(rules, state, now);
    if now.manual {
        return hold(Reason::Manual, "the automatic is off");
    }
    if let Some(choice) = holders(rules, state, now) {
        return choice;
    }
    if now.pin.is_some() {
        return hold(Reason::Pinned, format!("pinned to {from} buckets"));
    }
    if now.overloaded() {
        return grow(rules, before, state, now);
    }
    if now.late > 0 {
        let worst = now.worst.first().map_or(0, |worst| worst.bucket);
        return if state.hot.is_some() {
            hold(Reason::LateForNow, format!("bucket {worst} is late; {}", now.lag_text()))
        } else if now.executors_full() {
            hold(Reason::ExecutorsFull, now.executors_text())
        } else if now.backlog < before.backlog {
            let (then, left) = (before.backlog, now.backlog);
            hold(Reason::Draining, format!("the backlog fell from {then} to {left}; {}", now.lag_text()))
        } else {
            hold(
                Reason::NotOurs,
                format!("{} of {from} buckets are late, their claim loops are not busy", now.late),
            )
        };
    }
    if !calm(rules, now) {
        return hold(Reason::OnTarget, now.lag_text());
    }
    shrink(rules, state, now)
}

/// Counts windows that are alike.
fn count(rules: &Rules, state: &mut State, now: &Inputs) {
    state.late = if now.overloaded() { state.late.saturating_add(1) } else { 0 };
    state.quiet = if now.late == 0 { state.quiet.saturating_add(1) } else { 0 };
    state.calm = if calm(rules, now) { state.calm.saturating_add(1) } else { 0 };
    state.trial = state.trial.and_then(|trial| {
        let left = trial.left.saturating_sub(1);
        (left > 0 && state.quiet < TRIAL_QUIET_WINDOWS).then_some(Trial { left, ..trial })
    });
    // What is worked off already, such as what lay in a bucket when the others came, needs no help.
    let drains = now.backlog < state.backlog;
    let hot = now.worst.iter().find(|bucket| is_hot(rules, now, bucket, drains)).map(|bucket| bucket.bucket);
    state.hot = hot.map(|bucket| match state.hot {
        Some((same, windows)) if same == bucket => (bucket, windows.saturating_add(1)),
        _ => (bucket, 1),
    });
    let cool = |bucket: u16| {
        let found = now.worst.iter().find(|input| input.bucket == bucket);
        found.is_none_or(|input| {
            !input.late
                && input.busy_permille < rules.idle_permille
                && input.starved_permille < rules.idle_permille
        })
    };
    let known = std::mem::take(&mut state.cool);
    state.cool = now
        .hot
        .iter()
        .filter(|(bucket, _)| cool(*bucket))
        .map(|(bucket, _)| {
            let windows = known.iter().find(|(same, _)| same == bucket).map_or(0, |(_, windows)| *windows);
            (*bucket, windows.saturating_add(1))
        })
        .collect();
}

fn calm(rules: &Rules, now: &Inputs) -> bool {
    now.late == 0
        && now.unreadable == 0
        && now.busiest_permille < rules.idle_permille
        && now.p99_ms.is_none_or(|p99| p99 <= rules.target_ms / 2)
}

/// One bucket that does not keep up while most do: its tasks cannot go elsewhere.
fn is_hot(rules: &Rules, now: &Inputs, bucket: &BucketInput, drains: bool) -> bool {
    let starved = bucket.starved_permille >= rules.starved_permille && !now.executors_full();
    let busy = bucket.busy_permille >= rules.saturated_permille && !now.overloaded() && !drains;
    bucket.late && (starved || busy)
}

/// More holders for a bucket that is hot, fewer for one that no longer is.
fn holders(rules: &Rules, state: &mut State, now: &Inputs) -> Option<Choice> {
    let of = |bucket: u16| {
        now.hot.iter().find(|(hot, _)| *hot == bucket).map_or(now.holders, |(_, holders)| *holders)
    };
    if let Some((bucket, windows)) = state.hot.filter(|(_, windows)| *windows >= rules.late_windows) {
        let from = of(bucket);
        let most = u16::from(limits::HOLDERS_MAX as u8).min(now.pods.max(1)) as u8;
        let room = now.hot.iter().any(|(hot, _)| *hot == bucket) || now.hot.len() < limits::HOT_BUCKETS_MAX;
        let input = now.worst.iter().find(|input| input.bucket == bucket)?;
        let figures = format!(
            "bucket {bucket} is {} ms late for {windows} windows, its loop busy {} % and waiting for room {} % of the time",
            input.lag_ms(),
            input.busy_permille / 10,
            input.starved_permille / 10
        );
        if let Some(why) = redis_limit(rules, now) {
            return Some((Action::Hold, why.0, format!("{figures}; {}", why.1)));
        }
        if from < most && room {
            return Some((Action::Holders { bucket, from, to: from + 1 }, Reason::BucketHot, figures));
        }
        if !now.overloaded() {
            return Some(hold(Reason::HoldersAtMost, format!("{figures}; it has {from} holders")));
        }
    }
    let wait = rules.calm_windows / 2;
    let (bucket, windows) = state.cool.iter().copied().find(|(_, windows)| *windows >= wait.max(1))?;
    state.cool.retain(|(other, _)| *other != bucket);
    let from = of(bucket);
    let to = from.saturating_sub(1).max(now.holders).max(1);
    let why = format!("bucket {bucket} has been cool for {windows} windows");
    Some((Action::Holders { bucket, from, to }, Reason::BucketCool, why))
}

/// Why Redis forbids to add anything.
fn redis_limit(rules: &Rules, now: &Inputs) -> Option<(Reason, String)> {
    match now.redis_permille {
        None => Some((Reason::RedisUnknown, "redis does not tell how busy its main thread is".to_owned())),
        Some(busy) if busy >= rules.redis_permille => {
            Some((Reason::RedisBound, format!("redis's main thread is busy {} % of the time", busy / 10)))
        }
        Some(_) => None,
    }
}

fn grow(rules: &Rules, before: &State, state: &State, now: &Inputs) -> Choice {
    let from = now.buckets;
    let figures = format!(
        "{} of {from} buckets are late and their claim loops saturated; {}",
        now.late_saturated,
        now.lag_text()
    );
    if state.late < rules.late_windows {
        return hold(
            Reason::LateForNow,
            format!("{figures}; window {} of {}", state.late, rules.late_windows),
        );
    }
    if let Some((reason, why)) = redis_limit(rules, now) {
        return hold(reason, format!("{figures}; {why}"));
    }
    if now.executors_full() {
        return hold(Reason::ExecutorsFull, format!("{figures}; {}", now.executors_text()));
    }
    let shrunk = before.backlog.saturating_sub(now.backlog);
    if shrunk > 0 && now.backlog <= shrunk.saturating_mul(u64::from(rules.late_windows)) {
        return hold(Reason::Draining, format!("{figures}; the backlog fell by {shrunk} to {}", now.backlog));
    }
    if from >= now.ceiling {
        return hold(Reason::AtMost, format!("{figures}; {} buckets are the most", now.ceiling));
    }
    if let Some(trial) = state.trial
        && now.starts_per_minute() * 20 < trial.per_minute * 21
    {
        let (then, rate) = (trial.per_minute, now.starts_per_minute());
        return hold(
            Reason::NoGain,
            format!("{figures}; {then} starts a minute before the last doubling, {rate} now"),
        );
    }
    let to = doubled(from).min(now.ceiling);
    (Action::Double { from, to }, Reason::LoopsSaturated, figures)
}

fn shrink(rules: &Rules, state: &State, now: &Inputs) -> Choice {
    let from = now.buckets;
    if from <= now.floor {
        return hold(Reason::AtLeast, now.lag_text());
    }
    let wait = rules.calm_windows.saturating_mul(state.patience.max(1));
    let figures =
        format!("calm for {} windows, the busiest loop {} %", state.calm, now.busiest_permille / 10);
    if state.calm < wait {
        return hold(Reason::OnTarget, format!("{figures}; fewer buckets after {wait}"));
    }
    let largest = now.coming.iter().copied().max().unwrap_or(0);
    if largest >= SLICE_AHEAD_MIN && largest > now.starts_per_minute().saturating_mul(3) {
        return hold(Reason::SliceAhead, format!("{figures}; {largest} tasks come in one minute"));
    }
    let to = halved(from).max(now.floor);
    (Action::Halve { from, to }, Reason::Calm, figures)
}

/// The next power of two.
fn doubled(buckets: u16) -> u16 {
    (buckets + 1).next_power_of_two().min(limits::BUCKETS_MAX)
}

/// The power of two before.
fn halved(buckets: u16) -> u16 {
    (buckets.next_power_of_two() / 2).max(1)
}

fn small(n: u64) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Pods so that each uses a good half of its processors; more than there are buckets have nothing to do.
fn wanted_pods(now: &Inputs) -> u16 {
    let useful = u64::from(now.buckets) + u64::from(now.closing);
    let by_use = u64::from(now.pods_cpu_permille).div_ceil(POD_USE_PERMILLE);
    small(by_use.clamp(1, useful.max(1)))
}

/// Executors for what runs now and what the fullest coming minute brings, and to work off the backlog.
fn wanted_executors(now: &Inputs) -> u16 {
    let waits = now.backlog > 0 || now.slots_busy > 0 || now.coming.iter().any(|tasks| *tasks > 0);
    let least = u16::from(waits);
    let Some(run_us) = now.run_us else { return now.executors.max(least) };
    let each = match now.executors {
        0 => 32,
        executors => u64::from(now.slots / u32::from(executors)).max(1),
    };
    // This minute is partly over; what is left of it is in the backlog or in the rate.
    let coming = now.coming.iter().skip(1).copied().max().unwrap_or(0);
    let per_minute = now.starts_per_minute().max(coming);
    // Slots in thousandths: runs a minute × µs of each, over the µs of a minute.
    let running = per_minute.saturating_mul(run_us).saturating_mul(1_000) / 60_000_000;
    let catching_up = now.backlog.saturating_mul(run_us) / BACKLOG_GONE_MS;
    let slots = running.max(u64::from(now.slots_busy) * 1_000).saturating_add(catching_up);
    small(slots.div_ceil(SLOT_USE_PERMILLE).div_ceil(each)).max(least)
}
