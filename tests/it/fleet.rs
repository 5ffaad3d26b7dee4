//! A fleet: fifty executors that differ in slots, labels and costs, one slow, one flapping, one that lies about its
//! load, and four pods. Every task runs once, nobody runs more than it has slots for, hardly anything is handed
//! back, and urgent tasks are not hurt by the others.

use crate::executor::NEVER;
use minutehand::client::{Client, NewTask};
use minutehand::executor::{Context, Executor, HandlerFuture, Task};
use minutehand::model::spec::Extras;
use minutehand::model::{Labels, Priority, QueueName, TaskId};
use minutehand::pod::{Pod, PodSettings, PodTally};
use minutehand::store::member::{self, ExecutorRecord, Take};
use minutehand::store::run::{self, AckRow, Outcome};
use minutehand::store::{Space, due};
use minutehand::testing::bed::Bed;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const EXECUTORS: usize = 50;
const PODS: usize = 4;
const TASKS: usize = 4_000;
const LIAR_SLOTS: u32 = 4;

/// What all handlers write down.
#[derive(Default)]
struct Book {
    /// Finished runs by task, with priority and how late it was entered, in ms.
    runs: Mutex<HashMap<TaskId, Vec<(Priority, i64)>>>,
    /// Tasks that ran where their label is not offered.
    misplaced: AtomicU32,
    /// Most handlers at once, by executor, beside what it may run.
    most: Mutex<BTreeMap<String, (u32, u32)>>,
}

impl Book {
    fn finished(&self, id: TaskId, priority: Priority, lag_ms: i64) {
        self.runs.lock().entry(id).or_default().push((priority, lag_ms));
    }

    fn busy(&self, executor: &str, now: u32, slots: u32) {
        let mut most = self.most.lock();
        let entry = most.entry(executor.to_owned()).or_insert((0, slots));
        entry.0 = entry.0.max(now);
    }
}

fn handler(book: Arc<Book>, slots: u32, slowness: u32, gpu: bool) -> impl Fn(Task, Context) -> HandlerFuture {
    let now = Arc::new(AtomicU32::new(0));
    move |task, ctx| {
        let (book, now) = (Arc::clone(&book), Arc::clone(&now));
        Box::pin(async move {
            if !gpu && !task.labels.as_slice().is_empty() {
                book.misplaced.fetch_add(1, Ordering::SeqCst);
            }
            book.busy(ctx.executor(), now.fetch_add(1, Ordering::SeqCst) + 1, slots);
            let ms = task.extras.cost_ms.unwrap_or(2) * slowness;
            tokio::time::sleep(Duration::from_millis(ms.into())).await;
            now.fetch_sub(1, Ordering::SeqCst);
            book.finished(task.id, task.priority, ctx.lag_ms());
            Ok(())
        })
    }
}

/// An executor that says that it has nothing to do, whatever it does.
async fn lie(space: Space, book: Arc<Book>, stop: CancellationToken) {
    let record = ExecutorRecord {
        id: "liar".into(),
        name: "liar".into(),
        queues: vec!["*".into()],
        slots: LIAR_SLOTS,
        capacity: LIAR_SLOTS,
        load_ms: 0.0,
        busy: 0,
        ..ExecutorRecord::default()
    };
    let mut beats = 0u64;
    while !stop.is_cancelled() {
        if beats.is_multiple_of(50) {
            let record = ExecutorRecord { beats, ..record.clone() };
            member::beat_executor(&space, &record).await.unwrap();
        }
        beats += 1;
        let ask =
            Take { normal: LIAR_SLOTS, urgent: 0, in_hand: 0, capacity: LIAR_SLOTS, urgent_capacity: 0 };
        let taken = member::take(&space, "liar", ask).await.unwrap();
        book.busy("liar", taken.offers.len() as u32, LIAR_SLOTS);
        tokio::time::sleep(Duration::from_millis(20)).await;
        for offer in taken.offers {
            book.finished(offer.id, if offer.urgent { Priority::P0 } else { Priority::P3 }, 0);
            let row = AckRow {
                id: offer.id,
                grant: offer.grant,
                outcome: Outcome::Succeeded,
                lag_ms: 0,
                took_ms: 1,
            };
            run::ack(&space, offer.id.bucket(), "liar", &[row], false).await.unwrap();
        }
        for pod in taken.hungry {
            member::tell_room(&space, &pod, "liar").await.unwrap();
        }
    }
    let left = member::leave_executor(&space, "liar").await.unwrap();
    let rows = left.iter().map(|offer| (offer.id, offer.grant)).collect();
    due::hand_back(&space, "liar", "it ends", rows).await;
}

fn run_one(
    space: Space,
    number: usize,
    book: &Arc<Book>,
    stop: CancellationToken,
) -> tokio::task::JoinHandle<u64> {
    let slots = [1, 2, 3, 4, 8][number % 5];
    let urgent = (number % 2) as u32;
    let slowness = if number == 0 { 10 } else { 1 };
    let mut builder = Executor::builder(space).name(format!("ex-{number}")).slots(slots).urgent_slots(urgent);
    if number.is_multiple_of(3) {
        builder = builder.label("gpu");
    }
    let executor = builder
        .handle_any(handler(Arc::clone(book), slots + urgent, slowness, number.is_multiple_of(3)))
        .handlers_on(tokio::runtime::Handle::current())
        .build()
        .unwrap();
    tokio::spawn(async move { executor.run(stop).await.unwrap().handed_back })
}

