//! The decider on synthetic traces: a small model of buckets that drain at a bounded pace.

use super::*;
use crate::model::spread::{Bounds, Spread};
use proptest::prelude::*;

/// Windows in an hour.
const HOUR: usize = 720;

/// A world of claim loops: tasks come, each loop drains its bucket at its own pace, Redis bears so many altogether.
struct World {
    rules: Rules,
    spread: Spread,
    state: State,
    /// Tasks a second that one claim loop can claim.
    loop_pace: f64,
    /// Tasks a second that Redis can bear.
    redis_pace: f64,
    backlog: Vec<f64>,
    /// A bucket that nobody can claim from.
    dead: Option<usize>,
    coming: Vec<u64>,
    records: Vec<Record>,
    chance: fastrand::Rng,
}

impl World {
    fn new(buckets: u16) -> Self {
        Self {
            rules: Rules::default(),
            spread: Spread::born(buckets, buckets, 1),
            state: State::default(),
            loop_pace: 1_000.0,
            redis_pace: 1e9,
            backlog: Vec::new(),
            dead: None,
            coming: Vec::new(),
            records: Vec::new(),
            chance: fastrand::Rng::with_seed(7),
        }
    }

    /// One window in which `rate` tasks a second come.
    fn window(&mut self, rate: f64) -> Decision {
        let seconds = self.rules.window_ms as f64 / 1_000.0;
        let buckets = usize::from(self.spread.buckets);
        self.backlog.resize(self.backlog.len().max(buckets), 0.0);
        let mut readings = Readings {
            at_ms: 1_764_511_260_000 + self.records.len() as i64 * self.rules.window_ms,
            window_ms: self.rules.window_ms,
            pods: 4,
            pods_cpu_permille: 400,
            executors: 2,
            slots: 1_000,
            slots_busy: 10,
            run_us: Some(200_000),
            coming: self.coming.clone(),
            ..Readings::default()
        };
        // What Redis bears is shared by the loops that have something to do.
        let active = self.backlog.iter().filter(|b| **b > 0.0).count().max(buckets) as f64;
        let pace = self.loop_pace.min(self.redis_pace / active);
        let mut started = 0.0;
        for at in 0..self.backlog.len() {
            let new = if at < buckets { rate * seconds / buckets as f64 } else { 0.0 };
            let dead = self.dead == Some(at);
            let before = self.backlog[at] + new;
            let holders = f64::from(self.spread.holders_of(at as u16));
            let done = if dead { 0.0 } else { before.min(pace * holders * seconds) };
            self.backlog[at] = before - done;
            started += done;
            let lag_ms = (self.backlog[at] / (pace * holders) * 1_000.0) as i64;
            let busy = if dead { 0.0 } else { done / (pace * holders * seconds) };
            readings.buckets.push(BucketInput {
                bucket: at as u16,
                closing: at >= buckets,
                starts: done as u64,
                p50_ms: (done > 0.0).then_some(2 + lag_ms / 2),
                p99_ms: (done > 0.0).then_some(4 + lag_ms),
                waiting_ms: if dead && before > 0.0 { self.records.len() as i64 * 5_000 } else { lag_ms },
                backlog: self.backlog[at] as u64,
                busy_permille: (busy * 1_000.0) as u16,
                holders: holders as u8,
                ..BucketInput::default()
            });
        }
        readings.p99_ms = readings.buckets.iter().filter_map(|bucket| bucket.p99_ms).max();
        readings.redis_permille = Some((started / seconds / self.redis_pace * 1_000.0).min(1_000.0) as u16);
        self.decide(readings)
    }

    fn decide(&mut self, readings: Readings) -> Decision {
        let inputs = Inputs::new(&self.rules, &self.spread, readings);
        let (state, decision) = decide(&self.rules, &self.state, &inputs);
        let record =
            Record { rules: self.rules, state: self.state.clone(), inputs, decision: decision.clone() };
        self.records.push(record);
        self.state = state;
        match decision.action {
            Action::Hold => {}
            Action::Double { to, .. } | Action::Halve { to, .. } => self.spread.buckets = to,
            Action::Holders { bucket, to, .. } => {
                let mut hot: Vec<_> = self.spread.hot.to_vec();
                hot.retain(|(other, _)| *other != bucket);
                if to > self.spread.holders {
                    hot.push((bucket, to));
                }
                self.spread.hot = hot.into();
            }
        }
        decision
    }

    fn changes(&self, from: usize) -> Vec<(usize, Action)> {
        let records = self.records.iter().enumerate().skip(from);
        records.filter(|(_, r)| r.decision.action.changes()).map(|(at, r)| (at, r.decision.action)).collect()
    }

