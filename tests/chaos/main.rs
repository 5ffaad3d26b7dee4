//! Chaos: real processes under load, at least one fault a second, and a verdict over every single task.
//!
//! Three pods and three executors share one Redis (append-only file, synced always) behind a proxy. Known
//! tasks are submitted, some twice under one key, some to be cancelled, some that fail at first. Meanwhile
//! processes are killed and frozen, the server is restarted, connections are cut, delayed and cut in the
//! middle of an answer. Afterwards every task must have exactly one accepted end, the events must be a legal
//! history, and the audit must find nothing.
//!
//! `MINUTEHAND_CHAOS_SEED` repeats a run, `MINUTEHAND_CHAOS_SECONDS` makes it longer. The last line is JSON.
//! With `MINUTEHAND_MUTATE` the code under test has a fault, and the verdict must be bad: see `store::mutate`.

use minutehand::client::{Client, Due, NewTask};
use minutehand::clock::mono;
use minutehand::dev::redis::{Fsync, PrivateServer, ServerOptions, spawn};
use minutehand::executor::{Executor, HandlerError};
use minutehand::model::event::Line;
use minutehand::model::replay::Report;
use minutehand::model::{Key, Namespace, Priority, QueueName, Retry, State, TaskId};
use minutehand::store::check::{self, CheckOptions};
use minutehand::store::{ConnectSettings, Space, Store};
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use minutehand::testing::snapshot::names;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "chaos";
/// Tasks submitted a second.
const RATE: u64 = 2_400;
/// How long a pod's permits last; its death delays tasks by at most that and a second, on a machine that keeps up.
const LOCK_MS: u64 = 1_000;
/// Lease of a started task; a killed executor's tasks come back after it.
const LEASE_MS: u32 = 2_000;
/// Seconds that everything may take to come to rest once the faults have ended.
const REST_SECONDS: u64 = 90;
/// Variables by which this binary starts itself as an executor.
const WORKER: &str = "CHAOS_WORKER_URL";
const LOG: &str = "CHAOS_WORKER_LOG";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn settings(url: &str) -> ConnectSettings {
    ConnectSettings { url: url.into(), ..ConnectSettings::default() }
}

async fn open(url: &str) -> Option<Space> {
    let store = Store::connect(settings(url)).await.ok()?;
    Space::open(store, Namespace::new(NAMESPACE).ok()?).await.ok()
}

