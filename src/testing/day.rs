//! A scheduler whose time is the test's: a day's plan runs in a second, on a real Redis.
//!
//! Time stands still while anything is to be done, and leaps to the next due time once nothing is. So each handler is
//! entered at the very millisecond at which its task is due, however slow the machine is, and what a test asserts of it is
//! exact.
//!
//! ```
//! use minutehand::client::{Due, NewTask};
//! use minutehand::executor::HandlerError;
//! use minutehand::model::{QueueName, UnixMs};
//! use minutehand::testing::day::Day;
//!
//! # #[tokio::main] async fn main() -> anyhow::Result<()> {
//! let day = Day::from("2026-03-02T08:00:00Z")
//!     .await?
//!     .handle("pills", |task, _ctx| async move {
//!         // At noon nobody opens the door; half an hour later somebody does.
//!         if task.attempt == 1 && &task.payload[..] == b"noon" {
//!             return Err(HandlerError::retry_after(30 * 60_000, true, "nobody opens"));
//!         }
//!         Ok(())
//!     })
//!     .start()?;
//! let pills = QueueName::new("pills")?;
//! for (at, what) in [("2026-03-02T12:00:00Z", "noon"), ("2026-03-02T20:00:00Z", "evening")] {
//!     let due = Due::At(UnixMs::parse_rfc3339(at)?);
//!     day.client().submit(NewTask { due, payload: what.into(), ..NewTask::to(pills.clone()) }).await?;
//! }
//! day.until("2026-03-03T08:00:00Z").await?;
//! let starts: Vec<_> = day.starts().iter().map(|start| (start.at.to_string(), start.attempt)).collect();
//! assert_eq!(starts, [
//!     ("2026-03-02T12:00:00.000Z".to_owned(), 1),
//!     ("2026-03-02T12:30:00.000Z".to_owned(), 2),
//!     ("2026-03-02T20:00:00.000Z".to_owned(), 1),
//! ]);
//! day.end().await?;
//! # Ok(()) }
//! ```

use crate::client::Client;
use crate::clock;
use crate::dev::redis::{DevError, PrivateServer, ServerOptions};
use crate::embed::{EmbedError, Running, Scheduler};
use crate::executor::{
    Context, ExecutorBuilder, ExecutorReport, ExecutorSettings, HandlerResult, Next, Task,
};
use crate::limits;
use crate::model::{Bucket, FieldError, Namespace, QueueName, TaskId, UnixMs};
use crate::pod::{PodSettings, PodTally};
use crate::store::{Birth, ConnectSettings, Space, Store, StoreError, member, read};
use bytes::Bytes;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The usual patience with handlers, in real time.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is ripe counts as held back after the pod has looked so often at what is set, has then claimed so often in vain, and
/// has then been told so often of limits that nothing more may go.
const HELD_BACK: [u64; 3] = [2, 4, 3];
/// The first step of time for what a limit holds back; each next one is twice as long, until something moves.
const STEP_MS: i64 = 100;
/// How often the pod claims where nothing wakes it, in real time.
const POLL_MS: i64 = 20;
/// The silence after which a pod counts as lost; it looks around three times in that time.
const LOCK_MS: i64 = 150;

/// Why a day broke off.
#[derive(Debug, thiserror::Error)]
pub enum DayError {
    /// A time or a name is wrong.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// There is no private server.
    #[error(transparent)]
    Dev(#[from] DevError),
    /// The scheduler.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// Redis.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Time cannot go on.
    #[error(
        "time stands still at {now} while tasks run, and {running} of them do not end; a handler must not wait \
         for time to pass (`Day::leap` moves it by force)"
    )]
    Stuck {
        /// Tasks that run.
        running: i64,
        /// The time.
        now: UnixMs,
    },
}

/// A handler was entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The task.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// Its idempotency key.
    pub key: Option<Bytes>,
    /// Its payload.
    pub payload: Bytes,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When that was due.
    pub due: UnixMs,
    /// When the handler was entered.
    pub at: UnixMs,
}

/// Collects what a [`Day`] is made of.
#[derive(Debug)]
pub struct DayBuilder {
    scheduler: Scheduler,
    space: Space,
    starts: Arc<Mutex<Vec<Start>>>,
    patience: Duration,
    server: Option<PrivateServer>,
}

/// A scheduler at work, at a time of its own.
#[derive(Debug)]
pub struct Day {
    running: Running,
    space: Space,
    starts: Arc<Mutex<Vec<Start>>>,
    /// Ripe tasks that stand aside, as far as known: those of paused queues, and those that nobody serves.
    aside: AtomicU64,
    patience: Duration,
    _server: Option<PrivateServer>,
}

