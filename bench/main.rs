//! What a task costs: `cargo bench --features testing -- <bench> [flags]`, or `make bench`.
//!
//! Every comparison is made within one run, round by round on fresh servers, since figures of two runs on a
//! shared machine differ by more than what is compared. Ratios are the middle of the rounds' own ratios.

mod burst;
mod cost;
mod crowd;
mod floor;
mod growth;
mod http;
mod kit;
mod lifecycle;
mod limits;
mod own;
mod paced;
mod peers;
mod precision;
mod priority;
mod published;
mod route;
mod scale;
mod size;
mod worker;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde_json::json;

use kit::redis::{Door, Redis};
use kit::report::{Report, table};
use kit::shape::Shape;
use kit::stat::{Failure, least, median};
use lifecycle::Mode;

#[global_allocator]
static COUNTED: cost::Counted = cost::Counted;

/// What a task costs, measured on a private server.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    bench: Option<Bench>,
    /// Write all figures here as JSON.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Append the figures to bench/history.jsonl.
    #[arg(long, global = true)]
    history: bool,
    /// Reach the server by TCP instead of its socket.
    #[arg(long, global = true)]
    tcp: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The bare commands alone.
    Floor(Life),
    /// The life of tasks through the scripts, beside the floor.
    Lifecycle(Life),
    /// Memory of waiting tasks.
    Size(SizeArgs),
    /// Cost of a claim beside 10,000, 100,000 and 1,000,000 waiting tasks.
    Growth(GrowthArgs),
    /// The whole way at a pace, through real processes.
    Paced(PacedArgs),
    /// The HTTP port: submits and polls, single and batched.
    Http(HttpArgs),
    /// Start − due at arbitrary milliseconds, through real processes.
    Precision(scale::PrecisionArgs),
    /// 100,000 tasks due within one second.
    Burst(scale::BurstArgs),
    /// 1,000,000 tasks due at one instant in one bucket, drained by several pods.
    Hot(scale::HotArgs),
    /// 1,000 executors that report themselves, and 256 idle buckets.
    Fleet(scale::FleetArgs),
    /// Allocations, processor time, calls and bytes on the wire of a task.
    Cost(scale::CostArgs),
    /// P0 beside a million of P5, a queue beside a million of its priority, and P5's share beside a saturated P0.
    Priority(priority::PriorityArgs),
    /// Choosing an executor, by policy, and web calls.
    Route(route::RouteArgs),
    /// What limits cost: none, a rate, running at once, and those of placement keys.
    Limits(limits::LimitsArgs),
    /// Other schedulers on the same work; installs them under target/peers/.
    Peers(peers::PeersArgs),
    /// The benchmarks that other schedulers publish themselves, as they are.
    Published,
    /// Ourselves as a peer.
    #[command(hide = true)]
    Own(own::OwnArgs),
    /// An executor that notes its starts, for the others.
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// All of them.
    All,
}

#[derive(Debug, Clone, Copy, Args)]
struct Life {
    /// Tasks of each run.
    #[arg(long, default_value_t = 100_000)]
    tasks: usize,
    /// Buckets they lie in.
    #[arg(long, default_value_t = 8)]
    buckets: u16,
    /// Rounds; the floor and each way of ours run once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Give each task an idempotency key.
    #[arg(long)]
    keyed: bool,
    /// Count a start of its own for each task, as long tasks have.
    #[arg(long)]
    start: bool,
    /// Skip the runs that measure speed.
    #[arg(long)]
    no_speed: bool,
}

impl Default for Life {
    fn default() -> Self {
        Self { tasks: 100_000, buckets: 8, rounds: 5, keyed: false, start: false, no_speed: false }
    }
}

#[derive(Debug, Clone, Copy, Args)]
struct SizeArgs {
    /// Tasks of each run.
    #[arg(long, default_value_t = 1_000_000)]
    tasks: usize,
    /// Buckets they lie in.
    #[arg(long, default_value_t = 8)]
    buckets: u16,
}

