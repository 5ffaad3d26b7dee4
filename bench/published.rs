//! The benchmarks that other schedulers publish themselves, run as they are, and as many tasks that do nothing by ours.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use minutehand::clock;
use serde_json::json;

use crate::kit::proxy::Proxy;
use crate::kit::redis::{Door, Redis};
use crate::kit::report::{Report, table};
use crate::kit::stat::Failure;
use crate::peers::{Kind, Running, adapters, done, has, home, install, ruby};

/// The ports that these benchmarks insist on.
const REDIS_PORT: u16 = 6379;
const SIDEKIQ_PORT: u16 = 6380;
const MEMCACHED_PORT: &str = "11211";
/// Jobs that sidekiqload makes.
const SIDEKIQ_JOBS: i64 = 500_000;
/// What it has its proxy add to each answer.
const SIDEKIQ_DELAY: Duration = Duration::from_millis(1);
const DRAMATIQ_JOBS: i64 = 10_000;
/// Its benchmark is not in its package.
const DRAMATIQ_SOURCE: [&str; 2] = ["https://github.com/Bogdanp/dramatiq", "v2.2.1"];
const DRAMATIQ_PACKAGES: [&str; 2] = ["pika==1.3.2", "pylibmc==1.6.3"];
const PATIENCE: Duration = Duration::from_secs(240);

/// How long something took, and how long we did.
struct Found {
    name: &'static str,
    jobs: i64,
    seconds: f64,
    ours: f64,
}

/// Runs those that can be run here, and says why the others are left out.
pub fn run(report: &mut Report) -> Result<(), Failure> {
    let mut found = Vec::new();
    for (name, run) in [("sidekiq", sidekiq as fn() -> Result<Found, Failure>), ("dramatiq", dramatiq)] {
        match run() {
            Ok(one) => found.push(one),
            Err(error) => println!("{name} is left out: {error}"),
        }
    }
    let rate = |one: &Found, seconds: f64| one.jobs as f64 / seconds;
    let rows: Vec<_> = found
        .iter()
        .map(|one| {
            vec![
                one.name.to_owned(),
                one.jobs.to_string(),
                format!("{:.1}", one.seconds),
                format!("{:.0}", rate(one, one.seconds)),
                format!("{:.0}", rate(one, one.ours)),
                format!("{:.1}", one.seconds / one.ours),
            ]
        })
        .collect();
    table("Benchmarks that others publish", &["", "jobs", "s", "jobs/s", "ours", "×"], &rows);
    let results: Vec<_> = found
        .iter()
        .map(|one| json!({ "name": one.name, "jobs": one.jobs, "s": one.seconds, "ours_s": one.ours }))
        .collect();
    report.add("published", results.into());
    Ok(())
}

