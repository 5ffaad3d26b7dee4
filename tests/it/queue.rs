//! What is set for queues; pausing, freezing and thawing.

use minutehand::client::{Client, Due, NewTask, Submitted};
use minutehand::executor::Executor;
use minutehand::model::queue::{Lease, TimeoutDefaults, TryDefaults};
use minutehand::model::runs::Runs;
use minutehand::model::{Namespace, QueueName, QueueSettings, Spec, State};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::Space;
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::queue::{self, PutAnswer, Scope};
use minutehand::testing::bed::{Bed, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_queue_starts_nothing_and_holds_nobody_up() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let stop = CancellationToken::new();
    let pod = Pod::new(space.clone(), PodSettings::default());
    let pod = tokio::spawn(pod.run(stop.child_token()));
    let (cold, warm) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let count = |counter: &Arc<AtomicU32>| {
        let counter = Arc::clone(counter);
        move |_, _| {
            let counter = Arc::clone(&counter);
            async move {
                counter.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        }
    };
    let executor = Executor::builder(space.clone())
        .slots(4)
        .handle("cold", count(&cold))
        .handle("warm", count(&warm))
        .build()
        .unwrap();
    let executor = tokio::spawn(executor.run(stop.child_token()));
    let queue = |name: &str| QueueName::new(name).unwrap();
    let submit = async |name: &str| {
        client.submit(NewTask { due: Due::Now, ..NewTask::to(queue(name)) }).await.unwrap().id
    };

    submit("cold").await;
    submit("warm").await;
    until("both queues run", async || cold.load(Ordering::SeqCst) == 1 && warm.load(Ordering::SeqCst) == 1)
        .await;

    let scope = Scope::Queue(queue("cold"));
    let frost = client.freeze(&scope, "op", "gateway is down").await.unwrap();
    assert!(frost.changed && frost.pods_behind.is_empty());
    assert!(frost.freeze.frozen.len() == 1 && frost.freeze.frozen[0].cause == "gateway is down");
    assert!(!client.freeze(&scope, "op", "").await.unwrap().changed, "the first cause stands");
    let frozen = submit("cold").await;
    for n in 2..=6 {
        submit("warm").await;
        until("the warm queue goes on", async || warm.load(Ordering::SeqCst) == n).await;
    }
    assert_eq!(cold.load(Ordering::SeqCst), 1);
    let view = client.get(frozen).await.unwrap().unwrap();
    assert_eq!((view.state, view.view), (State::Pending, "held"));
    until("the lane stands aside", async || client.counts().await.unwrap().0.held == 1).await;

    let frost = client.thaw(&scope, "op").await.unwrap();
    assert!(frost.changed && frost.freeze.frozen.is_empty());
    until("what was frozen runs", async || cold.load(Ordering::SeqCst) == 2).await;
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_executor_holds_and_has_not_started_comes_back_when_it_is_frozen() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.child_token()));
    let (ran, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(tokio::sync::Semaphore::new(20)));
    let (counter, door) = (Arc::clone(&ran), Arc::clone(&gate));
    let executor = Executor::builder(space.clone()).slots(1).handle("cold", move |_, _| {
        let (counter, door) = (Arc::clone(&counter), Arc::clone(&door));
        async move {
            counter.fetch_add(1, Ordering::SeqCst);
            door.acquire().await?.forget();
            Ok(())
        }
    });
    let executor = tokio::spawn(executor.build().unwrap().run(stop.child_token()));
    let cold = QueueName::new("cold").unwrap();
    let submit = async || client.submit(NewTask::to(cold.clone())).await.unwrap().id;
    // Tasks that take no time teach the executor to fetch ahead.
    for _ in 0..20 {
        submit().await;
    }
    until("the short ones are done", async || client.counts().await.unwrap().0.succeeded == 20).await;
    // The gate is shut now: the first of these runs, the others wait in the executor's hands or its inbox.
    for _ in 0..5 {
        submit().await;
    }
    until("one runs and others are granted", async || {
        ran.load(Ordering::SeqCst) == 21 && client.counts().await.unwrap().0.running > 1
    })
    .await;
    client.freeze(&Scope::Queue(cold.clone()), "op", "").await.unwrap();
    until("all but the running one came back", async || {
        let counts = client.counts().await.unwrap().0;
        (counts.running, counts.pending) == (1, 4)
    })
    .await;
    gate.add_permits(100);
    until("the running one is done", async || client.counts().await.unwrap().0.succeeded == 21).await;
    assert_eq!(ran.load(Ordering::SeqCst), 21, "nothing more started");
    client.thaw(&Scope::Queue(cold), "op").await.unwrap();
    until("the others run", async || client.counts().await.unwrap().0.succeeded == 25).await;
    assert_eq!(ran.load(Ordering::SeqCst), 25);
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_record_is_replaced_only_by_those_who_know_it() {
    let bed = Bed::shared().await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let space = Space::open(bed.store().await.unwrap(), namespace.clone()).await.unwrap();
    let other = Space::open(bed.store().await.unwrap(), namespace).await.unwrap();
    let push = QueueName::new("push").unwrap();
    assert_eq!(queue::refresh(&space).await.unwrap().epoch, 0);
    let five = TryDefaults { retries: Some(5), backoff: None };
    let first = QueueSettings { retry: Some(five), ..QueueSettings::default() };
    let done = queue::put_queue(&space, &push, 0, &first).await.unwrap();
    assert_eq!(done, PutAnswer::Done { epoch: 1, changed: true });
    // Whoever has not heard of it does not overwrite it.
    let second = QueueSettings { lease: Some(Lease::Auto), ..QueueSettings::default() };
    let refused = queue::put_queue(&other, &push, 0, &second).await.unwrap();
    assert_eq!(refused, PutAnswer::Changed { version: 1 });
    let table = queue::refresh(&other).await.unwrap();
    assert_eq!((table.epoch, table.of(&push)), (1, &first));
    assert_eq!(queue::version_of(&other, "q:push"), 1);
    let done = queue::put_queue(&other, &push, 1, &second).await.unwrap();
    assert_eq!(done, PutAnswer::Done { epoch: 2, changed: true });
    assert_eq!(queue::refresh(&space).await.unwrap().of(&push), &second);
    // Nothing set is nothing kept; to take away what is not there changes nothing.
    let nothing = QueueSettings::default();
    let done = queue::put_queue(&space, &push, 2, &nothing).await.unwrap();
    assert_eq!(done, PutAnswer::Done { epoch: 3, changed: true });
    let again = queue::put_queue(&space, &push, 0, &nothing).await.unwrap();
    assert_eq!(again, PutAnswer::Done { epoch: 3, changed: false });
    let table = queue::refresh(&space).await.unwrap();
    assert_eq!((table.epoch, table.queues.len()), (3, 0));
    let wrong = QueueSettings { lease: Some(Lease::Fixed { ms: 1 }), ..QueueSettings::default() };
    let error = queue::put_queue(&space, &push, 0, &wrong).await.unwrap_err().to_string();
    assert!(error.contains("lease") && error.contains("1 s and 24 h"), "{error}");
}

