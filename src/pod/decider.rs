//! The decision loop: one pod reads every few seconds how all buckets fare, lets [`decide`] decide, notes
//! the decision with its figures, and carries it out.
//!
//! What was half carried out when a pod died is put right by the next one: each round closes and opens
//! buckets as the spread says, and lets those vanish that are closed and empty. Two pods that both believe
//! that they lead do no harm: the spread is changed only by one who saw it as it is.

use super::Shared;
use crate::clock;
use crate::limits;
use crate::metric;
use crate::model::Bucket;
use crate::model::decide::{Action, BucketInput, Decision, Inputs, Readings, Record, Rules, State, decide};
use crate::model::spread::Spread;
use crate::store::bucket::{self, Change, Vanished};
use crate::store::decider::{self, BucketLoad};
use crate::store::member::{ExecutorRecord, PodRecord};
use crate::store::read::Lags;
use crate::store::{Space, StoreError, member};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How the decision loop works.
#[derive(Debug, Clone, Copy)]
pub struct DeciderSettings {
    /// Whether this pod takes part.
    pub enabled: bool,
    /// What decisions go by.
    pub rules: Rules,
    /// How long a closed bucket stays before it vanishes.
    pub linger_ms: i64,
}

impl Default for DeciderSettings {
    fn default() -> Self {
        Self { enabled: true, rules: Rules::default(), linger_ms: limits::RECENT_MAX_MS }
    }
}

/// Windows for which the lead lasts without renewal.
const LEAD_WINDOWS: i64 = 3;
/// Buckets read at a time.
const AT_ONCE: usize = 16;
/// An idle bucket is looked at in one window of so many.
const IDLE_EVERY: u64 = 6;
/// Times that a change is tried again when the spread was changed by another meanwhile.
const CHANGE_TRIES: u32 = 5;

/// Decides while this pod leads, until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let settings = shared.settings.decider;
    if !settings.enabled {
        return;
    }
    let window = clock::ms(settings.rules.window_ms);
    let mut eye = Eye::default();
    let mut leads = false;
    loop {
        // Spread by chance, so that pods started together do not ask together.
        let wait = window.mul_f64(if leads { 1.0 } else { fastrand::f64().mul_add(0.2, 0.9) });
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(wait) => {}
        }
        match round(&shared, &mut eye, &mut leads).await {
            Ok(()) => {}
            Err(error) => {
                metric::handles().decider_errors.increment(1);
                tracing::warn!(%error, "could not decide on the number of buckets; trying again");
            }
        }
    }
    if leads {
        // Another pod need not wait.
        let _ = decider::lead(&shared.space, &shared.settings.id, 0).await;
    }
}

async fn round(shared: &Shared, eye: &mut Eye, leads: &mut bool) -> Result<(), StoreError> {
    let (space, settings) = (&shared.space, &shared.settings);
    let rules = settings.decider.rules;
    let lead = decider::lead(space, &settings.id, rules.window_ms * LEAD_WINDOWS).await?;
    let state: State = serde_json::from_slice(&lead.state).unwrap_or_default();
    let metrics = metric::handles();
    metrics.decider_leads.set(f64::from(u8::from(lead.mine)));
    if lead.mine != *leads {
        *leads = lead.mine;
        *eye = Eye::default();
        tracing::info!(leads = lead.mine, leader = %lead.leader, "decider of the number of buckets");
    }
    if !lead.mine {
        publish(&state);
        return Ok(());
    }
    let spread = space.refresh_spread().await?;
    let (readings, marks) = eye.look(space, &spread, rules.window_ms).await?;
    let inputs = Inputs::new(&rules, &spread, readings);
    let (after, decision) = decide(&rules, &state, &inputs);
    metrics.decider_decisions.add(decision.reason.name(), 1);
    metrics.redis_main_thread.set(f64::from(inputs.redis_permille.unwrap_or(0)) / 1_000.0);
    metrics.decider_backlog.set(inputs.backlog as f64);
    metrics.decider_lag.set(inputs.p99_ms.unwrap_or(0) as f64 / 1_000.0);
    metrics.buckets_open.set(f64::from(spread.buckets));
    metrics.buckets_closing.set(spread.closing.len() as f64);
    publish(&after);
    let changes = decision.action.changes();
    let json =
        |error: serde_json::Error| StoreError::BadReply { script: "decider.note", what: error.to_string() };
    let remembered = serde_json::to_vec(&after).map_err(json)?;
    let record = Record { rules, state, inputs, decision: decision.clone() };
    let record = serde_json::to_vec(&record).map_err(json)?;
    if !decider::note(space, &settings.id, &remembered, &record, changes).await? {
        return Ok(());
    }
    tracing::debug!(action = %decision.action, reason = decision.reason.name(), why = %decision.why, "decided");
    put_right(space, &spread, &marks, settings.decider.linger_ms).await?;
    if changes {
        carry_out(space, &decision).await?;
    }
    Ok(())
}

