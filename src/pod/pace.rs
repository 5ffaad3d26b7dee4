//! How long a claim loop gathers before it claims.
//!
//! A claim costs Redis some 25 µs before it moves anything. While few tasks come, each is claimed the
//! moment it is due; from some 2,500 a second on, waiting up to 5 ms lets one call carry several. All
//! loops of a pod then claim at the same moment, so that what they bring for one executor travels in one offer.

use crate::clock;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Rate up to which nothing gathers, in tasks a second.
const CALM_RATE: f64 = 2_500.0;
/// Rate from which on gathering takes its full time.
const BUSY_RATE: f64 = 10_000.0;
/// Window over which the rate is measured.
const WINDOW: Duration = Duration::from_millis(100);

/// The pod's rate of claimed tasks, and the gathering time that follows from it.
#[derive(Debug)]
pub struct Pace {
    gather_max: Duration,
    inner: Mutex<Rate>,
    /// When the loops that gather claim next, or did last.
    leave: Mutex<Instant>,
}

#[derive(Debug)]
struct Rate {
    since: Instant,
    tasks: u64,
    per_second: f64,
}

impl Pace {
    /// A pace that gathers for at most so long.
    pub fn new(gather_max_ms: u64) -> Self {
        let rate = Rate { since: clock::mono(), tasks: 0, per_second: 0.0 };
        let leave = Mutex::new(rate.since);
        Self { gather_max: Duration::from_millis(gather_max_ms), inner: Mutex::new(rate), leave }
    }

    /// Counts claimed tasks.
    pub fn claimed(&self, tasks: usize) {
        let now = clock::mono();
        let mut rate = self.inner.lock();
        rate.tasks += tasks as u64;
        let passed = now.saturating_duration_since(rate.since);
        if passed >= WINDOW {
            let fresh = rate.tasks as f64 / passed.as_secs_f64();
            rate.per_second = if passed > 5 * WINDOW { fresh } else { 0.5 * rate.per_second + 0.5 * fresh };
            rate.tasks = 0;
            rate.since = now;
        }
    }

    /// Claimed tasks a second, lately.
    pub fn per_second(&self) -> f64 {
        self.inner.lock().per_second
    }

    /// The shortest time between two claims of one bucket.
    pub fn gather(&self) -> Duration {
        gather(self.per_second(), self.gather_max)
    }

    /// When a loop that has something to claim at `now` may do so; nothing while the pod is calm.
    pub fn leave(&self, now: Instant) -> Option<Instant> {
        let gather = self.gather();
        if gather.is_zero() {
            return None;
        }
        let mut leave = self.leave.lock();
        *leave = departure(*leave, gather, now);
        Some(*leave)
    }
}

/// The departure under way if there is one, else a gathering after the last.
fn departure(last: Instant, gather: Duration, now: Instant) -> Instant {
    if last > now { last } else { now.max(last + gather) }
}

fn gather(per_second: f64, most: Duration) -> Duration {
    let share = ((per_second - CALM_RATE) / (BUSY_RATE - CALM_RATE)).clamp(0.0, 1.0);
    most.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_leave_together_and_not_too_often() {
        let (start, gather) = (clock::mono(), Duration::from_millis(5));
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(departure(start, gather, at(20)), at(20), "the first one waits for nobody");
        let next = departure(at(20), gather, at(21));
        assert_eq!(next, at(25));
        assert_eq!(departure(next, gather, at(24)), at(25), "whoever comes until then joins");
        assert_eq!(departure(next, gather, at(25)), at(30));
    }

    #[test]
    fn calm_pods_do_not_gather_and_busy_ones_gather_in_full() {
        let most = Duration::from_millis(5);
        assert_eq!(gather(0.0, most), Duration::ZERO);
        assert_eq!(gather(2_000.0, most), Duration::ZERO);
        assert_eq!(gather(6_250.0, most), Duration::from_micros(2_500));
        assert_eq!(gather(50_000.0, most), most);
    }
}