#[tokio::test]
async fn two_who_change_a_queue_at_once_both_succeed() {
    let bed = Bed::shared().await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let space = Space::open(bed.store().await.unwrap(), namespace.clone()).await.unwrap();
    let push = QueueName::new("push").unwrap();
    let mut changes = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let own = Space::open(bed.store().await.unwrap(), namespace.clone()).await.unwrap();
        let (client, push) = (Client::new(own), push.clone());
        changes.spawn(async move {
            let more = |settings: &mut QueueSettings| {
                let tries = settings.retry.get_or_insert_default();
                tries.retries = Some(tries.retries.unwrap_or(0) + 1);
                Ok(())
            };
            assert!(client.queue_set(&push, more).await.unwrap().changed);
        });
    }
    while let Some(done) = changes.join_next().await {
        done.unwrap();
    }
    let settings = Client::new(space).queue(&push).await.unwrap();
    assert_eq!(settings.retry.unwrap().retries, Some(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_queue_is_held_and_others_go_on() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.child_token()));
    let (push, mail) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let count = |counter: &Arc<AtomicU32>| {
        let counter = Arc::clone(counter);
        move |_, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        }
    };
    let executor = Executor::builder(space.clone())
        .slots(4)
        .handle("push", count(&push))
        .handle("mail", count(&mail))
        .build()
        .unwrap();
    let executor = tokio::spawn(executor.run(stop.child_token()));
    let queue = |name: &str| QueueName::new(name).unwrap();
    let submit = async |name: &str, due: Due| {
        client.submit(NewTask { due, ..NewTask::to(queue(name)) }).await.unwrap().id
    };
    submit("push", Due::Now).await;
    until("the queue runs", async || push.load(Ordering::SeqCst) == 1).await;

    let change = client.pause(&queue("push"), "op", "gateway moves").await.unwrap();
    assert!(change.changed && change.pods_behind.is_empty());
    let since = change.settings.pause.unwrap().since;
    let again = client.pause(&queue("push"), "another", "").await.unwrap();
    assert!(!again.changed && again.settings.pause.unwrap().who == "op", "the first cause stands");
    let ids = [submit("push", Due::Now).await, submit("push", Due::In(600_000)).await];
    for n in 1..=5 {
        submit("mail", Due::Now).await;
        until("the other queue goes on", async || mail.load(Ordering::SeqCst) == n).await;
    }
    assert_eq!(push.load(Ordering::SeqCst), 1);
    let why = format!("queue push is paused since {since} by op: gateway moves");
    for id in ids {
        let view = client.get(id).await.unwrap().unwrap();
        assert_eq!((view.state, view.view, view.held.as_deref()), (State::Pending, "held", Some(&*why)));
    }
    until("the lane stands aside", async || client.counts().await.unwrap().0.held == 1).await;
    let held = client.status().await.unwrap().held;
    assert!(held.len() == 1 && held[0].queue == "push" && held[0].why == why, "{held:?}");

    let change = client.resume(&queue("push")).await.unwrap();
    assert!(change.changed && change.settings.is_empty() && change.pods_behind.is_empty());
    until("what was held runs", async || push.load(Ordering::SeqCst) == 2).await;
    assert!(!client.resume(&queue("push")).await.unwrap().changed);
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
}

