//! Pods share the work: as they come, go and die, and when several hold one hot bucket.

use minutehand::client::{Client, Due, NewTask};
use minutehand::executor::Executor;
use minutehand::model::event::Move;
use minutehand::model::{Bucket, Namespace, QueueName, TaskId};
use minutehand::pod::{Pod, PodSettings, PodTally};
use minutehand::store::bucket::{self, Change};
use minutehand::store::{Birth, ConnectSettings, Space, Store, events, read};
use minutehand::testing::bed::Bed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const NEVER: Duration = Duration::from_secs(60);
const LOCK_MS: i64 = 1_500;

/// A pod on a runtime of its own: dropping that is its death.
struct Alone {
    id: String,
    stop: CancellationToken,
    tally: Arc<PodTally>,
    runtime: Option<tokio::runtime::Runtime>,
    handle: tokio::task::JoinHandle<()>,
}

impl Alone {
    async fn start(settings: &ConnectSettings, namespace: &Namespace, id: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (settings, namespace) = (settings.clone(), namespace.clone());
        let pod_settings = PodSettings {
            id: id.into(),
            lock_ms: LOCK_MS,
            poll_ms: 500,
            dispatch_ms: 2_000,
            ..PodSettings::default()
        };
        let opening = runtime.spawn(async move {
            let space = Space::open(Store::connect(settings).await.unwrap(), namespace).await.unwrap();
            Pod::new(space, pod_settings)
        });
        let pod = opening.await.unwrap();
        let (stop, tally) = (CancellationToken::new(), pod.tally());
        let token = stop.clone();
        let handle = runtime.spawn(async move { pod.run(token).await.unwrap() });
        Self { id: id.into(), stop, tally, runtime: Some(runtime), handle }
    }

    async fn leave(mut self) {
        self.stop.cancel();
        tokio::time::timeout(NEVER, &mut self.handle).await.expect("stops in seconds").unwrap();
        self.die();
    }

