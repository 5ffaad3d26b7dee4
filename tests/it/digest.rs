//! Owners are told of dead letters: once, together, by one pod, and again if they did not hear it.

use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use minutehand::client::{Client, NewTask};
use minutehand::model::queue::Owner;
use minutehand::model::{Namespace, QueueName, TaskId, UnixMs};
use minutehand::pod::{DigestSettings, Pod, PodSettings};
use minutehand::store::dead::{self, DigestTurn};
use minutehand::store::due::{self, Claim, ClaimAnswer};
use minutehand::store::run::Outcome;
use minutehand::store::{Space, run};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{T0, ack_row, claim_all, space};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A web server that refuses the first `refusals` messages; what it is told comes out of the channel.
async fn owner(refusals: u32) -> (String, mpsc::UnboundedReceiver<Value>) {
    let (tell, told) = mpsc::unbounded_channel();
    let left = Arc::new(AtomicU32::new(refusals));
    let hear = move |Json(value): Json<Value>| {
        let (tell, left) = (tell.clone(), Arc::clone(&left));
        async move {
            if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            tell.send(value).unwrap();
            StatusCode::NO_CONTENT
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/dead", listener.local_addr().unwrap());
    tokio::spawn(async move {
        axum::serve(listener, axum::Router::new().route("/dead", post(hear))).await.unwrap()
    });
    (url, told)
}

async fn heard(told: &mut mpsc::UnboundedReceiver<Value>) -> Value {
    tokio::time::timeout(Duration::from_secs(30), told.recv())
        .await
        .expect("a message in time")
        .expect("a server")
}

/// Lets tasks of a queue die, by an executor that is not there.
async fn die(client: &Client, queue: &str, n: usize) -> Vec<TaskId> {
    let space = client.space();
    let new = NewTask { retries: Some(0), ..NewTask::to(QueueName::new(queue).unwrap()) };
    let told = client.submit_batch(vec![new; n]).await.unwrap();
    let ids: Vec<TaskId> = told.into_iter().map(|one| one.unwrap().id).collect();
    for id in &ids {
        let bucket = id.bucket();
        loop {
            // The pod of this test has no executor to offer to, so tasks stay where they are.
            let answer = due::claim(space, bucket, &Claim { holders: 9, ..claim_all("p") }).await;
            let ClaimAnswer::Held(claimed) = answer.unwrap() else { panic!("nine may hold it") };
            let rows: Vec<_> = claimed
                .tasks
                .iter()
                .map(|task| ack_row(task, Outcome::Failed { error: format!("no such number in {queue}") }))
                .collect();
            run::ack(space, bucket, "ex", &rows, false).await.unwrap();
            if claimed.tasks.is_empty() {
                break;
            }
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_hear_of_dead_letters_in_one_message_a_queue() {
    let bed = Bed::shared().await.unwrap();
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let own = async || Space::open(bed.store().await.unwrap(), namespace.clone()).await.unwrap();
    let client = Client::new(own().await);
    let (all, mut of_all) = owner(0).await;
    // More refusals than a round has tries: the next round tells the same letters.
    let (sms, mut of_sms) = owner(5).await;
    let set = |queue: &'static str, url: String| {
        let client = client.clone();
        async move {
            let change = |settings: &mut minutehand::model::QueueSettings| {
                settings.owner = Some(Owner { webhook: url.clone() });
                Ok(())
            };
            client.queue_set(&QueueName::new(queue).unwrap(), change).await.unwrap();
        }
    };
    set("sms", sms).await;
    let stop = CancellationToken::new();
    let digest = DigestSettings { webhook: Some(all), every_ms: 3_000 };
    let mut pods = Vec::new();
    for _ in 0..2 {
        let settings = PodSettings { digest: digest.clone(), ..PodSettings::default() };
        pods.push(tokio::spawn(Pod::new(own().await, settings).run(stop.child_token())));
    }
    // Somebody has taken the first turn, so that what follows is news.
    while matches!(dead::digest_take(client.space(), "test", 0, 0).await.unwrap(), DigestTurn::Wait { .. }) {}
    let (mail, texts) = (die(&client, "mail", 3).await, die(&client, "sms", 12).await);
    let count = async |told: &mut mpsc::UnboundedReceiver<Value>, all: u64| {
        let mut messages = Vec::new();
        while messages.iter().map(|value: &Value| value["count"].as_u64().unwrap()).sum::<u64>() < all {
            messages.push(heard(told).await);
        }
        messages
    };
    let of_mail = count(&mut of_all, 3).await;
    let of_texts = count(&mut of_sms, 12).await;
    for (messages, queue, ids) in [(&of_mail, "mail", &mail), (&of_texts, "sms", &texts)] {
        let mut named = Vec::new();
        for message in messages.iter() {
            assert_eq!(
                (&message["kind"], &message["queue"]),
                (&"minutehand.dead_letters".into(), &queue.into())
            );
            assert_eq!(message["namespace"], namespace.as_str());
            assert_eq!(message["reasons"], serde_json::json!({ "handler_error": message["count"] }));
            assert_eq!(message["error"], format!("no such number in {queue}"));
            named.extend(message["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
        }
        assert!(named.iter().all(|name| ids.iter().any(|id| id.as_str() == name)), "{named:?}");
    }
    stop.cancel();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    // Two pods told it, and each letter was told once.
    assert!(of_all.try_recv().is_err() && of_sms.try_recv().is_err());
}

#[tokio::test]
async fn one_pod_has_the_turn_and_notes_how_far_it_got() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let take = async |pod: &str| dead::digest_take(&space, pod, 10_000, 60_000).await.unwrap();
    // What died before anybody was to be told is no news.
    assert_eq!(take("a").await, DigestTurn::Wait { until: UnixMs(T0 + 60_000) });
    space.inject_now(Some(T0 + 60_000));
    let ours = |now, told, untold: &[(&str, i64)]| DigestTurn::Ours {
        now: UnixMs(now),
        told: UnixMs(told),
        untold: untold.iter().map(|(queue, at)| (QueueName::new(queue).unwrap(), UnixMs(*at))).collect(),
    };
    assert_eq!(take("a").await, ours(T0 + 60_000, T0, &[]));
    assert_eq!(take("b").await, DigestTurn::Wait { until: UnixMs(T0 + 70_000) });
    assert_eq!(take("a").await, ours(T0 + 60_000, T0, &[]), "a lost answer is asked for again");
    // The one who took too long has lost the turn, and notes nothing.
    space.inject_now(Some(T0 + 70_000));
    assert_eq!(take("b").await, ours(T0 + 70_000, T0, &[]));
    let untold = BTreeMap::from([(QueueName::new("sms").unwrap(), UnixMs(T0))]);
    assert!(!dead::digest_done(&space, "a", UnixMs(T0 + 58_000), &BTreeMap::new()).await.unwrap());
    assert!(dead::digest_done(&space, "b", UnixMs(T0 + 68_000), &untold).await.unwrap());
    assert_eq!(take("a").await, DigestTurn::Wait { until: UnixMs(T0 + 128_000) });
    space.inject_now(Some(T0 + 128_000));
    assert_eq!(take("a").await, ours(T0 + 128_000, T0 + 68_000, &[("sms", T0)]));
    // What was told after all is forgotten.
    assert!(dead::digest_done(&space, "a", UnixMs(T0 + 126_000), &BTreeMap::new()).await.unwrap());
    space.inject_now(Some(T0 + 190_000));
    assert_eq!(take("b").await, ours(T0 + 190_000, T0 + 126_000, &[]));
}