/// All pods publish the same wishes, so that an autoscaler may ask any of them.
fn publish(state: &State) {
    metric::handles().wanted_pods.set(f64::from(state.pods.value));
    metric::handles().wanted_executors.set(f64::from(state.executors.value));
}

// ---- seeing ----

/// What the leader remembers from one window to the next: figures that only grow.
#[derive(Debug, Default)]
struct Eye {
    round: u64,
    at: Option<Instant>,
    loads: HashMap<u16, BucketLoad>,
    /// Time of each server's main thread, in µs.
    servers: HashMap<String, u64>,
}

/// Buckets that are closed and should be open, or the other way round.
#[derive(Debug, Default)]
struct Marks {
    open: Vec<Bucket>,
    close: Vec<Bucket>,
}

impl Eye {
    async fn look(
        &mut self,
        space: &Space,
        spread: &Spread,
        window_ms: i64,
    ) -> Result<(Readings, Marks), StoreError> {
        let now = clock::mono();
        let passed = self.at.map(|at| now.saturating_duration_since(at));
        self.at = Some(now);
        self.round += 1;
        let pods = member::pods(space).await?;
        let executors = member::executors(space).await?;
        let mut out = Readings {
            at_ms: space.clock().now_ms(),
            window_ms: passed.map_or(window_ms, |passed| passed.as_millis() as i64).max(1),
            redis_permille: self.redis(space, passed).await?,
            ..Readings::default()
        };
        members(&mut out, &pods, &executors);
        let effort = effort(&pods);
        let (loads, unreadable) = self.read(space, spread, &effort).await;
        out.unreadable = unreadable;
        let mut all = BTreeMap::new();
        let mut marks = Marks::default();
        for (bucket, load) in loads {
            let number = bucket.number();
            let closing = number >= spread.buckets;
            if load.closed && !closing {
                marks.open.push(bucket);
            } else if !load.closed && closing {
                marks.close.push(bucket);
            }
            let fresh = fresh(self.loads.get(&number), &load);
            for (bin, count) in &fresh {
                *all.entry(*bin).or_default() += count;
            }
            let lags = Lags::of_bins(fresh);
            let (busy_permille, starved_permille) = effort.get(&number).copied().unwrap_or_default();
            out.buckets.push(BucketInput {
                bucket: number,
                closing,
                starts: lags.count(),
                p50_ms: lags.quantile(0.5),
                p99_ms: lags.quantile(0.99),
                waiting_ms: load.oldest.map_or(0, |due| (load.now.0 - due.0).max(0)),
                backlog: load.ripe,
                busy_permille,
                starved_permille,
                holders: spread.holders_of(number),
                late: false,
            });
            out.coming.resize(out.coming.len().max(load.coming.len()), 0);
            for (sum, tasks) in out.coming.iter_mut().zip(&load.coming) {
                *sum += tasks;
            }
            self.loads.insert(number, load);
        }
        let all = Lags::of_bins(all);
        (out.p50_ms, out.p99_ms) = (all.quantile(0.5), all.quantile(0.99));
        Ok((out, marks))
    }

    /// The use of the busiest server's main thread since the last look.
    async fn redis(&mut self, space: &Space, passed: Option<Duration>) -> Result<Option<u16>, StoreError> {
        let info = space.store().server_info().await?;
        let mut busiest = None;
        for node in &info.nodes {
            let Some(now_us) = node.main_thread_us else { return Ok(None) };
            let before = self.servers.insert(node.addr.clone(), now_us);
            if let (Some(before), Some(passed)) = (before, passed) {
                // A server that was restarted begins at nothing.
                let used = now_us.saturating_sub(before) as f64 / passed.as_micros().max(1) as f64;
                busiest = busiest.max(Some((used * 1_000.0).min(1_000.0) as u16));
            }
        }
        Ok(busiest)
    }

