//! Faults that were found once, each with what a user saw of it. They must not come back.

use minutehand::client::{Client, NewTask};
use minutehand::dev::redis::ServerOptions;
use minutehand::dev::wire::{Answer, Door, Wire};
use minutehand::executor::Executor;
use minutehand::model::event::Move;
use minutehand::model::queue::{LimitSettings, Rate};
use minutehand::model::{
    Bucket, Grant, Minute, Namespace, Nonce, Priority, QueueName, State, TaskId, UnixMs,
};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::due::Claim;
use minutehand::store::intake::{self, WishAnswer};
use minutehand::store::member::ExecutorRecord;
use minutehand::store::{Space, events, member, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// 1. A task whose lease had lapsed and that was granted again in the same call seemed to be granted
///    twice at a time: its history told of the new grant before the end of the old one.
#[tokio::test]
async fn r1_a_lapse_is_told_before_the_grant_that_follows_it() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let mut ask = claim_all("pod-1");
    assert_eq!(claim(&space, &ask).await.tasks.len(), 1);
    // Nobody starts it; the pod comes again when its time is over.
    space.inject_now(Some(T0 + 20_000));
    ask.again();
    let again = claim(&space, &ask).await;
    assert_eq!((again.reaped, again.tasks.len(), again.tasks[0].grant.fence()), (1, 1, 2));
    let life = events::trace(&space, id).await.unwrap().events;
    let moves: Vec<_> = life.iter().map(|event| (event.event, event.fence)).collect();
    let expected =
        [(Move::Submitted, None), (Move::Claimed, Some(1)), (Move::Lost, Some(1)), (Move::Claimed, Some(2))];
    assert_eq!(moves, expected);
}

/// 2. With Redis's memory full no pod and no executor could be started, so that nothing could drain.
#[tokio::test]
async fn r2_a_namespace_is_opened_and_worked_off_where_memory_is_full() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let before = space(&bed).await;
    let id = task(&before, "push", T0).await;
    bed.server().run(&["CONFIG", "SET", "maxmemory", "1mb"]).unwrap();
    let store = bed.store().await.unwrap();
    let space = Space::open(store, Namespace::new(bed.namespace()).unwrap()).await.unwrap();
    space.inject_now(Some(T0));
    let claimed = claim(&space, &claim_all("pod-1")).await;
    ack_done(&space, &claimed.tasks).await;
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Succeeded);
}

/// 3. A call whose script was forgotten twice, by `SCRIPT FLUSH` between its loading and its running, failed,
///    and tasks that were being offered waited for their dispatch time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_calls_succeed_however_often_scripts_are_flushed() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let (stop, socket) = (Arc::new(AtomicBool::new(false)), bed.server().socket());
    let told = Arc::clone(&stop);
    let flushing = std::thread::spawn(move || {
        let mut wire = Wire::open(&Door::Unix(socket)).unwrap();
        while !told.load(Ordering::Relaxed) {
            wire.run(&["SCRIPT", "FLUSH"]).unwrap();
        }
    });
    for n in 0..300 {
        read::counts(&space, bucket()).await.unwrap_or_else(|error| panic!("call {n}: {error}"));
    }
    stop.store(true, Ordering::Relaxed);
    flushing.join().unwrap();
}

/// 4. With more limits than one claim can keep to, those of the last queues counted for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_no_queue_is_unlimited_because_there_are_many_limits() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    space.inject_now(None);
    let client = Client::new(space.clone());
    let rate = |count, per_ms| Rate { count, per_ms, burst: Some(count) };
    // Eight rules each, and 512 in a claim.
    let limits = LimitSettings {
        rate: Some(rate(1_000, 1_000)),
        running: Some(1),
        retry_windows: (1..=6).map(|n| rate(1_000, 1_000 * n)).collect(),
        ..LimitSettings::default()
    };
    let queues: Vec<QueueName> = (10..80).map(|n| QueueName::new(&format!("q{n}")).unwrap()).collect();
    for queue in &queues {
        let set = |settings: &mut minutehand::model::QueueSettings| {
            settings.limits = Some(limits.clone());
            Ok(())
        };
        client.queue_set(queue, set).await.unwrap();
        lane(&space, queue.as_str(), Priority::P3).await;
    }
    let seen: Arc<Mutex<HashMap<String, [u32; 3]>>> = Arc::default();
    let (own, done) = (Arc::clone(&seen), Arc::new(tokio::sync::Semaphore::new(0)));
    let told = Arc::clone(&done);
    let handler = move |task: minutehand::executor::Task, _| {
        let (seen, told) = (Arc::clone(&own), Arc::clone(&told));
        async move {
            let queue = task.queue.to_string();
            {
                let mut seen = seen.lock();
                let [now, most, _] = seen.entry(queue.clone()).or_default();
                *now += 1;
                *most = (*most).max(*now);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut seen = seen.lock();
            let [now, _, all] = seen.entry(queue).or_default();
            (*now, *all) = (*now - 1, *all + 1);
            told.add_permits(1);
            Ok(())
        }
    };
    let stop = CancellationToken::new();
    let executor = Executor::builder(space.clone()).slots(400).handle_any(handler).build().unwrap();
    let executor = tokio::spawn(executor.run(stop.child_token()));
    let tasks = queues.iter().flat_map(|queue| vec![NewTask::to(queue.clone()); 3]).collect();
    for answer in client.submit_batch(tasks).await.unwrap() {
        answer.unwrap();
    }
    let pod = tokio::spawn(Pod::new(space, PodSettings::default()).run(stop.child_token()));
    let all = tokio::time::timeout(Duration::from_secs(40), done.acquire_many(3 * 70)).await;
    assert!(all.is_ok(), "some queues never had a turn: {:?}", seen.lock());
    for (queue, counts) in &*seen.lock() {
        assert_eq!(counts, &[0, 1, 3], "{queue}");
    }
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
}

