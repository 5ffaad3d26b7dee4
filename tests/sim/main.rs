//! Several pods and executors in one thread, in an order drawn from a seed, against one real Redis.
//!
//! Pods and executors are plain state machines: each step one of them does one thing, and the time is
//! what the simulation says. Processes die and forget everything, sleep and go on with old permits and
//! old grants, lose replies and ask again; the clock leaps both ways. After every step the events and
//! counters must agree with what is legal; at the end everything must have ended, once.
//!
//! `MINUTEHAND_SIM_SEED=7` plays one seed, `MINUTEHAND_SIM_SEEDS=500` that many new ones. A seed repeats
//! the order and the draws; what Redis itself leaves to chance (the order within its hashes) it does not.

use minutehand::limits;
use minutehand::model::lane::Tier;
use minutehand::model::retry::Growth;
use minutehand::model::{
    Bucket, Grant, Key, LaneCode, LaneGroup, Namespace, Priority, QueueName, Retry, State, TaskId, UnixMs,
};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::dead::{self, RedriveAnswer};
use minutehand::store::due::{self, Claim, ClaimAnswer, Expected, Granted, ReleaseAnswer, random_16};
use minutehand::store::intake::{self, Row, RowAnswer, Sending, SubmitAnswer, WishAnswer};
use minutehand::store::member::{self, ExecutorRecord, Offer, OfferAnswer, Take};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome, StartAnswer, StartRow};
use minutehand::store::{Birth, Space, StoreError};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{T0, spec};
use minutehand::testing::invariants::Ledger;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const BUCKETS: u16 = 2;
const PODS: usize = 3;
const EXECUTORS: usize = 2;
const STEPS: usize = 260;
const SEEDS: u64 = 20;
const QUEUES: [&str; 2] = ["push", "mail"];
const CAPACITY: u32 = 24;
const LOCK_MS: i64 = 3_000;
const DISPATCH_MS: i64 = 15_000;
/// Rounds in which everything must end once nothing goes wrong any more.
const ROUNDS: usize = 400;
/// Steps of which a failed run is told.
const STEPS_TOLD: usize = 40;

type Done = Result<(), String>;

fn broken(error: StoreError) -> String {
    format!("redis: {error}")
}

/// A scheduler instance: what it would lose if it died.
struct Pod {
    id: String,
    permits: [[u8; 16]; BUCKETS as usize],
    /// Redis's time as last seen in a bucket, and the true time then.
    seen: [Option<(i64, i64)>; BUCKETS as usize],
    undelivered: Vec<Granted>,
    /// A claim whose answer it did not get.
    unanswered: Option<(Bucket, Claim)>,
    sleeps: u32,
}

struct InHand {
    id: TaskId,
    grant: Grant,
    not_after: i64,
    started: bool,
}

/// An executor: what it would lose if it died.
struct Executor {
    id: String,
    hand: Vec<InHand>,
    /// Outcomes to which it got no answer.
    unanswered: Vec<AckRow>,
    sleeps: u32,
}

/// Rows whose creator got no answer; what was answered, and how many leaps there had been.
struct Unanswered {
    bucket: Bucket,
    rows: Vec<Row>,
    answers: Vec<RowAnswer>,
    sent: i64,
    leaps: u32,
}

struct World {
    rng: fastrand::Rng,
    space: Space,
    ledger: Ledger,
    /// Time that has truly passed, and how far Redis's clock is off, in ms.
    passed: i64,
    off: i64,
    leaps: u32,
    lanes: Vec<LaneCode>,
    pods: Vec<Pod>,
    executors: Vec<Executor>,
    unanswered: Vec<Unanswered>,
    ids: Vec<TaskId>,
    born: u32,
    /// Grants whose outcome was accepted.
    accepted: BTreeSet<(TaskId, Grant)>,
    told: VecDeque<String>,
}

