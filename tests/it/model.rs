//! All scripts in random order, with time told to them and leaping both ways, against a small model.
//!
//! The model knows nothing of due sets, lanes or leases: a task is where it is, and a rule says what
//! may become of it. Which of several ripe tasks a claim takes is left to the script; that it takes
//! no other, leaves none without a reason, and keeps the order within a lane is checked.
//!
//! `MINUTEHAND_MODEL_CASES` sets the number of cases, `MINUTEHAND_MODEL_SEED` (as printed) repeats a run.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use minutehand::limits;
use minutehand::model::lane::Tier;
use minutehand::model::retry::Growth;
use minutehand::model::{
    Grant, Key, LaneCode, Phase, PlanName, Priority, Retry, Spec, State, TaskId, UnixMs,
};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::dead::{self, RedriveAnswer};
use minutehand::store::due::{
    self, Claim, ClaimAnswer, ClaimLimits, Purse, Quota, ReleaseAnswer, Rule, random_16,
};
use minutehand::store::intake::{self, EditAnswer, Row, RowAnswer, Sending, SubmitAnswer, WishAnswer};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome, StartAnswer, StartRow};
use minutehand::store::{At, Space, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::names;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

const QUEUES: [&str; 2] = ["push", "mail"];
const PODS: [&str; 2] = ["p1", "p2"];
const KEYS: [&str; 3] = ["k0", "k1", "one that is longer than its name"];
const PLANS: [&str; 2] = ["sale", "news"];

#[derive(Debug, Clone)]
struct NewRow {
    queue: usize,
    priority: u8,
    due_in: i64,
    retries: u8,
    base_ms: u32,
    key: Option<(usize, i64)>,
    placement: Option<bool>,
    deadline_in: Option<i64>,
    start_within: Option<i64>,
    plan: Option<usize>,
}

#[derive(Debug, Clone)]
enum End {
    Done,
    Fail,
    Fatal,
    After(i64, bool),
    Cancelled,
}

#[derive(Debug, Clone)]
enum Op {
    Submit(Vec<NewRow>),
    Resend(Index),
    Claim {
        pod: usize,
        limit: u32,
        normal: u32,
        quota: [Option<(u32, u32)>; 2],
        closed: Option<usize>,
        holders: u8,
        repeat: bool,
        /// Which plans this pod believes to be frozen.
        frozen: [bool; 2],
        /// What limits let go: of each queue, and of what has failed in both together.
        purses: [Option<u32>; 3],
        /// Nothing that has failed may go.
        no_retries: bool,
    },
    Start(Vec<Index>, i64),
    Renew(Vec<Index>, i64),
    Offer(Vec<Index>),
    Ack {
        rows: Vec<(Index, End)>,
        old: bool,
        again: bool,
    },
    AckAgain,
    /// An executor came back after a while and tells what its journal says: of any task it ever had, under any grant.
    Journal(Vec<(Index, Index, End)>),
    Release(Vec<Index>),
    Cancel(Vec<Index>),
    Reschedule(Index, i64),
    Reprioritize(Index, u8),
    /// Which, new number of retries, new total time-out, under which grant (current or an old one), and whether what was
    /// seen is out of date.
    Edit(Index, u8, Option<i64>, Option<bool>, bool),
    Redrive(Vec<Index>, i64),
    Delete(Index),
    Yield(usize),
    /// Time passes.
    Pass(i64),
    /// The clock leaps, and no time passes.
    Leap(i64),
}

fn new_row() -> impl Strategy<Value = NewRow> {
    let due = prop_oneof![4 => -20_000i64..1, 4 => 1i64..90_000, 1 => 100_000i64..4_000_000];
    let key = proptest::option::weighted(
        0.35,
        (0..KEYS.len(), prop_oneof![Just(0), Just(30_000), Just(7_200_000)]),
    );
    let later = |chance| proptest::option::weighted(chance, 1i64..200_000);
    (
        (0..2usize, 0..6u8, due, 0..3u8, prop_oneof![Just(0u32), Just(700), Just(20_000)]),
        (
            key,
            proptest::option::weighted(0.3, any::<bool>()),
            later(0.15),
            later(0.1),
            proptest::option::weighted(0.5, 0..PLANS.len()),
        ),
    )
        .prop_map(
            |(
                (queue, priority, due_in, retries, base_ms),
                (key, placement, deadline_in, start_within, plan),
            )| {
                NewRow {
                    queue,
                    priority,
                    due_in,
                    retries,
                    base_ms,
                    key,
                    placement,
                    deadline_in,
                    start_within,
                    plan,
                }
            },
        )
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => Just(End::Done),
        3 => Just(End::Fail),
        1 => Just(End::Fatal),
        1 => (0i64..60_000, any::<bool>()).prop_map(|(ms, counted)| End::After(ms, counted)),
        1 => Just(End::Cancelled),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let some = |most| proptest::collection::vec(any::<Index>(), 1..most);
    let lease = prop_oneof![1_000i64..40_000, Just(86_400_000)];
    let purse = || proptest::option::weighted(0.15, 0u32..4);
    let quota = || proptest::option::weighted(0.2, (0u32..4, 0u32..4));
    let claim = (
        0..2usize,
        prop_oneof![Just(0u32), 1u32..5, Just(1_000)],
        prop_oneof![Just(0u32), 1u32..5, Just(1_000)],
        [quota(), quota()],
        proptest::option::weighted(0.2, 0..2usize),
        1u8..3,
        proptest::bool::weighted(0.1),
        [proptest::bool::weighted(0.25), proptest::bool::weighted(0.25)],
        ([purse(), purse(), purse()], proptest::bool::weighted(0.1)),
    )
        .prop_map(
            |(pod, limit, normal, quota, closed, holders, repeat, frozen, (purses, no_retries))| Op::Claim {
                pod,
                limit,
                normal,
                quota,
                closed,
                holders,
                repeat,
                frozen,
                purses,
                no_retries,
            },
        );
    prop_oneof![
        6 => proptest::collection::vec(new_row(), 1..6).prop_map(Op::Submit),
        2 => any::<Index>().prop_map(Op::Resend),
        9 => claim,
        2 => (some(4), lease.clone()).prop_map(|(which, ms)| Op::Start(which, ms)),
        1 => (some(4), lease).prop_map(|(which, ms)| Op::Renew(which, ms)),
        1 => some(4).prop_map(Op::Offer),
        5 => (proptest::collection::vec((any::<Index>(), end()), 1..5), proptest::bool::weighted(0.15), any::<bool>())
            .prop_map(|(rows, old, again)| Op::Ack { rows, old, again }),
        1 => Just(Op::AckAgain),
        2 => proptest::collection::vec((any::<Index>(), any::<Index>(), end()), 1..5).prop_map(Op::Journal),
        2 => some(4).prop_map(Op::Release),
        2 => some(4).prop_map(Op::Cancel),
        1 => (any::<Index>(), -10_000i64..400_000).prop_map(|(which, ms)| Op::Reschedule(which, ms)),
        1 => (any::<Index>(), 0..6u8).prop_map(|(which, level)| Op::Reprioritize(which, level)),
        2 => (
            any::<Index>(),
            0..3u8,
            proptest::option::weighted(0.3, 1i64..200_000),
            proptest::option::weighted(0.3, any::<bool>()),
            proptest::bool::weighted(0.1),
        )
            .prop_map(|(which, retries, deadline, grant, late)| Op::Edit(which, retries, deadline, grant, late)),
        2 => (some(3), -1_000i64..60_000).prop_map(|(which, ms)| Op::Redrive(which, ms)),
        1 => any::<Index>().prop_map(Op::Delete),
        1 => (0..2usize).prop_map(Op::Yield),
        6 => prop_oneof![5 => 1i64..20_000, 2 => 20_000i64..200_000, 1 => 200_000i64..8_000_000].prop_map(Op::Pass),
        1 => prop_oneof![-200_000i64..0, 1i64..200_000, Just(86_400_000)].prop_map(Op::Leap),
    ]
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    grant: Grant,
    phase: Phase,
    deadline: i64,
    cancel: bool,
    holder: String,
}

#[derive(Debug, Clone)]
struct Task {
    spec: Spec,
    state: State,
    due: i64,
    lane: LaneCode,
    fence: u32,
    failures: u32,
    losses: u32,
    /// Failed attempts, also those before a redrive.
    attempts: u32,
    /// Whether a timer fires at the end of its total time-out.
    timer: bool,
    /// Whether it has a place record.
    away: bool,
    /// How often it was moved or edited.
    edits: u8,
    run: Option<Run>,
    /// Grants that it had, the latest last.
    grants: Vec<Grant>,
    /// Ten seconds in which its end is remembered, and the fence noted there.
    ended: Option<(i64, u32)>,
    died: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyState {
    Live(TaskId),
    /// Blocked until then; and whether a claim may have dropped it meanwhile.
    Until(TaskId, i64, bool),
}

/// A pod's last claim that granted something, and what it granted.
type Last = (Claim, Vec<(TaskId, Grant)>);

struct Sent {
    rows: Vec<Row>,
    at: i64,
}

struct World {
    space: Space,
    groups: [u32; 2],
    now: i64,
    /// The clock as the last claims saw it.
    clock: i64,
    /// How far that is ahead, after a leap back.
    skew: i64,
    /// Time that has passed, leaps left out.
    mono: i64,
    tasks: BTreeMap<TaskId, Task>,
    order: Vec<TaskId>,
    keys: HashMap<Bytes, KeyState>,
    locks: BTreeMap<&'static str, i64>,
    last: BTreeMap<&'static str, Last>,
    sent: Vec<Sent>,
    acked: Option<Vec<AckRow>>,
    counts: BTreeMap<&'static str, i64>,
    accepted: BTreeSet<TaskId>,
}

macro_rules! same {
    ($left:expr, $right:expr, $($why:tt)*) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(TestCaseError::fail(format!("{}: expected {right:?}, got {left:?}", format!($($why)*))));
        }
    }};
}

