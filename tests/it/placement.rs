//! Limits of placement keys: who of one recipient may go, who waits, and what becomes of those that wait.

use minutehand::client::{Cancelled, Client, Due, NewTask};
use minutehand::executor::Executor;
use minutehand::model::event::Move;
use minutehand::model::queue::{Collapse, PlacementSettings, placement_rate};
use minutehand::model::{Key, LaneCode, Namespace, Priority, QueueName, Spec, State, TaskId, UnixMs};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::due::{self, Claim, Claimed, Granted};
use minutehand::store::intake::{self, Backlog, Row, RowAnswer, Sending, SubmitAnswer, WishAnswer};
use minutehand::store::read::{self, Waits};
use minutehand::store::run::{self, Outcome};
use minutehand::store::{Space, dead, events};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{self, *};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn of(key: &str, spec: Spec) -> Row {
    row(Spec { placement: Some(key.to_owned().into()), ..spec })
}

fn running(most: u32) -> PlacementSettings {
    PlacementSettings { running: Some(most), ..PlacementSettings::default() }
}

fn ordered() -> PlacementSettings {
    PlacementSettings { ordered: true, ..PlacementSettings::default() }
}

/// A claim of everything, under this rule for a lane's queue.
fn ruled(lane: LaneCode, rule: &PlacementSettings) -> Claim {
    rule.check().unwrap();
    let mut claim = claim_all("p");
    claim.limits.placed = rule.rule(lane.group()).into();
    claim
}

/// Claims until nothing more comes, as a pod does.
async fn all(space: &Space, ask: &mut Claim) -> Vec<TaskId> {
    let mut out = Vec::new();
    loop {
        ask.again();
        let claimed = claim(space, ask).await;
        out.extend(claimed.tasks.iter().map(|task| task.id));
        if !claimed.again {
            return out;
        }
    }
}

fn ids(claimed: &Claimed) -> Vec<TaskId> {
    claimed.tasks.iter().map(|task| task.id).collect()
}

async fn held(space: &Space) -> i64 {
    read::counts(space, bucket()).await.unwrap().count("held")
}

async fn waits(space: &Space, id: TaskId) -> Option<Waits> {
    read::get(space, id).await.unwrap().unwrap().waits.map(|(waits, _)| waits)
}

#[tokio::test]
async fn one_of_a_key_runs_and_the_others_wait_in_due_order() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let own: Vec<Row> = [3, 1, 2].map(|n| of("u-17", spec(lane, T0 - 10 + n))).into();
    let (other, plain) = (of("u-18", spec(lane, T0 - 1)), row(spec(lane, T0)));
    submit(&space, &[own.clone(), vec![other.clone(), plain.clone()]].concat()).await;
    let mut ask = ruled(lane, &running(1));
    let first = claim(&space, &ask).await;
    assert_eq!((ids(&first), first.again), (vec![own[1].id, other.id, plain.id], true));
    assert_eq!(held(&space).await, 2);
    assert_eq!(waits(&space, own[0].id).await, Some(Waits::Running(1)));
    let told = events::trace(&space, own[0].id).await.unwrap().events;
    let told = told.last().unwrap();
    assert_eq!((told.event, told.cause.as_str()), (Move::SetAside, "1 of u-17 is running"));
    sound(&space).await;
    // Nothing wakes the pod for them before someone has ended, but a look after them now and then.
    assert_eq!(all(&space, &mut ask).await, []);
    // The end of another key's task is none of theirs.
    ack_done(&space, &first.tasks[1..]).await;
    assert_eq!(all(&space, &mut ask).await, []);
    ack_done(&space, &first.tasks[..1]).await;
    ask.again();
    let second = claim(&space, &ask).await;
    assert_eq!(ids(&second), [own[2].id]);
    // Given back, it frees its place, and is the first again.
    let back = [(second.tasks[0].id, second.tasks[0].grant)];
    due::release(&space, bucket(), "p", "test", &back).await.unwrap();
    ask.again();
    let again = claim(&space, &ask).await;
    assert_eq!((ids(&again), held(&space).await), (vec![own[2].id], 1));
    // One that failed and waits for another try does not run.
    let row = ack_row(&again.tasks[0], Outcome::Failed { error: "no".into() });
    run::ack(&space, bucket(), "x", &[row], false).await.unwrap();
    ask.again();
    let third = claim(&space, &ask).await;
    assert_eq!((ids(&third), held(&space).await), (vec![own[0].id], 0));
    space.inject_now(Some(T0 + 10_000));
    assert_eq!(all(&space, &mut ask).await, []);
    assert_eq!(waits(&space, own[2].id).await, Some(Waits::Running(1)), "the one that had failed waits now");
    // A lease that lapses frees it as well.
    space.inject_now(Some(T0 + 30_000));
    assert_eq!(all(&space, &mut ask).await.len(), 1);
    sound(&space).await;
}

