use super::super::handler::{Signal, Stop};
use super::super::trial::Trial;
use super::*;
use crate::webhook::{Allowed, Key, Keys};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// A server that answers with what its path asks for, and the headers and body it was sent.
async fn server() -> String {
    use axum::routing::post;
    let echo = |headers: HeaderMap, body: Bytes| async move {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
        let names = ["idempotency-key", "x-minutehand-task-id", "x-minutehand-queue", "x-minutehand-attempt"];
        let seen: Vec<_> = names.iter().map(|name| text(name)).collect();
        (StatusCode::BAD_REQUEST, format!("{} {}", seen.join(" "), String::from_utf8_lossy(&body)))
    };
    let date = [("date", "Wed, 21 Oct 2015 07:28:00 GMT"), ("retry-after", "Wed, 21 Oct 2015 07:28:42 GMT")];
    let router = axum::Router::new()
        .route("/ok", post(|| async { StatusCode::NO_CONTENT }))
        .route("/echo", post(echo))
        .route(
            "/busy",
            post(|| async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "slow down") }),
        )
        .route("/date", post(move || async move { (StatusCode::BAD_GATEWAY, date, "") }))
        .route("/down", post(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "x".repeat(100_000)) }))
        .route("/moved", post(|| async { (StatusCode::FOUND, [("location", "/ok")], "") }))
        .route("/never", post(|| async { std::future::pending::<()>().await }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

#[tokio::test]
async fn the_status_decides() {
    let server = server().await;
    let call = async |path: &str| {
        http(&format!("{server}{path}")).unwrap().deliver(task("hello"), context().1).await
    };
    assert_eq!(call("/ok").await, Ok(()));
    let refused = call("/echo").await.unwrap_err();
    let id = task("").id;
    let expected = format!("400 Bad Request: {id}.3.0000000009 {id} push.sms 2 hello");
    assert_eq!((refused.message(), refused.is_fatal()), (expected.as_str(), true));
    let busy = call("/busy").await.unwrap_err();
    assert_eq!((busy.wait_ms(), busy.message()), (Some((7_000, false)), "429 Too Many Requests: slow down"));
    assert_eq!(call("/date").await.unwrap_err().wait_ms(), Some((42_000, true)), "by the server's own clock");
    let down = call("/down").await.unwrap_err();
    assert!(!down.is_fatal() && down.wait_ms().is_none() && down.message().len() < 1_100);
    assert_eq!(call("/moved").await, Err(HandlerError::fatal("302 Found")), "not followed");
    assert!(call("/nowhere").await.unwrap_err().is_fatal());
}

#[tokio::test]
async fn no_answer_is_a_failure_and_a_wish_to_stop_is_heard() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = http(&closed).unwrap().deliver(task(""), context().1).await.unwrap_err();
    assert!(!error.is_fatal() && error.message().contains("refused"), "{error}");
    let server = server().await;
    let (signal, context) = context();
    signal.fire(Stop::Draining);
    let stopped = http(&format!("{server}/never")).unwrap().deliver(task(""), context).await;
    assert_eq!(stopped, Err(HandlerError::failed("stopped: executor shuts down")));
    for wrong in ["", "nonsense", "ftp://host/", "http://"] {
        assert!(http(wrong).is_err(), "{wrong}");
    }
}

fn settings(url: &str) -> WebhookSettings {
    let sender = SenderSettings {
        allowed: Allowed::All,
        timeout: Duration::from_millis(500),
        ..SenderSettings::default()
    };
    WebhookSettings { sender, url: Some(url.to_owned()), ..WebhookSettings::default() }
}

/// What a receiver saw: headers and body.
type Seen = mpsc::UnboundedReceiver<(HeaderMap, Bytes)>;

/// A receiver that keeps what it gets and answers this.
async fn receiver(
    answer: impl Fn(&Bytes) -> (StatusCode, String) + Clone + Send + Sync + 'static,
) -> (String, Seen) {
    let (tell, told) = mpsc::unbounded_channel();
    let take = |State(tell): State<mpsc::UnboundedSender<(HeaderMap, Bytes)>>,
                headers: HeaderMap,
                body: Bytes| async move {
        let said = answer(&body);
        let _ = tell.send((headers, body));
        said
    };
    let router = axum::Router::new().route("/", axum::routing::post(take)).with_state(tell);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/"), told)
}

#[tokio::test]
async fn calls_are_signed_with_every_key_and_named_by_their_execution() {
    let (url, mut seen) = receiver(|_| (StatusCode::OK, String::new())).await;
    let keys = Keys::new([Key::new(&[1; 32]).unwrap(), Key::new(&[2; 32]).unwrap()]).unwrap();
    let mut signed = settings(&url);
    signed.sender.keys = keys;
    let webhook = Webhook::new(signed).unwrap();
    webhook.deliver(task("hello"), context().1).await.unwrap();
    let (headers, body) = seen.recv().await.unwrap();
    let text = |name: &str| headers[name].to_str().unwrap();
    assert_eq!(text("webhook-id"), task("").execution_id.to_string());
    assert_eq!(text("idempotency-key"), text("webhook-id"));
    let at: i64 = text("webhook-timestamp").parse().unwrap();
    let old = Keys::new([Key::new(&[2; 32]).unwrap()]).unwrap();
    let verify =
        |body: &[u8]| old.verify(text("webhook-id"), at, body, text("webhook-signature"), at + 9, 300);
    assert!(verify(&body) && !verify(b"hullo"));
}

#[tokio::test]
async fn several_tasks_go_in_one_call_and_each_has_its_own_outcome() {
    let (url, mut seen) = receiver(|body| {
        let sent: serde_json::Value = serde_json::from_slice(body).unwrap();
        let results: Vec<_> = sent["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|task| {
                let (id, payload) = (&task["execution_id"], task["payload"].as_str()?);
                Some(match payload {
                    "fail" => {
                        json!({ "execution_id": id, "status": "failed", "error": "no", "retry_after_ms": 7 })
                    }
                    "dead" => json!({ "execution_id": id, "status": "dead", "error": "never" }),
                    "later" => json!({ "execution_id": id, "status": "later" }),
                    _ => return None,
                })
            })
            .collect();
        (StatusCode::OK, json!({ "results": results }).to_string())
    })
    .await;
    let webhook = Webhook::new(WebhookSettings { batch: 5, ..settings(&url) }).unwrap();
    let payloads: [&[u8]; 5] = [b"ok", b"fail", b"dead", b"later", b"\xff\xfe"];
    let calls = payloads.into_iter().enumerate().map(|(n, payload)| {
        let mut task = task(payload);
        task.execution_id.grant = crate::model::Grant::new(3, crate::model::Nonce::new(n as u64));
        webhook.deliver(task, context().1)
    });
    let mut running = tokio::task::JoinSet::new();
    for (n, call) in calls.enumerate() {
        running.spawn(async move { (n, call.await) });
    }
    let mut results: Vec<_> = running.join_all().await;
    results.sort_by_key(|(n, _)| *n);
    let results: Vec<_> = results.into_iter().map(|(_, result)| result).collect();
    assert_eq!(results[0], Ok(()));
    assert_eq!(results[1], Err(HandlerError::retry_after(7, true, "no")));
    assert_eq!(results[2], Err(HandlerError::fatal("never")));
    assert!(results[3].as_ref().unwrap_err().is_reported_later());
    assert_eq!(results[4], Ok(()));
    let (headers, body) = seen.recv().await.unwrap();
    assert_eq!(headers["x-minutehand-tasks"], "5");
    assert!(String::from_utf8_lossy(&body).contains(r#""payload_base64":"//4=""#), "{body:?}");
    assert!(seen.try_recv().is_err(), "one call");
}

#[tokio::test]
async fn a_few_tasks_do_not_wait_for_more() {
    let (url, mut seen) = receiver(|_| (StatusCode::INTERNAL_SERVER_ERROR, "down".into())).await;
    let webhook = Webhook::new(WebhookSettings { batch: 100, ..settings(&url) }).unwrap();
    let result = webhook.deliver(task("a"), context().1).await;
    assert_eq!(result, Err(HandlerError::failed("500 Internal Server Error: down")));
    assert!(seen.recv().await.is_some());
}

#[tokio::test]
async fn what_a_server_does_wrong_is_a_failure_and_no_more() {
    // One that never answers, one that resets, and one that breaks off in the middle.
    for (what, expected) in [("silent", "timed out"), ("reset", ""), ("half", "")] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut some = [0; 64];
            let _ = stream.read(&mut some).await;
            match what {
                "silent" => std::future::pending::<()>().await,
                // Unread data in the buffer makes the kernel reset the connection.
                "reset" => drop(stream),
                _ => {
                    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
                    stream.write_all(half).await.unwrap();
                    stream.shutdown().await.unwrap();
                }
            }
        });
        let webhook = Webhook::new(settings(&url)).unwrap();
        let begin = crate::clock::mono();
        let error = webhook.deliver(task("x".repeat(100_000)), context().1).await.unwrap_err();
        assert!(!error.is_fatal() && error.wait_ms().is_none(), "{what}: {error}");
        assert!(error.message().contains(expected), "{what}: {error}");
        assert!(begin.elapsed() < Duration::from_secs(5));
        server.abort();
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut some = [0; 1_024];
        let _ = stream.read(&mut some).await;
        let head = b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let chunk = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
        while stream.write_all(&chunk).await.is_ok() {}
    });
    let webhook = Webhook::new(settings(&url)).unwrap();
    let error = webhook.deliver(task("a"), context().1).await.unwrap_err();
    assert!(error.is_fatal() && error.message().len() < 1_100, "{error}");
}

