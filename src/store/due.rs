//! Claiming what is due, and giving it back: `lua/due/`.

use super::StoreError;
use super::args::Args;
use super::intake::clip;
use super::script;
use super::space::Space;
use crate::limits;
use crate::model::{Bucket, Grant, LaneCode, Nonce, PlanName, Spec, TaskId, UnixMs, digits};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How much of one queue (with its labels) may be claimed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Nobody serves it, or it is held: its lanes stand aside.
    Closed,
    /// So many tasks of all priorities, and so many of P2 to P5.
    Open {
        /// Tasks of any priority.
        any: u32,
        /// Tasks of P2 to P5, which may not use the urgent pool.
        normal: u32,
    },
}

/// What lanes under one limit may take together in a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purse {
    /// None of them may go: they stand aside until the rules change.
    Closed,
    /// So many tasks.
    Tokens(u32),
    /// So many less those of the counted queues that run in the bucket.
    Running(u32),
}

/// Which lanes pay from a purse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Queue with labels, by code.
    pub group: u32,
    /// A bit for each tier: 1 for fresh tasks, 2 for those that failed once, …
    pub tiers: u8,
    /// Place in [`ClaimLimits::purses`].
    pub purse: usize,
}

/// Limits that a claim keeps to. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimLimits {
    /// No task that has failed may go.
    pub no_retries: bool,
    /// Until when tokens are good, by Redis's clock.
    pub until: Option<UnixMs>,
    /// Queues with labels whose running tasks and outcomes are counted.
    pub counted: Vec<u32>,
    /// What may be taken.
    pub purses: Vec<Purse>,
    /// Who pays from what; at most [`limits::RULES_MAX`].
    pub rules: Vec<Rule>,
    /// Further queues with labels that may not be claimed, whatever else is said of them: as many as there are.
    pub closed: Vec<u32>,
    /// Rules of placement keys, in order of their queues with labels: [`crate::model::queue::PlacementSettings::rule`].
    pub placed: Bytes,
}

/// What became of a purse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Tasks that were granted from it.
    pub spent: u32,
    /// Ripe tasks that it, or another that the same lanes pay from, has kept back.
    pub denied: u32,
}

/// Counts of one queue with labels in a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Counted tasks that run.
    pub running: u32,
    /// Successes ever counted.
    pub succeeded: u64,
    /// Failures ever counted.
    pub failed: u64,
}

/// What one claim asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The pod's id, at most 32 bytes.
    pub pod: String,
    /// The pod's permit for this bucket: 16 characters, new for each time it takes the bucket.
    pub permit: [u8; 16],
    /// This call: the same after a lost reply, new otherwise.
    pub call: [u8; 16],
    /// Chance for the grants of this call.
    pub nonce: Nonce,
    /// Most tasks, at most [`limits::BATCH_MAX_ROWS`]; 0 only keeps the permit and reaps.
    pub limit: u32,
    /// Most tasks of P2 to P5.
    pub normal_limit: u32,
    /// Most bytes of specs.
    pub max_bytes: usize,
    /// Pods that may hold the bucket.
    pub holders: u8,
    /// How long the permit lasts.
    pub lock_ms: i64,
    /// How long a grant lasts without a start.
    pub dispatch_ms: i64,
    /// The same for queues that have one of their own, by code; at most [`limits::QUOTAS_MAX`] count.
    pub own_dispatch: Arc<BTreeMap<u32, i64>>,
    /// How long reaping pauses after a leap of the clock.
    pub lease_ms: i64,
    /// Grants too what is due within so many ms, at most [`limits::LOOK_AHEAD_MAX_MS`], if all of it may go; whoever
    /// gets it must hold it until then.
    pub ahead_ms: i64,
    /// What the caller knows of the time.
    pub expected: Expected,
    /// Shares of P0 to P5.
    pub weights: [u32; 6],
    /// Those of queues that have weights of their own, by code; at most [`limits::QUOTAS_MAX`] count.
    pub own_weights: Vec<(u32, [u32; 6])>,
    /// How long the oldest task of a priority must have waited for its turn until the priority counts double; 0 for
    /// never.
    pub ageing_ms: i64,
    /// Quota of queues that are not listed.
    pub default_quota: Quota,
    /// Queues with another quota; at most [`limits::QUOTAS_MAX`].
    pub quotas: Vec<(u32, Quota)>,
    /// Plans whose tasks are set aside; at most [`limits::FROZEN_MAX`].
    pub frozen_plans: Arc<[PlanName]>,
    /// Limits of queues and downstreams.
    pub limits: ClaimLimits,
    /// Bytes of events this bucket may keep.
    pub events_max_bytes: usize,
    /// Age at which dead letters go.
    pub dead_keep_ms: i64,
    /// Dead letters this bucket may keep.
    pub dead_keep_rows: usize,
}

