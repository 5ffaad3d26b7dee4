use super::super::handler::Signal;
use super::super::handler::Stop;
use super::*;
use crate::model::{Bucket, ExecutionId, Grant, Minute, Nonce, Priority, QueueName, TaskId, UnixMs};
use bytes::Bytes;
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
        lease_ms: None,
        timeout_ms: None,
        extras: Default::default(),
        payload: payload.into(),
    }
}

fn context() -> (Arc<Signal>, Context) {
    let trial = super::super::trial::Trial::new("push.sms").unwrap();
    (trial.signal(), trial.into_parts().1)
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
    let (_dir, mut fifo, command) = with_fifo("sleep 600 & echo $! > FIFO; exit 0").await;
    assert_eq!(sh(&command, "").await, Ok(()));
    let mut pid = String::new();
    fifo.read_line(&mut pid).await.unwrap();
    assert!(alive(pid.trim()), "its end is not ours to bring about");
    let child = pid.trim().parse().unwrap();
    // SAFETY: kill has no memory effects; the child was started by this test and sleeps.
    unsafe { libc::kill(child, libc::SIGKILL) };
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
