//! Other schedulers on the same work, each with the fastest settings that it documents.
//!
//! Each has an adapter in `bench/peers/`, a producer and a worker, and is installed under `target/peers/` with
//! pinned versions by its own package manager. One whose runtime is absent is left out, with a message.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use minutehand::clock;
use minutehand::dev::redis::spawn;
use serde_json::{Value, json};

use crate::kit::plot;
use crate::kit::redis::{Door, Redis};
use crate::kit::report::{Report, table};
use crate::kit::stat::Failure;

#[derive(Debug, Clone, Args)]
pub struct PeersArgs {
    /// Only these, and ourselves.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Tasks of ingest, drain and life; a tenth of it for those that do less than 10,000 a second.
    #[arg(long, default_value_t = 50_000)]
    tasks: usize,
    /// Seconds of the run at 2,000 tasks a second.
    #[arg(long, default_value_t = 8)]
    seconds: usize,
    /// Draw bars into this SVG file.
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// One scheduler.
struct Peer {
    name: &'static str,
    version: &'static str,
    /// Seconds that an ingest of 1,000 tasks takes at most; decides how far ahead tasks are due.
    ingest_s: f64,
    /// Slow ones do a tenth of the work.
    slow: bool,
    kind: Kind,
}

/// How a peer is run.
pub enum Kind {
    Own,
    Node(&'static str, Option<&'static str>),
    Ruby,
    Python(&'static str),
    Crate,
}

const fn peer(name: &'static str, version: &'static str, ingest_s: f64, slow: bool, kind: Kind) -> Peer {
    Peer { name, version, ingest_s, slow, kind }
}

const PEERS: [Peer; 8] = [
    peer("minutehand", env!("CARGO_PKG_VERSION"), 0.03, false, Kind::Own),
    peer("bee-queue", "2.0.0", 0.06, false, Kind::Node("bee-queue", None)),
    peer("bee-queue at 1 ms", "2.0.0", 0.06, false, Kind::Node("bee-queue", Some("1"))),
    peer("bullmq", "6.7.0", 0.3, false, Kind::Node("bullmq", None)),
    peer("apalis-redis", "1.0.0", 0.06, false, Kind::Crate),
    peer("sidekiq", "6.4.1", 0.06, false, Kind::Ruby),
    peer("dramatiq", "2.2.1", 0.9, true, Kind::Python("dramatiq_peer.py")),
    peer("celery", "5.7.0", 1.5, true, Kind::Python("celery_peer.py")),
];
const NODE_PACKAGES: [&str; 3] = ["bullmq@6.7.0", "ioredis@6.0.0", "bee-queue@2.0.0"];
const PYTHON_PACKAGES: [&str; 6] =
    ["celery==5.7.0", "kombu==5.7.0", "dramatiq==2.2.1", "redis==8.1.0", "hiredis==3.5.0", "packaging==26.4"];
/// Ruby itself, and what Sidekiq needs; unpacked, not installed, so that it needs no root.
const RUBY_PACKAGES: [&str; 11] = [
    "ruby3.1",
    "libruby3.1",
    "ruby-sidekiq",
    "ruby-redis",
    "ruby-connection-pool",
    "ruby-rack",
    "ruby-hiredis",
    "libhiredis0.14",
    "libyaml-0-2",
    "ruby-webrick",
    "rubygems-integration",
];
/// Percent of tasks that started early from which on a peer's lag says nothing.
const MOSTLY_EARLY: f64 = 1.0;
/// Longest time of one producer or worker.
const PATIENCE: Duration = Duration::from_secs(60);
/// The role of a worker in the run for precision.
const PRECISE: &str = "work precisely";
/// Tasks a second of the run for precision.
const RATE: usize = 2_000;

pub fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers")
}

pub fn adapters() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/peers")
}

pub fn done(command: &mut Command) -> Result<(), Failure> {
    let what = format!("{command:?}");
    let out = command.stdin(Stdio::null()).output().map_err(|error| format!("{what}: {error}"))?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(format!("{what}: {}", text.lines().last().unwrap_or("failed")).into())
}

pub fn has(program: &str) -> bool {
    let probe = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    probe.is_ok_and(|out| out.status.success())
}

