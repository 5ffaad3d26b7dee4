//! The claim loop of one bucket: claim, hand over to dispatch, sleep until the next due time.

use super::Shared;
use super::allotments::Settled;
use super::look::LookAhead;
use super::meter::Meter;
use crate::clock;
use crate::limits;
use crate::metric;
use crate::model::{Bucket, UnixMs};
use crate::store::due::{self, Claim, ClaimAnswer, Claimed, Expected};
use crate::store::{StoreError, member};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Times that one claim is asked for again after an error that leaves its fate open.
const REPEATS_MAX: u32 = 3;
/// Room that each claim asks for at least.
const EXPECTED_MIN: u32 = 32;
/// A pod that has worked for so long without a failure is not just back from an outage: by then leases lapse again.
const WELL_AFTER: Duration = Duration::from_millis(limits::RETURN_MS as u64 + 1_000);
/// First wait after a failed claim; doubled up to [`limits::RECONNECT_MAX_MS`].
const BACKOFF_MIN_MS: u64 = 20;
/// A loop that another pod kept out looks again at least this often.
const KEPT_OUT_MAX: Duration = Duration::from_millis(500);

/// Claims from one bucket until `stop` fires, then lets go of it.
pub(super) async fn run(shared: Arc<Shared>, bucket: Bucket, stop: CancellationToken) {
    let mut bucket_loop = Loop {
        meter: shared.meters.of(bucket.number()),
        wakes: member::bucket_wakes(&shared.space, bucket),
        limited: shared.limits.wakes(bucket.number()),
        claim: Claim {
            lock_ms: shared.settings.lock_ms,
            dispatch_ms: shared.settings.dispatch_ms,
            weights: shared.settings.weights,
            ageing_ms: shared.settings.ageing_ms,
            ..Claim::new(&shared.settings.id, due::random_16())
        },
        seen: None,
        held_us: None,
        room_seen: 0,
        opened: shared.dispatcher.opened(),
        wants_room: false,
        starved: None,
        backoff_ms: BACKOFF_MIN_MS,
        look: LookAhead::new(shared.settings.look_ahead_ms),
        expected: EXPECTED_MIN,
        shared,
        bucket,
    };
    loop {
        // A claim that is under way is not cut off: what it was granted must be delivered.
        let next = bucket_loop.tick().await;
        if stop.is_cancelled() || !bucket_loop.sleep(next, &stop).await {
            break;
        }
    }
    let Loop { shared, claim, wants_room, .. } = bucket_loop;
    shared.meters.forget(bucket.number());
    shared.dispatcher.wants_room(wants_room, false);
    shared.dispatcher.leave_turn(bucket);
    shared.limits.leave(bucket.number());
    if let Err(error) = due::yield_bucket(&shared.space, bucket, &claim.pod, &claim.permit).await {
        tracing::debug!(%bucket, %error, "could not let go of a bucket; its permit ends by itself");
    }
}

/// When to claim again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// At once: something ripe is left.
    Now,
    /// When Redis's clock shows this time, or at a wake-up, or after the poll.
    At(UnixMs),
    /// The same without the poll, for as long as wake-ups are known to arrive: nothing runs here.
    Rest(UnixMs),
    /// When an executor has room, or an urgent task falls due, for which there is other room, or after the poll.
    Room(Option<UnixMs>),
    /// After a while, wake-ups or not.
    After(Duration),
    /// After a while, or when a holder lets go.
    KeptOut(Duration),
}

/// What a loop that waits for room knows, so that it need not ask Redis what it cannot take.
#[derive(Debug, Clone, Copy)]
struct Starved {
    /// When it last claimed.
    since: Instant,
    /// When the next urgent task falls due.
    urgent: Option<UnixMs>,
    /// Some that are ripe may have been left.
    urgent_left: bool,
}

