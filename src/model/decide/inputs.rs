//! The figures of one window, made small enough to be kept with each decision.

use super::Rules;
use crate::limits;
use crate::model::spread::Spread;
use serde::{Deserialize, Serialize};

/// One bucket's figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInput {
    /// Its number.
    pub bucket: u16,
    /// Whether it takes no new tasks.
    pub closing: bool,
    /// Starts in the window.
    pub starts: u64,
    /// Half of them were at most this late.
    pub p50_ms: Option<i64>,
    /// 99 in 100 were.
    pub p99_ms: Option<i64>,
    /// How long the oldest ripe task has waited.
    pub waiting_ms: i64,
    /// Ripe tasks that wait.
    pub backlog: u64,
    /// Share of the time that its busiest claim loop is at work.
    pub busy_permille: u16,
    /// Share of the time that this loop waits for room at executors.
    pub starved_permille: u16,
    /// Pods that may hold it.
    pub holders: u8,
    /// Whether it is later than the target.
    pub late: bool,
}

impl BucketInput {
    /// How late it is: by its starts, or by what waits.
    pub fn lag_ms(&self) -> i64 {
        self.p99_ms.unwrap_or(0).max(self.waiting_ms)
    }
}

/// What was read in one window.
#[derive(Debug, Clone, Default)]
pub struct Readings {
    /// Redis's time.
    pub at_ms: i64,
    /// Time since the last reading.
    pub window_ms: i64,
    /// Buckets that answered.
    pub buckets: Vec<BucketInput>,
    /// Buckets that take new tasks and did not answer.
    pub unreadable: u16,
    /// Half of all starts were at most this late.
    pub p50_ms: Option<i64>,
    /// 99 in 100 were.
    pub p99_ms: Option<i64>,
    /// Use of the busiest server's main thread.
    pub redis_permille: Option<u16>,
    /// Live pods.
    pub pods: u16,
    /// Use of their processors, summed.
    pub pods_cpu_permille: u32,
    /// Live executors.
    pub executors: u16,
    /// Their slots.
    pub slots: u32,
    /// Slots that run a task.
    pub slots_busy: u32,
    /// How long a task runs, in µs, as executors report it.
    pub run_us: Option<u64>,
    /// Tasks due in this minute and the coming ones.
    pub coming: Vec<u64>,
}

/// The figures of one window. What the decision rests on is here and nowhere else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// Redis's time.
    pub at_ms: i64,
    /// Time since the last reading.
    pub window_ms: i64,
    /// Buckets that take new tasks.
    pub buckets: u16,
    /// Buckets that close.
    pub closing: u16,
    /// Fewest buckets there may be.
    pub floor: u16,
    /// Most buckets there may be.
    pub ceiling: u16,
    /// The number someone wants.
    pub pin: Option<u16>,
    /// Whether the automatic is off.
    pub manual: bool,
    /// Holders of a bucket that is not named in `hot`.
    pub holders: u8,
    /// Buckets with holders of their own.
    pub hot: Vec<(u16, u8)>,
    /// Buckets that take new tasks and did not answer.
    pub unreadable: u16,
    /// Starts in the window.
    pub starts: u64,
    /// Half of them were at most this late.
    pub p50_ms: Option<i64>,
    /// 99 in 100 were.
    pub p99_ms: Option<i64>,
    /// Ripe tasks that wait.
    pub backlog: u64,
    /// Buckets that are later than the target.
    pub late: u16,
    /// Those of them that take new tasks and whose claim loops are saturated.
    pub late_saturated: u16,
    /// The share of its time that the busiest claim loop is at work.
    pub busiest_permille: u16,
    /// Use of the busiest server's main thread.
    pub redis_permille: Option<u16>,
    /// Live pods.
    pub pods: u16,
    /// Use of their processors, summed.
    pub pods_cpu_permille: u32,
    /// Live executors.
    pub executors: u16,
    /// Their slots.
    pub slots: u32,
    /// Slots that run a task.
    pub slots_busy: u32,
    /// How long a task runs, in µs.
    pub run_us: Option<u64>,
    /// Tasks due in this minute and the coming ones.
    pub coming: Vec<u64>,
    /// The buckets that are worst off, and those that are hot.
    pub worst: Vec<BucketInput>,
}

