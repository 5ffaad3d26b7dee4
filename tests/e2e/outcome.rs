//! Outcomes told by pods that are killed while they tell.

use super::*;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use std::collections::BTreeSet;
use tokio::sync::{mpsc, watch};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_killed_while_it_tells_loses_nothing_and_the_next_says_the_same() {
    let settings = [("pod.lock", "1s"), ("pod.poll", "250ms"), ("webhook.allow", "127.0.0.1")];
    let town = Town::new(&settings).await;
    // A receiver that takes in what it is sent, and does not answer before it is told to.
    let (seen, mut see) = mpsc::unbounded_channel::<(String, Bytes)>();
    let (answers, may_answer) = watch::channel(false);
    let handler = move |headers: HeaderMap, body: Bytes| {
        let (seen, mut may_answer) = (seen.clone(), may_answer.clone());
        async move {
            let id = headers["webhook-id"].to_str().unwrap().to_owned();
            let _ = seen.send((id, body));
            let _ = may_answer.wait_for(|may| *may).await;
            StatusCode::OK
        }
    };
    let router = axum::Router::new().route("/done", axum::routing::post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });

    let made = town.program.json(&["outcome", "subscribe", "flown", "--queue", "flights", "--url", &url]);
    assert_eq!((&made["name"], &made["queue"]), (&"flown".into(), &"flights".into()));
    let first = town.pod("pod-1");
    let _executor = town.executor("ex-1", &["--discard"]);
    let task = || minutehand::client::NewTask::to(minutehand::model::QueueName::new("flights").unwrap());
    let sent = town.client.submit_batch((0..400).map(|_| task()).collect()).await.unwrap();
    let mut wanted: BTreeSet<String> = sent.into_iter().map(|done| done.unwrap().id.to_string()).collect();
    town.until_succeeded(400).await;
    let next = async |see: &mut mpsc::UnboundedReceiver<(String, Bytes)>| {
        tokio::time::timeout(NEVER, see.recv()).await.expect("outcomes do not come").unwrap()
    };
    let mut told: BTreeMap<String, Bytes> = BTreeMap::from([next(&mut see).await]);
    first.kill9();
    while let Ok((id, body)) = see.try_recv() {
        told.insert(id, body);
    }
    answers.send(true).unwrap();
    let _second = town.pod("pod-2");
    let (mut names, mut again) = (BTreeSet::new(), 0);
    while !wanted.is_empty() {
        let (id, body) = next(&mut see).await;
        if let Some(before) = told.insert(id, body.clone()) {
            assert_eq!(before, body, "the same name says the same");
            again += 1;
        }
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value.get("missed"), None);
        for outcome in value["outcomes"].as_array().unwrap() {
            wanted.remove(outcome["task"].as_str().unwrap());
            names.insert(outcome["delivery"].as_str().unwrap().to_owned());
        }
    }
    assert!(again > 0, "what the first pod was telling was told again");
    assert_eq!(names.len(), 400, "each end has one name, however often it is told");
    let shown = town.program.json(&["outcome", "show", "flown"]);
    assert_eq!(shown["missed"], 0);
    town.check().await;
}
