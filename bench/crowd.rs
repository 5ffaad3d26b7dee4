//! What many executors and many idle buckets cost.

use std::time::Duration;

use minutehand::clock;
use minutehand::model::Namespace;
use minutehand::store::due::{self, Claim, ClaimAnswer};
use minutehand::store::member::{self, ExecutorRecord};
use minutehand::store::{Space, run};
use tokio::task::JoinSet;

use crate::kit::fleet::Fleet;
use crate::kit::redis::Redis;
use crate::kit::shape::{Batches, Shape, lanes};
use crate::kit::stat::{Failure, median};
use crate::lifecycle;

/// What a crowd of executors did to claims.
pub struct Crowd {
    /// Heartbeats that were sent.
    pub beats: usize,
    /// How long they took, in ms.
    pub beat_p50: f64,
    pub beat_p99: f64,
    /// Time of a claim of 100 tasks without them and beside them, in ms, the middle one of each.
    pub claim_alone: f64,
    pub claim_beside: f64,
    /// µs of the server's main thread that a second of heartbeats takes, with one pod that reads the registry.
    pub redis_us_per_s: f64,
}

/// Claims and ends batches of 100 for so long; answers what each claim took in ms.
async fn claims(space: &Space, shape: Shape, longest: Duration) -> Result<Vec<f64>, Failure> {
    let lanes = lanes(space, &shape).await?;
    let (mut took, start) = (Vec::new(), clock::mono());
    let mut claim = Claim { limit: 100, normal_limit: 100, ..Claim::new("crowd", due::random_16()) };
    'all: for (bucket, rows) in Batches::new(shape, &lanes) {
        lifecycle::submit(space, bucket, &rows).await?;
        loop {
            claim.again();
            let before = clock::mono();
            let ClaimAnswer::Held(claimed) = due::claim(space, bucket, &claim).await? else {
                return Err("somebody else holds the bucket".into());
            };
            took.push(before.elapsed().as_secs_f64() * 1_000.0);
            if claimed.tasks.is_empty() {
                took.pop();
                break;
            }
            let ended: Vec<_> = claimed
                .tasks
                .iter()
                .map(|task| run::AckRow {
                    id: task.id,
                    grant: task.grant,
                    outcome: run::Outcome::Succeeded,
                    lag_ms: 0,
                    took_ms: 0,
                })
                .collect();
            run::ack(space, bucket, "crowd", &ended, false).await?;
            if start.elapsed() > longest {
                break 'all;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(took)
}

/// Many executors that report every three seconds, and one pod that reads them.
pub async fn executors(redis: &mut Redis, executors: usize, seconds: u64) -> Result<Crowd, Failure> {
    let mut fleet = Fleet::open(redis, 8, 1).await?;
    fleet.add_pods(1)?;
    fleet.add_workers(0).await?;
    // Tasks of another namespace on the same server, so that nobody else claims them; all due long ago.
    let own = Space::open(redis.store(2).await?, Namespace::new("claims")?).await?;
    own.inject_now(Some(crate::kit::shape::BASE_MS + 3_600_000));
    let shape = Shape::narrow(1_000_000, 1);
    let longest = Duration::from_secs(seconds);
    let alone = claims(&own, shape, longest).await?;

    let stop = tokio_util::sync::CancellationToken::new();
    let mut beating = JoinSet::new();
    for n in 0..executors {
        let (space, stop) = (fleet.space.clone(), stop.clone());
        let record = ExecutorRecord {
            id: format!("crowd-{n:05}"),
            name: "crowd".into(),
            queues: vec!["nothing".into()],
            slots: 32,
            capacity: 32,
            host: "somewhere".into(),
            averages: vec![("nothing".into(), 1.0)],
            ..ExecutorRecord::default()
        };
        beating.spawn(async move {
            let mut took = Vec::new();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3_000))).await;
            while !stop.is_cancelled() {
                let before = clock::mono();
                member::beat_executor(&space, &record).await?;
                took.push(before.elapsed().as_secs_f64() * 1_000.0);
                let pause = tokio::time::sleep(Duration::from_millis(3_000));
                stop.run_until_cancelled(pause).await;
            }
            Ok::<_, minutehand::store::StoreError>(took)
        });
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let cpu = redis.cpu_us()?;
    tokio::time::sleep(longest).await;
    let redis_us_per_s = (redis.cpu_us()? - cpu) / longest.as_secs_f64();
    let beside = claims(&own, Shape { tasks: 1_000_000, ..shape }, longest).await?;
    stop.cancel();
    let mut took = Vec::new();
    while let Some(done) = beating.join_next().await {
        // The first beat of each is its registration.
        took.extend(done??.into_iter().skip(1));
    }
    took.sort_by(f64::total_cmp);
    let at =
        |share: f64| took.get(((took.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    Ok(Crowd {
        beats: took.len(),
        beat_p50: at(0.5),
        beat_p99: at(0.99),
        claim_alone: median(&alone),
        claim_beside: median(&beside),
        redis_us_per_s,
    })
}

/// Commands a second that one pod sends for so many buckets in which nothing waits, with one executor; and
/// µs of the server's main thread a second.
pub async fn idle(redis: &mut Redis, buckets: u16, seconds: u64) -> Result<(f64, f64), Failure> {
    let mut fleet = Fleet::open(redis, buckets, 1).await?;
    fleet.add_pods(1)?;
    fleet.add_workers(1).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (calls, cpu) = (redis.calls()?, redis.cpu_us()?);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(((redis.calls()? - calls) / seconds as f64, (redis.cpu_us()? - cpu) / seconds as f64))
}
