//! Two namespaces in one server: neither sees the other, and one goes without the other.

use minutehand::client::{Client, ClientError, Due, NewTask, Quota, Submitted};
use minutehand::executor::Executor;
use minutehand::model::{Key, Namespace, QueueName};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::{At, Space};
use minutehand::testing::bed::{Bed, until};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_namespaces_neither_see_nor_hurt_each_other() {
    let bed = Bed::own_server(Default::default()).await.unwrap();
    // One name begins with the other.
    let open = async |name: &str| {
        Space::open(bed.store().await.unwrap(), Namespace::new(name).unwrap()).await.unwrap()
    };
    let (one, two) = (open("mh").await, open("mh-2").await);
    let (client, other) = (Client::new(one.clone()), Client::new(two.clone()));
    let queue = QueueName::new("q").unwrap();
    let task = |key: &str| NewTask {
        key: Some(Key::new(key.as_bytes().to_vec(), 0).unwrap()),
        ..NewTask::to(queue.clone())
    };
    // The same key stands in both.
    let first = client.submit(task("k")).await.unwrap();
    let second = other.submit(task("k")).await.unwrap();
    assert!(first.created && second.created);
    assert!(client.get(second.id).await.unwrap().is_none() && other.get(first.id).await.unwrap().is_none());
    let waits = NewTask { due: Due::In(3_600_000), ..NewTask::to(queue.clone()) };
    other.submit(waits).await.unwrap();

    // What runs in one takes nothing of the other, and what is frozen there is not here.
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(one.clone(), PodSettings::default()).run(stop.clone()));
    let (ran, mut heard) = mpsc::unbounded_channel();
    let executor = Executor::builder(one.clone()).handle("q", move |task, _| {
        let ran = ran.clone();
        async move {
            ran.send(task.id).map_err(|_| anyhow::anyhow!("nobody hears"))?;
            Ok(())
        }
    });
    let executor = tokio::spawn(executor.build().unwrap().run(stop.clone()));
    let ran = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await.unwrap();
    assert_eq!(ran, Some(first.id));
    let (mine, theirs) = (client.status().await.unwrap(), other.status().await.unwrap());
    assert_eq!(
        (mine.pods.len(), mine.executors.len(), theirs.pods.len(), theirs.executors.len()),
        (1, 1, 0, 0)
    );
    assert_eq!((theirs.counts.submitted, theirs.counts.pending), (2, 2));

    // A namespace in which somebody works is not removed; one that is removed leaves nothing, and the other alone.
    assert!(client.purge().await.unwrap_err().to_string().contains("stop them first"));
    stop.cancel();
    pod.await.unwrap().unwrap();
    executor.await.unwrap().unwrap();
    assert!(heard.try_recv().is_err());
    assert!(client.purge().await.unwrap() > 10);
    let keys = one.store().command("KEYS", At::Any, vec!["*".into()]).await.unwrap().array("KEYS").unwrap();
    let names: Vec<String> = keys.into_iter().map(|key| key.text("KEYS").unwrap()).collect();
    assert!(names.iter().all(|name| name.starts_with("{mh-2")), "{names:?}");
    assert_eq!(other.status().await.unwrap().counts.pending, 2);
    assert!(check(&two, CheckOptions::default()).await.unwrap().ok);
}

#[tokio::test]
async fn a_full_namespace_takes_no_more_and_says_so() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let task = || NewTask { due: Due::In(3_600_000), ..NewTask::to(QueueName::new("q").unwrap()) };
    let ten = Quota { tasks: Some(10), bytes: None };
    assert_eq!(
        (client.quota().await.unwrap(), client.quota_set(ten).await.unwrap()),
        (Quota::default(), ten)
    );
    let ids: Vec<_> = client
        .submit_batch((0..10).map(|_| task()).collect())
        .await
        .unwrap()
        .into_iter()
        .map(|done| done.unwrap().id)
        .collect();
    let full = |refused: Result<Submitted, ClientError>| {
        assert!(matches!(refused, Err(ClientError::OverQuota { field: "tasks", most: 10 })), "{refused:?}");
    };
    full(client.submit(task()).await);
    let other = Client::new(space);
    full(other.submit(task()).await);
    assert_eq!(client.status().await.unwrap().counts.submitted, 10);
    // Room comes when tasks end, or with a larger quota.
    client.cancel(ids[0], "t", "").await.unwrap();
    assert_eq!(client.quota_set(ten).await.unwrap(), ten);
    client.submit(task()).await.unwrap();
    assert_eq!(client.quota_set(Quota::default()).await.unwrap(), Quota::default());
    client.submit(task()).await.unwrap();
}

