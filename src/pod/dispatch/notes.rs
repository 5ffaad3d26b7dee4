//! What was offered a moment ago: noted in Redis where it lies for long, told to stop where that is wished.

use super::Dispatcher;
use super::outbox::Parcel;
use crate::clock;
use crate::limits;
use crate::model::{Bucket, Grant, TaskId};
use crate::store::member;
use crate::store::run::{self, StartRow};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tasks that have lain in an inbox for this long are noted there, for those who ask where they are.
const NOTE_AFTER: Duration = Duration::from_millis(250);
/// Offers remembered until then; beyond it the oldest go without a note.
const NOTES_MAX: usize = 50_000;
/// Wishes to cancel are remembered for so long, and so many of them.
const WISH_KEPT: Duration = Duration::from_secs(1);
const WISHES_MAX: usize = 256;

/// An offer that was accepted.
#[derive(Debug)]
struct Offered {
    at: Instant,
    id: TaskId,
    grant: Grant,
    to: Arc<str>,
    own_end: Option<Instant>,
}

/// Offers and wishes of late, each oldest first.
#[derive(Debug, Default)]
pub(super) struct Notes {
    offered: VecDeque<Offered>,
    /// Wishes to cancel: what they are about may be on its way.
    wished: VecDeque<(Instant, TaskId)>,
}

impl Notes {
    /// `to` has accepted these; gives those of them of which somebody wished that they stop.
    pub fn accepted(&mut self, at: Instant, to: &Arc<str>, [urgent, normal]: [&[Parcel]; 2]) -> Vec<TaskId> {
        let fit = NOTES_MAX.saturating_sub(urgent.len() + normal.len());
        while self.offered.len() > fit {
            self.offered.pop_front();
        }
        let mut unwanted = Vec::new();
        for Parcel { id, grant, own_end, .. } in urgent.iter().chain(normal) {
            if self.wished.iter().any(|(_, wished)| wished == id) {
                unwanted.push(*id);
            }
            self.offered.push_back(Offered {
                at,
                id: *id,
                grant: *grant,
                to: Arc::clone(to),
                own_end: *own_end,
            });
        }
        unwanted
    }

    /// Somebody wishes that this task stops; gives the executor that it was offered to, if it was.
    fn wish(&mut self, now: Instant, id: TaskId) -> Option<Arc<str>> {
        let old = |(at, _): &(Instant, TaskId)| now.saturating_duration_since(*at) > WISH_KEPT;
        while self.wished.len() >= WISHES_MAX || self.wished.front().is_some_and(old) {
            self.wished.pop_front();
        }
        self.wished.push_back((now, id));
        self.offered.iter().rev().find(|one| one.id == id).map(|one| Arc::clone(&one.to))
    }

    /// Takes out what was offered long enough ago to be noted, by buckets.
    fn ripe(&mut self, now: Instant) -> HashMap<Bucket, Vec<(StartRow, Arc<str>)>> {
        let mut by_bucket: HashMap<_, Vec<_>> = HashMap::new();
        while self.offered.front().is_some_and(|one| now >= one.at + NOTE_AFTER) {
            let Some(Offered { id, grant, to, own_end, .. }) = self.offered.pop_front() else { break };
            let left = |end: Instant| end.saturating_duration_since(now).as_millis().max(1) as i64;
            let row = StartRow { id, grant, lease_ms: own_end.map_or(0, left) };
            by_bucket.entry(id.bucket()).or_default().push((row, to));
        }
        by_bucket
    }
}

impl Dispatcher {
    /// Notes in Redis where tasks lie that were offered a while ago. Most have ended by then, and cost a look.
    pub(super) async fn note(&self) {
        let ripe = self.inner.lock().notes.ripe(clock::mono());
        for (bucket, rows) in ripe {
            for piece in rows.chunks(limits::BATCH_MAX_ROWS) {
                let rows: Vec<(StartRow, &str)> = piece.iter().map(|(row, to)| (*row, &**to)).collect();
                if let Err(error) = run::offer(&self.space, bucket, &self.pod, &rows).await {
                    tracing::debug!(%bucket, %error, "could not note offers");
                }
            }
        }
    }

    /// Tells the executor that was just given this task that somebody wishes it to stop. Redis does not know yet
    /// where it is. A hint: the flag of its grant is the truth.
    pub(super) async fn pass_on_cancel(&self, id: TaskId) {
        let to = self.inner.lock().notes.wish(clock::mono(), id);
        if let Some(to) = to {
            let _ = member::tell_executor(&self.space, &to, format!("c{id}").as_bytes()).await;
        }
    }
}
