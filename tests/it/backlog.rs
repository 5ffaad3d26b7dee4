//! Bounds for the tasks of a queue that have not ended: exact in each bucket, and over all of them never passed.

use minutehand::client::{Client, Due, NewTask, SubmitError};
use minutehand::model::{Bucket, Key, Namespace, Priority, QueueName, Spec, TaskId, UnixMs};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::due::Granted;
use minutehand::store::intake::{self, Backlog, Row, RowAnswer};
use minutehand::store::run::{self, Outcome};
use minutehand::store::{Birth, Space, dead, due};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn bound(most: u64, spec: Spec) -> Row {
    let own = Backlog { queue: QueueName::new("push").unwrap(), most };
    Row { backlog: Some(Arc::new(own)), ..row(Spec { bound: true, ..spec }) }
}

fn created(answers: &[RowAnswer]) -> usize {
    assert!(
        answers.iter().all(|answer| matches!(answer, RowAnswer::Created | RowAnswer::OverBacklog)),
        "{answers:?}"
    );
    answers.iter().filter(|answer| **answer == RowAnswer::Created).count()
}

#[tokio::test]
async fn a_key_of_a_refused_task_stands_for_nobody() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let keyed = |key: &str| {
        bound(2, Spec { key: Some(Key::new(key.to_owned(), 0).unwrap()), ..spec(lane, T0 + 1_000) })
    };
    let rows = ["a", "b", "c", "c", "a"].map(keyed);
    let answers = submit(&space, &rows).await;
    use RowAnswer::{Created, Duplicate, OverBacklog};
    assert_eq!(answers, [Created, Created, OverBacklog, OverBacklog, Duplicate(rows[0].id)]);
    // What stands is answered though there is no room, and what was refused may come once there is.
    assert_eq!(submit(&space, &[keyed("b")]).await, [Duplicate(rows[1].id)]);
    intake::cancel(&space, bucket(), "op", "", &[rows[0].id]).await.unwrap();
    assert_eq!(submit(&space, &[keyed("c"), keyed("a")]).await, [Created, OverBacklog]);
    // Other queues, and tasks that were submitted while there was no bound, count for nothing.
    task(&space, "push", T0).await;
    assert_eq!(submit(&space, &[keyed("a")]).await, [OverBacklog]);
    assert!(check(&space, CheckOptions::default()).await.unwrap().ok);
}

/// Whatever becomes of tasks, as many fit in as the bound allows beside those that have not ended.
#[tokio::test]
async fn the_count_is_exact_whatever_becomes_of_tasks() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let lane = lane(&space, "push", Priority::P3).await;
    let most = 30;
    let (mut live, mut dead_ones): (BTreeSet<TaskId>, BTreeSet<TaskId>) = Default::default();
    let mut running: Vec<Granted> = Vec::new();
    let mut now = T0;
    for step in 0..250 {
        now += random.i64(0..2_000);
        space.inject_now(Some(now));
        match random.u32(0..8) {
            0..=2 => {
                let rows: Vec<Row> = (0..random.usize(1..12))
                    .map(|n| {
                        let mut spec = spec(lane, now + random.i64(0..2_000));
                        spec.retry.retries = random.u8(0..2);
                        if random.bool() {
                            spec.key = Some(Key::new(format!("{step}-{n}"), 0).unwrap());
                        }
                        match random.u32(0..4) {
                            0 => spec.deadline = Some(UnixMs(spec.due.0 + random.i64(1..3_000))),
                            1 => spec.start_before = Some(UnixMs(spec.due.0 + random.i64(1..3_000))),
                            _ => {}
                        }
                        bound(most, spec)
                    })
                    .collect();
                let answers = submit(&space, &rows).await;
                let room = (most as usize).saturating_sub(live.len());
                assert_eq!(created(&answers), room.min(rows.len()), "step {step}");
                let new = rows.iter().zip(&answers).filter(|(_, answer)| **answer == RowAnswer::Created);
                live.extend(new.map(|(row, _)| row.id));
            }
            3 => {
                let limit = random.u32(0..8);
                let mut ask = claim_all("p");
                (ask.limit, ask.normal_limit) = (limit, limit);
                // Some are counted for a limit as well.
                ask.limits.counted = if random.bool() { vec![lane.group()] } else { vec![] };
                ask.limits.purses = ask.limits.counted.iter().map(|_| due::Purse::Tokens(1_000)).collect();
                running.extend(claim(&space, &ask).await.tasks);
            }
            4 | 5 => {
                let ended: Vec<_> = running.extract_if(.., |_| random.bool()).collect();
                let rows: Vec<_> = ended
                    .iter()
                    .map(|task| {
                        let failed = || Outcome::Failed { error: "no".into() };
                        ack_row(task, if random.u32(0..3) == 0 { failed() } else { Outcome::Succeeded })
                    })
                    .collect();
                run::ack(&space, bucket(), "x", &rows, false).await.unwrap();
            }
            6 => {
                let some: Vec<TaskId> = live.iter().filter(|_| random.u32(0..6) == 0).copied().collect();
                intake::cancel(&space, bucket(), "op", "", &some).await.unwrap();
                let back: Vec<_> =
                    running.extract_if(.., |_| random.u32(0..3) == 0).map(|t| (t.id, t.grant)).collect();
                due::release(&space, bucket(), "p", "test", &back).await.unwrap();
            }
            _ => {
                let some: Vec<_> = dead_ones.iter().map(|id| (*id, UnixMs(now))).collect();
                dead::redrive(&space, bucket(), "op", &some).await.unwrap();
            }
        }
        // What stands now is asked of each task: a task that ended is known as such.
        let all: Vec<TaskId> = live.iter().chain(&dead_ones).copied().collect();
        for id in all {
            use minutehand::model::State;
            let state = minutehand::store::read::get(&space, id).await.unwrap().map(|found| found.state);
            let (here, there) = match state {
                Some(State::Pending | State::Running) => (true, false),
                Some(State::Dead) => (false, true),
                _ => (false, false),
            };
            if here {
                live.insert(id)
            } else {
                live.remove(&id)
            };
            if there {
                dead_ones.insert(id)
            } else {
                dead_ones.remove(&id)
            };
        }
    }
    assert!(check(&space, CheckOptions::default()).await.unwrap().ok);
}