macro_rules! holds {
    ($what:expr, $($why:tt)*) => {
        if !$what {
            return Err(TestCaseError::fail(format!($($why)*)));
        }
    };
}

type Checked = Result<(), TestCaseError>;

impl World {
    async fn new() -> Self {
        let bed = Bed::shared().await.expect("bed");
        let space = space(&bed).await;
        let mut groups = [0; 2];
        for (at, queue) in QUEUES.iter().enumerate() {
            groups[at] = lane(&space, queue, Priority::P3).await.group();
        }
        Self {
            space,
            groups,
            now: T0,
            clock: 0,
            skew: 0,
            mono: 0,
            tasks: BTreeMap::new(),
            order: Vec::new(),
            keys: HashMap::new(),
            locks: BTreeMap::new(),
            last: BTreeMap::new(),
            sent: Vec::new(),
            acked: None,
            counts: BTreeMap::new(),
            accepted: BTreeSet::new(),
        }
    }

    /// The limits of a claim: a purse for all tasks of a queue, one for all that failed, as of a shared downstream.
    fn limits(&self, purses: &[Option<u32>; 3], no_retries: bool) -> ClaimLimits {
        const ALL: u8 = 0b111_1111;
        const FAILED: u8 = 0b111_1110;
        let mut limits = ClaimLimits { no_retries, ..ClaimLimits::default() };
        for (at, tokens) in purses.iter().enumerate() {
            let Some(tokens) = *tokens else { continue };
            let purse = limits.purses.len();
            limits.purses.push(Purse::Tokens(tokens));
            let whom = if at < 2 { &self.groups[at..=at] } else { &self.groups[..] };
            let tiers = if at < 2 { ALL } else { FAILED };
            limits.rules.extend(whom.iter().map(|group| Rule { group: *group, tiers, purse }));
        }
        limits
    }

    fn lease_now(&self) -> i64 {
        (self.now + self.skew).max(self.clock)
    }

    fn count(&mut self, state: State, by: i64) {
        *self.counts.entry(state.name()).or_default() += by;
    }

    fn set(&mut self, id: TaskId, state: State) -> Checked {
        let task = self.tasks.get_mut(&id).expect("known");
        let from = task.state;
        holds!(from.may_become(state) || from == state, "{id} went from {from} to {state}");
        task.state = state;
        if from != state {
            self.count(from, -1);
            self.count(state, 1);
        }
        Ok(())
    }

    fn end_key(&mut self, id: TaskId) {
        let spec = &self.tasks[&id].spec;
        let (Some(scoped), Some(key)) = (spec.scoped_key(), &spec.key) else { return };
        let state = match key.window_ms {
            0 => None,
            window => Some(KeyState::Until(id, self.now + window / 1_000 * 1_000, false)),
        };
        if self.keys.get(&scoped) == Some(&KeyState::Live(id)) {
            match state {
                Some(state) => self.keys.insert(scoped, state),
                None => self.keys.remove(&scoped),
            };
        }
    }

    fn remembered(&mut self, id: TaskId, fence: u32) {
        let ten = self.lease_now().div_euclid(10_000);
        self.tasks.get_mut(&id).expect("known").ended = Some((ten, fence));
    }

    /// The task ends for good, or dies.
    fn finish(&mut self, id: TaskId, state: State, fence: u32) -> Checked {
        self.set(id, state)?;
        self.end_key(id);
        self.remembered(id, fence);
        let now = self.now;
        let task = self.tasks.get_mut(&id).expect("known");
        task.run = None;
        if state == State::Dead {
            (task.died, task.away, task.fence) = (now, true, fence);
        } else {
            task.away = false;
        }
        Ok(())
    }

    /// A counted failure; answers when it is tried again.
    fn fail(&mut self, id: TaskId, fatal: bool, after: Option<i64>) -> Result<Option<i64>, TestCaseError> {
        let now = self.now;
        let task = self.tasks.get_mut(&id).expect("known");
        task.failures += 1;
        task.attempts += 1;
        let fence = task.run.as_ref().expect("running").grant.fence();
        if fatal || task.failures > u32::from(task.spec.retry.retries) {
            self.finish(id, State::Dead, fence)?;
            return Ok(None);
        }
        let wait = after.unwrap_or_else(|| task.spec.retry.wait_ms(task.failures));
        task.due = now + wait;
        task.lane = LaneCode::new(task.lane.group(), task.lane.priority(), Tier::after(task.failures));
        let due = task.due;
        self.back(id)?;
        Ok(Some(due))
    }

