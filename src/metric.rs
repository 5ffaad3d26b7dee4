//! Every metric: its name, its unit, its help text, and the handle that records it.
//!
//! [`FAMILIES`] is the one table; `docs/` and dashboards are written from it. [`handles`] gives
//! handles that are made once, so that recording costs an atomic addition and allocates nothing.
//! Install the recorder (see [`crate::telemetry`]) before the first call of [`handles`]: handles
//! made without one record nothing, for ever.

use metrics::{Counter, Gauge, Histogram, Label, Unit};
use parking_lot::RwLock;
use std::sync::OnceLock;

/// What kind of numbers a family holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts per bucket of these upper bounds.
    Histogram(&'static [f64]),
}

/// One metric with all its label values.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Name, with unit and `_total` as Prometheus wants them.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Unit.
    pub unit: Unit,
    /// One sentence for whoever looks at it first.
    pub help: &'static str,
    /// The label and the values that exist from the start.
    pub label: Option<(&'static str, &'static [&'static str])>,
}

/// Bounds for calls: 100 µs to 5 s.
const CALL_SECONDS: &[f64] =
    &[0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Bounds for lag: 1 ms to 5 min; fine around the targets of 10 ms to 1 s.
const LAG_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// How a claim ended.
pub const CLAIM_RESULTS: &[&str] = &["tasks", "empty", "not_holder", "settling", "error"];
/// Why tasks were handed back uncounted.
pub const HAND_BACK_CAUSES: &[&str] =
    &["no_room", "no_executor", "stop", "dispatch_timeout", "lost", "frozen", "paused"];
/// How an ack was answered.
pub const ACK_OUTCOMES: &[&str] =
    &["succeeded", "retrying", "dead", "cancelled", "skipped", "stale", "known"];
/// How a delivery of outcomes ended.
pub const DELIVERY_RESULTS: &[&str] = &["delivered", "failed", "refused", "busy"];
/// Why outcomes were not delivered.
pub const OUTCOME_LOSSES: &[&str] = &["outbox_full", "refused"];
/// How a submitted row was answered.
pub const SUBMIT_RESULTS: &[&str] =
    &["created", "duplicate", "refused", "over_backlog", "fate_unknown", "not_durable"];
/// Scripts that have a series from the start; a test holds them against the store's own list.
pub const SCRIPTS: &[&str] = &[
    "intake.submit",
    "intake.cancel",
    "intake.reschedule",
    "intake.reprioritize",
    "intake.collapse",
    "intake.edit",
    "due.claim",
    "due.yield",
    "due.release",
    "run.offer",
    "run.start",
    "run.renew",
    "run.ack",
    "run.mark",
    "run.daily",
    "member.beat",
    "member.leave",
    "member.drain",
    "member.inbox",
    "member.offer",
    "member.take",
    "queue.lane",
    "queue.spread",
    "queue.freeze",
    "bucket.resize",
    "bucket.mark",
    "bucket.vanish",
    "decider.lead",
    "decider.note",
    "read.load",
    "read.agenda",
    "access.token",
    "access.quota",
    "bucket.size",
    "access.note",
    "access.notes",
    "queue.put",
    "queue.allot",
    "queue.runs",
    "dead.redrive",
    "dead.delete",
    "dead.digest",
    "outcome.take",
    "outcome.read",
    "outcome.pass",
    "member.recall",
    "read.dead",
    "read.trace",
    "read.get",
    "read.counts",
    "read.names",
    "read.rights",
    "read.law",
    "read.audit",
    "read.verify",
];
/// Why calls to Redis failed: what `StoreError::cause` says of those that happen in a running process.
pub const REDIS_ERROR_CAUSES: &[&str] = &[
    "unreachable",
    "timeout",
    "oom",
    "readonly",
    "misconf",
    "loading",
    "busy",
    "clusterdown",
    "noreplicas",
    "masterdown",
    "tryagain",
    "wrong_type",
    "no_permission",
    "bad_reply",
    "script",
    "overloaded",
    "closed",
];
/// Why the decider decided as it did; a test holds them against the decider's own list.
pub const DECISION_REASONS: &[&str] = &[
    "on_target",
    "late_for_now",
    "loops_saturated",
    "redis_bound",
    "redis_unknown",
    "executors_full",
    "draining",
    "no_gain",
    "at_most",
    "bucket_hot",
    "holders_at_most",
    "not_ours",
    "bucket_cool",
    "calm",
    "slice_ahead",
    "at_least",
    "pinned",
    "out_of_bounds",
    "manual",
    "blind",
];
/// Why Redis refused to write.
pub const WRITE_REFUSED_CAUSES: &[&str] = &["oom", "misconf", "readonly", "noreplicas"];
/// How Redis came to forget: the whole namespace, one bucket, or the last moments of a bucket.
pub const HISTORY_LOST_CAUSES: &[&str] = &["emptied", "bucket_emptied", "rolled_back"];
/// What woke a claim loop.
pub const WAKE_SOURCES: &[&str] = &["due", "publish", "room", "limit", "poll"];

macro_rules! families {
    ($($constant:ident = $name:literal, $kind:expr, $unit:ident, $label:expr, $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: &str = concat!("minutehand_", $name);)*
        /// All metrics, in the order of a task's life.
        pub const FAMILIES: &[Family] = &[
            $(Family { name: $constant, kind: $kind, unit: Unit::$unit, help: $help, label: $label },)*
        ];
    };
}

families! {
    TASKS_SUBMITTED = "tasks_submitted_total", Kind::Counter, Count, Some(("result", SUBMIT_RESULTS)),
        "Rows answered by submits of this process.";
    CLAIMS = "claims_total", Kind::Counter, Count, Some(("result", CLAIM_RESULTS)),
        "Claims by how they ended.";
    CLAIMED_TASKS = "claimed_tasks_total", Kind::Counter, Count, None,
        "Tasks that this pod was granted.";
    CLAIM_DURATION = "claim_duration_seconds", Kind::Histogram(CALL_SECONDS), Seconds, None,
        "Time of one claim as the pod sees it, with the way to Redis and back.";
    CLAIMS_LAST_SUCCESS = "claims_last_success_seconds", Kind::Gauge, Seconds, None,
        "Time of the last claim that Redis answered, in seconds since 1970 by this machine's clock; 0 before the first.";
    WAKEUPS = "wakeups_total", Kind::Counter, Count, Some(("source", WAKE_SOURCES)),
        "What ended the sleep of a claim loop.";
    OFFERS = "offers_total", Kind::Counter, Count, None,
        "Batches put into executors' inboxes.";
    OFFERED_TASKS = "offered_tasks_total", Kind::Counter, Count, None,
        "Tasks put into executors' inboxes.";
    HANDED_BACK = "handed_back_total", Kind::Counter, Count, Some(("cause", HAND_BACK_CAUSES)),
        "Tasks given back without counting as a failure.";
    START_LAG = "start_lag_seconds", Kind::Histogram(LAG_SECONDS), Seconds, None,
        "From a task's due time to the entry of its handler, in Redis time.";
    ACKS = "acks_total", Kind::Counter, Count, Some(("outcome", ACK_OUTCOMES)),
        "Outcomes reported by executors, by what Redis made of them.";
    ACKS_DURATION = "acks_duration_seconds", Kind::Histogram(CALL_SECONDS), Seconds, None,
        "Time of one batch of acks as the executor sees it.";
    LEASE_LAPSED = "lease_lapsed_total", Kind::Counter, Count, None,
        "Grants whose lease lapsed without an outcome.";
    CLAIM_LOOP_BUSY = "claim_loop_busy_ratio", Kind::Gauge, Count, None,
        "Share of its time that this pod's busiest claim loop is at work.";
    CLAIM_LOOP_STARVED = "claim_loop_starved_ratio", Kind::Gauge, Count, None,
        "Share of its time that a claim loop of this pod waits for room at executors, at most.";
    BUCKETS_OPEN = "buckets_open", Kind::Gauge, Count, None,
        "Buckets that take new tasks, as the leading decider saw them; 0 at pods that do not lead.";
    BUCKETS_CLOSING = "buckets_closing", Kind::Gauge, Count, None,
        "Buckets that take no new tasks and are not empty yet; 0 at pods that do not lead.";
    DECIDER_LEADS = "decider_leads", Kind::Gauge, Count, None,
        "1 at the pod that decides on the number of buckets.";
    DECIDER_DECISIONS = "decider_decisions_total", Kind::Counter, Count, Some(("reason", DECISION_REASONS)),
        "Windows of the decider by the reason of what it decided.";
    DECIDER_ERRORS = "decider_errors_total", Kind::Counter, Count, None,
        "Windows in which this pod could not decide.";
    DECIDER_BACKLOG = "decider_backlog", Kind::Gauge, Count, None,
        "Ripe tasks that wait, as the leading decider saw them; 0 at pods that do not lead.";
    DECIDER_LAG = "decider_lag_p99_seconds", Kind::Gauge, Seconds, None,
        "Start − due that 99 in 100 starts of the last window did not pass; 0 at pods that do not lead.";
    REDIS_MAIN_THREAD = "redis_main_thread_ratio", Kind::Gauge, Count, None,
        "Use of the main thread of the busiest Redis server; 0 at pods that do not lead.";
    OUTCOME_DELIVERIES = "outcome_deliveries_total", Kind::Counter, Count, Some(("result", DELIVERY_RESULTS)),
        "Deliveries of outcomes to subscriptions, each try.";
    OUTCOMES_DELIVERED = "outcomes_delivered_total", Kind::Counter, Count, None,
        "Outcomes that arrived at a subscription.";
    OUTCOMES_DROPPED = "outcomes_dropped_total", Kind::Counter, Count, Some(("cause", OUTCOME_LOSSES)),
        "Outcomes that a subscription did not get: at most so many.";
    OUTCOMES_WAITING = "outcomes_waiting", Kind::Gauge, Count, None,
        "Outcomes that somebody has not got yet, in the buckets whose outcomes this pod delivers.";
    OUTCOMES_LAG = "outcomes_lag_seconds", Kind::Gauge, Seconds, None,
        "Age of the oldest of them; 0 where there is none.";
    WANTED_PODS = "wanted_pods", Kind::Gauge, Count, None,
        "Pods that would do for the load; every pod says the same.";
    WANTED_EXECUTORS = "wanted_executors", Kind::Gauge, Count, None,
        "Executors that would do for what runs, waits and comes; every pod says the same.";
    BUCKETS_HELD = "buckets_held", Kind::Gauge, Count, None,
        "Buckets for which this pod has a permit.";
    PODS_LIVE = "pods_live", Kind::Gauge, Count, None,
        "Pods that reported themselves in time.";
    EXECUTORS_LIVE = "executors_live", Kind::Gauge, Count, None,
        "Executors that reported themselves in time.";
    EXECUTOR_SLOTS = "executor_slots", Kind::Gauge, Count, None,
        "Slots of this executor, or of all executors that this pod sees.";
    EXECUTOR_BUSY = "executor_busy", Kind::Gauge, Count, None,
        "Slots of them that run a task.";
    REDIS_CALL_DURATION = "redis_call_duration_seconds", Kind::Histogram(CALL_SECONDS), Seconds, Some(("script", SCRIPTS)),
        "Time of one script call, with the way to Redis and back.";
    REDIS_ERRORS = "redis_errors_total", Kind::Counter, Count, Some(("cause", REDIS_ERROR_CAUSES)),
        "Calls to Redis that failed, before any retry.";
    REDIS_WRITE_REFUSED = "redis_write_refused_total", Kind::Counter, Count, Some(("cause", WRITE_REFUSED_CAUSES)),
        "Writes that Redis refused for its own state.";
    SERVER_CLOCK_REGRESSIONS = "server_clock_regressions_total", Kind::Counter, Count, None,
        "Times that Redis's clock was seen to go back.";
    HISTORY_LOST = "history_lost_total", Kind::Counter, Count, Some(("cause", HISTORY_LOST_CAUSES)),
        "Times that Redis was found to have forgotten what it had acknowledged: emptied, or rolled back by a fail-over.";
    REDIS_EVICTING = "redis_evicting", Kind::Gauge, Count, None,
        "1 while Redis may delete tasks when its memory is full (maxmemory-policy is not noeviction), else 0.";
    BUILD_INFO = "build_info", Kind::Gauge, Count, Some(("version", &[env!("CARGO_PKG_VERSION")])),
        "1, with the version of this program.";
}

/// A family with one label: a handle per value, made when the value is first seen.
///
/// Values are few and known when the program is compiled, so a short list is searched.
pub struct Labelled<T> {
    make: fn(&'static str) -> T,
    known: RwLock<Vec<(&'static str, T)>>,
}

impl<T: Clone> Labelled<T> {
    fn new(make: fn(&'static str) -> T, values: &[&'static str]) -> Self {
        Self { make, known: RwLock::new(values.iter().map(|value| (*value, make(value))).collect()) }
    }

    /// The handle of a value.
    pub fn of(&self, value: &'static str) -> T {
        if let Some((_, handle)) = self.known.read().iter().find(|(known, _)| *known == value) {
            return handle.clone();
        }
        let mut known = self.known.write();
        match known.iter().find(|(there, _)| *there == value) {
            Some((_, handle)) => handle.clone(),
            None => {
                let handle = (self.make)(value);
                known.push((value, handle.clone()));
                handle
            }
        }
    }
}

impl Labelled<Counter> {
    /// Counts `n` more under a value.
    pub fn add(&self, value: &'static str, n: u64) {
        self.of(value).increment(n);
    }
}

impl Labelled<Histogram> {
    /// Records seconds under a value.
    pub fn record(&self, value: &'static str, seconds: f64) {
        self.of(value).record(seconds);
    }
}

/// A handle for each family. See [`FAMILIES`] for what they mean.
#[expect(missing_docs, reason = "FAMILIES has the help text of each")]
pub struct Handles {
    pub tasks_submitted: Labelled<Counter>,
    pub claims: Labelled<Counter>,
    pub claimed_tasks: Counter,
    pub claim_duration: Histogram,
    pub claims_last_success: Gauge,
    pub wakeups: Labelled<Counter>,
    pub offers: Counter,
    pub offered_tasks: Counter,
    pub handed_back: Labelled<Counter>,
    pub start_lag: Histogram,
    pub acks: Labelled<Counter>,
    pub acks_duration: Histogram,
    pub lease_lapsed: Counter,
    pub claim_loop_busy: Gauge,
    pub claim_loop_starved: Gauge,
    pub buckets_open: Gauge,
    pub buckets_closing: Gauge,
    pub decider_leads: Gauge,
    pub decider_decisions: Labelled<Counter>,
    pub decider_errors: Counter,
    pub decider_backlog: Gauge,
    pub decider_lag: Gauge,
    pub redis_main_thread: Gauge,
    pub outcome_deliveries: Labelled<Counter>,
    pub outcomes_delivered: Counter,
    pub outcomes_dropped: Labelled<Counter>,
    pub outcomes_waiting: Gauge,
    pub outcomes_lag: Gauge,
    pub wanted_pods: Gauge,
    pub wanted_executors: Gauge,
    pub buckets_held: Gauge,
    pub pods_live: Gauge,
    pub executors_live: Gauge,
    pub executor_slots: Gauge,
    pub executor_busy: Gauge,
    pub redis_call_duration: Labelled<Histogram>,
    pub redis_errors: Labelled<Counter>,
    pub redis_write_refused: Labelled<Counter>,
    pub server_clock_regressions: Counter,
    pub history_lost: Labelled<Counter>,
    pub redis_evicting: Gauge,
}

/// The handles of this process.
pub fn handles() -> &'static Handles {
    static HANDLES: OnceLock<Handles> = OnceLock::new();
    HANDLES.get_or_init(Handles::register)
}

impl Handles {
    /// Describes every family and makes its handles in the recorder that is installed now.
    pub fn register() -> Self {
        for family in FAMILIES {
            match family.kind {
                Kind::Counter => metrics::describe_counter!(family.name, family.unit, family.help),
                Kind::Gauge => metrics::describe_gauge!(family.name, family.unit, family.help),
                Kind::Histogram(_) => metrics::describe_histogram!(family.name, family.unit, family.help),
            }
        }
        metrics::gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Self {
            tasks_submitted: Labelled::new(|v| counter(TASKS_SUBMITTED, "result", v), SUBMIT_RESULTS),
            claims: Labelled::new(|v| counter(CLAIMS, "result", v), CLAIM_RESULTS),
            claimed_tasks: metrics::counter!(CLAIMED_TASKS),
            claim_duration: metrics::histogram!(CLAIM_DURATION),
            claims_last_success: metrics::gauge!(CLAIMS_LAST_SUCCESS),
            wakeups: Labelled::new(|v| counter(WAKEUPS, "source", v), WAKE_SOURCES),
            offers: metrics::counter!(OFFERS),
            offered_tasks: metrics::counter!(OFFERED_TASKS),
            handed_back: Labelled::new(|v| counter(HANDED_BACK, "cause", v), HAND_BACK_CAUSES),
            start_lag: metrics::histogram!(START_LAG),
            acks: Labelled::new(|v| counter(ACKS, "outcome", v), ACK_OUTCOMES),
            acks_duration: metrics::histogram!(ACKS_DURATION),
            lease_lapsed: metrics::counter!(LEASE_LAPSED),
            claim_loop_busy: metrics::gauge!(CLAIM_LOOP_BUSY),
            claim_loop_starved: metrics::gauge!(CLAIM_LOOP_STARVED),
            buckets_open: metrics::gauge!(BUCKETS_OPEN),
            buckets_closing: metrics::gauge!(BUCKETS_CLOSING),
            decider_leads: metrics::gauge!(DECIDER_LEADS),
            decider_decisions: Labelled::new(|v| counter(DECIDER_DECISIONS, "reason", v), DECISION_REASONS),
            decider_errors: metrics::counter!(DECIDER_ERRORS),
            decider_backlog: metrics::gauge!(DECIDER_BACKLOG),
            decider_lag: metrics::gauge!(DECIDER_LAG),
            redis_main_thread: metrics::gauge!(REDIS_MAIN_THREAD),
            outcome_deliveries: Labelled::new(|v| counter(OUTCOME_DELIVERIES, "result", v), DELIVERY_RESULTS),
            outcomes_delivered: metrics::counter!(OUTCOMES_DELIVERED),
            outcomes_dropped: Labelled::new(|v| counter(OUTCOMES_DROPPED, "cause", v), OUTCOME_LOSSES),
            outcomes_waiting: metrics::gauge!(OUTCOMES_WAITING),
            outcomes_lag: metrics::gauge!(OUTCOMES_LAG),
            wanted_pods: metrics::gauge!(WANTED_PODS),
            wanted_executors: metrics::gauge!(WANTED_EXECUTORS),
            buckets_held: metrics::gauge!(BUCKETS_HELD),
            pods_live: metrics::gauge!(PODS_LIVE),
            executors_live: metrics::gauge!(EXECUTORS_LIVE),
            executor_slots: metrics::gauge!(EXECUTOR_SLOTS),
            executor_busy: metrics::gauge!(EXECUTOR_BUSY),
            redis_call_duration: Labelled::new(
                |v| metrics::histogram!(REDIS_CALL_DURATION, vec![Label::from_static_parts("script", v)]),
                SCRIPTS,
            ),
            redis_errors: Labelled::new(|v| counter(REDIS_ERRORS, "cause", v), REDIS_ERROR_CAUSES),
            redis_write_refused: Labelled::new(
                |v| counter(REDIS_WRITE_REFUSED, "cause", v),
                WRITE_REFUSED_CAUSES,
            ),
            server_clock_regressions: metrics::counter!(SERVER_CLOCK_REGRESSIONS),
            redis_evicting: metrics::gauge!(REDIS_EVICTING),
            history_lost: Labelled::new(|v| counter(HISTORY_LOST, "cause", v), HISTORY_LOST_CAUSES),
        }
    }
}

fn counter(name: &'static str, label: &'static str, value: &'static str) -> Counter {
    metrics::counter!(name, vec![Label::from_static_parts(label, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_prometheus_wants_them() {
        let mut seen = std::collections::BTreeSet::new();
        for family in FAMILIES {
            assert!(seen.insert(family.name), "{} is there twice", family.name);
            assert!(family.name.starts_with("minutehand_"));
            assert_eq!(family.name.ends_with("_total"), family.kind == Kind::Counter, "{}", family.name);
            assert_eq!(family.name.ends_with("_seconds"), family.unit == Unit::Seconds, "{}", family.name);
            assert!(family.help.ends_with('.') || family.name == BUILD_INFO, "{}", family.name);
            if let Kind::Histogram(bounds) = family.kind {
                assert!(bounds.is_sorted() && bounds.len() <= 16, "{}", family.name);
            }
        }
    }

    #[test]
    fn a_new_label_value_joins_the_list_once() {
        let labelled = Labelled::new(|_| Counter::noop(), &["a"]);
        labelled.add("b", 1);
        labelled.add("b", 1);
        labelled.add("a", 1);
        assert_eq!(labelled.known.read().len(), 2);
    }
}
