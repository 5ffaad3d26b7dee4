//! How far ahead a claim loop looks.
//!
//! What is due soon is claimed a little ahead and held by its executor, which starts it on its millisecond. The way
//! there then costs no time, and one call carries all that falls due in a while: a loop claims once a period, and
//! takes what is due until the end of the next one. The loops of a pod claim at the same moments, so that what they
//! bring for one executor travels together.

use crate::model::UnixMs;

/// The last moment for a claim is this part of the look-ahead before the task is due; the rest is the period.
const LEAD_PART: i64 = 3;
/// A look-ahead below this is not worth its while: then nothing is claimed ahead for a while.
const LEAST_MS: i64 = 9;
/// How long a loop does without a look-ahead that turned out too far.
const PAUSE_MS: i64 = 200;

/// What one claim loop has learned of how far it may look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LookAhead {
    most_ms: i64,
    now_ms: i64,
    /// Redis's time until which it does without.
    paused_until: UnixMs,
    seen: UnixMs,
}

impl LookAhead {
    /// Looks ahead for at most so long.
    pub fn new(most_ms: i64) -> Self {
        Self { most_ms, now_ms: most_ms, paused_until: UnixMs(0), seen: UnixMs(0) }
    }

    /// How far the next claim looks, where executors allow `allowed_ms`.
    pub fn ahead_ms(&self, allowed_ms: i64) -> i64 {
        let ahead = self.now_ms.min(allowed_ms);
        if ahead < LEAST_MS || self.seen < self.paused_until { 0 } else { ahead }
    }

    /// When to claim for the sake of a task that is due at `due`.
    pub fn lead(&self, due: UnixMs, ahead_ms: i64) -> UnixMs {
        due.plus(-ahead_ms / LEAD_PART)
    }

    /// A claim was made at `now` that says nothing of how far to look.
    pub fn see(&mut self, now: UnixMs) {
        self.seen = now;
    }

    /// When to claim next, after a claim at `now` that looked `ahead_ms` ahead and left nothing sooner than `due`.
    /// `more`: there may be room for more than it asked for.
    pub fn wake(&mut self, now: UnixMs, due: UnixMs, ahead_ms: i64, more: bool) -> UnixMs {
        self.seen = now;
        if ahead_ms == 0 {
            return due;
        }
        if due <= now.plus(ahead_ms) {
            if more {
                return now.plus(1).min(due);
            }
            // There was no room for so much: less next time, and this when it is due.
            self.now_ms = ahead_ms / 2;
            if self.now_ms < LEAST_MS {
                (self.now_ms, self.paused_until) = (LEAST_MS.min(self.most_ms), now.plus(PAUSE_MS));
            }
            return due;
        }
        self.now_ms = (2 * self.now_ms).min(self.most_ms);
        let period = ahead_ms - ahead_ms / LEAD_PART;
        let latest = self.lead(due, ahead_ms);
        // At the last common moment before that, unless it has passed.
        UnixMs(latest.0.div_euclid(period) * period).max(now.plus(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Played with a clock: no task is claimed later than its lead allows, and a busy loop claims once a period.
        #[test]
        fn tasks_are_claimed_in_time_and_calls_are_few(
            gaps in proptest::collection::vec(0i64..200, 1..200), most_ms in LEAST_MS..=200,
        ) {
            let mut look = LookAhead::new(most_ms);
            let mut due = 1_000_000;
            let dues: Vec<i64> = gaps.iter().map(|gap| { due += gap; due }).collect();
            let (mut now, mut at, mut claims) = (999_000, 0, Vec::new());
            while at < dues.len() {
                let ahead = look.ahead_ms(1_000);
                prop_assert_eq!(ahead, most_ms);
                while at < dues.len() && dues[at] <= now + ahead {
                    prop_assert!(now <= dues[at] - ahead / LEAD_PART, "{} claimed at {now}", dues[at]);
                    at += 1;
                }
                claims.push(now);
                if at < dues.len() {
                    let next = look.wake(UnixMs(now), UnixMs(dues[at]), ahead, false).0;
                    prop_assert!(next > now);
                    now = next;
                }
            }
            let period = most_ms - most_ms / LEAD_PART;
            for three in claims.windows(3) {
                prop_assert!(three[2] - three[0] >= period, "{claims:?}");
            }
        }
    }

    #[test]
    fn it_looks_less_far_where_there_is_no_room_and_further_again_later() {
        let mut look = LookAhead::new(60);
        let mut now = UnixMs(10_000);
        let mut seen = Vec::new();
        for _ in 0..4 {
            let ahead = look.ahead_ms(200);
            seen.push(ahead);
            assert_eq!(
                look.wake(now, now.plus(5), ahead, false),
                now.plus(5),
                "what is left is claimed when it is due"
            );
        }
        assert_eq!(seen, [60, 30, 15, 0]);
        now = now.plus(PAUSE_MS);
        assert_eq!(look.wake(now, now.plus(500), 0, false), now.plus(500));
        let mut again = Vec::new();
        for _ in 0..4 {
            let ahead = look.ahead_ms(200);
            again.push(ahead);
            now = look.wake(now, now.plus(ahead + 100), ahead, false);
        }
        assert_eq!(again, [9, 18, 36, 60]);
        assert_eq!(look.ahead_ms(200), 60);
        assert_eq!((look.ahead_ms(20), look.ahead_ms(0)), (20, 0), "executors may allow less");
    }
}