    /// A running task is pending again.
    fn back(&mut self, id: TaskId) -> Checked {
        let task = self.tasks.get_mut(&id).expect("known");
        let run = task.run.take().expect("running");
        (task.fence, task.away) = (run.grant.fence(), true);
        self.set(id, State::Pending)
    }

    /// Whether the end of a task is still remembered `back` times ten seconds back; nothing where it may or may not be.
    fn recalled(&self, id: TaskId, back: i64) -> Option<bool> {
        let Some((ten, _)) = self.tasks.get(&id)?.ended else { return Some(false) };
        let now = self.lease_now().div_euclid(10_000);
        let oldest = now - back.min(90);
        // What was noted by a clock that has leapt back since lies ahead, and is found too.
        if ten < oldest {
            return Some(false);
        }
        // Claims drop what is 900 s old.
        let oldest_seen = self.clock.div_euclid(10_000) - 90;
        if ten <= oldest_seen.max(now - 90) { None } else { Some(true) }
    }

    fn pick(&self, which: &[Index]) -> Vec<TaskId> {
        if self.order.is_empty() {
            return Vec::new();
        }
        let mut seen = BTreeSet::new();
        which.iter().map(|index| *index.get(&self.order)).filter(|id| seen.insert(*id)).collect()
    }

    fn pick_running(&self, which: &[Index]) -> Vec<TaskId> {
        self.pick_in(State::Running, which)
    }

    /// Picks tasks of a state, or any if there are none.
    fn pick_in(&self, state: State, which: &[Index]) -> Vec<TaskId> {
        let fit: Vec<TaskId> =
            self.order.iter().copied().filter(|id| self.tasks[id].state == state).collect();
        let from = if fit.is_empty() { &self.order } else { &fit };
        if from.is_empty() {
            return Vec::new();
        }
        let mut seen = BTreeSet::new();
        which.iter().map(|index| *index.get(from)).filter(|id| seen.insert(*id)).collect()
    }

    fn current_or_old_grant(&self, id: TaskId) -> Option<Grant> {
        let task = &self.tasks[&id];
        task.run.as_ref().map(|run| run.grant).or_else(|| task.grants.last().copied())
    }

    async fn step(&mut self, op: &Op) -> Checked {
        self.space.inject_now(Some(self.now));
        match op {
            Op::Submit(rows) => self.submit(rows).await?,
            Op::Resend(which) => {
                if !self.sent.is_empty() {
                    let at = which.index(self.sent.len());
                    self.send(at, Some(self.mono - self.sent[at].at)).await?;
                }
            }
            Op::Claim { pod, limit, normal, quota, closed, holders, repeat, frozen, purses, no_retries } => {
                let mut quotas = Vec::new();
                for (at, quota) in quota.iter().enumerate() {
                    if *closed == Some(at) {
                        quotas.push((self.groups[at], Quota::Closed));
                    } else if let Some((any, normal)) = *quota {
                        quotas.push((self.groups[at], Quota::Open { any, normal: normal.min(any) }));
                    }
                }
                let claim = Claim {
                    limit: *limit,
                    normal_limit: (*normal).min(*limit),
                    holders: *holders,
                    quotas,
                    frozen_plans: PLANS
                        .iter()
                        .zip(frozen)
                        .filter(|(_, on)| **on)
                        .map(|(name, _)| plan(name))
                        .collect(),
                    limits: self.limits(purses, *no_retries),
                    ..Claim::new(PODS[*pod], [b'0' + *pod as u8; 16])
                };
                self.claim(PODS[*pod], claim, *repeat).await?;
            }
            Op::Start(which, lease_ms) => self.hold(which, *lease_ms, Phase::Started).await?,
            Op::Renew(which, lease_ms) => self.hold(which, *lease_ms, Phase::Claimed).await?,
            Op::Offer(which) => self.hold(which, 0, Phase::Offered).await?,
            Op::Ack { rows, old, again } => self.ack(rows, *old, *again).await?,
            Op::AckAgain => {
                if let Some(rows) = self.acked.clone() {
                    self.send_acks(rows, true).await?;
                }
            }
            Op::Journal(entries) => {
                let mut acks = Vec::new();
                for (which, grant, end) in entries {
                    let Some(id) = self.pick(std::slice::from_ref(which)).pop() else { continue };
                    let grants = &self.tasks[&id].grants;
                    if !grants.is_empty() && acks.iter().all(|ack: &AckRow| ack.id != id) {
                        let grant = *grant.get(grants);
                        acks.push(AckRow { id, grant, outcome: outcome(end), lag_ms: 3, took_ms: 4 });
                    }
                }
                self.send_acks(acks, true).await?;
            }
            Op::Release(which) => self.release(which).await?,
            Op::Cancel(which) => self.cancel(which).await?,
            Op::Reschedule(which, ms) => self.reschedule(which, *ms).await?,
            Op::Reprioritize(which, level) => self.reprioritize(which, *level).await?,
            Op::Edit(which, retries, deadline, grant, late) => {
                self.edit(which, *retries, *deadline, *grant, *late).await?;
            }
            Op::Redrive(which, ms) => self.redrive(which, *ms).await?,
            Op::Delete(which) => {
                let Some(id) = self.pick_in(State::Dead, std::slice::from_ref(which)).pop() else {
                    return Ok(());
                };
                let told = dead::delete(&self.space, bucket(), "test", &[id]).await.expect("delete");
                let dead = self.tasks[&id].state == State::Dead;
                same!(told, vec![dead], "the deletion of {id}");
                if dead {
                    self.set(id, State::Deleted)?;
                    self.tasks.get_mut(&id).expect("known").away = false;
                }
            }
            Op::Yield(pod) => {
                let pod = PODS[*pod];
                let permit = [pod.as_bytes()[1] - 1; 16];
                due::yield_bucket(&self.space, bucket(), pod, &permit).await.expect("yield");
                self.locks.remove(pod);
                self.last.remove(pod);
            }
            Op::Pass(ms) => {
                self.now += ms;
                self.mono += ms;
            }
            Op::Leap(ms) => self.now += ms,
        }
        self.compare().await
    }

    // ---- intake ----