#[derive(Debug, Clone, Args)]
struct GrowthArgs {
    /// Numbers of waiting tasks.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000])]
    waiting: Vec<usize>,
    /// Add 10,000,000 waiting tasks; takes 3 GB of memory and some minutes.
    #[arg(long)]
    ten_million: bool,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Debug, Clone, Args)]
struct PacedArgs {
    /// Tasks due a second.
    #[arg(long, value_delimiter = ',', default_values_t = [2_000, 10_000])]
    rates: Vec<usize>,
    /// Numbers of buckets.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    buckets: Vec<u16>,
    /// Numbers of executors.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 20])]
    executors: Vec<usize>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 10)]
    seconds: usize,
    /// Give each task an idempotency key.
    #[arg(long)]
    keyed: bool,
}

impl Default for PacedArgs {
    fn default() -> Self {
        Self {
            rates: vec![2_000, 10_000],
            buckets: vec![1, 8, 32],
            executors: vec![1, 20],
            seconds: 10,
            keyed: false,
        }
    }
}

#[derive(Debug, Clone, Copy, Args)]
struct HttpArgs {
    /// Tasks of the batched ways; the single ones have a tenth of them.
    #[arg(long, default_value_t = 100_000)]
    tasks: usize,
    /// Callers at a time.
    #[arg(long, default_value_t = 32)]
    callers: usize,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

async fn run_http(report: &mut Report, door: Door, args: HttpArgs) -> Result<(), Failure> {
    let mut found = Vec::new();
    for _ in 0..args.rounds {
        found.push(http::run(&mut Redis::start(door)?, args.tasks, args.callers).await?);
    }
    let of = |pick: fn(&http::Found) -> f64| found.iter().map(pick).collect::<Vec<_>>();
    let ways = [
        ("submit_single", "submit, one a request", of(|f| f.submit_single)),
        ("submit_bulk", "bulk submit, 10,000 rows a request", of(|f| f.submit_bulk)),
        ("poll_single", "poll and ack, one at a time", of(|f| f.poll_single)),
        ("poll_batched", "poll and ack, up to 256 at a time", of(|f| f.poll_batched)),
    ];
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let rows: Vec<_> = ways
        .iter()
        .map(|(_, name, rates)| {
            vec![(*name).into(), format!("{:.0}", median(rates)), format!("{:.0}", most(rates))]
        })
        .collect();
    let title =
        format!("HTTP, one pod, {} callers in the same process, {} rounds", args.callers, args.rounds);
    table(&title, &["", "tasks/s", "best"], &rows);
    let result = ways.iter().map(|(name, _, rates)| ((*name).to_owned(), json!(median(rates)))).collect();
    report.add("http", serde_json::Value::Object(result));
    Ok(())
}

async fn run_paced(report: &mut Report, door: Door, args: PacedArgs) -> Result<(), Failure> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for rate in &args.rates {
        for executors in &args.executors {
            for buckets in &args.buckets {
                let pace = paced::Pace {
                    rate: *rate,
                    seconds: args.seconds,
                    buckets: *buckets,
                    executors: *executors,
                    keyed: args.keyed,
                };
                let found = paced::run(&mut Redis::start(door)?, pace).await?;
                let ms = |lag: Option<i64>| lag.map_or_else(|| "-".to_owned(), |ms| ms.to_string());
                rows.push(vec![
                    format!("{rate}/s"),
                    buckets.to_string(),
                    executors.to_string(),
                    format!("{:.1}", found.redis_us),
                    ms(found.lag.p50),
                    ms(found.lag.p99),
                    ms(found.lag.max),
                    found.succeeded.to_string(),
                ]);
                results.push(json!({
                    "rate": rate, "buckets": buckets, "executors": executors, "keyed": args.keyed,
                    "redis_us": found.redis_us, "lag_ms": found.lag, "succeeded": found.succeeded,
                }));
            }
        }
    }
    table(
        &format!("At a pace for {} s, one pod{}", args.seconds, if args.keyed { ", keyed" } else { "" }),
        &["due", "buckets", "executors", "µs of redis a task", "lag p50 ms", "p99", "max", "succeeded"],
        &rows,
    );
    report.add(if args.keyed { "paced_keyed" } else { "paced" }, results.into());
    Ok(())
}