/// 5. A lost executor whose inbox could not be reached just then was forgotten: what lay there stayed for good.
#[tokio::test]
async fn r5_a_lost_executor_is_not_forgotten_before_its_inbox_is_empty() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let record =
        ExecutorRecord { id: "ex-1".into(), queues: vec!["q".into()], capacity: 2, ..Default::default() };
    member::beat_executor(&space, &record).await.unwrap();
    let offer = member::Offer {
        id: TaskId::new(Minute(29_408_521), Bucket::new(3).unwrap(), 7),
        grant: Grant::new(9, Nonce::new(1)),
        group: 0,
        urgent: false,
        ahead: false,
        due: UnixMs(T0),
        attempt: 1,
        not_after: UnixMs(T0 + 15_000),
        spec: "a spec".into(),
    };
    let put = member::offer(&space, "pod", "ex-1", &[], &[offer.encode()], 0, 0).await.unwrap();
    assert!(matches!(put, member::OfferAnswer::Accepted { normal: 1, .. }));
    space.inject_now(Some(T0 + 9_001));
    let lost = async || member::roll(&space).await.unwrap().lost;
    assert_eq!(lost().await, ["ex-1"]);

    let key = |name: &str| format!("{{{}:x:ex-1}}:{name}", bed.namespace());
    let redis = |words: &[&str]| bed.server().run(words).unwrap();
    redis(&["RENAME", &key("inbox"), &key("aside")]);
    redis(&["SET", &key("inbox"), "not a list"]);
    assert!(member::leave_executor(&space, "ex-1").await.is_err());
    assert_eq!(lost().await, ["ex-1"], "somebody has to come back to it");

    redis(&["RENAME", &key("aside"), &key("inbox")]);
    assert_eq!(member::leave_executor(&space, "ex-1").await.unwrap(), [offer]);
    assert!(lost().await.is_empty());
    assert_eq!(redis(&["EXISTS", &key("inbox"), &key("slots")]), Answer::Int(0));
}

/// 6. With many due sets in sight, of which only the first had anything ripe, a claim took a sliver of that, answered that
///    nothing was left, and the pod slept for a second: a burst in a single bucket stood still after its first tasks.
#[tokio::test]
async fn r6_a_burst_over_many_due_sets_does_not_stand_still() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    // 500 are ripe and fill up the minute's set with 9,500 others; the second's is full too, and 16 more have some.
    let dues = [(500, T0), (9_500, T0 + 500), (10_000, T0 + 600), (1_000, T0 + 700)];
    let rows: Vec<_> =
        dues.iter().flat_map(|(count, due)| (0..*count).map(|_| row(spec(lane, *due)))).collect();
    for rows in rows.chunks(1_000) {
        submit(&space, rows).await;
    }
    let mut ask = Claim { limit: 280, normal_limit: 280, ..claim_all("pod-1") };
    let first = claim(&space, &ask).await;
    assert_eq!((first.tasks.len(), first.backlog), (280, 220));
    ask.again();
    let second = claim(&space, &ask).await;
    assert_eq!((second.tasks.len(), second.backlog), (220, 0));
    assert_eq!(second.next_due, Some(UnixMs(T0 + 500)));
}

/// 7. A task that was cancelled between a leap of the server's clock ahead and one back, with no claim in between, was not
///    known any more until the clock had caught up.
#[tokio::test]
async fn r7_what_ended_before_a_leap_back_is_remembered() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0 + 900_000).await;
    claim(&space, &claim_all("pod-1")).await;
    space.inject_now(Some(T0 + 60_000));
    let told = intake::cancel(&space, bucket(), "test", "a test", &[id]).await.unwrap();
    assert_eq!(told, [WishAnswer::Done]);
    for now in [T0 + 60_000, T0, T0 + 30_000, T0 + 120_000] {
        space.inject_now(Some(now));
        assert_eq!(
            read::get(&space, id).await.unwrap().map(|found| found.state),
            Some(State::Cancelled),
            "{now}"
        );
    }
    sound(&space).await;
}
