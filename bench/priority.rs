//! What a large backlog does to others: to P0 where it is of P5, and to others of its own priority; and what share P5 gets
//! while P0 alone would fill every slot. Pod and executor run in this process, on default settings but for the slots.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use minutehand::client::{Client, Due, NewTask, StreamSettings};
use minutehand::clock;
use minutehand::embed::Scheduler;
use minutehand::executor::ExecutorSettings;
use minutehand::model::{Bucket, Namespace, Priority, QueueName, UnixMs};
use minutehand::store::{Space, read};
use parking_lot::Mutex;
use serde_json::json;

use crate::kit::fleet::{Lag, Start};
use crate::kit::redis::{Door, Redis};
use crate::kit::report::{Report, table};
use crate::kit::stat::Failure;

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct PriorityArgs {
    /// Ripe tasks of a backlog.
    #[arg(long, default_value_t = 1_000_000)]
    backlog: usize,
    /// Seconds for which lags are measured beside it.
    #[arg(long, default_value_t = 12)]
    seconds: i64,
    /// Seconds for which P0 is saturated; 0 leaves it out.
    #[arg(long, default_value_t = 60)]
    saturated: i64,
}

const SLOTS: u32 = 32;
/// How long a task of the backlog runs: all slots are busy with them, and the processors are not.
const LOAD_MS: u64 = 20;
/// Probes a second, which run for 1 ms.
const PROBES: i64 = 200;
/// How long a task runs where P0 is saturated.
const BUSY_MS: u64 = 10;

type Notes = Arc<Mutex<Vec<(Priority, Start)>>>;

fn scheduler(space: &Space, notes: &Notes, urgent_slots: u32, probe_ms: u64, load_ms: u64) -> Scheduler {
    let settings = ExecutorSettings { slots: SLOTS, urgent_slots, ..ExecutorSettings::default() };
    let noted = |notes: &Notes, ms: u64| {
        let notes = Arc::clone(notes);
        move |task: minutehand::executor::Task, _| {
            let start = Start { due_us: task.due.0 * 1_000, start_us: clock::wall_us() };
            notes.lock().push((task.priority, start));
            async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(())
            }
        }
    };
    Scheduler::on(space.clone())
        .executor(|executor| executor.settings(settings))
        .handle("probe", noted(notes, probe_ms))
        .handle("load", noted(notes, load_ms))
}

async fn submit(
    client: &Client,
    queue: &str,
    priority: Priority,
    dues: impl Iterator<Item = i64>,
) -> Result<(), Failure> {
    let queue = QueueName::new(queue)?;
    let mut stream = client.stream(StreamSettings::default());
    let mut count = 0;
    for due in dues {
        count += 1;
        let task = NewTask { priority, due: Due::At(UnixMs(due)), ..NewTask::to(queue.clone()) };
        stream.push(NewTask { payload: vec![b'x'; 100].into(), ..task }).await?;
    }
    let sent = stream.finish().await?;
    if sent.created == count { Ok(()) } else { Err(format!("not all was submitted: {sent:?}").into()) }
}

/// Tasks that stand in ready sets, of all buckets.
async fn ripe(space: &Space) -> Result<usize, Failure> {
    let mut ripe = 0;
    for bucket in (0..space.spread().peak).filter_map(Bucket::new) {
        ripe += read::counts(space, bucket).await?.count("ready");
    }
    Ok(usize::try_from(ripe).unwrap_or(0))
}

