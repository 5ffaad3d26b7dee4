//! Sends outcomes to the web addresses of who subscribed to them.
//!
//! What is to be told lies in the outboxes of the buckets, and how far each subscription has got it beside them; a pod
//! only carries. One pod at a time does it for a bucket, those of its share, under a lease. What it is about to send is
//! noted before, so that whoever sends it again, after whatever, sends the same under the same id. A receiver that does
//! not answer holds up itself alone. Nothing is asked of Redis where nobody has subscribed.

use super::Shared;
use crate::clock;
use crate::limits;
use crate::metric;
use crate::model::outcome::{EntryId, Outcome, Place, wait_ms};
use crate::model::share::fair_share;
use crate::model::{Bucket, Subscription, SubscriptionName};
use crate::store::member::Undelivered;
use crate::store::outcome::{self, Taken};
use crate::store::{StoreError, queue};
use crate::webhook::{Message, SendError, Sender};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use xxhash_rust::xxh3::xxh3_128;

/// How often outboxes are looked into while something comes; up to [`LOOK_SELDOM`] while nothing does.
const LOOK_OFTEN: Duration = Duration::from_millis(100);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// Buckets that are asked at the same time.
const AT_ONCE: usize = 16;
/// Deliveries of one bucket to one subscription in a row, before others get a turn.
const IN_A_ROW: usize = 64;
/// How long a pod that stops waits for deliveries under way. What does not end is sent again by another pod.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The body of a delivery.
#[derive(Debug, Serialize)]
struct Delivery<'a> {
    namespace: &'a str,
    subscription: &'a str,
    delivery: &'a str,
    outcomes: &'a [Outcome],
    /// Outcomes since the last delivery that were lost to this subscription: at most so many.
    #[serde(skip_serializing_if = "is_zero")]
    missed: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// How deliveries to one subscription went lately.
#[derive(Debug, Default)]
struct Health {
    failures: u32,
    refusals: u32,
    /// Why the last one failed.
    why: String,
    until: Option<Instant>,
    under_way: usize,
}

impl Health {
    /// Deliveries that failed in a row.
    fn tries(&self) -> u32 {
        self.failures + self.refusals
    }
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Delivered,
    /// It may arrive another time; where the receiver says when, after so many ms.
    Later(Option<i64>, String),
    /// The receiver says that it is wrong.
    Refused(String),
}

/// What follows from how an exchange ended.
fn verdict(answer: Result<(u16, Option<i64>, String), SendError>) -> Verdict {
    match answer {
        Ok((200..=299, ..)) => Verdict::Delivered,
        Ok((408 | 425 | 429 | 500..=599, after, text)) => Verdict::Later(after, text),
        // A redirect that is not followed, or what no other try makes right.
        Ok((_, _, text)) => Verdict::Refused(text),
        Err(SendError::Refused(text)) => Verdict::Refused(text),
        Err(error @ (SendError::Busy(_) | SendError::Failed(_))) => Verdict::Later(None, error.to_string()),
    }
}

struct Work {
    shared: Arc<Shared>,
    sender: Sender,
    lease_ms: i64,
    health: Mutex<HashMap<SubscriptionName, Health>>,
    under_way: Mutex<HashSet<(Bucket, SubscriptionName)>>,
    places: Arc<Semaphore>,
    news: Notify,
}