    async fn submit(&mut self, rows: &[NewRow]) -> Checked {
        let rows: Vec<Row> = rows
            .iter()
            .map(|new| {
                let priority = Priority::from_level(new.priority).expect("a level");
                let due = (self.now + new.due_in).max(self.now);
                row(Spec {
                    retry: Retry {
                        retries: new.retries,
                        growth: Growth::Exponential { factor_percent: 300 },
                        base_ms: new.base_ms,
                        cap_ms: 40_000,
                        jitter_percent: 0,
                    },
                    key: new.key.map(|(at, window)| Key::new(KEYS[at], window).expect("a key")),
                    placement: new.placement.map(|one| Bytes::from_static(if one { b"a" } else { b"b" })),
                    deadline: new.deadline_in.map(|ms| UnixMs(self.now + ms)),
                    start_before: new.start_within.map(|ms| UnixMs(due + ms)),
                    plan: new.plan.map(|at| plan(PLANS[at])),
                    ..spec(LaneCode::new(self.groups[new.queue], priority, Tier::FRESH), due)
                })
            })
            .collect();
        self.sent.push(Sent { rows, at: self.mono });
        self.send(self.sent.len() - 1, None).await
    }

    async fn send(&mut self, at: usize, again_after_ms: Option<i64>) -> Checked {
        let rows = self.sent[at].rows.clone();
        let sending = Sending { again_after_ms, ..Sending::default() };
        let told = intake::submit(&self.space, bucket(), &rows, sending).await.expect("submit");
        let SubmitAnswer::Rows { answers, now, .. } = told else { panic!("no bucket is closed") };
        same!(now, UnixMs(self.now), "the time of a submit");
        // Rows are looked at in order of minute, urgency and due; keys first.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        let group = |row: &Row| (row.spec.due.minute(), !row.spec.lane.priority().is_urgent());
        order.sort_by_key(|at| (group(&rows[*at]), rows[*at].spec.due));
        let mut first: HashMap<Bytes, TaskId> = HashMap::new();
        let mut expected: Vec<Option<RowAnswer>> = vec![None; rows.len()];
        for at in &order {
            let row = &rows[*at];
            let Some(scoped) = row.spec.scoped_key() else { continue };
            let stands = first.get(&scoped).copied().or_else(|| match self.keys.get(&scoped) {
                Some(KeyState::Live(id)) => Some(*id),
                Some(KeyState::Until(id, till, dropped)) if *till > self.now => {
                    // After a leap back: whether the key was dropped meanwhile is not known, so what is told counts.
                    let told = matches!(answers[*at], RowAnswer::Duplicate(told) if told == *id)
                        || (*id == row.id && answers[*at] == RowAnswer::Created);
                    (!*dropped || told).then_some(*id)
                }
                _ => None,
            });
            if let Some(id) = stands {
                let answer = if id == row.id { RowAnswer::Created } else { RowAnswer::Duplicate(id) };
                expected[*at] = Some(answer);
            }
            first.entry(scoped).or_insert(stands.unwrap_or(row.id));
        }
        let mut made = Vec::new();
        for at in order {
            let row = &rows[at];
            if expected[at].is_some() {
                continue;
            }
            let known = self.tasks.get(&row.id).is_some_and(|task| !task.state.is_final());
            let age = again_after_ms.unwrap_or(0);
            // The clock may have leapt ahead since the last claim: what is remembered is looked for that much further.
            let gap = if self.clock > 0 { (self.now - self.clock).max(0) } else { 0 };
            let recalled = if again_after_ms.is_none() {
                Some(false)
            } else {
                self.recalled(row.id, (age + gap).div_euclid(10_000) + 2)
                    .or(if self.tasks.contains_key(&row.id) { None } else { Some(false) })
            };
            let window = row.spec.key.as_ref().map_or(0, |key| key.window_ms);
            let created = RowAnswer::Created;
            let answer = match recalled {
                _ if again_after_ms.is_some() && known => created,
                Some(true) => created,
                None => answers[at],
                Some(false) if age > 120_000 && age > window => RowAnswer::FateUnknown,
                Some(false) => {
                    made.push(row.clone());
                    created
                }
            };
            expected[at] = Some(answer);
        }
        let expected: Vec<RowAnswer> = expected.into_iter().flatten().collect();
        same!(answers, expected, "answers of a submit");
        for row in made {
            self.create(row);
        }
        Ok(())
    }

    fn create(&mut self, row: Row) {
        if let Some(scoped) = row.spec.scoped_key() {
            self.keys.insert(scoped, KeyState::Live(row.id));
        }
        let task = Task {
            state: State::Pending,
            due: row.spec.due.0,
            lane: row.spec.lane,
            attempts: 0,
            timer: row.spec.deadline.is_some(),
            spec: row.spec,
            fence: 0,
            failures: 0,
            losses: 0,
            away: false,
            edits: 0,
            run: None,
            grants: Vec::new(),
            ended: None,
            died: 0,
        };
        if self.tasks.insert(row.id, task).is_none() {
            self.order.push(row.id);
        }
        self.accepted.insert(row.id);
        self.count(State::Pending, 1);
        *self.counts.entry("submitted").or_default() += 1;
    }

    async fn cancel(&mut self, which: &[Index]) -> Checked {
        let ids = self.pick(which);
        let told = intake::cancel(&self.space, bucket(), "test", "a test", &ids).await.expect("cancel");
        for (id, told) in ids.into_iter().zip(told) {
            let expected = self.wish(id, &told);
            same!(told, expected, "answer of a cancel of {id}");
            let task = self.tasks.get_mut(&id).expect("known");
            if let Some(run) = &mut task.run {
                run.cancel = true;
            } else if task.state == State::Pending {
                let fence = task.fence;
                self.finish(id, State::Cancelled, fence)?;
            }
        }
        Ok(())
    }

    /// What a wish is to be answered.
    fn wish(&self, id: TaskId, told: &WishAnswer) -> WishAnswer {
        let task = &self.tasks[&id];
        let ended = match task.state {
            State::Cancelled if matches!(told, WishAnswer::Done) => WishAnswer::Done,
            state => WishAnswer::Ended(state),
        };
        match (&task.run, task.state) {
            (Some(run), _) => WishAnswer::Running { holder: run.holder.clone() },
            (_, State::Pending) => WishAnswer::Done,
            (_, State::Dead) => WishAnswer::Dead,
            _ => match self.recalled(id, 90) {
                Some(true) => ended,
                Some(false) => WishAnswer::Unknown,
                None if *told == WishAnswer::Unknown => WishAnswer::Unknown,
                None => ended,
            },
        }
    }

    async fn reschedule(&mut self, which: &Index, ms: i64) -> Checked {
        let Some(id) = self.pick(std::slice::from_ref(which)).pop() else { return Ok(()) };
        let due = (self.now + ms).max(self.now);
        let told = intake::reschedule(&self.space, "test", id, UnixMs(due)).await.expect("reschedule");
        self.moved(id, told, |task| task.due = due)
    }

    async fn reprioritize(&mut self, which: &Index, level: u8) -> Checked {
        let Some(id) = self.pick(std::slice::from_ref(which)).pop() else { return Ok(()) };
        let priority = Priority::from_level(level).expect("a level");
        let told = intake::reprioritize(&self.space, "test", id, priority).await.expect("reprioritize");
        self.moved(id, told, |task| task.lane = task.lane.at_priority(priority))
    }