    /// Each record, written and read back, gives the same decision again.
    fn replays(&self) {
        for record in &self.records {
            let text = serde_json::to_string(record).unwrap();
            let read: Record = serde_json::from_str(&text).unwrap();
            assert_eq!(&read, record);
            assert_eq!(read.again(), record.decision);
        }
    }
}

#[test]
fn decider_follows_a_step_within_three_windows_and_settles() {
    let mut world = World::new(1);
    for _ in 0..20 {
        world.window(300.0);
    }
    assert_eq!(world.changes(0), [], "one bucket is enough for this");
    for _ in 0..HOUR {
        world.window(5_000.0);
    }
    let changes = world.changes(0);
    assert!(changes[0].0 < 20 + 3, "the third late window acts: {changes:?}");
    assert_eq!(world.spread.buckets, 8, "{changes:?}");
    assert_eq!(changes.len(), 3, "each step once, and none back: {changes:?}");
    assert!(changes[2].0 < 20 + 9, "{changes:?}");
    let last = world.records.last().unwrap();
    assert_eq!((last.inputs.late, last.decision.reason), (0, Reason::OnTarget));
    world.replays();
}

#[test]
fn decider_follows_a_ramp_and_halves_when_it_is_long_over() {
    let mut world = World::new(2);
    for window in 0..HOUR {
        world.window(500.0 + window as f64 * 10.0);
    }
    let up = world.changes(0);
    assert_eq!(world.spread.buckets, 8, "{up:?}");
    assert!(up.len() == 2 && up.iter().all(|(_, action)| matches!(action, Action::Double { .. })), "{up:?}");
    let ended = world.records.len();
    for _ in 0..HOUR {
        world.window(0.0);
    }
    let down = world.changes(ended);
    assert_eq!(world.spread.buckets, 2, "never below the buckets of keys");
    assert_eq!(down.len(), 2, "{down:?}");
    assert!(down[0].0 - ended >= 119 && down[1].0 - down[0].0 >= 119, "one step at a time: {down:?}");
    assert_eq!(world.records.last().unwrap().decision.reason, Reason::AtLeast);
    world.replays();
}

#[test]
fn decider_follows_a_daily_wave_without_swinging() {
    let mut world = World::new(1);
    for window in 0..3 * 24 * HOUR {
        let day = window as f64 / (24 * HOUR) as f64 * std::f64::consts::TAU;
        world.window(2_200.0 - 2_000.0 * day.cos());
    }
    let by_day: Vec<usize> = (0..3)
        .map(|day| {
            let (from, to) = (day * 24 * HOUR, (day + 1) * 24 * HOUR);
            world.changes(from).iter().filter(|(at, _)| *at < to).count()
        })
        .collect();
    println!("changes by day: {by_day:?}");
    assert!(by_day.iter().all(|changes| *changes <= 8), "{by_day:?}");
    let late = world.records.iter().filter(|r| r.inputs.late > 0).count();
    println!("late windows of three days: {late} of {}", world.records.len());
    assert!(late < world.records.len() / 100, "{late}");
}