/// What a program says until it ends, on both of its ways.
fn said(mut command: Command) -> Result<String, Failure> {
    let (mut out, both) = std::io::pipe()?;
    command.stdin(Stdio::null()).stderr(both.try_clone()?).stdout(both);
    let mut child = minutehand::dev::redis::spawn(command)?;
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let end = clock::mono() + PATIENCE;
    while child.try_wait()?.is_none() {
        if clock::mono() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("not done after {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(reading.join().map_err(|_| "its output could not be read")??)
}

/// The number between two words of what was said.
fn number(text: &str, before: &str, after: &str) -> Result<f64, Failure> {
    let line = text.lines().find(|line| line.contains(before) && line.contains(after));
    let number = line.and_then(|line| line.split_once(before)?.1.split_once(after)?.0.trim().parse().ok());
    number.ok_or_else(|| {
        let last: Vec<_> = text.lines().rev().take(3).collect();
        format!("it did not say how long it took: {}", last.join(" | ")).into()
    })
}

/// As many tasks of ours, which do nothing: put in, and worked off from an own start of the worker; seconds from that on.
fn ours(port: u16, jobs: i64, ready: impl FnOnce()) -> Result<f64, Failure> {
    Running::start(&Kind::Own, "produce", &[port.into(), jobs, 0, 0])?.result(PATIENCE)?;
    ready();
    let begun = clock::mono();
    Running::start(&Kind::Own, "work", &[port.into(), jobs])?.result(PATIENCE)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn server() -> Result<(Redis, u16), Failure> {
    let mut redis = Redis::start(Door::Tcp)?;
    let port = u16::try_from(redis.port()?)?;
    redis.cpu_us()?;
    Ok((redis, port))
}

fn taken(port: u16) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| format!("port {port}, which it insists on, cannot be had: {error}").into()
}

/// `bin/sidekiqload` of the package: 500,000 jobs in bulk, then 10 threads, with 1 ms more for each answer of Redis.
fn sidekiq() -> Result<Found, Failure> {
    install(&Kind::Ruby)?;
    let root = home().join("ruby/root");
    let gems = std::fs::read_dir(root.join("usr/share/rubygems-integration/all/gems"))?;
    let load: Option<PathBuf> =
        gems.flatten().map(|gem| gem.path().join("bin/sidekiqload")).find(|file| file.exists());
    let load = load.ok_or("its package has no bin/sidekiqload")?;
    let (_redis, port) = server()?;
    let proxy = Proxy::start(SIDEKIQ_PORT, port).map_err(taken(SIDEKIQ_PORT))?;
    let mut command = ruby(&root)?;
    command.arg("-I").arg(adapters().join("stand_in")).arg(load);
    let seconds = number(&said(command)?, "jobs in ", " sec")?;
    proxy.delay(Duration::ZERO);
    let ours = ours(SIDEKIQ_PORT, SIDEKIQ_JOBS, || proxy.delay(SIDEKIQ_DELAY))?;
    Ok(Found { name: "sidekiq 6.4.1, bin/sidekiqload", jobs: SIDEKIQ_JOBS, seconds, ours })
}

/// `benchmarks/bench.py`: small sums, from the start of the workers on. Its other one sleeps for most of the time.
fn dramatiq() -> Result<Found, Failure> {
    install(&Kind::Python(""))?;
    if !has_memcached() {
        return Err("memcached, by which it counts, is not here".into());
    }
    let source = home().join("dramatiq");
    if !source.join("benchmarks/bench.py").exists() {
        if !has("git") {
            return Err("git is not here, and its benchmark is not in its package".into());
        }
        let [url, tag] = DRAMATIQ_SOURCE;
        done(
            Command::new("git").args(["clone", "--quiet", "--depth", "1", "--branch", tag, url]).arg(&source),
        )?;
    }
    let py = home().join("py/bin");
    let pip = ["-m", "pip", "install", "--quiet"];
    done(Command::new(py.join("python")).args(pip).args(DRAMATIQ_PACKAGES))?;
    let (_redis, port) = server()?;
    Proxy::start(REDIS_PORT, port).map_err(taken(REDIS_PORT))?;
    let mut memcached = Command::new("memcached");
    memcached.args(["-u", "nobody", "-l", "127.0.0.1", "-p", MEMCACHED_PORT]);
    memcached.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut memcached = minutehand::dev::redis::spawn(memcached)?;
    let text = said(dramatiq_command(&py, &source));
    let _ = memcached.kill();
    let _ = memcached.wait();
    let seconds = number(&text?, "Took ", " seconds")?;
    let ours = ours(port, DRAMATIQ_JOBS, || ())?;
    Ok(Found { name: "dramatiq 2.2.1, benchmarks/bench.py, fib", jobs: DRAMATIQ_JOBS, seconds, ours })
}

fn dramatiq_command(py: &Path, source: &Path) -> Command {
    let mut command = Command::new(py.join("python"));
    command.args(["bench.py", "--benchmark", "fib", "--count", &DRAMATIQ_JOBS.to_string()]);
    let path = std::env::var("PATH").unwrap_or_default();
    command.current_dir(source.join("benchmarks")).env("REDIS", "1");
    command.env("PATH", format!("{}:{path}", py.display()));
    command
}

fn has_memcached() -> bool {
    Command::new("memcached").arg("-V").stdin(Stdio::null()).output().is_ok_and(|out| out.status.success())
}
