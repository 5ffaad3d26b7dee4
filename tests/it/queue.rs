//! Freezing and thawing.

use minutehand::client::{Client, Due, NewTask};
use minutehand::executor::Executor;
use minutehand::model::{Namespace, QueueName, State};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::Space;
use minutehand::store::queue::Scope;
use minutehand::testing::bed::Bed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain until {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_queue_starts_nothing_and_holds_nobody_up() {
    let bed = Bed::shared().await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let space = Space::open(bed.store().await.unwrap(), namespace).await.unwrap();
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
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let space = Space::open(bed.store().await.unwrap(), namespace).await.unwrap();
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