fn plan() -> Vec<NewTask> {
    let mut random = fastrand::Rng::with_seed(7);
    let tasks = (0..TASKS).map(|n| {
        let urgent = n % 20 == 0;
        let extras = Extras { cost_ms: Some(random.u32(1..20)), ..Extras::default() };
        NewTask {
            priority: if urgent { Priority::P0 } else { Priority::P3 },
            labels: if n % 7 == 0 { Labels::new(["gpu"]).unwrap() } else { Labels::default() },
            extras,
            ..NewTask::to(QueueName::new(["push", "mail", "sms"][n % 3]).unwrap())
        }
    });
    tasks.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_fleet_runs_every_task_once_and_nobody_too_many() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let book = Arc::new(Book::default());
    let (stop, flap) = (CancellationToken::new(), CancellationToken::new());
    let mut executors = Vec::new();
    // One connection serves several, as it would in processes of many handlers.
    let mut shared = Vec::new();
    for _ in 0..5 {
        shared.push(bed.open().await.unwrap());
    }
    for number in 0..EXECUTORS - 2 {
        executors.push(run_one(shared[number % 5].clone(), number, &book, stop.clone()));
    }
    let liar = tokio::spawn(lie(bed.open().await.unwrap(), Arc::clone(&book), stop.clone()));
    let flapping = tokio::spawn({
        let (space, book, flap) = (bed.open().await.unwrap(), Arc::clone(&book), flap.clone());
        async move {
            let (mut starts, mut handed_back) = (0, 0);
            while !flap.is_cancelled() {
                let stop = CancellationToken::new();
                let running = run_one(space.clone(), EXECUTORS, &book, stop.clone());
                let _ = tokio::time::timeout(Duration::from_millis(300), flap.cancelled()).await;
                stop.cancel();
                starts += 1;
                handed_back += running.await.unwrap();
            }
            (starts, handed_back)
        }
    });
    let all_there = async { while member::executors(&space).await.unwrap().len() < EXECUTORS - 1 {} };
    tokio::time::timeout(NEVER, all_there).await.unwrap();
    // A batch lies in one bucket: small ones reach all. The first one makes the queues known before there are pods: what
    // one claims of a queue that it has not heard of goes back.
    let plan = plan();
    let mut batches = plan.chunks(80);
    let submit = async |batch: &[NewTask]| {
        for answer in client.submit_batch(batch.to_vec()).await.unwrap() {
            answer.unwrap();
        }
    };
    submit(batches.next().unwrap()).await;
    let pods_stop = CancellationToken::new();
    let (mut pods, mut tallies) = (Vec::new(), Vec::<Arc<PodTally>>::new());
    for _ in 0..PODS {
        let pod = Pod::new(bed.open().await.unwrap(), PodSettings::default());
        tallies.push(pod.tally());
        pods.push(tokio::spawn(pod.run(pods_stop.clone())));
    }
    // The first pod there holds everything: what comes before the others have their share is its own.
    let all_hold = async {
        loop {
            let pods = client.status().await.unwrap().pods;
            if pods.len() == PODS && pods.iter().all(|pod| !pod.buckets.is_empty()) {
                break;
            }
        }
    };
    tokio::time::timeout(NEVER, all_hold).await.unwrap();
    for batch in batches {
        submit(batch).await;
    }
    let done = async { while client.counts().await.unwrap().0.succeeded < TASKS as i64 {} };
    if tokio::time::timeout(Duration::from_secs(60), done).await.is_err() {
        panic!("not all ended: {:?}", client.counts().await.unwrap().0);
    }
    flap.cancel();
    let (flaps, flapped) = flapping.await.unwrap();
    stop.cancel();
    for executor in executors {
        executor.await.unwrap();
    }
    liar.await.unwrap();
    pods_stop.cancel();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }

    assert!(client.replay(true).await.unwrap().ok, "its events are legal");
    assert!(flaps > 1, "it came and went {flaps} times");
    assert_eq!(book.misplaced.load(Ordering::SeqCst), 0, "labels are kept to");
    let claimed: Vec<u64> = tallies.iter().map(|tally| tally.claimed.load(Ordering::Relaxed)).collect();
    assert!(claimed.iter().all(|tasks| *tasks > 0), "all pods take part: {claimed:?}");
    let runs = book.runs.lock();
    assert_eq!(runs.len(), TASKS);
    let doubled: Vec<_> = runs.iter().filter(|(_, runs)| runs.len() > 1).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    for (executor, (most, may)) in book.most.lock().iter() {
        assert!(most <= may, "{executor} ran {most} at once and may run {may}");
    }
    let back: u64 = tallies.iter().map(|tally| tally.handed_back.load(Ordering::Relaxed)).sum();
    let lags = |priority: Priority| {
        let mut lags: Vec<i64> =
            runs.values().flatten().filter(|(own, _)| *own == priority).map(|(_, lag)| *lag).collect();
        lags.sort_unstable();
        lags
    };
    let (urgent, normal) = (lags(Priority::P0), lags(Priority::P3));
    let (p99, p50) = (urgent[urgent.len() * 99 / 100], normal[normal.len() / 2]);
    println!(
        "handed back by pods {back}, by the flapping executor {flapped}; P0 p99 {p99} ms, P3 p50 {p50} ms"
    );
    let back = back + flapped;
    assert!(
        back * 100 < TASKS as u64,
        "{back} of {TASKS} were handed back, by pods and by the one that flaps"
    );
    assert!(p99 <= p50, "urgent tasks were {p99} ms late where half of the others were {p50} ms");
}
