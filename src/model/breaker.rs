//! When failures hold work back, and when it goes again: the rules that `lua/queue/allot.lua` keeps, without Redis.

use super::queue::BreakerSettings;
use serde::Serialize;
use std::collections::BTreeMap;

/// How a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// All goes.
    #[default]
    Closed,
    /// What it may hold is held.
    Open,
    /// A few tasks try whether it may close.
    HalfOpen,
}

/// One breaker. Times are ms since 1970 by Redis's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Its state.
    pub state: BreakerState,
    /// Since when.
    pub since_ms: i64,
    /// When an open one is tried, and when probes of a half-open one are taken for lost.
    pub until_ms: i64,
    /// Successes and failures by twentieth of the window.
    stretches: BTreeMap<i64, (u64, u64)>,
    given: u32,
    good: u64,
    bad: u64,
}

impl Breaker {
    /// A closed one.
    pub fn new(now_ms: i64) -> Self {
        Self { since_ms: now_ms, ..Self::default() }
    }

    /// Hears of outcomes, and answers how many probes may go.
    pub fn hear(
        &mut self,
        now_ms: i64,
        settings: &BreakerSettings,
        succeeded: u64,
        failed: u64,
        probes_wanted: u32,
    ) -> u32 {
        let open_until = now_ms + settings.open_ms;
        let turn = |it: &mut Self, state, until_ms| {
            (it.state, it.since_ms, it.until_ms) = (state, now_ms, until_ms);
            it.stretches.clear();
        };
        match self.state {
            BreakerState::Closed => {
                let width = settings.window_ms / 20;
                let this = self.stretches.entry(now_ms.div_euclid(width)).or_default();
                *this = (this.0 + succeeded, this.1 + failed);
                let within = |at: i64| {
                    (at + 1) * width > now_ms - settings.window_ms
                        && at * width <= now_ms + settings.window_ms
                };
                self.stretches.retain(|at, (good, bad)| within(*at) && *good + *bad > 0);
                let (good, bad) =
                    self.stretches.values().fold((0, 0), |(good, bad), one| (good + one.0, bad + one.1));
                let enough = good + bad >= u64::from(settings.min_outcomes);
                if enough && bad * 100 >= u64::from(settings.error_percent) * (good + bad) {
                    turn(self, BreakerState::Open, open_until);
                }
            }
            BreakerState::HalfOpen => {
                (self.good, self.bad) = (self.good + succeeded, self.bad + failed);
                let probes = u64::from(settings.probes);
                if self.bad * 100 >= u64::from(settings.error_percent) * probes {
                    turn(self, BreakerState::Open, open_until);
                } else if self.good + self.bad >= probes {
                    turn(self, BreakerState::Closed, 0);
                } else if now_ms >= self.until_ms {
                    // Probes of which nobody has heard are lost.
                    (self.given, self.until_ms) = ((self.good + self.bad) as u32, open_until);
                }
            }
            BreakerState::Open => {}
        }
        // A time to try that lies too far ahead was written by another clock.
        if self.state == BreakerState::Open && (now_ms >= self.until_ms || self.until_ms > open_until) {
            turn(self, BreakerState::HalfOpen, open_until);
            self.given = 0;
        }
        if self.state != BreakerState::HalfOpen {
            (self.given, self.good, self.bad) = (0, 0, 0);
            return 0;
        }
        let granted = probes_wanted.min(settings.probes.saturating_sub(self.given));
        self.given += granted;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_opens_for_a_reason_and_lets_few_try(
            steps in proptest::collection::vec((1i64..3_000, 0u64..8, 0u64..8, 0u32..9), 1..200),
        ) {
            let settings: BreakerSettings = "50%:20:5s".parse().unwrap();
            let mut now = 1_764_511_260_000;
            let mut breaker = Breaker::new(now);
            let (mut heard, mut given) = (Vec::new(), 0);
            for (pass, good, bad, wanted) in steps {
                now += pass;
                let before = breaker.clone();
                let probes = breaker.hear(now, &settings, good, bad, wanted);
                heard.push((now, good, bad));
                match (before.state, breaker.state) {
                    (BreakerState::Closed, BreakerState::Open) => {
                        // All that it may have counted lies within the window, or just before it.
                        let late = heard.iter().filter(|(at, ..)| *at >= before.since_ms.max(now - 10_500));
                        let (good, bad) = late.fold((0, 0), |sum, one| (sum.0 + one.1, sum.1 + one.2));
                        prop_assert!(good + bad >= 20 && bad >= 10, "{good} and {bad}");
                    }
                    (BreakerState::Open, BreakerState::Closed) => prop_assert!(false, "it was not tried"),
                    (BreakerState::Open, BreakerState::HalfOpen) => {
                        prop_assert!(now >= before.until_ms);
                        given = 0;
                    }
                    _ => {}
                }
                if breaker.state == BreakerState::HalfOpen {
                    if before.until_ms != breaker.until_ms {
                        given = 0;
                    }
                    given += probes;
                    prop_assert!(given <= settings.probes, "{given} probes at once");
                } else {
                    prop_assert_eq!(probes, 0);
                }
            }
        }
    }
}