/// Carries outcomes until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let settings = shared.settings.webhook.clone();
    let sender = match Sender::new(settings) {
        Ok(sender) => sender,
        Err(error) => return tracing::error!(%error, "outcomes cannot be delivered"),
    };
    let lease_ms = shared.settings.lock_ms.max(3 * LOOK_SELDOM.as_millis() as i64);
    let work = Arc::new(Work {
        shared,
        sender,
        // Renewed at every look, also while a receiver takes its time.
        lease_ms,
        health: Mutex::default(),
        under_way: Mutex::default(),
        places: Arc::new(Semaphore::new(limits::OUTCOME_DELIVERIES_MAX)),
        news: Notify::new(),
    });
    let (running, cut) = (TaskTracker::new(), CancellationToken::new());
    let (mut pause, mut held, mut ever) = (LOOK_OFTEN, BTreeSet::new(), false);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = work.news.notified() => pause = LOOK_OFTEN,
            () = tokio::time::sleep(pause) => {}
        }
        pause = match work.round(&running, &cut, &mut held, &mut ever).await {
            Ok(true) => LOOK_OFTEN,
            Ok(false) => (pause * 2).min(LOOK_SELDOM),
            Err(error) => {
                tracing::warn!(%error, "could not look for outcomes to be delivered; trying again");
                LOOK_SELDOM
            }
        };
    }
    running.close();
    let _ = tokio::time::timeout(STOP_MAX, running.wait()).await;
    cut.cancel();
    let space = &work.shared.space;
    let free = held.iter().map(|bucket| outcome::take(space, *bucket, &work.shared.settings.id, 0, &[]));
    let _ = tokio::time::timeout(STOP_MAX, futures_util::future::join_all(free)).await;
}

impl Work {
    /// Looks into the outboxes of this pod's share and starts what is to be sent; answers whether there was something.
    async fn round(
        self: &Arc<Self>,
        running: &TaskTracker,
        cut: &CancellationToken,
        held: &mut BTreeSet<Bucket>,
        ever: &mut bool,
    ) -> Result<bool, StoreError> {
        let space = &self.shared.space;
        let table = queue::settings(space).await?;
        // The last one to go leaves outboxes behind that are to be emptied.
        if table.subscriptions.is_empty() && !*ever {
            return Ok(false);
        }
        *ever = true;
        let names: Vec<SubscriptionName> = table.subscriptions.keys().cloned().collect();
        {
            let mut health = self.health.lock();
            let before = health.len();
            health.retain(|name, health| health.under_way > 0 || table.subscriptions.contains_key(name));
            if health.len() < before {
                self.report(&health);
            }
        }
        let (mut moved, mut waiting, mut oldest_ms) = (false, 0, 0);
        for some in self.share().chunks(AT_ONCE) {
            let takes = some
                .iter()
                .map(|bucket| outcome::take(space, *bucket, &self.shared.settings.id, self.lease_ms, &names));
            for (bucket, taken) in some.iter().zip(futures_util::future::join_all(takes).await) {
                let taken = taken?;
                match taken.ours && taken.entries > 0 {
                    true => held.insert(*bucket),
                    false => held.remove(bucket),
                };
                if !taken.ours {
                    continue;
                }
                waiting += taken.entries;
                oldest_ms = oldest_ms.max(taken.oldest.map_or(0, |at| taken.now.0 - at.0));
                for ((name, wish), place) in table.subscriptions.iter().zip(&taken.places) {
                    moved |= self.start(running, cut, *bucket, name, wish, place, &taken);
                }
            }
        }
        let handles = metric::handles();
        handles.outcomes_waiting.set(waiting as f64);
        handles.outcomes_lag.set(oldest_ms as f64 / 1_000.0);
        Ok(moved)
    }

    /// The buckets whose outcomes this pod delivers.
    fn share(&self) -> Vec<Bucket> {
        let pods = self.shared.view.borrow().pods.clone();
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        let mut live: Vec<Bucket> = self.shared.space.spread().live().collect();
        live.sort_unstable();
        live.dedup();
        fair_share(&self.shared.settings.id, &names, &live, |_| 1)
    }