/// What a caller of a claim knows of the time. Where it knows something, leases do not lapse for
/// [`limits::RETURN_MS`] once somebody is back in a bucket with running tasks that was left for [`limits::AWAY_MS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Redis's time as its monotonic clock expects it, from an earlier claim of this bucket: with it a leap is seen.
    Now(UnixMs),
    /// It is new to the bucket, and was itself kept away from Redis until lately.
    Away,
    /// Nothing.
    Nothing,
}

impl Claim {
    /// A claim with the default limits.
    pub fn new(pod: &str, permit: [u8; 16]) -> Self {
        Self {
            pod: pod.to_owned(),
            permit,
            call: random_16(),
            nonce: Nonce::new(fastrand::u64(..)),
            limit: 500,
            normal_limit: 500,
            max_bytes: limits::CALL_MAX_BYTES,
            holders: 1,
            lock_ms: limits::LOCK_MS,
            dispatch_ms: limits::DISPATCH_TIMEOUT_MS,
            own_dispatch: Arc::default(),
            lease_ms: limits::LEASE_MS,
            ahead_ms: 0,
            expected: Expected::Nothing,
            weights: crate::model::Priority::WEIGHTS,
            own_weights: Vec::new(),
            ageing_ms: 0,
            default_quota: Quota::Open { any: 1_000, normal: 1_000 },
            quotas: Vec::new(),
            frozen_plans: Arc::default(),
            limits: ClaimLimits::default(),
            events_max_bytes: limits::EVENTS_MAX_BYTES / usize::from(limits::KEY_BUCKETS_DEFAULT),
            dead_keep_ms: limits::DEAD_KEEP_MS,
            dead_keep_rows: limits::DEAD_KEEP_ROWS / usize::from(limits::KEY_BUCKETS_DEFAULT),
        }
    }

    /// The same claim as a new call.
    pub fn again(&mut self) {
        self.call = random_16();
        self.nonce = Nonce::new(fastrand::u64(..));
    }

    /// Tells two sets of closed queues apart; the script looks at lanes that stand aside only when it changes.
    fn signature(&self) -> u64 {
        let closed = |quota: &Quota| *quota == Quota::Closed;
        let mut text: Vec<u8> = vec![u8::from(closed(&self.default_quota))];
        for (group, quota) in &self.quotas {
            if closed(quota) != closed(&self.default_quota) {
                text.extend_from_slice(&group.to_be_bytes());
            }
        }
        let ClaimLimits { no_retries, rules, purses, closed, .. } = &self.limits;
        for group in closed {
            text.extend_from_slice(&group.to_be_bytes());
        }
        if *no_retries || !rules.is_empty() {
            text.push(u8::from(*no_retries));
            // Purses fill and empty; which lanes pay, and which are closed, changes seldom.
            for rule in rules {
                text.extend_from_slice(&rule.group.to_be_bytes());
                text.push(rule.tiers | u8::from(purses.get(rule.purse) == Some(&Purse::Closed)) << 7);
            }
        }
        xxhash_rust::xxh3::xxh3_64(&text) >> 12
    }
}

/// Tells two sets of frozen plans apart; tasks that were set aside are looked at only when it changes.
fn signature_of(plans: &[PlanName]) -> u64 {
    let names: Vec<&str> = plans.iter().map(PlanName::as_str).collect();
    xxhash_rust::xxh3::xxh3_64(names.join(" ").as_bytes()) >> 12
}

/// The three digits of a queue with labels.
fn code_text(group: u32) -> String {
    let mut code = [0; 3];
    digits::write(&mut code, u128::from(group));
    code.map(char::from).iter().collect()
}

/// Sixteen characters of chance: a permit or the name of a call.
pub fn random_16() -> [u8; 16] {
    let mut out = [0; 16];
    digits::write(&mut out, fastrand::u128(..));
    out
}

