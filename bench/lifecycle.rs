//! The life of tasks through the real scripts, called as pod and executor call them.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use minutehand::clock::mono;
use minutehand::model::{Bucket, Grant, Namespace, TaskId};
use minutehand::store::due::{self, Claim, ClaimAnswer, Granted, random_16};
use minutehand::store::intake::{self, Row, Sending, SubmitAnswer};
use minutehand::store::member::{self, ExecutorRecord, Offer, OfferAnswer, Take};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome, StartRow};
use minutehand::store::{Birth, Space};
use tokio::task::JoinSet;

use crate::floor::Cost;
use crate::kit::redis::Redis;
use crate::kit::shape::{BASE_MS, BATCH, Batches, Shape, lanes};
use crate::kit::stat::Failure;

const POD: &str = "pod-00000001";
const EXECUTOR: &str = "executor-001";
const CAPACITY: u32 = 10_000;
/// How far the injected clock goes on with each claim of a bucket, once all is due. A batch of 500 every
/// 160 ms is 3,125 tasks/s a bucket: in a run of 100,000 tasks most lease strings fall due and are read.
const CLAIM_EVERY_MS: i64 = 160;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Claims come when a batch is due, so that tasks pass straight through.
    Flow,
    /// All tasks are due before the first claim, so that they go through their lanes.
    Backlog,
}

/// A namespace on a server, with one executor.
pub async fn open(redis: &Redis, shape: &Shape, pool: usize) -> Result<Space, Failure> {
    let store = redis.store(pool).await?;
    let birth = Birth { key_buckets: shape.buckets, buckets: shape.buckets, holders: 1 };
    let space = Space::open_as(store, Namespace::new("mh")?, birth).await?;
    space.inject_now(Some(BASE_MS - 60_000));
    Ok(space)
}

async fn register(space: &Space) -> Result<(), Failure> {
    let me = ExecutorRecord {
        id: EXECUTOR.into(),
        capacity: CAPACITY,
        slots: CAPACITY,
        ..ExecutorRecord::default()
    };
    Ok(member::beat_executor(space, &me).await?)
}

pub async fn submit(space: &Space, bucket: Bucket, rows: &[Row]) -> Result<(), Failure> {
    let sending = Sending { by_spread: true, ..Sending::default() };
    match intake::submit(space, bucket, rows, sending).await? {
        SubmitAnswer::Rows { .. } => Ok(()),
        SubmitAnswer::SpreadChanged => Err("the bucket is closed".into()),
    }
}

/// A pod's hold on one bucket.
pub struct Holder {
    claim: Claim,
    bucket: Bucket,
    pub next_due: i64,
}

impl Holder {
    pub fn new(bucket: Bucket) -> Self {
        let limit = u32::try_from(BATCH).unwrap_or(500);
        let claim = Claim { limit, normal_limit: limit, ..Claim::new(POD, random_16()) };
        Self { claim, bucket, next_due: BASE_MS }
    }

    /// Bytes of events that its claims leave in the bucket.
    pub fn events_max_bytes(&self) -> usize {
        self.claim.events_max_bytes
    }

    pub async fn claim(&mut self, space: &Space) -> Result<Vec<Granted>, Failure> {
        self.claim.again();
        match due::claim(space, self.bucket, &self.claim).await? {
            ClaimAnswer::Held(claimed) => {
                self.next_due = claimed.next_due.map_or(claimed.now.0, |due| due.0);
                Ok(claimed.tasks)
            }
            ClaimAnswer::NotHolder { .. } => Err("another pod holds the bucket".into()),
        }
    }
}

