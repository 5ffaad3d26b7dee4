//! The program as processes: pods, executors and commands that are started, killed and lied to.
//!
//! Each test has a Redis of its own and waits for what it can see; nothing here sleeps for a while and hopes.

mod access;
mod cases;
mod dev;
mod failure;
mod fleet;
mod import;
mod input;
mod outcome;
mod redis;
mod trouble;

use minutehand::client::{Client, Counts, LagStatus};
use minutehand::dev::fleet::{FleetOptions, PrivateCluster, PrivateSentinel};
use minutehand::dev::redis::{PrivateServer, ServerOptions};
use minutehand::dev::wire::Answer;
use minutehand::model::event::Move;
use minutehand::model::{Bucket, Namespace, TaskId};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::events;
use minutehand::store::member;
use minutehand::store::{ConnectSettings, Space, Store};
use minutehand::testing::bed::{Bed, as_limited, least_rights};
use minutehand::testing::process::{Program, Running};
use minutehand::testing::stalls::Stalls;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Nothing here may take this long.
const NEVER: Duration = Duration::from_secs(45);
/// Tasks of the plan.
const FLIGHTS: i64 = 1_014;

/// The program under test.
fn program(url: &str, namespace: &str) -> Program {
    Program::new(env!("CARGO_BIN_EXE_minutehand"), url, namespace)
}

/// Imports the flights of a day, which pass at a speed; all of them must go in.
fn import_flights(program: &Program, speed: &str) {
    let done = program.json(&[
        "import",
        concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights-2013-11-27.csv"),
        "--due",
        "departure",
        "--tz",
        "America/New_York",
        "--queue",
        "flights",
        "--key",
        "flight",
        "--rebase",
        "2013-11-27T05:00:00=now",
        "--speed",
        speed,
    ]);
    assert_eq!((&done["created"], &done["bad"]), (&FLIGHTS.into(), &0.into()), "{done}");
}

/// Names the shape of Redis on which the towns of this run are built: `cluster` or `sentinel`; else one server.
const SHAPE_VARIABLE: &str = "MINUTEHAND_E2E_ON";

/// The namespace where the shape has no name for one.
const NAMESPACE: &str = "e2e";

/// Where the tasks of a town lie.
enum Redis {
    One(Arc<Bed>),
    Cluster(PrivateCluster),
    Sentinel(PrivateSentinel),
}

impl Redis {
    /// Servers that know the user with the least rights.
    fn limited() -> FleetOptions {
        let each = ServerOptions { lines: vec![least_rights(NAMESPACE)], ..ServerOptions::default() };
        FleetOptions { each, ..FleetOptions::default() }
    }

    async fn cluster() -> Self {
        Self::Cluster(PrivateCluster::start_as(3, 1, Self::limited()).await.unwrap())
    }

    async fn sentinel() -> Self {
        Self::Sentinel(PrivateSentinel::start_as(Self::limited()).await.unwrap())
    }

    /// The address with which everything here works: with no more rights than `deploy/users.acl` gives.
    fn url(&self) -> String {
        match self {
            Self::One(bed) => bed.limited_url(),
            Self::Cluster(cluster) => as_limited(&cluster.url()),
            // That user is one of the master; sentinels have users of their own, and here none.
            Self::Sentinel(fleet) => as_limited(&fleet.url()),
        }
    }

    /// The masters at the start.
    fn masters(&self) -> Vec<&PrivateServer> {
        match self {
            Self::One(bed) => vec![bed.server()],
            Self::Cluster(cluster) => cluster.masters.iter().collect(),
            Self::Sentinel(fleet) => vec![&fleet.master],
        }
    }

    /// Runs a command on each of them.
    fn on_each(&self, words: &[&str]) {
        for master in self.masters() {
            master.run(words).unwrap();
        }
    }

    /// A directory that goes with it.
    fn dir(&self) -> &std::path::Path {
        self.masters()[0].dir()
    }
}

/// A Redis, and processes that share it.
struct Town {
    redis: Redis,
    program: Program,
    space: Space,
    client: Client,
}

impl Town {
    async fn on(redis: Redis, settings: &[(&str, &str)]) -> Self {
        let namespace = match &redis {
            Redis::One(bed) => bed.namespace().to_owned(),
            Redis::Cluster(_) | Redis::Sentinel(_) => NAMESPACE.to_owned(),
        };
        let mut program = program(&redis.url(), &namespace);
        for (key, value) in settings {
            program = program.set(key, value);
        }
        let settings = ConnectSettings { url: redis.url(), ..ConnectSettings::default() };
        let store = Store::connect(settings).await.unwrap();
        let space = Space::open(store, Namespace::new(&namespace).unwrap()).await.unwrap();
        Self { client: Client::new(space.clone()), redis, program, space }
    }

    /// On one server, for a test that needs one.
    async fn of(bed: Bed, settings: &[(&str, &str)]) -> Self {
        Self::on(Redis::One(Arc::new(bed)), settings).await
    }

    async fn new(settings: &[(&str, &str)]) -> Self {
        let redis = match std::env::var(SHAPE_VARIABLE).as_deref() {
            Ok("cluster") => Redis::cluster().await,
            Ok("sentinel") => Redis::sentinel().await,
            Ok(other) if !other.is_empty() => {
                panic!("{SHAPE_VARIABLE} is {other:?}, not cluster or sentinel")
            }
            Ok(_) | Err(_) => Redis::One(Arc::new(Bed::own_server(Default::default()).await.unwrap())),
        };
        Self::on(redis, settings).await
    }

    /// Its one server.
    fn bed(&self) -> &Arc<Bed> {
        match &self.redis {
            Redis::One(bed) => bed,
            Redis::Cluster(_) | Redis::Sentinel(_) => panic!("this test is for one server"),
        }
    }