#[tokio::test]
async fn runs_add_up_over_executors_and_fade() {
    let bed = Bed::shared().await.unwrap();
    let space = minutehand::testing::fixtures::space(&bed).await;
    let queue = |name: &str| QueueName::new(name).unwrap();
    let of = |ms: i64, n: u32, failed: bool| {
        let mut runs = Runs::default();
        (0..n).for_each(|_| runs.add(ms, failed));
        runs
    };
    let told = queue::add_runs(&space, &[(queue("a"), of(100, 30, false)), (queue("b"), of(7, 1, true))])
        .await
        .unwrap();
    assert_eq!(told, [of(100, 30, false), of(7, 1, true)]);
    queue::add_runs(&space, &[(queue("a"), of(9_000, 10, true))]).await.unwrap();
    let figures = queue::runs(&space, &queue("a")).await.unwrap().figures();
    assert_eq!((figures.runs, figures.failed, figures.failure_rate), (40, 10, 0.25));
    assert_eq!(figures.max_ms, Some(9_000));
    assert!((100..110).contains(&figures.p50_ms.unwrap()) && figures.p99_ms == Some(9_000), "{figures:?}");
    assert_eq!(figures.suggested_lease_ms, Some(9_000 * 3 + 30_000));
    assert_eq!(queue::runs(&space, &queue("c")).await.unwrap(), Runs::default());
    // An hour later what was counts half; a day of that, and it is gone.
    space.inject_now(Some(minutehand::testing::fixtures::T0 + 3_600_000));
    let told = queue::add_runs(&space, &[(queue("a"), of(100, 5, false))]).await.unwrap();
    assert_eq!((told[0].count(), told[0].failed()), (25, 5));
    for hour in 2..8 {
        space.inject_now(Some(minutehand::testing::fixtures::T0 + hour * 3_600_000));
        queue::add_runs(&space, &[(queue("a"), of(100, 1, false))]).await.unwrap();
    }
    let figures = queue::runs(&space, &queue("a")).await.unwrap().figures();
    assert_eq!((figures.failed, figures.suggested_lease_ms), (0, None));
    assert!(figures.max_ms.unwrap() < 110, "{figures:?}");
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_follows_from_how_long_tasks_run() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let [slow, fixed] = ["slow", "fixed"].map(|name| QueueName::new(name).unwrap());
    let mut runs = Runs::default();
    (0..50).for_each(|_| runs.add(60_000, false));
    queue::add_runs(&space, &[(slow.clone(), runs)]).await.unwrap();
    for (queue, lease) in [(&slow, Lease::Auto), (&fixed, Lease::Fixed { ms: 7_000 })] {
        let set = |settings: &mut QueueSettings| {
            settings.lease = Some(lease);
            settings.timeouts =
                Some(TimeoutDefaults { total_ms: Some(500_000), ..TimeoutDefaults::default() });
            settings.retry = Some(TryDefaults { retries: Some(9), backoff: None });
            Ok(())
        };
        client.queue_set(queue, set).await.unwrap();
    }
    let stats = client.queue_stats(&slow).await.unwrap();
    assert_eq!((stats.figures.runs, stats.lease, stats.lease_ms), (50, Some(Lease::Auto), 210_000));
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.child_token()));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let door = |gate: &Arc<tokio::sync::Semaphore>| {
        let gate = Arc::clone(gate);
        move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let executor = Executor::builder(space.clone()).handle("slow", door(&gate)).handle("fixed", door(&gate));
    let executor = tokio::spawn(executor.build().unwrap().run(stop.child_token()));
    let submit = async |queue: &QueueName, own: Option<u32>| {
        client.submit(NewTask { lease_ms: own, ..NewTask::to(queue.clone()) }).await.unwrap()
    };
    // Executors look the leases up when they begin: the first task may be ahead of that.
    let left = async |task: Submitted| {
        let mut lease = None;
        until("it has started", async || {
            let view = client.get(task.id).await.unwrap().unwrap();
            lease = view
                .lease_until
                .filter(|_| view.view == "started")
                .map(|until| until.0 - space.clock().now_ms());
            lease.is_some()
        })
        .await;
        lease.unwrap()
    };
    until("an executor follows the lease that follows from the runs", async || {
        let lease = left(submit(&slow, None).await).await;
        gate.add_permits(1);
        (150_000..=210_000).contains(&lease)
    })
    .await;
    let lease = left(submit(&fixed, None).await).await;
    assert!((1_000..=7_000).contains(&lease), "{lease}");
    let task = submit(&slow, Some(40_000)).await;
    let lease = left(task).await;
    assert!((30_000..=40_000).contains(&lease), "a task's own lease comes first: {lease}");
    // What else is set for the queue is what its tasks have.
    let view = client.get(task.id).await.unwrap().unwrap();
    assert_eq!(view.retries, Some(9));
    let found = minutehand::store::read::get(&space, task.id).await.unwrap().unwrap();
    let spec = Spec::decode(&found.spec.unwrap(), task.id.home().start()).unwrap();
    assert_eq!(spec.deadline, Some(spec.due.plus(500_000)));
    gate.add_permits(100);
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
    // What it ran is known when it has gone.
    let stats = client.queue_stats(&fixed).await.unwrap();
    assert_eq!((stats.figures.runs, stats.figures.failed), (1, 0));
}