#[tokio::test]
async fn no_address_leads_inside() {
    let (inner, mut seen) = receiver(|_| (StatusCode::OK, String::new())).await;
    let port = inner.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let fenced = SenderSettings { allowed: Allowed::default(), ..settings("").sender };
    let only = |url: Option<String>, sender: &SenderSettings| {
        Webhook::new(WebhookSettings { sender: sender.clone(), url, ..WebhookSettings::default() })
    };
    let own = |url: String| {
        let mut task = task("a");
        task.extras.url = Some(url);
        task
    };
    let webhook = only(None, &fenced).unwrap();
    // Written as such, in other dresses, and by name: `localhost` is looked up, and then refused.
    for host in ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0", "localhost"] {
        let error = webhook.deliver(own(format!("http://{host}:{port}/")), context().1).await.unwrap_err();
        assert!(error.is_fatal() && error.message().contains("inner address"), "{host}: {error}");
    }
    for wrong in ["file:///etc/passwd", "gopher://x/", "http://", "nonsense"] {
        assert!(webhook.deliver(own(wrong.into()), context().1).await.unwrap_err().is_fatal(), "{wrong}");
    }
    assert!(only(Some(inner.clone()), &fenced).is_err(), "an executor's own address is checked at once");

    // A redirect from an allowed server to one that is not.
    let target = inner.clone().replace("127.0.0.1", "localhost");
    let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let allowed = listener.local_addr().unwrap();
    let moved =
        axum::routing::post(
            move || async move { (StatusCode::TEMPORARY_REDIRECT, [("location", target)], "") },
        );
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().route("/", moved)).await });
    let from_here = format!("http://{allowed}/");
    for redirects in [0, 3] {
        let sender =
            SenderSettings { allowed: Allowed::read("127.0.0.2").unwrap(), redirects, ..settings("").sender };
        let webhook = only(None, &sender).unwrap();
        let error = webhook.deliver(own(from_here.clone()), context().1).await.unwrap_err();
        assert!(error.is_fatal(), "{redirects}: {error}");
    }
    assert!(seen.try_recv().is_err(), "nothing has arrived inside");
    // The same, where the inner network is allowed.
    let sender = SenderSettings {
        allowed: Allowed::read("127.0.0.0/8,::1").unwrap(),
        redirects: 3,
        ..settings("").sender
    };
    only(None, &sender).unwrap().deliver(own(from_here), context().1).await.unwrap();
    assert!(seen.recv().await.is_some());
}

