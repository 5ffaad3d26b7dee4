//! So many in any stretch of time, handed out by several pods: the rules that `lua/queue/allot.lua` keeps, without Redis.

use super::queue::Rate;
use std::collections::BTreeMap;

/// What is known of one limit. Times are ms since 1970 by Redis's clock.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// What was spent, by hundredth of the window.
    stretches: BTreeMap<i64, i64>,
    /// What pods hold, and until when.
    pods: BTreeMap<String, (i64, i64)>,
    /// When what was granted so far would have been granted, had it gone evenly.
    even_ms: f64,
}

/// What one pod says and wants.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// Which pod.
    pub pod: &'a str,
    /// What it holds and has not spent.
    pub kept: u32,
    /// What it wants beyond that.
    pub wanted: u32,
    /// What it has spent since it last asked, and when.
    pub spent: &'a [(i64, u32)],
}

impl Window {
    /// Answers what is granted, and after how many ms there may be more. What is granted is good for `lasts_ms`.
    pub fn ask(&mut self, now_ms: i64, rate: &Rate, lasts_ms: i64, wish: &Wish<'_>) -> (u32, i64) {
        let (count, per, burst) = (i64::from(rate.count), rate.per_ms, f64::from(rate.burst()));
        let (kept, wanted) = (i64::from(wish.kept), i64::from(wish.wanted));
        let width = per / 100;
        let mut spent = 0;
        for (at, many) in wish.spent {
            *self.stretches.entry((*at).min(now_ms).div_euclid(width)).or_default() += i64::from(*many);
            spent += i64::from(*many);
        }
        let had = self.pods.get(wish.pod).map_or(0, |(_, held)| *held);
        let mut held = 0;
        let stretches = &mut self.stretches;
        self.pods.retain(|pod, (till, many)| {
            if pod == wish.pod {
                return true;
            }
            if *till < now_ms {
                // Nobody will say what a dead pod spent: all of it, as late as it could.
                *stretches.entry(till.div_euclid(width)).or_default() += *many;
                return false;
            }
            held += *many;
            true
        });
        self.stretches.retain(|at, _| (at + 1) * width > now_ms - per && at * width <= now_ms + per);
        let sum: i64 = self.stretches.values().sum();
        let oldest = self.stretches.keys().next().copied();
        // A tenth faster than the limit, which the window itself keeps.
        let step = per as f64 / (count as f64 * 1.1);
        let now = now_ms as f64;
        let back = had - spent - kept;
        if back > 0 {
            self.even_ms -= back as f64 * step;
        }
        if self.even_ms < now - burst * step || self.even_ms > now + per as f64 {
            self.even_ms = now - burst * step;
        }
        let free = count - sum - held - kept;
        let even = ((now - self.even_ms) / step + 0.000_001).floor() as i64;
        let granted = wanted.min(free).min(even).max(0);
        self.even_ms += granted as f64 * step;
        let mut wait = 0.0f64;
        if granted < wanted {
            wait = (self.even_ms + step - now).ceil();
            if free <= granted {
                let later =
                    oldest.map_or(lasts_ms as f64 / 20.0, |at| ((at + 1) * width + per - now_ms) as f64);
                wait = wait.max(later);
            }
        }
        // As it is written down.
        self.even_ms = format!("{:.3}", self.even_ms).parse().unwrap_or(self.even_ms);
        if kept + granted > 0 {
            self.pods.insert(wish.pod.to_owned(), (now_ms + lasts_ms, kept + granted));
        } else {
            self.pods.remove(wish.pod);
        }
        (granted as u32, (wait.max(1.0)) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LASTS_MS: i64 = 2_000;

    proptest! {
        /// Pods ask, spend, are late, and die: at no time more than the limit is spent within its length.
        #[test]
        fn no_stretch_of_time_has_more_than_the_limit(
            count in 1u32..60,
            steps in proptest::collection::vec((1i64..25, 0usize..3, 0u32..40, 0u32..40, 0u8..40), 1..400),
        ) {
            let rate = Rate { count, per_ms: 1_000, burst: None };
            let (mut window, mut now) = (Window::default(), 1_764_511_260_000);
            let (mut held, mut until, mut lives) = ([0u32; 3], [0i64; 3], [0; 3]);
            let mut unsaid: [Vec<(i64, u32)>; 3] = Default::default();
            let mut spends: Vec<(i64, u32)> = Vec::new();
            for (pass, pod, spend, wanted, fate) in steps {
                now += pass;
                if fate == 0 {
                    (held[pod], unsaid[pod]) = (0, Vec::new());
                    lives[pod] += 1;
                    continue;
                }
                if now > until[pod] {
                    held[pod] = 0;
                }
                let spend = spend.min(held[pod]);
                if spend > 0 {
                    held[pod] -= spend;
                    unsaid[pod].push((now, spend));
                    spends.push((now, spend));
                }
                if fate % 3 > 0 {
                    let name = format!("p{pod}-{}", lives[pod]);
                    let spent = std::mem::take(&mut unsaid[pod]);
                    let wish = Wish { pod: &name, kept: held[pod], wanted, spent: &spent };
                    let (granted, wait) = window.ask(now, &rate, LASTS_MS, &wish);
                    prop_assert!(granted <= wanted && wait >= 1);
                    held[pod] += granted;
                    until[pod] = now + LASTS_MS - 200;
                }
            }
            for (from, _) in &spends {
                let within = spends.iter().filter(|(at, _)| (*from..from + 1_000).contains(at));
                let sum: u32 = within.map(|(_, many)| many).sum();
                prop_assert!(sum <= count, "{} of {} within a second", sum, count);
            }
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// A storm: all want everything at once. It is spread over the windows that it takes.
        #[test]
        fn a_storm_is_spread(count in 60u32..300, pods in 1usize..4, tasks in 500u32..1_500) {
            let rate = Rate { count, per_ms: 5_000, burst: None };
            let (mut window, mut now, mut left) = (Window::default(), 1_764_511_260_000i64, tasks);
            let mut unsaid: Vec<Vec<(i64, u32)>> = vec![Vec::new(); pods];
            let mut starts: Vec<(i64, u32)> = Vec::new();
            for turn in 0.. {
                if left == 0 {
                    break;
                }
                let pod = turn % pods;
                let spent = std::mem::take(&mut unsaid[pod]);
                let name = format!("p{pod}");
                let wish = Wish { pod: &name, kept: 0, wanted: left, spent: &spent };
                let (granted, _) = window.ask(now, &rate, LASTS_MS, &wish);
                if granted > 0 {
                    unsaid[pod].push((now, granted));
                    starts.push((now, granted));
                    left -= granted;
                }
                now += 7;
                prop_assert!(turn < 1_000_000, "{left} of {tasks} never went");
            }
            let most = |ms: i64| {
                let (mut first, mut sum, mut most) = (0, 0, 0);
                for (at, many) in &starts {
                    sum += many;
                    while starts[first].0 <= at - ms {
                        sum -= starts[first].1;
                        first += 1;
                    }
                    most = most.max(sum);
                }
                most
            };
            prop_assert!(most(5_000) <= count);
            let seconds = ((now - starts[0].0) as f64 / 1_000.0).max(1.0);
            let mean = f64::from(tasks) / seconds;
            prop_assert!(f64::from(most(1_000)) <= 3.0 * mean, "{} in a second, {mean} in the mean", most(1_000));
        }
    }
}
