//! Who lives: this pod says so, hears of the others, and hands back what lay with those that are lost.

use super::view::View;
use super::{BEATS_PER_LOCK, Shared, meter};
use crate::metric;
use crate::model::UnixMs;
use crate::store::due::hand_back;
use crate::store::member::{self, PodRecord};
use crate::store::{StoreError, Subscription, queue};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long news gather before the view is made anew.
const NEWS_GATHER: Duration = Duration::from_millis(10);

/// Beats, and publishes what it hears, until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, publish: watch::Sender<Arc<View>>, stop: CancellationToken) {
    let every = crate::clock::ms(shared.settings.lock_ms / BEATS_PER_LOCK).max(Duration::from_millis(50));
    let rooms = ["pods", "executors", "lanes", "freeze", "queues", "spread"];
    let mut news = rooms.map(|room| member::news(&shared.space, room));
    let (mut freeze_epoch, mut queues_epoch) = (0, 0);
    let mut claimed_before = 0;
    loop {
        let claimed = shared.tally.claimed.load(Ordering::Relaxed);
        match tick(&shared, claimed > claimed_before, [freeze_epoch, queues_epoch]).await {
            Ok((view, lost)) => {
                claimed_before = claimed;
                for lost in lost {
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move { hand_back_inbox(&shared, &lost).await });
                }
                gauges(&shared, &view);
                let view = Arc::new(view);
                shared.limits.learn(&view);
                shared.tally.limited.store(shared.limits.any(), Ordering::Relaxed);
                shared.dispatcher.learn(&view);
                publish.send_replace(Arc::clone(&view));
                shared.tally.views.fetch_add(1, Ordering::Relaxed);
                if view.freeze.epoch != freeze_epoch {
                    freeze_epoch = view.freeze.epoch;
                    if !view.freeze.frozen.is_empty() {
                        tokio::spawn(recall_frozen(Arc::clone(&shared), Arc::clone(&view)));
                    }
                    // Whoever froze it waits to hear that this pod follows.
                    queues_epoch = view.queues.epoch;
                    continue;
                }
                if view.queues.epoch != queues_epoch {
                    queues_epoch = view.queues.epoch;
                    continue;
                }
            }
            Err(error) => {
                shared.ready.refused(crate::clock::mono(), format!("heartbeat: {error}"));
                if let Some(more) = shared.complaints.tell("heartbeat", crate::clock::mono()) {
                    tracing::warn!(%error, more_like_it = more, "heartbeat failed; trying again");
                }
            }
        }
        // Staggered by a tenth, so that pods started together do not beat together.
        let wait = every.mul_f64(fastrand::f64().mul_add(0.1, 0.95));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            spread = any_news(&mut news) => {
                // Many joining at once are heard of together.
                tokio::time::sleep(NEWS_GATHER).await;
                if spread && let Err(error) = shared.space.refresh_spread().await {
                    tracing::debug!(%error, "could not read the new spread; it is read with the next heartbeat");
                }
            }
        }
    }
}

/// Answers whether the spread has changed.
async fn any_news(news: &mut [Subscription; 6]) -> bool {
    let [pods, executors, lanes, freeze, queues, spread] = news;
    tokio::select! {
        _ = pods.recv() => {}
        _ = executors.recv() => {}
        _ = lanes.recv() => {}
        _ = freeze.recv() => {}
        _ = queues.recv() => {}
        _ = spread.recv() => return true,
    }
    false
}

/// Answers who lives, and which executors are lost.
async fn tick(
    shared: &Shared,
    busy: bool,
    [freeze_epoch, queues_epoch]: [u64; 2],
) -> Result<(View, Vec<String>), StoreError> {
    let (space, settings) = (&shared.space, &shared.settings);
    space.keep_spread().await?;
    let (loads, cpu_permille) = shared.meters.sample();
    let share =
        |of: fn(&meter::LoopLoad) -> u16| loads.iter().map(of).max().map_or(0.0, |n| f64::from(n) / 1e3);
    metric::handles().claim_loop_busy.set(share(|load| load.busy_permille));
    metric::handles().claim_loop_starved.set(share(|load| load.starved_permille));
    let me = PodRecord {
        id: settings.id.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        host: host_name(),
        pid: std::process::id(),
        listen: settings.listen.clone(),
        buckets: shared.dispatcher.buckets(),
        draining: false,
        busy,
        freeze_epoch,
        cpu_permille,
        loads: loads.iter().map(|load| (load.bucket, load.busy_permille, load.starved_permille)).collect(),
        queues_epoch,
        undelivered: shared.undelivered.lock().clone(),
    };
    let pods = member::beat_pod(space, &me, settings.lock_ms).await?;
    let roll = member::roll(space).await?;
    let groups = space.groups().await?;
    let freeze = queue::frozen(space).await?;
    let queues = queue::refresh(space).await?;
    let mut view = View::new(&pods, roll.live, groups, freeze, queues, UnixMs(space.clock().now_ms()));
    view.default_policy = settings.routing;
    Ok((view, roll.lost))
}

fn gauges(shared: &Shared, view: &View) {
    let metrics = metric::handles();
    metrics.pods_live.set(view.pods.len() as f64);
    metrics.executors_live.set(view.executors.len() as f64);
    metrics.executor_slots.set(view.executors.iter().map(|e| f64::from(e.record.slots)).sum::<f64>());
    metrics.executor_busy.set(view.executors.iter().map(|e| f64::from(e.record.busy)).sum::<f64>());
    metrics.buckets_held.set(shared.tally.buckets.load(Ordering::Relaxed) as f64);
}

/// What is frozen comes back out of all inboxes. Each pod does this once for each change; an offer is taken once.
async fn recall_frozen(shared: Arc<Shared>, view: Arc<View>) {
    let frozen = view.groups.iter().filter(|(_, (group, _))| view.freeze.of_queue(&group.queue).is_some());
    let groups: Vec<u32> = frozen.map(|(code, _)| *code).collect();
    for executor in &view.executors {
        let id = &executor.record.id;
        match queue::recall(&shared.space, id, &view.freeze, &groups).await {
            Ok(offers) => {
                let rows: Vec<_> = offers.iter().map(|offer| (offer.id, offer.grant)).collect();
                metric::handles().handed_back.add("frozen", rows.len() as u64);
                let cause = format!("frozen: recalled from the inbox of {id}, never started");
                hand_back(&shared.space, &shared.settings.id, &cause, rows).await;
            }
            Err(error) => tracing::warn!(executor = %id, %error, "could not recall what is frozen"),
        }
    }
}

/// What still lay in a lost executor's inbox goes back to its lanes. Several pods may try; each offer is taken once.
async fn hand_back_inbox(shared: &Shared, executor: &str) {
    match member::leave_executor(&shared.space, executor).await {
        Ok(offers) => {
            if !offers.is_empty() {
                tracing::info!(executor, offers = offers.len(), "handing back the inbox of a lost executor");
            }
            let rows = offers.iter().map(|offer| (offer.id, offer.grant)).collect();
            let cause = format!("offered to {executor}, which is lost");
            hand_back(&shared.space, &shared.settings.id, &cause, rows).await;
            metric::handles().handed_back.add("lost", offers.len() as u64);
        }
        Err(error) => {
            tracing::warn!(executor, %error, "could not hand back the inbox of a lost executor; its tasks come back by their dispatch time-out")
        }
    }
}

/// The name of this machine, as far as it is known.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().chars().take(64).collect()
}