/// The executor process: this binary again. It notes each start in a file and fails where the payload says so.
#[test]
fn worker_process() {
    let (Ok(url), Ok(log)) = (std::env::var(WORKER), std::env::var(LOG)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let space = loop {
            match open(&url).await {
                Some(space) => break space,
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        let log =
            Arc::new(parking_lot::Mutex::new(File::options().create(true).append(true).open(log).unwrap()));
        let executor = Executor::builder(space).slots(64).handle("chaos", move |task, context| {
            let log = Arc::clone(&log);
            async move {
                let line = format!("{} {} {}\n", task.id, task.execution_id.grant.fence(), context.lag_ms());
                log.lock().write_all(line.as_bytes()).unwrap();
                match task.payload.first() {
                    Some(b'f') if task.attempt == 1 => Err(HandlerError::failed("fails at first")),
                    Some(b's') => {
                        tokio::time::sleep(Duration::from_millis(400)).await;
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
        });
        executor.build().unwrap().run(CancellationToken::new()).await.unwrap();
    });
}

/// A process that is started again whenever it was killed.
struct Member {
    make: Box<dyn Fn() -> Command + Send>,
    child: Child,
}

impl Member {
    fn start(make: impl Fn() -> Command + Send + 'static) -> Self {
        let child = spawn(make()).unwrap();
        Self { make: Box::new(make), child }
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: a plain system call on a child of this process that has not been waited for.
        unsafe { libc::kill(pid, signal) };
    }

    fn kill9_and_restart(&mut self) {
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

fn pod(url: &str, log: &Path, number: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minutehand"));
    command.args(["serve", "--redis", url, "--namespace", NAMESPACE, "--listen", "127.0.0.1:0"]);
    for (key, value) in [("POD__LOCK", "1s"), ("POD__POLL", "300ms"), ("DEFAULTS__DISPATCH_TIMEOUT", "3s")] {
        command.env(format!("MINUTEHAND__{key}"), value);
    }
    quiet(command, &log.join(format!("pod-{number}.log")))
}

fn worker(url: &str, log: &Path, number: usize) -> Command {
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

/// What the producer knows.
#[derive(Default)]
struct Known {
    /// Ids that Redis said it had created.
    created: HashSet<TaskId>,
    /// The id that stands for each key.
    keys: HashMap<String, HashSet<TaskId>>,
    /// Ids of which a cancel was accepted.
    cancelled: HashSet<TaskId>,
    /// Submits without an answer; their tasks may or may not stand.
    unanswered: u64,
}

async fn produce(client: Client, mut rng: fastrand::Rng, until: Instant) -> Known {
    let mut known = Known::default();
    let queue = QueueName::new("chaos").unwrap();
    let backoff = "fixed:200ms".parse::<Retry>().unwrap();
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut serial = 0u64;
    while mono() < until {
        tick.tick().await;
        let mut batch = Vec::new();
        let mut keys = Vec::new();
        for _ in 0..RATE / 20 {
            serial += 1;
            let payload = match rng.u32(0..100) {
                0..8 => "fails at first",
                8..11 => "slow",
                _ => "plain",
            };
            // One in three has a key, and of those one in five was used shortly before.
            let key = (rng.u8(0..3) == 0).then(|| {
                let back = if rng.u8(0..5) == 0 { rng.u64(1..200) } else { 0 };
                format!("k{}", serial.saturating_sub(back))
            });
            keys.push(key.clone());
            batch.push(NewTask {
                due: Due::In(rng.i64(0..3_000)),
                priority: Priority::from_level(rng.u8(0..6)).unwrap(),
                retries: Some(40),
                backoff: Some(backoff),
                key: key.map(|key| Key::new(key, 3_600_000).unwrap()),
                lease_ms: Some(LEASE_MS),
                payload: payload.into(),
                ..NewTask::to(queue.clone())
            });
        }
        match client.submit_batch(batch.clone()).await {
            Ok(answers) => take(&mut known, answers, &keys),
            // Keyed tasks are safe to send again; of the others nobody knows.
            Err(_) => {
                known.unanswered += batch.len() as u64;
                let (batch, keys): (Vec<_>, Vec<_>) =
                    batch.into_iter().zip(keys).filter(|(_, key)| key.is_some()).unzip();
                if let Ok(answers) = client.submit_batch(batch).await {
                    known.unanswered -= answers.len() as u64;
                    take(&mut known, answers, &keys);
                }
            }
        }
        if rng.u8(0..4) == 0 {
            let some = known.created.iter().nth(rng.usize(0..known.created.len().clamp(1, 64))).copied();
            if let Some(id) = some
                && let Ok(minutehand::client::Cancelled::Done) = client.cancel(id, "chaos", "by chance").await
            {
                known.cancelled.insert(id);
            }
        }
    }
    known
}

type Answers = Vec<Result<minutehand::client::Submitted, minutehand::client::SubmitError>>;

fn take(known: &mut Known, answers: Answers, keys: &[Option<String>]) {
    for (answer, key) in answers.into_iter().zip(keys) {
        let Ok(submitted) = answer else {
            known.unanswered += 1;
            continue;
        };
        if submitted.created {
            known.created.insert(submitted.id);
        }
        if let Some(key) = key {
            known.keys.entry(key.clone()).or_default().insert(submitted.id);
        }
    }
}

struct Bench {
    server: Arc<PrivateServer>,
    proxy: Arc<FaultProxy>,
    pods: Vec<Member>,
    workers: Vec<Member>,
}

/// Makes one fault; answers its name.
async fn fault(bench: &mut Bench, rng: &mut fastrand::Rng) -> &'static str {
    let (pod, worker) = (rng.usize(0..bench.pods.len()), rng.usize(0..bench.workers.len()));
    match rng.u8(0..100) {
        0..18 => {
            bench.pods[pod].kill9_and_restart();
            "pod_killed"
        }
        18..36 => {
            bench.workers[worker].kill9_and_restart();
            "executor_killed"
        }
        36..46 => {
            freeze(&bench.pods[pod], rng);
            "pod_frozen"
        }
        46..56 => {
            freeze(&bench.workers[worker], rng);
            "executor_frozen"
        }
        56..62 => {
            bench.server.kill9();
            bench.server.restart().await.unwrap();
            "redis_restarted"
        }
        62..76 => {
            bench.proxy.cut();
            "connections_cut"
        }
        76..90 => {
            bench.proxy.cut_after(rng.u64(1..60_000));
            "cut_in_mid_reply"
        }
        _ => {
            bench.proxy.set(Fault { delay: Duration::from_millis(rng.u64(5..120)), ..Fault::default() });
            tokio::time::sleep(Duration::from_millis(400)).await;
            bench.proxy.set(Fault::default());
            "replies_delayed"
        }
    }
}

/// Freezes a process for longer than a permit and a lease, and lets it go on in the middle of everything.
fn freeze(member: &Member, rng: &mut fastrand::Rng) {
    member.signal(libc::SIGSTOP);
    let pid = libc::pid_t::try_from(member.child.id()).unwrap();
    let wait = Duration::from_millis(rng.u64(2_500..4_000));
    tokio::spawn(async move {
        tokio::time::sleep(wait).await;
        // SAFETY: a plain system call. Should the process have been killed meanwhile, going on harms nobody.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    });
}

/// How often handlers ran beyond the first time.
fn duplicate_runs(dir: &Path) -> (u64, u64) {
    let mut runs: HashMap<String, u64> = HashMap::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("runs-") {
            for line in BufReader::new(File::open(entry.path()).unwrap()).lines().map_while(Result::ok) {
                if let Some((id, _)) = line.split_once(' ') {
                    *runs.entry(id.to_owned()).or_default() += 1;
                }
            }
        }
    }
    (runs.values().sum(), runs.values().map(|n| n - 1).sum())
}

/// How late tasks begin that fall due once a pod has died, in ms: measured in peace, after everything else. A pod is
/// killed while it holds buckets, and stays dead. Nothing where the code under test is broken on purpose.
async fn late_after_pod_death(bench: &mut Bench, direct: &str, dir: &Path) -> Option<i64> {
    if std::env::var_os("MINUTEHAND_MUTATE").is_some() {
        return None;
    }
    let client = Client::new(open(direct).await?);
    let holder = async || {
        let pods = client.status().await.ok()?.pods;
        (pods.len() == bench.pods.len()).then_some(())?;
        pods.into_iter().find(|pod| !pod.buckets.is_empty())
    };
    let deadline = mono() + Duration::from_secs(20);
    let pid = loop {
        match holder().await {
            Some(pod) => break pod.pid,
            None if mono() > deadline => return None,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let queue = QueueName::new("chaos").unwrap();
    let tasks = (0..4_000).map(|n| NewTask {
        due: Due::In(500 + n),
        payload: "plain".into(),
        ..NewTask::to(queue.clone())
    });
    let mut left: HashSet<TaskId> = HashSet::new();
    let told = client.submit_batch(tasks.collect()).await.ok()?;
    let dues: HashMap<TaskId, i64> = told.into_iter().flatten().map(|one| (one.id, one.due.0)).collect();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let at = bench.pods.iter().position(|pod| pod.child.id() == pid)?;
    bench.pods[at].signal(libc::SIGKILL);
    let died = client.space().clock().now_ms();
    left.extend(dues.iter().filter(|(_, due)| **due > died).map(|(id, _)| *id));
    let (mut latest, count) = (0, left.len());
    while !left.is_empty() && mono() < deadline + Duration::from_secs(20) {
        for (id, lag) in starts(dir) {
            if left.remove(&id) {
                latest = latest.max(lag);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{count} tasks fell due after a pod had died; {} never began", left.len());
    left.is_empty().then_some(latest)
}

/// Every start that handlers noted, and how late it was.
fn starts(dir: &Path) -> Vec<(TaskId, i64)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("runs-") {
            for line in BufReader::new(File::open(entry.path()).unwrap()).lines().map_while(Result::ok) {
                let mut words = line.split(' ');
                let id = words.next().and_then(|id| id.parse().ok());
                let lag = words.nth(1).and_then(|lag| lag.parse().ok());
                out.extend(id.zip(lag));
            }
        }
    }
    out
}

/// What the verdict found.
#[derive(Default)]
struct Verdict {
    faults: Vec<String>,
    replay: Report,
    lost: u64,
}

async fn judge(url: &str, known: &Known) -> Verdict {
    let mut verdict = Verdict::default();
    let Some(space) = open(url).await else {
        verdict.faults.push("redis is gone".into());
        return verdict;
    };
    let client = Client::new(space.clone());
    // Everything comes to rest by itself once the faults have ended.
    let deadline = mono() + Duration::from_secs(number("MINUTEHAND_CHAOS_REST_SECONDS", REST_SECONDS));
    loop {
        match client.counts().await {
            Ok((counts, _)) if counts.is_quiet() => break,
            Ok((counts, _)) if mono() > deadline => {
                verdict
                    .faults
                    .push(format!("not at rest: {} pending, {} running", counts.pending, counts.running));
                break;
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    match client.replay(true).await {
        Ok(report) => {
            if !report.ok {
                let first: Vec<String> = report
                    .findings
                    .iter()
                    .take(5)
                    .map(|f| format!("{} {:?}: {}", f.id, f.kind, f.detail))
                    .collect();
                verdict.faults.push(format!("{} illegal steps: {}", report.faults, first.join("; ")));
            }
            verdict.replay = report;
        }
        Err(error) => verdict.faults.push(format!("replay: {error}")),
    }
    match check::check(&space, CheckOptions::default()).await {
        Ok(report) if report.ok => {}
        Ok(report) => {
            verdict.faults.push(format!("damage: {:?}", report.violations.iter().take(5).collect::<Vec<_>>()))
        }
        Err(error) => verdict.faults.push(format!("check: {error}")),
    }
    // Where nothing waits or runs, nothing of it may be left.
    let mut left: Vec<String> = Vec::new();
    for key in names(&space).await {
        let key = String::from_utf8_lossy(&key).into_owned();
        let name = key.split_once("}:").map_or("", |(_, name)| name);
        let stem = name.split_once(':').map_or(name, |(stem, _)| stem);
        if ["run", "at", "tries", "task", "due", "ready", "ring", "parked", "held", "helds", "timer"]
            .contains(&stem)
        {
            left.push(key);
        }
    }
    if !left.is_empty() {
        left.truncate(10);
        verdict.faults.push(format!("keys that should be gone: {}", left.join(" ")));
    }
    // Every created task has an end, and only the expected ones.
    let mut ends: HashMap<TaskId, State> = HashMap::new();
    let mut tail = client.events();
    loop {
        let events = tail.next().await.unwrap();
        if events.is_empty() {
            break;
        }
        for line in events {
            let Line::Event(event) = line else { continue };
            use minutehand::model::event::Move;
            let end = match event.event {
                Move::Succeeded => State::Succeeded,
                Move::Cancelled => State::Cancelled,
                Move::Died => State::Dead,
                Move::Expired => State::Expired,
                Move::Skipped => State::Skipped,
                _ => continue,
            };
            ends.insert(event.id, end);
        }
    }
    let mut wrong = BTreeMap::<String, u64>::new();
    for id in &known.created {
        match ends.get(id) {
            None => verdict.lost += 1,
            Some(State::Succeeded) if known.cancelled.contains(id) => {
                *wrong.entry("succeeded after an accepted cancel".into()).or_default() += 1;
            }
            Some(State::Succeeded) => {}
            Some(State::Cancelled) => {}
            Some(other) => *wrong.entry(format!("ended as {other}")).or_default() += 1,
        }
    }
    for ids in known.keys.values() {
        if ids.len() > 1 {
            *wrong.entry("a key that stands for two tasks".into()).or_default() += 1;
        }
    }
    if verdict.lost > 0 {
        verdict.faults.push(format!("{} tasks lost", verdict.lost));
    }
    verdict.faults.extend(wrong.into_iter().map(|(what, count)| format!("{count} tasks {what}")));
    verdict
}

#[test]
fn chaos() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let seed = number("MINUTEHAND_CHAOS_SEED", fastrand::u64(..1 << 48));
        let seconds = number("MINUTEHAND_CHAOS_SECONDS", 60);
        println!("MINUTEHAND_CHAOS_SEED={seed} for {seconds} s");
        let mut rng = fastrand::Rng::with_seed(seed);
        let options =
            ServerOptions { append_only: Some(Fsync::Always), tcp: true, ..ServerOptions::default() };
        let server = Arc::new(PrivateServer::start(options).await.unwrap());
        let behind = Behind::Unix(server.socket());
        let proxy = Arc::new(FaultProxy::start(behind).await.unwrap());
        let url = proxy.url();
        let dir: PathBuf = server.dir().join("chaos");
        std::fs::create_dir_all(&dir).unwrap();
        let members = |make: fn(&str, &Path, usize) -> Command| -> Vec<Member> {
            let member = |n| {
                let (url, dir) = (url.clone(), dir.clone());
                Member::start(move || make(&url, &dir, n))
            };
            (0..3).map(member).collect()
        };
        let direct = server.url();
        let opened = open(&direct).await.unwrap();
        let mut bench =
            Bench { server: Arc::clone(&server), proxy, pods: members(pod), workers: members(worker) };
        let client = Client::new(open(&url).await.unwrap());
        let (start, load) = (mono(), Duration::from_secs(seconds * 2 / 3));
        let producer = tokio::spawn(produce(client, rng.fork(), start + load));
        // A second of peace, so that there is something to break.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut kinds = BTreeMap::<&'static str, u64>::new();
        let end = start + load + Duration::from_secs(2);
        while mono() < end {
            let began = mono();
            *kinds.entry(fault(&mut bench, &mut rng).await).or_default() += 1;
            // At least one a second, however long the last one took.
            tokio::time::sleep(Duration::from_millis(rng.u64(300..1_000)).saturating_sub(began.elapsed()))
                .await;
        }
        let known = producer.await.unwrap();
        println!(
            "{} tasks created, {} without an answer; waiting for rest",
            known.created.len(),
            known.unanswered
        );
        let verdict = judge(&direct, &known).await;
        let (runs, duplicates) = duplicate_runs(&dir);
        let late_ms = late_after_pod_death(&mut bench, &direct, &dir).await;
        drop(opened);
        let accepted_twice = verdict
            .replay
            .findings
            .iter()
            .filter(|finding| finding.kind == minutehand::model::replay::Kind::DoubleAcceptance)
            .count();
        for fault in &verdict.faults {
            println!("FAULT {fault}");
        }
        let summary = serde_json::json!({
            "seed": seed,
            "seconds": start.elapsed().as_secs(),
            "faults": kinds,
            "ids": known.created.len(),
            "unanswered": known.unanswered,
            "cancelled": known.cancelled.len(),
            "handler_runs": runs,
            "duplicate_handler_runs": duplicates,
            "redispatched": verdict.replay.redispatched,
            "late_after_pod_death_ms": late_ms,
            "lock_ms": LOCK_MS,
            "lost": verdict.lost,
            "accepted_twice": accepted_twice,
            "ok": verdict.faults.is_empty(),
        });
        println!("{summary}");
        assert!(known.created.len() as u64 > RATE * seconds / 4, "too little load to tell anything");
        assert!(verdict.faults.is_empty(), "{:?}", verdict.faults);
    });
}

/// The suite must be able to fail: with each fault planted in the code under test it ends badly.
#[test]
fn each_planted_fault_is_found() {
    if std::env::var("MINUTEHAND_MUTATE").is_ok() {
        return;
    }
    for mutation in ["nofence", "noreap", "nodedup", "ackloss"] {
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "chaos", "--nocapture"])
            .env("MINUTEHAND_MUTATE", mutation)
            .env("MINUTEHAND_CHAOS_SECONDS", "15")
            .env("MINUTEHAND_CHAOS_REST_SECONDS", "12")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let found: Vec<&str> = said.lines().filter(|line| line.starts_with("FAULT ")).collect();
        println!("{mutation}: {found:?}");
        assert!(!ended.status.success(), "{mutation} went unnoticed:\n{said}");
        assert!(!found.is_empty(), "{mutation} failed for another reason:\n{said}");
    }
}
