//! Keeps what this executor holds granted to it, and says that this executor lives.
//!
//! Every 50 ms the table of what is held is gone through for grants to start or renew; all of one
//! bucket travel in one batch, one call a bucket at a time. Ten thousand slots cost some 100 µs a
//! round. Nothing here runs on the handlers' threads.

use super::hands::Size;
use super::link::{ExecutorRecord, Link, StartRow};
use super::runner::Core;
use crate::limits;
use crate::model::Bucket;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often the table is gone through: a quarter of the time after which `start` is said.
const ROUND: Duration = Duration::from_millis(50);
/// A heartbeat that failed is tried again this much later.
const BEAT_AGAIN: Duration = Duration::from_millis(500);
/// How soon a queue's first run times are told, outside of the usual beat: until pods know them, they take each of
/// its tasks for a long one, and send it alone.
pub(super) const NEWS_EVERY: Duration = Duration::from_millis(250);
/// Most queues whose average run time is reported; a record stays below 64 KiB.
pub(super) const AVERAGES_MAX: usize = 256;

/// Starts and renews until `done`.
pub(super) async fn run<L: Link>(core: Arc<Core<L>>, done: CancellationToken) {
    let mut round = tokio::time::interval(ROUND);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut busy = HashSet::new();
    let mut calls = JoinSet::new();
    let mut by_call = std::collections::HashMap::new();
    loop {
        tokio::select! {
            () = done.cancelled() => return,
            Some(ended) = calls.join_next_with_id(), if !calls.is_empty() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => error.id(),
                };
                if let Some(bucket) = by_call.remove(&id) {
                    busy.remove(&bucket);
                }
                continue;
            }
            () = core.wake_keeper.notified() => {}
            _ = round.tick() => {}
        }
        for (bucket, (starts, renews)) in core.hands.calls(core.link.mono(), &busy) {
            busy.insert(bucket);
            let core = Arc::clone(&core);
            let call = calls.spawn(async move {
                tokio::join!(say(&core, bucket, true, &starts), say(&core, bucket, false, &renews));
            });
            by_call.insert(call.id(), bucket);
        }
    }
}

async fn say<L: Link>(core: &Core<L>, bucket: Bucket, start: bool, rows: &[StartRow]) {
    for rows in rows.chunks(limits::BATCH_MAX_ROWS) {
        let sent = core.link.mono();
        let answers =
            if start { core.link.start(bucket, rows).await } else { core.link.renew(bucket, rows).await };
        match answers {
            Ok(answers) => {
                let (now, now_ms) = (core.link.mono(), core.link.now_us().div_euclid(1_000));
                let stale = core.hands.answered(start, rows, &answers, sent, now, now_ms);
                if stale > 0 {
                    tracing::info!(%bucket, stale, "grants no longer stand");
                }
            }
            Err(error) => {
                let what = if start { "start" } else { "renew" };
                if let Some(more) = core.complaints.tell(what, core.link.mono()) {
                    tracing::warn!(
                        %bucket, rows = rows.len(), %error, more_like_it = more,
                        "could not {what} grants; trying again"
                    );
                }
            }
        }
    }
}

/// What never changes in an executor's record.
pub(super) struct Identity {
    pub record: ExecutorRecord,
    pub beats: std::sync::atomic::AtomicU64,
    pub queues: Box<dyn Fn() -> Vec<(String, f64)> + Send + Sync>,
}

/// The record of this moment.
pub(super) fn record<L: Link>(core: &Core<L>, identity: &Identity) -> ExecutorRecord {
    let (busy, _, load_ms) = core.hands.load();
    let view = core.hands.view();
    let mut averages = (identity.queues)();
    averages.truncate(AVERAGES_MAX);
    ExecutorRecord {
        capacity: view.capacity,
        load_ms,
        busy,
        draining: core.closing.is_cancelled(),
        journal: core.journal.as_ref().is_some_and(|journal| journal.is_on()),
        clock_offset_us: core.link.now_us() - crate::clock::wall_us(),
        averages,
        beats: identity.beats.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
        ..identity.record.clone()
    }
}

/// Says every few seconds that this executor lives, until `done`.
pub(super) async fn beat<L: Link>(
    core: Arc<Core<L>>,
    identity: Identity,
    size: Size,
    every: Duration,
    done: CancellationToken,
) {
    let mut watch = BusyWatch::default();
    let mut failures = 0u32;
    let mut pause = every;
    let mut told = 0;
    loop {
        let until = tokio::time::Instant::now() + pause;
        loop {
            let look = until.min(tokio::time::Instant::now() + NEWS_EVERY);
            tokio::select! {
                () = done.cancelled() => return,
                () = tokio::time::sleep_until(look) => {}
            }
            let known = (identity.queues)().len().min(AVERAGES_MAX);
            if look == until || (failures == 0 && known > told) {
                break;
            }
        }
        let record = record(&core, &identity);
        super::observe::slots(size.slots + size.urgent_slots, record.busy);
        if watch.see(core.link.mono(), record.busy, size.slots) {
            tracing::warn!(
                busy = record.busy,
                slots = size.slots,
                "more than 80 % of the slots have been busy for 10 s; give this executor more slots or start another"
            );
        }
        pause = match core.link.beat(&record).await {
            Ok(_) => {
                told = record.averages.len();
                if failures > 0 {
                    tracing::info!(failures, "heartbeats are heard again");
                }
                failures = 0;
                every
            }
            Err(error) => {
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(failures, %error, "could not send a heartbeat; trying again");
                }
                BEAT_AGAIN
            }
        };
    }
}

/// Notices that nearly all slots have been busy for long, and says so once in a while.
#[derive(Debug, Default)]
struct BusyWatch {
    since: Option<Instant>,
    said: Option<Instant>,
}

impl BusyWatch {
    const LONG: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_secs(60);

    /// Takes in one sample; true when it is time to warn.
    fn see(&mut self, now: Instant, busy: u32, slots: u32) -> bool {
        if u64::from(busy) * 5 <= u64::from(slots) * 4 {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let quiet = self.said.is_none_or(|said| now.saturating_duration_since(said) >= Self::QUIET);
        let warn = quiet && now.saturating_duration_since(since) >= Self::LONG;
        if warn {
            self.said = Some(now);
        }
        warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_warns_after_ten_busy_seconds_and_then_once_a_minute() {
        let (mut watch, start) = (BusyWatch::default(), crate::clock::mono());
        let mut warned = Vec::new();
        for second in 0..150 {
            let busy = if second == 5 { 8 } else { 9 };
            if watch.see(start + Duration::from_secs(second), busy, 10) {
                warned.push(second);
            }
        }
        assert_eq!(warned, [16, 76, 136]);
        let mut calm = BusyWatch::default();
        assert!((0..60).all(|second| !calm.see(start + Duration::from_secs(second), 8, 10)));
    }
}