    fn pod(&self, name: &str) -> Running {
        let pod = self.program.start(name, &["serve", "--listen", "127.0.0.1:0"]);
        pod.until_said("listening on http://", NEVER);
        pod
    }

    fn executor(&self, name: &str, handler: &[&str]) -> Running {
        let words = [&["work", "--queue", "flights", "--name", name], handler].concat();
        let executor = self.program.start(name, &words);
        executor.until_said("executor runs", NEVER);
        executor
    }

    async fn counts(&self) -> (Counts, LagStatus) {
        self.client.counts().await.unwrap()
    }

    /// Waits until the counters show something.
    async fn until(&self, what: &str, shown: impl Fn(&Counts) -> bool) -> Counts {
        let (start, mut last) = (minutehand::clock::mono(), None);
        while start.elapsed() < NEVER {
            // Redis may be away for a while in some of these tests.
            if let Ok((counts, _)) = self.client.counts().await {
                if shown(&counts) {
                    return counts;
                }
                last = Some(counts);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("waited {NEVER:?} in vain until {what}: {last:?}");
    }

    async fn until_succeeded(&self, count: i64) -> Counts {
        self.until(&format!("{count} have succeeded"), |counts| {
            counts.succeeded == count && counts.is_quiet()
        })
        .await
    }

    /// Every key of the namespace is as it must be, and no right was missing on the way.
    async fn check(&self) {
        for master in self.redis.masters() {
            let refused = master.run(&["ACL", "LOG"]).map_or(Vec::new(), |told| match told {
                Answer::List(entries) => entries,
                _ => Vec::new(),
            });
            assert!(refused.is_empty(), "{refused:?}");
        }
        let report = check(&self.space, CheckOptions::default()).await.unwrap();
        assert!(report.ok, "{:?}", report.violations);
    }

    /// How often each task was granted and how often its outcome was accepted, by the events.
    async fn lives(&self) -> BTreeMap<TaskId, (u32, u32)> {
        let mut lives: BTreeMap<TaskId, (u32, u32)> = BTreeMap::new();
        for number in 0..self.space.spread().peak {
            let (bucket, mut after) = (Bucket::new(number).unwrap(), None);
            loop {
                let stretch = events::stretch(&self.space, bucket, None, after.as_deref()).await.unwrap();
                for event in stretch.events {
                    let life = lives.entry(event.id).or_default();
                    life.0 += u32::from(event.event == Move::Claimed);
                    life.1 += u32::from(event.event == Move::Succeeded);
                }
                after = stretch.last.or(after);
                if !stretch.more {
                    break;
                }
            }
        }
        lives
    }

    /// Each of the flights was granted once and succeeded once.
    async fn each_once(&self) {
        let lives = self.lives().await;
        assert_eq!(lives.len() as i64, FLIGHTS);
        let more: Vec<_> = lives.iter().filter(|(_, life)| **life != (1, 1)).collect();
        let mut stories = String::new();
        for (id, (grants, accepted)) in &more {
            stories += &format!("\n{id} was granted {grants} times and accepted {accepted} times:");
            for event in events::trace(&self.space, **id).await.unwrap().events {
                stories += &format!(
                    "\n  {} {:?} {:?} {} {}",
                    event.at, event.event, event.fence, event.actor, event.cause
                );
            }
        }
        assert!(more.is_empty(), "{stories}");
    }

    /// Pods and executors that are listed.
    async fn until_members(&self, pods: usize, executors: usize) {
        let start: Instant = minutehand::clock::mono();
        loop {
            let found = (
                member::pods(&self.space).await.unwrap().len(),
                member::executors(&self.space).await.unwrap().len(),
            );
            if found == (pods, executors) {
                return;
            }
            assert!(start.elapsed() < NEVER, "never {pods} pods and {executors} executors, but {found:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What handlers wrote into a file, a line each: task, execution, due, and the time since this machine
/// was started, which a shell reads without starting another process.
struct Diary {
    path: std::path::PathBuf,
    /// Unix time when this machine was started, by Redis's clock.
    booted_ms: i64,
}

/// One run of a handler.
struct Run {
    task: String,
    execution: String,
    due_ms: i64,
    started_ms: i64,
}

impl Diary {
    fn new(town: &Town) -> Self {
        let up = std::fs::read_to_string("/proc/uptime").unwrap();
        let booted_ms = town.space.clock().now_ms() - up_ms(up.split(' ').next().unwrap());
        Self { path: town.redis.dir().join("diary"), booted_ms }
    }

    /// A command that writes its line.
    fn command(&self) -> String {
        let path = self.path.display();
        // The line is short, so it is appended in one piece.
        format!(
            "read up rest </proc/uptime; \
             echo $MINUTEHAND_TASK_ID $MINUTEHAND_EXECUTION_ID $MINUTEHAND_DUE $up >>{path}"
        )
    }

    fn runs(&self) -> Vec<Run> {
        let text = std::fs::read_to_string(&self.path).unwrap();
        let run = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            Run {
                task: words[0].to_owned(),
                execution: words[1].to_owned(),
                due_ms: minutehand::model::UnixMs::parse_rfc3339(words[2]).unwrap().0,
                started_ms: self.booted_ms + up_ms(words[3]),
            }
        };
        text.lines().map(run).collect()
    }
}

/// Seconds with two decimals, in ms.
fn up_ms(text: &str) -> i64 {
    text.replace('.', "").parse::<i64>().unwrap() * 10
}

fn distinct<T: std::hash::Hash + Eq>(items: impl Iterator<Item = T>) -> usize {
    items.collect::<HashSet<_>>().len()
}