/// A task granted to a pod.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The task.
    pub id: TaskId,
    /// Its grant.
    pub grant: Grant,
    /// Its lane now.
    pub lane: LaneCode,
    /// When it was due, retries and moves counted in.
    pub due: UnixMs,
    /// How often it has failed.
    pub failures: u32,
    /// Its spec, encoded.
    pub spec: Bytes,
}

/// What a claim brought.
#[derive(Debug, Clone)]
pub enum ClaimAnswer {
    /// The pod holds the bucket.
    Held(Claimed),
    /// Others do, the first of them until then.
    NotHolder {
        /// When the first permit of the others ends.
        until: UnixMs,
    },
}

/// What a claim of a held bucket brought.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Redis's time.
    pub now: UnixMs,
    /// When the next task is due; nothing when none is waiting, or when something ripe is left.
    pub next_due: Option<UnixMs>,
    /// Ripe tasks left in lanes that do not stand aside, at least; quotas may forbid them for now.
    pub backlog: u64,
    /// Nothing of the bucket runs, stands in a lane or is held: all there may be is due later.
    pub rests: bool,
    /// Leases that had lapsed.
    pub reaped: u32,
    /// How far Redis's clock was from the expected time, where that was over 5 s.
    pub leap_ms: i64,
    /// A step was cut off, such as bringing back what was thawed: a further claim goes on at once.
    pub again: bool,
    /// The clock as the bucket knew it before this claim: that of the claim before it, or later; nothing when no claim
    /// is known there.
    pub remembered: Option<UnixMs>,
    /// The tasks.
    pub tasks: Vec<Granted>,
    /// What became of the purses, in their order; nothing where there were none, or the call was answered again.
    pub purses: Vec<Spent>,
    /// Counts of the counted queues, in their order.
    pub tallies: Vec<Tally>,
}

const HEAD_LEN: usize = 53;
const SHORT_HEAD_LEN: usize = 20;

/// Claims what is due in a bucket, taking or renewing the pod's permit for it.
///
/// Repeated with the same [`Claim::call`], it answers what that call was granted and still holds.
pub async fn claim(space: &Space, bucket: Bucket, claim: &Claim) -> Result<ClaimAnswer, StoreError> {
    let mut args = space.args(33 + claim.quotas.len() * 3, 512 + claim.quotas.len() * 16);
    args.bytes(clip(&claim.pod, 32)).bytes(&claim.permit).bytes(&claim.call).bytes(claim.nonce.as_bytes());
    args.number(claim.limit.min(limits::BATCH_MAX_ROWS as u32)).number(claim.normal_limit.min(claim.limit));
    args.number(claim.max_bytes).number(claim.holders.max(1));
    args.number(claim.lock_ms);
    if claim.own_dispatch.is_empty() {
        args.number(claim.dispatch_ms)
    } else {
        let mut text = claim.dispatch_ms.to_string();
        for (group, ms) in claim.own_dispatch.iter().take(limits::QUOTAS_MAX) {
            text.push(';');
            text.push_str(&code_text(*group));
            text.push_str(&ms.to_string());
        }
        args.bytes(text.as_bytes())
    };
    args.number(claim.lease_ms);
    match claim.expected {
        Expected::Now(now) => args.number(now.0),
        Expected::Away => args.bytes(b"away"),
        Expected::Nothing => args.bytes(b""),
    };
    args.number(fastrand::f64());
    args.number(claim.events_max_bytes).number(claim.dead_keep_ms).number(claim.dead_keep_rows);
    let own = &claim.own_weights[..claim.own_weights.len().min(limits::QUOTAS_MAX)];
    for (level, weight) in claim.weights.into_iter().enumerate() {
        if own.is_empty() && claim.ageing_ms <= 0 {
            args.number(weight.max(1));
            continue;
        }
        let mut text = format!("{}+{}", weight.max(1), claim.ageing_ms.max(0));
        for (group, weights) in own {
            text.push(';');
            text.push_str(&code_text(*group));
            text.push_str(&weights[level].max(1).to_string());
        }
        args.bytes(text.as_bytes());
    }
    let pair = |quota: Quota| match quota {
        Quota::Closed => (-1, -1),
        Quota::Open { any, normal } => (i64::from(any), i64::from(normal)),
    };
    let (any, normal) = pair(claim.default_quota);
    let quotas = &claim.quotas[..claim.quotas.len().min(limits::QUOTAS_MAX)];
    args.number(any).number(normal).number(claim.signature());
    args.number(claim.ahead_ms.clamp(0, limits::LOOK_AHEAD_MAX_MS)).number(quotas.len());
    for (group, quota) in quotas {
        let mut code = [0; 3];
        digits::write(&mut code, u128::from(*group));
        let (any, normal) = pair(*quota);
        args.bytes(&code).number(any).number(normal);
    }
    let plans = &claim.frozen_plans[..claim.frozen_plans.len().min(limits::FROZEN_MAX)];
    if plans.is_empty() {
        args.bytes(b"")
    } else {
        args.number(signature_of(plans))
    };
    args.number(plans.len());
    for plan in plans {
        args.bytes(plan.as_str().as_bytes());
    }
    put_limits(&mut args, &claim.limits);
    let mut answer = space.call(&script::CLAIM, space.guard(bucket), args).await?;
    let now = UnixMs(answer.now_ms());
    if &answer.word[..] == b"NOT_HOLDER" {
        let until = answer.fields.int("until")?;
        return Ok(ClaimAnswer::NotHolder { until: UnixMs(until) });
    }
    let mut fields = answer.ok()?;
    let next_due = fields.int("next due")?;
    let backlog = fields.int("backlog")?;
    let reaped = fields.int("reaped")?;
    let leap_ms = fields.int("leap")?;
    let again = fields.int("again")? == 1;
    let remembered = fields.int("the clock of the last claim")?;
    let rests = fields.int("rests")? == 1;
    let mut tasks = Vec::with_capacity(fields.left() / 2);
    while fields.left() > 1 {
        let head = fields.bytes("a grant")?;
        let spec = fields.bytes("a spec")?;
        tasks.push(
            read_head(&head, spec, claim.nonce).ok_or_else(|| fields.bad("a grant has the wrong form"))?,
        );
    }
    let (purses, tallies) = match fields.left() {
        0 => Default::default(),
        _ => {
            let text = fields.text("what limits did")?;
            read_report(&text).ok_or_else(|| fields.bad("what limits did has the wrong form"))?
        }
    };
    Ok(ClaimAnswer::Held(Claimed {
        now,
        next_due: (next_due >= 0).then_some(UnixMs(next_due)),
        backlog: u64::try_from(backlog).unwrap_or(0),
        rests,
        reaped: u32::try_from(reaped).unwrap_or(0),
        leap_ms,
        again,
        remembered: (remembered > 0).then_some(UnixMs(remembered)),
        tasks,
        purses,
        tallies,
    }))
}

