//! A pod: one stateless scheduler among any number.
//!
//! [`membership`] says who lives, `ownership` which buckets are ours, [`scheduler`] claims what is
//! due in each of them, [`dispatch`] routes it and puts it into the executors' inboxes. One pod's
//! [`decider`] sees to it that there are as many buckets as the load needs. Nothing here must
//! survive: a pod that dies loses its permits after their time, and its grants come back.
//!
//! Deliberately absent: a queue of tasks in memory. A pod claims only what it may deliver.

mod allotments;
pub mod decider;
pub mod digest;
pub mod dispatch;
mod fitness;
pub mod look;
pub mod membership;
mod meter;
mod outcomes;
mod ownership;
pub mod pace;
pub mod ready;
mod record;
pub mod scheduler;
mod tables;
pub mod view;

use crate::limits;
use crate::model::Priority;
use crate::model::complaints::Complaints;
use crate::model::route::Policy;
use crate::store::member::{self, Undelivered};
use crate::store::{Space, StoreError};
use crate::webhook::SenderSettings;
use allotments::Limits;
use decider::DeciderSettings;
pub use digest::DigestSettings;
use dispatch::Dispatcher;
use meter::Meters;
use pace::Pace;
use parking_lot::Mutex;
use ready::Readiness;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use view::View;

/// How a pod works. The defaults suit almost everybody.
#[derive(Debug, Clone)]
pub struct PodSettings {
    /// Instance id, unique; made by chance where empty.
    pub id: String,
    /// Address of the HTTP door, for others to see.
    pub listen: String,
    /// How long a permit for a bucket lasts without renewal; also the silence after which a pod counts as lost.
    pub lock_ms: i64,
    /// Longest sleep of a claim loop.
    pub poll_ms: i64,
    /// A claimed task must have started by then.
    pub dispatch_ms: i64,
    /// Most tasks of one claim.
    pub claim_rows: u32,
    /// Longest gathering before a claim when the pod is busy.
    pub gather_max_ms: u64,
    /// How long before it is due a task is claimed, where its executor holds it until then; at most
    /// [`limits::LOOK_AHEAD_MAX_MS`]. 0: not before it is due.
    pub look_ahead_ms: i64,
    /// Shares of P0 to P5 in percent of their sum.
    pub weights: [u32; 6],
    /// Who is told of dead letters.
    pub digest: DigestSettings,
    /// How tasks of queues are routed that have no way of their own.
    pub routing: Policy,
    /// How many routing decisions are kept with their inputs, a fair sample of all.
    pub route_sample: usize,
    /// File into which they are written.
    pub route_record: Option<PathBuf>,
    /// How long the oldest task of a priority must have waited for its turn until the priority counts double;
    /// 0 for never.
    pub ageing_ms: i64,
    /// Decides on the number of buckets.
    pub decider: DeciderSettings,
    /// How outcomes are sent to who subscribed to them.
    pub webhook: SenderSettings,
}

impl Default for PodSettings {
    fn default() -> Self {
        Self {
            id: String::new(),
            listen: String::new(),
            lock_ms: limits::LOCK_MS,
            poll_ms: limits::POLL_MS,
            dispatch_ms: limits::DISPATCH_TIMEOUT_MS,
            claim_rows: 500,
            gather_max_ms: limits::CLAIM_GATHER_MAX_MS,
            look_ahead_ms: limits::LOOK_AHEAD_MS,
            weights: Priority::WEIGHTS,
            digest: DigestSettings::default(),
            routing: Policy::default(),
            route_sample: 0,
            route_record: None,
            ageing_ms: 0,
            decider: DeciderSettings::default(),
            webhook: SenderSettings::default(),
        }
    }
}

/// How often a pod says that it lives: a third of the time after which it counts as lost.
const BEATS_PER_LOCK: i64 = 3;
/// How long a pod tries to leave in order.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// What a pod has done so far.
#[derive(Debug, Default)]
pub struct PodTally {
    /// Claims that were answered, also those that brought nothing.
    pub visits: AtomicU64,
    /// Times that it has looked who lives and what is set.
    pub views: AtomicU64,
    /// Times that all was answered that it asked of limits.
    pub asks: AtomicU64,
    /// Whether anything is limited.
    pub limited: AtomicBool,
    /// Where a test holds the time: how much of it has to pass until a rate lets more go, as the answers since this was
    /// last taken have it; 0 where none said so.
    pub more_in_ms: AtomicU64,
    /// Tasks claimed.
    pub claimed: AtomicU64,
    /// Tasks put into inboxes.
    pub offered: AtomicU64,
    /// Tasks given back because nobody had room.
    pub handed_back: AtomicU64,
    /// Buckets held now.
    pub buckets: AtomicU64,
}