#[tokio::test]
async fn what_waits_holds_nobody_up() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let rows: Vec<Row> = (0..200).map(|n| of("one", spec(lane, T0 - 1_000 + n))).collect();
    submit(&space, &rows).await;
    let others: Vec<Row> = (0..5).map(|n| of(&format!("u-{n}"), spec(lane, T0))).collect();
    submit(&space, &others).await;
    // Room for six: the one that may go, and all that came after the two hundred.
    let mut ask = Claim { limit: 6, normal_limit: 6, ..ruled(lane, &running(1)) };
    let got: BTreeSet<TaskId> = {
        let mut got = Vec::new();
        while got.len() < 6 {
            ask.again();
            let claimed = claim(&space, &ask).await;
            assert!(claimed.again || claimed.backlog > 0 || got.len() + claimed.tasks.len() == 6);
            got.extend(ids(&claimed));
            (ask.limit, ask.normal_limit) = (6 - got.len() as u32, 6 - got.len() as u32);
        }
        got.into_iter().collect()
    };
    let expected = others.iter().chain(&rows[..1]).map(|row| row.id).collect();
    assert_eq!(got, expected);
    assert_eq!(held(&space).await, 199);
    sound(&space).await;
    // Without the rule they come back, a stretch a visit.
    let mut free = claim_all("p");
    let (mut left, mut now) = (199, T0 + 10_000);
    while left > 0 {
        free.again();
        now += 1;
        space.inject_now(Some(now));
        let claimed = claim(&space, &free).await;
        assert!(!claimed.tasks.is_empty(), "{left} are left");
        left -= claimed.tasks.len();
    }
    assert_eq!(held(&space).await, 0);
    sound(&space).await;
}