    fn moved(&mut self, id: TaskId, told: WishAnswer, change: impl FnOnce(&mut Task)) -> Checked {
        let mut expected = self.wish(id, &told);
        if let WishAnswer::Running { holder } = &mut expected {
            holder.clear();
        }
        same!(told, expected, "answer of a move of {id}");
        let task = self.tasks.get_mut(&id).expect("known");
        if task.state == State::Pending {
            change(task);
            task.away = true;
            task.edits = task.edits.wrapping_add(1);
        }
        Ok(())
    }

    async fn edit(
        &mut self,
        which: &Index,
        retries: u8,
        deadline: Option<i64>,
        current: Option<bool>,
        late: bool,
    ) -> Checked {
        let Some(id) = self.pick(std::slice::from_ref(which)).pop() else { return Ok(()) };
        let task = &self.tasks[&id];
        let mut new = task.spec.clone();
        new.retry.retries = retries;
        new.deadline = deadline.map(|ms| UnixMs(self.now + ms));
        new.payload = Bytes::from(format!("edited to {retries}"));
        let run = task.run.as_ref().map(|run| run.grant);
        let grant = current.and_then(|current| if current { run } else { task.grants.first().copied() });
        let seen = task.edits.wrapping_add(u8::from(late));
        let told = intake::edit(&self.space, "test", id, grant, seen, &new, "edited").await.expect("edit");
        let ended = |state| EditAnswer::Ended(state);
        let expected = match (grant, task.state) {
            (Some(grant), _) if run != Some(grant) => EditAnswer::Stale,
            (_, State::Pending | State::Running | State::Dead) if late => EditAnswer::Changed,
            (_, state @ (State::Pending | State::Running | State::Dead)) => EditAnswer::Done(state),
            (_, state) => match self.recalled(id, 90) {
                Some(true) => ended(state),
                Some(false) => EditAnswer::Unknown,
                None if told == EditAnswer::Unknown => EditAnswer::Unknown,
                None => ended(state),
            },
        };
        same!(told, expected, "the edit of {id}");
        if let EditAnswer::Done(state) = told {
            let task = self.tasks.get_mut(&id).expect("known");
            if state != State::Dead {
                let changed = task.spec.deadline != new.deadline;
                task.timer = if changed { new.deadline.is_some() } else { task.timer };
            }
            task.spec = new;
            task.edits = task.edits.wrapping_add(1);
            task.away |= state != State::Running;
        }
        Ok(())
    }

    async fn redrive(&mut self, which: &[Index], ms: i64) -> Checked {
        let rows: Vec<_> =
            self.pick_in(State::Dead, which).into_iter().map(|id| (id, UnixMs(self.now + ms))).collect();
        let told = dead::redrive(&self.space, bucket(), "test", &rows).await.expect("redrive");
        for ((id, due), told) in rows.into_iter().zip(told) {
            let task = &self.tasks[&id];
            if task.state != State::Dead {
                same!(told, RedriveAnswer::Unknown, "the redrive of {id}");
                continue;
            }
            let scoped = task.spec.scoped_key();
            let holder = match scoped.as_ref().and_then(|key| self.keys.get(key)) {
                Some(KeyState::Live(other)) if *other != id => Some(*other),
                Some(KeyState::Until(other, till, dropped)) if *other != id && *till > self.now => {
                    (!*dropped || told == RedriveAnswer::KeyConflict(*other)).then_some(*other)
                }
                _ => None,
            };
            if let Some(other) = holder {
                same!(told, RedriveAnswer::KeyConflict(other), "the redrive of {id}");
                continue;
            }
            same!(told, RedriveAnswer::Pending, "the redrive of {id}");
            if let Some(scoped) = scoped {
                self.keys.insert(scoped, KeyState::Live(id));
            }
            let (now, lease_now) = (self.now, self.lease_now());
            let task = self.tasks.get_mut(&id).expect("known");
            task.due = due.0.max(now);
            task.lane = LaneCode::new(task.lane.group(), task.lane.priority(), Tier::FRESH);
            (task.failures, task.losses) = (0, 0);
            task.timer = task.spec.deadline.is_some_and(|deadline| deadline.0 > lease_now);
            self.set(id, State::Pending)?;
        }
        Ok(())
    }

    // ---- claims ----

    async fn claim(&mut self, pod: &'static str, mut claim: Claim, repeat: bool) -> Checked {
        if repeat && let Some((last, _)) = self.last.get(pod) {
            claim.call = last.call;
        }
        let told = due::claim(&self.space, bucket(), &claim).await.expect("claim");
        let (now, lock) = (self.now, claim.lock_ms);
        let live = |till: i64| till > now && till <= now + 2 * lock;
        if !self.locks.get(pod).is_some_and(|till| live(*till)) {
            let others = || self.locks.iter().filter(|(name, till)| **name != pod && live(**till));
            if others().count() >= usize::from(claim.holders) {
                let until = others().map(|(_, till)| *till).min().unwrap_or(0);
                holds!(
                    matches!(told, ClaimAnswer::NotHolder { until: told } if told.0 == until),
                    "{pod} must not hold until {until}: {told:?}"
                );
                return Ok(());
            }
            let lapsed: Vec<&'static str> = self
                .locks
                .iter()
                .filter(|(name, till)| **name != pod && !live(**till))
                .map(|(name, _)| *name)
                .collect();
            for name in lapsed {
                self.locks.remove(name);
                self.last.remove(name);
            }
        }
        let ClaimAnswer::Held(claimed) = told else {
            return Err(TestCaseError::fail(format!("{pod} must hold: {told:?}")));
        };
        self.locks.insert(pod, now + lock);
        if let Some((last, grants)) = self.last.get(pod)
            && last.call == claim.call
        {
            let still = |(id, grant): &&(TaskId, Grant)| {
                self.tasks[id].run.as_ref().is_some_and(|run| run.grant == *grant)
            };
            let expected: Vec<_> = grants.iter().filter(still).copied().collect();
            let got: Vec<_> = claimed.tasks.iter().map(|task| (task.id, task.grant)).collect();
            same!(got, expected, "what a repeated claim answers");
            return Ok(());
        }
        // It never runs backwards, and at half speed while it is ahead.
        let half = ((now + self.skew - self.clock + 1) / 2).clamp(0, self.skew);
        self.skew -= half;
        self.skew = self.skew.max(self.clock - now);
        self.clock = now + self.skew;
        for state in self.keys.values_mut() {
            if let KeyState::Until(_, till, dropped) = state
                && *till <= now
            {
                *dropped = true;
            }
        }
        let found = self.found().await?;
        let reaped = self.reaped(&found)?;
        holds!(
            (reaped.0..=reaped.1).contains(&claimed.reaped),
            "{} leases were reaped, between {} and {} had lapsed",
            claimed.reaped,
            reaped.0,
            reaped.1
        );
        let skipped = self.skipped(&found)?;
        let mut grants = Vec::new();
        let lease_now = self.lease_now();
        for granted in &claimed.tasks {
            let (id, task) = (granted.id, &self.tasks[&granted.id]);
            same!(task.state, State::Pending, "{id} was granted while it was");
            holds!(task.due <= now, "{id} was granted {} ms early", task.due - now);
            holds!(!frozen(&claim, task), "{id} was granted, and its plan is frozen");
            let expected = (task.due, task.lane, task.failures, task.fence + 1);
            let got = (granted.due.0, granted.lane, granted.failures, granted.grant.fence());
            same!(got, expected, "the grant of {id}");
            same!(granted.spec, task.spec.encode(), "the spec of {id}");
            same!(granted.grant.nonce(), claim.nonce, "the nonce of {id}");
            grants.push((id, granted.grant));
            let task = self.tasks.get_mut(&id).expect("known");
            task.grants.push(granted.grant);
            task.run = Some(Run {
                grant: granted.grant,
                phase: Phase::Claimed,
                // Claims give whole seconds.
                deadline: (lease_now + claim.dispatch_ms + 999).div_euclid(1_000) * 1_000,
                cancel: false,
                holder: pod.to_owned(),
            });
            self.set(id, State::Running)?;
        }
        self.fair(&claim, &grants, &skipped)?;
        for (at, purse) in claimed.purses.iter().enumerate() {
            let paid = grants.iter().map(|(id, _)| id).chain(&skipped);
            let paid = paid.filter(|id| pays(&claim, at, &self.tasks[*id])).count();
            same!(purse.spent as usize, paid, "what was spent of purse {at}");
        }
        same!(claimed.purses.len(), claim.limits.purses.len(), "the purses");
        if !grants.is_empty() {
            self.last.insert(pod, (claim, grants));
        }
        Ok(())
    }

