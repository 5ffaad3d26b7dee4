//! Ready means that the pod lately did its work.

use crate::limits;
use parking_lot::Mutex;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The age of the last successful work, and what went wrong since. Shared by the loops of a pod.
///
/// No loop reports that it is well; it reports work that succeeded, and silence makes the pod not
/// ready. So a loop that hangs or died shows.
#[derive(Debug)]
pub struct Readiness {
    limit: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    worked: Option<Instant>,
    /// Since when all has succeeded.
    well_since: Option<Instant>,
    /// When Redis last refused something, or did not answer.
    refused: Option<Instant>,
    /// Newest last, each cause once.
    causes: VecDeque<(Instant, Cow<'static, str>)>,
}

/// What `/readyz` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadyReport {
    /// Whether the last successful work is young enough.
    pub ready: bool,
    /// Age of the last successful work in ms; none before the first.
    pub last_work_age_ms: Option<u64>,
    /// Up to which age the answer is yes.
    pub limit_ms: u64,
    /// What went wrong lately, newest first.
    pub causes: Vec<String>,
}

impl Readiness {
    /// Not ready until the first work; then while the last one is at most `limit` old.
    pub fn new(limit: Duration) -> Self {
        Self { limit, inner: Mutex::default() }
    }

    /// Something that counts as work succeeded at `now`.
    pub fn worked(&self, now: Instant) {
        let mut inner = self.inner.lock();
        inner.worked = inner.worked.max(Some(now));
        inner.well_since.get_or_insert(now);
    }

    /// Work failed at `now`, for this cause. Forgotten after the limit.
    pub fn failing(&self, now: Instant, cause: impl Into<Cow<'static, str>>) {
        let cause = cause.into();
        let mut inner = self.inner.lock();
        inner.well_since = None;
        inner.causes.retain(|(_, known)| *known != cause);
        if inner.causes.len() >= limits::READY_CAUSES_MAX {
            inner.causes.pop_front();
        }
        inner.causes.push_back((now, cause));
    }

    /// The same, where Redis refused it or did not answer.
    pub fn refused(&self, now: Instant, cause: impl Into<Cow<'static, str>>) {
        self.failing(now, cause);
        let mut inner = self.inner.lock();
        inner.refused = inner.refused.max(Some(now));
    }

    /// Whether that was lately: then who has nothing to do looks for itself whether it could do something.
    pub fn is_doubtful(&self, now: Instant) -> bool {
        self.inner.lock().refused.is_some_and(|at| now.saturating_duration_since(at) <= self.limit)
    }

    /// For how long work has succeeded and nothing failed; no time at all before the first success.
    pub fn well_for(&self, now: Instant) -> Duration {
        self.inner.lock().well_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// What holds at `now`.
    pub fn report(&self, now: Instant) -> ReadyReport {
        let inner = self.inner.lock();
        let age = inner.worked.map(|worked| now.saturating_duration_since(worked));
        let young = |at: Instant| now.saturating_duration_since(at) <= self.limit;
        ReadyReport {
            ready: age.is_some_and(|age| age <= self.limit),
            last_work_age_ms: age.map(whole_ms),
            limit_ms: whole_ms(self.limit),
            causes: inner
                .causes
                .iter()
                .rev()
                .filter(|(at, _)| young(*at))
                .map(|(_, cause)| cause.to_string())
                .collect(),
        }
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn readiness_is_the_age_of_the_last_work() {
        let start = clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ready = Readiness::new(Duration::from_millis(1_000));
        assert_eq!(
            ready.report(at(0)),
            ReadyReport { ready: false, last_work_age_ms: None, limit_ms: 1_000, causes: vec![] }
        );
        assert_eq!(ready.well_for(at(9)), Duration::ZERO);
        ready.worked(at(10));
        ready.worked(at(5)); // late news of an older success changes nothing
        assert_eq!(ready.well_for(at(510)), Duration::from_millis(500));
        assert!(ready.report(at(1_010)).ready);
        assert_eq!(ready.report(at(1_010)).last_work_age_ms, Some(1_000));
        assert!(!ready.report(at(1_011)).ready);
        ready.failing(at(1_100), "redis: timed out");
        ready.failing(at(1_200), "redis: refused");
        ready.failing(at(1_300), "redis: timed out");
        assert_eq!(ready.well_for(at(1_300)), Duration::ZERO);
        assert_eq!(ready.report(at(1_300)).causes, ["redis: timed out", "redis: refused"]);
        assert_eq!(ready.report(at(2_250)).causes, ["redis: timed out"]);
        assert!(!ready.is_doubtful(at(1_400)), "nothing says that redis refused it");
        ready.refused(at(2_000), "redis: read-only");
        assert_eq!(ready.report(at(2_900)).causes, ["redis: read-only"]);
        assert_eq!([2_000, 3_000, 3_001].map(|ms| ready.is_doubtful(at(ms))), [true, true, false]);
        for n in 0..100 {
            ready.failing(at(3_000), format!("cause {n}"));
        }
        assert_eq!(ready.report(at(3_000)).causes.len(), limits::READY_CAUSES_MAX);
    }
}