    /// Starts to send what a subscription has not got of a bucket, if there is something and its receiver answers.
    #[expect(clippy::too_many_arguments, reason = "what is asked of one pair")]
    fn start(
        self: &Arc<Self>,
        running: &TaskTracker,
        cut: &CancellationToken,
        bucket: Bucket,
        name: &SubscriptionName,
        wish: &Arc<Subscription>,
        place: &Place,
        taken: &Taken,
    ) -> bool {
        if wish.url.is_none() || taken.last.is_none_or(|last| place.done >= last) {
            return false;
        }
        let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else { return false };
        {
            let mut health = self.health.lock();
            let health = health.entry(name.clone()).or_default();
            // One that failed is asked by one call alone until it answers again.
            let waits = health.until.is_some_and(|until| until > clock::mono());
            if waits || (health.tries() > 0 && health.under_way > 0) {
                return false;
            }
            if !self.under_way.lock().insert((bucket, name.clone())) {
                return false;
            }
            health.under_way += 1;
        }
        let (work, name, wish, cut) = (Arc::clone(self), name.clone(), Arc::clone(wish), cut.clone());
        running.spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                () = work.carry(bucket, &name, &wish, permit) => {}
            }
        });
        true
    }

    /// Sends what a subscription has not got of a bucket.
    async fn carry(
        &self,
        bucket: Bucket,
        name: &SubscriptionName,
        wish: &Subscription,
        _permit: OwnedSemaphorePermit,
    ) {
        let mut more = false;
        for _ in 0..IN_A_ROW {
            match self.one(bucket, name, wish).await {
                Ok(true) => more = true,
                Ok(false) => {
                    more = false;
                    break;
                }
                Err(error) => {
                    tracing::warn!(%bucket, subscription = %name, %error, "could not read or note outcomes");
                    self.wait(name, LOOK_SELDOM);
                    break;
                }
            }
        }
        self.under_way.lock().remove(&(bucket, name.clone()));
        if let Some(health) = self.health.lock().get_mut(name) {
            health.under_way = health.under_way.saturating_sub(1);
        }
        if more {
            self.news.notify_one();
        }
    }

    fn wait(&self, name: &SubscriptionName, time: Duration) {
        if let Some(health) = self.health.lock().get_mut(name) {
            health.until = Some(clock::mono() + time);
        }
    }

    /// One stretch of an outbox: sent if something in it is wanted, and passed. Answers whether to go on.
    async fn one(
        &self,
        bucket: Bucket,
        name: &SubscriptionName,
        wish: &Subscription,
    ) -> Result<bool, StoreError> {
        let (space, pod) = (&self.shared.space, self.shared.settings.id.as_str());
        let stretch = outcome::read(space, bucket, name, None, None).await?;
        let lost = stretch.lost(wish.since);
        let missed = stretch.place.given_up + lost;
        let (place, cut) = (stretch.place.clone(), stretch.cut);
        let planned = Some(place.planned).filter(|planned| *planned > place.done);
        let (end, outcomes) = batch(stretch.entries, planned, |outcome| wish.wants(name, outcome));
        let Some(end) = end.or(planned) else { return Ok(false) };
        if outcomes.is_empty() {
            let passed = Place { done: end, planned: end, cut_seen: cut, given_up: missed };
            return self.pass(bucket, name, &passed, lost).await;
        }
        let plan = Place { planned: end, ..place.clone() };
        if plan != place && !outcome::pass(space, bucket, Some(pod), name, &plan).await? {
            // Another pod has the turn, or somebody has got them by himself.
            return Ok(false);
        }
        let n = outcomes.len() as u64;
        match self.send(bucket, name, wish, (place.done, end), &outcomes, missed).await {
            Verdict::Delivered => {
                metric::handles().outcome_deliveries.add("delivered", 1);
                metric::handles().outcomes_delivered.increment(n);
                {
                    let mut table = self.health.lock();
                    let well = Health {
                        under_way: table.get(name).map_or(0, |health| health.under_way),
                        ..Health::default()
                    };
                    let before = table.get_mut(name).map(|health| std::mem::replace(health, well));
                    if before.is_some_and(|health| health.tries() > 0) {
                        self.report(&table);
                    }
                }
                let passed = Place { done: end, planned: end, cut_seen: cut, given_up: 0 };
                self.pass(bucket, name, &passed, lost).await?;
                Ok(true)
            }
            Verdict::Later(after_ms, why) => {
                metric::handles().outcome_deliveries.add("failed", 1);
                self.failed(name, false, after_ms, &why);
                Ok(false)
            }
            Verdict::Refused(why) => {
                metric::handles().outcome_deliveries.add("refused", 1);
                if self.failed(name, true, None, &why) <= limits::OUTCOME_REFUSALS_MAX {
                    return Ok(false);
                }
                tracing::warn!(%bucket, subscription = %name, outcomes = n, why, "outcomes are given up: their receiver does not take them");
                metric::handles().outcomes_dropped.add("refused", n);
                {
                    let mut table = self.health.lock();
                    if let Some(health) = table.get_mut(name) {
                        health.refusals = 0;
                    }
                    self.report(&table);
                }
                let passed = Place { done: end, planned: end, cut_seen: cut, given_up: missed + n };
                self.pass(bucket, name, &passed, lost).await?;
                Ok(false)
            }
        }
    }

    /// Notes how far a subscription has got outcomes, and counts those that were found to be lost on the way there.
    async fn pass(
        &self,
        bucket: Bucket,
        name: &SubscriptionName,
        place: &Place,
        lost: u64,
    ) -> Result<bool, StoreError> {
        let passed = outcome::pass(&self.shared.space, bucket, None, name, place).await?;
        metric::handles().outcomes_dropped.add("outbox_full", if passed { lost } else { 0 });
        Ok(passed)
    }

    /// Has the pod's next heartbeat tell what could not be delivered, the worst first.
    fn report(&self, health: &HashMap<SubscriptionName, Health>) {
        let failing = health.iter().filter(|(_, health)| health.tries() > 0);
        let mut all: Vec<Undelivered> = failing
            .map(|(name, health)| Undelivered {
                subscription: name.to_string(),
                tries: health.tries(),
                why: health.why.clone(),
            })
            .collect();
        all.sort_unstable_by(|a, b| b.tries.cmp(&a.tries).then_with(|| a.subscription.cmp(&b.subscription)));
        all.truncate(limits::OUTCOME_TROUBLES_MAX);
        *self.shared.undelivered.lock() = all;
    }

    /// Notes that a delivery did not arrive; answers how many were refused in a row.
    fn failed(&self, name: &SubscriptionName, refused: bool, after_ms: Option<i64>, why: &str) -> u32 {
        let mut table = self.health.lock();
        let Some(health) = table.get_mut(name) else { return 0 };
        if refused {
            health.refusals += 1;
        } else {
            (health.failures, health.refusals) = (health.failures.saturating_add(1), 0);
        }
        let tries = health.tries();
        let wait = clock::ms(wait_ms(tries)).mul_f64(fastrand::f64().mul_add(0.2, 0.8));
        let wait = after_ms.map_or(wait, clock::ms);
        health.until = Some(clock::mono() + wait);
        why[..why.floor_char_boundary(limits::OUTCOME_WHY_MAX_BYTES)].clone_into(&mut health.why);
        let refusals = health.refusals;
        self.report(&table);
        tracing::info!(subscription = %name, tries, wait_ms = wait.as_millis() as u64, why, "outcomes could not be delivered; trying again");
        refusals
    }

    async fn send(
        &self,
        bucket: Bucket,
        name: &SubscriptionName,
        wish: &Subscription,
        stretch: (EntryId, EntryId),
        outcomes: &[Outcome],
        missed: u64,
    ) -> Verdict {
        let namespace = self.shared.space.namespace().as_str();
        let id = delivery_id(namespace, name, bucket, stretch);
        let delivery = Delivery { namespace, subscription: name.as_str(), delivery: &id, outcomes, missed };
        let url = match self.sender.address(wish.url.as_deref().unwrap_or_default()) {
            Ok(url) => url,
            Err(error) => return verdict(Err(error)),
        };
        let body = match serde_json::to_vec(&delivery) {
            Ok(body) => body.into(),
            Err(error) => return Verdict::Refused(error.to_string()),
        };
        let content_type = "application/json";
        let message = Message { url, id, content_type, headers: Vec::new(), body, timeout: None };
        let answer = self.sender.send(message).await;
        verdict(answer.map(|answer| (answer.status, answer.retry_after_ms, answer.text())))
    }
}

