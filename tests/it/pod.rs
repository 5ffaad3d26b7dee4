//! Pods: sharing buckets, delivering, stopping in order.

use minutehand::client::{Client, Due, NewTask};
use minutehand::clock;
use minutehand::dev::redis::ServerOptions;
use minutehand::executor::Executor;
use minutehand::model::{Namespace, Priority, QueueName, State, TaskId};
use minutehand::pod::PodSettings;
use minutehand::store::member::{self, ExecutorRecord, Take};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome};
use minutehand::store::{Birth, Space, read};
use minutehand::testing::bed::{Bed, start_pod};
use std::collections::BTreeMap;
use std::time::Duration;

fn named(id: &str) -> PodSettings {
    PodSettings { id: id.into(), ..PodSettings::default() }
}

/// Takes what is offered to `id` and acks it at once, until `count` tasks are done; answers how often each ran.
async fn work(space: &Space, id: &str, capacity: u32, count: usize) -> BTreeMap<TaskId, u32> {
    let record = ExecutorRecord {
        id: id.into(),
        queues: vec!["*".into()],
        slots: capacity,
        capacity,
        ..Default::default()
    };
    member::beat_executor(space, &record).await.unwrap();
    let mut wakes = member::inbox_wakes(space, id);
    let mut ran = BTreeMap::new();
    let ask = Take { normal: capacity, urgent: 0, in_hand: 0, capacity, urgent_capacity: 0 };
    while ran.len() < count {
        let taken = member::take(space, id, ask).await.unwrap();
        for pod in &taken.hungry {
            member::tell_room(space, pod, id).await.unwrap();
        }
        let mut rows: BTreeMap<_, Vec<AckRow>> = BTreeMap::new();
        for offer in taken.offers {
            *ran.entry(offer.id).or_default() += 1;
            let lag_ms = (taken.now_us / 1_000 - offer.due.0).max(0);
            let row =
                AckRow { id: offer.id, grant: offer.grant, outcome: Outcome::Succeeded, lag_ms, took_ms: 0 };
            rows.entry(offer.id.bucket()).or_default().push(row);
        }
        let idle = rows.is_empty();
        for (bucket, rows) in rows {
            for answer in run::ack(space, bucket, id, &rows, false).await.unwrap() {
                assert_eq!(answer, AckAnswer::Succeeded);
            }
        }
        if idle {
            let _ = tokio::time::timeout(Duration::from_millis(200), wakes.recv()).await;
        }
    }
    ran
}

