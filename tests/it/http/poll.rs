//! Workers that poll: answers that do not arrive, and what is fetched ahead.

use super::Door;
use minutehand::keys::Guard;
use minutehand::model::runs::Runs;
use minutehand::model::{QueueName, UnixMs};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::{At, member, queue};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

const NEVER: Duration = Duration::from_secs(30);

/// A poll for one task that is cut off when the task has been handed over, before its answer is read.
async fn lose_an_answer(door: &Door, poll: &Value, id: &str) {
    let at = door.base.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let body = poll.to_string();
    let head = format!(
        "POST /v1/poll HTTP/1.1\r\nHost: {at}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let handed = async {
        while door.get(&format!("/v1/tasks/{id}")).await.1["view"] != json!("offered") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The answer is on its way, or about to be.
        stream.readable().await.unwrap();
    };
    tokio::time::timeout(NEVER, handed).await.unwrap();
    drop(stream);
}

/// Polls until there is a task.
async fn next(door: &Door, poll: &Value) -> Value {
    let polled = tokio::time::timeout(NEVER, async {
        loop {
            let (status, answer) = door.post("/v1/poll", poll.clone()).await;
            assert_eq!(status, 200, "{answer}");
            if let Some(task) = answer["tasks"].get(0) {
                return task.clone();
            }
        }
    });
    polled.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_does_not_arrive_is_no_attempt() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let pod = tokio::spawn(Pod::new(door.space.clone(), PodSettings::default()).run(stop.clone()));
    let view = async |id: &str| door.get(&format!("/v1/tasks/{id}")).await.1["view"].clone();

    // A worker that says what arrives hears of it at once.
    let tells = json!({"worker": "tells", "queues": ["told"], "slots": 1, "wait_ms": 20_000, "arrived": []});
    let told = async {
        let id = door.submit(json!({"queue": "told", "retries": 0, "lease_ms": 60_000})).await;
        lose_an_answer(&door, &tells, &id).await;
        let task = next(&door, &tells).await;
        assert_eq!((&task["id"], &task["attempt"]), (&json!(id), &json!(1)));
        assert_eq!(view(&id).await, json!("offered"));
        let mut arrived = tells.clone();
        arrived["arrived"] = json!([task["execution_id"]]);
        (arrived["in_hand"], arrived["wait_ms"]) = (json!(1), json!(0));
        door.post("/v1/poll", arrived).await;
        assert_eq!(view(&id).await, json!("started"));
        // What has arrived once need not be said again.
        let mut later = tells.clone();
        (later["in_hand"], later["wait_ms"]) = (json!(1), json!(0));
        door.post("/v1/poll", later).await;
        let ack = json!({"execution_id": task["execution_id"], "outcome": "succeeded"});
        let (_, answer) = door.post("/v1/acks", json!({"worker": "tells", "acks": [ack]})).await;
        assert_eq!(answer["acks"][0]["state"], json!("succeeded"));
    };
    // Of one that does not it comes back with its lease.
    let plain = json!({"worker": "plain", "queues": ["untold"], "slots": 1, "wait_ms": 20_000});
    let untold = async {
        let id = door.submit(json!({"queue": "untold", "retries": 0, "lease_ms": 1_000})).await;
        lose_an_answer(&door, &plain, &id).await;
        let task = next(&door, &plain).await;
        assert_eq!((&task["id"], &task["attempt"]), (&json!(id), &json!(1)));
        // Once it has been heard of, a lapse is a failure.
        let row = json!({"execution_id": task["execution_id"], "part": 0.5});
        door.post("/v1/progress", json!({"worker": "plain", "executions": [row]})).await;
        assert_eq!(view(&id).await, json!("started"));
        let dead = async {
            while view(&id).await != json!("dead") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(NEVER, dead).await.unwrap();
    };
    tokio::join!(told, untold);
    for (arrived, code) in [(json!(["x"]), "invalid_type"), (json!(vec!["x"; 1_001]), "too_many")] {
        let mut poll = tells.clone();
        poll["arrived"] = arrived;
        let answer = door.post("/v1/poll", poll).await;
        assert_eq!((answer.0, &answer.1["code"]), (422, &json!(code)), "{}", answer.1);
        let field = if code == "too_many" { "arrived" } else { "arrived[0]" };
        assert_eq!(answer.1["field"], json!(field));
    }
    stop.cancel();
    pod.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_fetched_ahead_for_a_worker_that_stays_away_goes_to_others() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let pod = tokio::spawn(Pod::new(door.space.clone(), PodSettings::default()).run(stop.clone()));
    let rows = "{\"queue\":\"q\"}\n".repeat(200);
    let bulk =
        door.ask(reqwest::Method::POST, "/v1/tasks:bulk").header("content-type", "application/x-ndjson");
    bulk.body(rows).send().await.unwrap().bytes().await.unwrap();
    let mut seen = BTreeSet::new();
    let mut run = async |worker: &str, most: usize| {
        let mut acks = Vec::new();
        let mut last = Value::Null;
        for _ in 0..most {
            let poll =
                json!({"worker": worker, "queues": ["q"], "slots": 1, "wait_ms": 20_000, "acks": acks});
            let (_, answer) = door.post("/v1/poll", poll).await;
            let tasks = answer["tasks"].as_array().unwrap();
            assert_eq!(tasks.len(), 1, "never more than its slots: {answer}");
            assert_eq!(tasks[0]["attempt"], json!(1));
            assert!(seen.insert(tasks[0]["id"].as_str().unwrap().to_owned()), "each once");
            last = json!({"execution_id": tasks[0]["execution_id"], "outcome": "succeeded"});
            acks = vec![last.clone()];
        }
        last
    };
    let kept = run("quick", 50).await;
    // What it has in hand and what was fetched beyond that, wherever it lies.
    let known = Guard::room(door.space.namespace(), "x:poll.quick").key("slots");
    let at = At::Key(&known);
    let hand = door.space.store().command("HGET", at, vec![known.clone(), "hand".into()]).await.unwrap();
    let ahead = hand.int("HGET").unwrap() - 1;
    assert!(ahead > 0, "its tasks are short");
    // It has one in hand and does not come again: another one gets all that is left.
    let last = tokio::time::timeout(NEVER / 3, run("other", 150)).await.unwrap();
    for (worker, ack) in [("quick", kept), ("other", last)] {
        let (_, answer) = door.post("/v1/acks", json!({"worker": worker, "acks": [ack]})).await;
        assert_eq!(answer["acks"][0]["state"], json!("succeeded"));
    }
    stop.cancel();
    pod.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_times_of_a_polling_worker_make_averages_and_leases() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let pod = tokio::spawn(Pod::new(door.space.clone(), PodSettings::default()).run(stop.clone()));
    let auto = QueueName::new("auto").unwrap();
    for (queue, lease) in [("auto", json!("auto")), ("fixed", json!(5_000))] {
        let patch = door.ask(reqwest::Method::PATCH, &format!("/v1/queues/{queue}"));
        let patch =
            patch.header("content-type", "application/json").body(json!({"lease": lease}).to_string());
        assert_eq!(patch.send().await.unwrap().status(), 200, "{queue}");
    }
    // Others have run such tasks before.
    let mut runs = Runs::default();
    (0..100).for_each(|_| runs.add(60_000, false));
    queue::add_runs(&door.space, &[(auto.clone(), runs)]).await.unwrap();

    let poll = |queue: &str| json!({"worker": "w", "queues": [queue], "slots": 1, "wait_ms": 20_000});
    let mut rows = Vec::new();
    for (queue, lease_ms, ack) in [
        ("auto", 210_000, json!({"outcome": "failed", "took_ms": 90_000})),
        ("fixed", 5_000, json!({"outcome": "succeeded", "took_ms": 12})),
    ] {
        door.submit(json!({"queue": queue, "retries": 0})).await;
        let task = next(&door, &poll(queue)).await;
        assert_eq!(task["lease_ms"], json!(lease_ms), "{queue}");
        // A renewal that says nothing else is for as long.
        let renew = json!({"worker": "w", "executions": [{"execution_id": task["execution_id"]}]});
        let (_, held) = door.post("/v1/renew", renew).await;
        let until = held["executions"][0]["lease_until"].as_str().unwrap();
        let left_ms = UnixMs::parse_rfc3339(until).unwrap().0 - door.space.clock().now_ms();
        assert!((lease_ms - 1_000..=lease_ms + 1_000).contains(&left_ms), "{queue}: {left_ms}");
        let mut ack = ack;
        ack["execution_id"] = task["execution_id"].clone();
        rows.push(ack);
    }
    let (_, answer) = door.post("/v1/acks", json!({"worker": "w", "acks": rows})).await;
    assert_eq!(
        (&answer["acks"][0]["state"], &answer["acks"][1]["state"]),
        (&json!("dead"), &json!("succeeded"))
    );

    // Pods hear of the averages with one of the next polls, long before the usual report.
    let told = async {
        let mut idle = poll("auto");
        idle["wait_ms"] = json!(0);
        loop {
            door.post("/v1/poll", idle.clone()).await;
            let live = member::roll(&door.space).await.unwrap().live;
            let worker = live.into_iter().find(|one| one.id == "poll.w").unwrap();
            if worker.averages.len() == 2 {
                return worker;
            }
        }
    };
    let worker = tokio::time::timeout(NEVER, told).await.unwrap();
    assert_eq!(worker.averages, [("auto".to_owned(), 90_000.0), ("fixed".to_owned(), 12.0)]);
    assert!(worker.beats > 0 && worker.load_ms == 0.0, "{worker:?}");
    // What was not told yet is told when the door closes.
    door.stop.cancel();
    let known = async {
        while queue::runs(&door.space, &auto).await.unwrap().count() < 101 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        queue::runs(&door.space, &auto).await.unwrap()
    };
    let runs = tokio::time::timeout(NEVER, known).await.unwrap();
    assert_eq!((runs.count(), runs.failed(), runs.max_ms()), (101, 1, 90_000));
    stop.cancel();
    pod.await.unwrap().unwrap();
}