struct Loop {
    shared: Arc<Shared>,
    bucket: Bucket,
    claim: Claim,
    wakes: crate::store::Subscription,
    /// A limit lets more go.
    limited: Arc<Notify>,
    /// Redis's time as last seen, and when.
    seen: Option<(UnixMs, Instant)>,
    /// Where a test held the time.
    held_us: Option<i64>,
    /// How often room had become free when the last claim was made.
    room_seen: u64,
    /// Changes when a queue is served that was not.
    opened: tokio::sync::watch::Receiver<u64>,
    /// Whether the last claim left something ripe behind.
    wants_room: bool,
    /// The last claim left something for which there was no room, and nothing was heard since.
    starved: Option<Starved>,
    backoff_ms: u64,
    look: LookAhead,
    /// Tasks that the next claim may bring, generously: more room than that is left to the other loops.
    expected: u32,
    /// What this loop does with its time.
    meter: Arc<Meter>,
}

impl Loop {
    async fn tick(&mut self) -> Next {
        let shared = Arc::clone(&self.shared);
        self.room_seen = shared.dispatcher.room_version();
        self.opened.mark_unchanged();
        // Kept until what the claim brings is routed.
        let most = self.expected.min(shared.settings.claim_rows);
        let mut hold = shared.dispatcher.hold(&shared, self.bucket, most);
        if let Some(starved) = self.starved
            && hold.normal == 0
            && (hold.any == 0 || !starved.urgent_left)
            && starved.since.elapsed() < clock::ms(shared.settings.poll_ms / 2)
            && starved.urgent.is_none_or(|due| UnixMs(shared.space.clock().now_ms()) < due)
        {
            return Next::Room(starved.urgent);
        }
        self.starved = None;
        self.claim.limit = hold.any;
        self.claim.normal_limit = hold.normal;
        self.claim.default_quota = hold.default_quota;
        self.claim.quotas = std::mem::take(&mut hold.quotas);
        self.claim.ahead_ms = self.look.ahead_ms(hold.ahead_ms);
        self.claim.frozen_plans = Arc::clone(&hold.frozen_plans);
        self.claim.own_weights = std::mem::take(&mut hold.own_weights);
        self.claim.own_dispatch = Arc::clone(&hold.own_dispatch);
        let spread = shared.space.spread();
        self.claim.holders = spread.holders_of(self.bucket.number());
        // All buckets together keep as much as the namespace may.
        let buckets = usize::from(spread.buckets.max(1)) + spread.closing.len();
        self.claim.events_max_bytes = limits::EVENTS_MAX_BYTES / buckets;
        self.claim.dead_keep_rows = limits::DEAD_KEEP_ROWS.div_ceil(buckets);
        self.claim.expected = self.expected();
        let view = Arc::clone(&shared.view.borrow());
        let held_us = shared.space.clock().held_us();
        if held_us != std::mem::replace(&mut self.held_us, held_us) {
            shared.limits.leapt();
        }
        let (mut asked, draw) = shared.limits.draw(self.bucket.number(), hold.any);
        asked.closed.append(&mut hold.closed);
        asked.placed = view.placed.clone();
        self.claim.limits = asked;
        self.claim.again();
        let start = clock::mono();
        let mut answer = self.claim_with_repeats().await;
        let outcome = match &answer {
            Ok(ClaimAnswer::Held(claimed)) => Settled::Claimed(claimed),
            Ok(ClaimAnswer::NotHolder { .. }) => Settled::Refused,
            Err(_) => Settled::Unknown,
        };
        let now = UnixMs(shared.space.clock().now_ms());
        shared.limits.settle(self.bucket.number(), &self.claim.limits, draw, outcome, now);
        // A queue that this pod had not heard of may have limits: what came of it goes back.
        if let Ok(ClaimAnswer::Held(claimed)) = &mut answer
            && !view.queues.queues.is_empty()
        {
            let new = |task: &mut due::Granted| !view.groups.contains_key(&task.lane.group());
            let rows: Vec<_> = claimed.tasks.extract_if(.., new).map(|task| (task.id, task.grant)).collect();
            if !rows.is_empty() {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let cause = "its queue is new to this pod";
                    due::hand_back(&shared.space, &shared.settings.id, cause, rows).await;
                });
            }
        }
        let metrics = metric::handles();
        metrics.claim_duration.record(start.elapsed().as_secs_f64());
        let tasks = match &answer {
            Ok(ClaimAnswer::Held(claimed)) => claimed.tasks.len(),
            _ => 0,
        };
        let next = match answer {
            Ok(ClaimAnswer::Held(claimed)) => {
                self.backoff_ms = BACKOFF_MIN_MS;
                self.shared.ready.worked(clock::mono());
                metrics.claims_last_success.set((clock::wall_us() / 1_000_000) as f64);
                metrics.claims.add(if claimed.tasks.is_empty() { "empty" } else { "tasks" }, 1);
                let starved = hold.any < most;
                self.held(claimed, hold.any, starved)
            }
            Ok(ClaimAnswer::NotHolder { until }) => {
                metrics.claims.add("not_holder", 1);
                self.backoff_ms = BACKOFF_MIN_MS;
                self.shared.ready.worked(clock::mono());
                let wait = self.shared.space.clock().until_ms(until.0).min(KEPT_OUT_MAX);
                // Spread by chance, so that pods kept out together do not come back together.
                Next::KeptOut(wait.max(Duration::from_millis(5)).mul_f64(fastrand::f64().mul_add(0.2, 0.9)))
            }
            Err(error) => {
                metrics.claims.add("error", 1);
                Next::After(self.failed(&error))
            }
        };
        tracing::trace!(bucket = %self.bucket, limit = hold.any, most, ahead_ms = self.claim.ahead_ms, tasks, ?next, "claimed");
        self.meter.worked(start, tasks);
        shared.tally.visits.fetch_add(1, Ordering::Relaxed);
        let wants = matches!(next, Next::Now | Next::Room(_));
        shared.dispatcher.wants_room(self.wants_room, wants);
        self.wants_room = wants;
        if let Next::Room(urgent) = next {
            let urgent_left = tasks >= hold.any as usize;
            self.starved = Some(Starved { since: start, urgent, urgent_left });
            shared.dispatcher.wait_turn(self.bucket);
            shared.dispatcher.seek_room(&shared);
        }
        next
    }

    /// What this loop knows of Redis's time. One that is new to its bucket cannot tell whether others were kept away from
    /// it as well; it takes that for granted where its pod was. (Not always: buckets of dead pods need not wait.)
    fn expected(&self) -> Expected {
        if self.shared.space.holds_time() {
            // Time that a test holds leaps, and is meant to.
            return Expected::Nothing;
        }
        match self.seen {
            Some((now, at)) => Expected::Now(now.plus(clock::elapsed_ms(at))),
            None if self.shared.ready.well_for(clock::mono()) < WELL_AFTER => Expected::Away,
            None => Expected::Nothing,
        }
    }

    /// Asks again with the same call id while the fate of a claim is open: what it granted is then answered.
    async fn claim_with_repeats(&self) -> Result<ClaimAnswer, StoreError> {
        let mut repeats = 0;
        loop {
            match due::claim(&self.shared.space, self.bucket, &self.claim).await {
                Err(error) if error.fate_unknown() && error.is_retryable() && repeats < REPEATS_MAX => {
                    repeats += 1;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..=20 * u64::from(repeats))))
                        .await;
                }
                answer => return answer,
            }
        }
    }

    fn held(&mut self, claimed: Claimed, limit: u32, starved: bool) -> Next {
        let metrics = metric::handles();
        self.compare_memory(&claimed);
        self.seen = Some((claimed.now, clock::mono()));
        if claimed.leap_ms != 0 {
            if let Some(more) = self.shared.complaints.tell("leap", clock::mono()) {
                tracing::warn!(
                    bucket = %self.bucket, leap_ms = claimed.leap_ms, more_like_it = more,
                    "redis's clock leapt; leases pause while it is ahead"
                );
            }
            if claimed.leap_ms < 0 {
                metrics.server_clock_regressions.increment(1);
            }
        }
        metrics.lease_lapsed.increment(u64::from(claimed.reaped));
        let count = claimed.tasks.len();
        if count > 0 {
            self.shared.pace.claimed(count);
            self.shared.tally.claimed.fetch_add(count as u64, Ordering::Relaxed);
            metrics.claimed_tasks.increment(count as u64);
            self.shared.dispatcher.deliver(&self.shared, claimed.tasks, claimed.now, &self.claim);
        }
        // What was left although there was room for more than was asked for.
        let missed = claimed.next_due.is_some_and(|due| due <= claimed.now.plus(self.claim.ahead_ms));
        self.expected = if (claimed.backlog > 0 || missed) && !starved {
            limit.saturating_mul(4)
        } else {
            EXPECTED_MIN.max(u32::try_from(count).unwrap_or(0).saturating_mul(2))
        };
        if claimed.again {
            return Next::Now;
        }
        // Something ripe is left: come again at once if that may bring something, else when there is room.
        if claimed.backlog > 0 {
            self.look.see(claimed.now);
            // What could not be taken ahead of its time is asked for again at its time.
            let lead =
                |due| Some(self.look.lead(due, self.claim.ahead_ms)).filter(|lead| *lead > claimed.now);
            let urgent = claimed.next_due.map(|due| lead(due).unwrap_or(due));
            // Where others wait for room too, this loop has had its turn.
            let goes_on = limit > 0 && count > 0 && !(starved && self.shared.dispatcher.others_wait());
            return if goes_on { Next::Now } else { Next::Room(urgent) };
        }
        let rest = claimed.now.plus(limits::REST_MS.max(self.shared.settings.poll_ms));
        match claimed.next_due {
            // Ripe, and yet not granted: the quotas or the room forbade it.
            Some(due) if due <= claimed.now && (limit == 0 || starved) => Next::Room(None),
            Some(due) if due <= claimed.now && count == 0 => Next::After(Duration::from_millis(1)),
            Some(due) => {
                let more = !starved && limit < self.shared.settings.claim_rows;
                let wake = self.look.wake(claimed.now, due, self.claim.ahead_ms, more);
                if claimed.rests { Next::Rest(wake.min(rest)) } else { Next::At(wake) }
            }
            None if claimed.rests => Next::Rest(rest),
            None => Next::At(claimed.now.plus(self.shared.settings.poll_ms)),
        }
    }

    /// A bucket remembers its last claim. One that this pod was answered and the bucket does not know is lost, and with
    /// it whatever was written since.
    fn compare_memory(&self, claimed: &Claimed) {
        let Some((before, _)) = self.seen else { return };
        let (cause, what) = match claimed.remembered {
            Some(remembered) if remembered >= before => return,
            Some(remembered) => (
                "rolled_back",
                format!(
                    "a fail-over to a replica that lagged, or a backup, has lost what was written between {remembered} \
                     and {before} or later"
                ),
            ),
            None => {
                ("bucket_emptied", format!("all that was in it is gone since {before} or later (FLUSHALL?)"))
            }
        };
        metric::handles().history_lost.add(cause, 1);
        if let Some(more) = self.shared.complaints.tell(cause, clock::mono()) {
            tracing::error!(
                bucket = %self.bucket, cause, more_like_it = more,
                "redis has forgotten what it had acknowledged: {what}"
            );
        }
        let cause = format!("bucket {}: redis has forgotten what it had acknowledged: {what}", self.bucket);
        self.shared.ready.failing(clock::mono(), cause);
    }

    fn failed(&mut self, error: &StoreError) -> Duration {
        self.shared.ready.refused(clock::mono(), error.to_string());
        if let Some(more) = self.shared.complaints.tell(error.cause(), clock::mono()) {
            tracing::warn!(
                bucket = %self.bucket, %error, wait_ms = self.backoff_ms, more_like_it = more,
                "claim failed; trying again"
            );
        }
        let wait = Duration::from_millis(fastrand::u64(self.backoff_ms / 2..=self.backoff_ms));
        self.backoff_ms = (self.backoff_ms * 2).min(limits::RECONNECT_MAX_MS);
        wait
    }

    /// Sleeps as told; false when it is time to stop.
    async fn sleep(&mut self, next: Next, stop: &CancellationToken) -> bool {
        let poll = clock::ms(self.shared.settings.poll_ms);
        let metrics = metric::handles();
        let room = self.shared.dispatcher.room().notified();
        // Room that became free during the claim counts: its message is gone already.
        if matches!(next, Next::Room(_)) && self.shared.dispatcher.room_version() != self.room_seen {
            return tokio::select! {
                () = stop.cancelled() => false,
                () = tokio::time::sleep(Duration::from_millis(1)) => true,
            };
        }
        match next {
            Next::Now => return true,
            Next::After(wait) => {
                return tokio::select! {
                    () = stop.cancelled() => false,
                    () = tokio::time::sleep(wait) => true,
                };
            }
            Next::KeptOut(wait) => {
                return tokio::select! {
                    () = stop.cancelled() => false,
                    () = tokio::time::sleep(wait) => true,
                    wake = self.wakes.recv() => wake.is_some(),
                };
            }
            Next::At(mut due) | Next::Rest(mut due) => {
                let (rests, proof) = (matches!(next, Next::Rest(_)), self.wakes.watch());
                let mut polled = clock::mono() + poll;
                loop {
                    let wait = self.shared.space.clock().until_ms(due.0);
                    let left = polled.saturating_duration_since(clock::mono());
                    let source = if wait >= left { "poll" } else { "due" };
                    tokio::select! {
                        () = stop.cancelled() => return false,
                        () = tokio::time::sleep(wait.min(left)) => {
                            let doubtful = self.shared.ready.is_doubtful(clock::mono());
                            if rests && wait > left && !doubtful && proof.proved() {
                                // Redis answered on the very connection that would wake this loop, and refuses nobody.
                                self.shared.ready.worked(clock::mono());
                                polled = clock::mono() + poll;
                                continue;
                            }
                            metrics.wakeups.add(source, 1);
                        }
                        wake = self.wakes.recv() => {
                            let Some(wake) = wake else { return false };
                            metrics.wakeups.add("publish", 1);
                            // It says what is due when; that may be soon enough to be claimed later.
                            let soon = std::str::from_utf8(&wake.payload).ok().and_then(|text| text.parse().ok());
                            let soon = self.look.lead(UnixMs(soon.unwrap_or(0)), self.claim.ahead_ms);
                            due = due.min(soon);
                            if self.shared.space.clock().now_ms() < due.0 {
                                continue;
                            }
                        }
                        () = self.limited.notified() => metrics.wakeups.add("limit", 1),
                        // Its sender lives as long as the pod.
                        _ = self.opened.changed() => metrics.wakeups.add("room", 1),
                    }
                    break;
                }
            }
            Next::Room(urgent) => {
                let start = clock::mono();
                let due = urgent.map_or(poll, |due| self.shared.space.clock().until_ms(due.0));
                tokio::select! {
                    () = stop.cancelled() => return false,
                    () = tokio::time::sleep(poll.min(due)) => {
                        metrics.wakeups.add(if due < poll { "due" } else { "poll" }, 1);
                    }
                    () = room => metrics.wakeups.add("room", 1),
                    () = self.limited.notified() => {
                        self.starved = None;
                        metrics.wakeups.add("limit", 1);
                    }
                    wake = self.wakes.recv() => {
                        if wake.is_none() {
                            return false;
                        }
                        self.starved = None;
                        metrics.wakeups.add("publish", 1);
                    }
                }
                self.meter.starved(start);
            }
        }
        // A busy pod lets a few tasks gather for one call, and its loops claim together.
        if let Some(leave) = self.shared.pace.leave(clock::mono()) {
            tokio::time::sleep_until(leave.into()).await;
        }
        true
    }
}