/// What goes together: up to where a plan says, else up to [`limits::OUTCOME_BATCH_MAX_ROWS`] that are wanted. Answers where it
/// ends; nothing where there is nothing.
fn batch(
    entries: Vec<(EntryId, Option<Outcome>)>,
    planned: Option<EntryId>,
    wants: impl Fn(&Outcome) -> bool,
) -> (Option<EntryId>, Vec<Outcome>) {
    let (mut end, mut out) = (None, Vec::new());
    for (at, outcome) in entries {
        let beyond = planned.map_or(out.len() >= limits::OUTCOME_BATCH_MAX_ROWS, |planned| at > planned);
        if beyond {
            break;
        }
        end = Some(at);
        out.extend(outcome.filter(&wants));
    }
    // What was planned and is cut off meanwhile is passed.
    (planned.or(end), out)
}

/// Names a delivery: the same for the same stretch of an outbox, whoever sends it and however often.
fn delivery_id(
    namespace: &str,
    name: &SubscriptionName,
    bucket: Bucket,
    stretch: (EntryId, EntryId),
) -> String {
    let ((a, b), (c, d)) = stretch;
    format!("out_{:032x}", xxh3_128(format!("{namespace}/{name}/{bucket}/{a}-{b}/{c}-{d}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_passes_by_itself_is_tried_again_and_what_does_not_is_counted() {
        let answered = |status, after| verdict(Ok((status, after, "x".to_owned())));
        for status in [200, 202, 204, 299] {
            assert_eq!(answered(status, None), Verdict::Delivered);
        }
        for status in [408, 425, 429, 500, 502, 503, 599] {
            assert_eq!(answered(status, Some(7)), Verdict::Later(Some(7), "x".to_owned()), "{status}");
        }
        for status in [301, 302, 400, 401, 404, 410, 422] {
            assert_eq!(answered(status, None), Verdict::Refused("x".to_owned()), "{status}");
        }
        let busy = verdict(Err(SendError::Busy("h".to_owned())));
        assert!(matches!(busy, Verdict::Later(None, _)));
        assert_eq!(verdict(Err(SendError::Refused("inner".into()))), Verdict::Refused("inner".into()));
    }

    fn ended(n: u64) -> (EntryId, Option<Outcome>) {
        let bucket = Bucket::default();
        let outcome = Outcome {
            delivery: format!("0-{n}-0"),
            task: crate::model::TaskId::new(crate::model::Minute(29_408_521), bucket, n),
            state: crate::model::State::Succeeded,
            at: crate::model::UnixMs(n as i64),
            queue: "q".into(),
            key: None,
            plan: None,
            attempt: 1,
            reason: String::new(),
            notify: None,
        };
        ((n, 0), Some(outcome))
    }

    proptest! {
        #[test]
        fn batches_leave_nothing_out_and_take_nothing_twice(n in 0u64..600, every in 1i64..5) {
            let wants = |outcome: &Outcome| outcome.at.0 % every == 0;
            let (mut done, mut got) = (0, Vec::new());
            loop {
                let rest: Vec<_> = (1..=n).filter(|at| *at > done).map(ended).collect();
                let (end, outcomes) = batch(rest.clone(), None, wants);
                let Some(end) = end else { break };
                prop_assert!(outcomes.len() <= limits::OUTCOME_BATCH_MAX_ROWS && end.0 > done);
                // Planned, and read again when more has come: the same.
                let more: Vec<_> = rest.into_iter().chain([ended(n + 1)]).collect();
                prop_assert_eq!(batch(more, Some(end), wants), (Some(end), outcomes.clone()));
                got.extend(outcomes.into_iter().map(|outcome| outcome.at.0));
                done = end.0;
            }
            let wanted: Vec<i64> = (1..=n as i64).filter(|at| at % every == 0).collect();
            prop_assert_eq!(got, wanted);
        }
    }

    #[test]
    fn a_stretch_has_one_name() {
        let name = SubscriptionName::new("s").unwrap();
        let id = |end| delivery_id("mh", &name, Bucket::default(), ((1, 0), end));
        assert_eq!(id((2, 0)), id((2, 0)));
        assert_ne!(id((2, 0)), id((3, 0)));
        assert_eq!(id((2, 0)).len(), 36);
    }
}