#[tokio::test]
async fn in_order_the_next_comes_when_the_one_before_has_ended_for_good() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let own: Vec<Row> = (0..5)
        .map(|n| {
            let mut spec = spec(lane, T0 + n);
            spec.retry.retries = 1;
            of("order-7", spec)
        })
        .collect();
    space.inject_now(Some(T0 + 10));
    submit(&space, &own).await;
    let mut ask = ruled(lane, &ordered());
    let first = claim(&space, &ask).await;
    assert_eq!(ids(&first), [own[0].id]);
    assert_eq!(waits(&space, own[1].id).await, Some(Waits::Turn(own[0].id)));
    // It is to be tried again in 5 s: nobody passes it, and then it goes itself.
    let failed = |task: &Granted| ack_row(task, Outcome::Failed { error: "no".into() });
    run::ack(&space, bucket(), "x", &[failed(&first.tasks[0])], false).await.unwrap();
    assert_eq!(all(&space, &mut ask).await, []);
    space.inject_now(Some(T0 + 5_010));
    ask.again();
    let again = claim(&space, &ask).await;
    assert_eq!(ids(&again), [own[0].id]);
    // Dead, it has ended.
    run::ack(&space, bucket(), "x", &[failed(&again.tasks[0])], false).await.unwrap();
    ask.again();
    let second = claim(&space, &ask).await;
    assert_eq!(ids(&second), [own[1].id]);
    // Redriven it is one like the others: by its due time the last.
    dead::redrive(&space, bucket(), "op", &[(own[0].id, UnixMs(T0 + 5_010))]).await.unwrap();
    assert_eq!(all(&space, &mut ask).await, []);
    // Cancelled while it waits for its turn, or while it has it and is to be tried again.
    assert_eq!(intake::cancel(&space, bucket(), "op", "", &[own[3].id]).await.unwrap(), [WishAnswer::Done]);
    run::ack(&space, bucket(), "x", &[failed(&second.tasks[0])], false).await.unwrap();
    assert_eq!(all(&space, &mut ask).await, []);
    intake::cancel(&space, bucket(), "op", "", &[own[1].id]).await.unwrap();
    ask.again();
    let third = claim(&space, &ask).await;
    assert_eq!(ids(&third), [own[2].id]);
    // Given back and moved to later, it gives its turn up.
    let back = [(own[2].id, third.tasks[0].grant)];
    due::release(&space, bucket(), "p", "test", &back).await.unwrap();
    intake::reschedule(&space, "op", own[2].id, UnixMs(T0 + 60_000)).await.unwrap();
    ask.again();
    let fourth = claim(&space, &ask).await;
    assert_eq!(ids(&fourth), [own[4].id]);
    sound(&space).await;
    ack_done(&space, &fourth.tasks).await;
    assert_eq!(all(&space, &mut ask).await, [own[0].id]);
    space.inject_now(Some(T0 + 60_000));
    // The lease of the one whose turn it is has lapsed; it goes first though both are due.
    assert_eq!(all(&space, &mut ask).await, [own[0].id]);
    sound(&space).await;
}

#[tokio::test]
async fn rates_of_keys_are_exact_in_any_stretch_of_time() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let rule = PlacementSettings {
        rate: Some(placement_rate("2/10s").unwrap()),
        per_day: Some(5),
        ..PlacementSettings::default()
    };
    let rows: Vec<Row> = (0..9).map(|n| of("u-17", spec(lane, T0 + n))).collect();
    submit(&space, &rows).await;
    let mut ask = ruled(lane, &rule);
    let (mut now, mut went) = (T0 + 10, Vec::new());
    let end = T0 + 2 * 86_400_000;
    while now < end && went.len() < rows.len() {
        space.inject_now(Some(now));
        ask.again();
        let claimed = claim(&space, &ask).await;
        went.extend(claimed.tasks.iter().map(|task| (now - T0 - 10, task.id)));
        ack_done(&space, &claimed.tasks).await;
        let next = claimed.next_due.map_or(now, |due| due.0);
        now = if claimed.again { now + 1 } else { next.max(now + 1) };
    }
    let day = 86_400_000;
    let at: Vec<i64> = went.iter().map(|(at, _)| *at).collect();
    // Two at once, two more after ten seconds, the fifth after twenty; the same again a day after each.
    let near = |a: i64, b: i64| (b..b + 20).contains(&a);
    let expected = [0, 0, 10_000, 10_000, 20_000, day, day, day + 10_000, day + 10_000];
    assert!(at.len() == 9 && at.iter().zip(expected).all(|(a, b)| near(*a, b)), "{at:?}");
    for window in at.windows(3) {
        assert!(window[2] - window[0] >= 10_000, "{at:?}");
    }
    for window in at.windows(6) {
        assert!(window[5] - window[0] >= day, "{at:?}");
    }
    assert_eq!(
        went.into_iter().map(|(_, id)| id).collect::<Vec<_>>(),
        rows.iter().map(|r| r.id).collect::<Vec<_>>()
    );
    sound(&space).await;
    // What is known of a key goes when it matters no more.
    space.inject_now(Some(now + day + 1));
    all(&space, &mut ask).await;
    let names = minutehand::testing::snapshot::names(&space).await;
    for gone in ["kept", "looks", "spent", "turns", "flight"] {
        assert!(!names.iter().any(|name| name.ends_with(format!(":{gone}").as_bytes())), "{gone} is left");
    }
}