impl Inputs {
    /// Sums up what was read.
    pub fn new(rules: &Rules, spread: &Spread, readings: Readings) -> Self {
        let mut buckets = readings.buckets;
        for bucket in &mut buckets {
            bucket.late = bucket.lag_ms() > rules.target_ms;
        }
        let open = || buckets.iter().filter(|bucket| !bucket.closing);
        let busiest = buckets.iter().map(|bucket| bucket.busy_permille.max(bucket.starved_permille)).max();
        let mut out = Self {
            at_ms: readings.at_ms,
            window_ms: readings.window_ms,
            buckets: spread.buckets,
            closing: spread.closing.len() as u16,
            floor: spread.floor(),
            ceiling: spread.ceiling(),
            pin: spread.bounds.pin,
            manual: spread.bounds.manual,
            holders: spread.holders,
            hot: spread.hot.to_vec(),
            unreadable: readings.unreadable,
            starts: buckets.iter().map(|bucket| bucket.starts).sum(),
            p50_ms: readings.p50_ms,
            p99_ms: readings.p99_ms,
            backlog: buckets.iter().map(|bucket| bucket.backlog).sum(),
            late: buckets.iter().filter(|bucket| bucket.late).count() as u16,
            late_saturated: open()
                .filter(|bucket| bucket.late && bucket.busy_permille >= rules.saturated_permille)
                .count() as u16,
            busiest_permille: busiest.unwrap_or(0),
            redis_permille: readings.redis_permille,
            pods: readings.pods,
            pods_cpu_permille: readings.pods_cpu_permille,
            executors: readings.executors,
            slots: readings.slots,
            slots_busy: readings.slots_busy,
            run_us: readings.run_us,
            coming: readings.coming,
            worst: Vec::new(),
        };
        // The latest first; among those that are equally late, the busiest.
        buckets.sort_by_key(|bucket| {
            let effort = bucket.busy_permille.max(bucket.starved_permille);
            (std::cmp::Reverse((bucket.lag_ms(), effort)), bucket.bucket)
        });
        let is_hot = |bucket: &BucketInput| out.hot.iter().any(|(hot, _)| *hot == bucket.bucket);
        let mut shown = 0;
        buckets.retain(|bucket| {
            shown += 1;
            shown <= limits::DECISION_BUCKETS_MAX || is_hot(bucket)
        });
        out.worst = buckets;
        out
    }

    /// Whether claim loops are too slow for at least half of the buckets.
    pub fn overloaded(&self) -> bool {
        self.late_saturated > 0 && self.late_saturated * 2 >= self.buckets
    }

    /// Whether no executor has a free slot.
    pub fn executors_full(&self) -> bool {
        self.slots > 0 && u64::from(self.slots_busy) * 100 >= u64::from(self.slots) * 95
    }

    /// Starts a minute.
    pub fn starts_per_minute(&self) -> u64 {
        self.starts.saturating_mul(60_000) / u64::try_from(self.window_ms.max(1)).unwrap_or(1)
    }

    pub(super) fn lag_text(&self) -> String {
        let waiting = self.worst.first().map_or(0, BucketInput::lag_ms);
        match self.p99_ms {
            Some(p99) => format!("p99 {p99} ms, the latest bucket {waiting} ms"),
            None if self.backlog > 0 => format!("no starts, the oldest task has waited {waiting} ms"),
            None => "no starts".to_owned(),
        }
    }

    pub(super) fn executors_text(&self) -> String {
        format!("{} of {} slots of {} executors are busy", self.slots_busy, self.slots, self.executors)
    }
}
