//! Executors that are killed, with a journal: real processes, kill -9.

use minutehand::client::{Client, NewTask};
use minutehand::model::{QueueName, Retry, State, TaskId};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::{Space, check, member, read};
use minutehand::testing::bed::{Bed, until};
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use minutehand::testing::snapshot::{Held, snapshot};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing here may take this long; it is less than a lease.
const NEVER: Duration = Duration::from_secs(25);

/// A pod, and a directory for journals and for what handlers leave.
struct Town {
    bed: Bed,
    space: Space,
    dir: PathBuf,
    stop: CancellationToken,
    pod: Option<JoinHandle<()>>,
}

impl Drop for Town {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// An executor in a process of its own.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn kill9(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Ends it in order; answers its report and what it logged.
    async fn end(mut self) -> (Value, String) {
        let pid = libc::pid_t::try_from(self.0.id()).unwrap();
        // SAFETY: kill has no memory effects; the child has not been waited for, so the number is its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let (out, err) = (self.0.stdout.take().unwrap(), self.0.stderr.take().unwrap());
        let read = |stream| tokio::task::spawn_blocking(move || std::io::read_to_string(stream).unwrap());
        let out = tokio::time::timeout(NEVER, read(out)).await.expect("it ends").unwrap();
        let err = tokio::task::spawn_blocking(move || std::io::read_to_string(err).unwrap()).await.unwrap();
        self.0.wait().unwrap();
        (serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}")), err)
    }
}