async fn collapse(space: &Space, rows: &[Row], again_after_ms: Option<i64>) -> Vec<RowAnswer> {
    let sending = Sending { again_after_ms, ..Sending::default() };
    match intake::collapse(space, bucket(), "client", rows, sending).await.unwrap() {
        SubmitAnswer::Rows { answers, .. } => answers,
        SubmitAnswer::SpreadChanged => panic!("the bucket is closed"),
    }
}

#[tokio::test]
async fn of_one_key_no_more_than_one_waits() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let make = |how, due: i64| Row { collapse: Some(how), ..of("doc-3", spec(lane, T0 + due)) };
    use RowAnswer::{Created, Duplicate, OverBacklog};
    let first = make(Collapse::Keep, 1_000);
    assert_eq!(collapse(&space, std::slice::from_ref(&first), None).await, [Created]);
    assert_eq!(collapse(&space, &[make(Collapse::Keep, 5)], None).await, [Duplicate(first.id)]);
    // The last of three in one call stands; what it replaced is cancelled and says by whom.
    let rows = [10, 20, 30].map(|due| make(Collapse::Replace, due));
    assert_eq!(collapse(&space, &rows, None).await, [Created; 3]);
    let state = async |id| read::get(&space, id).await.unwrap().unwrap().state;
    assert_eq!(
        (state(first.id).await, state(rows[1].id).await, state(rows[2].id).await),
        (State::Cancelled, State::Cancelled, State::Pending)
    );
    let told = events::trace(&space, first.id).await.unwrap().events;
    assert_eq!(told.last().unwrap().cause, format!("replaced by {}", rows[0].id));
    // Sent again, all of it is known.
    assert_eq!(collapse(&space, &rows, Some(50)).await, [Created; 3]);
    assert_eq!(state(rows[2].id).await, State::Pending);
    sound(&space).await;
    // What was handed out is replaced no more, also while it waits for another try.
    space.inject_now(Some(T0 + 100));
    let rule = PlacementSettings { collapse: Some(Collapse::Replace), ..PlacementSettings::default() };
    let mut ask = ruled(lane, &rule);
    let claimed = claim(&space, &ask).await;
    assert_eq!(ids(&claimed), [rows[2].id]);
    let next = make(Collapse::Keep, 200);
    assert_eq!(collapse(&space, std::slice::from_ref(&next), None).await, [Created]);
    let failed = ack_row(&claimed.tasks[0], Outcome::Failed { error: "no".into() });
    run::ack(&space, bucket(), "x", &[failed], false).await.unwrap();
    let newer = make(Collapse::Replace, 300);
    assert_eq!(collapse(&space, std::slice::from_ref(&newer), None).await, [Created]);
    assert_eq!((state(next.id).await, state(rows[2].id).await), (State::Cancelled, State::Pending));
    // With a backlog of one, a replacement takes the room of what it replaces; another key has none.
    let bound = |plain: Row| {
        let spec = Spec { bound: true, ..plain.spec };
        let own = Backlog { queue: QueueName::new("push").unwrap(), most: 1 };
        Row { backlog: Some(Arc::new(own)), collapse: Some(Collapse::Replace), ..row(spec) }
    };
    let full = bound(make(Collapse::Replace, 400));
    assert_eq!(collapse(&space, std::slice::from_ref(&full), None).await, [Created]);
    let other = Row { collapse: Some(Collapse::Replace), ..bound(of("doc-4", spec(lane, T0 + 400))) };
    assert_eq!(
        collapse(&space, &[bound(make(Collapse::Replace, 500)), other], None).await,
        [Created, OverBacklog]
    );
    // Idempotency keys come first.
    let keyed = |due| {
        let plain = make(Collapse::Replace, due);
        let spec = Spec { key: Some(Key::new("k", 60_000).unwrap()), ..plain.spec };
        Row { collapse: plain.collapse, ..row(spec) }
    };
    let one = keyed(600);
    assert_eq!(collapse(&space, std::slice::from_ref(&one), None).await, [Created]);
    assert_eq!(collapse(&space, &[keyed(700)], None).await, [Duplicate(one.id)]);
    sound(&space).await;
    space.inject_now(Some(T0 + 10_000));
    assert_eq!(all(&space, &mut ask).await.len(), 2);
}

