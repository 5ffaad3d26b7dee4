//! Offers: batches of claimed tasks for an executor's inbox, and what it answers.

use super::Dispatcher;
use super::outbox::{Outbox, Parcel};
use crate::clock;
use crate::limits;
use crate::metric;
use crate::pod::Shared;
use crate::pod::view::View;
use crate::store::StoreError;
use crate::store::member::{self, OfferAnswer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Times an offer is sent again to the same executor when its answer was lost.
const OFFER_REPEATS_MAX: u32 = 5;

/// What is sent to an executor at once.
struct Batch {
    urgent: Vec<Parcel>,
    normal: Vec<Parcel>,
    /// Room wanted there afterwards.
    want: u32,
    /// Of the freeze that it was made under.
    epoch: u64,
}

impl Dispatcher {
    /// Asks the executors of which little room is known for more.
    pub fn seek_room(&self, shared: &Arc<Shared>) {
        let tight: Vec<String> = {
            let inner = self.inner.lock();
            let tight = |outbox: &&Outbox| outbox.credit == 0 && !outbox.tight && !outbox.sending;
            inner.outboxes.iter().filter(tight).map(|outbox| outbox.id.to_string()).collect()
        };
        for executor in tight {
            self.replenish(shared, &executor);
        }
    }

    /// Asks an executor for room, with the next offer or without one.
    pub(super) fn replenish(&self, shared: &Arc<Shared>, executor: &str) {
        {
            let mut inner = self.inner.lock();
            let Some(outbox) = inner.outbox(executor) else { return };
            outbox.ask = true;
            if outbox.sending {
                return;
            }
            outbox.sending = true;
        }
        let (shared, executor) = (Arc::clone(shared), executor.to_owned());
        tokio::spawn(async move {
            shared.dispatcher.send(&shared, &executor).await;
        });
    }

    /// Sends what is queued for one executor, batch after batch, until nothing is.
    async fn send(&self, shared: &Arc<Shared>, executor: &str) {
        while let Some(batch) = self.load(executor) {
            let at = clock::mono();
            let answer = self.offer_with_repeats(executor, &batch).await;
            self.sent(shared, executor, at, batch, answer);
        }
    }

    /// The next batch for an executor; nothing when its outbox is empty.
    fn load(&self, executor: &str) -> Option<Batch> {
        let mut inner = self.inner.lock();
        let epoch = inner.view.freeze.epoch;
        let want = if self.demand.load(Ordering::Relaxed) > 0 { want(&inner.view, executor) } else { 0 };
        let outbox = inner.outbox(executor)?;
        let mut bytes = 0;
        let mut take = |queue: &mut VecDeque<Parcel>, room: usize| {
            let mut out = Vec::new();
            while out.len() < room {
                let Some(head) = queue.front() else { break };
                if bytes > 0 && bytes + head.offer.len() > limits::CALL_MAX_BYTES {
                    break;
                }
                bytes += head.offer.len();
                out.extend(queue.pop_front());
            }
            out
        };
        let urgent = take(&mut outbox.urgent, limits::BATCH_MAX_ROWS);
        let normal = take(&mut outbox.normal, limits::BATCH_MAX_ROWS - urgent.len());
        if urgent.is_empty() && normal.is_empty() && !outbox.ask {
            outbox.sending = false;
            return None;
        }
        outbox.ask = false;
        Some(Batch { urgent, normal, want, epoch })
    }

    async fn offer_with_repeats(&self, executor: &str, batch: &Batch) -> Result<OfferAnswer, StoreError> {
        let offers =
            |parcels: &[Parcel]| parcels.iter().map(|parcel| parcel.offer.clone()).collect::<Vec<_>>();
        let (urgent, normal) = (offers(&batch.urgent), offers(&batch.normal));
        let mut repeats = 0;
        loop {
            let (want, epoch) = (batch.want, batch.epoch);
            match member::offer(&self.space, &self.pod, executor, &urgent, &normal, want, epoch).await {
                // Only the same executor may be asked again: it drops what it has seen.
                Err(error) if error.is_retryable() && repeats < OFFER_REPEATS_MAX => {
                    repeats += 1;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..=50 * u64::from(repeats))))
                        .await;
                }
                answer => return answer,
            }
        }
    }

    /// Takes in what an executor has answered to a batch that was sent at `at`.
    fn sent(
        &self,
        shared: &Arc<Shared>,
        executor: &str,
        at: Instant,
        batch: Batch,
        answer: Result<OfferAnswer, StoreError>,
    ) {
        let Batch { mut urgent, mut normal, want, .. } = batch;
        tracing::trace!(executor, urgent = urgent.len(), normal = normal.len(), want, ?answer, "offered");
        let metrics = metric::handles();
        metrics.offers.increment(1);
        let mut back = Vec::new();
        let mut inner = self.inner.lock();
        match answer {
            Ok(OfferAnswer::Accepted { urgent: u, normal: n, reserved, free, spare }) => {
                back.extend(urgent.drain(u.min(urgent.len())..));
                back.extend(normal.drain(n.min(normal.len())..));
                let accepted = (urgent.len() + normal.len()) as u64;
                let to: Arc<str> = executor.into();
                for id in inner.notes.accepted(at, &to, [&urgent, &normal]) {
                    let (space, to) = (self.space.clone(), Arc::clone(&to));
                    tokio::spawn(async move {
                        let _ = member::tell_executor(&space, &to, format!("c{id}").as_bytes()).await;
                    });
                }
                metrics.offered_tasks.increment(accepted);
                self.tally.offered.fetch_add(accepted, Ordering::Relaxed);
                // What nobody has reserved is there for all pods: each counts on its share.
                let pods = inner.view.pods.len().max(1) as u32;
                if let Some(outbox) = inner.outbox(executor) {
                    outbox.credit = (reserved + free.div_ceil(pods)).saturating_sub(outbox.queued());
                    outbox.spare = spare.saturating_sub(outbox.urgent.len() as u32);
                    outbox.idle = outbox.idle.min(reserved + free);
                    outbox.healthy = true;
                    outbox.heard = at;
                    outbox.tight = reserved < low(want);
                }
            }
            Ok(OfferAnswer::Gone) => {
                back.append(&mut urgent);
                back.append(&mut normal);
                if let Some(outbox) = inner.outbox(executor) {
                    back.extend(outbox.urgent.drain(..).chain(outbox.normal.drain(..)));
                    (outbox.credit, outbox.spare, outbox.heard) = (0, 0, at);
                    outbox.healthy = false;
                }
            }
            // The news of the freeze is on its way; then they are routed anew or go back.
            Ok(OfferAnswer::Frozen) => inner.waiting.extend(urgent.drain(..).chain(normal.drain(..))),
            Err(error) if !error.fate_unknown() => {
                // None of them was sent: they are routed anew when the executor is heard of again.
                if let Some(more) = shared.complaints.tell("offer", clock::mono()) {
                    let tasks = urgent.len() + normal.len();
                    tracing::warn!(executor, %error, tasks, more_like_it = more, "offer was not sent; trying again");
                }
                shared.ready.failing(clock::mono(), format!("offer: {error}"));
                back.append(&mut urgent);
                back.append(&mut normal);
                if let Some(outbox) = inner.outbox(executor) {
                    (outbox.credit, outbox.heard) = (0, at);
                    outbox.healthy = false;
                }
            }
            Err(error) => {
                // They may lie in the inbox already: nobody else may get them under this grant.
                // Whatever did not arrive comes back by its dispatch time-out.
                if let Some(more) = shared.complaints.tell("lost offer", clock::mono()) {
                    let tasks = urgent.len() + normal.len();
                    tracing::warn!(executor, %error, tasks, more_like_it = more, "offer got no answer; its tasks come back by their time-out");
                }
                shared.ready.failing(clock::mono(), format!("offer: {error}"));
                if let Some(outbox) = inner.outbox(executor) {
                    (outbox.credit, outbox.heard) = (0, at);
                    outbox.healthy = false;
                }
            }
        }
        for parcel in &back {
            if let Some(outbox) = inner.outbox(executor) {
                outbox.load_ms = (outbox.load_ms - parcel.cost_ms).max(0.0);
            }
        }
        inner.touched(executor);
        drop(inner);
        if !back.is_empty() {
            self.route(shared, back);
        }
        self.reroute(shared);
        self.tell_room();
    }

    /// Starts to send what is queued.
    pub(super) fn flush(&self, shared: &Arc<Shared>) {
        let mut inner = self.inner.lock();
        inner.gathering = false;
        let ready: Vec<Arc<str>> = inner
            .outboxes
            .iter_mut()
            .filter(|outbox| outbox.queued() > 0 && !outbox.sending)
            .map(|outbox| {
                outbox.sending = true;
                Arc::clone(&outbox.id)
            })
            .collect();
        drop(inner);
        for executor in ready {
            let shared = Arc::clone(shared);
            tokio::spawn(async move { shared.dispatcher.send(&shared, &executor).await });
        }
    }
}

/// Room this pod wants at an executor: its capacity, shared among the pods that are busy.
fn want(view: &View, executor: &str) -> u32 {
    let found = view.executors.binary_search_by(|e| e.record.id.as_str().cmp(executor));
    found.map_or(0, |at| view.executors[at].record.capacity.div_ceil(view.busy_pods.max(1) as u32))
}

/// Below this room a pod wants to hear when there is more.
fn low(want: u32) -> u32 {
    want.div_ceil(4)
}