impl World {
    async fn new(bed: &Bed, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        // Chance in calls, ids and nonces.
        fastrand::seed(seed);
        let namespace = Namespace::new(&format!("{}-{seed:x}", bed.namespace())).expect("namespace");
        let birth = Birth { key_buckets: BUCKETS, buckets: BUCKETS, holders: 1 + (seed % 2) as u8 };
        let space = Space::open_as(bed.store().await.expect("store"), namespace, birth).await.expect("space");
        space.inject_now(Some(T0));
        let mut lanes = Vec::new();
        for queue in QUEUES {
            let group = LaneGroup::of(QueueName::new(queue).expect("queue"));
            let code = space.lane_group(&group).await.expect("lane");
            lanes.extend(Priority::ALL.map(|priority| LaneCode::new(code, priority, Tier::FRESH)));
        }
        let mut world = Self {
            rng,
            space,
            ledger: Ledger::new(),
            passed: 0,
            off: 0,
            leaps: 0,
            lanes,
            pods: Vec::new(),
            executors: Vec::new(),
            unanswered: Vec::new(),
            ids: Vec::new(),
            born: 0,
            accepted: BTreeSet::new(),
            told: VecDeque::new(),
        };
        for _ in 0..PODS {
            let pod = world.new_pod();
            world.pods.push(pod);
        }
        for _ in 0..EXECUTORS {
            let executor = world.new_executor();
            world.executors.push(executor);
        }
        world
    }

    fn new_pod(&mut self) -> Pod {
        self.born += 1;
        let id = format!("pod-{}", self.born);
        let permits = std::array::from_fn(|_| random_16());
        Pod {
            id,
            permits,
            seen: [None; BUCKETS as usize],
            undelivered: Vec::new(),
            unanswered: None,
            sleeps: 0,
        }
    }

    fn new_executor(&mut self) -> Executor {
        self.born += 1;
        Executor { id: format!("ex-{}", self.born), hand: Vec::new(), unanswered: Vec::new(), sleeps: 0 }
    }

    fn now(&self) -> i64 {
        T0 + self.passed + self.off
    }

