//! What an executor has done so far, shared live with whoever shows it.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Longest lag that is told apart: an hour. A later start counts as an hour late.
const LAG_MAX_MS: u64 = 3_600_000;

/// Counters of one executor.
pub struct Stats {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    skipped: AtomicU64,
    recovered: AtomicU64,
    handed_back: AtomicU64,
    stale: AtomicU64,
    lost: AtomicU64,
    lag_ms: Mutex<Histogram<u64>>,
}

/// Figures of how late handlers were entered, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Lag {
    /// Half were at most this late.
    pub p50: u64,
    /// 99 in 100 were at most this late.
    pub p99: u64,
    /// The latest.
    pub max: u64,
}

/// What an executor did, at one moment or in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExecutorReport {
    /// Handlers entered.
    pub started: u64,
    /// Outcomes accepted as a success.
    pub succeeded: u64,
    /// Outcomes accepted as a failure, to be tried again or not.
    pub failed: u64,
    /// Ended as cancelled.
    pub cancelled: u64,
    /// Ended as skipped: not started, since their latest start had passed.
    pub skipped: u64,
    /// Outcomes of an earlier process, found in the journal, that were accepted. Not in the other figures.
    pub recovered: u64,
    /// Given back, uncounted.
    pub handed_back: u64,
    /// Grants that no longer stood when something was to be said about them.
    pub stale: u64,
    /// Outcomes that could not be reported at all; their tasks come back when the leases lapse.
    pub lost: u64,
    /// Start minus due, by Redis's clock.
    pub lag_ms: Lag,
}

impl Default for Stats {
    fn default() -> Self {
        Self::new()
    }
}

impl Stats {
    /// All zero.
    pub fn new() -> Self {
        let lag_ms =
            Histogram::new_with_bounds(1, LAG_MAX_MS, 3).expect("1 ms to 1 h with 3 digits is a legal range");
        Self {
            started: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            handed_back: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            lag_ms: Mutex::new(lag_ms),
        }
    }

    /// The figures now.
    pub fn report(&self) -> ExecutorReport {
        let lag_ms = {
            let lag = self.lag_ms.lock();
            Lag { p50: lag.value_at_quantile(0.5), p99: lag.value_at_quantile(0.99), max: lag.max() }
        };
        ExecutorReport {
            started: self.started.load(Relaxed),
            succeeded: self.succeeded.load(Relaxed),
            failed: self.failed.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            recovered: self.recovered.load(Relaxed),
            handed_back: self.handed_back.load(Relaxed),
            stale: self.stale.load(Relaxed),
            lost: self.lost.load(Relaxed),
            lag_ms,
        }
    }

    pub(super) fn started(&self, lag_ms: i64) {
        self.started.fetch_add(1, Relaxed);
        self.lag_ms.lock().saturating_record(u64::try_from(lag_ms).unwrap_or(0));
    }

    pub(super) fn succeeded(&self) {
        self.succeeded.fetch_add(1, Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(super) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Relaxed);
    }

    pub(super) fn skipped(&self) {
        self.skipped.fetch_add(1, Relaxed);
    }

    pub(super) fn recovered(&self) {
        self.recovered.fetch_add(1, Relaxed);
    }

    pub(super) fn handed_back(&self, count: u64) {
        self.handed_back.fetch_add(count, Relaxed);
    }

    pub(super) fn stale(&self) {
        self.stale.fetch_add(1, Relaxed);
    }

    pub(super) fn lost(&self, count: usize) {
        self.lost.fetch_add(count as u64, Relaxed);
    }
}

impl std::fmt::Debug for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report().fmt(f)
    }
}