#[tokio::test]
async fn what_waits_can_be_cancelled_moved_edited_and_expires() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let mut rows: Vec<Row> = (0..6).map(|n| of("u", spec(lane, T0 - 10 + n))).collect();
    rows.push(row(Spec { deadline: Some(UnixMs(T0 + 1_000)), ..of("u", spec(lane, T0)).spec }));
    submit(&space, &rows).await;
    let mut ask = ruled(lane, &running(1));
    let first = claim(&space, &ask).await;
    assert_eq!((ids(&first), held(&space).await), (vec![rows[0].id], 6));
    assert_eq!(intake::cancel(&space, bucket(), "op", "", &[rows[1].id]).await.unwrap(), [WishAnswer::Done]);
    assert_eq!(
        intake::reschedule(&space, "op", rows[2].id, UnixMs(T0 + 9_000)).await.unwrap(),
        WishAnswer::Done
    );
    assert_eq!(intake::reprioritize(&space, "op", rows[3].id, Priority::P0).await.unwrap(), WishAnswer::Done);
    let edited = Spec { payload: "other".into(), ..rows[4].spec.clone() };
    intake::edit(&space, "op", rows[4].id, None, 0, &edited, "edited: payload").await.unwrap();
    assert_eq!(held(&space).await, 3);
    sound(&space).await;
    // The one with another priority is met again, and waits again.
    assert_eq!(all(&space, &mut ask).await, []);
    assert_eq!(held(&space).await, 4);
    space.inject_now(Some(T0 + 1_001));
    assert_eq!(all(&space, &mut ask).await, []);
    assert_eq!(read::get(&space, rows[6].id).await.unwrap().unwrap().state, State::Expired);
    sound(&space).await;
    // They come by due time, and with what was changed.
    let mut came = Vec::new();
    let mut last = first.tasks;
    for _ in 0..3 {
        ack_done(&space, &last).await;
        ask.again();
        let next = claim(&space, &ask).await;
        last = next.tasks;
        came.extend(last.iter().map(|task| (task.id, task.spec.ends_with(b"other"))));
    }
    let expected = [(rows[3].id, false), (rows[4].id, true), (rows[5].id, false)];
    assert_eq!(came, expected);
    sound(&space).await;
}

