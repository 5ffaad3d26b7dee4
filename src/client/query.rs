//! Looking: one task, and how things stand.

use super::holds::{BreakerStatus, HeldQueue, Holds};
use super::{Client, ClientError, repeat};
use crate::model::route::why::{self, Offered};
use crate::model::{
    Bucket, Labels, LaneCode, LaneGroup, Phase, PlanName, Priority, Progress, QueueName, Spec, State, TaskId,
    UnixMs,
};
use crate::store::member::{ExecutorRecord, PodRecord};
use crate::store::queue::Frozen;
use crate::store::read::{self, Attempt, BucketCounts, Found, Lags, Waits};
use crate::store::{Space, StoreError, member, run};
use serde::{Serialize, Serializer};
use tokio::task::JoinSet;

/// A task as people see it.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct TaskView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Its state.
    #[schema(value_type = String)]
    pub state: State,
    /// The state in everyday words: scheduled, ready, retrying, held, or how far a running one is.
    pub view: &'static str,
    /// What holds it back, if something does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Its queue; not known once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Labels it asks for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Its priority.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "priority_text")]
    #[schema(value_type = Option<String>)]
    pub priority: Option<Priority>,
    /// When it is due.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "time_text")]
    #[schema(value_type = Option<String>)]
    pub due: Option<UnixMs>,
    /// Failed attempts so far.
    pub failures: u32,
    /// Tries after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u8>,
    /// Its back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    /// Its idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub plan: Option<PlanName>,
    /// Why nobody takes it, where it is ripe and nobody can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unserved: Option<String>,
    /// Its placement key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Pod or executor that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Number of its current or last grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u32>,
    /// When its lease lapses.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "time_text")]
    #[schema(value_type = Option<String>)]
    pub lease_until: Option<UnixMs>,
    /// How far it is, where its handler says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Whether it was asked to stop.
    pub cancel_asked: bool,
    /// Why it died.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Failed attempts, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Name of the key that the payload is sealed with, where it could not be opened here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
    /// The payload, where it is still kept.
    #[serde(skip)]
    #[schema(value_type = Option<String>)]
    pub payload: Option<bytes::Bytes>,
}

pub(super) fn time_text<S: Serializer>(at: &Option<UnixMs>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => serializer.collect_str(at),
        None => serializer.serialize_none(),
    }
}

fn priority_text<S: Serializer>(priority: &Option<Priority>, serializer: S) -> Result<S::Ok, S::Error> {
    match priority {
        Some(priority) => serializer.collect_str(priority),
        None => serializer.serialize_none(),
    }
}

/// Tasks by state, summed over the buckets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Counts {
    /// Ever accepted.
    pub submitted: i64,
    /// Waiting for something.
    pub waiting: i64,
    /// Pending: scheduled + ready + retrying + held.
    pub pending: i64,
    /// Pending and not ripe, first try. Approximate.
    pub scheduled: i64,
    /// Ripe and waiting for its turn. Approximate.
    pub ready: i64,
    /// Pending after a failure. Approximate.
    pub retrying: i64,
    /// Ripe in a lane that may not be claimed, or of a frozen plan. Approximate.
    pub held: i64,
    /// Granted.
    pub running: i64,
    /// Done.
    pub succeeded: i64,
    /// Dead letters.
    pub dead: i64,
    /// Cancelled.
    pub cancelled: i64,
    /// Expired.
    pub expired: i64,
    /// Left out.
    pub skipped: i64,
    /// Dead letters that were removed.
    pub deleted: i64,
}

impl Counts {
    /// The counters of one bucket.
    fn of(bucket: &BucketCounts, holds: &Holds, space: &Space) -> Self {
        // Lanes stand aside because they are held, or because nobody serves them; only the former count as such.
        let frozen = |lane: &LaneCode| {
            let group = space.known_name(lane.group());
            holds.all() || group.is_some_and(|group| holds.of_lane(&group.queue, lane.tier()).is_some())
        };
        let lanes = bucket.parked.iter().chain(&bucket.ready);
        let aside: i64 = lanes.filter(|(lane, _)| frozen(lane)).map(|(_, size)| *size as i64).sum();
        let held = aside + bucket.count("held");
        let pending = bucket.count("pending");
        let retrying = bucket.tries.min(pending);
        let ready = (bucket.count("ready") - aside).max(0);
        Self {
            submitted: bucket.count("submitted"),
            waiting: bucket.count("waiting"),
            pending,
            scheduled: (pending - ready - retrying - held).max(0),
            ready,
            retrying,
            held,
            running: bucket.count("running"),
            succeeded: bucket.count("succeeded"),
            dead: bucket.count("dead"),
            cancelled: bucket.count("cancelled"),
            expired: bucket.count("expired"),
            skipped: bucket.count("skipped"),
            deleted: bucket.count("deleted"),
        }
    }

    fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.waiting += other.waiting;
        self.pending += other.pending;
        self.scheduled += other.scheduled;
        self.ready += other.ready;
        self.retrying += other.retrying;
        self.held += other.held;
        self.running += other.running;
        self.succeeded += other.succeeded;
        self.dead += other.dead;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.skipped += other.skipped;
        self.deleted += other.deleted;
    }

    /// Whether every task has come to an end.
    pub fn is_quiet(&self) -> bool {
        self.waiting == 0 && self.pending == 0 && self.running == 0
    }
}

/// Start − due of the last five minutes, in ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LagStatus {
    /// Half of the starts were at most this late.
    pub p50: Option<i64>,
    /// 95 in 100 were.
    pub p95: Option<i64>,
    /// 99 in 100 were.
    pub p99: Option<i64>,
    /// The latest.
    pub max: Option<i64>,
    /// Starts counted.
    pub count: u64,
}

impl LagStatus {
    fn of(lags: &Lags) -> Self {
        let count = lags.count();
        Self {
            p50: lags.quantile(0.5),
            p95: lags.quantile(0.95),
            p99: lags.quantile(0.99),
            max: (count > 0).then_some(lags.max_ms),
            count,
        }
    }
}

/// One bucket.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct BucketStatus {
    /// Its number.
    pub bucket: u16,
    /// Pods that hold it.
    pub holders: Vec<String>,
    /// The Redis server that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether it takes no new tasks.
    pub closed: bool,
    /// Its tasks.
    pub counts: Counts,
    /// When its next task is due.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "time_text")]
    #[schema(value_type = Option<String>)]
    pub next_due: Option<UnixMs>,
}

/// The server.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct RedisStatus {
    /// Its version, of the oldest master.
    pub version: String,
    /// `redis` or `valkey`.
    pub flavor: &'static str,
    /// `single`, `cluster` or `sentinel`.
    pub mode: &'static str,
    /// Bytes in use, over all masters.
    pub used_memory: u64,
    /// Where it is reached, without a password.
    pub url: String,
}

/// How things stand.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Status {
    /// The namespace.
    pub namespace: String,
    /// Redis's time of the answer.
    #[serde(serialize_with = "now_text")]
    #[schema(value_type = String)]
    pub now: UnixMs,
    /// Tasks by state.
    pub counts: Counts,
    /// Which of the counts are approximate: the views of pending.
    #[schema(value_type = Vec<String>)]
    pub approximate: [&'static str; 4],
    /// Start − due of the last five minutes.
    pub lag_ms: LagStatus,
    /// The buckets.
    pub buckets: Vec<BucketStatus>,
    /// What is frozen.
    pub frozen: Vec<Frozen>,
    /// Queues of which nothing is claimed now, and why.
    pub held: Vec<HeldQueue>,
    /// Breakers of queues and downstreams.
    pub breakers: Vec<BreakerStatus>,
    /// Why no task that has failed may go, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_retries: Option<String>,
    /// Live pods.
    pub pods: Vec<PodRecord>,
    /// Live executors.
    pub executors: Vec<ExecutorRecord>,
    /// The server.
    pub redis: RedisStatus,
}

