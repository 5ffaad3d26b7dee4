//! Tasks edited, executors drained, the spread told.

use super::*;

async fn patch(door: &Door, path: &str, body: Value) -> (u16, Value) {
    let request = door.ask(Method::PATCH, path).header("content-type", "application/json");
    told(request.body(body.to_string()).send().await.unwrap()).await
}

#[tokio::test]
async fn a_task_is_edited_and_a_wrong_edit_changes_nothing() {
    let door = Door::open().await;
    let id = door.submit(json!({"queue": "mail", "in_ms": 3_600_000, "payload": "old", "retries": 1})).await;
    let path = format!("/v1/tasks/{id}");
    let seen = async || {
        let (_, task) = door.get(&path).await;
        (task["payload"].clone(), task["retries"].clone())
    };
    for (body, status, code, field) in [
        (json!({}), 422, "missing", "body"),
        (json!({"payload": "a", "payload_base64": "YQ=="}), 422, "invalid_type", "payload_base64"),
        (json!({"payload_base64": "?"}), 422, "invalid_type", "payload_base64"),
        (json!({"retries": -1}), 422, "out_of_range", "retries"),
        (json!({"retries": 255}), 422, "out_of_range", "retries"),
        (json!({"retries": "5"}), 422, "invalid_type", "retries"),
        (json!({"backoff": "soon"}), 422, "invalid_type", "backoff"),
        (json!({"timeout_ms": -1}), 422, "out_of_range", "timeout_ms"),
        (json!({"lease_ms": 10}), 422, "out_of_range", "lease_ms"),
        (json!({"start_within_ms": -1}), 422, "out_of_range", "start_within_ms"),
        (json!({"expire_after_ms": i64::MIN}), 422, "out_of_range", "expire_after_ms"),
        (json!({"payload": "x", "execution_id": "x"}), 422, "invalid_type", "execution_id"),
        (json!({"payload": "x", "execution_id": format!("{id}.1.b73a057faa")}), 409, "wrong_state", ""),
        (json!({"queue": "other"}), 422, "unknown", "queue"),
    ] {
        let answer = patch(&door, &path, body.clone()).await;
        assert_eq!(problem(&answer), (status, code, field), "{body}: {}", answer.1);
        assert_eq!(seen().await, (json!("old"), json!(1)), "{body}");
    }
    let edit = json!({"payload": "new", "retries": 7, "backoff": "fixed:200ms", "expire_after_ms": 60_000});
    let (status, done) = patch(&door, &path, edit.clone()).await;
    assert_eq!((status, &done), (200, &json!({"id": id, "state": "pending", "changed": true})));
    assert_eq!(seen().await, (json!("new"), json!(7)));
    let (_, again) = patch(&door, &path, edit).await;
    assert_eq!(again["changed"], json!(false));
    let (_, trace) = door.get(&format!("{path}/trace")).await;
    assert_eq!(
        (&trace["events"][1]["event"], &trace["events"][1]["executor"]),
        (&json!("edited"), &json!("http:127.0.0.1"))
    );

    door.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(problem(&patch(&door, &path, json!({"retries": 3})).await), (409, "wrong_state", ""));
    let other = door.submit(json!({"queue": "mail", "in_ms": 3_600_000})).await;
    let wrong = format!("{other}.1.b73a057faa");
    let answer = patch(&door, &format!("/v1/tasks/{id}"), json!({"retries": 3, "execution_id": wrong})).await;
    assert_eq!(problem(&answer), (422, "out_of_range", "execution_id"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_shown_drained_and_resumed() {
    let door = Door::open().await;
    let stop = CancellationToken::new();
    let end = stop.clone().drop_guard();
    let executor = Executor::builder(door.space.clone()).name("ex").handle("q", |_, _| async { Ok(()) });
    let executor = tokio::spawn(executor.build().unwrap().run(stop.clone()));
    let found = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            let (_, all) = door.get("/v1/executors").await;
            if let Some(one) = all["executors"].get(0) {
                return one.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let found = found.await.unwrap();
    let path = format!("/v1/executors/{}", found["id"].as_str().unwrap());
    assert_eq!((&found["name"], &found["state"]), (&json!("ex"), &json!("live")));
    let (status, done) = door.post(&format!("{path}/drain"), json!({})).await;
    assert_eq!((status, &done["changed"], &done["handed_back"]), (200, &json!(true), &json!(0)));
    let (status, shown) = door.get(&path).await;
    assert_eq!((status, &shown["state"], &shown["name"]), (200, &json!("drained"), &json!("ex")));
    assert!(shown["pools"]["normal"].as_u64().unwrap() > 0, "{shown}");
    assert_eq!(door.post(&format!("{path}/drain"), json!({})).await.1["changed"], json!(false));
    assert_eq!(door.post(&format!("{path}/resume"), json!({})).await.1["changed"], json!(true));
    assert_eq!(door.get(&path).await.1["state"], json!("live"));
    for (method, what) in [(Method::GET, ""), (Method::POST, "/drain"), (Method::POST, "/resume")] {
        let answer =
            told(door.ask(method, &format!("/v1/executors/nobody{what}")).send().await.unwrap()).await;
        assert_eq!(problem(&answer), (404, "not_found", ""));
    }
    drop(end);
    executor.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_spread_is_told_whole() {
    let door = Door::open().await;
    let (status, spread) = door.get("/v1/spread").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&spread["buckets"], &spread["key_buckets"], &spread["peak"]),
        (&json!(8), &json!(8), &json!(8))
    );
    assert_eq!((&spread["closing"], &spread["wanted_pods"]), (&json!([]), &Value::Null));
    assert_eq!(spread["bounds"], json!({"min": null, "max": null, "pin": null, "manual": false}));
    assert_eq!((&spread["floor"], &spread["ceiling"]), (&json!(8), &json!(1_024)));
}

#[tokio::test]
async fn who_may_steer_is_asked_for() {
    let door = Door::with(Access::Tokens).await;
    let client = Client::new(door.space.clone());
    let token = async |role: &str, queues: &[&str]| {
        let new = NewToken {
            name: role.to_owned(),
            roles: vec![role.parse().unwrap()],
            queues: queues.iter().map(|queue| queue.parse().unwrap()).collect(),
            expires_after_ms: None,
        };
        client.token_create(new, "test").await.unwrap().0.to_string()
    };
    let tokens = [
        token("submit", &["mail"]).await,
        token("work", &[]).await,
        token("read", &[]).await,
        token("operate", &[]).await,
    ];
    let queue = |name: &str| NewTask {
        due: minutehand::client::Due::In(60_000),
        ..NewTask::to(QueueName::new(name).unwrap())
    };
    let own = client.submit(queue("mail")).await.unwrap().id;
    let other = client.submit(queue("other")).await.unwrap().id;
    let ask = async |method: &Method, path: &str, token: &str, body: &str| {
        let request = door.ask(method.clone(), path).header("content-type", "application/json");
        request.bearer_auth(token).body(body.to_owned()).send().await.unwrap().status().as_u16()
    };
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while ask(&Method::GET, "/v1/spread", &tokens[3], "").await != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    heard.await.unwrap();
    let edit = r#"{"retries":3}"#;
    for (method, path, body, statuses) in [
        (Method::PATCH, format!("/v1/tasks/{own}"), edit, [200, 403, 403, 200]),
        (Method::PATCH, format!("/v1/tasks/{other}"), edit, [403, 403, 403, 200]),
        (Method::GET, "/v1/executors/x".to_owned(), "", [403, 403, 404, 404]),
        (Method::POST, "/v1/executors/x/drain".to_owned(), "", [403, 403, 403, 404]),
        (Method::POST, "/v1/executors/x/resume".to_owned(), "", [403, 403, 403, 404]),
        (Method::POST, "/v1/progress".to_owned(), r#"{"worker":"w","executions":[]}"#, [403, 200, 403, 403]),
    ] {
        for (token, status) in tokens.iter().zip(statuses) {
            assert_eq!(ask(&method, &path, token, body).await, status, "{method} {path}");
        }
    }
}