    /// What a claim did before it granted anything: lapsed leases, total time-outs, old dead letters.
    /// Answers how many leases it must and may have reaped.
    fn reaped(&mut self, found: &BTreeMap<TaskId, Option<read::Found>>) -> Result<(u32, u32), TestCaseError> {
        let (now, lease_now) = (self.now, self.lease_now());
        let (mut must, mut may) = (0, 0);
        for (id, found) in found {
            let task = &self.tasks[id];
            let state = found.as_ref().map(|found| found.state);
            if let Some(run) = task.run.clone() {
                let still = found
                    .as_ref()
                    .and_then(|found| found.run.as_ref())
                    .is_some_and(|real| real.grant == run.grant);
                if run.deadline <= lease_now {
                    may += 1;
                }
                if still {
                    continue;
                }
                let expired = state == Some(State::Expired);
                holds!(
                    run.deadline <= lease_now || expired,
                    "{id} was taken away {} ms before its lease ended",
                    run.deadline - lease_now
                );
                if !expired {
                    must += 1;
                    self.lapse(*id, &run)?;
                }
            }
            let task = &self.tasks[id];
            let live = matches!(task.state, State::Pending | State::Running);
            if let Some(deadline) = task.spec.deadline.filter(|_| live && task.timer) {
                let fires = deadline.0 <= now;
                same!(
                    state == Some(State::Expired),
                    fires,
                    "whether {id} expired, due to at {}, at {lease_now}",
                    deadline.0
                );
                if fires {
                    let fence = task.run.as_ref().map_or(task.fence, |run| run.grant.fence());
                    self.finish(*id, State::Expired, fence)?;
                }
            }
            let task = &self.tasks[id];
            if task.state == State::Dead && found.as_ref().is_none_or(|found| found.dead.is_none()) {
                holds!(task.died <= now - limits::DEAD_KEEP_MS, "the dead letter {id} was deleted too early");
                self.set(*id, State::Deleted)?;
                self.tasks.get_mut(id).expect("known").away = false;
            }
        }
        Ok((must, may))
    }

    fn lapse(&mut self, id: TaskId, run: &Run) -> Checked {
        if run.cancel {
            return self.finish(id, State::Cancelled, run.grant.fence());
        }
        if run.phase == Phase::Started {
            return self.fail(id, false, None).map(|_| ());
        }
        let task = self.tasks.get_mut(&id).expect("known");
        task.losses += 1;
        holds!(task.losses < limits::UNCOUNTED_LOSSES_MAX, "a sequence is too short for twenty losses");
        self.back(id)
    }

    fn skipped(
        &mut self,
        found: &BTreeMap<TaskId, Option<read::Found>>,
    ) -> Result<Vec<TaskId>, TestCaseError> {
        let mut out = Vec::new();
        for (id, found) in found {
            let task = &self.tasks[id];
            if found.as_ref().is_some_and(|found| found.state == State::Skipped)
                && task.state == State::Pending
            {
                let late = task.spec.start_before.is_some_and(|latest| latest.0 < self.now);
                holds!(late && task.due <= self.now, "{id} was skipped without a reason");
                out.push(*id);
                let fence = task.fence;
                self.finish(*id, State::Skipped, fence)?;
            }
        }
        Ok(out)
    }

    /// Nothing ripe is left without a reason but what is of a frozen plan, and each lane goes in order of due time.
    fn fair(&self, claim: &Claim, grants: &[(TaskId, Grant)], skipped: &[TaskId]) -> Checked {
        let taken: Vec<&Task> =
            grants.iter().map(|(id, _)| id).chain(skipped).map(|id| &self.tasks[id]).collect();
        let low = |task: &&&Task| !task.lane.priority().is_urgent();
        let (all, all_low) = (taken.len() as u32, taken.iter().filter(low).count() as u32);
        holds!(
            all <= claim.limit && all_low <= claim.normal_limit,
            "{all} and {all_low} low ones are over the limit"
        );
        for (at, purse) in claim.limits.purses.iter().enumerate() {
            let paid = taken.iter().filter(|taken| pays(claim, at, taken)).count() as u32;
            holds!(matches!(purse, Purse::Tokens(most) if paid <= *most), "{paid} of {purse:?}");
        }
        let retried = taken.iter().any(|taken| taken.lane.tier() != Tier::FRESH);
        holds!(!(claim.limits.no_retries && retried), "a retry went though none may");
        let mut sets = BTreeSet::new();
        for task in self.tasks.values().filter(|task| task.state == State::Pending && task.due <= self.now) {
            sets.insert((UnixMs(task.due).minute(), task.lane.priority().is_urgent()));
        }
        for (id, task) in
            self.tasks.iter().filter(|(_, task)| task.state == State::Pending && task.due <= self.now)
        {
            let group = task.lane.group();
            let quota =
                claim.quotas.iter().find(|(code, _)| *code == group).map_or(claim.default_quota, |(_, q)| *q);
            let of_group: Vec<_> = taken.iter().filter(|taken| taken.lane.group() == group).collect();
            let normal = !task.lane.priority().is_urgent();
            let of_group_low = of_group.iter().filter(|task| low(task)).count() as u32;
            let spent = match quota {
                Quota::Closed => true,
                Quota::Open { any, normal: low } => {
                    of_group.len() as u32 >= any || (normal && of_group_low >= low)
                }
            };
            if frozen(claim, task) {
                continue;
            }
            let paid = |at| taken.iter().filter(|taken| pays(claim, at, taken)).count() as u32;
            let empty = claim.limits.purses.iter().enumerate().any(|(at, purse)| {
                pays(claim, at, task) && matches!(purse, Purse::Tokens(most) if paid(at) >= *most)
            });
            let held = claim.limits.no_retries && task.lane.tier() != Tier::FRESH;
            let spent = spent || empty || held;
            let full = all >= claim.limit || (normal && all_low >= claim.normal_limit);
            // One visit looks into so many due sets.
            let many = sets.len() + 8 > limits::DUE_SETS_VISITED_MAX;
            holds!(spent || full || many, "{id} is ripe and was left without a reason");
            let later = taken.iter().find(|taken| taken.lane == task.lane && taken.due > task.due);
            holds!(later.is_none() || many, "{id} was passed over in its lane by one that was due later");
        }
        Ok(())
    }

