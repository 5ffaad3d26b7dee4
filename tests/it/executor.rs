//! Pods and executors together on a real server: tasks are run, moved, cancelled and handed back.

use minutehand::client::{Client, Due, NewTask, SubmitError};
use minutehand::executor::{
    Context, Executor, ExecutorBuilder, ExecutorReport, HandlerError, HandlerFuture, Stop, Task, discard,
    exec,
};
use minutehand::model::{Bucket, Priority, QueueName, Retry, State, TaskId};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::{Space, member, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::stalls::Stalls;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing here may take this long.
pub(crate) const NEVER: Duration = Duration::from_secs(30);

/// A pod, and executors as they are started.
pub(crate) struct Town {
    pub(crate) space: Space,
    pub(crate) client: Client,
    pub(crate) stop: CancellationToken,
    pod: JoinHandle<()>,
}

impl Town {
    pub(crate) async fn build(bed: &Bed) -> Self {
        let space = bed.open().await.unwrap();
        let stop = CancellationToken::new();
        let pod = Pod::new(space.clone(), PodSettings::default());
        let halt = stop.clone();
        let pod = tokio::spawn(async move { pod.run(halt).await.unwrap() });
        Self { client: Client::new(space.clone()), space, stop, pod }
    }

    /// An executor with a connection of its own, as in another process.
    pub(crate) async fn executor(&self, bed: &Bed) -> ExecutorBuilder {
        let space = Space::open(bed.store().await.unwrap(), self.space.namespace().clone()).await.unwrap();
        Executor::builder(space).name("ex").slots(16)
    }

    pub(crate) async fn submit(&self, task: NewTask) -> TaskId {
        self.client.submit(task).await.unwrap().id
    }

    /// Waits for a state, as a user would.
    pub(crate) async fn until(&self, id: TaskId, state: State) {
        let mut seen = None;
        let waiting = async {
            loop {
                seen = read::get(&self.space, id).await.unwrap().map(|task| task.state);
                if seen == Some(state) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(NEVER, waiting).await.is_err() {
            panic!("{id} is {seen:?} and never {state}");
        }
    }

    pub(crate) async fn count(&self, state: &str) -> i64 {
        let mut sum = 0;
        for number in 0..self.space.spread().peak {
            sum += read::counts(&self.space, Bucket::new(number).unwrap()).await.unwrap().count(state);
        }
        sum
    }

    pub(crate) async fn until_count(&self, state: &str, count: i64) {
        let waiting = async { while self.count(state).await != count {} };
        if tokio::time::timeout(NEVER, waiting).await.is_err() {
            panic!("never {count} {state}, but {}", self.count(state).await);
        }
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(NEVER, self.pod).await.unwrap().unwrap();
    }
}

pub(crate) struct Running {
    pub(crate) id: String,
    stop: CancellationToken,
    task: JoinHandle<ExecutorReport>,
}

pub(crate) fn start(builder: ExecutorBuilder) -> Running {
    let executor = builder.build().unwrap();
    let (id, stop) = (executor.id().to_owned(), CancellationToken::new());
    let halt = stop.clone();
    let task = tokio::spawn(async move { executor.run(halt).await.unwrap() });
    Running { id, stop, task }
}

impl Running {
    pub(crate) async fn end(self) -> ExecutorReport {
        self.stop.cancel();
        tokio::time::timeout(NEVER, self.task).await.unwrap().unwrap()
    }
}

pub(crate) fn task(queue: &str) -> NewTask {
    NewTask { payload: "hello".into(), ..NewTask::to(QueueName::new(queue).unwrap()) }
}

/// A handler that tells what it got, and when by Redis's clock, in ms.
fn reporting(
    space: Space,
) -> (mpsc::UnboundedReceiver<(Task, i64)>, impl Fn(Task, Context) -> HandlerFuture) {
    let (tell, told) = mpsc::unbounded_channel();
    let handler = move |task: Task, _: Context| -> HandlerFuture {
        let _ = tell.send((task, space.clock().now_ms()));
        Box::pin(async { Ok(()) })
    };
    (told, handler)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_runs_once_not_before_its_time() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (mut told, handler) = reporting(town.space.clone());
    let one = start(town.executor(&bed).await.handle("push", handler));
    let two = start(town.executor(&bed).await.handle("push", discard()));
    let tasks = (0..1_500).map(|n| NewTask {
        due: Due::In(n % 700),
        priority: Priority::ALL[(n % 6) as usize],
        ..task("push")
    });
    let submitted = town.client.submit_batch(tasks.collect()).await.unwrap();
    let mut ids: HashMap<TaskId, i64> = HashMap::new();
    for answer in submitted {
        let answer: Result<_, SubmitError> = answer;
        let answer = answer.unwrap();
        ids.insert(answer.id, answer.due.0);
    }
    town.until_count("succeeded", 1_500).await;
    let (one, two) = (one.end().await, two.end().await);
    assert_eq!(one.started + two.started, 1_500, "{one:?} {two:?}");
    assert_eq!(one.succeeded + two.succeeded, 1_500);
    assert!(one.started > 0 && two.started > 0, "both had work");
    while let Ok((task, entered)) = told.try_recv() {
        // An estimate of Redis's clock errs by up to half a round trip.
        assert!(entered >= task.due.0 - 5, "{} ms early", task.due.0 - entered);
        assert_eq!((ids.remove(&task.id), task.attempt), (Some(task.due.0), 1));
        assert_eq!((&task.payload[..], task.queue.as_str()), (&b"hello"[..], "push"));
    }
    assert_eq!(ids.len() as u64, two.started);
    assert!(member::executors(&town.space).await.unwrap().is_empty(), "both have left");
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_tried_again_and_die_with_their_reason() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let executor = start(
        town.executor(&bed)
            .await
            .handle("flaky", |task, _| async move {
                if task.attempt < 3 {
                    Err(HandlerError::failed(format!("try {}", task.attempt)))
                } else {
                    Ok(())
                }
            })
            .handle("hopeless", |_, _| async { Err(HandlerError::fatal("no such flight")) })
            .handle("broken", exec("echo out of paper >&2; exit 3")),
    );
    let retry: Retry = "fixed:20ms".parse::<Retry>().unwrap();
    let flaky = town.submit(NewTask { backoff: Some(retry), retries: Some(2), ..task("flaky") }).await;
    let hopeless = town.submit(NewTask { backoff: Some(retry), ..task("hopeless") }).await;
    let broken = town.submit(NewTask { backoff: Some(retry), retries: Some(1), ..task("broken") }).await;
    town.until(flaky, State::Succeeded).await;
    town.until(hopeless, State::Dead).await;
    town.until(broken, State::Dead).await;
    let view = town.client.get(broken).await.unwrap().unwrap();
    let shown = serde_json::to_string(&view).unwrap();
    assert!(shown.contains("exit code 3: out of paper"), "{shown}");
    let report = executor.end().await;
    assert_eq!((report.started, report.succeeded, report.failed), (6, 1, 5));
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wish_to_cancel_reaches_the_running_handler() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let executor = start(town.executor(&bed).await.handle("long", move |_, ctx: Context| {
        let tell = tell.clone();
        async move {
            tell.send(None).unwrap();
            ctx.cancelled().await;
            tell.send(ctx.stop()).unwrap();
            Ok(())
        }
    }));
    let id = town.submit(task("long")).await;
    assert_eq!(told.recv().await, Some(None));
    // It counts as running from its grant on; the executor is known as its holder once it started.
    let started = async {
        while read::get(&town.space, id).await.unwrap().is_none_or(|task| task.state != State::Running) {}
    };
    tokio::time::timeout(NEVER, started).await.unwrap();
    town.client.cancel(id, "test", "changed my mind").await.unwrap();
    assert_eq!(tokio::time::timeout(NEVER, told.recv()).await.unwrap(), Some(Some(Stop::Cancelled)));
    town.until(id, State::Cancelled).await;
    assert_eq!(executor.end().await.cancelled, 1);
    town.end().await;
}

/// A blocked thread delays neither renewals nor acks: one start, one completion, although the
/// handler blocks for several leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let idle = start(town.executor(&bed).await.handle("block", discard()));
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |_: Task, _: Context| {
        tell.send(()).unwrap();
        // Not a wait for something: the blocking itself is what is tried.
        std::thread::sleep(Duration::from_millis(2_500));
        std::future::ready(Ok(()))
    };
    // The task asks for what only this one offers; the other is idle and could take it over.
    let busy = start(town.executor(&bed).await.label("slow").slots(1).handle("block", handler));
    let labels = minutehand::model::Labels::new(["slow"]).unwrap();
    let id = town.submit(NewTask { lease_ms: Some(1_000), labels, ..task("block") }).await;
    told.recv().await.unwrap();
    town.until(id, State::Succeeded).await;
    let (busy, idle) = (busy.end().await, idle.end().await);
    assert_eq!((busy.started, busy.succeeded, busy.stale, idle.started), (1, 1, 0, 0));
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_hands_back_what_another_executor_then_runs() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let gate = Arc::new(Notify::new());
    let pass = Arc::clone(&gate);
    let (tell, mut told) = mpsc::unbounded_channel();
    let builder = town.executor(&bed).await.slots(2).urgent_slots(0);
    let first = start(builder.handle("push", move |_, _| {
        let (pass, tell) = (Arc::clone(&pass), tell.clone());
        async move {
            tell.send(()).unwrap();
            pass.notified().await;
            Ok(())
        }
    }));
    for _ in 0..20 {
        town.submit(task("push")).await;
    }
    for _ in 0..2 {
        told.recv().await.unwrap();
    }
    first.stop.cancel();
    let second = start(town.executor(&bed).await.handle("push", discard()));
    // The second one runs the eighteen others while the first still holds its two.
    town.until_count("succeeded", 18).await;
    gate.notify_waiters();
    let first = first.end().await;
    town.until_count("succeeded", 20).await;
    let second = second.end().await;
    assert_eq!((first.started, first.succeeded, second.started), (2, 2, 18), "{first:?} {second:?}");
    assert_eq!(town.count("running").await, 0);
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_name_in_two_processes_is_two_executors() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let one = start(town.executor(&bed).await.name("w1").handle_any(discard()));
    let two = start(town.executor(&bed).await.name("w1").handle_any(discard()));
    let both = async { while member::executors(&town.space).await.unwrap().len() < 2 {} };
    tokio::time::timeout(NEVER, both).await.unwrap();
    assert_ne!(one.id, two.id);
    let records = member::executors(&town.space).await.unwrap();
    assert!(records.iter().all(|record| record.name == "w1" && record.queues == ["*"]));
    one.end().await;
    two.end().await;
    town.end().await;
}

/// Short ones end, long ones and what has not started go back, and nothing of it counts as a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_what_is_short_and_gives_back_the_rest_within_its_grace() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let entered = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = Arc::clone(&entered);
    let handler = move |task: Task, _: Context| -> HandlerFuture {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let ms = match &task.payload[..] {
            b"short" => 1_000,
            b"long" => 60_000,
            _ => 0,
        };
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok(())
        })
    };
    let grace = Duration::from_secs(5);
    let builder =
        town.executor(&bed).await.slots(20).drain_grace(grace).stop_grace(Duration::from_millis(500));
    let executor = start(builder.handle("q", handler));
    let of = |payload: &'static str| NewTask { payload: payload.into(), lease_ms: Some(10_000), ..task("q") };
    let submit = async |payload: &'static str, count: usize| -> Vec<TaskId> {
        let told = town.client.submit_batch((0..count).map(|_| of(payload)).collect()).await.unwrap();
        told.into_iter().map(|one| one.unwrap().id).collect()
    };
    // Tasks that take no time teach it to fetch ahead.
    submit("quick", 200).await;
    town.until_count("succeeded", 200).await;
    let (short, long) = (submit("short", 10).await, submit("long", 10).await);
    let all_run = async {
        while entered.load(std::sync::atomic::Ordering::SeqCst) < 220 {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(NEVER, all_run).await.unwrap();
    // All of these are in its hands or its inbox when it is told to stop: no slot is free for a second.
    let ahead = submit("quick", 100).await;
    town.until_count("running", 120).await;
    let (began, stalls) = (minutehand::clock::mono(), Stalls::watch());
    let ending = tokio::spawn(executor.end());
    town.until_count("pending", 100).await;
    let (back, stall) = (began.elapsed(), stalls.longest());
    let report = ending.await.unwrap();
    let took = began.elapsed();
    println!("given back after {back:?}, ended after {took:?}: {report:?}");
    assert!(back < Duration::from_millis(400) + 2 * stall, "{back:?}, with stalls of {stall:?}");
    assert!(took < grace, "{took:?}");
    town.until_count("pending", 110).await;
    assert_eq!(entered.load(std::sync::atomic::Ordering::SeqCst), 220, "nothing began after it");
    for id in short {
        assert_eq!(town.client.get(id).await.unwrap().unwrap().state, State::Succeeded);
    }
    for id in long.into_iter().chain(ahead) {
        let view = town.client.get(id).await.unwrap().unwrap();
        assert_eq!((view.state, view.failures, view.attempts.len()), (State::Pending, 0, 0), "uncounted");
    }
    town.end().await;
}