/// Makes a peer ready. An error says why it is left out.
pub fn install(kind: &Kind) -> Result<(), Failure> {
    let home = home();
    match kind {
        Kind::Own => Ok(()),
        Kind::Node(..) => {
            let dir = home.join("node");
            if !has("node") || !has("npm") {
                return Err("node and npm are not here".into());
            }
            std::fs::create_dir_all(&dir)?;
            if !NODE_PACKAGES.iter().all(|name| dir.join(format!(".{name}")).exists()) {
                done(
                    Command::new("npm")
                        .args(["install", "--no-audit", "--no-fund", "--silent"])
                        .args(NODE_PACKAGES)
                        .current_dir(&dir),
                )?;
                for name in NODE_PACKAGES {
                    std::fs::write(dir.join(format!(".{name}")), "")?;
                }
            }
            // Beside their packages, where node looks for them.
            for file in ["kit.mjs", "bullmq.mjs", "bee-queue.mjs"] {
                std::fs::copy(adapters().join(file), dir.join(file))?;
            }
            Ok(())
        }
        Kind::Ruby => {
            let dir = home.join("ruby");
            if dir.join("root/usr/bin/ruby3.1").exists() {
                return Ok(());
            }
            if !has("dpkg") || !has("apt-get") {
                return Err("apt-get and dpkg are not here".into());
            }
            std::fs::create_dir_all(dir.join("deb"))?;
            done(Command::new("apt-get").arg("download").args(RUBY_PACKAGES).current_dir(dir.join("deb")))?;
            for file in std::fs::read_dir(dir.join("deb"))? {
                done(Command::new("dpkg").arg("-x").arg(file?.path()).arg(dir.join("root")))?;
            }
            Ok(())
        }
        Kind::Python(_) => {
            let dir = home.join("py");
            if dir.join(".ready").exists() {
                return Ok(());
            }
            if !has("python3") {
                return Err("python3 is not here".into());
            }
            done(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
            done(Command::new(dir.join("bin/pip")).args(["install", "--quiet"]).args(PYTHON_PACKAGES))?;
            Ok(std::fs::write(dir.join(".ready"), "")?)
        }
        Kind::Crate => {
            let build = ["build", "--release", "--quiet", "--manifest-path"];
            let mut command = Command::new("cargo");
            command.args(build).arg(adapters().join("apalis/Cargo.toml"));
            done(command.arg("--target-dir").arg(home.join("apalis")))
        }
    }
}

/// The directories of Debian's ruby under `root`, as its own environment variables name them.
pub fn ruby(root: &Path) -> Result<Command, Failure> {
    let parts = |pattern: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(pattern).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let libraries = parts(&root.join("usr/lib")).into_iter().find(|dir| dir.join("ruby/3.1.0").exists());
    let libraries = libraries.ok_or("the unpacked ruby has no libraries")?;
    let mut paths: Vec<PathBuf> = parts(&root.join("usr/share/rubygems-integration/all/gems"))
        .iter()
        .map(|gem| gem.join("lib"))
        .collect();
    for dir in ["usr/lib/ruby/vendor_ruby", "usr/lib/ruby/vendor_ruby/3.1.0", "usr/lib/ruby/3.1.0"] {
        paths.push(root.join(dir));
    }
    paths.push(libraries.join("ruby/vendor_ruby/3.1.0"));
    paths.push(libraries.join("ruby/3.1.0"));
    let mut command = Command::new(root.join("usr/bin/ruby3.1"));
    command.env("LD_LIBRARY_PATH", libraries).env("RUBYLIB", std::env::join_paths(paths)?);
    Ok(command)
}

fn program(kind: &Kind) -> Result<Command, Failure> {
    let home = home();
    Ok(match kind {
        Kind::Own => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("own");
            command
        }
        Kind::Node(file, debounce) => {
            let mut command = Command::new("node");
            command.arg(home.join("node").join(format!("{file}.mjs")));
            if let Some(debounce) = debounce {
                command.env("BEE_DEBOUNCE", debounce);
            }
            command
        }
        Kind::Ruby => {
            let mut command = ruby(&home.join("ruby/root"))?;
            command.arg(adapters().join("sidekiq.rb"));
            command
        }
        Kind::Python(file) => {
            let mut command = Command::new(home.join("py/bin/python"));
            command.arg(adapters().join(file));
            command
        }
        Kind::Crate => Command::new(home.join("apalis/release/peer-apalis")),
    })
}