    // ---- running ----

    async fn hold(&mut self, which: &[Index], lease_ms: i64, to: Phase) -> Checked {
        let ids = self.pick_running(which);
        let rows: Vec<StartRow> = ids
            .iter()
            .filter_map(|id| Some(StartRow { id: *id, grant: self.current_or_old_grant(*id)?, lease_ms }))
            .collect();
        let told = match to {
            Phase::Started => run::start(&self.space, bucket(), "ex", &rows).await,
            Phase::Claimed => run::renew(&self.space, bucket(), "ex", &rows).await,
            Phase::Offered => {
                let rows: Vec<_> = rows.iter().map(|row| (*row, "ex")).collect();
                run::offer(&self.space, bucket(), "p1", &rows).await
            }
        };
        let lease_now = self.lease_now();
        for (row, told) in rows.iter().zip(told.expect("hold")) {
            let task = self.tasks.get_mut(&row.id).expect("known");
            let Some(run) = task.run.as_mut().filter(|run| run.grant == row.grant) else {
                same!(told, StartAnswer::Stale, "a hold of {} under an old grant", row.id);
                continue;
            };
            match to {
                Phase::Started | Phase::Claimed => {
                    (run.deadline, run.holder) = (lease_now + lease_ms, "ex".into());
                    if to == Phase::Started {
                        run.phase = Phase::Started;
                    }
                }
                Phase::Offered if run.phase == Phase::Claimed => {
                    (run.phase, run.holder) = (Phase::Offered, "ex".into());
                }
                Phase::Offered => {}
            }
            let expected = StartAnswer::Ok { deadline: UnixMs(run.deadline), cancel: run.cancel };
            same!(told, expected, "a hold of {}", row.id);
        }
        Ok(())
    }

    async fn ack(&mut self, rows: &[(Index, End)], old: bool, again: bool) -> Checked {
        let which: Vec<Index> = rows.iter().map(|(index, _)| *index).collect();
        let ids = self.pick_running(&which);
        let mut acks = Vec::new();
        for (id, (_, end)) in ids.into_iter().zip(rows) {
            let grant = match old {
                true => self.tasks[&id].grants.first().copied(),
                false => self.current_or_old_grant(id),
            };
            let outcome = outcome(end);
            acks.extend(grant.map(|grant| AckRow { id, grant, outcome, lag_ms: 3, took_ms: 4 }));
        }
        self.acked = Some(acks.clone());
        self.send_acks(acks, again).await
    }

    async fn send_acks(&mut self, acks: Vec<AckRow>, again: bool) -> Checked {
        let told = run::ack(&self.space, bucket(), "ex", &acks, again).await.expect("ack");
        for (ack, told) in acks.iter().zip(told) {
            let id = ack.id;
            let task = &self.tasks[&id];
            let fence = ack.grant.fence();
            let expected = match task.run.clone().filter(|run| run.grant == ack.grant) {
                None if !again => AckAnswer::Stale,
                None if task.run.is_none() && task.away && task.fence == fence => AckAnswer::Known,
                None if task.run.is_some() && task.ended.is_none() => AckAnswer::Stale,
                None => match self.recalled(id, 12) {
                    Some(true) if task.ended.is_some_and(|(_, ended)| ended == fence) => AckAnswer::Known,
                    _ => AckAnswer::Stale,
                },
                Some(run) if run.cancel || ack.outcome == Outcome::Cancelled => {
                    self.finish(id, State::Cancelled, fence)?;
                    AckAnswer::Cancelled
                }
                Some(_) => match &ack.outcome {
                    Outcome::Succeeded => {
                        self.finish(id, State::Succeeded, fence)?;
                        AckAnswer::Succeeded
                    }
                    Outcome::RetryAfter { ms, counted: false, .. } => {
                        let due = self.now + ms;
                        self.tasks.get_mut(&id).expect("known").due = due;
                        self.back(id)?;
                        AckAnswer::Retrying { due: UnixMs(due) }
                    }
                    outcome => {
                        let after = match outcome {
                            Outcome::RetryAfter { ms, .. } => Some(*ms),
                            _ => None,
                        };
                        match self.fail(id, matches!(outcome, Outcome::Fatal { .. }), after)? {
                            Some(due) => AckAnswer::Retrying { due: UnixMs(due) },
                            None => AckAnswer::Dead,
                        }
                    }
                },
            };
            same!(told, expected, "the ack of {id}");
        }
        Ok(())
    }

    async fn release(&mut self, which: &[Index]) -> Checked {
        let ids = self.pick_running(which);
        let rows: Vec<_> = ids.iter().filter_map(|id| Some((*id, self.current_or_old_grant(*id)?))).collect();
        let told = due::release(&self.space, bucket(), "p1", "a test", &rows).await.expect("release");
        for ((id, grant), told) in rows.into_iter().zip(told) {
            let run = self.tasks[&id].run.clone().filter(|run| run.grant == grant);
            let expected = match run {
                None => ReleaseAnswer::Stale,
                Some(run) if run.cancel => {
                    self.finish(id, State::Cancelled, grant.fence())?;
                    ReleaseAnswer::Cancelled
                }
                Some(_) => {
                    self.back(id)?;
                    ReleaseAnswer::HandedBack
                }
            };
            same!(told, expected, "the release of {id}");
        }
        Ok(())
    }

    // ---- comparing ----

    async fn found(&self) -> Result<BTreeMap<TaskId, Option<read::Found>>, TestCaseError> {
        let mut asked = tokio::task::JoinSet::new();
        for id in self.tasks.keys().copied() {
            let space = self.space.clone();
            asked.spawn(async move { (id, read::get(&space, id).await) });
        }
        let mut out = BTreeMap::new();
        while let Some(told) = asked.join_next().await {
            let (id, found) = told.expect("no panic");
            out.insert(id, found.expect("get"));
        }
        Ok(out)
    }

