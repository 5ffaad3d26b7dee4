//! Subscriptions and outcomes over HTTP.

use super::*;

async fn put(door: &Door, path: &str, body: Value) -> (u16, Value) {
    let request = door.ask(Method::PUT, path).header("content-type", "application/json");
    told(request.body(body.to_string()).send().await.unwrap()).await
}

async fn delete(door: &Door, path: &str) -> (u16, Value) {
    told(door.ask(Method::DELETE, path).send().await.unwrap()).await
}

/// What a stream tells when it is read to its end: the data, and the last id.
async fn fetched(door: &Door, last: Option<&str>) -> (Vec<Value>, Option<String>) {
    let request = door.ask(Method::GET, "/v1/subscriptions/s/outcomes?once=true");
    let request = match last {
        Some(id) => request.header("last-event-id", id),
        None => request,
    };
    let answer = request.send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"text/event-stream".parse().unwrap())
    );
    let text = answer.text().await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let data = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let id = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().map(str::to_owned);
    (data, id)
}

#[tokio::test]
async fn subscriptions_are_made_shown_changed_and_taken_away() {
    let door = Door::open().await;
    assert_eq!(door.get("/v1/subscriptions").await, (200, json!({"subscriptions": []})));
    assert_eq!(problem(&door.get("/v1/subscriptions/s").await), (404, "not_found", ""));
    assert_eq!(problem(&delete(&door, "/v1/subscriptions/s").await), (404, "not_found", ""));
    for (name, body, field, code) in [
        ("a:b", json!({}), "name", "bad_name"),
        ("s", json!({"queue": "a b"}), "queue", "bad_name"),
        ("s", json!({"url": "mailto:me"}), "url", "invalid_type"),
        ("s", json!({"url": format!("http://{}", "x".repeat(2_048))}), "url", "too_long"),
        ("s", json!({"task": "x"}), "task", "invalid_type"),
        ("s", json!({"key": ""}), "key", "bad_name"),
        ("s", json!({"colour": 1}), "colour", "unknown"),
        ("s", json!({"version": -1}), "version", "invalid_type"),
    ] {
        let answer = put(&door, &format!("/v1/subscriptions/{name}"), body.clone()).await;
        assert_eq!(problem(&answer), (422, code, field), "{body}: {}", answer.1);
    }
    let (status, made) = put(&door, "/v1/subscriptions/s", json!({"queue": "mail", "version": 0})).await;
    assert_eq!(
        (status, &made["name"], &made["queue"], &made["by"]),
        (200, &json!("s"), &json!("mail"), &json!("http:127.0.0.1"))
    );
    let version = made["version"].as_u64().unwrap();
    let clash = put(&door, "/v1/subscriptions/s", json!({"queue": "other", "version": 0})).await;
    assert_eq!(problem(&clash), (409, "version", ""));
    let (status, changed) =
        put(&door, "/v1/subscriptions/s", json!({"queue": "other", "version": version})).await;
    assert!(status == 200 && changed["version"].as_u64().unwrap() > version, "{changed}");
    let (_, shown) = door.get("/v1/subscriptions/s").await;
    assert_eq!(
        (&shown["queue"], &shown["waiting"], &shown["missed"]),
        (&json!("other"), &json!(0), &json!(0))
    );
    let answer = door.post("/v1/subscriptions/s/confirm", json!({"place": "x"})).await;
    assert_eq!(problem(&answer), (422, "invalid_type", "place"));
    assert_eq!(delete(&door, "/v1/subscriptions/s").await, (200, json!({"removed": "s"})));
    let wrong = door.post("/v1/tasks", json!({"queue": "q", "notify": "s"})).await;
    assert_eq!(problem(&wrong), (422, "unknown", "notify"));
}

