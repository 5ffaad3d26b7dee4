//! Pods and executors as processes.

use crate::{DISPATCH_MS, LOCK_MS, LOG, NAMESPACE, WORKER};
use minutehand::dev::redis::spawn;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that is started again whenever it was killed.
pub struct Member {
    make: Box<dyn Fn() -> Command + Send>,
    child: Child,
}

impl Member {
    pub fn start(make: impl Fn() -> Command + Send + 'static) -> Self {
        let child = spawn(make()).unwrap();
        Self { make: Box::new(make), child }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: a plain system call on a child of this process that has not been waited for.
        unsafe { libc::kill(pid, signal) };
    }

    /// Starts it again if it has ended by itself, as a platform does: one that finds no Redis at its start gives up.
    pub fn revive(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            self.child = spawn((self.make)()).unwrap();
        }
    }

    /// Kills it for good.
    pub fn kill9(self) {}

    pub fn kill9_and_restart(&mut self) {
        self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = spawn((self.make)()).unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn pod(url: &str, log: &Path, number: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minutehand"));
    command.args(["serve", "--redis", url, "--namespace", NAMESPACE, "--listen", "127.0.0.1:0"]);
    for (key, value) in [
        ("POD__LOCK", &format!("{LOCK_MS}ms")[..]),
        ("POD__POLL", "300ms"),
        ("DEFAULTS__DISPATCH_TIMEOUT", &format!("{DISPATCH_MS}ms")[..]),
    ] {
        command.env(format!("MINUTEHAND__{key}"), value);
    }
    quiet(command, &log.join(format!("pod-{number}.log")))
}

pub fn worker(url: &str, log: &Path, number: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--nocapture"]);
    command.env(WORKER, url).env(LOG, log.join(format!("runs-{number}.txt")));
    quiet(command, &log.join(format!("worker-{number}.log")))
}

fn quiet(mut command: Command, log: &Path) -> Command {
    let file = File::options().create(true).append(true).open(log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    command
}

/// Freezes a process for longer than a permit and a lease, and lets it go on in the middle of everything.
pub fn freeze(member: &Member, rng: &mut fastrand::Rng) {
    member.signal(libc::SIGSTOP);
    let pid = libc::pid_t::try_from(member.child.id()).unwrap();
    let wait = Duration::from_millis(rng.u64(2_500..4_000));
    tokio::spawn(async move {
        tokio::time::sleep(wait).await;
        // SAFETY: a plain system call. Should the process have been killed meanwhile, going on harms nobody.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    });
}