    async fn compare(&self) -> Checked {
        self.space.inject_now(Some(self.now));
        let counts = read::counts(&self.space, bucket()).await.expect("counts");
        let mut sum = 0;
        for state in State::ALL {
            let expected = self.counts.get(state.name()).copied().unwrap_or(0);
            same!(counts.count(state.name()), expected, "the count of {state}");
            sum += expected;
        }
        same!(counts.count("submitted"), sum, "the law");
        same!(
            counts.count("submitted"),
            self.counts.get("submitted").copied().unwrap_or(0),
            "what was submitted"
        );
        for (id, found) in self.found().await? {
            let task = &self.tasks[&id];
            let Some(found) = found else {
                holds!(
                    task.state.is_final() && self.recalled(id, 90) != Some(true),
                    "{id} is {}, and was not found",
                    task.state
                );
                continue;
            };
            same!(found.state, task.state, "the state of {id}");
            let run = found.run.map(|run| Run {
                grant: run.grant,
                phase: run.phase,
                deadline: run.deadline.0,
                cancel: run.cancel,
                holder: run.holder,
            });
            same!(run, task.run, "the grant of {id}");
            if task.state == State::Pending {
                let place = found.place.map(|p| (p.due.0, p.lane, p.fence, p.failures, p.losses));
                let expected =
                    task.away.then_some((task.due, task.lane, task.fence, task.failures, task.losses));
                same!(place, expected, "the place of {id}");
            }
            if !task.state.is_final() {
                same!(found.attempts.len(), task.attempts as usize, "the attempts of {id}");
                same!(found.spec, Some(task.spec.encode()), "the spec of {id}");
            }
        }
        Ok(())
    }

    // ---- the end ----

    fn live(&self) -> usize {
        self.tasks.values().filter(|task| !task.state.is_final() && task.state != State::Dead).count()
    }

    /// Everything is run to its end: nothing that was accepted is lost.
    async fn drain(&mut self) -> Checked {
        // A clock that had leapt ahead is caught up with.
        self.now = self.lease_now() + 4_000_000;
        for _ in 0..200 {
            if self.live() == 0 {
                return Ok(());
            }
            self.space.inject_now(Some(self.now));
            let all = Claim { limit: 1_000, normal_limit: 1_000, ..Claim::new(PODS[0], [b'0'; 16]) };
            self.claim(PODS[0], all, false).await?;
            self.compare().await?;
            let held: Vec<AckRow> = self
                .tasks
                .iter()
                .filter_map(|(id, task)| Some((*id, task.run.as_ref()?.grant)))
                .map(|(id, grant)| AckRow { id, grant, outcome: Outcome::Succeeded, lag_ms: 1, took_ms: 1 })
                .collect();
            self.send_acks(held, false).await?;
            self.now += 4_000_000;
        }
        Err(TestCaseError::fail(format!("{} tasks never ended", self.live())))
    }

    /// Retention passes; what is left are the few keys that every bucket has.
    async fn forget(&mut self) -> Checked {
        // Pointers that follow the time catch up, a stretch a visit.
        for visit in 1..=1_000 {
            self.now += if visit <= 60 { limits::DEAD_KEEP_MS / 30 } else { 1_000 };
            self.space.inject_now(Some(self.now));
            let none = Claim { limit: 0, normal_limit: 0, ..Claim::new(PODS[0], [b'0'; 16]) };
            claim(&self.space, &none).await;
            if visit >= 60 && visit % 60 == 0 && self.left().await.is_empty() {
                let none = Claim { limit: 0, normal_limit: 0, ..Claim::new(PODS[0], [b'0'; 16]) };
                self.claim(PODS[0], none, false).await?;
                return self.compare().await;
            }
        }
        Err(TestCaseError::fail(format!("keys that never go: {:?}", self.left().await)))
    }

    /// Keys beyond those that a bucket keeps for good.
    async fn left(&self) -> Vec<String> {
        let prefix = self.space.guard(bucket()).key("");
        let keep = |name: &str| {
            // Lag figures end by Redis's own clock.
            ["meta", "counts", "events", "cut", "lock"].contains(&name)
                || name.starts_with("last:")
                || name.starts_with("lag:")
        };
        let all = names(&self.space).await;
        let own = all.iter().filter_map(|key| key.strip_prefix(&prefix[..]));
        own.map(|name| String::from_utf8_lossy(name).into_owned()).filter(|name| !keep(name)).collect()
    }
}

fn outcome(end: &End) -> Outcome {
    let error = || "it did not work".to_owned();
    match end {
        End::Done => Outcome::Succeeded,
        End::Fail => Outcome::Failed { error: error() },
        End::Fatal => Outcome::Fatal { error: error() },
        End::After(ms, counted) => Outcome::RetryAfter { ms: *ms, counted: *counted, error: error() },
        End::Cancelled => Outcome::Cancelled,
    }
}

/// Whether a task pays from a purse of a claim.
fn pays(claim: &Claim, purse: usize, task: &Task) -> bool {
    let mut rules = claim.limits.rules.iter().filter(|rule| rule.purse == purse);
    rules.any(|rule| rule.group == task.lane.group() && rule.tiers >> task.lane.tier().number() & 1 == 1)
}

fn plan(name: &str) -> PlanName {
    PlanName::new(name).expect("a plan")
}

fn frozen(claim: &Claim, task: &Task) -> bool {
    task.spec.plan.as_ref().is_some_and(|plan| claim.frozen_plans.contains(plan))
}

async fn case(ops: Vec<Op>) -> Checked {
    let mut world = World::new().await;
    for (at, op) in ops.iter().enumerate() {
        let told = world.step(op).await;
        told.map_err(|error| TestCaseError::fail(format!("step {at}, {op:?}: {error}")))?;
    }
    let report = check(&world.space, CheckOptions::default()).await.expect("check");
    holds!(report.ok, "damage: {report:#?}");
    world.drain().await?;
    for id in &world.accepted {
        let state = world.tasks[id].state;
        holds!(state.is_final() || state == State::Dead, "{id} is still {state}");
    }
    let report = check(&world.space, CheckOptions::default()).await.expect("check");
    holds!(report.ok, "damage at the end: {report:#?}");
    world.forget().await?;
    let report = check(&world.space, CheckOptions::default()).await.expect("check");
    holds!(report.ok, "damage after all was forgotten: {report:#?}");
    // The namespace is not needed any more; the others' audits shall not walk past it.
    for key in names(&world.space).await {
        world.space.store().command("UNLINK", At::Key(&key), vec![key.clone()]).await.expect("unlink");
    }
    Ok(())
}

fn seed() -> [u8; 32] {
    let text = std::env::var("MINUTEHAND_MODEL_SEED")
        .unwrap_or_else(|_| [random_16(), random_16()].concat().iter().map(|b| format!("{b:02x}")).collect());
    let mut seed = [0; 32];
    for (at, byte) in seed.iter_mut().enumerate() {
        let digits = text.get(2 * at..2 * at + 2).expect("64 hexadecimal digits");
        *byte = u8::from_str_radix(digits, 16).expect("hexadecimal digits");
    }
    println!("MINUTEHAND_MODEL_SEED={text}");
    seed
}

#[test]
fn scripts_agree_with_the_model() {
    let cases = std::env::var("MINUTEHAND_MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ops = proptest::collection::vec(op(), 10..60);
    match TestRunner::new_with_rng(config, rng).run(&ops, |ops| runtime.block_on(case(ops))) {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => panic!("{why}\nminimal sequence: {ops:?}"),
        Err(other) => panic!("{other}"),
    }
}
