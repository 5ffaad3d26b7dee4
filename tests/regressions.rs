//! Faults that were found once, each with what a user saw of it. They must not come back.

use minutehand::client::{Client, NewTask};
use minutehand::dev::redis::ServerOptions;
use minutehand::dev::wire::{Door, Wire};
use minutehand::executor::Executor;
use minutehand::model::event::Move;
use minutehand::model::queue::{LimitSettings, Rate};
use minutehand::model::{Namespace, Priority, QueueName, State};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::{Space, events, read};
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