#[tokio::test]
async fn shares_of_buckets_add_up_to_the_bound() {
    let bed = Bed::shared().await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let birth = Birth { key_buckets: 4, buckets: 8, holders: 1 };
    let space = Space::open_as(bed.store().await.unwrap(), namespace, birth).await.unwrap();
    let client = Client::new(space.clone());
    let queue = QueueName::new("push").unwrap();
    let set = |most| {
        move |settings: &mut minutehand::model::QueueSettings| {
            settings.backlog = most;
            Ok(())
        }
    };
    client.queue_set(&queue, set(Some(43))).await.unwrap();
    let task = NewTask { due: Due::In(3_600_000), ..NewTask::to(queue.clone()) };
    let submit = async |tasks| {
        let answers = client.submit_batch(tasks).await.unwrap();
        let over = |answer: &Result<_, _>| match answer {
            Err(SubmitError::OverBacklog { queue: own, most: 43 }) => *own == queue,
            Err(error) => panic!("{error}"),
            Ok(_) => false,
        };
        let (over, made): (Vec<_>, Vec<_>) = answers.into_iter().partition(over);
        (made.into_iter().map(|answer| answer.unwrap().id).collect::<Vec<_>>(), over.len())
    };
    // One after the other, however few are left: every bucket is tried.
    let mut made = Vec::new();
    for _ in 0..3 {
        made.extend(submit(vec![task.clone(); 9]).await.0);
    }
    assert_eq!(made.len(), 27);
    let (more, over) = submit(vec![task.clone(); 30]).await;
    assert_eq!((more.len(), over), (16, 14));
    assert_eq!(submit(vec![task.clone()]).await.1, 1);
    // Keyed tasks have a bucket of their own, and so its share: half of the bound is theirs, spread over four.
    client.queue_set(&queue, set(None)).await.unwrap();
    client.queue_set(&queue, set(Some(43))).await.unwrap();
    made.extend(more);
    for id in made {
        client.cancel(id, "op", "").await.unwrap();
    }
    let placed = NewTask { placement: Some("one".into()), ..task.clone() };
    let (own, over) = submit(vec![placed; 20]).await;
    let share = space.spread().share_of(43, own[0].bucket());
    assert_eq!((own.len() as u64, over as u64), (share, 20 - share));
    assert!((7..=9).contains(&share), "{share}");
    let sum: u64 = (0..8).map(|n| space.spread().share_of(43, Bucket::new(n).unwrap())).sum();
    assert_eq!(sum, 43);
}