    fn pass(&mut self, ms: i64) {
        self.passed += ms;
        self.space.inject_now(Some(self.now()));
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    fn bucket(&mut self) -> Bucket {
        Bucket::new(self.rng.u16(0..BUCKETS)).expect("bucket")
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == STEPS_TOLD {
            self.told.pop_front();
        }
        self.told.push_back(format!("{:+} {what}", self.now() - T0));
    }

    /// Judges what has happened since.
    async fn judge(&mut self) -> Done {
        self.ledger.follow(&self.space).await.map_err(broken)??;
        self.ledger.agree(&self.space).await.map_err(broken)?
    }

    async fn step(&mut self) -> Done {
        match self.rng.u32(0..100) {
            0..9 => self.submit().await,
            9..11 => self.submit_again().await,
            11..41 => self.pod_step().await,
            41..75 => self.executor_step().await,
            75..80 => self.wish().await,
            80..96 => {
                let ms = if self.chance(10) { 20_000 } else { 1_500 };
                let ms = self.rng.i64(1..ms);
                self.pass(ms);
                Ok(())
            }
            96..97 => {
                let at = self.rng.usize(0..PODS);
                self.tell(format!("{} dies", self.pods[at].id));
                self.pods[at] = self.new_pod();
                Ok(())
            }
            97..98 => {
                let at = self.rng.usize(0..EXECUTORS);
                self.tell(format!("{} dies", self.executors[at].id));
                self.executors[at] = self.new_executor();
                Ok(())
            }
            98..99 => {
                let sleeps = self.rng.u32(5..40);
                if self.rng.bool() {
                    let at = self.rng.usize(0..PODS);
                    self.pods[at].sleeps = sleeps;
                } else {
                    let at = self.rng.usize(0..EXECUTORS);
                    self.executors[at].sleeps = sleeps;
                }
                Ok(())
            }
            _ => {
                let ms = self.rng.i64(-60_000..120_000);
                self.off += ms;
                self.leaps += 1;
                self.space.inject_now(Some(self.now()));
                self.tell(format!("the clock leaps by {ms} ms"));
                Ok(())
            }
        }
    }

    // ---- creators ----

    fn new_row(&mut self, bucket: Bucket) -> Row {
        let now = self.now();
        let lane = self.lanes[self.rng.usize(0..self.lanes.len())];
        let mut spec = spec(lane, now + self.rng.i64(-500..20_000));
        spec.retry = Retry {
            retries: self.rng.u8(0..4),
            growth: [Growth::Fixed, Growth::Linear, Growth::Exponential { factor_percent: 300 }]
                [self.rng.usize(0..3)],
            base_ms: self.rng.u32(0..3_000),
            cap_ms: 10_000,
            jitter_percent: 20,
        };
        if self.chance(30) {
            let window = [0, 3_600_000][self.rng.usize(0..2)];
            spec.key = Some(Key::new(format!("k{}", self.rng.u32(0..12)), window).expect("key"));
        }
        if self.chance(10) {
            spec.deadline = Some(spec.due.plus(self.rng.i64(1..40_000)));
        }
        if self.chance(10) {
            spec.start_before = Some(spec.due.plus(self.rng.i64(1..10_000)));
        }
        Row::new(TaskId::new(spec.due.minute(), bucket, self.rng.u64(..)), spec)
    }

    async fn submit(&mut self) -> Done {
        let bucket = self.bucket();
        let count = self.rng.usize(1..20);
        let rows: Vec<Row> = (0..count).map(|_| self.new_row(bucket)).collect();
        let answers = self.send(bucket, &rows, None).await?;
        let created = answers.iter().filter(|answer| **answer == RowAnswer::Created).count();
        self.tell(format!("{created} of {count} tasks are created in {bucket}"));
        self.ids.extend(
            rows.iter().zip(&answers).filter(|(_, a)| **a == RowAnswer::Created).map(|(row, _)| row.id),
        );
        if self.chance(25) {
            let (sent, leaps) = (self.passed, self.leaps);
            self.unanswered.push(Unanswered { bucket, rows, answers, sent, leaps });
        }
        Ok(())
    }

    async fn send(&self, bucket: Bucket, rows: &[Row], again: Option<i64>) -> Result<Vec<RowAnswer>, String> {
        let sending = Sending { again_after_ms: again, ..Sending::default() };
        match intake::submit(&self.space, bucket, rows, sending).await.map_err(broken)? {
            SubmitAnswer::Rows { answers, .. } => Ok(answers),
            SubmitAnswer::SpreadChanged => Err("the bucket is closed".into()),
        }
    }

    /// The reply was lost, so the rows are sent again: what was created stands, and is not created again.
    async fn submit_again(&mut self) -> Done {
        let Some(old) = self.unanswered.pop() else { return Ok(()) };
        let again = self.passed - old.sent;
        // How long ago it was is told by the creator's clock; what Redis remembers goes by Redis's.
        if self.leaps != old.leaps || again > 100_000 {
            return Ok(());
        }
        let answers = self.send(old.bucket, &old.rows, Some(again)).await?;
        for ((row, before), after) in old.rows.iter().zip(&old.answers).zip(&answers) {
            // A key is free again once its task has ended; then another may stand under it.
            let ended = self
                .ledger
                .life(row.id)
                .is_some_and(|life| life.state.is_final() || life.state == State::Dead);
            let another = row.spec.key.is_some() && ended && matches!(after, RowAnswer::Duplicate(_));
            if *before == RowAnswer::Created && *after != RowAnswer::Created && !another {
                return Err(format!("{} was created and is now {after:?}", row.id));
            }
            if *before != RowAnswer::Created && *after == RowAnswer::Created {
                self.ids.push(row.id);
            }
        }
        Ok(())
    }

    async fn wish(&mut self) -> Done {
        if self.ids.is_empty() {
            return Ok(());
        }
        let id = self.ids[self.rng.usize(0..self.ids.len())];
        let Some(life) = self.ledger.life(id) else {
            return Err(format!("{id} was created and has no history"));
        };
        let state = life.state;
        let told = |state, answer: &WishAnswer| match state {
            State::Pending => *answer == WishAnswer::Done,
            State::Running => matches!(answer, WishAnswer::Running { .. }),
            State::Dead => *answer == WishAnswer::Dead,
            // Done says that it is cancelled; one that ended long ago may be forgotten.
            State::Cancelled => {
                matches!(answer, WishAnswer::Done | WishAnswer::Unknown | WishAnswer::Ended(State::Cancelled))
            }
            other => *answer == WishAnswer::Ended(other) || *answer == WishAnswer::Unknown,
        };
        let answer = match self.rng.u32(0..4) {
            0 => intake::cancel(&self.space, id.bucket(), "user", "asked", &[id])
                .await
                .map_err(broken)?
                .remove(0),
            1 => {
                let due = UnixMs(self.now() + self.rng.i64(-1_000..30_000));
                intake::reschedule(&self.space, "user", id, due).await.map_err(broken)?
            }
            2 => {
                let priority = Priority::ALL[self.rng.usize(0..6)];
                intake::reprioritize(&self.space, "user", id, priority).await.map_err(broken)?
            }
            _ => {
                let due = UnixMs(self.now() + self.rng.i64(0..5_000));
                let answers =
                    dead::redrive(&self.space, id.bucket(), "user", &[(id, due)]).await.map_err(broken)?;
                let right = match answers[0] {
                    RedriveAnswer::Unknown => state != State::Dead,
                    RedriveAnswer::Pending | RedriveAnswer::KeyConflict(_) => state == State::Dead,
                };
                return if right {
                    Ok(())
                } else {
                    Err(format!("{id} is {state}, a redrive says {answers:?}"))
                };
            }
        };
        self.tell(format!("{id}, which is {state}, is wished otherwise: {answer:?}"));
        if told(state, &answer) {
            Ok(())
        } else {
            Err(format!("{id} is {state}, a wish is answered {answer:?}"))
        }
    }

    // ---- pods ----

    async fn pod_step(&mut self) -> Done {
        let at = self.rng.usize(0..PODS);
        if self.pods[at].sleeps > 0 {
            self.pods[at].sleeps -= 1;
            return Ok(());
        }
        match self.rng.u32(0..100) {
            0..60 => self.claim(at).await,
            60..92 => self.deliver(at).await,
            92..97 => self.hand_back(at).await,
            _ => {
                let bucket = self.bucket();
                let pod = &self.pods[at];
                let permit = pod.permits[usize::from(bucket.number())];
                due::yield_bucket(&self.space, bucket, &pod.id, &permit).await.map_err(broken)
            }
        }
    }

    async fn claim(&mut self, at: usize) -> Done {
        let repeated = self.pods[at].unanswered.take();
        let again = repeated.is_some();
        let (bucket, claim) = match repeated {
            Some(repeated) => repeated,
            None => {
                let bucket = self.bucket();
                let pod = &self.pods[at];
                let index = usize::from(bucket.number());
                let expected = pod.seen[index].map(|(now, then)| UnixMs(now + self.passed - then));
                let expected = expected.map_or(Expected::Nothing, Expected::Now);
                let (id, permit) = (pod.id.clone(), pod.permits[index]);
                let limit = [0, 1, 5, 50][self.rng.usize(0..4)];
                let claim = Claim {
                    limit,
                    normal_limit: self.rng.u32(0..=limit),
                    holders: self.space.spread().holders,
                    lock_ms: LOCK_MS,
                    dispatch_ms: DISPATCH_MS,
                    expected,
                    ..Claim::new(&id, permit)
                };
                (bucket, claim)
            }
        };
        let answer = due::claim(&self.space, bucket, &claim).await.map_err(broken)?;
        self.judge().await?;
        let ClaimAnswer::Held(claimed) = answer else { return Ok(()) };
        let (now, passed) = (self.now(), self.passed);
        self.pods[at].seen[usize::from(bucket.number())] = Some((now, passed));
        if !claimed.tasks.is_empty() || claimed.reaped > 0 {
            let (count, reaped) = (claimed.tasks.len(), claimed.reaped);
            self.tell(format!(
                "{} claims {count} in {bucket}{}, {reaped} lapsed",
                self.pods[at].id,
                if again { " again" } else { "" }
            ));
        }
        if claimed.tasks.len() > claim.limit as usize {
            return Err(format!(
                "{} tasks were granted where {} were asked for",
                claimed.tasks.len(),
                claim.limit
            ));
        }
        for task in &claimed.tasks {
            if !self.ledger.is_current(task.id, task.grant.fence()) {
                return Err(format!("{} was granted under {:?}, which is not current", task.id, task.grant));
            }
            if task.due.0 > now && !again {
                return Err(format!("{} was granted {} ms before it is due", task.id, task.due.0 - now));
            }
        }
        if !again && self.chance(12) {
            self.pods[at].unanswered = Some((bucket, claim));
        } else {
            let known: BTreeSet<TaskId> = self.pods[at].undelivered.iter().map(|task| task.id).collect();
            self.pods[at]
                .undelivered
                .extend(claimed.tasks.into_iter().filter(|task| !known.contains(&task.id)));
        }
        Ok(())
    }

    async fn deliver(&mut self, at: usize) -> Done {
        let to = self.rng.usize(0..EXECUTORS);
        let executor = self.executors[to].id.clone();
        let count = self.rng.usize(0..=self.pods[at].undelivered.len());
        let tasks: Vec<Granted> = self.pods[at].undelivered.drain(..count).collect();
        let not_after = UnixMs(self.now() + DISPATCH_MS);
        let offer = |task: &Granted| Offer {
            ahead: false,
            id: task.id,
            grant: task.grant,
            group: task.lane.group(),
            urgent: task.lane.priority().is_urgent(),
            due: task.due,
            attempt: task.failures + 1,
            not_after,
            spec: task.spec.clone(),
        };
        let (urgent, normal): (Vec<Granted>, Vec<Granted>) =
            tasks.into_iter().partition(|task| task.lane.priority().is_urgent());
        let packed = |tasks: &[Granted]| tasks.iter().map(|task| offer(task).encode()).collect::<Vec<_>>();
        let want = self.rng.u32(0..10);
        let pod = self.pods[at].id.clone();
        let (first, second) = (packed(&urgent), packed(&normal));
        let answer = member::offer(&self.space, &pod, &executor, &first, &second, want, 0).await;
        let left = match answer.map_err(broken)? {
            OfferAnswer::Gone | OfferAnswer::Frozen => urgent.into_iter().chain(normal).collect::<Vec<_>>(),
            OfferAnswer::Accepted { urgent: u, normal: n, .. } => {
                if u > urgent.len() || n > normal.len() {
                    return Err(format!(
                        "an inbox took {u} and {n} of {} and {}",
                        urgent.len(),
                        normal.len()
                    ));
                }
                urgent.into_iter().skip(u).chain(normal.into_iter().skip(n)).collect()
            }
        };
        // What found no room is kept, or forgotten: then it comes back by its time-out.
        if self.chance(80) {
            self.pods[at].undelivered.extend(left);
        }
        Ok(())
    }

    async fn hand_back(&mut self, at: usize) -> Done {
        let pod = self.pods[at].id.clone();
        let tasks = std::mem::take(&mut self.pods[at].undelivered);
        self.release(&pod, tasks.into_iter().map(|task| (task.id, task.grant)).collect()).await
    }

    async fn release(&mut self, who: &str, rows: Vec<(TaskId, Grant)>) -> Done {
        let mut by_bucket: BTreeMap<u16, Vec<(TaskId, Grant)>> = BTreeMap::new();
        for row in rows {
            by_bucket.entry(row.0.bucket().number()).or_default().push(row);
        }
        for (number, rows) in by_bucket {
            let bucket = Bucket::new(number).expect("bucket");
            let expected: Vec<ReleaseAnswer> = rows
                .iter()
                .map(|(id, grant)| match self.ledger.life(*id) {
                    Some(life) if !self.ledger.is_current(*id, grant.fence()) || life.cancel_asked => {
                        if self.ledger.is_current(*id, grant.fence()) {
                            ReleaseAnswer::Cancelled
                        } else {
                            ReleaseAnswer::Stale
                        }
                    }
                    _ => ReleaseAnswer::HandedBack,
                })
                .collect();
            let answers = due::release(&self.space, bucket, who, "no room", &rows).await.map_err(broken)?;
            if answers != expected {
                return Err(format!(
                    "a hand-back of {rows:?} is answered {answers:?} instead of {expected:?}"
                ));
            }
            self.judge().await?;
        }
        Ok(())
    }

    // ---- executors ----

    async fn executor_step(&mut self) -> Done {
        let at = self.rng.usize(0..EXECUTORS);
        if self.executors[at].sleeps > 0 {
            self.executors[at].sleeps -= 1;
            return Ok(());
        }
        match self.rng.u32(0..100) {
            0..10 => self.beat(at).await,
            10..40 => {
                let lost = self.chance(5);
                self.take(at, lost).await
            }
            40..55 => self.hold(at).await,
            55..95 => self.ack(at, false).await,
            95..98 => self.ack_again(at).await,
            _ => {
                let executor = self.executors[at].id.clone();
                let rows = self.executors[at].hand.drain(..).map(|task| (task.id, task.grant)).collect();
                self.release(&executor, rows).await
            }
        }
    }

    async fn beat(&mut self, at: usize) -> Done {
        let record = ExecutorRecord {
            id: self.executors[at].id.clone(),
            queues: vec!["*".into()],
            slots: CAPACITY,
            capacity: CAPACITY,
            ..ExecutorRecord::default()
        };
        member::beat_executor(&self.space, &record).await.map_err(broken)
    }

    async fn take(&mut self, at: usize, lost: bool) -> Done {
        let in_hand = self.executors[at].hand.len() as u32;
        let free = CAPACITY.saturating_sub(in_hand);
        let ask = Take { normal: free, urgent: 2, in_hand, capacity: CAPACITY, urgent_capacity: 2 };
        let taken = member::take(&self.space, &self.executors[at].id, ask).await.map_err(broken)?;
        if lost {
            return Ok(());
        }
        for offer in taken.offers {
            let task =
                InHand { id: offer.id, grant: offer.grant, not_after: offer.not_after.0, started: false };
            self.executors[at].hand.push(task);
        }
        Ok(())
    }

    /// Starts or renews some of what it holds; what is no longer its own is dropped.
    async fn hold(&mut self, at: usize) -> Done {
        let bucket = self.bucket();
        let executor = self.executors[at].id.clone();
        let rows: Vec<StartRow> = self.executors[at]
            .hand
            .iter()
            .filter(|task| task.id.bucket() == bucket)
            .map(|task| StartRow { id: task.id, grant: task.grant, lease_ms: limits::LEASE_MS })
            .collect();
        let start = self.rng.bool();
        let answers = if start {
            run::start(&self.space, bucket, &executor, &rows).await
        } else {
            run::renew(&self.space, bucket, &executor, &rows).await
        };
        for (row, answer) in rows.iter().zip(answers.map_err(broken)?) {
            let current = self.ledger.is_current(row.id, row.grant.fence());
            let cancel = self.ledger.life(row.id).is_some_and(|life| life.cancel_asked);
            let hand = &mut self.executors[at].hand;
            match answer {
                StartAnswer::Ok { cancel: told, .. } if current && told == cancel => {
                    hand.iter_mut().filter(|task| task.id == row.id).for_each(|task| task.started |= start);
                }
                StartAnswer::Stale if !current => {
                    hand.retain(|task| task.id != row.id || task.grant != row.grant)
                }
                other => {
                    return Err(format!(
                        "{} under {:?} (current: {current}) is answered {other:?}",
                        row.id, row.grant
                    ));
                }
            }
        }
        Ok(())
    }

    async fn ack(&mut self, at: usize, honest: bool) -> Done {
        let bucket = self.bucket();
        let executor = self.executors[at].id.clone();
        let now = self.now();
        // One past its time may only run after a start was accepted; one with an old grant does not know it.
        let ready = |task: &InHand| task.id.bucket() == bucket && (task.started || now <= task.not_after);
        let most = self.rng.usize(1..10);
        let mut rows = Vec::new();
        let hand = std::mem::take(&mut self.executors[at].hand);
        for task in hand {
            if (rows.len() < most || honest) && ready(&task) {
                let outcome = if honest { Outcome::Succeeded } else { self.outcome() };
                rows.push(AckRow { id: task.id, grant: task.grant, outcome, lag_ms: 1, took_ms: 2 });
            } else {
                self.executors[at].hand.push(task);
            }
        }
        self.report(bucket, &executor, &rows, false).await?;
        if !honest && self.chance(15) {
            self.executors[at].unanswered.extend(rows);
        }
        Ok(())
    }

    fn outcome(&mut self) -> Outcome {
        let error = "boom".to_owned();
        match self.rng.u32(0..100) {
            0..65 => Outcome::Succeeded,
            65..85 => Outcome::Failed { error },
            85..88 => Outcome::Fatal { error },
            88..96 => Outcome::RetryAfter { ms: self.rng.i64(0..5_000), counted: self.rng.bool(), error },
            _ => Outcome::Cancelled,
        }
    }

    /// The replies were lost, so the outcomes are reported again: none is accepted a second time.
    async fn ack_again(&mut self, at: usize) -> Done {
        let rows = std::mem::take(&mut self.executors[at].unanswered);
        let executor = self.executors[at].id.clone();
        for number in 0..BUCKETS {
            let bucket = Bucket::new(number).expect("bucket");
            let rows: Vec<AckRow> = rows.iter().filter(|row| row.id.bucket() == bucket).cloned().collect();
            self.report(bucket, &executor, &rows, true).await?;
        }
        Ok(())
    }

    async fn report(&mut self, bucket: Bucket, executor: &str, rows: &[AckRow], again: bool) -> Done {
        let current: Vec<bool> =
            rows.iter().map(|row| self.ledger.is_current(row.id, row.grant.fence())).collect();
        let answers = run::ack(&self.space, bucket, executor, rows, again).await.map_err(broken)?;
        if !rows.is_empty() {
            self.tell(format!("{executor} reports {} in {bucket}: {answers:?}", rows.len()));
        }
        for ((row, answer), current) in rows.iter().zip(&answers).zip(current) {
            let accepted = !matches!(answer, AckAnswer::Stale | AckAnswer::Known);
            // The same grant twice in one call: the first one counts.
            let first = !self.accepted.contains(&(row.id, row.grant));
            if accepted != (current && first) {
                return Err(format!(
                    "{} under {:?} (current: {current}) is answered {answer:?}",
                    row.id, row.grant
                ));
            }
            if accepted && !self.accepted.insert((row.id, row.grant)) {
                return Err(format!("{} under {:?} was accepted twice", row.id, row.grant));
            }
        }
        self.judge().await
    }

    // ---- the end ----

    /// Nothing goes wrong any more, all processes are new: everything comes to its end.
    async fn heal(&mut self) -> Done {
        self.pods = (0..1).map(|_| self.new_pod()).collect();
        self.executors = (0..1).map(|_| self.new_executor()).collect();
        for _ in 0..ROUNDS {
            self.beat(0).await?;
            for number in 0..BUCKETS {
                let bucket = Bucket::new(number).expect("bucket");
                let pod = &self.pods[0];
                let claim = Claim {
                    holders: self.space.spread().holders,
                    ..Claim::new(&pod.id, pod.permits[usize::from(number)])
                };
                if let ClaimAnswer::Held(claimed) =
                    due::claim(&self.space, bucket, &claim).await.map_err(broken)?
                {
                    self.pods[0].undelivered.extend(claimed.tasks);
                }
            }
            self.judge().await?;
            while !self.pods[0].undelivered.is_empty() {
                let tasks = std::mem::take(&mut self.pods[0].undelivered);
                for task in tasks {
                    let (id, grant, not_after) = (task.id, task.grant, self.now() + DISPATCH_MS);
                    self.executors[0].hand.push(InHand { id, grant, not_after, started: false });
                }
            }
            while !self.executors[0].hand.is_empty() {
                self.ack(0, true).await?;
            }
            if self.ledger.lives().values().all(|life| life.state.is_final() || life.state == State::Dead) {
                return Ok(());
            }
            let ms = self.rng.i64(500..4_000);
            self.pass(ms);
        }
        let open =
            self.ledger.lives().iter().find(|(_, life)| !life.state.is_final() && life.state != State::Dead);
        let open = open.map(|(id, life)| format!("{id} is {}:\n{}", life.state, life.story()));
        Err(format!("not all have ended: {}", open.unwrap_or_default()))
    }

    async fn play(&mut self) -> Done {
        for _ in 0..STEPS {
            self.step().await?;
            self.judge().await?;
        }
        self.heal().await?;
        for (id, life) in self.ledger.lives() {
            if life.ends != life.redrives + 1 {
                return Err(format!("{id} ended {} times:\n{}", life.ends, life.story()));
            }
        }
        for id in &self.ids {
            if self.ledger.life(*id).is_none() {
                return Err(format!("{id} was created and is gone"));
            }
        }
        let report = check(&self.space, CheckOptions::default()).await.map_err(broken)?;
        if report.ok { Ok(()) } else { Err(format!("check finds {:?}", report.violations)) }
    }
}

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    match (number("MINUTEHAND_SIM_SEED"), number("MINUTEHAND_SIM_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (0..count).map(|_| u64::from(fastrand::u32(..))).collect(),
        (None, None) => (1..=SEEDS).collect(),
    }
}

#[tokio::test]
async fn pods_and_executors_in_any_order_end_every_task_once() {
    let bed = Bed::shared().await.unwrap();
    let (mut tasks, mut grants, mut accepted) = (0, 0, 0);
    for seed in seeds() {
        let mut world = World::new(&bed, seed).await;
        if let Err(wrong) = world.play().await {
            let told: Vec<String> = world.told.into();
            panic!("MINUTEHAND_SIM_SEED={seed}: {wrong}\n\nwhat went before:\n{}", told.join("\n"));
        }
        tasks += world.ledger.lives().len();
        grants += world.ledger.lives().values().map(|life| u64::from(life.grants)).sum::<u64>();
        accepted += world.accepted.len();
    }
    println!("{tasks} tasks, {grants} grants, {accepted} outcomes accepted");
    assert!(accepted > 0);
}