#[test]
fn decider_lets_a_spike_at_nine_pass_and_asks_for_executors_before() {
    let mut world = World::new(8);
    for _ in 0..200 {
        world.window(100.0);
    }
    let calm = world.records.last().unwrap().decision.clone();
    // A slice of 60,000 comes in ten minutes: nothing is given up, and executors are asked for.
    world.spread.key_buckets = 2;
    world.coming = vec![500, 500, 500, 500, 500, 500, 500, 500, 500, 240_000];
    for _ in 0..120 {
        world.window(100.0);
    }
    let ahead = world.records.last().unwrap().decision.clone();
    assert_eq!(ahead.reason, Reason::SliceAhead, "{ahead:?}");
    assert_eq!(world.changes(0), []);
    // 4,000 a second of 200 ms keep 800 slots busy: two executors of 500 at 70 % do not do.
    assert_eq!((calm.wanted_executors, ahead.wanted_executors), (1, 3));
    world.coming = vec![0; 10];
    for backlog in &mut world.backlog {
        *backlog += 240_000.0 / 8.0;
    }
    let spike = world.records.len();
    for _ in 0..60 {
        world.window(100.0);
    }
    let changes = world.changes(spike);
    assert!(changes.len() <= 2, "{changes:?}");
    assert!(world.records.iter().any(|r| r.decision.reason == Reason::Draining), "it ends by itself");
    assert_eq!(world.records.last().unwrap().inputs.late, 0);
    world.replays();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn decider_changes_at_most_thrice_an_hour_on_noise(seed in any::<u64>(), middle in 200.0..6_000.0f64) {
        let mut world = World::new(1);
        world.chance = fastrand::Rng::with_seed(seed);
        // Where this load settles is found first; noise is what comes then.
        for _ in 0..60 {
            world.window(middle);
        }
        let settled = world.records.len();
        for _ in 0..6 * HOUR {
            // From hardly anything to half as much again, with a burst now and then.
            let noise = 0.1 + 1.4 * world.chance.f64();
            let burst = if world.chance.u8(..) < 6 { 3.0 } else { 1.0 };
            world.window(middle * noise * burst);
        }
        let changes = world.changes(settled);
        for hour in 0..6 {
            let (from, to) = (settled + hour * HOUR, settled + (hour + 1) * HOUR);
            let count = changes.iter().filter(|(at, _)| (from..to).contains(at)).count();
            prop_assert!(count <= 3, "hour {}: {:?}", hour, changes);
        }
    }

    #[test]
    fn decider_keeps_its_bounds_whatever_it_reads(
        figures in proptest::collection::vec((0u16..=1_000, 0u16..=1_000, 0i64..10_000, 0u64..100_000, 0u16..=1_000), 1..60),
        key_buckets in 0u32..4, min in 0u32..6, max in 0u32..8, pin in proptest::option::of(0u32..10),
    ) {
        let mut world = World::new(1 << key_buckets);
        world.rules = Rules { calm_windows: 3, ..Rules::default() };
        world.spread.bounds = Bounds { min: Some(1 << min), max: Some(1 << max), pin: pin.map(|pin| 1 << pin), manual: false };
        for (busy, starved, lag, backlog, redis) in figures {
            let before = world.spread.buckets;
            let bucket = |bucket| BucketInput {
                bucket, busy_permille: busy, starved_permille: starved, waiting_ms: lag, backlog, ..BucketInput::default()
            };
            let decision = world.decide(Readings {
                window_ms: 5_000, pods: 3, redis_permille: Some(redis),
                buckets: (0..before).map(bucket).collect(), ..Readings::default()
            });
            let after = world.spread.buckets;
            prop_assert!(after.is_power_of_two() && after >= 1 << key_buckets);
            prop_assert!(after == before || after == before * 2 || after * 2 == before, "one step: {} -> {}", before, after);
            prop_assert!(world.spread.hot.iter().all(|(_, holders)| (2..=3).contains(holders)));
            if pin.is_none() && after > before {
                prop_assert!(after <= world.spread.ceiling());
                prop_assert!(redis < 700 || decision.reason == Reason::OutOfBounds);
            }
        }
        world.replays();
    }
}

#[test]
fn decider_leaves_a_dead_bucket_alone() {
    let mut world = World::new(8);
    world.dead = Some(3);
    for _ in 0..HOUR {
        world.window(800.0);
    }
    assert_eq!(world.changes(0), [], "more buckets would not revive it");
    let last = world.records.last().unwrap();
    assert_eq!((last.inputs.late, last.decision.reason), (1, Reason::NotOurs));
    assert_eq!(last.inputs.worst[0].bucket, 3);
}

#[test]
fn decider_does_not_add_buckets_where_redis_is_the_limit() {
    let mut world = World::new(4);
    world.redis_pace = 3_000.0;
    for _ in 0..HOUR {
        world.window(5_000.0);
    }
    assert_eq!(world.changes(0), []);
    let last = world.records.last().unwrap();
    assert_eq!(last.decision.reason, Reason::RedisBound, "{}", last.decision.why);
}

#[test]
fn decider_does_not_double_again_where_the_last_doubling_brought_nothing() {
    let mut world = World::new(2);
    let reading = |buckets: u16, redis| Readings {
        window_ms: 5_000,
        pods: 4,
        redis_permille: redis,
        buckets: (0..buckets)
            .map(|bucket| BucketInput {
                bucket,
                starts: 8_000 / u64::from(buckets),
                waiting_ms: 60_000,
                backlog: 1_000_000,
                busy_permille: 1_000,
                ..BucketInput::default()
            })
            .collect(),
        ..Readings::default()
    };
    for _ in 0..300 {
        let buckets = world.spread.buckets;
        world.decide(reading(buckets, Some(200)));
    }
    assert_eq!(world.changes(0).len(), 1);
    assert_eq!(world.records.last().unwrap().decision.reason, Reason::NoGain);
    let mut blind = World::new(2);
    for _ in 0..10 {
        blind.decide(reading(2, None));
    }
    assert_eq!(blind.records.last().unwrap().decision.reason, Reason::RedisUnknown);
    let mut away = World::new(2);
    away.decide(Readings { unreadable: 1, ..reading(1, Some(10)) });
    assert_eq!(away.records[0].decision.reason, Reason::Blind);
}