impl Town {
    async fn build() -> Self {
        let bed = Bed::shared().await.unwrap();
        let space = bed.open().await.unwrap();
        let stop = CancellationToken::new();
        let (pod, halt) = (Pod::new(space.clone(), PodSettings::default()), stop.clone());
        let pod = tokio::spawn(async move { pod.run(halt).await.unwrap() });
        let dir = std::env::temp_dir().join(format!("minutehand-town-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&dir).unwrap();
        Self { bed, space, dir, stop, pod: Some(pod) }
    }

    /// Its handler writes a line and ends once there is a file `go`.
    fn command(&self, url: &str, journal: &str) -> Command {
        let dir = self.dir.display();
        let handler = format!("echo run >> {dir}/runs; until [ -e {dir}/go ]; do sleep 0.01; done");
        let mut command = Command::new(env!("CARGO_BIN_EXE_minutehand"));
        command.args(["work", "--queue", "q", "--slots", "2", "--output", "json", "--exec", &handler]);
        command.arg("--journal").arg(self.dir.join(journal));
        command.env("MINUTEHAND_REDIS", url).env("MINUTEHAND_NAMESPACE", self.bed.namespace());
        command.env_remove("MINUTEHAND_CONFIG").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn executor(&self, url: &str, journal: &str) -> Process {
        let process = Process(self.command(url, journal).spawn().unwrap());
        let pid = process.0.id();
        until("the executor registers", async || {
            let all = member::executors(&self.space).await.unwrap();
            all.iter().any(|executor| executor.pid == pid && executor.journal)
        })
        .await;
        process
    }

    fn direct(&self) -> String {
        self.bed.server().url()
    }

    async fn proxy(&self) -> FaultProxy {
        FaultProxy::start(Behind::Unix(self.bed.server().socket())).await.unwrap()
    }

    async fn submit(&self, lease_ms: u32) -> TaskId {
        let retry = "fixed:20ms".parse::<Retry>().unwrap();
        let task = NewTask {
            backoff: Some(retry),
            retries: Some(1),
            lease_ms: Some(lease_ms),
            ..NewTask::to(QueueName::new("q").unwrap())
        };
        Client::new(self.space.clone()).submit(task).await.unwrap().id
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.dir.join("runs")).unwrap_or_default().lines().count()
    }

    async fn until_runs(&self, count: usize) {
        until(&format!("run {count}"), async || self.runs() == count).await;
    }

    async fn until_state(&self, id: TaskId, state: State) {
        until(&format!("{id} is {state}"), async || {
            read::get(&self.space, id).await.unwrap().is_some_and(|task| task.state == state)
        })
        .await;
    }

    /// Lets the handler end while its executor cannot reach Redis, and waits until the journal knows.
    async fn finish_unheard(&self, proxy: &FaultProxy, journal: &str) {
        let journal = self.dir.join(journal);
        let size = || fs::metadata(&journal).unwrap().len();
        let begun = size();
        proxy.set(Fault { half_open: true, ..Fault::default() });
        fs::write(self.dir.join("go"), "").unwrap();
        until("the outcome is written down", async || size() > begun).await;
    }

    /// All keys of a task's bucket.
    async fn bucket(&self, id: TaskId) -> BTreeMap<String, Held> {
        let meta = String::from_utf8_lossy(&self.space.guard(id.bucket()).keys[0]).into_owned();
        let tag = meta.strip_suffix("meta").unwrap();
        snapshot(&self.space).await.into_iter().filter(|(key, _)| key.starts_with(tag)).collect()
    }

    async fn end_pod(&mut self) {
        self.stop.cancel();
        if let Some(pod) = self.pod.take() {
            tokio::time::timeout(NEVER, pod).await.unwrap().unwrap();
        }
    }

    async fn end(mut self) {
        self.end_pod().await;
        let report = check::check(&self.space, check::CheckOptions::default()).await.unwrap();
        assert_eq!(report.count(), 0, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_the_end_of_a_handler_and_its_ack_it_is_not_run_again() {
    let town = Town::build().await;
    let proxy = town.proxy().await;
    let mut first = town.executor(&proxy.url(), "journal").await;
    let id = town.submit(30_000).await;
    town.until_runs(1).await;
    town.finish_unheard(&proxy, "journal").await;
    first.kill9();
    assert_eq!(
        read::get(&town.space, id).await.unwrap().unwrap().state,
        State::Running,
        "nobody knows of it"
    );
    // The crash also tore the last record.
    let mut torn = fs::read(town.dir.join("journal")).unwrap();
    torn.extend_from_slice(b"\0\0\0");
    fs::write(town.dir.join("journal"), torn).unwrap();

    let second = town.executor(&town.direct(), "journal").await;
    town.until_state(id, State::Succeeded).await;
    let (report, log) = second.end().await;
    assert_eq!(
        (&report["recovered"], &report["started"], &report["stale"]),
        (&1.into(), &0.into(), &0.into())
    );
    assert!(log.contains("the journal's last record is damaged"), "{log}");
    assert!(log.contains("its work is reported first"), "{log}");
    assert_eq!(town.runs(), 1, "it ran once");
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_comes_after_the_lease_changes_nothing() {
    let mut town = Town::build().await;
    let proxy = town.proxy().await;
    let mut first = town.executor(&proxy.url(), "journal").await;
    let id = town.submit(2_000).await;
    until("it has started", async || {
        let run = read::get(&town.space, id).await.unwrap().and_then(|task| task.run);
        run.is_some_and(|run| run.phase == minutehand::model::Phase::Started)
    })
    .await;
    town.finish_unheard(&proxy, "journal").await;
    first.kill9();
    // Nobody comes back with the journal in time: it is run again, elsewhere, as a second attempt.
    let other = town.executor(&town.direct(), "another").await;
    town.until_state(id, State::Succeeded).await;
    assert_eq!(town.runs(), 2, "it ran twice");
    let (report, _) = other.end().await;
    assert_eq!((&report["started"], &report["succeeded"]), (&1.into(), &1.into()));

    town.end_pod().await;
    let before = town.bucket(id).await;
    let late = town.executor(&town.direct(), "journal").await;
    let (report, log) = late.end().await;
    assert_eq!(
        (&report["recovered"], &report["stale"], &report["started"]),
        (&0.into(), &1.into(), &0.into())
    );
    assert!(log.contains("what the journal held is reported"), "{log}");
    assert_eq!(town.bucket(id).await, before, "nothing may have changed");
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_a_handler_runs_it_says_so_and_the_task_need_not_wait_for_its_lease() {
    let town = Town::build().await;
    let mut first = town.executor(&town.direct(), "journal").await;
    let taken = town.command(&town.direct(), "journal").output().unwrap();
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(taken.status.code() == Some(1) && said.contains("in use by another executor"), "{said}");
    let id = town.submit(60_000).await;
    town.until_runs(1).await;
    first.kill9();
    fs::write(town.dir.join("go"), "").unwrap();
    let second = town.executor(&town.direct(), "journal").await;
    town.until_state(id, State::Succeeded).await;
    assert_eq!(town.runs(), 2);
    let (report, _) = second.end().await;
    assert_eq!(
        (&report["recovered"], &report["started"], &report["succeeded"]),
        (&1.into(), &1.into(), &1.into())
    );
    let told = minutehand::store::events::trace(&town.space, id).await.unwrap().events;
    assert!(told.iter().any(|event| event.cause == "executor crashed while running it"), "{told:?}");
    town.end().await;
}
