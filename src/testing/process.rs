//! The program itself as child processes: started, listened to, and killed by their number.
//!
//! A child dies with the test that started it. What it said is kept, and shown when the test fails.

use crate::clock::mono;
use crate::dev::redis::spawn;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at something that cannot be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long a command that ends by itself may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Lines of a process that are shown when a test fails.
const LINES_SHOWN: usize = 60;

/// The program with the settings of a test; nothing of the caller's own environment reaches it.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    env: Vec<(String, String)>,
    dir: Option<PathBuf>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit code; nothing where a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub out: String,
    /// What it said on stderr.
    pub err: String,
}

impl Ended {
    /// What it printed, as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The error that it printed as JSON.
    pub fn error(&self) -> Value {
        let last = self.err.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error} in {self:?}"));
        value["error"].clone()
    }
}

impl Program {
    /// The program at `path`, with the Redis of `url` and a namespace.
    pub fn new(path: impl Into<PathBuf>, url: &str, namespace: &str) -> Self {
        Self::bare(path).env("MINUTEHAND_REDIS", url).env("MINUTEHAND_NAMESPACE", namespace)
    }

    /// The program at `path`, without anything set.
    pub fn bare(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), env: Vec::new(), dir: None }
    }

    /// The same with a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.to_owned(), value.as_ref().to_string_lossy().into_owned()));
        self
    }

    /// The same with a setting, such as `pod.lock`.
    #[must_use]
    pub fn set(self, key: &str, value: &str) -> Self {
        self.env(&format!("MINUTEHAND__{}", key.replace('.', "__").to_uppercase()), value)
    }

    /// The same in another working directory.
    #[must_use]
    pub fn in_dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        for (name, _) in std::env::vars_os() {
            // The server that the tests run on stays the one that `dev` runs on.
            if name.to_string_lossy().starts_with("MINUTEHAND") && name != crate::dev::redis::SERVER_VARIABLE
            {
                command.env_remove(name);
            }
        }
        command.args(words).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, words: &[&str]) -> Ended {
        self.run_with(words, b"")
    }

    /// Runs a command to its end with something to read.
    pub fn run_with(&self, words: &[&str], stdin: &[u8]) -> Ended {
        let running = self.start("command", words);
        let mut pipe = running.stdin();
        let stdin = stdin.to_vec();
        // It may end without having read all; that is its business.
        let feed = std::thread::spawn(move || pipe.write_all(&stdin));
        let code = running.wait(COMMAND_LIMIT);
        let _ = feed.join();
        Ended { code, out: running.out(), err: running.err() }
    }

    /// The JSON that a command prints; it must end well.
    pub fn json(&self, words: &[&str]) -> Value {
        let ended = self.run(&[words, &["--output", "json"]].concat());
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        ended.json()
    }

    /// Starts a command that runs until it is told to stop.
    pub fn start(&self, name: &str, words: &[&str]) -> Running {
        let mut child =
            spawn(self.command(words)).unwrap_or_else(|error| panic!("could not start {name}: {error}"));
        let heard = Arc::new(Heard::default());
        let listeners = [
            listen(child.stdout.take(), &heard, |said| &mut said.out),
            listen(child.stderr.take(), &heard, |said| &mut said.err),
        ];
        let stdin = Mutex::new(child.stdin.take());
        let name = format!("{name} ({})", words.join(" "));
        Running { name, child: Mutex::new(child), stdin, heard, listeners: Mutex::new(Some(listeners)) }
    }
}

#[derive(Debug, Default)]
struct Said {
    out: String,
    err: String,
}

#[derive(Debug, Default)]
struct Heard {
    said: Mutex<Said>,
    more: Condvar,
}

fn listen(
    pipe: Option<impl Read + Send + 'static>,
    heard: &Arc<Heard>,
    which: fn(&mut Said) -> &mut String,
) -> std::thread::JoinHandle<()> {
    let heard = Arc::clone(heard);
    std::thread::spawn(move || {
        let Some(pipe) = pipe else { return };
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            which(&mut heard.said.lock()).push_str(&String::from_utf8_lossy(&line));
            heard.more.notify_all();
            line.clear();
        }
    })
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Mutex<Child>,
    stdin: Mutex<Option<ChildStdin>>,
    heard: Arc<Heard>,
    listeners: Mutex<Option<[std::thread::JoinHandle<()>; 2]>>,
}

impl Running {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    /// Its stdin; closed when dropped.
    pub fn stdin(&self) -> ChildStdin {
        self.stdin.lock().take().expect("its stdin was taken before")
    }

    /// Ends it without a chance to do anything.
    pub fn kill9(&self) {
        let mut child = self.child.lock();
        // Both fail only if it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) {
        let mut child = self.child.lock();
        if let (Ok(None), Ok(pid)) = (child.try_wait(), libc::pid_t::try_from(child.id())) {
            // SAFETY: kill has no memory effects; the child has not been waited for, so the number is its own.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        matches!(self.child.lock().try_wait(), Ok(None))
    }

    /// Waits for its end and gives its exit code; it must come in time.
    pub fn wait(&self, limit: Duration) -> Option<i32> {
        let status = until("its end", limit, || self.child.lock().try_wait().ok().flatten());
        // What it said last is in the pipes; a grandchild that holds them open is not waited for.
        if let Some(listeners) = self.listeners.lock().take() {
            let deadline = mono() + Duration::from_secs(2);
            while mono() < deadline && !listeners.iter().all(std::thread::JoinHandle::is_finished) {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        status.code()
    }

    /// Asks it to stop and waits for its end.
    pub fn stop(&self, limit: Duration) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.wait(limit)
    }

    /// Waits until it has said something, on either pipe; answers that line.
    pub fn until_said(&self, text: &str, limit: Duration) -> String {
        let deadline = mono() + limit;
        let mut said = self.heard.said.lock();
        loop {
            let found = said.out.lines().chain(said.err.lines()).find(|line| line.contains(text));
            if let Some(line) = found {
                return line.to_owned();
            }
            if self.heard.more.wait_until(&mut said, deadline).timed_out() {
                drop(said);
                panic!("{} did not say {text:?}:\n{}", self.name, self.log());
            }
        }
    }

    /// What it has printed.
    pub fn out(&self) -> String {
        self.heard.said.lock().out.clone()
    }

    /// What it has said on stderr.
    pub fn err(&self) -> String {
        self.heard.said.lock().err.clone()
    }

    /// The end of what it said, for people.
    pub fn log(&self) -> String {
        let said = self.heard.said.lock();
        let lines: Vec<&str> = said.out.lines().chain(said.err.lines()).collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("---- {} said:\n{}", self.name, self.log());
        }
    }
}

/// Looks again and again until there is an answer; it must come in time.
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start: Instant = mono();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(mono().saturating_duration_since(start) < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
