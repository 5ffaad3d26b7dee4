//! Shares of priorities, and of queues within one, told by claims alone: time is injected.

use minutehand::model::{Priority, TaskId};
use minutehand::store::Space;
use minutehand::store::due::{Claim, Granted, Quota};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{T0, ack_done, claim, claim_all, lane, row, space, spec, submit};
use std::collections::{BTreeMap, HashMap};

/// What the executors have room for in one step of 100 ms.
const ROOM: u32 = 20;

async fn add(space: &Space, queue: &str, priority: Priority, count: usize, due_ms: i64) -> Vec<TaskId> {
    let lane = lane(space, queue, priority).await;
    let rows: Vec<_> = (0..count).map(|_| row(spec(lane, due_ms))).collect();
    for rows in rows.chunks(1_000) {
        submit(space, rows).await;
    }
    rows.iter().map(|row| row.id).collect()
}

async fn step(space: &Space, claim_with: &mut Claim, now: i64) -> Vec<Granted> {
    space.inject_now(Some(now));
    claim_with.again();
    let tasks = claim(space, claim_with).await.tasks;
    ack_done(space, &tasks).await;
    tasks
}

fn narrow() -> Claim {
    Claim { limit: ROOM, normal_limit: ROOM, ..claim_all("pod") }
}

fn by_priority(tasks: &[Granted], into: &mut BTreeMap<Priority, usize>) {
    for task in tasks {
        *into.entry(task.lane.priority()).or_default() += 1;
    }
}

#[tokio::test]
async fn the_least_urgent_gets_its_share_while_the_most_urgent_is_saturated() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    add(&space, "low", Priority::P5, 2_000, T0).await;
    let (mut claim, mut counts) = (narrow(), BTreeMap::new());
    // A minute at 110 % of what there is room for, all of it P0.
    for tick in 0..600 {
        let now = T0 + tick * 100;
        space.inject_now(Some(now));
        add(&space, "high", Priority::P0, 22, now).await;
        by_priority(&step(&space, &mut claim, now).await, &mut counts);
    }
    let all: usize = counts.values().sum();
    assert_eq!(all, 600 * ROOM as usize, "nothing of the room is wasted");
    let share = counts[&Priority::P5] as f64 / all as f64;
    let due = 4.0 / 44.0;
    assert!((share - due).abs() < due * 0.1, "P5 got {share}, and should get {due}: {counts:?}");
}

#[tokio::test]
async fn all_six_share_by_weight_also_in_small_claims() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for priority in Priority::ALL {
        add(&space, "q", priority, 1_500, T0).await;
    }
    let (mut claim, mut counts) = (Claim { limit: 3, normal_limit: 3, ..narrow() }, BTreeMap::new());
    for tick in 0..500 {
        by_priority(&step(&space, &mut claim, T0 + tick).await, &mut counts);
    }
    for (priority, weight) in Priority::ALL.into_iter().zip(Priority::WEIGHTS) {
        let (got, due) = (counts[&priority] as f64, 1_500.0 * f64::from(weight) / 100.0);
        assert!((got - due).abs() <= due * 0.1, "{priority} got {got}, and should get {due}: {counts:?}");
    }
}

#[tokio::test]
async fn they_share_by_weight_also_where_each_claim_fills_all_room() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    add(&space, "low", Priority::P5, 300, T0).await;
    add(&space, "high", Priority::P0, 1_000, T0).await;
    let mut counts = BTreeMap::new();
    for tick in 0..440 {
        // Room comes by ones and twos, and there is none besides.
        let room = 1 + tick % 2;
        let quota = Quota::Open { any: room, normal: room };
        let mut claim = Claim { limit: room, normal_limit: room, default_quota: quota, ..narrow() };
        by_priority(&step(&space, &mut claim, T0 + i64::from(tick)).await, &mut counts);
    }
    assert_eq!(counts, BTreeMap::from([(Priority::P0, 600), (Priority::P5, 60)]));
}

/// How many steps late P0 tasks are granted, sorted, beside a backlog of P5.
async fn waits(bed: &Bed, backlog: usize) -> Vec<i64> {
    let space = space(bed).await;
    add(&space, "low", Priority::P5, backlog, T0).await;
    let mut claim = narrow();
    let (mut came, mut waits) = (HashMap::new(), Vec::new());
    for tick in 0..300 {
        let now = T0 + tick * 100;
        space.inject_now(Some(now));
        // At nine tenths of its share.
        for id in add(&space, "high", Priority::P0, 16, now).await {
            came.insert(id, tick);
        }
        for task in step(&space, &mut claim, now).await {
            waits.extend(came.remove(&task.id).map(|since| tick - since));
        }
    }
    waits.sort_unstable();
    waits
}