fn main() -> Result<(), Failure> {
    // Cargo hands its own `--bench` to every bench.
    let cli = Cli::parse_from(std::env::args().filter(|arg| arg != "--bench"));
    // What pods and executors in this process have to say, where `RUST_LOG` asks for it.
    let said = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(said).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let door = if cli.tcp { Door::Tcp } else { Door::Unix };
    let mut report = Report::new(cli.json, cli.history);
    match cli.bench {
        Some(Bench::Worker(args)) => return runtime.block_on(worker::run(args)),
        Some(Bench::Own(args)) => return runtime.block_on(own::run(args)),
        _ => {}
    }
    report.head(&Redis::start(door)?.version());
    let size = SizeArgs { tasks: 1_000_000, buckets: 8 };
    let growth = || GrowthArgs { waiting: vec![10_000, 100_000, 1_000_000], ten_million: false, rounds: 3 };
    runtime.block_on(async {
        match cli.bench.unwrap_or(Bench::All) {
            Bench::Floor(args) => run_floor(&mut report, door, args)?,
            Bench::Lifecycle(args) => run_lifecycle(&mut report, door, args).await?,
            Bench::Size(args) => run_size(&mut report, door, args).await?,
            Bench::Growth(args) => run_growth(&mut report, door, args).await?,
            Bench::Paced(args) => run_paced(&mut report, door, args).await?,
            Bench::Http(args) => run_http(&mut report, door, args).await?,
            Bench::Precision(args) => scale::run_precision(&mut report, door, args).await?,
            Bench::Burst(args) => scale::run_burst(&mut report, door, args).await?,
            Bench::Hot(args) => scale::run_hot(&mut report, door, args).await?,
            Bench::Fleet(args) => scale::run_fleet(&mut report, door, args).await?,
            Bench::Cost(args) => scale::run_cost(&mut report, door, args).await?,
            Bench::Priority(args) => priority::run(&mut report, door, args).await?,
            Bench::Route(args) => route::run(&mut report, args).await?,
            Bench::Limits(args) => limits::run(&mut report, door, args).await?,
            Bench::Peers(args) => peers::run(&mut report, &args)?,
            Bench::Published => published::run(&mut report)?,
            Bench::Worker(_) | Bench::Own(_) => {}
            Bench::All => {
                run_lifecycle(&mut report, door, Life::default()).await?;
                run_lifecycle(
                    &mut report,
                    door,
                    Life { keyed: true, rounds: 3, no_speed: true, ..Life::default() },
                )
                .await?;
                run_size(&mut report, door, size).await?;
                run_growth(&mut report, door, growth()).await?;
                run_paced(&mut report, door, PacedArgs::default()).await?;
                run_paced(&mut report, door, PacedArgs { keyed: true, ..PacedArgs::default() }).await?;
            }
        }
        Ok::<_, Failure>(())
    })?;
    report.finish()
}

fn us(values: &[f64]) -> String {
    format!("{:.2}", median(values))
}

/// The costs of several rounds, one column a step.
struct Rounds {
    name: &'static str,
    costs: Vec<floor::Cost>,
}

impl Rounds {
    fn pick(&self, of: impl Fn(&floor::Cost) -> f64) -> Vec<f64> {
        self.costs.iter().map(of).collect()
    }

    fn row(&self, ratio: Option<f64>) -> Vec<String> {
        let whole = self.pick(|c| c.whole);
        vec![
            self.name.into(),
            us(&self.pick(|c| c.submit)),
            us(&self.pick(|c| c.claim)),
            us(&self.pick(|c| c.offer)),
            us(&self.pick(|c| c.ack)),
            us(&whole),
            format!("{:.2}", least(&whole)),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        ]
    }

    fn json(&self, ratio: Option<f64>) -> serde_json::Value {
        let whole = self.pick(|c| c.whole);
        json!({
            "submit_us": median(&self.pick(|c| c.submit)),
            "claim_us": median(&self.pick(|c| c.claim)),
            "offer_take_us": median(&self.pick(|c| c.offer)),
            "ack_us": median(&self.pick(|c| c.ack)),
            "whole_us": median(&whole),
            "whole_us_least": least(&whole),
            "ratio_to_floor": ratio,
        })
    }
}