fn now_text<S: Serializer>(at: &UnixMs, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

impl Client {
    /// All that is known of a task; nothing when it never was, or ended too long ago.
    pub async fn get(&self, id: TaskId) -> Result<Option<TaskView>, ClientError> {
        let space = self.space();
        match repeat(space, || read::get(space, id)).await? {
            Some(found) => Ok(Some(self.opened(view(space, id, found).await?))),
            None => Ok(None),
        }
    }

    /// A task with its payload as its submitter gave it, if the key is here.
    fn opened(&self, mut view: TaskView) -> TaskView {
        if let (Some(keys), Some(name), Some(payload), Some(queue)) =
            (&self.keys, &view.sealed, &view.payload, &view.queue)
            && let Ok(queue) = QueueName::new(queue)
            && let Ok(opened) = keys.open(self.space().namespace(), &queue, name, payload)
        {
            (view.payload, view.sealed) = (Some(opened), None);
        }
        view
    }

    /// Tasks by state, and the lags: the cheap part of [`Self::status`].
    pub async fn counts(&self) -> Result<(Counts, LagStatus), ClientError> {
        let (mut counts, mut lags) = (Counts::default(), Lags::default());
        let space = self.space();
        let holds = self.holds().await?;
        for (_, bucket) in all_counts(space).await? {
            counts.add(&Counts::of(&bucket, &holds, space));
            lags.merge(&bucket.lags);
        }
        Ok((counts, LagStatus::of(&lags)))
    }

    /// What holds queues back, with their names at hand.
    async fn holds(&self) -> Result<Holds, StoreError> {
        let holds = Holds::read(self.space()).await?;
        if !holds.is_empty() {
            self.space().groups().await?;
        }
        Ok(holds)
    }

    /// Live pods, by their ids.
    pub async fn pods(&self) -> Result<Vec<PodRecord>, ClientError> {
        let space = self.space();
        let mut pods = repeat(space, || member::pods(space)).await?;
        pods.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(pods)
    }

    /// Live executors, by their names.
    pub async fn executors(&self) -> Result<Vec<ExecutorRecord>, ClientError> {
        let space = self.space();
        let mut executors = repeat(space, || member::executors(space)).await?;
        executors.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok(executors)
    }

    /// How things stand.
    pub async fn status(&self) -> Result<Status, ClientError> {
        let space = self.space();
        let live: std::collections::BTreeSet<Bucket> = space.refresh_spread().await?.live().collect();
        let holds = self.holds().await?;
        let (mut counts, mut lags, mut buckets, mut now) =
            (Counts::default(), Lags::default(), Vec::new(), UnixMs(space.clock().now_ms()));
        for (bucket, found) in all_counts(space).await? {
            let own = Counts::of(&found, &holds, space);
            counts.add(&own);
            lags.merge(&found.lags);
            now = now.max(found.now);
            // One that has vanished has nothing left but its counters.
            if !live.contains(&bucket) {
                continue;
            }
            buckets.push(BucketStatus {
                node: space.store().node_of(crate::model::bucket::slot_of_bucket(space.namespace(), bucket)),
                bucket: bucket.number(),
                holders: found.holders.iter().map(|(pod, _)| pod.clone()).collect(),
                closed: found.closed,
                counts: own,
                next_due: found.first_due,
            });
        }
        let info = space.store().server_info().await?;
        let (executors, pods) = (self.executors().await?, self.pods().await?);
        Ok(Status {
            namespace: space.namespace().to_string(),
            now,
            counts,
            approximate: ["scheduled", "ready", "retrying", "held"],
            lag_ms: LagStatus::of(&lags),
            buckets,
            held: holds.list(),
            breakers: holds.breakers(),
            no_retries: holds.no_retries(),
            frozen: holds.freeze.frozen,
            pods,
            executors,
            redis: RedisStatus {
                version: info.version.clone(),
                flavor: info.flavor.name(),
                mode: info.mode.name(),
                used_memory: info.nodes.iter().map(|node| node.used_memory_bytes).sum(),
                url: space.store().url(),
            },
        })
    }
}

/// Counter calls under way at a time.
const AT_ONCE: usize = 16;

/// The counters of all buckets, each read in one script.
async fn all_counts(space: &Space) -> Result<Vec<(Bucket, BucketCounts)>, StoreError> {
    let mut left = space.spread().all();
    let (mut running, mut out) = (JoinSet::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE {
            let Some(bucket) = left.next() else { break };
            let space = space.clone();
            running.spawn(async move { (bucket, read::counts(&space, bucket).await) });
        }
        match running.join_next().await {
            Some(Ok((bucket, counts))) => out.push((bucket, counts?)),
            Some(Err(_)) => return Err(StoreError::Closed),
            None => break,
        }
    }
    out.sort_unstable_by_key(|(bucket, _)| *bucket);
    Ok(out)
}

/// Why no executor takes tasks of a queue with labels; nothing when one does.
async fn unserved(space: &Space, group: &LaneGroup) -> Result<Option<String>, StoreError> {
    let executors = member::roll(space).await?.live;
    let labels: Vec<_> =
        executors.iter().map(|executor| Labels::new(&executor.labels).unwrap_or_default()).collect();
    let offered: Vec<_> = executors
        .iter()
        .zip(&labels)
        .map(|(executor, labels)| Offered { queues: &executor.queues, labels, draining: executor.draining })
        .collect();
    Ok(why::unserved(group, &offered))
}

/// Why a task waits for others of its placement key, in words.
fn waits_words((waits, again): (Waits, Option<UnixMs>), spec: &Spec) -> String {
    let key = String::from_utf8_lossy(spec.placement.as_deref().unwrap_or_default()).into_owned();
    match (waits, again) {
        (Waits::Turn(id), _) => format!("{id} of {key} comes first"),
        (Waits::Running(1), _) => format!("1 of {key} is running"),
        (Waits::Running(count), _) => format!("{count} of {key} are running"),
        (Waits::Share, Some(at)) => format!("{key} has had its share until {at}"),
        (Waits::Share, None) => format!("{key} has had its share"),
    }
}

async fn view(space: &Space, id: TaskId, found: Found) -> Result<TaskView, StoreError> {
    let spec = found.spec.as_ref().and_then(|bytes| Spec::decode(bytes, id.home().start()).ok());
    let lane: Option<LaneCode> = found.place.map(|place| place.lane).or(spec.as_ref().map(|spec| spec.lane));
    let group = match lane {
        Some(lane) => Some(space.group_of(lane.group()).await?),
        None => None,
    };
    let due = found.place.map(|place| place.due).or(spec.as_ref().map(|spec| spec.due));
    let failures = found.place.map_or(0, |place| place.failures);
    let plan = spec.as_ref().and_then(|spec| spec.plan.clone());
    let holds = match found.state {
        State::Pending => Holds::read(space).await?,
        _ => Holds::default(),
    };
    let held = group
        .as_ref()
        .and_then(|group| holds.of_lane(&group.queue, lane.map(LaneCode::tier).unwrap_or_default()))
        .or_else(|| holds.of_plan(plan.as_ref()?))
        .or_else(|| Some(waits_words(found.waits?, spec.as_ref()?)));
    let view = match (found.state, &found.run) {
        (State::Running, Some(run)) if run.phase == Phase::Claimed => "claimed",
        (State::Running, Some(run)) if run.phase == Phase::Offered => "offered",
        (State::Running, _) => "started",
        (State::Pending, _) if held.is_some() => "held",
        (State::Pending, _) if due.is_some_and(|due| due > found.now) && failures > 0 => "retrying",
        (State::Pending, _) if due.is_some_and(|due| due > found.now) => "scheduled",
        (State::Pending, _) => "ready",
        (state, _) => state.name(),
    };
    let unserved = match &group {
        Some(group) if view == "ready" => unserved(space, group).await?,
        _ => None,
    };
    let progress = match view {
        "started" => run::marked(space, id, Progress::FIELD).await?,
        _ => None,
    };
    let labels = group.as_ref().map(|group| group.labels.clone()).unwrap_or_else(Labels::default);
    Ok(TaskView {
        id,
        state: found.state,
        view,
        held,
        unserved,
        queue: group.map(|group| group.queue.to_string()),
        labels: labels.as_slice().to_vec(),
        priority: lane.map(LaneCode::priority),
        due,
        failures,
        retries: spec.as_ref().map(|spec| spec.retry.retries),
        backoff: spec.as_ref().map(|spec| spec.retry.to_string()),
        key: spec
            .as_ref()
            .and_then(|spec| Some(String::from_utf8_lossy(&spec.key.as_ref()?.bytes).into_owned())),
        placement: spec
            .as_ref()
            .and_then(|spec| Some(String::from_utf8_lossy(spec.placement.as_ref()?).into_owned())),
        plan,
        holder: found.run.as_ref().map(|run| run.holder.clone()),
        fence: found
            .run
            .as_ref()
            .map(|run| run.grant.fence())
            .or(found.place.map(|place| place.fence).filter(|f| *f > 0)),
        lease_until: found.run.as_ref().map(|run| run.deadline),
        progress: progress.and_then(|bytes| serde_json::from_slice(&bytes).ok()),
        cancel_asked: found.run.as_ref().is_some_and(|run| run.cancel),
        reason: found.dead.map(|(reason, _)| reason),
        attempts: found.attempts,
        sealed: spec.as_ref().and_then(|spec| spec.extras.sealed.clone()),
        payload: spec.map(|spec| spec.payload),
    })
}