#[tokio::test]
async fn a_namespace_full_of_bytes_takes_no_more_and_says_so() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let task = |bytes: usize| NewTask {
        due: Due::In(3_600_000),
        payload: vec![b'x'; bytes].into(),
        ..NewTask::to(QueueName::new("q").unwrap())
    };
    // What is there before counts.
    let first = client.submit(task(10_000)).await.unwrap().id;
    assert_eq!(client.quota_bytes().await.unwrap(), None);
    let quota = Quota { tasks: None, bytes: Some(50_000) };
    assert_eq!(client.quota_set(quota).await.unwrap(), quota);
    let held = client.quota_bytes().await.unwrap().unwrap();
    assert!((10_000..10_100).contains(&held), "{held}");
    client.submit_batch((0..3).map(|_| task(10_000)).collect()).await.unwrap();
    let full = |refused: Result<Submitted, ClientError>| {
        assert!(
            matches!(refused, Err(ClientError::OverQuota { field: "bytes", most: 50_000 })),
            "{refused:?}"
        );
    };
    full(client.submit(task(10_000)).await);
    // Small ones still fit; another client, which looks anew, sees the same.
    client.submit(task(5_000)).await.unwrap();
    let other = Client::new(space);
    full(other.submit(task(6_000)).await);
    let held = client.quota_bytes().await.unwrap().unwrap();
    assert!((45_000..45_500).contains(&held), "{held}");
    // Room comes when tasks end.
    client.cancel(first, "t", "").await.unwrap();
    let held = client.quota_bytes().await.unwrap().unwrap();
    assert!((35_000..35_400).contains(&held), "{held}");
    Client::new(other.space().clone()).submit(task(14_000)).await.unwrap();
    client.quota_set(Quota::default()).await.unwrap();
    client.submit(task(1_000_000)).await.unwrap();
    assert_eq!(client.quota_bytes().await.unwrap(), None);
}

/// Tasks that are ready in the loud namespace.
const LOUD: usize = 200_000;
/// Tasks of the calm one, each time.
const CALM: usize = 200;

/// How late tasks that fall due within a second were started, in ms, sorted.
async fn lags(client: &Client, heard: &mut mpsc::UnboundedReceiver<i64>) -> Vec<i64> {
    let tasks = (0..CALM as i64).map(|n| NewTask {
        due: Due::In(300 + n * 1_000 / CALM as i64),
        ..NewTask::to(QueueName::new("calm").unwrap())
    });
    for answer in client.submit_batch(tasks.collect()).await.unwrap() {
        answer.unwrap();
    }
    let mut lags = Vec::new();
    let all = async {
        while lags.len() < CALM {
            lags.extend(heard.recv().await);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.unwrap();
    lags.sort_unstable();
    lags
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_is_not_felt_by_the_backlog_of_another() {
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let open = async |name: &str| {
        Space::open(bed.store().await.unwrap(), Namespace::new(name).unwrap()).await.unwrap()
    };
    let (calm, loud) = (open("calm").await, open("loud").await);
    let stop = CancellationToken::new();
    let start = |space: &Space, queue: &str, tell: mpsc::UnboundedSender<i64>, ms: u64| {
        let pod = Pod::new(space.clone(), PodSettings::default());
        let executor = Executor::builder(space.clone()).slots(16).handle(queue, move |_, ctx| {
            let told = tell.send(ctx.lag_ms());
            async move {
                told?;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(())
            }
        });
        let executor = executor.build().unwrap();
        (tokio::spawn(pod.run(stop.clone())), tokio::spawn(executor.run(stop.clone())))
    };
    let (tell, mut heard) = mpsc::unbounded_channel();
    let calms = start(&calm, "calm", tell, 0);
    let client = Client::new(calm.clone());
    lags(&client, &mut heard).await;
    let alone = lags(&client, &mut heard).await;

    let other = Client::new(loud.clone());
    let mut stream = other.stream(Default::default());
    for _ in 0..LOUD {
        stream.push(NewTask::to(QueueName::new("loud").unwrap())).await.unwrap();
    }
    assert_eq!(stream.finish().await.unwrap().created, LOUD as u64);
    let (tell, _other_heard) = mpsc::unbounded_channel();
    let louds = start(&loud, "loud", tell, 20);
    until("the loud ones run", async || other.counts().await.unwrap().0.succeeded > 100).await;
    let beside = lags(&client, &mut heard).await;
    let ended = async || client.counts().await.unwrap().0.succeeded == 3 * CALM as i64;
    until("all outcomes are accepted", ended).await;
    let (mine, theirs) = (client.status().await.unwrap(), other.status().await.unwrap());
    assert_eq!((mine.counts.succeeded, mine.counts.submitted), (3 * CALM as i64, 3 * CALM as i64));
    assert_eq!((mine.executors.len(), theirs.executors.len()), (1, 1));
    assert!(theirs.counts.pending > LOUD as i64 * 9 / 10, "the backlog lasted: {:?}", theirs.counts);
    let p99 = |lags: &[i64]| lags[lags.len() * 99 / 100];
    let (alone, beside) = (p99(&alone), p99(&beside));
    println!("p99 alone {alone} ms, beside the backlog {beside} ms");
    // A call of the other's may take some milliseconds of the same server, and both pods share this machine.
    assert!(
        beside <= 3 * alone.max(10),
        "p99 of {beside} ms beside a backlog elsewhere, of {alone} ms alone"
    );
    stop.cancel();
    for (pod, executor) in [calms, louds] {
        pod.await.unwrap().unwrap();
        executor.await.unwrap().unwrap();
    }
}