const HEAD: [&str; 8] =
    ["µs of Redis's main thread a task", "submit", "claim", "offer+take", "ack", "whole", "least", "× floor"];

fn run_floor(report: &mut Report, door: Door, args: Life) -> Result<(), Failure> {
    let shape = Shape::narrow(args.tasks, args.buckets);
    let mut rounds = Rounds { name: "floor", costs: Vec::new() };
    for _ in 0..args.rounds {
        rounds.costs.push(floor::run(&mut Redis::start(door)?, shape)?);
    }
    table(&title("Floor", &args), &HEAD, &[rounds.row(None)]);
    report.add("floor", rounds.json(None));
    Ok(())
}

fn title(what: &str, args: &Life) -> String {
    let keyed = if args.keyed { ", keyed" } else { "" };
    format!(
        "{what}: {} tasks{keyed}, {} buckets, batches of 500, {} rounds",
        args.tasks, args.buckets, args.rounds
    )
}

async fn run_lifecycle(report: &mut Report, door: Door, args: Life) -> Result<(), Failure> {
    let shape = Shape { keyed: args.keyed, ..Shape::narrow(args.tasks, args.buckets) };
    let mut ways = [
        (None, Rounds { name: "floor (bare commands)", costs: Vec::new() }),
        (Some(Mode::Flow), Rounds { name: "flow (claimed as it falls due)", costs: Vec::new() }),
        (Some(Mode::Backlog), Rounds { name: "backlog (all due before the first claim)", costs: Vec::new() }),
    ];
    let (mut speeds, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        for (mode, rounds) in &mut ways {
            let mut redis = Redis::start(door)?;
            rounds.costs.push(match mode {
                None => floor::run(&mut redis, shape)?,
                Some(mode) => {
                    let (cost, started) = lifecycle::run(&mut redis, shape, *mode, args.start).await?;
                    starts.push(started);
                    cost
                }
            });
        }
        if !args.no_speed {
            speeds.push(lifecycle::speed(&mut Redis::start(door)?, shape, 4).await?);
        }
    }
    let floors = ways[0].1.pick(|c| c.whole);
    let ratio = |rounds: &Rounds| {
        let own = rounds.pick(|c| c.whole);
        median(&own.iter().zip(&floors).map(|(own, floor)| own / floor).collect::<Vec<_>>())
    };
    let rows: Vec<_> = ways.iter().map(|(_, rounds)| rounds.row(Some(ratio(rounds)))).collect();
    table(&title("Life of a task, submit to ack", &args), &HEAD, &rows);
    if args.start {
        println!("a start of its own: {} µs a task more, counted in whole", us(&starts));
    }
    let name = if args.keyed { "lifecycle_keyed" } else { "lifecycle" };
    let mut result = json!({
        "tasks": args.tasks, "buckets": args.buckets, "rounds": args.rounds,
        "floor": ways[0].1.json(None),
        "flow": ways[1].1.json(Some(ratio(&ways[1].1))),
        "backlog": ways[2].1.json(Some(ratio(&ways[2].1))),
    });
    if !speeds.is_empty() {
        let of = |pick: fn(&lifecycle::Speed) -> f64| speeds.iter().map(pick).collect::<Vec<_>>();
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let (submit, life, cpu) = (of(|s| s.submit), of(|s| s.life), of(|s| s.cpu));
        let row = |name: &str, rate: &[f64], cpu: String| {
            vec![name.into(), format!("{:.0}", median(rate)), format!("{:.0}", most(rate)), cpu]
        };
        table(
            "Speed of one process, backlog, all buckets at the same time",
            &["", "tasks/s", "best", "µs a task"],
            &[
                row("bulk submit, 4 calls in flight", &submit, String::new()),
                row("whole life", &life, us(&cpu)),
            ],
        );
        result["submit_tasks_per_s"] = median(&submit).into();
        result["life_tasks_per_s"] = median(&life).into();
        result["speed_us"] = median(&cpu).into();
    }
    report.add(name, result);
    Ok(())
}