pub async fn deliver(space: &Space, executor: &str, tasks: &[Granted]) -> Result<Vec<Offer>, Failure> {
    let mut offers = [Vec::new(), Vec::new()];
    for task in tasks {
        let urgent = task.lane.priority().is_urgent();
        let offer = Offer {
            ahead: false,
            id: task.id,
            grant: task.grant,
            group: task.lane.group(),
            urgent,
            due: task.due,
            attempt: task.failures + 1,
            not_after: task.due.plus(15_000),
            spec: task.spec.clone(),
        };
        offers[usize::from(urgent)].push(offer.encode());
    }
    let want = u32::try_from(BATCH).unwrap_or(500);
    let [normal, urgent]: [Vec<Bytes>; 2] = offers;
    match member::offer(space, POD, executor, &urgent, &normal, want, 0).await? {
        OfferAnswer::Accepted { urgent: u, normal: n, .. } if u + n == tasks.len() => {}
        other => return Err(format!("the inbox took {other:?} of {}", tasks.len()).into()),
    }
    let take = Take { normal: 1_000, urgent: 0, in_hand: 0, capacity: CAPACITY, urgent_capacity: 0 };
    Ok(member::take(space, executor, take).await?.offers)
}

pub async fn start(space: &Space, bucket: Bucket, offers: &[Offer]) -> Result<(), Failure> {
    let rows: Vec<_> =
        offers.iter().map(|offer| StartRow { id: offer.id, grant: offer.grant, lease_ms: 30_000 }).collect();
    run::start(space, bucket, EXECUTOR, &rows).await?;
    Ok(())
}

pub async fn ack(
    space: &Space,
    bucket: Bucket,
    tasks: impl Iterator<Item = (TaskId, Grant)>,
) -> Result<usize, Failure> {
    let rows: Vec<_> = tasks
        .enumerate()
        // Lags as they come on a busy day: most within 10 ms, a few bins in use.
        .map(|(at, (id, grant))| AckRow {
            id,
            grant,
            outcome: Outcome::Succeeded,
            lag_ms: i64::try_from(at % 13).unwrap_or(0),
            took_ms: 1,
        })
        .collect();
    let answers = run::ack(space, bucket, EXECUTOR, &rows, false).await?;
    Ok(answers.iter().filter(|answer| **answer == AckAnswer::Succeeded).count())
}

/// One run on a fresh server, one call at a time: CPU by step, µs a task; and of the start step, if wanted.
pub async fn run(
    redis: &mut Redis,
    shape: Shape,
    mode: Mode,
    with_start: bool,
) -> Result<(Cost, f64), Failure> {
    let space = open(redis, &shape, 1).await?;
    let lanes = lanes(&space, &shape).await?;
    let batches: Vec<_> = Batches::new(shape, &lanes).collect();
    register(&space).await?;
    warm(&space).await?;

    let (mut cost, mut started) = (Cost::default(), 0.0);
    let before = redis.cpu_us()?;
    let mut mark = redis.cpu_us_outside();
    let mut step = |redis: &Redis, into: &mut f64| {
        let now = redis.cpu_us_outside();
        *into += now - mark;
        mark = now;
    };
    for (bucket, rows) in &batches {
        submit(&space, *bucket, rows).await?;
    }
    step(redis, &mut cost.submit);

    let mut holders: Vec<Holder> = (0..shape.buckets).filter_map(Bucket::new).map(Holder::new).collect();
    let (mut done, mut turn, mut behind) = (0, 0, VecDeque::new());
    let mut now = if mode == Mode::Backlog { BASE_MS + shape.span_ms } else { BASE_MS };
    // Due times of one bucket's batch: when the next batch has become due.
    let stride =
        shape.span_ms * i64::try_from(BATCH).unwrap_or(500) / i64::try_from(shape.tasks).unwrap_or(1);
    let pace = if mode == Mode::Backlog { CLAIM_EVERY_MS / i64::from(shape.buckets) } else { stride };
    let mut beaten = 0;
    let mut idle = 0;
    while done < shape.tasks {
        now += pace.max(1);
        space.inject_now(Some(now));
        if now - beaten > 3_000 {
            register(&space).await?;
            beaten = now;
            step(redis, &mut cost.offer);
        }
        let holder = &mut holders[turn % usize::from(shape.buckets)];
        let bucket = holder.bucket;
        turn += 1;
        let tasks = holder.claim(&space).await?;
        step(redis, &mut cost.claim);
        if tasks.is_empty() {
            idle += 1;
        } else {
            behind.push_back((bucket, deliver(&space, EXECUTOR, &tasks).await?));
            step(redis, &mut cost.offer);
        }
        // Acks come a round later, as they do where several claims are under way.
        if behind.len() > usize::from(shape.buckets) || tasks.is_empty() {
            let Some((bucket, offers)) = behind.pop_front() else {
                if idle > 1_000 {
                    return Err(format!("only {done} of {} tasks came", shape.tasks).into());
                }
                continue;
            };
            if with_start {
                start(&space, bucket, &offers).await?;
                step(redis, &mut started);
            }
            done += ack(&space, bucket, offers.iter().map(|offer| (offer.id, offer.grant))).await?;
            step(redis, &mut cost.ack);
        }
    }
    let tasks = shape.tasks as f64;
    cost.whole = (redis.cpu_us()? - before) / tasks;
    for part in [&mut cost.submit, &mut cost.claim, &mut cost.offer, &mut cost.ack, &mut started] {
        *part /= tasks;
    }
    Ok((cost, started))
}

