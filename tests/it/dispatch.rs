//! From hand-out to start: who says how long that may take, and what happens then.

use crate::executor::{Town, task};
use minutehand::client::NewTask;
use minutehand::model::event::Move;
use minutehand::model::queue::TimeoutDefaults;
use minutehand::model::spec::Extras;
use minutehand::model::{Priority, QueueName, State, UnixMs};
use minutehand::store::due::Claim;
use minutehand::store::member::{self, ExecutorRecord};
use minutehand::store::run::{self, StartAnswer, StartRow};
use minutehand::store::{check, events, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{self, T0, bucket, claim, claim_all};
use std::collections::BTreeMap;
use std::sync::Arc;

#[tokio::test]
async fn a_queue_may_have_a_dispatch_time_out_of_its_own() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let short = fixtures::lane(&space, "short", Priority::P3).await.group();
    let quick = fixtures::task(&space, "short", T0).await;
    let usual = fixtures::task(&space, "usual", T0).await;
    let asked = || Claim {
        dispatch_ms: 15_000,
        own_dispatch: Arc::new(BTreeMap::from([(short, 2_000)])),
        ..claim_all("p1")
    };
    // Twice: once at home, once with a record of its own, since it was lost before.
    for round in 0..2 {
        let begin = T0 + round * 3_000;
        space.inject_now(Some(begin));
        let granted: Vec<_> = claim(&space, &asked()).await.tasks.iter().map(|task| task.id).collect();
        assert!(granted.contains(&quick), "round {round}: {granted:?}");
        let lease = async |id| read::get(&space, id).await.unwrap().unwrap().run.unwrap().deadline;
        assert_eq!(lease(quick).await, UnixMs(begin + 2_000));
        assert_eq!(lease(usual).await, UnixMs(T0 + 15_000));
        space.inject_now(Some(begin + 1_999));
        assert_eq!(claim(&space, &asked()).await.reaped, 0, "not before its time");
    }
    space.inject_now(Some(T0 + 6_000));
    let claimed = claim(&space, &asked()).await;
    assert_eq!((claimed.reaped, claimed.tasks.len()), (1, 1));
    assert_eq!((claimed.tasks[0].id, claimed.tasks[0].failures), (quick, 0), "uncounted");
    fixtures::ack_done(&space, &claimed.tasks).await;
    space.inject_now(Some(T0 + 16_000));
    let claimed = claim(&space, &asked()).await;
    assert_eq!((claimed.reaped, claimed.tasks[0].id), (1, usual));
    fixtures::ack_done(&space, &claimed.tasks).await;
    let report = check::check(&space, check::CheckOptions::default()).await.unwrap();
    assert_eq!(report.count(), 0, "{report:?}");
}

#[tokio::test]
async fn a_task_may_have_a_dispatch_time_out_of_its_own() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    for _ in 0..3 {
        fixtures::task(&space, "push", T0).await;
    }
    let tasks = claim(&space, &Claim { dispatch_ms: 15_000, ..claim_all("p1") }).await.tasks;
    let [own, plain, renewed] = [0, 1, 2].map(|n| (tasks[n].id, tasks[n].grant));
    let row = |(id, grant), lease_ms| StartRow { id, grant, lease_ms };
    // This one was taken already, by an executor that knows better.
    run::renew(&space, bucket(), "ex-1", &[row(renewed, 60_000)]).await.unwrap();
    let rows = [(row(own, 3_000), "ex-1"), (row(plain, 0), "ex-1"), (row(renewed, 3_000), "ex-1")];
    let expected =
        [3_000, 15_000, 60_000].map(|ms| StartAnswer::Ok { deadline: UnixMs(T0 + ms), cancel: false });
    assert_eq!(run::offer(&space, bucket(), "p1", &rows).await.unwrap(), expected);
    // Sent again after a lost answer it changes nothing.
    space.inject_now(Some(T0 + 1_000));
    assert_eq!(run::offer(&space, bucket(), "p1", &rows).await.unwrap(), expected);
    space.inject_now(Some(T0 + 4_000));
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!((claimed.reaped, claimed.tasks[0].id, claimed.tasks[0].failures), (1, own.0, 0));
    let report = check::check(&space, check::CheckOptions::default()).await.unwrap();
    assert_eq!(report.count(), 0, "{report:?}");
}

/// An executor says that it lives and takes nothing. What it was offered comes back when its own, its queue's or the
/// installation's time-out says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_offered_and_not_started_comes_back_by_the_shortest_word() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let short = QueueName::new("short").unwrap();
    let change = |settings: &mut minutehand::model::QueueSettings| {
        settings.timeouts = Some(TimeoutDefaults { dispatch_ms: Some(1_500), ..TimeoutDefaults::default() });
        Ok(())
    };
    assert!(town.client.queue_set(&short, change).await.unwrap().pods_behind.is_empty());
    let deaf = ExecutorRecord {
        id: "deaf".into(),
        queues: vec!["*".into()],
        slots: 3,
        capacity: 3,
        ..ExecutorRecord::default()
    };
    let of_queue = town.submit(task("short")).await;
    let extras = Extras { dispatch_ms: Some(1_000), ..Extras::default() };
    let of_task = town.submit(NewTask { extras, ..task("usual") }).await;
    let of_all = town.submit(task("usual")).await;
    member::beat_executor(&town.space, &deaf).await.unwrap();
    let lost = async |id| {
        let lost = async {
            loop {
                let told = events::trace(&town.space, id).await.unwrap().events;
                let claimed = told.iter().find(|event| event.event == Move::Claimed);
                if let Some(lost) = told.iter().find(|event| event.event == Move::Lost) {
                    assert_eq!(lost.cause, "offered to deaf, never started, handed back");
                    return lost.at.0 - claimed.unwrap().at.0;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(crate::executor::NEVER, lost).await.unwrap()
    };
    let (by_task, by_queue) = (lost(of_task).await, lost(of_queue).await);
    // Up to a second, since they end with one, and a poll come on top.
    assert!((990..4_500).contains(&by_task), "{by_task}");
    assert!((1_490..5_000).contains(&by_queue), "{by_queue}");
    assert_eq!(read::get(&town.space, of_all).await.unwrap().unwrap().state, State::Running);
    town.end().await;
}
