//! The HTTP port, asked by a real client over a real socket.

mod outcomes;
mod poll;
mod steer;

use minutehand::client::{Client, NewTask, NewToken};
use minutehand::executor::{Executor, HandlerError};
use minutehand::http::{Api, Door as Access, Ops, router, serve};
use minutehand::model::QueueName;
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::Space;
use minutehand::testing::bed::Bed;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// An HTTP port over a namespace of its own.
struct Door {
    space: Space,
    base: String,
    http: reqwest::Client,
    stop: CancellationToken,
    _bed: Bed,
    _end: DropGuard,
}

impl Door {
    async fn open() -> Self {
        Self::with(Access::Loopback).await
    }

    async fn with(access: Access) -> Self {
        // Any will do; an error says that one is installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::shared().await.unwrap();
        let space = bed.open().await.unwrap();
        let stop = CancellationToken::new();
        let template = NewTask::to(QueueName::new("any").unwrap());
        let api = Api::new(Client::new(space.clone()), template, access, stop.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(listener, router(Ops::default(), Some(api)), None, stop.clone()));
        let http = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        Self { space, base, http, stop: stop.clone(), _bed: bed, _end: stop.drop_guard() }
    }

    fn ask(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        told(self.ask(Method::GET, path).send().await.unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let request = self.ask(Method::POST, path).header("content-type", "application/json");
        told(request.body(body.to_string()).send().await.unwrap()).await
    }

    async fn submit(&self, body: Value) -> String {
        let (status, answer) = self.post("/v1/tasks", body).await;
        assert_eq!(status, 201, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }
}

async fn told(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.bytes().await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn problem(answer: &(u16, Value)) -> (u16, &str, &str) {
    let text = |name: &str| answer.1[name].as_str().unwrap_or("");
    (answer.0, text("code"), text("field"))
}

#[tokio::test]
async fn a_task_is_submitted_seen_moved_and_cancelled() {
    let door = Door::open().await;
    let id = door
        .submit(
            json!({"queue": "mail", "in_ms": 3_600_000, "priority": "P2", "payload": "h\u{e9}", "key": "k"}),
        )
        .await;
    let (status, task) = door.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!(status, 200);
    let seen =
        ["queue", "state", "view", "priority", "payload", "key"].map(|name| task[name].as_str().unwrap());
    assert_eq!(seen, ["mail", "pending", "scheduled", "P2", "h\u{e9}", "k"]);

    // Its key is taken, by the field or by the header.
    let again = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json");
    let again = again.header("idempotency-key", "k").body(r#"{"queue":"mail"}"#).send().await.unwrap();
    let (status, again) = told(again).await;
    assert_eq!((status, &again["id"], &again["created"]), (200, &json!(id), &json!(false)));

    let (status, moved) =
        door.post(&format!("/v1/tasks/{id}/reschedule"), json!({"at": "2030-01-01T00:00:00Z"})).await;
    assert_eq!((status, moved["due"].as_str().unwrap()), (200, "2030-01-01T00:00:00.000Z"));
    let (status, moved) = door.post(&format!("/v1/tasks/{id}/reprioritize"), json!({"priority": "P0"})).await;
    assert_eq!((status, moved["priority"].as_str().unwrap()), (200, "P0"));
    let (status, ended) = door.post(&format!("/v1/tasks/{id}/cancel"), json!({"cause": "no more"})).await;
    assert_eq!((status, ended["state"].as_str().unwrap()), (200, "cancelled"));
    let refused = door.post(&format!("/v1/tasks/{id}/reschedule"), json!({"in_ms": 5})).await;
    assert_eq!(problem(&refused), (409, "wrong_state", ""));

    let (status, trace) = door.get(&format!("/v1/tasks/{id}/trace")).await;
    let events: Vec<&str> =
        trace["events"].as_array().unwrap().iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((status, events), (200, vec!["submitted", "moved", "moved", "cancelled"]));
    let told = trace["events"][3].to_string();
    assert!(told.contains("http:127.0.0.1") && told.contains("no more"), "{told}");
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_is_left_of_it() {
    let door = Door::open().await;
    for (body, field, code) in [
        (json!({}), "queue", "missing"),
        (json!({"queue": ""}), "queue", "bad_name"),
        (json!({"queue": "a b"}), "queue", "bad_name"),
        (json!({"queue": "q".repeat(129)}), "queue", "too_long"),
        (json!({"queue": "q", "in_ms": -1}), "in_ms", "out_of_range"),
        (json!({"queue": "q", "in_ms": i64::MIN}), "in_ms", "out_of_range"),
        (json!({"queue": "q", "in_ms": i64::MAX}), "due", "out_of_range"),
        (json!({"queue": "q", "in_ms": u64::MAX}), "in_ms", "invalid_type"),
        (json!({"queue": "q", "in_ms": 1.5}), "in_ms", "invalid_type"),
        (json!({"queue": "q", "in_ms": "12"}), "in_ms", "invalid_type"),
        (json!({"queue": "q", "at_ms": -1}), "at_ms", "out_of_range"),
        (json!({"queue": "q", "at_ms": 253_402_300_800_000i64}), "due", "out_of_range"),
        (json!({"queue": "q", "at": "tomorrow"}), "at", "invalid_type"),
        (json!({"queue": "q", "at": "2030-01-01T00:00:00Z", "in_ms": 1}), "at", "invalid_type"),
        (json!({"queue": "q", "priority": "P9"}), "priority", "out_of_range"),
        (json!({"queue": "q", "retries": 255}), "retries", "out_of_range"),
        (json!({"queue": "q", "key": ""}), "key", "bad_name"),
        (json!({"queue": "q", "payload": 5}), "payload", "invalid_type"),
        (json!({"queue": "q", "payload_base64": "?"}), "payload_base64", "invalid_type"),
        (json!({"queue": "q", "payload": "", "payload_base64": ""}), "payload_base64", "invalid_type"),
        (json!({"queue": "q", "labels": "gpu"}), "labels", "invalid_type"),
        (json!({"queue": "q", "colour": "red"}), "colour", "unknown"),
        (json!(["q"]), "body", "invalid_type"),
    ] {
        let answer = door.post("/v1/tasks", body.clone()).await;
        let (status, found, at) = problem(&answer);
        assert_eq!((status, at), (422, field), "{body}: {}", answer.1);
        if code != "bad_name" || at != "key" {
            assert_eq!(found, code, "{body}: {}", answer.1);
        }
    }
    let raw = async |kind: &str, body: &'static str| {
        let request = door.ask(Method::POST, "/v1/tasks").header("content-type", kind).body(body);
        told(request.send().await.unwrap()).await
    };
    assert_eq!(
        problem(&raw("application/json", r#"{"queue":"q","in_ms":1e400}"#).await),
        (422, "invalid_type", "in_ms")
    );
    assert_eq!(
        problem(&raw("application/json", r#"{"queue":"q","in_ms":NaN}"#).await),
        (422, "invalid_type", "in_ms")
    );
    // A due time of zero, or of minus zero, is a number and is past: at once.
    for body in [r#"{"queue":"zero","at_ms":0}"#, r#"{"queue":"zero","in_ms":0}"#] {
        assert_eq!(raw("application/json", body).await.0, 201, "{body}");
    }
    assert_eq!(
        problem(&raw("application/json", r#"{"queue":"q","at_ms":-0.0}"#).await),
        (422, "invalid_type", "at_ms")
    );
    assert_eq!(problem(&raw("application/json", "{").await), (400, "bad_body", ""));
    assert_eq!(problem(&raw("text/plain", "{}").await), (415, "unsupported_media_type", ""));
    let packed = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/msgpack");
    let packed = packed.body(&b"\x91\xa1q"[..]).send().await.unwrap();
    assert_eq!(problem(&told(packed).await), (422, "invalid_type", "body"));
    let strange = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json");
    let strange = strange.header("content-encoding", "br").body("{}").send().await.unwrap();
    assert_eq!(strange.headers()["accept-encoding"], "gzip");
    assert_eq!(problem(&told(strange).await), (415, "unsupported_encoding", ""));
    let large = format!(r#"{{"queue":"q","payload":"{}"}}"#, "x".repeat(1 << 20));
    let fits = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json").body(large);
    assert_eq!(fits.send().await.unwrap().status(), StatusCode::CREATED);
    let large = format!(r#"{{"queue":"q","payload":"{}"}}"#, "x".repeat((1 << 20) + 1));
    let over = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json").body(large);
    assert_eq!(problem(&told(over.send().await.unwrap()).await), (422, "too_long", "payload"));
    let huge = "x".repeat(3 << 20);
    let over = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json").body(huge);
    assert_eq!(problem(&told(over.send().await.unwrap()).await), (413, "too_large", ""));

    assert_eq!(problem(&door.get("/v1/tasks/x").await), (422, "invalid_type", "id"));
    let unknown = "1kYw8-2K3dPb-x0a";
    let answer = door.get(&format!("/v1/tasks/{unknown}")).await;
    assert!(answer.0 == 404 || answer.0 == 422, "{answer:?}");
    assert_eq!(problem(&door.get("/v1/nothing").await), (404, "not_found", ""));
    let (status, _) = told(door.ask(Method::DELETE, "/v1/tasks").send().await.unwrap()).await;
    assert_eq!(status, 405);
    assert_eq!(problem(&door.get("/v1/dead?limit=0").await), (422, "out_of_range", "limit"));
    assert_eq!(problem(&door.get("/v1/dead?limit=x").await), (422, "invalid_type", "limit"));
    assert_eq!(problem(&door.get("/v1/dead?cursor=x").await), (422, "invalid_type", "cursor"));

    let (status, answer) = door.get("/v1/status").await;
    assert_eq!((status, &answer["counts"]["submitted"]), (200, &json!(3)), "refusals left something behind");
}

#[tokio::test]
async fn payloads_come_back_byte_for_byte_in_both_languages() {
    let door = Door::open().await;
    let all: Vec<u8> = (0..=255).collect();
    for payload in [&all[..], b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"", b"text"] {
        let body = [
            &[0x82, 0xa5][..],
            b"queue",
            b"\xa1q",
            &[0xa7],
            b"payload",
            &[0xc5, (payload.len() >> 8) as u8, payload.len() as u8],
            payload,
        ];
        let request = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/msgpack");
        let answer = request.header("accept", "application/json").body(body.concat()).send().await.unwrap();
        let (status, answer) = told(answer).await;
        assert_eq!(status, 201, "{answer}");
        let id = answer["id"].as_str().unwrap();
        let (_, task) = door.get(&format!("/v1/tasks/{id}")).await;
        match std::str::from_utf8(payload) {
            Ok(text) => assert_eq!(task["payload"], json!(text)),
            Err(_) => {
                use base64::Engine;
                let text = base64::engine::general_purpose::STANDARD.encode(payload);
                assert_eq!((&task["payload"], &task["payload_base64"]), (&Value::Null, &json!(text)));
            }
        }
        #[derive(serde::Deserialize)]
        struct Seen {
            #[serde(with = "serde_bytes_like")]
            payload: Vec<u8>,
        }
        let request =
            door.ask(Method::GET, &format!("/v1/tasks/{id}")).header("accept", "application/msgpack");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/msgpack");
        let seen: Seen = rmp_serde::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(seen.payload, payload);
    }
}

/// Bytes as msgpack has them.
mod serde_bytes_like {
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let bytes: bytes::Bytes = serde::Deserialize::deserialize(deserializer)?;
        Ok(bytes.to_vec())
    }
}

#[tokio::test]
async fn a_full_queue_answers_429_and_bulk_rows_one_by_one() {
    let door = Door::open().await;
    let set = door.ask(Method::PATCH, "/v1/queues/full").header("content-type", "application/json");
    let (status, set) = told(set.body(json!({"backlog": 8}).to_string()).send().await.unwrap()).await;
    assert_eq!((status, &set["settings"]["backlog"]), (200, &json!(8)), "{set}");
    let task = json!({"queue": "full", "in_ms": 3_600_000});
    for _ in 0..8 {
        door.submit(task.clone()).await;
    }
    let refused = door.post("/v1/tasks", task.clone()).await;
    assert_eq!(problem(&refused), (429, "over_backlog", ""));
    let said = "queue full has as many tasks that have not ended as it may (8); try again when some have";
    assert_eq!(refused.1["message"], json!(said));
    let rows = format!("{task}\n{}\n", json!({"queue": "other"}));
    let bulk = door.ask(Method::POST, "/v1/tasks:bulk").header("content-type", "application/x-ndjson");
    let text = bulk.body(rows).send().await.unwrap().text().await.unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&rows[0]["error"]["code"], &rows[1]["created"]), (&json!("over_backlog"), &json!(true)));
    let wrong = door.ask(Method::PATCH, "/v1/queues/full").header("content-type", "application/json");
    let wrong = told(wrong.body(json!({"backlog": 0}).to_string()).send().await.unwrap()).await;
    assert_eq!(problem(&wrong), (422, "out_of_range", "backlog"));
}

#[tokio::test]
async fn a_bulk_request_answers_each_row_in_order() {
    let door = Door::open().await;
    let mut rows: Vec<String> = (0..2_500)
        .map(|n| json!({"queue": "q", "key": format!("k{n}"), "in_ms": 60_000}).to_string())
        .collect();
    rows[7] = "{".into();
    rows[1_234] = json!({"queue": "a b"}).to_string();
    rows.push(json!({"queue": "q", "key": "k0"}).to_string());
    let body = rows.join("\n");
    let request = door.ask(Method::POST, "/v1/tasks:bulk").header("content-type", "application/x-ndjson");
    let answer = request.body(body).send().await.unwrap();
    assert_eq!(
        (answer.status(), &answer.headers()["content-type"]),
        (StatusCode::OK, &"application/x-ndjson".parse().unwrap())
    );
    let text = answer.text().await.unwrap();
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 2_501);
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(answer["row"], json!(at));
        match at {
            7 => assert_eq!(answer["error"]["code"], "bad_body"),
            1_234 => assert_eq!(
                (&answer["error"]["code"], &answer["error"]["field"]),
                (&json!("bad_name"), &json!("queue"))
            ),
            // Two rows of one key in one request: one of them made the task, whichever came first.
            0 | 2_500 => assert_eq!(answer["id"], answers[0]["id"]),
            _ => assert_eq!(answer["created"], json!(true), "{answer}"),
        }
    }
    assert_ne!(answers[0]["created"], answers[2_500]["created"]);
    let (_, status) = door.get("/v1/status").await;
    assert_eq!(status["counts"]["submitted"], json!(2_498));

    // The same as msgpack, answered before the body has ended.
    let (rows, body) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(4);
    let stream =
        futures_util::stream::unfold(body, |mut body| async move { Some((body.recv().await?, body)) });
    let request = door.ask(Method::POST, "/v1/tasks:bulk").header("content-type", "application/msgpack");
    let asked = tokio::spawn(request.body(reqwest::Body::wrap_stream(stream)).send());
    let row = |n: u32| rmp_serde::to_vec_named(&json!({"queue": "q", "key": format!("m{n}")})).unwrap();
    rows.send(Ok(row(1))).await.unwrap();
    let mut answer = asked.await.unwrap().unwrap();
    let first = answer.chunk().await.unwrap().unwrap();
    let first: Value = rmp_serde::from_slice(&first).unwrap();
    assert_eq!((&first["row"], &first["created"]), (&json!(0), &json!(true)));
    rows.send(Ok(row(2)[..3].to_vec())).await.unwrap();
    rows.send(Ok(row(2)[3..].to_vec())).await.unwrap();
    let second: Value = rmp_serde::from_slice(&answer.chunk().await.unwrap().unwrap()).unwrap();
    assert_eq!(second["row"], json!(1));
    rows.send(Ok(row(3)[..3].to_vec())).await.unwrap();
    drop(rows);
    let last: Value = rmp_serde::from_slice(&answer.chunk().await.unwrap().unwrap()).unwrap();
    assert_eq!((&last["row"], &last["error"]["code"]), (&json!(2), &json!("bad_body")));
    assert_eq!(answer.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn events_go_on_where_they_were_left() {
    let door = Door::open().await;
    let first = door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
    let read = async |from: Option<&str>| {
        let request = door.ask(Method::GET, "/v1/events?from=start&once=true");
        let request = match from {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        answer.text().await.unwrap()
    };
    let text = read(None).await;
    let data: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert_eq!((data.len(), &data[0]["id"], &data[0]["event"]), (1, &json!(first), &json!("submitted")));
    let place = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap().to_owned();
    assert!(!read(Some(&place)).await.contains("data: "));
    let second = door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
    let text = read(Some(&place)).await;
    assert!(text.contains(&second) && !text.contains(&first), "{text}");
    let bad = door.ask(Method::GET, "/v1/events").header("last-event-id", "x").send().await.unwrap();
    assert_eq!(problem(&told(bad).await), (422, "invalid_type", "Last-Event-ID"));

    // A stream that is open ends when the port does.
    let mut open = door.ask(Method::GET, "/v1/events").send().await.unwrap();
    assert!(open.chunk().await.unwrap().unwrap().starts_with(b"retry:"));
    let third = door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
    let piece = open.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&piece).contains(&third));
    door.stop.cancel();
    while let Ok(Some(_)) = open.chunk().await {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_paged_redriven_and_deleted() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let pod = tokio::spawn(Pod::new(door.space.clone(), PodSettings::default()).run(stop.clone()));
    let executor = Executor::builder(door.space.clone())
        .handle("q", |_, _| async { Err(HandlerError::fatal("gateway said no")) })
        .build()
        .unwrap();
    let executor = tokio::spawn(executor.run(stop.clone()));
    for _ in 0..25 {
        door.submit(json!({"queue": "q"})).await;
    }
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while door.get("/v1/status").await.1["counts"]["dead"] != json!(25) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap();
    stop.cancel();
    pod.await.unwrap().unwrap();
    executor.await.unwrap().unwrap();

    let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (status, page) = door.get(&format!("/v1/dead?queue=q&limit=10{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        pages += 1;
        for letter in page["letters"].as_array().unwrap() {
            assert_eq!((&letter["reason"], &letter["error"]), (&json!("fatal"), &json!("gateway said no")));
            seen.push(letter["id"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(pages, 3);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 25);
    assert_eq!(door.get("/v1/dead?reason=nothing*").await.1["letters"], json!([]));

    let (status, shown) = door.get(&format!("/v1/dead/{}", seen[0])).await;
    assert_eq!((status, &shown["attempts"][0]["error"]), (200, &json!("gateway said no")));
    let (status, done) = door.post("/v1/dead:redrive", json!({"ids": [seen[0]]})).await;
    assert_eq!((status, &done["redriven"]), (200, &json!(1)));
    assert_eq!(door.get(&format!("/v1/dead/{}", seen[0])).await.0, 404);
    let (status, done) = door.post("/v1/dead:delete", json!({"queue": "q", "limit": 4})).await;
    assert_eq!((status, &done), (200, &json!({"deleted": 4, "unknown": 0})));
    assert_eq!(problem(&door.post("/v1/dead:delete", json!({})).await), (422, "missing", "ids"));
    let (_, status) = door.get("/v1/status").await;
    assert_eq!(status["counts"]["dead"], json!(20));
}

#[tokio::test]
async fn the_document_tells_every_route_and_is_compressed() {
    let door = Door::open().await;
    let answer =
        door.ask(Method::GET, "/openapi.json").header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-encoding"]),
        (200, &"gzip".parse().unwrap())
    );
    let mut text = String::new();
    let bytes = answer.bytes().await.unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut text).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 15, "{:?}", paths.keys());
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(
                operation["responses"]["422"].is_object() && operation["tags"].is_array(),
                "{method} {path}"
            );
        }
    }
    // A packed body, and the request's own name.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, br#"{"queue":"q"}"#).unwrap();
    let request = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json");
    let request = request.header("content-encoding", "gzip").header("x-request-id", "mine-1");
    let answer = request.body(packed.finish().unwrap()).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-request-id"]),
        (201, &"mine-1".parse().unwrap())
    );
    let page = door.ask(Method::GET, "/docs").send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
}

#[tokio::test]
async fn a_namespace_over_its_quota_takes_no_more() {
    let door = Door::open().await;
    let put = async |body: Value| {
        let request = door.ask(Method::PUT, "/v1/quota").header("content-type", "application/json");
        told(request.body(body.to_string()).send().await.unwrap()).await
    };
    let none = json!({"tasks": null, "bytes": null});
    assert_eq!(door.get("/v1/quota").await, (200, none.clone()));
    assert_eq!(put(json!({"tasks": 1})).await, (200, json!({"tasks": 1, "bytes": null})));
    door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
    let refused = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json");
    let refused = refused.body(r#"{"queue":"q"}"#).send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "10");
    assert_eq!(problem(&told(refused).await), (429, "over_quota", "tasks"));
    assert_eq!(problem(&put(json!({"tasks": 10_000_000_000_000u64})).await), (422, "out_of_range", "tasks"));
    let (status, stands) = put(json!({"bytes": 1_000})).await;
    assert_eq!((status, &stands["tasks"], &stands["bytes"]), (200, &json!(null), &json!(1_000)));
    assert!((5..100).contains(&stands["held_bytes"].as_u64().unwrap()), "{stands}");
    let refused = door.post("/v1/tasks", json!({"queue": "q", "payload": "x".repeat(1_000)})).await;
    assert_eq!(problem(&refused), (429, "over_quota", "bytes"));
    assert!(refused.1["message"].as_str().unwrap().contains("1000 bytes"), "{}", refused.1);
    assert_eq!(put(json!({"tasks": null})).await, (200, none));
    door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
}

#[tokio::test]
async fn a_freeze_is_seen_and_thawed() {
    let door = Door::open().await;
    assert_eq!(problem(&door.post("/v1/freeze", json!({})).await), (422, "missing", "queue"));
    let (status, frost) = door.post("/v1/freeze", json!({"queue": "q", "why": "gateway"})).await;
    assert_eq!((status, &frost["changed"], &frost["frozen"][0]["scope"]), (200, &json!(true), &json!("q:q")));
    let id = door.submit(json!({"queue": "q"})).await;
    assert_eq!(door.get(&format!("/v1/tasks/{id}")).await.1["view"], json!("held"));
    let (_, shown) = door.get("/v1/freeze").await;
    assert_eq!(
        (&shown["frozen"][0]["who"], &shown["frozen"][0]["cause"]),
        (&json!("http:127.0.0.1"), &json!("gateway"))
    );
    let (status, frost) = door.post("/v1/thaw", json!({"queue": "q"})).await;
    assert_eq!((status, &frost["frozen"]), (200, &json!([])));
}

#[tokio::test]
async fn tokens_let_in_whom_they_are_for() {
    let door = Door::with(Access::Tokens).await;
    let client = Client::new(door.space.clone());
    let token = async |name: &str, role: &str, queues: &[&str], expires_after_ms: Option<i64>| {
        let new = NewToken {
            name: name.to_owned(),
            roles: vec![role.parse().unwrap()],
            queues: queues.iter().map(|queue| queue.parse().unwrap()).collect(),
            expires_after_ms,
        };
        let (token, record) = client.token_create(new, "test").await.unwrap();
        (token.to_string(), record.id)
    };
    let (submit, submit_id) = token("s", "submit", &["mail", "push.*"], None).await;
    let (read, _) = token("r", "read", &[], None).await;
    let (operate, _) = token("o", "operate", &[], None).await;
    let (admin, _) = token("a", "admin", &[], None).await;
    let (short, _) = token("x", "read", &[], Some(1)).await;
    let ask = async |method: Method, path: &str, token: &str, body: &str| {
        let request = door.ask(method, path).header("content-type", "application/json");
        told(request.bearer_auth(token).body(body.to_owned()).send().await.unwrap()).await
    };
    // The port hears of new tokens by itself.
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while ask(Method::GET, "/v1/tokens", &admin, "").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    heard.await.unwrap();

    let nobody = door.ask(Method::GET, "/v1/status").send().await.unwrap();
    assert_eq!(
        (nobody.status().as_u16(), &nobody.headers()["www-authenticate"]),
        (401, &"Bearer realm=\"minutehand\"".parse().unwrap())
    );
    for (method, path, body, by_submit, by_read, by_operate) in [
        (Method::POST, "/v1/tasks", r#"{"queue":"mail","in_ms":60000}"#, 201, 403, 201),
        (Method::POST, "/v1/tasks", r#"{"queue":"push.sms","in_ms":60000}"#, 201, 403, 201),
        (Method::POST, "/v1/tasks", r#"{"queue":"other","in_ms":60000}"#, 403, 403, 201),
        (Method::GET, "/v1/status", "", 403, 200, 200),
        (Method::GET, "/v1/events?once=true", "", 403, 200, 200),
        (Method::GET, "/v1/dead", "", 403, 200, 200),
        (Method::POST, "/v1/thaw", r#"{"queue":"mail"}"#, 403, 403, 200),
        (Method::POST, "/v1/acks", r#"{"worker":"w","acks":[]}"#, 403, 403, 403),
        (Method::GET, "/v1/tokens", "", 403, 403, 403),
    ] {
        for (token, status) in [(&submit, by_submit), (&read, by_read), (&operate, by_operate)] {
            assert_eq!(ask(method.clone(), path, token, body).await.0, status, "{method} {path} {body}");
        }
    }
    // A bulk row of another queue is refused by itself.
    let rows = "{\"queue\":\"mail\"}\n{\"queue\":\"other\"}";
    let bulk = door.ask(Method::POST, "/v1/tasks:bulk").header("content-type", "application/x-ndjson");
    let text = bulk.bearer_auth(&submit).body(rows).send().await.unwrap().text().await.unwrap();
    assert!(text.contains("\"created\":true") && text.contains("\"code\":\"forbidden\""), "{text}");

    assert_eq!(problem(&ask(Method::GET, "/v1/status", &short, "").await), (401, "unauthorized", ""));
    let wrong = format!("{}x", &read[..read.len() - 1]);
    assert_eq!(ask(Method::GET, "/v1/status", &wrong, "").await.0, if wrong == read { 200 } else { 401 });

    // What operators did is written down, and who they are.
    let (status, notes) = ask(Method::GET, "/v1/notes", &admin, "").await;
    let notes: Vec<String> = notes["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| format!("{} {}", n["who"].as_str().unwrap(), n["action"].as_str().unwrap()))
        .collect();
    assert_eq!(status, 200);
    assert_eq!(notes[0], "token:o POST /v1/thaw");
    assert_eq!(notes.iter().filter(|note| note.ends_with("token.create")).count(), 5);

    // No secret is in Redis.
    let key: bytes::Bytes = format!("{{{}:access}}:tokens", door.space.namespace()).into();
    let at = minutehand::store::At::Key(&key);
    let kept =
        door.space.store().command("HVALS", at, vec![key.clone()]).await.unwrap().array("HVALS").unwrap();
    let kept: Vec<u8> = kept.into_iter().flat_map(|value| value.bytes("HVALS").unwrap()).collect();
    assert!(kept.windows(submit_id.len()).any(|part| part == submit_id.as_bytes()));
    for token in [&submit, &read, &operate, &admin] {
        let secret = &token.as_bytes()[14..];
        assert!(!kept.windows(secret.len()).any(|part| part == secret), "a secret is kept");
    }

    // A revoked token is soon worthless.
    assert_eq!(ask(Method::DELETE, &format!("/v1/tokens/{submit_id}"), &admin, "").await.0, 200);
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while ask(Method::POST, "/v1/tasks", &submit, r#"{"queue":"mail"}"#).await.0 != 401 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    heard.await.unwrap();
}

#[tokio::test]
async fn failed_logins_are_limited_and_good_ones_are_not() {
    let door = Door::with(Access::Tokens).await;
    let bad = format!("mh_{}_{}", "a".repeat(10), "b".repeat(43));
    let mut seen = Vec::new();
    for _ in 0..12 {
        let answer = door.ask(Method::GET, "/v1/status").bearer_auth(&bad).send().await.unwrap();
        seen.push(answer.status().as_u16());
    }
    assert_eq!(seen, [[401; 10].to_vec(), [429; 2].to_vec()].concat());
    let answer = door.ask(Method::GET, "/v1/status").bearer_auth(&bad).send().await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "60");
}

#[tokio::test]
async fn a_token_that_is_shown_where_none_is_needed_counts() {
    let door = Door::open().await;
    let client = Client::new(door.space.clone());
    let new = NewToken {
        name: "s".to_owned(),
        roles: vec!["submit".parse().unwrap()],
        queues: vec!["mail".parse().unwrap()],
        expires_after_ms: None,
    };
    let token = client.token_create(new, "test").await.unwrap().0.to_string();
    let status = async |token: &str| {
        let answer = door.ask(Method::GET, "/v1/status").bearer_auth(token).send().await.unwrap();
        answer.status().as_u16()
    };
    // The port hears of new tokens by itself; until then this one is not good. It is none for reading.
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while status(&token).await != 403 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    heard.await.unwrap();
    let submit = async |queue: &str| {
        let request = door.ask(Method::POST, "/v1/tasks").header("content-type", "application/json");
        let body = json!({"queue": queue, "in_ms": 60_000}).to_string();
        request.bearer_auth(&token).body(body).send().await.unwrap().status().as_u16()
    };
    assert_eq!((submit("mail").await, submit("other").await), (201, 403));
    let wrong = format!("mh_{}_{}", "a".repeat(10), "b".repeat(43));
    assert!(matches!(status(&wrong).await, 401 | 429));
    // What is no token of ours is for whoever stands before the port.
    assert_eq!(status("eyJhbGciOi.J9.x").await, 200);
    assert_eq!(door.get("/v1/status").await.0, 200);
}

#[tokio::test]
async fn pages_of_other_sites_do_nothing_on_an_open_port() {
    let door = Door::open().await;
    let request = door.ask(Method::POST, "/v1/thaw").header("content-type", "application/json");
    let answer =
        request.header("origin", "http://evil.example").body(r#"{"all":true}"#).send().await.unwrap();
    assert_eq!(problem(&told(answer).await), (403, "forbidden", ""));
    let answer = door.ask(Method::GET, "/v1/status").header("host", "evil.example").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_polls_runs_and_reports() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let pod = tokio::spawn(Pod::new(door.space.clone(), PodSettings::default()).run(stop.clone()));
    let poll = async |more: Value| {
        let mut body = json!({"worker": "w1", "queues": ["q", "r"], "slots": 8, "wait_ms": 20_000});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = door.post("/v1/poll", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    // Nothing is there: the wait ends without a task.
    assert_eq!(poll(json!({"wait_ms": 0})).await["tasks"], json!([]));
    let (_, executors) = door.get("/v1/executors").await;
    let seen = &executors["executors"][0];
    assert_eq!(
        (&seen["id"], &seen["slots"], &seen["queues"]),
        (&json!("poll.w1"), &json!(8), &json!(["q", "r"]))
    );

    // A poll that waits is answered as soon as something comes.
    let waiting = async {
        let answer = poll(json!({})).await;
        answer["tasks"].as_array().unwrap().clone()
    };
    let submitting = async {
        door.submit(
            json!({"queue": "q", "payload": "hello", "key": "k", "traceparent": "00-1-2-01", "retries": 1}),
        )
        .await
    };
    let (tasks, id) = tokio::join!(waiting, submitting);
    let task = &tasks[0];
    assert_eq!(
        (tasks.len(), &task["id"], &task["attempt"], &task["key"]),
        (1, &json!(id), &json!(1), &json!("k"))
    );
    assert_eq!((&task["payload_base64"], &task["traceparent"]), (&json!("aGVsbG8="), &json!("00-1-2-01")));
    let (_, shown) = door.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!((&shown["view"], &shown["holder"]), (&json!("offered"), &json!("poll.w1")));

    // It is renewed, which is the first that is heard of it.
    let execution = task["execution_id"].as_str().unwrap().to_owned();
    let renew = json!({"worker": "w1", "executions": [{"execution_id": execution, "lease_ms": 60_000}]});
    let (_, held) = door.post("/v1/renew", renew.clone()).await;
    assert_eq!(
        (&held["executions"][0]["state"], &held["executions"][0]["cancel"]),
        (&json!("held"), &json!(false))
    );
    let (_, shown) = door.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!((&shown["view"], &shown["holder"]), (&json!("started"), &json!("poll.w1")));

    // How far it is is shown while it runs.
    let progress = |execution: &str, part: f64| {
        let row = json!({"execution_id": execution, "part": part, "text": "page 3 of 6"});
        door.post("/v1/progress", json!({"worker": "w1", "executions": [row]}))
    };
    let (status, kept) = progress(&execution, 0.5).await;
    assert_eq!((status, &kept["executions"][0]["state"]), (200, &json!("kept")));
    let (_, shown) = door.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!(shown["progress"], json!({"part": 0.5, "text": "page 3 of 6"}));
    assert_eq!(problem(&progress(&execution, 1.5).await), (422, "out_of_range", "executions[0].part"));
    assert_eq!(problem(&progress("x", 0.5).await), (422, "invalid_type", "executions[0].execution_id"));

    // It fails, is tried again under another name, and succeeds; the outcome comes along with a poll.
    let ack = |execution: &str, outcome: &str| json!({"execution_id": execution, "outcome": outcome, "error": "boom", "took_ms": 3, "lag_ms": 1});
    let mut failed = ack(&execution, "retry_after");
    failed["retry_after_ms"] = json!(0);
    let (_, answer) = door.post("/v1/acks", json!({"worker": "w1", "acks": [failed]})).await;
    assert_eq!(answer["acks"][0]["state"], json!("retrying"));
    let (_, stale) = door.post("/v1/renew", renew).await;
    assert_eq!(stale["executions"][0]["state"], json!("stale"));
    let answer = poll(json!({})).await;
    let second = answer["tasks"][0]["execution_id"].as_str().unwrap().to_owned();
    assert_ne!(second, execution);
    assert_eq!(progress(&execution, 0.9).await.1["executions"][0]["state"], json!("stale"));
    let (_, late) =
        door.post("/v1/acks", json!({"worker": "w1", "acks": [ack(&execution, "succeeded")]})).await;
    assert_eq!(late["acks"][0]["state"], json!("stale"));
    let answer = poll(json!({"wait_ms": 0, "acks": [ack(&second, "succeeded")]})).await;
    assert_eq!(answer["acks"][0]["state"], json!("succeeded"));
    let (_, again) = door
        .post("/v1/acks", json!({"worker": "w1", "again": true, "acks": [ack(&second, "succeeded")]}))
        .await;
    assert_eq!(again["acks"][0]["state"], json!("known"));

    // What was said of its progress goes with it.
    let mark: bytes::Bytes = door
        .space
        .guard(id.parse::<minutehand::model::TaskId>().unwrap().bucket())
        .key(&format!("mark:{id}"));
    let gone = tokio::time::timeout(Duration::from_secs(20), async {
        let at = minutehand::store::At::Key(&mark);
        while door
            .space
            .store()
            .command("EXISTS", at, vec![mark.clone()])
            .await
            .unwrap()
            .int("EXISTS")
            .unwrap()
            == 1
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    gone.await.unwrap();

    // Many at once, never more than the slots; what is given back comes again, uncounted.
    for n in 0..20 {
        door.submit(json!({"queue": "r", "payload": n.to_string()})).await;
    }
    let (mut done, mut held, mut gave_back) = (std::collections::BTreeSet::new(), Vec::<Value>::new(), false);
    while done.len() < 20 {
        let acks: Vec<Value> =
            held.iter().map(|task| ack(task["execution_id"].as_str().unwrap(), "succeeded")).collect();
        let answer = poll(json!({"acks": acks})).await;
        for (task, ack) in held.iter().zip(answer["acks"].as_array().unwrap_or(&Vec::new())) {
            assert_eq!(ack["state"], json!("succeeded"));
            assert!(done.insert(task["id"].as_str().unwrap().to_owned()));
        }
        held = answer["tasks"].as_array().unwrap().clone();
        assert!(held.len() <= 8);
        if !gave_back && let Some(task) = held.pop() {
            gave_back = true;
            let back = ack(task["execution_id"].as_str().unwrap(), "handed_back");
            let (_, answer) = door.post("/v1/acks", json!({"worker": "w1", "acks": [back]})).await;
            assert_eq!(answer["acks"][0]["state"], json!("handed_back"));
        }
        if done.len() + held.len() == 20 {
            let acks: Vec<Value> =
                held.iter().map(|task| ack(task["execution_id"].as_str().unwrap(), "succeeded")).collect();
            door.post("/v1/acks", json!({"worker": "w1", "acks": acks})).await;
            done.extend(held.drain(..).map(|task| task["id"].as_str().unwrap().to_owned()));
        }
    }
    // A cancelled task's worker is told, and it ends as cancelled.
    let id = door.submit(json!({"queue": "q"})).await;
    let answer = poll(json!({})).await;
    let execution = answer["tasks"][0]["execution_id"].as_str().unwrap().to_owned();
    // Its tasks were short; of one that lasts it is soon known who has it.
    let noted = async {
        while door.get(&format!("/v1/tasks/{id}")).await.1["view"] != json!("offered") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), noted).await.unwrap();
    let (_, asked) = door.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await;
    assert_eq!((&asked["state"], &asked["holder"]), (&json!("asked"), &json!("poll.w1")));
    let (_, told) =
        door.post("/v1/renew", json!({"worker": "w1", "executions": [{"execution_id": execution}]})).await;
    assert_eq!(told["executions"][0]["cancel"], json!(true));
    let (_, answer) =
        door.post("/v1/acks", json!({"worker": "w1", "acks": [ack(&execution, "cancelled")]})).await;
    assert_eq!(answer["acks"][0]["state"], json!("cancelled"));

    let (status, _) = self::told(door.ask(Method::DELETE, "/v1/workers/w1").send().await.unwrap()).await;
    assert_eq!(status, 200);
    let (_, executors) = door.get("/v1/executors").await;
    assert_eq!(executors["executors"], json!([]));
    let (_, status) = door.get("/v1/status").await;
    let counts =
        ["succeeded", "cancelled", "pending", "running"].map(|name| status["counts"][name].as_i64().unwrap());
    assert_eq!(counts, [21, 1, 0, 0]);
    for (body, field) in [
        (json!({"worker": "a b", "slots": 1}), "worker"),
        (json!({"worker": "w", "slots": 0}), "slots"),
        (json!({"worker": "w", "slots": 1, "wait_ms": 30_001}), "wait_ms"),
        (json!({"worker": "w"}), "slots"),
        (
            json!({"worker": "w", "slots": 1, "acks": [{"execution_id": "x", "outcome": "succeeded"}]}),
            "acks[0].execution_id",
        ),
    ] {
        let answer = door.post("/v1/poll", body).await;
        assert_eq!((answer.0, answer.1["field"].as_str().unwrap()), (422, field));
    }
    stop.cancel();
    pod.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_vanished_worker_was_to_get_comes_back_uncounted() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let pod = tokio::spawn(Pod::new(door.space.clone(), PodSettings::default()).run(stop.clone()));
    // A poll that is given up while it waits takes nothing with it.
    let body = json!({"worker": "gone", "queues": ["q"], "slots": 1, "wait_ms": 30_000}).to_string();
    let request = door.ask(Method::POST, "/v1/poll").header("content-type", "application/json").body(body);
    let _ = tokio::time::timeout(Duration::from_millis(300), request.send()).await;
    let id = door.submit(json!({"queue": "q"})).await;
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let (_, answer) = door
                .post("/v1/poll", json!({"worker": "here", "queues": ["q"], "slots": 1, "wait_ms": 1_000}))
                .await;
            if let Some(task) = answer["tasks"].get(0) {
                return task.clone();
            }
        }
    });
    let task = waited.await.unwrap();
    assert_eq!((&task["id"], &task["attempt"]), (&json!(id), &json!(1)));
    stop.cancel();
    pod.await.unwrap().unwrap();
}
