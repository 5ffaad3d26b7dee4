//! Handlers for work that is done elsewhere: by a command, or nowhere.

use super::handler::{Context, HandlerError, HandlerFuture, HandlerResult, Task, tail};
use crate::limits;
use crate::model::slice::parse_duration_ms;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// `EX_TEMPFAIL` of sysexits.h: not now, try again later. Not counted as an attempt.
const EXIT_TEMPFAIL: i32 = 75;
/// `EX_DATAERR` of sysexits.h: the same input would fail again. Not tried again.
const EXIT_DATAERR: i32 = 65;
/// What the last line on standard error begins with that says when to try again.
const RETRY_AFTER_LINE: &str = "retry-after:";
/// How much later `EX_TEMPFAIL` means where nothing else is said.
const TEMPFAIL_WAIT_MS: i64 = 5_000;
/// From asking a command to stop until it is made to.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long output may still come after a command has ended: its children may have kept the pipes.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// A handler that does nothing: the task has succeeded. For tests and measurements.
pub fn discard() -> impl Fn(Task, Context) -> std::future::Ready<HandlerResult> + Send + Sync + 'static {
    |_, _| std::future::ready(Ok(()))
}

/// A handler that runs `command` by `sh -c`, with the payload on its standard input.
///
/// The environment has `MINUTEHAND_TASK_ID`, `_EXECUTION_ID`, `_QUEUE`, `_ATTEMPT` and `_DUE` (RFC
/// 3339). Exit code 0 is success; 75 (`EX_TEMPFAIL`) is tried again after 5 s and not counted; 65
/// (`EX_DATAERR`) is not tried again; any other, and a signal, is a failure whose text is the end of
/// the standard error. Where the last line of that reads `retry-after: 30s`, the task is tried again
/// then: not counted with 75, counted with any other code but 65. Standard output is read and thrown away. A command that is cancelled or times out gets SIGTERM and, 2 s later,
/// SIGKILL, with everything that it started in its process group.
pub fn exec(command: impl Into<String>) -> impl Fn(Task, Context) -> HandlerFuture + Send + Sync + 'static {
    let command: std::sync::Arc<str> = command.into().into();
    move |task, context| {
        let command = std::sync::Arc::clone(&command);
        Box::pin(async move { run_command(&command, task, context).await })
    }
}

/// Ends a whole process group when it goes out of scope.
struct Group {
    /// The group's number, until its leader was waited for: after that it may be somebody else's.
    id: Option<libc::pid_t>,
}

impl Group {
    fn of(child: &Child) -> Self {
        Self { id: child.id().and_then(|id| libc::pid_t::try_from(id).ok()) }
    }

    fn signal(&self, signal: libc::c_int) {
        if let Some(id) = self.id {
            // SAFETY: kill(2) has no memory effects. The group is the child's own (`process_group(0)`),
            // and its number cannot have been given out again: the child was not waited for yet.
            unsafe {
                libc::kill(-id, signal);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
    }
}

async fn run_command(command: &str, task: Task, context: Context) -> HandlerResult {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .env("MINUTEHAND_TASK_ID", task.id.as_str())
        .env("MINUTEHAND_EXECUTION_ID", task.execution_id.to_string())
        .env("MINUTEHAND_QUEUE", task.queue.as_str())
        .env("MINUTEHAND_ATTEMPT", task.attempt.to_string())
        .env("MINUTEHAND_DUE", task.due.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| HandlerError::failed(format!("could not start sh: {error}")))?;
    let mut group = Group::of(&child);

    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let payload = task.payload;
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command need not read its input: that it closed the pipe is no error.
            let _ = stdin.write_all(&payload).await;
            let _ = stdin.shutdown().await;
        }
    };
    let mut errors = Tail::default();
    let mut noise = Tail::default();
    let talk = async {
        tokio::join!(feed, errors.read(stderr), noise.read(stdout));
    };
    let mut told = false;
    let status = {
        tokio::pin!(talk);
        let mut talking = true;
        let status = loop {
            tokio::select! {
                biased;
                status = child.wait() => break status,
                () = &mut talk, if talking => talking = false,
                () = context.cancelled() => {
                    told = true;
                    group.signal(libc::SIGTERM);
                    let ended = tokio::time::timeout(TERM_GRACE, child.wait()).await;
                    if ended.is_err() {
                        group.signal(libc::SIGKILL);
                    }
                    break child.wait().await;
                }
            }
        };
        group.id = None;
        if talking {
            let _ = tokio::time::timeout(LAST_WORDS, talk).await;
        }
        status
    };
    match status {
        Ok(status) if told => {
            Err(HandlerError::failed(format!("{} ({})", stopped(&context), how_it_ended(status))))
        }
        Ok(status) => judge(status, errors.text()),
        Err(error) => Err(HandlerError::failed(format!("could not wait for the command: {error}"))),
    }
}

pub(super) fn stopped(context: &Context) -> HandlerError {
    HandlerError::failed(context.stop().map_or_else(|| "stopped".into(), |stop| format!("stopped: {stop}")))
}

fn judge(status: ExitStatus, errors: String) -> HandlerResult {
    let text = || {
        if errors.is_empty() { how_it_ended(status) } else { format!("{}: {errors}", how_it_ended(status)) }
    };
    let wait_ms = errors
        .lines()
        .next_back()
        .and_then(|line| line.trim().strip_prefix(RETRY_AFTER_LINE))
        .and_then(|time| parse_duration_ms("retry-after", time.trim()).ok());
    match (status.code(), wait_ms) {
        (Some(0), _) => Ok(()),
        (Some(EXIT_DATAERR), _) => Err(HandlerError::fatal(text())),
        (Some(EXIT_TEMPFAIL), wait) => {
            Err(HandlerError::retry_after(wait.unwrap_or(TEMPFAIL_WAIT_MS), false, text()))
        }
        (_, Some(wait)) => Err(HandlerError::retry_after(wait, true, text())),
        (_, None) => Err(HandlerError::failed(text())),
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("ended by {name}"),
            None => format!("ended by signal {signal}"),
        },
        (None, None) => "ended".into(),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

/// The end of a stream of any length, in bounded memory.
#[derive(Default)]
struct Tail {
    kept: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        let over = self.kept.len().saturating_sub(limits::ERROR_TAIL_MAX_BYTES);
        if over > 0 {
            self.kept.drain(..over);
        }
    }

    async fn read(&mut self, from: Option<impl AsyncRead + Unpin>) {
        let Some(mut from) = from else { return };
        let mut piece = [0; 4_096];
        while let Ok(count) = from.read(&mut piece).await {
            if count == 0 {
                return;
            }
            self.push(&piece[..count]);
        }
    }

    fn text(&self) -> String {
        tail(String::from_utf8_lossy(&self.kept).trim().to_owned())
    }
}

#[cfg(test)]
mod tests;
