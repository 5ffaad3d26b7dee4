//! What limits cost: tasks through submit, claim and ack without any, and under one of each kind.

use clap::Args;
use minutehand::clock::mono;
use minutehand::model::queue::{PlacementSettings, placement_rate};
use minutehand::model::{Bucket, LaneCode, QueueName, Spec};
use minutehand::store::Space;
use minutehand::store::due::{self, Claim, ClaimAnswer, ClaimLimits, Purse, Rule, random_16};
use minutehand::store::intake::{Backlog, Row};
use serde_json::json;
use std::sync::Arc;

use crate::kit::redis::{Door, Redis};
use crate::kit::report::{Report, table};
use crate::kit::shape::{BASE_MS, BATCH, Batches, Shape, lanes};
use crate::kit::stat::{Failure, median};
use crate::lifecycle::{ack, open, submit};

/// What is run.
#[derive(Debug, Clone, Copy, Args)]
pub struct LimitsArgs {
    /// Tasks of each run.
    #[arg(long, default_value_t = 40_000)]
    tasks: usize,
    /// Buckets they lie in.
    #[arg(long, default_value_t = 8)]
    buckets: u16,
    /// Rounds; each kind runs once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Tasks of a placement key that are due together, where keys are shared.
const OF_A_KEY: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    None,
    Rate,
    Running,
    Backlog,
    Placed,
    KeyRunning,
    KeyRate,
    KeyShared,
    KeyOrder,
}

impl Kind {
    const ALL: [(Self, &'static str); 9] = [
        (Self::None, "none"),
        (Self::Rate, "a rate"),
        (Self::Running, "running at once"),
        (Self::Backlog, "a backlog"),
        (Self::Placed, "placement keys, no limit"),
        (Self::KeyRunning, "1 of a key at once, each key once"),
        (Self::KeyRate, "5/h of a key, each key once"),
        (Self::KeyShared, "1 of a key at once, ten of each"),
        (Self::KeyOrder, "in order, ten of each key"),
    ];

    fn rule(self) -> Option<PlacementSettings> {
        let base = PlacementSettings::default;
        match self {
            Self::KeyRunning | Self::KeyShared => Some(PlacementSettings { running: Some(1), ..base() }),
            Self::KeyRate => Some(PlacementSettings { rate: placement_rate("5/h").ok(), ..base() }),
            Self::KeyOrder => Some(PlacementSettings { ordered: true, ..base() }),
            _ => None,
        }
    }

    fn spec(self, number: usize, spec: Spec) -> Spec {
        let key = match self {
            Self::None | Self::Rate | Self::Running => return spec,
            Self::Backlog => return Spec { bound: true, ..spec },
            Self::Placed | Self::KeyRunning | Self::KeyRate => number,
            Self::KeyShared | Self::KeyOrder => number / OF_A_KEY,
        };
        Spec { placement: Some(format!("recipient-{key:08}").into()), ..spec }
    }

    fn limits(self, lane: LaneCode) -> ClaimLimits {
        let group = lane.group();
        let purse = |purse, counted: bool| ClaimLimits {
            purses: vec![purse],
            rules: vec![Rule { group, tiers: 0b111_1111, purse: 0 }],
            counted: counted.then_some(group).into_iter().collect(),
            ..ClaimLimits::default()
        };
        match (self, self.rule()) {
            (Self::Rate, _) => purse(Purse::Tokens(1_000_000), false),
            (Self::Running, _) => purse(Purse::Running(1_000_000), true),
            (_, Some(rule)) => ClaimLimits { placed: rule.rule(group).into(), ..ClaimLimits::default() },
            _ => ClaimLimits::default(),
        }
    }
}

/// One run on a fresh server: µs of the server a task, and tasks a second from claim to ack.
async fn one(kind: Kind, door: Door, args: LimitsArgs) -> Result<(f64, f64), Failure> {
    let mut redis = Redis::start(door)?;
    let shape = Shape::narrow(args.tasks, args.buckets);
    let space = open(&redis, &shape, 1).await?;
    let lanes = lanes(&space, &shape).await?;
    let backlog = Arc::new(Backlog { queue: QueueName::new("push.0")?, most: 1_000_000_000 });
    let mut number = 0;
    let batches: Vec<(Bucket, Vec<Row>)> = Batches::new(shape, &lanes)
        .map(|(bucket, rows)| {
            let rows = rows.into_iter().map(|row| {
                number += 1;
                let spec = kind.spec(number - 1, row.spec);
                Row { backlog: Some(Arc::clone(&backlog)), ..Row::new(row.id, spec) }
            });
            (bucket, rows.collect())
        })
        .collect();
    // Scripts are loaded by the first call of each; it is the same for all.
    let before = redis.cpu_us()?;
    for (bucket, rows) in &batches {
        submit(&space, *bucket, rows).await?;
    }
    space.inject_now(Some(BASE_MS + shape.span_ms));
    let begun = mono();
    let mut done = 0;
    for bucket in (0..args.buckets).filter_map(Bucket::new) {
        done += drain(&space, bucket, kind.limits(lanes[0])).await?;
    }
    if done != args.tasks {
        return Err(format!("{kind:?}: {done} of {} tasks came", args.tasks).into());
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(((redis.cpu_us()? - before) / args.tasks as f64, args.tasks as f64 / seconds))
}

async fn drain(space: &Space, bucket: Bucket, limits: ClaimLimits) -> Result<usize, Failure> {
    let most = u32::try_from(BATCH).unwrap_or(500);
    let mut claim = Claim { limit: most, normal_limit: most, limits, ..Claim::new("pod-1", random_16()) };
    let (mut done, mut idle) = (0, 0);
    while idle < 3 {
        claim.again();
        let ClaimAnswer::Held(claimed) = due::claim(space, bucket, &claim).await? else {
            return Err("another pod holds the bucket".into());
        };
        idle = if claimed.tasks.is_empty() && !claimed.again { idle + 1 } else { 0 };
        if !claimed.tasks.is_empty() {
            done += ack(space, bucket, claimed.tasks.iter().map(|task| (task.id, task.grant))).await?;
        }
    }
    Ok(done)
}

/// Runs every kind in turn, round by round.
pub async fn run(report: &mut Report, door: Door, args: LimitsArgs) -> Result<(), Failure> {
    let mut found: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); Kind::ALL.len()];
    for _ in 0..args.rounds {
        for ((kind, _), (cpu, speed)) in Kind::ALL.iter().zip(&mut found) {
            let (us, rate) = one(*kind, door, args).await?;
            cpu.push(us);
            speed.push(rate);
        }
    }
    let base = median(&found[0].0);
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for ((_, name), (cpu, speed)) in Kind::ALL.iter().zip(&found) {
        let (us, rate) = (median(cpu), median(speed));
        rows.push(vec![
            (*name).to_owned(),
            format!("{us:.2}"),
            format!("{:.2}", us / base),
            format!("{rate:.0}"),
        ]);
        results.push(json!({ "limit": name, "us": us, "ratio": us / base, "per_second": rate }));
    }
    let title = format!("Limits: {} tasks from submit to ack, {} rounds", args.tasks, args.rounds);
    table(&title, &["limit", "µs of redis a task", "× none", "tasks/s, claim to ack"], &rows);
    report.add("limits", results.into());
    Ok(())
}