async fn run_size(report: &mut Report, door: Door, args: SizeArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for (name, shape, target) in [
        ("one hot minute", Shape::hot(args.tasks, args.buckets), 260),
        ("30 days × 1,000 queues × 6 priorities", Shape::wide(args.tasks, args.buckets), 260),
        (
            "30 days …, rows in any order",
            Shape { sorted: false, ..Shape::wide(args.tasks, args.buckets) },
            260,
        ),
        ("30 days …, keyed", Shape { keyed: true, ..Shape::wide(args.tasks, args.buckets) }, 380),
    ] {
        let size = size::run(&mut Redis::start(door)?, shape).await?;
        let mut kinds = size.kinds;
        kinds.retain(|kind| kind.2 >= 0.5);
        kinds.sort_by(|a, b| b.2.total_cmp(&a.2));
        let parts: Vec<_> =
            kinds.iter().map(|(kind, keys, bytes)| format!("{kind} {bytes:.0} ({keys} keys)")).collect();
        rows.push(vec![
            name.into(),
            format!("{:.0}", size.above),
            format!("{:.0}", size.above - size.events),
            target.to_string(),
            parts.join(", "),
        ]);
        results.push(json!({
            "shape": name, "above_payload": size.above, "events": size.events, "target": target,
            "kinds": kinds.iter().map(|(kind, keys, bytes)| json!([kind, keys, bytes])).collect::<Vec<_>>(),
        }));
    }
    let title = format!(
        "Bytes of a waiting task above its payload of 100: {} tasks, {} buckets",
        args.tasks, args.buckets
    );
    table(&title, &["", "bytes", "without events", "target", "of that, payload included"], &rows);
    report.add("size", results.into());
    Ok(())
}

async fn run_growth(report: &mut Report, door: Door, args: GrowthArgs) -> Result<(), Failure> {
    type Pick = fn(&growth::Growth) -> f64;
    let mut waiting = args.waiting;
    if args.ten_million {
        waiting.push(10_000_000);
    }
    let mut found: Vec<(usize, Vec<growth::Growth>)> = waiting.iter().map(|n| (*n, Vec::new())).collect();
    for _ in 0..args.rounds {
        for (waiting, rounds) in &mut found {
            rounds.push(growth::run(&mut Redis::start(door)?, *waiting).await?);
        }
    }
    let columns: [(&str, &str, Pick); 5] = [
        ("claim_us", "a task claimed", |g| g.claim),
        ("bare_us", "bare", |g| g.bare),
        ("cold_claim_us", "cold", |g| g.cold_claim),
        ("cold_bare_us", "cold and bare", |g| g.cold_bare),
        ("empty_claim_us", "a claim of nothing", |g| g.empty),
    ];
    let of = |rounds: &[growth::Growth], pick: Pick| rounds.iter().map(pick).collect::<Vec<_>>();
    let row = |(waiting, rounds): &(usize, Vec<growth::Growth>)| {
        let figures = columns.iter().flat_map(|(_, _, pick)| {
            let (own, first) = (of(rounds, *pick), of(&found[0].1, *pick));
            [us(&own), format!("{:.2}", least(&own) / least(&first))]
        });
        std::iter::once(waiting.to_string()).chain(figures).collect::<Vec<_>>()
    };
    let names = columns.iter().flat_map(|(_, name, _)| [*name, "× first"]);
    let head: Vec<_> = std::iter::once("waiting").chain(names).collect();
    table(
        &format!(
            "µs of claims beside waiting tasks, 30 days × 1,000 queues × 6 priorities, {} rounds",
            args.rounds
        ),
        &head,
        &found.iter().map(row).collect::<Vec<_>>(),
    );
    let results: Vec<_> = found
        .iter()
        .map(|(waiting, rounds)| {
            let mut result = json!({ "waiting": waiting });
            for (name, _, pick) in columns {
                result[name] = median(&of(rounds, pick)).into();
            }
            result
        })
        .collect();
    report.add("growth", results.into());
    Ok(())
}