#[tokio::test]
async fn a_backlog_of_the_least_urgent_does_not_delay_the_most_urgent() {
    let bed = Bed::shared().await.unwrap();
    let (alone, beside) = (waits(&bed, 0).await, waits(&bed, 20_000).await);
    assert_eq!((alone.len(), beside.len()), (4_800, 4_800));
    let p99 = |waits: &[i64]| waits[waits.len() * 99 / 100];
    assert_eq!((p99(&alone), p99(&beside)), (0, 0), "each is granted in the step in which it comes");
}

#[tokio::test]
async fn a_queue_with_a_large_backlog_does_not_delay_the_others_of_its_priority() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    add(&space, "huge", Priority::P3, 12_000, T0).await;
    add(&space, "least", Priority::P5, 12_000, T0).await;
    let mut claim = narrow();
    // 2,000 ripen with each claim: so long others may wait behind what was due before them, and no longer.
    for tick in 0..12 {
        step(&space, &mut claim, T0 + tick * 100).await;
    }
    for tick in 12..=32 {
        let now = T0 + tick * 100;
        space.inject_now(Some(now));
        let small = add(&space, &format!("small-{}", tick % 3), Priority::P3, 2, now).await;
        let tasks = step(&space, &mut claim, now).await;
        assert_eq!(tasks.len(), ROOM as usize);
        assert!(small.iter().all(|id| tasks.iter().any(|task| task.id == *id)), "step {tick}");
    }
}

#[tokio::test]
async fn a_queue_may_have_weights_of_its_own_and_the_oldest_may_weigh_more() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for priority in [Priority::P0, Priority::P5] {
        add(&space, "own", priority, 1_000, T0).await;
    }
    let own = lane(&space, "own", Priority::P0).await.group();
    let share = async |claim: &mut Claim, from: i64| {
        let mut counts = BTreeMap::new();
        for tick in 0..20 {
            by_priority(&step(&space, claim, T0 + from + tick).await, &mut counts);
        }
        counts[&Priority::P5]
    };
    let weights = vec![(own, [10, 1, 1, 1, 1, 30])];
    assert_eq!(share(&mut Claim { own_weights: weights, ..narrow() }, 0).await, 300, "30 of 40");
    // Both have waited for 16 s, so both weigh the same as before: 4 of 44.
    let mut ageing = Claim { ageing_ms: 1_000, ..narrow() };
    let both = share(&mut ageing, 16_000).await;
    assert!((34..=38).contains(&both), "{both} of 400, and 36 are its share");
    // Fresh P0 beside P5 that has waited for long: 40 against 16 × 4.
    let high = lane(&space, "high", Priority::P0).await;
    let mut fresh = 0;
    for tick in 0..40 {
        let now = T0 + 60_000 + tick;
        space.inject_now(Some(now));
        let rows: Vec<_> = (0..ROOM).map(|_| row(spec(high, now))).collect();
        submit(&space, &rows).await;
        let tasks = step(
            &space,
            &mut Claim {
                quotas: vec![(own, minutehand::store::due::Quota::Open { any: 1_000, normal: 1_000 })],
                ..ageing.clone()
            },
            now,
        )
        .await;
        fresh += tasks.iter().filter(|task| task.lane.group() != own).count();
    }
    assert!(fresh > 0, "nobody starves");
}

/// Beside a backlog of another queue three tasks of one moment go within two claims, though these have room for two, four
/// or six, also where a minute ends meanwhile: room is divided, and is not one queue's after the other.
#[tokio::test]
async fn the_room_of_each_claim_is_divided_among_the_queues_that_wait() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    // Seven seconds before a minute ends.
    let from = T0 + 53_000;
    add(&space, "load", Priority::P3, 20_000, from - 8_000).await;
    let mut claim = narrow();
    for tick in 0..12 {
        step(&space, &mut claim, from - 7_000 + tick * 100).await;
    }
    let mut due_of = HashMap::new();
    for n in 0..600 {
        let due = from + n / 3 * 60;
        due_of.insert(add(&space, "probe", Priority::P3, 1, due).await[0], due);
    }
    let mut worst = 0;
    for tick in 0..670 {
        let now = from + tick * 18;
        claim.normal_limit = [2, 6, 4, 6][tick as usize % 4];
        // Room for urgent tasks is no room for these.
        claim.limit = claim.normal_limit + 4;
        claim.ahead_ms = 60;
        claim.default_quota = Quota::Open { any: claim.limit, normal: claim.normal_limit };
        let tasks = step(&space, &mut claim, now).await;
        assert_eq!(tasks.len(), claim.normal_limit as usize, "no room is left empty");
        for task in tasks {
            worst = worst.max(due_of.remove(&task.id).map_or(0, |due| now - due));
        }
    }
    assert!(due_of.is_empty() && worst < 36, "{worst} ms; {} left", due_of.len());
}