fn push(due: Due) -> NewTask {
    NewTask { due, payload: "x".into(), ..NewTask::to(QueueName::new("push").unwrap()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pods_deliver_each_task_once() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let pods = [start_pod(&space, named("pod-a")), start_pod(&space, named("pod-b"))];
    let tasks = (0..3_000).map(|n| push(Due::In(n % 700))).collect();
    let worker = {
        let space = space.clone();
        tokio::spawn(async move { work(&space, "ex-1", 100, 3_000).await })
    };
    let submitted = client.submit_batch(tasks).await.unwrap();
    let ids: Vec<TaskId> = submitted.into_iter().map(|answer| answer.unwrap().id).collect();
    let ran = tokio::time::timeout(Duration::from_secs(20), worker).await.expect("all run in time").unwrap();
    assert_eq!(ran.len(), 3_000);
    assert!(ids.iter().all(|id| ran.get(id) == Some(&1)));
    let (counts, lag) = client.counts().await.unwrap();
    println!("{lag:?}");
    assert_eq!((counts.succeeded, counts.pending, counts.running), (3_000, 0, 0));
    for (stop, handle) in pods {
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), handle).await.expect("pods stop in seconds").unwrap();
    }
    assert!(member::pods(&space).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_due_soon_wakes_a_sleeping_bucket() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let (stop, handle) = start_pod(&space, named("pod-a"));
    let worker = {
        let space = space.clone();
        tokio::spawn(async move { work(&space, "ex-1", 10, 10).await })
    };
    // Once the first task has run, the pod knows queue and executor, and its buckets sleep until their poll.
    let first = client.submit(push(Due::Now)).await.unwrap();
    while client.get(first.id).await.unwrap().unwrap().state != State::Succeeded
        || read_holders(&space).await < 8
    {
        tokio::task::yield_now().await;
    }
    let (_, before) = client.counts().await.unwrap();
    let mut lags = Vec::new();
    for _ in 0..9 {
        let task = client.submit(push(Due::In(20))).await.unwrap();
        while client.get(task.id).await.unwrap().unwrap().state != State::Succeeded {
            tokio::task::yield_now().await;
        }
        lags.push(space.clock().now_ms() - task.due.0);
    }
    tokio::time::timeout(Duration::from_secs(10), worker).await.expect("all run in time").unwrap();
    assert_eq!(before.count, 1);
    lags.sort_unstable();
    assert!(lags[4] < 200, "woken, not polled: {lags:?}");
    stop.cancel();
    handle.await.unwrap();
}

async fn read_holders(space: &Space) -> usize {
    let mut held = 0;
    for bucket in (0..8).filter_map(minutehand::model::Bucket::new) {
        held += read::counts(space, bucket).await.unwrap().holders.len();
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_nobody_serves_wait_and_hold_nobody_up() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let (stop, handle) = start_pod(&space, named("pod-a"));
    let lonely = NewTask { labels: minutehand::model::Labels::new(["gpu"]).unwrap(), ..push(Due::Now) };
    let lonely = client.submit(lonely).await.unwrap();
    let worker = {
        let space = space.clone();
        tokio::spawn(async move { work(&space, "ex-1", 10, 50).await })
    };
    for _ in 0..50 {
        client.submit(push(Due::Now)).await.unwrap();
    }
    let ran = tokio::time::timeout(Duration::from_secs(10), worker).await.expect("all run in time").unwrap();
    assert_eq!(ran.len(), 50);
    assert!(!ran.contains_key(&lonely.id));
    let view = client.get(lonely.id).await.unwrap().unwrap();
    assert_eq!(view.state, State::Pending);
    stop.cancel();
    handle.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_urgent_task_is_on_time_while_others_wait_for_room() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    // Room never comes, and the poll far too late.
    let settings = PodSettings { poll_ms: 20_000, lock_ms: 30_000, ..named("pod-a") };
    let (stop, handle) = start_pod(&space, settings);
    let (open, gate) = tokio::sync::watch::channel(false);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let executor =
        Executor::builder(space.clone()).slots(1).urgent_slots(1).handle("push", move |task, _| {
            let (mut gate, told) = (gate.clone(), tell.send(task.priority));
            async move {
                told?;
                if !task.priority.is_urgent() {
                    gate.wait_for(|open| *open).await?;
                }
                Ok(())
            }
        });
    let executor = tokio::spawn(executor.build().unwrap().run(stop.clone()));
    let mut next =
        async || tokio::time::timeout(Duration::from_secs(10), told.recv()).await.unwrap().unwrap();
    let low = NewTask { priority: Priority::P5, ..push(Due::Now) };
    client.submit_batch(vec![low; 50]).await.unwrap();
    assert_eq!(next().await, Priority::P5);
    client.submit(NewTask { priority: Priority::P0, ..push(Due::In(500)) }).await.unwrap();
    assert_eq!(next().await, Priority::P0, "it has a slot of its own");
    open.send_replace(true);
    stop.cancel();
    handle.await.unwrap();
    executor.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_queue_is_served_before_the_next_poll() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    // A poll so long that only a wake-up can explain a start before it.
    let settings =
        PodSettings { id: "pod-a".into(), poll_ms: 20_000, lock_ms: 30_000, ..PodSettings::default() };
    let (stop, handle) = start_pod(&space, settings);
    let worker = {
        let space = space.clone();
        tokio::spawn(async move { work(&space, "ex-1", 10, 4).await })
    };
    while read_holders(&space).await < 8 || member::executors(&space).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    for queue in ["first", "second", "third", "fourth"] {
        client.submit(NewTask::to(QueueName::new(queue).unwrap())).await.unwrap();
    }
    tokio::time::timeout(Duration::from_secs(10), worker).await.expect("all run before the poll").unwrap();
    stop.cancel();
    handle.await.unwrap();
}

/// Calls of scripts that a server has answered.
fn script_calls(bed: &Bed) -> u64 {
    let told = bed.server().run(&["INFO", "commandstats"]).unwrap();
    let line = told.text().lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// 256 buckets with nothing in hand are left alone, and yet a task in one of them starts at once; also where the
/// connections that hear the wake-ups have just been cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_rests_on_idle_buckets_and_is_woken_in_time() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let store = bed.store().await.unwrap();
    let birth = Birth { key_buckets: 256, buckets: 256, holders: 1 };
    let space = Space::open_as(store, Namespace::new(bed.namespace()).unwrap(), birth).await.unwrap();
    let client = Client::new(space.clone());
    let (stop, pod) = start_pod(&space, named("pod-a"));
    // All buckets have been claimed from and rest: from then on only the pod itself is heard of.
    let mut before = script_calls(&bed);
    let quiet = async {
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let now = script_calls(&bed);
            if now - before < 64 {
                return now - before;
            }
            before = now;
        }
    };
    let calls = tokio::time::timeout(Duration::from_secs(60), quiet).await.expect("the pod comes to rest");
    println!("{calls} calls of scripts in 2 s for 256 idle buckets");
    for cut in [false, true] {
        if cut {
            bed.server().run(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        }
        client.submit(push(Due::In(0))).await.unwrap();
        let done = tokio::time::timeout(Duration::from_secs(10), work(&space, "ex", 4, 1)).await;
        assert_eq!(done.expect("it is woken").len(), 1, "cut: {cut}");
    }
    stop.cancel();
    pod.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_starts_on_its_millisecond_and_never_before_it() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let (stop, handle) = start_pod(&space, named("pod-a"));
    // The server is on this machine, so its clock is this machine's.
    let (note, mut noted) = tokio::sync::mpsc::unbounded_channel();
    let executor = Executor::builder(space.clone())
        .handle("push", move |task, _| {
            let _ = note.send((task.id, clock::wall_us() - task.due.0 * 1_000));
            async { Ok(()) }
        })
        .build()
        .unwrap();
    let working = tokio::spawn(executor.run(stop.clone()));
    let first = client.submit(push(Due::Now)).await.unwrap();
    assert_eq!(noted.recv().await.unwrap().0, first.id);
    while read_holders(&space).await < 8 {
        tokio::task::yield_now().await;
    }
    // Alone, to start in 50 ms while its bucket sleeps; then many at arbitrary times.
    let mut lags = Vec::new();
    for n in 0..20 {
        let task = client.submit(push(Due::In(50))).await.unwrap();
        let (id, lag) = noted.recv().await.unwrap();
        assert_eq!(id, task.id);
        assert!(lag >= 0, "{id} started {} µs early, alone", -lag);
        lags.push(lag);
        tokio::time::sleep(Duration::from_millis(n)).await;
    }
    let tasks = (0..1_000).map(|_| push(Due::In(fastrand::i64(0..1_500)))).collect();
    client.submit_batch(tasks).await.unwrap();
    for _ in 0..1_000 {
        let (id, lag) = noted.recv().await.unwrap();
        assert!(lag >= 0, "{id} started {} µs early", -lag);
    }
    lags.sort_unstable();
    println!("alone: {lags:?} µs");
    assert!(lags[10] < 20_000, "on time, as far as a loaded machine allows: {lags:?}");
    stop.cancel();
    working.await.unwrap().unwrap();
    handle.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_was_claimed_ahead_can_still_be_cancelled() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let settings = PodSettings { id: "pod-a".into(), look_ahead_ms: 200, ..PodSettings::default() };
    let (stop, handle) = start_pod(&space, settings);
    let ran = std::sync::Arc::new(parking_lot::Mutex::new(std::collections::BTreeSet::new()));
    let own = std::sync::Arc::clone(&ran);
    let executor = Executor::builder(space.clone())
        .handle("push", move |task, _| {
            own.lock().insert(task.id);
            async { Ok(()) }
        })
        .build()
        .unwrap();
    let working = tokio::spawn(executor.run(stop.clone()));
    let first = client.submit(push(Due::Now)).await.unwrap();
    while client.get(first.id).await.unwrap().unwrap().state != State::Succeeded {
        tokio::task::yield_now().await;
    }
    let mut asked = 0;
    for _ in 0..10 {
        let task = client.submit(push(Due::In(400))).await.unwrap();
        while client.get(task.id).await.unwrap().unwrap().state == State::Pending {
            tokio::task::yield_now().await;
        }
        let told = client.cancel(task.id, "test", "changed my mind").await.unwrap();
        let in_time = space.clock().now_ms() + 30 < task.due.0;
        loop {
            let view = client.get(task.id).await.unwrap().unwrap();
            if view.state == State::Cancelled {
                break;
            }
            assert_eq!(view.state, State::Running, "{told:?}");
            tokio::task::yield_now().await;
        }
        // On a machine so loaded that the wish comes after the start it only ends as cancelled.
        if in_time {
            asked += 1;
            assert!(!ran.lock().contains(&task.id), "it ran although the wish came in time");
        }
    }
    println!("{asked} of 10 wishes came 30 ms before the time");
    stop.cancel();
    working.await.unwrap().unwrap();
    handle.await.unwrap();
}
