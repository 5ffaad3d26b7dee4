use super::super::handler::Signal;
use super::super::handler::Stop;
use super::*;
use crate::model::{Bucket, ExecutionId, Grant, Minute, Nonce, Priority, QueueName, TaskId, UnixMs};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tokio::io::AsyncBufReadExt;

fn task(payload: impl Into<Bytes>) -> Task {
    let id = TaskId::new(Minute(29_408_521), Bucket::default(), 7);
    Task {
        id,
        execution_id: ExecutionId { id, grant: Grant::new(3, Nonce::new(9)) },
        queue: QueueName::new("push.sms").unwrap(),
        labels: Arc::default(),
        priority: Priority::P3,
        due: UnixMs(1_764_511_260_123),
        attempt: 2,
        key: None,
        placement: None,
        plan: None,
        deadline: None,
        timeout_ms: None,
        extras: Default::default(),
        payload: payload.into(),
    }
}

fn context() -> (Arc<Signal>, Context) {
    let signal = Arc::new(Signal::default());
    let context = Context { signal: Arc::clone(&signal), executor: "ex-1".into(), lag_ms: 0, time_out: None };
    (signal, context)
}

async fn sh(command: &str, payload: impl Into<Bytes>) -> HandlerResult {
    exec(command)(task(payload), context().1).await
}

#[tokio::test]
async fn the_exit_code_decides() {
    assert_eq!(sh("exit 0", "").await, Ok(()));
    assert_eq!(sh("echo why >&2; exit 3", "").await, Err(HandlerError::failed("exit code 3: why")));
    let later = sh("echo later >&2; exit 75", "").await.unwrap_err();
    assert_eq!((later.wait_ms(), later.message()), (Some((5_000, false)), "exit code 75: later"));
    let told = sh("echo busy >&2; echo 'retry-after: 90s' >&2; exit 75", "").await.unwrap_err();
    assert_eq!(told.wait_ms(), Some((90_000, false)));
    let counted = sh("echo 'retry-after: 2m' >&2; exit 1", "").await.unwrap_err();
    assert_eq!(
        (counted.wait_ms(), counted.message()),
        (Some((120_000, true)), "exit code 1: retry-after: 2m")
    );
    let never = sh("echo 'no such number' >&2; echo 'retry-after: 2m' >&2; exit 65", "").await.unwrap_err();
    assert!(never.is_fatal() && never.message().starts_with("exit code 65: no such number"));
    // What is no length of time is an error text like another.
    assert_eq!(
        sh("echo 'retry-after: soon' >&2; exit 1", "").await,
        Err(HandlerError::failed("exit code 1: retry-after: soon"))
    );
    assert_eq!(sh("kill -SEGV $$", "").await, Err(HandlerError::failed("ended by SIGSEGV")));
    assert_eq!(
        sh("no-such-program", "").await.unwrap_err().message().split(':').next(),
        Some("exit code 127")
    );
}

#[tokio::test]
async fn the_payload_is_its_input_and_the_task_its_environment() {
    let text = "printf '%s|%s|%s|%s|%s|' $MINUTEHAND_TASK_ID $MINUTEHAND_EXECUTION_ID $MINUTEHAND_QUEUE \
                $MINUTEHAND_ATTEMPT $MINUTEHAND_DUE >&2; cat >&2; exit 1";
    let error = sh(text, &b"\xffbytes"[..]).await.unwrap_err();
    let id = task("").id;
    let expected =
        format!("exit code 1: {id}|{id}.3.0000000009|push.sms|2|2025-11-30T14:01:00.123Z|\u{fffd}bytes");
    assert_eq!(error.message(), expected);
}

#[tokio::test]
async fn large_streams_are_bounded_and_never_block() {
    let megabyte = vec![b'x'; 1 << 20];
    // It reads nothing of a megabyte, and says a megabyte on both streams.
    assert_eq!(sh("true", megabyte.clone()).await, Ok(()));
    let noisy = "head -c 1000000 /dev/zero | tr '\\0' a >&2; head -c 1000000 /dev/zero; cat >/dev/null; echo end >&2; exit 1";
    let error = sh(noisy, megabyte).await.unwrap_err();
    assert_eq!(error.message().len(), 1_023 + "exit code 1: ".len(), "the end without its line break");
    assert!(error.message().ends_with("aaaend"));
}

#[tokio::test]
async fn a_command_that_leaves_a_child_behind_has_ended() {
    // The child keeps the pipes open for longer than this test may take.
    assert_eq!(sh("sleep 600 & exit 0", "").await, Ok(()));
}

/// Reads the process id that a command wrote into a pipe, without waiting for any time.
async fn with_fifo(
    command: &str,
) -> (tempdir::Dir, tokio::io::BufReader<tokio::net::unix::pipe::Receiver>, String) {
    let dir = tempdir::Dir::new();
    let path = dir.path.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let receiver = tokio::net::unix::pipe::OpenOptions::new().read_write(true).open_receiver(&path).unwrap();
    let command = command.replace("FIFO", path.to_str().unwrap());
    (dir, tokio::io::BufReader::new(receiver), command)
}

mod tempdir {
    pub struct Dir {
        pub path: std::path::PathBuf,
    }

    impl Dir {
        pub fn new() -> Self {
            let path = std::env::temp_dir().join(format!("minutehand-{}", uuid::Uuid::new_v4().simple()));
            std::fs::create_dir(&path).unwrap();
            Self { path }
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Whether a process is there and not only waiting to be reaped.
fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with(['Z', 'X']))
}

#[tokio::test]
async fn a_cancelled_command_ends_with_all_that_it_started() {
    let (_dir, mut fifo, command) = with_fifo("sleep 600 & echo $! > FIFO; wait").await;
    let (signal, context) = context();
    let running = tokio::spawn(exec(command)(task(""), context));
    let mut pid = String::new();
    fifo.read_line(&mut pid).await.unwrap();
    assert!(alive(pid.trim()));
    signal.fire(Stop::TimedOut);
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.message(), "stopped: timed out (ended by SIGTERM)");
    // The kernel delivers a signal before kill(2) returns at the latest when the process next runs.
    while alive(pid.trim()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_command_that_is_dropped_is_killed_even_if_it_will_not_stop() {
    let (_dir, mut fifo, command) =
        with_fifo("trap '' TERM; echo $$ > FIFO; while :; do sleep 600; done").await;
    let running = tokio::spawn(exec(command)(task(""), context().1));
    let mut pid = String::new();
    fifo.read_line(&mut pid).await.unwrap();
    running.abort();
    let _ = running.await;
    while alive(pid.trim()) {
        tokio::task::yield_now().await;
    }
}

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
    let call = async |path: &str| http(&format!("{server}{path}")).unwrap()(task("hello"), context().1).await;
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
    assert_eq!(call("/moved").await, Err(HandlerError::failed("302 Found")), "not followed");
    assert!(call("/nowhere").await.unwrap_err().is_fatal());
}

#[tokio::test]
async fn no_answer_is_a_failure_and_a_wish_to_stop_is_heard() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = http(&closed).unwrap()(task(""), context().1).await.unwrap_err();
    assert!(!error.is_fatal() && error.message().contains("refused"), "{error}");
    let server = server().await;
    let (signal, context) = context();
    signal.fire(Stop::Draining);
    let stopped = http(&format!("{server}/never")).unwrap()(task(""), context).await;
    assert_eq!(stopped, Err(HandlerError::failed("stopped: executor shuts down")));
    for wrong in ["", "nonsense", "ftp://host/", "http://"] {
        assert!(http(wrong).is_err(), "{wrong}");
    }
}