/// Whatever becomes of tasks: never more of a key than its rule allows, in due order where that is asked, and nobody is
/// forgotten.
#[tokio::test]
async fn rules_hold_and_everybody_comes_whatever_happens() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..4 {
        let space = fixtures::space(&Bed::shared().await.unwrap()).await;
        let lane = lane(&space, "push", Priority::P3).await;
        let (most, in_order) = (random.u32(1..4), round % 2 == 1);
        let rule = if in_order { ordered() } else { running(most) };
        let most = if in_order { 1 } else { most as usize };
        let mut ask = ruled(lane, &rule);
        // No lease lapses meanwhile.
        ask.dispatch_ms = 3_000_000;
        let mut now = T0;
        // Key and due time of each that has not ended; what runs; those that had their turn and have not ended.
        let mut live: BTreeMap<TaskId, (usize, i64)> = BTreeMap::new();
        let mut runs: Vec<Granted> = Vec::new();
        let mut turn: HashMap<usize, TaskId> = HashMap::new();
        let mut submitted = 0;
        for step in 0..400 {
            now += random.i64(0..300);
            space.inject_now(Some(now));
            let draining = step >= 250;
            match random.u32(0..6) {
                0 | 1 if !draining => {
                    let rows: Vec<(usize, Row)> = (0..random.usize(1..6))
                        .map(|_| {
                            let key = random.usize(0..3);
                            let mut spec = spec(lane, now + random.i64(0..500));
                            spec.retry = minutehand::model::Retry {
                                retries: 2,
                                base_ms: 200,
                                jitter_percent: 0,
                                ..spec.retry
                            };
                            (key, of(&format!("u-{key}"), spec))
                        })
                        .collect();
                    let sent: Vec<Row> = rows.iter().map(|(_, row)| row.clone()).collect();
                    submit(&space, &sent).await;
                    submitted += sent.len();
                    live.extend(rows.iter().map(|(key, row)| (row.id, (*key, row.spec.due.0))));
                }
                2 | 3 => {
                    let limit = random.u32(1..9);
                    (ask.limit, ask.normal_limit) = (limit, limit);
                    ask.again();
                    for task in claim(&space, &ask).await.tasks {
                        let (key, due) = live[&task.id];
                        let of_key = runs.iter().filter(|run| live[&run.id].0 == key).count();
                        assert!(of_key < most, "step {step}: {} of u-{key} run already", of_key);
                        if in_order {
                            let own = turn.entry(key).or_insert(task.id);
                            assert_eq!(*own, task.id, "step {step}: it is another one's turn");
                            let before = live.iter().filter(|(_, (k, d))| *k == key && *d < due).count();
                            assert!(before == 0 || task.failures > 0, "step {step}: {before} are due before");
                        }
                        runs.push(task);
                    }
                }
                4 => {
                    for task in runs.extract_if(.., |_| random.bool()).collect::<Vec<_>>() {
                        let end = random.u32(0..5);
                        let outcome = match end {
                            0 => Outcome::Failed { error: "no".into() },
                            1 => Outcome::RetryAfter { ms: 300, counted: false, error: "later".into() },
                            _ => Outcome::Succeeded,
                        };
                        let row = ack_row(&task, outcome);
                        run::ack(&space, bucket(), "x", &[row], false).await.unwrap();
                        let state = read::get(&space, task.id).await.unwrap().unwrap().state;
                        if state != State::Pending {
                            let (key, _) = live.remove(&task.id).unwrap();
                            turn.retain(|k, id| *k != key || *id != task.id);
                        } else if in_order {
                            // It keeps its turn; when it is due now decides nothing.
                            live.entry(task.id).and_modify(|(_, due)| *due = i64::MIN);
                        }
                    }
                }
                _ => {
                    let some = live.keys().filter(|_| random.u32(0..12) == 0).copied().collect::<Vec<_>>();
                    for (id, answer) in
                        some.iter().zip(intake::cancel(&space, bucket(), "op", "", &some).await.unwrap())
                    {
                        if answer == WishAnswer::Done {
                            live.remove(id);
                            turn.retain(|_, own| own != id);
                        }
                    }
                    for task in runs.extract_if(.., |_| random.u32(0..3) == 0).collect::<Vec<_>>() {
                        let back = [(task.id, task.grant)];
                        due::release(&space, bucket(), "p", "test", &back).await.unwrap();
                        let state = read::get(&space, task.id).await.unwrap().unwrap().state;
                        if state == State::Pending {
                            live.entry(task.id)
                                .and_modify(|(_, due)| *due = if in_order { i64::MIN } else { *due });
                        } else {
                            live.remove(&task.id);
                            turn.retain(|_, own| *own != task.id);
                        }
                    }
                }
            }
        }
        assert!(submitted > 50, "{submitted}");
        sound(&space).await;
        // Everybody comes in the end.
        for visit in 0.. {
            assert!(visit < 2_000, "{} never came", live.len());
            now += 500;
            space.inject_now(Some(now));
            for task in &runs {
                live.remove(&task.id);
            }
            ack_done(&space, &runs).await;
            if live.is_empty() {
                break;
            }
            (ask.limit, ask.normal_limit) = (1_000, 1_000);
            ask.again();
            runs = claim(&space, &ask).await.tasks;
        }
        space.inject_now(Some(now + 20_000));
        all(&space, &mut ask).await;
        sound(&space).await;
        assert_eq!(held(&space).await, 0);
    }
}