/// What the loops of a pod share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub space: Space,
    pub settings: PodSettings,
    pub dispatcher: Dispatcher,
    pub limits: Limits,
    pub pace: Pace,
    pub ready: Arc<Readiness>,
    pub complaints: Complaints,
    pub tally: Arc<PodTally>,
    /// Of the latest tries.
    pub undelivered: Mutex<Vec<Undelivered>>,
    pub meters: Meters,
    pub view: watch::Receiver<Arc<View>>,
}

/// A scheduler instance.
#[derive(Debug)]
pub struct Pod {
    space: Space,
    settings: PodSettings,
    ready: Arc<Readiness>,
    tally: Arc<PodTally>,
}

impl Pod {
    /// A pod on a space; it does nothing until it runs.
    pub fn new(space: Space, mut settings: PodSettings) -> Self {
        if settings.id.is_empty() {
            settings.id = instance_id("pod");
        }
        settings.claim_rows = settings.claim_rows.clamp(1, limits::BATCH_MAX_ROWS as u32);
        settings.gather_max_ms = settings.gather_max_ms.min(100);
        settings.look_ahead_ms = settings.look_ahead_ms.clamp(0, limits::LOOK_AHEAD_MAX_MS);
        let limit = Duration::from_millis(u64::try_from(3 * settings.poll_ms).unwrap_or(3_000));
        Self { space, settings, ready: Arc::new(Readiness::new(limit)), tally: Arc::default() }
    }

    /// Its instance id.
    pub fn id(&self) -> &str {
        &self.settings.id
    }

    /// Its readiness, for the HTTP door.
    pub fn ready(&self) -> Arc<Readiness> {
        Arc::clone(&self.ready)
    }

    /// What it has done so far; goes on counting while the pod runs.
    pub fn tally(&self) -> Arc<PodTally> {
        Arc::clone(&self.tally)
    }

    /// Works until `stop` fires, then hands back what is undelivered, lets go of its buckets and leaves.
    ///
    /// Errors of Redis do not end it: its loops back off, say why, and go on.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        let (publish, view) = watch::channel(Arc::new(View::default()));
        let dispatcher = Dispatcher::new(
            self.space.clone(),
            self.settings.id.clone(),
            Arc::clone(&self.tally),
            self.settings.route_sample,
        );
        let shared = Arc::new(Shared {
            dispatcher,
            limits: Limits::default(),
            pace: Pace::new(self.settings.gather_max_ms),
            space: self.space,
            settings: self.settings,
            ready: self.ready,
            complaints: Complaints::default(),
            tally: self.tally,
            undelivered: Mutex::default(),
            meters: Meters::default(),
            view,
        });
        tracing::info!(pod = %shared.settings.id, namespace = %shared.space.namespace(), "pod starts");
        let loops = TaskTracker::new();
        let members = CancellationToken::new();
        loops.spawn(membership::run(Arc::clone(&shared), publish, members.clone()));
        loops.spawn(decider::run(Arc::clone(&shared), stop.clone()));
        loops.spawn(fitness::run(Arc::clone(&shared), members.clone()));
        let dispatching = CancellationToken::new();
        loops.spawn(record::run(Arc::clone(&shared), dispatching.clone()));
        loops.spawn(dispatch::run(Arc::clone(&shared), dispatching.clone()));
        loops.spawn(allotments::run(Arc::clone(&shared), dispatching.clone()));
        loops.spawn(digest::run(Arc::clone(&shared), members.clone()));
        loops.spawn(outcomes::run(Arc::clone(&shared), stop.clone()));
        let owning = tokio::spawn(ownership::run(Arc::clone(&shared), stop.clone()));
        // The claim loops end first; what they claimed is then delivered or handed back.
        let _ = owning.await;
        let leaving = async {
            shared.dispatcher.drain().await;
            dispatching.cancel();
            members.cancel();
            loops.close();
            loops.wait().await;
            member::leave_pod(&shared.space, &shared.settings.id).await
        };
        let left = tokio::time::timeout(LEAVE_MAX, leaving).await;
        tracing::info!(
            pod = %shared.settings.id,
            claimed = shared.tally.claimed.load(Ordering::Relaxed),
            offered = shared.tally.offered.load(Ordering::Relaxed),
            handed_back = shared.tally.handed_back.load(Ordering::Relaxed),
            "pod stops"
        );
        match left {
            Ok(left) => left,
            Err(_) => {
                tracing::warn!(
                    "redis did not answer in time while leaving; grants come back by their time-out"
                );
                Ok(())
            }
        }
    }
}

/// A unique id of at most 32 bytes: a word and 80 bits of chance.
pub fn instance_id(word: &str) -> String {
    let mut digits = [0; 14];
    crate::model::digits::write(&mut digits, fastrand::u128(..));
    // Readable and without `-` in front, so that it can be typed as an argument.
    let text: String =
        digits.iter().map(|b| if matches!(b, b'-' | b'_') { 'x' } else { char::from(*b) }).collect();
    format!("{word}-{}", text.to_lowercase())
}
