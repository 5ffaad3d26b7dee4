//! Chaos: real processes under load, at least one fault a second, and a verdict over every single task.
//!
//! Three pods and three executors share one Redis (append-only file, synced always) behind a proxy; or a Valkey; or
//! a cluster; or a master with its sentinels. Known tasks are submitted, some twice under one key, some to be
//! cancelled, some that fail at first. Meanwhile processes are killed and frozen, servers are restarted, connections
//! are cut, delayed and cut in the middle of an answer; masters of fleets are killed, frozen and replaced, by
//! replicas whose clocks are wrong, and slots that hold buckets move. Afterwards every task must have exactly one
//! accepted end, the events must be a legal history, the audit must find nothing, and no key may be left.
//!
//! `MINUTEHAND_CHAOS_SEED` repeats a run, `MINUTEHAND_CHAOS_SECONDS` makes it longer. In fleets tasks are submitted
//! with durability `wait:1`, and what was acknowledged must be there; with `MINUTEHAND_CHAOS_WAIT=0` they are not, and
//! what is lost is counted and is no fault. `MINUTEHAND_CHAOS_KEEP` names a directory for what the processes said and
//! ran. The last line is JSON. With `MINUTEHAND_MUTATE` the code under test has a
//! fault, and the verdict must be bad: see `store::mutate`. A bad verdict ends the process with 1.

mod fleet;
mod judge;
mod late;
mod members;
mod producer;

use fleet::{Bench, Shape};
use members::{Member, freeze, pod, worker};
use minutehand::client::Client;
use minutehand::clock::mono;
use minutehand::dev::redis::ServerBinary;
use minutehand::executor::{Executor, HandlerError};
use minutehand::model::replay::Kind;
use minutehand::model::{Durability, Namespace};
use minutehand::store::{ConnectSettings, Space, Store};
use parking_lot::Mutex;
use producer::{Known, Plan, produce};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "chaos";
/// Tasks submitted a second.
const RATE: u64 = 2_400;
/// Lease of a started task; a killed executor's tasks come back after it.
const LEASE_MS: u32 = 2_000;
/// How long a pod's permit for a bucket lasts. After its death tasks may start so much later, and a second more.
const LOCK_MS: i64 = 1_000;
/// After so long a task comes back that a pod claimed and nobody started.
const DISPATCH_MS: i64 = 3_000;
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