// ---- a pod and an executor ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_keeps_each_recipients_order() {
    let bed = Bed::shared().await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let space = Space::open(bed.store().await.unwrap(), namespace).await.unwrap();
    let client = Client::new(space.clone());
    let queue = QueueName::new("push").unwrap();
    let set = |rule: Option<PlacementSettings>| {
        move |settings: &mut minutehand::model::QueueSettings| {
            settings.placement = rule.clone();
            Ok(())
        }
    };
    client.queue_set(&queue, set(Some(ordered()))).await.unwrap();
    let seen: Arc<Mutex<HashMap<String, Vec<u32>>>> = Arc::default();
    let (own, done) = (Arc::clone(&seen), Arc::new(tokio::sync::Semaphore::new(0)));
    let (gate, told) = (Arc::new(tokio::sync::Semaphore::new(1_000)), Arc::clone(&done));
    let door = Arc::clone(&gate);
    let handler = move |task: minutehand::executor::Task, _| {
        let (seen, told, door) = (Arc::clone(&own), Arc::clone(&told), Arc::clone(&door));
        async move {
            let who = String::from_utf8(task.placement.unwrap().to_vec()).unwrap();
            let number: u32 = String::from_utf8(task.payload.to_vec()).unwrap().parse().unwrap();
            {
                let mut seen = seen.lock();
                let list = seen.entry(who.clone()).or_default();
                assert!(list.last() != Some(&u32::MAX), "two of {who} run");
                list.push(number);
                list.push(u32::MAX);
            }
            door.acquire().await?.forget();
            if number == 2 && task.attempt == 1 {
                seen.lock().get_mut(&who).unwrap().pop();
                return Err(std::io::Error::other("not yet").into());
            }
            seen.lock().get_mut(&who).unwrap().pop();
            told.add_permits(1);
            Ok(())
        }
    };
    let stop = CancellationToken::new();
    let executor = Executor::builder(space.clone()).slots(50).handle_any(handler).build().unwrap();
    let executor = tokio::spawn(executor.run(stop.child_token()));
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.child_token()));
    let task = |who: usize, number: u32| NewTask {
        placement: Some(format!("u-{who}").into()),
        payload: number.to_string().into(),
        retries: Some(3),
        backoff: Some("fixed:50ms".parse().unwrap()),
        ..NewTask::to(queue.clone())
    };
    let base = space.clock().now_ms() + 1_000;
    let tasks = (0..20).flat_map(|who| (0..5).map(move |number| (who, number)));
    let tasks = tasks
        .map(|(who, number)| NewTask { due: Due::At(UnixMs(base + i64::from(number))), ..task(who, number) });
    for answer in client.submit_batch(tasks.collect()).await.unwrap() {
        answer.unwrap();
    }
    let all = tokio::time::timeout(Duration::from_secs(30), done.acquire_many(100)).await;
    assert!(all.is_ok(), "{:?}", seen.lock());
    for (who, list) in &*seen.lock() {
        assert_eq!(list, &[0, 1, 2, 2, 3, 4], "{who}");
    }
    // One that runs holds the next; its words say so, a cancel takes it away, and without the rule all go.
    gate.forget_permits(1_000);
    seen.lock().clear();
    let made = client.submit_batch((0..4).map(|n| task(77, n)).collect()).await.unwrap();
    let made: Vec<TaskId> = made.into_iter().map(|answer| answer.unwrap().id).collect();
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            if client.counts().await.unwrap().0.held == 3 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "{:?}", client.counts().await.unwrap());
    let mut views = Vec::new();
    for id in &made {
        views.push(client.get(*id).await.unwrap().unwrap());
    }
    let first = views.iter().find(|view| view.state == State::Running).unwrap().id;
    let waiting = views.iter().find(|view| view.state == State::Pending).unwrap();
    assert_eq!((waiting.view, waiting.held.clone()), ("held", Some(format!("{first} of u-77 comes first"))));
    assert_eq!(client.cancel(waiting.id, "op", "").await.unwrap(), Cancelled::Done);
    sound(&space).await;
    client.queue_set(&queue, set(None)).await.unwrap();
    gate.add_permits(1_000);
    let all = tokio::time::timeout(Duration::from_secs(30), done.acquire_many(3)).await;
    assert!(all.is_ok(), "{:?}", seen.lock());
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
}
