//! How long a queue's tasks run and how often they fail, in a few numbers that can be added up.

use super::bins;
use crate::limits;
use serde::Serialize;
use std::collections::BTreeMap;

/// Runs of a queue's tasks: a histogram of their lengths, and how many failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// How many by length, in the bins of [`bins`].
    bins: BTreeMap<u16, u32>,
    /// How many failed.
    failed: u32,
    /// The longest, in ms.
    max_ms: i64,
}

/// A queue's runs in the usual figures. Percentiles are never better than the truth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunFigures {
    /// Runs counted.
    pub runs: u64,
    /// How many of them failed.
    pub failed: u64,
    /// The same as a share of all.
    pub failure_rate: f64,
    /// Half took at most this long, in ms.
    pub p50_ms: Option<i64>,
    /// 99 in 100 did.
    pub p99_ms: Option<i64>,
    /// The longest.
    pub max_ms: Option<i64>,
    /// A lease that such tasks do not outlive without a renewal: P99 × 3 + 30 s; nothing while too few have run.
    pub suggested_lease_ms: Option<i64>,
}

impl Runs {
    /// Counts a run.
    pub fn add(&mut self, took_ms: i64, failed: bool) {
        let count = self.bins.entry(bins::bin_of(took_ms)).or_default();
        *count = count.saturating_add(1);
        self.failed = self.failed.saturating_add(u32::from(failed));
        self.max_ms = self.max_ms.max(took_ms);
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        for (bin, count) in &other.bins {
            let own = self.bins.entry(*bin).or_default();
            *own = own.saturating_add(*count);
        }
        self.failed = self.failed.saturating_add(other.failed);
        self.max_ms = self.max_ms.max(other.max_ms);
    }

    /// How many by length, in the bins of [`bins`].
    pub fn bins(&self) -> &BTreeMap<u16, u32> {
        &self.bins
    }

    /// How many failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// The longest, in ms.
    pub fn max_ms(&self) -> i64 {
        self.max_ms
    }

    /// Takes in how many failed.
    pub fn set_failed(&mut self, failed: i64) {
        self.failed = u32::try_from(failed).unwrap_or(0);
    }

    /// Takes in the longest.
    pub fn set_max_ms(&mut self, max_ms: i64) {
        self.max_ms = max_ms;
    }

    /// Takes in how many are in a bin.
    pub fn set_bin(&mut self, bin: u16, count: i64) {
        self.bins.insert(bin, u32::try_from(count).unwrap_or(0));
    }

    /// Runs counted.
    pub fn count(&self) -> u64 {
        self.bins.values().map(|count| u64::from(*count)).sum()
    }

    fn quantile(&self, q: f64) -> Option<i64> {
        let count = self.count();
        let rank = ((count as f64) * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.bins.iter().find_map(|(bin, n)| {
            seen += u64::from(*n);
            (seen >= rank).then(|| (bins::start_of(bin + 1) - 1).min(self.max_ms))
        })
    }

    /// The lease for tasks that run like these, in ms; nothing while fewer than [`limits::LEASE_AUTO_RUNS`] have run.
    pub fn suggested_lease_ms(&self) -> Option<i64> {
        let p99 = self.quantile(0.99).filter(|_| self.count() >= limits::LEASE_AUTO_RUNS)?;
        Some(
            (p99.saturating_mul(3).saturating_add(limits::LEASE_MS))
                .clamp(limits::LEASE_MIN_MS, limits::LEASE_MAX_MS),
        )
    }

    /// The usual figures.
    pub fn figures(&self) -> RunFigures {
        let (runs, failed) = (self.count(), u64::from(self.failed));
        RunFigures {
            runs,
            failed,
            failure_rate: if runs > 0 { failed as f64 / runs as f64 } else { 0.0 },
            p50_ms: self.quantile(0.5),
            p99_ms: self.quantile(0.99),
            // The longest of all may have faded from the bins.
            max_ms: self.quantile(1.0),
            suggested_lease_ms: self.suggested_lease_ms(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_runs_and_parts_add_up() {
        let (mut one, mut two) = (Runs::default(), Runs::default());
        assert_eq!(one.figures().p99_ms, None);
        for ms in 1..=100 {
            if ms % 2 == 0 { one.add(ms * 10, ms % 10 == 0) } else { two.add(ms * 10, false) }
        }
        one.merge(&two);
        let told = one.figures();
        assert_eq!((told.runs, told.failed, told.max_ms), (100, 10, Some(1_000)));
        assert!((told.failure_rate - 0.1).abs() < 1e-9);
        let (p50, p99) = (told.p50_ms.unwrap(), told.p99_ms.unwrap());
        assert!((500..=531).contains(&p50) && (990..=1_000).contains(&p99), "{told:?}");
        assert_eq!(told.suggested_lease_ms, Some(p99 * 3 + 30_000));
    }

    #[test]
    fn few_runs_suggest_nothing_and_long_ones_no_more_than_a_day() {
        let mut few = Runs::default();
        (1..limits::LEASE_AUTO_RUNS).for_each(|_| few.add(100, true));
        assert_eq!((few.figures().failure_rate, few.suggested_lease_ms()), (1.0, None));
        few.add(100, true);
        let lease = few.suggested_lease_ms().unwrap();
        assert_eq!(lease, 30_300);
        // The longest run has faded from the bins: the figures are those of what is left.
        few.set_max_ms(3_600_000);
        assert!(few.figures().max_ms.unwrap() < 110);
        let mut long = Runs::default();
        for _ in 0..40 {
            long.add(i64::MAX / 2, false);
        }
        assert_eq!(long.suggested_lease_ms(), Some(limits::LEASE_MAX_MS));
    }
}