    /// How all buckets fare that may hold tasks. Idle ones are looked at now and then.
    async fn read(
        &self,
        space: &Space,
        spread: &Spread,
        effort: &HashMap<u16, (u16, u16)>,
    ) -> (Vec<(Bucket, BucketLoad)>, u16) {
        let idle = |bucket: Bucket| {
            let known = self.loads.get(&bucket.number())?;
            let quiet = known.ripe == 0 && known.running == 0 && known.coming.iter().all(|tasks| *tasks == 0);
            let turn = (self.round + u64::from(bucket.number())).is_multiple_of(IDLE_EVERY);
            let in_place = known.closed == (bucket.number() >= spread.buckets);
            (quiet && in_place && !turn && !effort.contains_key(&bucket.number())).then(|| known.clone())
        };
        let (mut running, mut out, mut unreadable) = (JoinSet::new(), Vec::new(), 0);
        let mut left = spread.live();
        loop {
            while running.len() < AT_ONCE {
                let Some(bucket) = left.next() else { break };
                if let Some(known) = idle(bucket) {
                    out.push((bucket, known));
                    continue;
                }
                let space = space.clone();
                running.spawn(async move { (bucket, decider::load(&space, bucket).await) });
            }
            match running.join_next().await {
                Some(Ok((bucket, Ok(load)))) => out.push((bucket, load)),
                Some(Ok((bucket, Err(error)))) => {
                    tracing::debug!(%bucket, %error, "could not read how a bucket fares");
                    unreadable += u16::from(bucket.number() < spread.buckets);
                }
                Some(Err(_)) => unreadable += 1,
                None => return (out, unreadable),
            }
        }
    }
}

/// Starts since the last look, by bin of their lag; none at the first look, of which nobody knows the time.
fn fresh(before: Option<&BucketLoad>, now: &BucketLoad) -> BTreeMap<u16, u64> {
    let Some(before) = before else { return BTreeMap::new() };
    let mut out = BTreeMap::new();
    for (minute, bins) in &now.lags {
        // A minute that was not there at the last look began after it, or nothing had ended in it.
        let known = before.lags.get(minute);
        for (bin, count) in bins {
            let seen = known.and_then(|bins| bins.get(bin)).copied().unwrap_or(0);
            if *count > seen {
                *out.entry(*bin).or_default() += count - seen;
            }
        }
    }
    out
}

/// What the busiest claim loop of each bucket does with its time.
fn effort(pods: &[PodRecord]) -> HashMap<u16, (u16, u16)> {
    let mut out: HashMap<u16, (u16, u16)> = HashMap::new();
    for (bucket, busy, starved) in pods.iter().flat_map(|pod| &pod.loads) {
        let known = out.entry(*bucket).or_default();
        *known = (known.0.max(*busy), known.1.max(*starved));
    }
    out
}

fn members(out: &mut Readings, pods: &[PodRecord], executors: &[ExecutorRecord]) {
    out.pods = pods.iter().filter(|pod| !pod.draining).count() as u16;
    out.pods_cpu_permille = pods.iter().map(|pod| u32::from(pod.cpu_permille)).sum();
    let live = || executors.iter().filter(|executor| !executor.draining);
    out.executors = live().count() as u16;
    out.slots = live().map(|executor| executor.slots).sum();
    out.slots_busy = live().map(|executor| executor.busy.min(executor.slots)).sum();
    let averages: Vec<f64> = live()
        .flat_map(|executor| &executor.averages)
        .map(|(_, ms)| *ms)
        .filter(|ms| ms.is_finite())
        .collect();
    if !averages.is_empty() {
        let mean_ms = averages.iter().sum::<f64>() / averages.len() as f64;
        out.run_us = Some((mean_ms * 1_000.0).clamp(1.0, 1e12) as u64);
    }
}

// ---- acting ----