/// Start − due of probes, beside so many ripe tasks of another queue.
async fn beside(
    redis: &mut Redis,
    args: &PriorityArgs,
    probe: Priority,
    load: Priority,
    backlog: usize,
) -> Result<Lag, Failure> {
    let space = Space::open(redis.store(4).await?, Namespace::new("priority")?).await?;
    let notes = Notes::default();
    let now = space.clock().now_ms();
    submit(&Client::new(space.clone()), "load", load, std::iter::repeat_n(now - 1_000, backlog)).await?;
    let running = scheduler(&space, &notes, 4, 1, LOAD_MS).start()?;
    let begun = clock::mono();
    // What is under way, or was done meanwhile, is not ripe any more.
    while ripe(&space).await? + 20_000 < backlog {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("the backlog does not ripen".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let from = space.clock().now_ms() + 1_000;
    let probes = args.seconds * PROBES;
    let mut random = fastrand::Rng::with_seed(7);
    let dues = (0..probes).map(|_| from + random.i64(0..args.seconds * 1_000));
    submit(running.client(), "probe", probe, dues).await?;
    let noted = |notes: &Notes| {
        notes
            .lock()
            .iter()
            .filter(|(_, start)| start.due_us >= from * 1_000)
            .map(|(_, start)| *start)
            .collect::<Vec<_>>()
    };
    let begun = clock::mono();
    while (noted(&notes).len() as i64) < probes {
        if begun.elapsed() > Duration::from_secs(args.seconds.unsigned_abs() + 30) {
            return Err(format!("{} of {probes} probes started", noted(&notes).len()).into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if backlog > 0 && ripe(&space).await? < backlog / 2 {
        return Err("the backlog did not last".into());
    }
    let lag = Lag::of(&noted(&notes))?;
    running.stop().await?;
    Ok(lag)
}

/// P5's share of starts in a time in which P0 alone comes at 110 % of what there is room for.
async fn share(redis: &mut Redis, seconds: i64) -> Result<(f64, f64), Failure> {
    let space = Space::open(redis.store(4).await?, Namespace::new("priority")?).await?;
    let notes = Notes::default();
    let running = scheduler(&space, &notes, 0, BUSY_MS, BUSY_MS).start()?;
    let begin = space.clock().now_ms() + 3_000;
    // As many as there is room for, and a tenth more, spread evenly; each task takes some 1.5 ms longer than its sleep.
    let each_second = i64::from(SLOTS) * 1_000 / BUSY_MS as i64 * 11 / 10;
    submit(running.client(), "load", Priority::P5, std::iter::repeat_n(begin, each_second as usize * 20))
        .await?;
    let mut dues: Vec<_> = (0..each_second * seconds).map(|n| begin + n * 1_000 / each_second).collect();
    // A batch of rows goes into one bucket: in order of their times P0 would fill one bucket after the other.
    fastrand::Rng::with_seed(7).shuffle(&mut dues);
    submit(running.client(), "probe", Priority::P0, dues.into_iter()).await?;
    tokio::time::sleep(space.clock().until_ms(begin + seconds * 1_000)).await;
    let (from, to) = (begin * 1_000, (begin + seconds * 1_000) * 1_000);
    let starts: Vec<_> =
        notes.lock().iter().filter(|(_, start)| (from..to).contains(&start.start_us)).copied().collect();
    let low = starts.iter().filter(|(priority, _)| *priority == Priority::P5).count();
    tokio::time::timeout(Duration::from_secs(40), running.stop()).await??;
    Ok((low as f64 / starts.len() as f64, starts.len() as f64 / seconds as f64))
}

/// Runs it.
pub async fn run(report: &mut Report, door: Door, args: PriorityArgs) -> Result<(), Failure> {
    let ways = [
        ("P0 alone", Priority::P0, Priority::P5, 0),
        ("P0 beside the backlog of P5", Priority::P0, Priority::P5, args.backlog),
        ("P3 beside the backlog of another queue of P3", Priority::P3, Priority::P3, args.backlog),
    ];
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    let mut first = None;
    for (name, probe, load, backlog) in ways {
        let lag = beside(&mut Redis::start(door)?, &args, probe, load, backlog).await?;
        let ratio = lag.p99 / *first.get_or_insert(lag.p99);
        let ms = |ms: f64| format!("{ms:.2}");
        rows.push(vec![
            name.to_owned(),
            backlog.to_string(),
            ms(lag.p50),
            ms(lag.p99),
            ms(lag.max),
            format!("{ratio:.2}"),
        ]);
        results.push(json!({ "name": name, "backlog": backlog, "lag": lag, "p99_ratio": ratio }));
    }
    table(
        &format!("Start − due of {PROBES} tasks a second, {SLOTS} slots and 4 urgent ones, ms"),
        &["", "backlog", "p50", "p99", "max", "p99 × alone"],
        &rows,
    );
    report.add("priority", results.into());
    if args.saturated > 0 {
        let (share, rate) = share(&mut Redis::start(door)?, args.saturated).await?;
        let due = 4.0 / 44.0;
        println!(
            "P0 saturated for {} s at {rate:.0} starts a second: P5 got {:.2} % of them; its weight says {:.2} %",
            args.saturated,
            share * 100.0,
            due * 100.0
        );
        report.add("priority_share", json!({ "share": share, "wanted": due, "starts_per_s": rate }));
    }
    Ok(())
}
