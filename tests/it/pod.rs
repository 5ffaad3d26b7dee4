//! Pods: sharing buckets, delivering, stopping in order.

use minutehand::client::{Client, Due, NewTask};
use minutehand::dev::redis::ServerOptions;
use minutehand::model::{Namespace, QueueName, State, TaskId};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::member::{self, ExecutorRecord, Take};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome};
use minutehand::store::{Birth, Space, read};
use minutehand::testing::bed::Bed;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

async fn open(bed: &Bed) -> Space {
    Space::open(bed.store().await.unwrap(), Namespace::new(bed.namespace()).unwrap()).await.unwrap()
}

fn start_pod(space: &Space, id: &str) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    start_pod_as(space, PodSettings { id: id.into(), ..PodSettings::default() })
}

fn start_pod_as(space: &Space, settings: PodSettings) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let stop = CancellationToken::new();
    let pod = Pod::new(space.clone(), settings);
    let token = stop.clone();
    (stop, tokio::spawn(async move { pod.run(token).await.unwrap() }))
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
    let ask = Take { normal: capacity, urgent: 0, in_hand: 0, capacity, urgent_slots: 0 };
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
    let space = open(&bed).await;
    let client = Client::new(space.clone());
    let pods = [start_pod(&space, "pod-a"), start_pod(&space, "pod-b")];
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
    let space = open(&bed).await;
    let client = Client::new(space.clone());
    let (stop, handle) = start_pod(&space, "pod-a");
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
    let space = open(&bed).await;
    let client = Client::new(space.clone());
    let (stop, handle) = start_pod(&space, "pod-a");
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
async fn a_new_queue_is_served_before_the_next_poll() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let client = Client::new(space.clone());
    // A poll so long that only a wake-up can explain a start before it.
    let settings =
        PodSettings { id: "pod-a".into(), poll_ms: 20_000, lock_ms: 30_000, ..PodSettings::default() };
    let (stop, handle) = start_pod_as(&space, settings);
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
    let (stop, pod) = start_pod(&space, "pod-a");
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