fn put_limits(args: &mut Args, own: &ClaimLimits) {
    let code = |group: u32| {
        let mut code = [0; 3];
        digits::write(&mut code, u128::from(group));
        code
    };
    args.raw(if own.no_retries { b"1" } else { b"0" });
    let mut closed = own.closed.clone();
    closed.sort_unstable();
    closed.dedup();
    for group in closed {
        args.raw(&code(group));
    }
    if !own.placed.is_empty() {
        args.raw(b";").raw(&own.placed);
    }
    args.cut();
    if own.purses.is_empty() && own.counted.is_empty() {
        return;
    }
    match own.until {
        Some(until) => args.number(until.0),
        None => args.bytes(b""),
    };
    for group in &own.counted {
        args.raw(&code(*group));
    }
    args.cut().number(own.purses.len());
    for purse in &own.purses {
        match purse {
            Purse::Closed => args.bytes(b"t").number(-1),
            Purse::Tokens(tokens) => args.bytes(b"t").number(*tokens),
            Purse::Running(most) => args.bytes(b"r").number(*most),
        };
    }
    debug_assert!(own.rules.len() <= limits::RULES_MAX);
    args.number(own.rules.len());
    for rule in &own.rules {
        let tiers: [u8; 7] =
            std::array::from_fn(|tier| if rule.tiers >> tier & 1 == 1 { b'1' } else { b'0' });
        args.joined(&[&code(rule.group), &tiers]).number(rule.purse + 1);
    }
}

/// `spent,denied;…|running,succeeded,failed;…`
fn read_report(text: &str) -> Option<(Vec<Spent>, Vec<Tally>)> {
    let (purses, tallies) = text.split_once('|')?;
    let numbers = |row: &str| row.split(',').map(|n| n.parse::<i64>().ok()).collect::<Option<Vec<_>>>();
    let small = |n: i64| u32::try_from(n.max(0)).unwrap_or(u32::MAX);
    let purses = purses.split_terminator(';').map(|row| match numbers(row)?[..] {
        [spent, denied] => Some(Spent { spent: small(spent), denied: small(denied) }),
        _ => None,
    });
    let tallies = tallies.split_terminator(';').map(|row| match numbers(row)?[..] {
        [running, succeeded, failed] => {
            let (succeeded, failed) = (succeeded.unsigned_abs(), failed.unsigned_abs());
            Some(Tally { running: small(running), succeeded, failed })
        }
        _ => None,
    });
    Some((purses.collect::<Option<_>>()?, tallies.collect::<Option<_>>()?))
}