/// How all buckets stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stand {
    running: i64,
    /// Ripe tasks whose turn may come.
    ripe: u64,
    /// Ripe tasks that stand aside.
    aside: u64,
    /// Tasks that have ended.
    ended: i64,
    /// When something is due next, which may be now.
    next: Option<UnixMs>,
}

/// How far a pod has looked in vain since something moved last.
#[derive(Debug, Default)]
struct Vain {
    /// Looks that are behind it.
    stage: usize,
    /// Where the next one ends.
    mark: Option<u64>,
}

impl Vain {
    /// Whether the pod has looked at everything, each after the one before.
    fn ends(&mut self, tally: &PodTally) -> bool {
        while let Some(looks) = HELD_BACK.get(self.stage) {
            let counter = [&tally.views, &tally.visits, &tally.asks][self.stage].load(Ordering::Relaxed);
            let unlimited = self.stage == 2 && !tally.limited.load(Ordering::Relaxed);
            if !unlimited && counter < *self.mark.get_or_insert(counter + looks) {
                return false;
            }
            (self.stage, self.mark) = (self.stage + 1, None);
        }
        true
    }
}

impl Day {
    /// A day that begins at this time (RFC 3339), on a private server.
    pub async fn from(begin: &str) -> Result<DayBuilder, DayError> {
        let server = PrivateServer::start(ServerOptions::default()).await?;
        let url = server.url();
        Ok(DayBuilder { server: Some(server), ..Self::on(&url, begin).await? })
    }

    /// The same on a Redis for tests, in a namespace of its own, which stays.
    pub async fn on(url: &str, begin: &str) -> Result<DayBuilder, DayError> {
        let begin = UnixMs::parse_rfc3339(begin)?;
        let store = Store::connect(ConnectSettings { url: url.into(), ..ConnectSettings::default() }).await?;
        let namespace = Namespace::new(&format!("day-{:016x}", fastrand::u64(..)))?;
        let space =
            Space::open_as(store, namespace, Birth { key_buckets: 1, buckets: 1, holders: 1 }).await?;
        space.hold_time_at(begin);
        let starts = Arc::new(Mutex::new(Vec::new()));
        let (noted, clock) = (Arc::clone(&starts), space.clone());
        let note = move |task: Task, context: Context, next: Next| {
            noted.lock().push(Start {
                id: task.id,
                queue: task.queue.clone(),
                key: task.key.clone(),
                payload: task.payload.clone(),
                attempt: task.attempt,
                due: task.due,
                at: UnixMs(clock.clock().now_ms()),
            });
            next.run(task, context)
        };
        let scheduler = Scheduler::on(space.clone())
            .pod(attentive)
            .executor(|executor| executor.settings(quick()).layer(note));
        Ok(DayBuilder { scheduler, space, starts, patience: PATIENCE, server: None })
    }

    /// Submits and looks up, at this day's time.
    pub fn client(&self) -> &Client {
        self.running.client()
    }

    /// The time.
    pub fn now(&self) -> UnixMs {
        UnixMs(self.space.clock().now_ms())
    }

    /// Every entry of a handler so far, in order.
    pub fn starts(&self) -> Vec<Start> {
        self.starts.lock().clone()
    }

    /// Runs all that is due up to this time (RFC 3339), and stands there.
    pub async fn until(&self, end: &str) -> Result<(), DayError> {
        self.reach(UnixMs::parse_rfc3339(end)?).await
    }

    /// Runs all that is due within this time from now, and stands at its end.
    pub async fn pass(&self, time: Duration) -> Result<(), DayError> {
        let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        self.reach(UnixMs(self.now().0.saturating_add(ms))).await
    }

    /// Moves time at once, whatever runs or is due meanwhile: as if all pods had slept.
    pub async fn leap(&self, time: Duration) -> Result<(), DayError> {
        let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        self.set(UnixMs(self.now().0.saturating_add(ms))).await
    }

    /// Ends in order.
    pub async fn end(self) -> Result<ExecutorReport, DayError> {
        Ok(self.running.stop().await?)
    }

    async fn set(&self, now: UnixMs) -> Result<(), DayError> {
        self.running.tally().more_in_ms.store(0, Ordering::Relaxed);
        self.space.hold_time_at(now);
        for bucket in self.buckets() {
            member::tell_bucket(&self.space, bucket).await?;
        }
        Ok(())
    }

    fn buckets(&self) -> impl Iterator<Item = Bucket> {
        (0..self.space.spread().peak).filter_map(Bucket::new)
    }