/// Opens the space once the servers let it: a fleet that was just started may still be electing.
async fn open_soon(url: &str) -> Space {
    let begun = mono();
    loop {
        match open(url).await {
            Some(space) => break space,
            None => {
                assert!(begun.elapsed() < Duration::from_secs(60), "could not open {url} within a minute")
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The executor process: this binary again. It notes each start in a file and fails where the payload says so.
#[test]
fn worker_process() {
    let (Ok(url), Ok(log)) = (std::env::var(WORKER), std::env::var(LOG)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let space = open_soon(&url).await;
        let log =
            Arc::new(parking_lot::Mutex::new(File::options().create(true).append(true).open(log).unwrap()));
        let executor = Executor::builder(space).slots(64).handle("chaos", move |task, context| {
            let log = Arc::clone(&log);
            async move {
                let (fence, lag) = (task.execution_id.grant.fence(), context.lag_ms());
                let line = format!("{} {fence} {lag} {}\n", task.id, minutehand::clock::wall_us());
                log.lock().write_all(line.as_bytes()).unwrap();
                match task.payload.first() {
                    Some(b'f') if task.attempt == 1 => Err(HandlerError::failed("fails at first")),
                    Some(b's') => {
                        tokio::time::sleep(Duration::from_millis(400)).await;
                        Ok(())
                    }
                    Some(b'l') => {
                        tokio::time::sleep(Duration::from_millis(3_000)).await;
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
        });
        executor.build().unwrap().run(CancellationToken::new()).await.unwrap();
    });
}

/// Says something on stdout, whether or not the test's output is caught: a bad verdict ends the process at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
}

/// Processes that are started again whenever they were killed.
fn members(make: fn(&str, &Path, usize) -> Command, url: &str, dir: &Path) -> Vec<Member> {
    let member = |n| {
        let (url, dir) = (url.to_owned(), dir.to_owned());
        Member::start(move || make(&url, &dir, n))
    };
    (0..MEMBERS).map(member).collect()
}

/// What may be harmed next.
#[derive(Clone, Copy)]
enum Harm {
    PodKilled,
    ExecutorKilled,
    PodFrozen,
    ExecutorFrozen,
    /// The Redis, or the way to it.
    Light,
}

/// A pack of harms, dealt in a random order and shuffled anew when it is used up: however short a run is, each kind has
/// its turn.
#[derive(Default)]
struct Pack(Vec<Harm>);

impl Pack {
    const WHOLE: [Harm; 10] = [
        Harm::PodKilled,
        Harm::PodKilled,
        Harm::ExecutorKilled,
        Harm::PodFrozen,
        Harm::ExecutorFrozen,
        Harm::ExecutorFrozen,
        Harm::Light,
        Harm::Light,
        Harm::Light,
        Harm::Light,
    ];

    fn deal(&mut self, rng: &mut fastrand::Rng) -> Harm {
        if self.0.is_empty() {
            self.0 = Self::WHOLE.to_vec();
            rng.shuffle(&mut self.0);
        }
        self.0.pop().unwrap()
    }
}

/// Harms a pod or an executor, or the Redis in between; answers what was done.
async fn fault(
    bench: &Bench,
    pods: &Mutex<Vec<Member>>,
    workers: &Mutex<Vec<Member>>,
    pack: &mut Pack,
    rng: &mut fastrand::Rng,
) -> &'static str {
    let (pod, worker) = (rng.usize(0..MEMBERS), rng.usize(0..MEMBERS));
    match pack.deal(rng) {
        Harm::PodKilled => {
            pods.lock()[pod].kill9_and_restart();
            "pod_killed"
        }
        Harm::ExecutorKilled => {
            workers.lock()[worker].kill9_and_restart();
            "executor_killed"
        }
        Harm::PodFrozen => {
            freeze(&pods.lock()[pod], rng);
            "pod_frozen"
        }
        Harm::ExecutorFrozen => {
            freeze(&workers.lock()[worker], rng);
            "executor_frozen"
        }
        Harm::Light => bench.light(rng).await,
    }
}

/// Pods, and executors.
const MEMBERS: usize = 3;
/// How many producers share the load of a fleet, where each submit waits for a replica.
const FLEET_PRODUCERS: u64 = 8;

async fn run(shape: Shape, default_seconds: u64) -> bool {
    let seed = number("MINUTEHAND_CHAOS_SEED", fastrand::u64(..1 << 48));
    let seconds = number("MINUTEHAND_CHAOS_SECONDS", default_seconds);
    say(&format!("MINUTEHAND_CHAOS_SEED={seed} for {seconds} s on {shape:?}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let scratch = Scratch::new();
    let dir = scratch.0.as_path();
    let mut bench = Bench::start(shape, dir, &mut rng).await;
    let (url, fleet) = (bench.url(), bench.is_fleet());
    let durable = !fleet || number("MINUTEHAND_CHAOS_WAIT", 1) == 1;
    drop(open_soon(&bench.direct_url()).await);
    let pods = Arc::new(Mutex::new(members(pod, &url, dir)));
    let workers = Arc::new(Mutex::new(members(worker, &url, dir)));
    let supervisor = tokio::spawn({
        let all = [Arc::clone(&pods), Arc::clone(&workers)];
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                all.iter().for_each(|members| members.lock().iter_mut().for_each(Member::revive));
            }
        }
    });
    let (start, load) = (mono(), Duration::from_secs(seconds * 2 / 3));
    let mut producers = tokio::task::JoinSet::new();
    for number in 0..if fleet { FLEET_PRODUCERS } else { 1 } {
        let plan = Plan {
            until: start + load,
            durability: if fleet && durable { Durability::Wait { replicas: 1 } } else { Durability::Memory },
            number,
            of: if fleet { FLEET_PRODUCERS } else { 1 },
            every: Duration::from_millis(if fleet { 200 } else { 50 }),
        };
        producers.spawn(produce(Client::new(open_soon(&url).await), rng.fork(), plan));
    }
    // A second of peace, so that there is something to break.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut kinds = BTreeMap::<&'static str, u64>::new();
    let mut pack = Pack::default();
    let (mut faults, began) = (0u32, mono());
    let end = start + load + Duration::from_secs(2);
    while mono() < end {
        let at = mono();
        bench.heal(at).await;
        let kind = match bench.heavy(&mut rng).await {
            Some(kind) => kind,
            None => fault(&bench, &pods, &workers, &mut pack, &mut rng).await,
        };
        *kinds.entry(kind).or_default() += 1;
        faults += 1;
        // At least one a second, however long the last one took.
        let pause = Duration::from_millis(rng.u64(300..1_000)).saturating_sub(at.elapsed());
        tokio::time::sleep(pause).await;
    }
    let faults_a_second = f64::from(faults) / began.elapsed().as_secs_f64();
    let mut known = Known::default();
    while let Some(more) = producers.join_next().await {
        known.add(more.unwrap());
    }
    say(&format!(
        "{} tasks created, {} without an answer; waiting for rest",
        known.created.len(),
        known.unanswered
    ));
    bench.whole(Duration::from_secs(60)).await;
    let verdict = judge::judge(&bench, &known, durable).await;
    let runs = judge::runs(dir, &verdict.ends);
    let accepted_twice =
        verdict.replay.findings.iter().filter(|finding| finding.kind == Kind::DoubleAcceptance).count();
    for fault in &verdict.faults {
        say(&format!("FAULT {fault}"));
    }
    // Waits for replicas that are away hold up a fleet's producers.
    let enough = RATE * seconds / if fleet { 12 } else { 4 };
    let loaded = known.created.len() as u64 > enough;
    if !loaded {
        say(&format!("too little load to tell anything: {} of at least {enough}", known.created.len()));
    }
    if !verdict.faults.is_empty() {
        scratch.keep_logs();
    }
    supervisor.abort();
    let sound = std::env::var_os("MINUTEHAND_MUTATE").is_none() && verdict.faults.is_empty();
    let late = if sound { Some(late::after_pod_death(&bench.direct_url(), &pods, dir).await) } else { None };
    let measured = late.as_ref().and_then(|late| late.as_ref().ok()).copied();
    let late_fault = match late {
        // The clocks of a fleet's servers differ, so what fell due after the death cannot always be told.
        Some(Err(why)) if fleet => {
            say(&format!("late starts after a pod's death could not be measured: {why}"));
            None
        }
        Some(Err(why)) => Some(format!("late starts after a pod's death could not be measured: {why}")),
        Some(Ok(late)) if late.ms > LOCK_MS + 1_000 && !fleet => {
            let most = LOCK_MS + 1_000;
            Some(format!("a task began {} ms late after a pod's death; {most} ms are allowed", late.ms))
        }
        Some(Ok(late)) if late.in_its_hands_ms > DISPATCH_MS + LOCK_MS + 1_000 && !fleet => {
            let (ms, most) = (late.in_its_hands_ms, DISPATCH_MS + LOCK_MS + 1_000);
            Some(format!("a task in a pod's hands began {ms} ms late after its death; {most} ms are allowed"))
        }
        _ => None,
    };
    if let Some(fault) = &late_fault {
        say(&format!("FAULT {fault}"));
        scratch.keep_logs();
    }
    let good = verdict.faults.is_empty() && loaded && late_fault.is_none();
    let summary = serde_json::json!({
        "seed": seed,
        "shape": format!("{shape:?}").to_lowercase(),
        "seconds": start.elapsed().as_secs(),
        "tasks_per_second": known.created.len() as u64 / load.as_secs().max(1),
        "faults": kinds,
        "faults_per_second": (faults_a_second * 100.0).round() / 100.0,
        "ids": known.created.len(),
        "keyed": known.keyed.len(),
        "by_priority": known.by_priority,
        "durability": if fleet && durable { "wait:1" } else { "memory" },
        "unanswered": known.unanswered,
        "cancelled": known.cancelled.len(),
        "cancels_lost": verdict.cancels_lost,
        "handler_runs": runs.all,
        "duplicate_handler_runs": runs.repeated(),
        "of_these": {
            "failed_before": runs.failed_before, "lapsed_before": runs.lapsed_before, "lost_with_a_master": runs.forgotten
        },
        "redispatched": verdict.replay.redispatched,
        "keys_moved_with_slots": bench.keys_moved,
        "late_after_pod_death_ms": measured.map(|late| late.ms),
        "late_in_its_hands_ms": measured.map(|late| late.in_its_hands_ms),
        "lock_ms": LOCK_MS,
        "lost": verdict.lost,
        "accepted_twice": accepted_twice,
        "ok": good,
    });
    drop((pods, workers, bench));
    say(&summary.to_string());
    good
}

/// A directory that goes when its owner does.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("minutehand-chaos-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// Shows the end of what each process said.
    fn keep_logs(&self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "log") {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(20)..].join("\n");
                say(&format!("---- {}:\n{tail}", path.display()));
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(keep) = std::env::var_os("MINUTEHAND_CHAOS_KEEP").map(PathBuf::from) {
            let _ = std::fs::create_dir_all(&keep);
            for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
                let _ = std::fs::copy(entry.path(), keep.join(entry.file_name()));
            }
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn chaos_on(shape: Shape, seconds: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let good = runtime.block_on(run(shape, seconds));
    drop(runtime);
    if !good {
        std::process::exit(1);
    }
}

#[test]
fn chaos() {
    chaos_on(Shape::One, 60);
}

#[test]
#[ignore = "a minute and more: make chaos-cluster"]
fn chaos_cluster() {
    chaos_on(Shape::Cluster, 60);
}

#[test]
#[ignore = "a minute and more: make chaos-sentinel"]
fn chaos_sentinel() {
    chaos_on(Shape::Sentinel, 60);
}

#[test]
fn chaos_valkey() {
    if ServerBinary::find_valkey().is_none() {
        println!("skipped: there is no valkey-server; scripts/get-server --valkey brings one");
        return;
    }
    chaos_on(Shape::Valkey, 15);
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
        assert_eq!(ended.status.code(), Some(1), "{mutation} went unnoticed:\n{said}");
        let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert_eq!(last["ok"], false, "{said}");
        assert!(!found.is_empty(), "{mutation} failed for another reason:\n{said}");
    }
}