/// A child whose lines arrive one by one; it ends with this value.
pub struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    pub fn start(kind: &Kind, role: &str, numbers: &[i64]) -> Result<Self, Failure> {
        let mut command = program(kind)?;
        if role == PRECISE {
            // With a shorter poll its fetcher stalls for seconds where tasks fall due one by one.
            command.env("APALIS_POLL_MS", "100");
        }
        let word = if role == PRECISE { "work" } else { role };
        command.arg(word).args(numbers.iter().map(i64::to_string));
        let quiet = std::env::var_os("PEERS_LOUD").is_none();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(if quiet { Stdio::null() } else { Stdio::inherit() });
        let mut child = spawn(command)?;
        let (send, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, lines })
    }

    /// The next line that `wanted` likes.
    fn line(&self, longest: Duration, wanted: impl Fn(&str) -> bool) -> Result<String, Failure> {
        let end = clock::mono() + longest;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(clock::mono())) {
                Ok(line) if wanted(&line) => return Ok(line),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!("not done after {} s", longest.as_secs()).into());
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err("ended before it was done".into()),
            }
        }
    }

    fn ready(&self) -> Result<(), Failure> {
        self.line(Duration::from_secs(20), |line| line == "ready").map(drop)
    }

    pub fn result(&self, longest: Duration) -> Result<Value, Failure> {
        Ok(serde_json::from_str(&self.line(longest, |line| line.starts_with('{'))?)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_ms() -> i64 {
    clock::wall_us() / 1_000
}

fn sleep_until(ms: i64) {
    std::thread::sleep(clock::ms(ms - now_ms()));
}

fn figure(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

/// What one peer did; what failed is not a number.
#[derive(Debug, Clone, Copy)]
struct Figures {
    ingest: f64,
    ingest_us: f64,
    bytes: f64,
    drain: f64,
    drain_us: f64,
    life: f64,
    life_us: f64,
    early: f64,
    p50: f64,
    p99: f64,
    max: f64,
    precise_us: f64,
}

/// Runs one step; what goes wrong is told, and costs the figures of that step only.
fn step<T>(name: &str, what: &str, run: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    run().map_err(|error| println!("{name}, {what}: {error}")).ok()
}

fn measure(peer: &Peer, args: &PeersArgs) -> Result<Figures, Failure> {
    let tasks = if peer.slow { args.tasks / 10 } else { args.tasks };
    let per = |value: f64, tasks: usize| value / tasks as f64;
    let ahead = |tasks: usize| 3_000 + (peer.ingest_s * tasks as f64) as i64;
    let (kind, name) = (&peer.kind, peer.name);
    let nan = f64::NAN;
    let (mut ingest, mut drain, mut life, mut precise) =
        ((nan, nan, nan), (nan, nan), (nan, nan), (nan, nan, nan, nan, nan));
    // Ingest, then drain of the same.
    step(name, "ingest and drain", || {
        let mut redis = Redis::start(Door::Tcp)?;
        let port = redis.port()?;
        let due = now_ms() + ahead(tasks);
        let (cpu, bytes) = (redis.cpu_us()?, redis.dataset_bytes()?);
        let told = Running::start(kind, "produce", &[port, tasks as i64, due, 0])?.result(PATIENCE)?;
        let late = now_ms() >= due;
        ingest = (
            tasks as f64 / figure(&told, "ms") * 1_000.0,
            per(redis.cpu_us()? - cpu, tasks),
            per(redis.dataset_bytes()? - bytes, tasks),
        );
        if late {
            return Err("it took so long that tasks were due before all were in".into());
        }
        sleep_until(due + 50);
        let cpu = redis.cpu_us()?;
        let worker = Running::start(kind, "work", &[port, tasks as i64])?;
        let told = worker.result(PATIENCE)?;
        drain = (tasks as f64 / figure(&told, "ms") * 1_000.0, per(redis.cpu_us()? - cpu, tasks));
        Ok(())
    });
    // Producer and worker at the same time.
    step(name, "life", || {
        let mut redis = Redis::start(Door::Tcp)?;
        let port = redis.port()?;
        let worker = Running::start(kind, "work", &[port, tasks as i64])?;
        worker.ready()?;
        let cpu = redis.cpu_us()?;
        let producer = Running::start(kind, "produce", &[port, tasks as i64, 0, 0])?;
        let told = worker.result(PATIENCE)?;
        life = (tasks as f64 / figure(&told, "ms") * 1_000.0, per(redis.cpu_us()? - cpu, tasks));
        drop(producer);
        Ok(())
    });
    // 2,000 a second, enqueued beforehand, worker running.
    step(name, "precision", || {
        let tasks = RATE * args.seconds;
        let mut redis = Redis::start(Door::Tcp)?;
        let port = redis.port()?;
        let worker = Running::start(kind, PRECISE, &[port, tasks as i64])?;
        worker.ready()?;
        let due = now_ms() + ahead(tasks);
        let span = args.seconds as i64 * 1_000;
        Running::start(kind, "produce", &[port, tasks as i64, due, span])?.result(PATIENCE)?;
        let late = now_ms() + 100 > due;
        sleep_until(due - 100);
        let cpu = redis.cpu_us()?;
        let told = worker.result(PATIENCE)?;
        precise = (
            figure(&told, "early") / tasks as f64 * 100.0,
            figure(&told, "p50"),
            figure(&told, "p99"),
            figure(&told, "max"),
            if late { nan } else { per(redis.cpu_us()? - cpu, tasks) },
        );
        Ok(())
    });
    Ok(Figures {
        ingest: ingest.0,
        ingest_us: ingest.1,
        bytes: ingest.2,
        drain: drain.0,
        drain_us: drain.1,
        life: life.0,
        life_us: life.1,
        early: precise.0,
        p50: precise.1,
        p99: precise.2,
        max: precise.3,
        precise_us: precise.4,
    })
}

fn whole(value: f64) -> String {
    if value.is_finite() { format!("{value:.0}") } else { "failed".into() }
}

fn tenth(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "failed".into() }
}

/// Runs all peers, one after the other, each step on a fresh server.
pub fn run(report: &mut Report, args: &PeersArgs) -> Result<(), Failure> {
    let mut found: Vec<(&Peer, Figures)> = Vec::new();
    for peer in &PEERS {
        let wanted = matches!(peer.kind, Kind::Own)
            || args.only.is_empty()
            || args.only.iter().any(|only| peer.name == only);
        if !wanted {
            continue;
        }
        match install(&peer.kind) {
            Ok(()) => found.push((peer, measure(peer, args)?)),
            Err(error) => println!("{} is left out: {error}", peer.name),
        }
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|(peer, f)| {
            vec![
                format!("{} {}", peer.name, peer.version),
                whole(f.ingest),
                tenth(f.ingest_us),
                whole(f.bytes),
                whole(f.drain),
                tenth(f.drain_us),
                whole(f.life),
                tenth(f.life_us),
                tenth(f.p50),
                tenth(f.p99),
                tenth(f.max),
                tenth(f.early),
                tenth(f.precise_us),
            ]
        })
        .collect();
    table(
        &format!(
            "{} tasks (a tenth for slow ones), payload 100 bytes; precision at {RATE}/s for {} s",
            args.tasks, args.seconds
        ),
        &[
            "",
            "ingest/s",
            "µs",
            "bytes",
            "drain/s",
            "µs",
            "life/s",
            "µs",
            "lag p50 ms",
            "p99",
            "max",
            "early %",
            "µs",
        ],
        &rows,
    );
    if let Some((_, own)) = found.first() {
        let ratio = |theirs: f64, ours: f64| tenth(theirs / ours);
        // A lag of tasks that start before they are due is no lag.
        let lag = |f: &Figures, theirs: f64, ours: f64| {
            if f.early > MOSTLY_EARLY { "early".to_owned() } else { ratio(theirs, ours) }
        };
        let rows: Vec<Vec<String>> = found
            .iter()
            .map(|(peer, f)| {
                vec![
                    peer.name.to_owned(),
                    ratio(own.ingest, f.ingest),
                    ratio(own.drain, f.drain),
                    ratio(own.life, f.life),
                    ratio(f.ingest_us + f.drain_us, own.ingest_us + own.drain_us),
                    ratio(f.bytes, own.bytes),
                    lag(f, f.p50, own.p50),
                    lag(f, f.p99, own.p99),
                ]
            })
            .collect();
        table(
            "Times that we are better; below 1 the peer is",
            &["", "ingest", "drain", "life", "µs of redis, in and out", "bytes", "lag p50", "p99"],
            &rows,
        );
    }
    if let Some(path) = &args.picture {
        let group = |title: &str, of: fn(&Figures) -> f64| {
            (
                title.to_owned(),
                found.iter().map(|(peer, f)| (peer.name.to_owned(), of(f))).collect::<Vec<_>>(),
            )
        };
        let mut late = group("start − due at 2,000 a second, p99: ms", |f| f.p99);
        for ((name, _), (_, f)) in late.1.iter_mut().zip(&found) {
            if f.early > MOSTLY_EARLY {
                name.push_str(&format!(", {:.0} % early", f.early));
            }
        }
        let groups = [
            group("drain of what is due: tasks a second", |f| f.drain),
            group("Redis, in and out: µs a task", |f| f.ingest_us + f.drain_us),
            late,
        ];
        std::fs::write(path, plot::bars("Side by side", &groups))?;
    }
    let results: Vec<Value> = found
        .iter()
        .map(|(peer, f)| {
            json!({
                "name": peer.name, "version": peer.version, "ingest_per_s": f.ingest, "ingest_us": f.ingest_us, "bytes": f.bytes,
                "drain_per_s": f.drain, "drain_us": f.drain_us, "life_per_s": f.life, "life_us": f.life_us,
                "early_percent": f.early, "p50_ms": f.p50, "p99_ms": f.p99, "max_ms": f.max, "precise_us": f.precise_us,
            })
        })
        .collect();
    report.add("peers", json!({ "tasks": args.tasks, "seconds": args.seconds, "found": results }));
    Ok(())
}