fn read_head(head: &[u8], spec: Bytes, nonce: Nonce) -> Option<Granted> {
    if head.len() == SHORT_HEAD_LEN {
        // Granted for the first time, and at home: the rest follows from id, spec and call.
        let id = TaskId::from_bytes(&head[..16])?;
        let lane = LaneCode::from_bytes(&head[16..])?;
        let due = Spec::peek_due(&spec, id.home().start())?;
        return Some(Granted { id, grant: Grant::new(1, nonce), lane, due, failures: 0, spec });
    }
    if head.len() != HEAD_LEN {
        return None;
    }
    let decimal = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    let hex = |text: &[u8]| u32::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
    Some(Granted {
        id: TaskId::from_bytes(&head[..16])?,
        lane: LaneCode::from_bytes(&head[16..20])?,
        grant: Grant::from_bytes(&head[20..38])?,
        due: UnixMs(decimal(&head[38..51])?),
        failures: hex(&head[51..53])?,
        spec,
    })
}

/// What became of a task that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// It is pending again, at its old place by due time.
    HandedBack,
    /// Someone had cancelled it meanwhile; it ended.
    Cancelled,
    /// The grant is no longer current.
    Stale,
}

/// Gives granted tasks of one bucket back, uncounted. Long lists go in pieces.
pub async fn release(
    space: &Space,
    bucket: Bucket,
    who: &str,
    cause: &str,
    rows: &[(TaskId, Grant)],
) -> Result<Vec<ReleaseAnswer>, StoreError> {
    let mut out = Vec::with_capacity(rows.len());
    for piece in rows.chunks(limits::SINGLE_MAX_ROWS) {
        out.append(&mut release_piece(space, bucket, who, cause, piece).await?);
    }
    Ok(out)
}

async fn release_piece(
    space: &Space,
    bucket: Bucket,
    who: &str,
    cause: &str,
    rows: &[(TaskId, Grant)],
) -> Result<Vec<ReleaseAnswer>, StoreError> {
    let mut args = space.args(3 + rows.len(), 64 + cause.len() + rows.len() * 34);
    args.bytes(clip(who, 99)).bytes(clip(cause, limits::ERROR_TAIL_MAX_BYTES));
    for (id, grant) in rows {
        args.joined(&[id.as_bytes(), grant.as_bytes()]);
    }
    let mut fields = space.call(&script::RELEASE, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    if letters.len() != rows.len() {
        return Err(fields.bad("not one letter a row"));
    }
    Ok(letters
        .iter()
        .map(|letter| match letter {
            b'H' => ReleaseAnswer::HandedBack,
            b'C' => ReleaseAnswer::Cancelled,
            _ => ReleaseAnswer::Stale,
        })
        .collect())
}

/// Lets go of a bucket, so that another pod may take it at once.
pub async fn yield_bucket(
    space: &Space,
    bucket: Bucket,
    pod: &str,
    permit: &[u8; 16],
) -> Result<(), StoreError> {
    let mut args = space.args(3, 64);
    args.bytes(clip(pod, 32)).bytes(permit);
    space.call(&script::YIELD, space.guard(bucket), args).await?.ok()?;
    Ok(())
}
/// Gives grants of any buckets back. What cannot be given back now comes back by its dispatch time-out.
pub async fn hand_back(space: &Space, who: &str, cause: &str, rows: Vec<(TaskId, Grant)>) {
    let mut by_bucket: HashMap<Bucket, Vec<(TaskId, Grant)>> = HashMap::new();
    for row in rows {
        by_bucket.entry(row.0.bucket()).or_default().push(row);
    }
    for (bucket, rows) in by_bucket {
        for piece in rows.chunks(limits::BATCH_MAX_ROWS) {
            if let Err(error) = release(space, bucket, who, cause, piece).await {
                tracing::warn!(%bucket, tasks = piece.len(), %error, "could not hand back; the dispatch time-out will");
            }
        }
    }
}