/// Loads the scripts ahead, so that no run pays for it.
async fn warm(space: &Space) -> Result<(), Failure> {
    for script in minutehand::store::SCRIPTS {
        let body = vec![Bytes::from_static(b"LOAD"), Bytes::from_static(script.body.as_bytes())];
        space.store().command("SCRIPT", minutehand::store::At::Any, body).await?;
    }
    Ok(())
}

/// Speeds, tasks a second.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    pub submit: f64,
    pub life: f64,
    /// CPU of the server's main thread, µs a task, submit to ack.
    pub cpu: f64,
}

/// One run on a fresh server, all buckets at the same time: how fast it goes.
pub async fn speed(redis: &mut Redis, shape: Shape, in_flight: usize) -> Result<Speed, Failure> {
    let space = open(redis, &shape, 2).await?;
    let lanes = lanes(&space, &shape).await?;
    let batches: Vec<_> = Batches::new(shape, &lanes).collect();
    register(&space).await?;
    warm(&space).await?;
    let before = redis.cpu_us()?;

    let begun = mono();
    let mut sending = JoinSet::new();
    for (bucket, rows) in batches {
        if sending.len() >= in_flight {
            sending.join_next().await.ok_or("no call")???;
        }
        let space = space.clone();
        sending.spawn(async move { submit(&space, bucket, &rows).await });
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    let submitted = begun.elapsed();

    space.inject_now(Some(BASE_MS + shape.span_ms));
    register(&space).await?;
    let begun = mono();
    let mut draining = JoinSet::new();
    for bucket in (0..shape.buckets).filter_map(Bucket::new) {
        let space = space.clone();
        draining.spawn(async move {
            let (mut holder, mut done, mut idle) = (Holder::new(bucket), 0, 0);
            let executor = format!("executor-{:03}", bucket.number());
            let me = ExecutorRecord { id: executor.clone(), capacity: CAPACITY, ..ExecutorRecord::default() };
            member::beat_executor(&space, &me).await?;
            let mut acks = JoinSet::new();
            while idle < 2 {
                let tasks = holder.claim(&space).await?;
                if tasks.is_empty() {
                    idle += 1;
                    continue;
                }
                let offers = deliver(&space, &executor, &tasks).await?;
                let space = space.clone();
                acks.spawn(async move {
                    ack(&space, bucket, offers.iter().map(|offer| (offer.id, offer.grant))).await
                });
                if acks.len() > 1
                    && let Some(acked) = acks.join_next().await
                {
                    done += acked??;
                }
            }
            while let Some(acked) = acks.join_next().await {
                done += acked??;
            }
            Ok::<_, Failure>(done)
        });
    }
    let mut done = 0;
    while let Some(drained) = draining.join_next().await {
        done += drained??;
    }
    let drained = begun.elapsed();
    if done != shape.tasks {
        return Err(format!("only {done} of {} tasks came", shape.tasks).into());
    }
    let tasks = shape.tasks as f64;
    let rate = |time: Duration| tasks / time.as_secs_f64();
    Ok(Speed {
        submit: rate(submitted),
        life: rate(submitted + drained),
        cpu: (redis.cpu_us()? - before) / tasks,
    })
}