    /// Without a word to anybody.
    fn die(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Which pods hold which buckets now.
async fn holders(space: &Space) -> BTreeMap<u16, BTreeSet<String>> {
    let mut out = BTreeMap::new();
    for bucket in space.spread().live() {
        let counts = read::counts(space, bucket).await.unwrap();
        out.insert(bucket.number(), counts.holders.into_iter().map(|(pod, _)| pod).collect());
    }
    out
}

/// Waits until these pods alone hold all buckets, one each, in shares that differ by at most one; answers the shares.
async fn until_shared(space: &Space, pods: &[Alone]) -> Vec<usize> {
    let waiting = async {
        loop {
            let held = holders(space).await;
            let mut shares: Vec<usize> = pods
                .iter()
                .map(|pod| {
                    held.values().filter(|holders| holders.len() == 1 && holders.contains(&pod.id)).count()
                })
                .collect();
            shares.sort_unstable();
            if shares.iter().sum::<usize>() == held.len() && shares[shares.len() - 1] - shares[0] <= 1 {
                return shares;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(NEVER, waiting).await {
        Ok(shares) => shares,
        Err(_) => panic!("never shared evenly: {:?}", holders(space).await),
    }
}

#[derive(Debug, Default, Clone)]
struct Life {
    claimed: u32,
    succeeded: u32,
    pods: BTreeSet<String>,
    due_ms: i64,
    lag_ms: i64,
}

/// What the events say of each task.
async fn lives(space: &Space) -> BTreeMap<TaskId, Life> {
    let mut lives: BTreeMap<TaskId, Life> = BTreeMap::new();
    for bucket in space.spread().all() {
        let mut after = None;
        loop {
            let stretch = events::stretch(space, bucket, None, after.as_deref()).await.unwrap();
            for event in stretch.events {
                let life = lives.entry(event.id).or_default();
                match event.event {
                    Move::Submitted => life.due_ms = event.due.unwrap().0,
                    Move::Claimed => {
                        life.claimed += 1;
                        life.pods.insert(event.actor);
                    }
                    Move::Succeeded => {
                        life.succeeded += 1;
                        // "started 3 ms after due, ran 11 ms"
                        life.lag_ms =
                            event.cause.split(' ').nth(1).unwrap().replace(',', "").parse().unwrap();
                    }
                    _ => {}
                }
            }
            after = stretch.last.or(after);
            if !stretch.more {
                break;
            }
        }
    }
    lives
}

async fn executor(bed: &Bed, namespace: &Namespace, stop: &CancellationToken) -> tokio::task::JoinHandle<()> {
    let space = Space::open(bed.store().await.unwrap(), namespace.clone()).await.unwrap();
    let executor =
        Executor::builder(space).slots(256).handle("push", |_, _| async { Ok(()) }).build().unwrap();
    let stop = stop.clone();
    tokio::spawn(async move { executor.run(stop).await.map(|_| ()).unwrap() })
}

/// 1, 4, 2, 7 pods at 2,000 tasks a second; of those that go, one dies without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_come_go_and_die_share_the_work() {
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let birth = Birth { key_buckets: 8, buckets: 16, holders: 1 };
    let space = Space::open_as(bed.store().await.unwrap(), namespace.clone(), birth).await.unwrap();
    let client = Client::new(space.clone());
    let stop = CancellationToken::new();
    let executors = [executor(&bed, &namespace, &stop).await, executor(&bed, &namespace, &stop).await];
    let mut pods = vec![Alone::start(&bed.settings(), &namespace, "pod-0").await];
    until_shared(&space, &pods).await;

    let (ended, load) = (Arc::new(AtomicBool::new(false)), client.clone());
    let end = Arc::clone(&ended);
    let submitter = tokio::spawn(async move {
        let (mut ids, mut every) = (Vec::new(), tokio::time::interval(Duration::from_millis(20)));
        while !end.load(Ordering::Relaxed) {
            every.tick().await;
            let task = || NewTask { due: Due::In(400), ..NewTask::to(QueueName::new("push").unwrap()) };
            let answers = load.submit_batch((0..40).map(|_| task()).collect()).await.unwrap();
            ids.extend(answers.into_iter().map(|answer| answer.unwrap().id));
        }
        ids
    });
    // When each change began and was over, by Redis's clock.
    let mut spans = Vec::new();
    let mut next = 1;
    for goal in [1, 4, 2, 7] {
        let (start, from) = (minutehand::clock::mono(), space.clock().now_ms());
        let before = pods.len();
        let mut dies = true;
        while pods.len() > goal {
            let pod = pods.remove(0);
            if std::mem::take(&mut dies) { pod.die() } else { pod.leave().await }
        }
        while pods.len() < goal {
            pods.push(Alone::start(&bed.settings(), &namespace, &format!("pod-{next}")).await);
            next += 1;
        }
        let shares = until_shared(&space, &pods).await;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(8), "{before} to {goal} pods: shared after {took:?}");
        // A while under load with these pods: two seconds of tasks.
        let settled = space.clock().now_ms();
        while space.clock().now_ms() < settled + 2_000 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        spans.push((before, goal, shares, took, from, space.clock().now_ms()));
    }
    ended.store(true, Ordering::Relaxed);
    let ids = submitter.await.unwrap();
    let done = async {
        while client.counts().await.unwrap().0.succeeded != ids.len() as i64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(NEVER, done).await.is_err() {
        panic!("{} submitted, {:?}", ids.len(), client.counts().await.unwrap());
    }
    let lives = lives(&space).await;
    assert_eq!(lives.len(), ids.len(), "nothing lost, nothing doubled");
    for id in &ids {
        assert_eq!(lives[id].succeeded, 1, "{id}: {:?}", lives[id]);
    }
    let again = lives.values().filter(|life| life.claimed > 1).count();
    let moved = lives.values().filter(|life| life.pods.len() > 1).count();
    for (before, goal, shares, took, from, to) in spans {
        let of = lives.values().filter(|life| (from..to).contains(&life.due_ms));
        let mut lags: Vec<i64> = of.map(|life| life.lag_ms).collect();
        lags.sort_unstable();
        let at = |q: f64| lags[((lags.len() - 1) as f64 * q) as usize];
        println!(
            "{before} → {goal} pods: shares {shares:?} after {took:?}; {} tasks, lag p50 {} ms, p99 {} ms, max {} ms",
            lags.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    println!("{} tasks: {again} granted more than once, {moved} of them by several pods", ids.len());
    // Only what a dead pod had claimed and not delivered is granted again.
    assert!(again <= ids.len() / 50, "{again} of {} were granted more than once", ids.len());
    let report = minutehand::store::check::check(&space, Default::default()).await.unwrap();
    assert!(report.ok, "{:?}", report.violations);
    for pod in pods {
        pod.leave().await;
    }
    stop.cancel();
    for executor in executors {
        executor.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_pods_drain_one_hot_bucket() {
    const TASKS: usize = 6_000;
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let birth = Birth { key_buckets: 1, buckets: 1, holders: 1 };
    let space = Space::open_as(bed.store().await.unwrap(), namespace.clone(), birth).await.unwrap();
    let client = Client::new(space.clone());
    let mut pods = Vec::new();
    for n in 0..4 {
        pods.push(Alone::start(&bed.settings(), &namespace, &format!("pod-{n}")).await);
    }
    let held = async |count: usize| {
        let waiting = async {
            while holders(&space).await[&0].len() != count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(NEVER, waiting).await.unwrap_or_else(|_| panic!("never {count} holders"));
    };
    held(1).await;
    let hot = |holders: &[(u16, u8)]| Change { hot: Some(holders.to_vec()), ..Change::default() };
    assert!(bucket::resize(&space, &space.spread(), &hot(&[(0, 3)])).await.unwrap());
    held(3).await;
    let stop = CancellationToken::new();
    let executors = [executor(&bed, &namespace, &stop).await, executor(&bed, &namespace, &stop).await];
    let tasks = (0..TASKS).map(|n| NewTask {
        due: Due::In(500 + (n % 1_000) as i64),
        ..NewTask::to(QueueName::new("push").unwrap())
    });
    let answers = client.submit_batch(tasks.collect()).await.unwrap();
    assert!(answers.iter().all(|answer| answer.is_ok()));
    let done = async {
        while client.counts().await.unwrap().0.succeeded != TASKS as i64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(NEVER, done).await.expect("all run");
    let claimed: Vec<u64> = pods.iter().map(|pod| pod.tally.claimed.load(Ordering::Relaxed)).collect();
    println!("claimed by each of four pods, three of which hold the bucket: {claimed:?}");
    assert_eq!(claimed.iter().sum::<u64>(), TASKS as u64, "none was granted twice");
    assert_eq!(claimed.iter().filter(|claimed| **claimed > 0).count(), 3);
    assert!(lives(&space).await.values().all(|life| (life.claimed, life.succeeded) == (1, 1)));
    // Fewer again: the others let go.
    assert!(bucket::resize(&space, &space.spread(), &hot(&[])).await.unwrap());
    held(1).await;
    assert_eq!(space.spread().holders_of(Bucket::default().number()), 1);
    for pod in pods {
        pod.leave().await;
    }
    stop.cancel();
    for executor in executors {
        executor.await.unwrap();
    }
}
