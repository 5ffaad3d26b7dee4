//! Benches of a whole fleet, as commands: what they take, and the tables they print.

use clap::Args;
use serde_json::json;

use crate::kit::plot::{self, Line};
use crate::kit::redis::{Door, Redis};
use crate::kit::report::{Report, table};
use crate::kit::stat::Failure;
use crate::{burst, cost, crowd, precision};

fn ms(value: f64) -> String {
    format!("{value:.2}")
}

#[derive(Debug, Clone, Args)]
pub struct PrecisionArgs {
    /// Tasks due a second.
    #[arg(long, value_delimiter = ',', default_values_t = [200, 2_000, 10_000])]
    rates: Vec<usize>,
    /// Buckets.
    #[arg(long, default_value_t = 8)]
    buckets: u16,
    /// Numbers of executors.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    executors: Vec<usize>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 10)]
    seconds: usize,
    /// Tasks submitted one by one to start in 50 ms, while all sleep.
    #[arg(long, default_value_t = 50)]
    alone: usize,
}

/// Start − due at a few rates.
pub async fn run_precision(report: &mut Report, door: Door, args: PrecisionArgs) -> Result<(), Failure> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for executors in &args.executors {
        for rate in &args.rates {
            let load = precision::Load {
                rate: *rate,
                seconds: args.seconds,
                buckets: args.buckets,
                executors: *executors,
            };
            let found = precision::run(&mut Redis::start(door)?, load).await?;
            let lag = found.lag;
            tell_slow(format_args!("{rate}/s"), &found.slow);
            rows.push(vec![
                format!("{rate}/s"),
                executors.to_string(),
                ms(lag.min),
                ms(lag.p50),
                ms(lag.p99),
                ms(lag.max),
                format!("{:.1}", found.redis_us),
                format!("{:.2}", found.calls),
                found.slow.len().to_string(),
            ]);
            results.push(json!({
                "rate": rate, "executors": executors, "buckets": args.buckets, "lag_ms": lag,
                "redis_us": found.redis_us, "calls": found.calls, "slow": found.slow,
            }));
        }
    }
    if args.alone > 0 {
        let lag = precision::alone(&mut Redis::start(door)?, args.alone, args.buckets).await?;
        rows.push(vec![
            "alone, in 50 ms".into(),
            "1".into(),
            ms(lag.min),
            ms(lag.p50),
            ms(lag.p99),
            ms(lag.max),
            String::new(),
            String::new(),
            String::new(),
        ]);
        results.push(json!({ "alone": args.alone, "executors": 1, "buckets": args.buckets, "lag_ms": lag }));
    }
    table(
        &format!(
            "Start − due in ms, {} buckets, one pod, default settings, {} s each",
            args.buckets, args.seconds
        ),
        &["due", "executors", "least", "p50", "p99", "max", "µs of redis a task", "calls a task", "slow"],
        &rows,
    );
    report.add("precision", results.into());
    Ok(())
}

#[derive(Debug, Clone, Args)]
pub struct BurstArgs {
    /// Tasks due within the second.
    #[arg(long, default_value_t = 100_000)]
    tasks: usize,
    /// Numbers of buckets.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    buckets: Vec<u16>,
    /// Executors.
    #[arg(long, default_value_t = 1)]
    executors: usize,
    /// Draw the curve into this SVG file.
    #[arg(long)]
    picture: Option<std::path::PathBuf>,
}

/// Names what the server's slow log held.
fn tell_slow(what: std::fmt::Arguments<'_>, slow: &[String]) {
    if !slow.is_empty() {
        println!("slow, {what}: {}", slow.join(", "));
    }
}

/// Many tasks due within one second.
pub async fn run_burst(report: &mut Report, door: Door, args: BurstArgs) -> Result<(), Failure> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    let due = Line { name: "due".into(), points: vec![(0.0, 0.0), (1_000.0, args.tasks as f64)] };
    let mut curves = vec![due];
    for buckets in &args.buckets {
        let burst = burst::Burst {
            tasks: args.tasks,
            span_ms: 1_000,
            buckets: *buckets,
            pods: 1,
            executors: args.executors,
        };
        let found = burst::run(&mut Redis::start(door)?, burst).await?;
        let lag = found.lag;
        tell_slow(format_args!("{buckets} buckets"), &found.slow);
        rows.push(vec![
            buckets.to_string(),
            ms(lag.p50),
            ms(lag.p99),
            ms(lag.max),
            format!("{:.0}", found.last_ms),
            format!("{:.1}", found.redis_us),
            lag.count.to_string(),
            found.slow.len().to_string(),
        ]);
        results.push(json!({
            "buckets": buckets, "executors": args.executors, "tasks": args.tasks, "lag_ms": lag,
            "last_start_ms": found.last_ms, "redis_us": found.redis_us, "slow": found.slow,
        }));
        let every = (found.starts.len() / 400).max(1);
        let point =
            |at: usize| ((found.starts[at].start_us - found.begin_us) as f64 / 1_000.0, (at + 1) as f64);
        let mut points: Vec<_> = (0..found.starts.len()).step_by(every).map(point).collect();
        points.push(point(found.starts.len() - 1));
        let name = if *buckets == 1 {
            "started, 1 bucket".to_owned()
        } else {
            format!("started, {buckets} buckets")
        };
        curves.push(Line { name, points });
    }
    table(
        &format!("{} tasks due within one second, one pod, {} executors", args.tasks, args.executors),
        &["buckets", "lag p50 ms", "p99", "max", "last start ms", "µs of redis a task", "started", "slow"],
        &rows,
    );
    if let Some(path) = args.picture {
        let title = format!("{} tasks due within one second", plot::number(args.tasks as f64));
        std::fs::write(path, plot::lines(&title, "ms after the first was due", "tasks", &curves))?;
    }
    report.add("burst", results.into());
    Ok(())
}