#[tokio::test]
async fn outcomes_are_fetched_and_confirmed() {
    let door = Door::open().await;
    put(&door, "/v1/subscriptions/s", json!({})).await;
    let first = door.submit(json!({"queue": "q", "in_ms": 60_000, "key": "k", "notify": "s"})).await;
    let second = door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
    let (status, _) = told(
        door.ask(Method::PATCH, &format!("/v1/tasks/{second}"))
            .header("content-type", "application/json")
            .body(r#"{"notify":"s"}"#)
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, 200);
    let third = door.submit(json!({"queue": "q", "in_ms": 60_000})).await;
    for id in [&first, &second, &third] {
        door.post(&format!("/v1/tasks/{id}/cancel"), json!({"cause": "no more"})).await;
    }
    let (outcomes, place) = fetched(&door, None).await;
    let mut seen: Vec<_> = outcomes.iter().map(|o| o["task"].as_str().unwrap().to_owned()).collect();
    seen.sort();
    let mut wanted = vec![first.clone(), second.clone()];
    wanted.sort();
    assert_eq!(seen, wanted);
    let one = outcomes.iter().find(|outcome| outcome["task"] == json!(first)).unwrap();
    assert_eq!(
        (&one["state"], &one["queue"], &one["key"], &one["reason"], &one["attempt"]),
        (&json!("cancelled"), &json!("q"), &json!("k"), &json!("no more"), &json!(0))
    );
    let (_, shown) = door.get("/v1/subscriptions/s").await;
    assert_eq!(shown["waiting"], json!(2));
    // Not confirmed: once more, under the same names. Then confirmed, by the header and by the route.
    let mut again = fetched(&door, None).await.0;
    again.sort_by_key(|outcome| outcome["delivery"].to_string());
    let mut before = outcomes.clone();
    before.sort_by_key(|outcome| outcome["delivery"].to_string());
    assert_eq!(again, before);
    let place = place.unwrap();
    assert_eq!(fetched(&door, Some(&place)).await.0, Vec::<Value>::new());
    assert_eq!(door.get("/v1/subscriptions/s").await.1["waiting"], json!(0));
    let fourth = door.submit(json!({"queue": "q", "in_ms": 60_000, "notify": "s"})).await;
    door.post(&format!("/v1/tasks/{fourth}/cancel"), json!({})).await;
    let (outcomes, place) = fetched(&door, None).await;
    assert_eq!((outcomes.len(), &outcomes[0]["task"]), (1, &json!(fourth)));
    let (status, _) = door.post("/v1/subscriptions/s/confirm", json!({"place": place})).await;
    assert_eq!((status, fetched(&door, None).await.0), (200, Vec::new()));
    // One that is sent to an address is not fetched.
    put(&door, "/v1/subscriptions/web", json!({"url": "http://127.0.0.1:1/"})).await;
    let answer = door.get("/v1/subscriptions/web/outcomes").await;
    assert_eq!(problem(&answer), (422, "invalid_type", "subscription"));
}

#[tokio::test]
async fn a_token_hears_of_its_own_queues_only() {
    let door = Door::with(Access::Tokens).await;
    let client = Client::new(door.space.clone());
    let token = async |name: &str, role: &str, queues: &[&str]| {
        let new = NewToken {
            name: name.to_owned(),
            roles: vec![role.parse().unwrap()],
            queues: queues.iter().map(|queue| queue.parse().unwrap()).collect(),
            expires_after_ms: None,
        };
        client.token_create(new, "test").await.unwrap().0.to_string()
    };
    let mail = token("m", "submit", &["mail"]).await;
    let all = token("a", "submit", &[]).await;
    let read = token("r", "read", &[]).await;
    let work = token("w", "work", &[]).await;
    let ask = async |method: Method, path: &str, token: &str, body: &str| {
        let request = door.ask(method, path).header("content-type", "application/json");
        told(request.bearer_auth(token).body(body.to_owned()).send().await.unwrap()).await
    };
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while ask(Method::GET, "/v1/subscriptions", &work, "").await.0 != 403 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    heard.await.unwrap();
    for (path, body, statuses) in [
        ("/v1/subscriptions/m", r#"{"queue":"mail"}"#, [200, 200, 403, 403]),
        ("/v1/subscriptions/o", r#"{"queue":"other"}"#, [403, 200, 403, 403]),
        ("/v1/subscriptions/e", r#"{"plan":"sale"}"#, [403, 200, 403, 403]),
        // What is another's is not taken over.
        ("/v1/subscriptions/o", r#"{"queue":"mail"}"#, [403, 200, 403, 403]),
    ] {
        for (token, status) in [&mail, &all, &read, &work].into_iter().zip(statuses) {
            assert_eq!(ask(Method::PUT, path, token, body).await.0, status, "{path} {body}");
        }
    }
    let names = async |token: &str| {
        let (_, list) = ask(Method::GET, "/v1/subscriptions", token, "").await;
        list["subscriptions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&read).await, ["e", "m", "o"]);
    assert_eq!(names(&mail).await, ["m", "o"], "o is for mail by now");
    assert_eq!(ask(Method::GET, "/v1/subscriptions/e/outcomes?once=true", &mail, "").await.0, 403);
    assert_eq!(ask(Method::DELETE, "/v1/subscriptions/e", &mail, "").await.0, 403);
    assert_eq!(ask(Method::DELETE, "/v1/subscriptions/m", &read, "").await.0, 403);
    assert_eq!(ask(Method::DELETE, "/v1/subscriptions/m", &mail, "").await.0, 200);
}