/// Opens and closes what is not as the spread says, and lets go what is closed and empty.
async fn put_right(space: &Space, spread: &Spread, marks: &Marks, linger_ms: i64) -> Result<(), StoreError> {
    for bucket in &marks.open {
        bucket::mark(space, *bucket, false).await?;
    }
    for bucket in &marks.close {
        bucket::mark(space, *bucket, true).await?;
    }
    let mut gone = Vec::new();
    for number in spread.closing.iter().copied() {
        let Some(closing) = Bucket::new(number) else { continue };
        match bucket::vanish(space, closing, linger_ms).await? {
            Vanished::Gone => gone.push(number),
            Vanished::Open | Vanished::Young => {}
            Vanished::Holds(what) => tracing::trace!(bucket = number, what, "a closing bucket is not empty"),
        }
    }
    if !gone.is_empty() {
        let left = |spread: &Spread| spread.closing.iter().copied().filter(|n| !gone.contains(n)).collect();
        let hot = |spread: &Spread| spread.hot.iter().copied().filter(|(n, _)| !gone.contains(n)).collect();
        change(space, |spread| {
            Some(Change { closing: Some(left(spread)), hot: Some(hot(spread)), ..Change::default() })
        })
        .await?;
        tracing::info!(buckets = ?gone, "closed buckets are empty and have vanished");
    }
    Ok(())
}

/// Changes the spread as it is now; tries again when someone else changed it meanwhile.
async fn change(space: &Space, make: impl Fn(&Spread) -> Option<Change>) -> Result<bool, StoreError> {
    for _ in 0..CHANGE_TRIES {
        let spread = space.spread();
        let Some(change) = make(&spread) else { return Ok(false) };
        if bucket::resize(space, &spread, &change).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn carry_out(space: &Space, decision: &Decision) -> Result<(), StoreError> {
    let done = match decision.action {
        Action::Hold => return Ok(()),
        Action::Double { from, to } => grow(space, from, to).await?,
        Action::Halve { from, to } => shrink(space, from, to).await?,
        Action::Holders { bucket, from, to } => {
            change(space, |spread| {
                if spread.holders_of(bucket) != from {
                    return None;
                }
                let mut hot = spread.hot.to_vec();
                hot.retain(|(other, _)| *other != bucket);
                if to > spread.holders {
                    hot.push((bucket, to));
                }
                hot.sort_unstable();
                Some(Change { hot: Some(hot), ..Change::default() })
            })
            .await?
        }
    };
    let (reason, why) = (decision.reason.name(), &decision.why);
    if done {
        tracing::info!(action = %decision.action, reason, %why, "the buckets change");
    } else {
        tracing::warn!(action = %decision.action, "the spread was changed by someone else; nothing was done");
    }
    Ok(())
}

/// Pods look into the new buckets before tasks may come into them.
async fn grow(space: &Space, from: u16, to: u16) -> Result<bool, StoreError> {
    let watched = change(space, |spread| {
        let mut closing = spread.closing.to_vec();
        closing.extend(from..to);
        closing.sort_unstable();
        closing.dedup();
        (spread.buckets == from).then(|| Change { closing: Some(closing), ..Change::default() })
    });
    if !watched.await? {
        return Ok(false);
    }
    for bucket in (from..to).filter_map(Bucket::new) {
        bucket::mark(space, bucket, false).await?;
    }
    change(space, |spread| {
        let closing = spread.closing.iter().copied().filter(|n| *n >= to).collect();
        let open = Change { buckets: Some(to), closing: Some(closing), ..Change::default() };
        (spread.buckets == from).then_some(open)
    })
    .await
}

/// Submitters are sent elsewhere first; then the buckets close to those who have not heard of it.
async fn shrink(space: &Space, from: u16, to: u16) -> Result<bool, StoreError> {
    let done = change(space, |spread| {
        let mut closing = spread.closing.to_vec();
        closing.extend(to..from);
        closing.sort_unstable();
        closing.dedup();
        let close = Change { buckets: Some(to), closing: Some(closing), ..Change::default() };
        (spread.buckets == from && to >= spread.key_buckets).then_some(close)
    })
    .await?;
    if done {
        for bucket in (to..from).filter_map(Bucket::new) {
            bucket::mark(space, bucket, true).await?;
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_starts_since_the_last_look_count() {
        let load = |minutes: &[(i64, &[(u16, u64)])]| BucketLoad {
            lags: minutes.iter().map(|(minute, bins)| (*minute, bins.iter().copied().collect())).collect(),
            ..BucketLoad::default()
        };
        let before = load(&[(9, &[(1, 100)]), (10, &[(1, 5), (2, 1)])]);
        let now = load(&[(10, &[(1, 7), (2, 1)]), (11, &[(1, 4)])]);
        assert_eq!(fresh(Some(&before), &now), BTreeMap::from([(1, 6)]));
        assert_eq!(fresh(None, &now), BTreeMap::new());
    }
}