    async fn reach(&self, end: UnixMs) -> Result<(), DayError> {
        let mut step_ms = STEP_MS;
        loop {
            let (now, starts) = (self.now(), self.starts.lock().len());
            let (next, wait_ms) = self.settle().await?;
            let held = match wait_ms {
                Some(0) => {
                    // Nobody says for how long: it is looked at again and again, after ever more time.
                    step_ms =
                        if self.starts.lock().len() == starts { step_ms.saturating_mul(2) } else { STEP_MS };
                    Some(now.plus(step_ms))
                }
                known => known.map(|ms| now.plus(ms)),
            };
            let next = next.filter(|next| *next > now || held.is_none()).into_iter().chain(held).min();
            let to = next.filter(|next| *next <= end && now < end);
            self.set(to.unwrap_or(end.max(now))).await?;
            if to.is_none() {
                return Ok(());
            }
        }
    }

    /// Waits until nothing runs and nothing more starts at this time. Answers when something is due next, and where
    /// something ripe is held back how much time has to pass for it, 0 where that is not known.
    async fn settle(&self) -> Result<(Option<UnixMs>, Option<i64>), DayError> {
        let (mut since, mut last, mut patience) = (clock::mono(), None, Vain::default());
        loop {
            let stand = self.stand().await?;
            if last != Some(stand) {
                (since, last, patience) = (clock::mono(), Some(stand), Vain::default());
            }
            if stand.running > 0 {
                if since.elapsed() > self.patience {
                    return Err(DayError::Stuck { running: stand.running, now: self.now() });
                }
            } else {
                let due = stand.next.is_some_and(|next| next <= self.now());
                // What a rate keeps back stands aside as well, and may go once time has passed.
                let tally = self.running.tally();
                let kept = stand.aside > 0 && tally.limited.load(Ordering::Relaxed);
                let known = stand.aside <= self.aside.load(Ordering::Relaxed);
                if stand.ripe == 0 && !due && known && !kept {
                    self.aside.store(stand.aside, Ordering::Relaxed);
                    return Ok((stand.next, None));
                }
                if patience.ends(tally) {
                    self.aside.store(stand.aside, Ordering::Relaxed);
                    let wait_ms = i64::try_from(tally.more_in_ms.load(Ordering::Relaxed)).unwrap_or(0);
                    return Ok((stand.next, (stand.ripe > 0 || due || wait_ms > 0).then_some(wait_ms)));
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn stand(&self) -> Result<Stand, DayError> {
        let mut all = Stand { running: 0, ripe: 0, aside: 0, ended: 0, next: None };
        for bucket in self.buckets() {
            let counts = read::counts(&self.space, bucket).await?;
            let sizes = |lanes: &[(_, u64)]| lanes.iter().map(|(_, size)| size).sum::<u64>();
            all.running += counts.count("running");
            all.ended += counts.count("submitted") - counts.count("pending") - counts.count("running");
            all.ripe += sizes(&counts.ready);
            all.aside += sizes(&counts.parked);
            let next = counts.first_due.into_iter().chain(counts.first_timer).min();
            all.next = all.next.into_iter().chain(next).min();
        }
        Ok(all)
    }
}

impl DayBuilder {
    /// Submits at this day's time; for handlers that submit tasks of their own.
    pub fn client(&self) -> Client {
        Client::new(self.space.clone())
    }

    /// Serves a queue with a function.
    pub fn handle<F, Fut>(mut self, queue: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.scheduler = self.scheduler.handle(queue, handler);
        self
    }

    /// Changes the executor: its slots, labels, layers.
    pub fn executor(mut self, change: impl FnOnce(ExecutorBuilder) -> ExecutorBuilder) -> Self {
        self.scheduler = self.scheduler.executor(change);
        self
    }

    /// How long handlers may run in real time, 20 s unless it is said here: then [`DayError::Stuck`] is the answer.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Begins. Must be called within a tokio runtime.
    pub fn start(self) -> Result<Day, DayError> {
        let Self { scheduler, space, starts, patience, server } = self;
        let running = scheduler.start()?;
        Ok(Day { running, space, starts, aside: AtomicU64::new(0), patience, _server: server })
    }
}

/// A pod that claims nothing before its time, and hears soon of what is set.
fn attentive(pod: &mut PodSettings) {
    (pod.poll_ms, pod.lock_ms, pod.look_ahead_ms) = (POLL_MS, LOCK_MS, 0);
    pod.decider.enabled = false;
}

/// Outcomes that leave at once: time waits for them.
fn quick() -> ExecutorSettings {
    ExecutorSettings { ack_gather_ms: limits::ACK_GATHER_MIN_MS, ..ExecutorSettings::default() }
}