#[tokio::test]
async fn one_host_gets_only_so_many_calls_at_a_time() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let slow = {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        move || async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(100)).await;
            now.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/", axum::routing::post(slow));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut few = settings(&url);
    few.sender.per_host = 2;
    few.sender.timeout = Duration::from_secs(5);
    let webhook = Webhook::new(few).unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..9 {
        calls.spawn(webhook.deliver(task("a"), context().1));
    }
    let results = calls.join_all().await;
    let done = results.iter().filter(|result| result.is_ok()).count();
    let busy = results.iter().filter_map(|result| result.as_ref().err());
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert!((2..9).contains(&done), "{done} went through");
    for error in busy {
        assert_eq!(error.wait_ms(), Some((BUSY_WAIT_MS, false)), "{error}");
    }
}

fn task(payload: impl Into<Bytes>) -> Task {
    use crate::model::{Bucket, ExecutionId, Grant, Minute, Nonce, TaskId};
    let id = TaskId::new(Minute(29_408_521), Bucket::default(), 7);
    let mut task = Trial::new("push.sms").unwrap().payload(payload).into_parts().0;
    (task.id, task.execution_id, task.attempt) =
        (id, ExecutionId { id, grant: Grant::new(3, Nonce::new(9)) }, 2);
    task
}

fn context() -> (Arc<Signal>, Context) {
    let trial = Trial::new("push.sms").unwrap();
    (trial.signal(), trial.into_parts().1)
}