#[test]
fn decider_gives_one_hot_bucket_more_holders_and_takes_them_back() {
    let mut world = World::new(8);
    let reading = |hot: bool| Readings {
        window_ms: 5_000,
        pods: 3,
        executors: 4,
        slots: 128,
        slots_busy: 40,
        redis_permille: Some(300),
        buckets: (0..8)
            .map(|bucket| BucketInput {
                bucket,
                starts: 100,
                waiting_ms: if hot && bucket == 5 { 900 } else { 2 },
                starved_permille: if hot && bucket == 5 { 700 } else { 20 },
                busy_permille: 100,
                ..BucketInput::default()
            })
            .collect(),
        ..Readings::default()
    };
    for _ in 0..20 {
        world.decide(reading(true));
    }
    let two = Action::Holders { bucket: 5, from: 1, to: 2 };
    let three = Action::Holders { bucket: 5, from: 2, to: 3 };
    assert_eq!(world.changes(0), [(2, two), (5, three)], "as many as there are pods, one at a time");
    assert_eq!(world.records.last().unwrap().decision.reason, Reason::HoldersAtMost);
    let cold = world.records.len();
    for _ in 0..HOUR {
        world.decide(reading(false));
    }
    assert_eq!(world.changes(cold).len(), 2);
    assert!(world.spread.hot.is_empty());
    // Where all slots are busy another holder has nobody to give tasks to.
    let mut full = World::new(8);
    for _ in 0..20 {
        full.decide(Readings { slots_busy: 128, ..reading(true) });
    }
    assert_eq!(full.changes(0), []);
    assert_eq!(full.records.last().unwrap().decision.reason, Reason::ExecutorsFull);
}

#[test]
fn decider_obeys_a_pin_and_keeps_still_when_it_is_switched_off() {
    let mut world = World::new(8);
    world.spread.bounds.pin = Some(64);
    for _ in 0..5 {
        world.window(10.0);
    }
    assert_eq!((world.spread.buckets, world.changes(0).len()), (64, 3));
    world.spread.bounds.pin = Some(2);
    for _ in 0..10 {
        world.window(10.0);
    }
    assert_eq!(world.spread.buckets, 8, "the buckets of keys stay");
    world.spread.bounds = Bounds { manual: true, ..Bounds::default() };
    for _ in 0..20 {
        world.window(100_000.0);
    }
    assert_eq!(world.spread.buckets, 8);
    assert_eq!(world.records.last().unwrap().decision.reason, Reason::Manual);
    world.replays();
}

#[test]
fn decider_asks_for_executors_by_what_runs_waits_and_comes() {
    let inputs = |slots_busy, backlog, coming: u64| Inputs {
        window_ms: 60_000,
        starts: 60_000,
        buckets: 8,
        executors: 2,
        slots: 64,
        slots_busy,
        backlog,
        run_us: Some(20_000),
        coming: vec![0, coming],
        ..Inputs::default()
    };
    // 1,000 a second of 20 ms keep 20 slots busy: 29 at 70 %, one executor of 32.
    assert_eq!(wanted_executors(&inputs(20, 0, 0)), 1);
    // 100,000 more of them within half a minute: 67 slots more.
    assert_eq!(wanted_executors(&inputs(20, 100_000, 0)), 4);
    // 600,000 in a coming minute: 200 slots.
    assert_eq!(wanted_executors(&inputs(20, 0, 600_000)), 9);
    assert_eq!(wanted_executors(&Inputs { executors: 3, run_us: None, ..inputs(0, 0, 0) }), 3);
    let mut wanted = Wanted::default().next(9);
    let mut after = 0;
    while wanted.value == 9 {
        wanted = wanted.next(2);
        after += 1;
    }
    assert_eq!((wanted.value, after), (2, WANTED_LOW_WINDOWS), "it falls late");
    assert_eq!(wanted.next(5).value, 5, "and rises at once");
}

#[test]
fn reasons_have_the_names_that_metrics_and_records_know() {
    assert_eq!(Reason::ALL.map(Reason::name).to_vec(), crate::metric::DECISION_REASONS);
    for reason in Reason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
    }
}