#[derive(Debug, Clone, Args)]
pub struct HotArgs {
    /// Tasks due at one instant.
    #[arg(long, default_value_t = 1_000_000)]
    tasks: usize,
    /// Buckets.
    #[arg(long, default_value_t = 1)]
    buckets: u16,
    /// Numbers of pods, which all may hold each bucket.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    pods: Vec<usize>,
    /// Executors.
    #[arg(long, default_value_t = 2)]
    executors: usize,
}

/// Many tasks due at one instant in one bucket, drained by several pods.
pub async fn run_hot(report: &mut Report, door: Door, args: HotArgs) -> Result<(), Failure> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for pods in &args.pods {
        let burst = burst::Burst {
            tasks: args.tasks,
            span_ms: 0,
            buckets: args.buckets,
            pods: *pods,
            executors: args.executors,
        };
        let found = burst::run(&mut Redis::start(door)?, burst).await?;
        let rate = args.tasks as f64 / (found.last_ms / 1_000.0);
        tell_slow(format_args!("{pods} pods"), &found.slow);
        rows.push(vec![
            pods.to_string(),
            format!("{:.0}", found.submit_rate),
            format!("{rate:.0}"),
            format!("{:.0}", found.lag.p50),
            format!("{:.0}", found.last_ms),
            format!("{:.1}", found.redis_us),
            found.slow.len().to_string(),
        ]);
        results.push(json!({
            "pods": pods, "buckets": args.buckets, "executors": args.executors, "tasks": args.tasks, "lag_ms": found.lag,
            "last_start_ms": found.last_ms, "drained_per_s": rate, "submitted_per_s": found.submit_rate,
            "redis_us": found.redis_us, "slow": found.slow,
        }));
    }
    table(
        &format!(
            "{} tasks due at one instant, {} buckets, {} executors",
            args.tasks, args.buckets, args.executors
        ),
        &["pods", "submitted/s", "drained/s", "lag p50 ms", "last start ms", "µs of redis a task", "slow"],
        &rows,
    );
    report.add("hot", results.into());
    Ok(())
}

#[derive(Debug, Clone, Args)]
pub struct CostArgs {
    /// Tasks of each run.
    #[arg(long, default_value_t = 40_000)]
    tasks: usize,
}

/// What a task costs beside Redis's time.
pub async fn run_cost(report: &mut Report, door: Door, args: CostArgs) -> Result<(), Failure> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for (name, span_ms) in [("all due before", 0), ("at 4,000 a second", args.tasks as i64 / 4)] {
        let (submit, life) = cost::run(&mut Redis::start(door)?, args.tasks, span_ms).await?;
        for (step, cost) in [("submit", submit), ("pod and executor", life)] {
            rows.push(vec![
                format!("{step}, {name}"),
                format!("{:.1}", cost.allocations),
                format!("{:.0}", cost.allocated),
                format!("{:.1}", cost.cpu_us),
                format!("{:.3}", cost.calls),
                format!("{:.0}", cost.wire_in),
                format!("{:.0}", cost.wire_out),
                format!("{:.1}", cost.redis_us),
            ]);
            results.push(json!({ "step": step, "due": name, "cost": cost }));
        }
    }
    table(
        &format!(
            "A task of {} with a payload of 100 bytes, one pod and one executor in one process",
            args.tasks
        ),
        &["", "allocations", "bytes", "cpu µs", "calls", "bytes to redis", "from it", "µs of redis"],
        &rows,
    );
    report.add("cost", results.into());
    Ok(())
}

#[derive(Debug, Clone, Args)]
pub struct FleetArgs {
    /// Executors that report themselves.
    #[arg(long, default_value_t = 1_000)]
    executors: usize,
    /// Idle buckets.
    #[arg(long, default_value_t = 256)]
    buckets: u16,
    /// Seconds of each part.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// What a large fleet costs while it does nothing.
pub async fn run_fleet(report: &mut Report, door: Door, args: FleetArgs) -> Result<(), Failure> {
    let crowd = crowd::executors(&mut Redis::start(door)?, args.executors, args.seconds).await?;
    let slower = crowd.claim_beside / crowd.claim_alone;
    table(
        &format!("{} executors that report every 3 s, one pod that reads them", args.executors),
        &[
            "beats",
            "beat p50 ms",
            "p99",
            "claim of 100 alone, ms",
            "beside them",
            "×",
            "ms of redis a second",
        ],
        &[vec![
            crowd.beats.to_string(),
            ms(crowd.beat_p50),
            ms(crowd.beat_p99),
            format!("{:.3}", crowd.claim_alone),
            format!("{:.3}", crowd.claim_beside),
            ms(slower),
            ms(crowd.redis_us_per_s / 1_000.0),
        ]],
    );
    let (calls, redis_us) = crowd::idle(&mut Redis::start(door)?, args.buckets, args.seconds).await?;
    table(
        &format!("{} idle buckets, one pod, one executor", args.buckets),
        &["commands/s", "ms of redis a second"],
        &[vec![format!("{calls:.1}"), ms(redis_us / 1_000.0)]],
    );
    report.add("fleet", json!({
        "executors": args.executors, "beats": crowd.beats, "beat_p50_ms": crowd.beat_p50, "beat_p99_ms": crowd.beat_p99,
        "claim_alone_ms": crowd.claim_alone, "claim_beside_ms": crowd.claim_beside,
        "crowd_redis_us_per_s": crowd.redis_us_per_s,
        "idle_buckets": args.buckets, "idle_commands_per_s": calls, "idle_redis_us_per_s": redis_us,
    }));
    Ok(())
}
