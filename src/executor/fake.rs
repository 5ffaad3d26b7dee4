//! The other side of the link, in memory: an inbox, grants with deadlines, and outcomes.
//!
//! It goes by tokio's clock, so that tests may stop time, and it can be told to fail.

use super::link::*;
use crate::model::queue::Lease;
use crate::model::runs::Runs;
use crate::model::spec::Extras;
use crate::model::{
    Bucket, ExecutionId, Grant, LaneCode, LaneGroup, Minute, Nonce, Priority, QueueName, Retry, Spec, TaskId,
    Tier, UnixMs,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Redis time when a test begins.
pub(super) const EPOCH_MS: i64 = 1_764_511_260_123;

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fail {
    /// Before it was executed.
    Before,
    /// After: only the answer is lost.
    After,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub grant: Grant,
    pub deadline_ms: i64,
    pub started: bool,
    pub cancel: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub inbox: VecDeque<Offer>,
    pub runs: HashMap<TaskId, Run>,
    pub accepted: Vec<(ExecutionId, AckRow)>,
    pub refused: Vec<AckRow>,
    pub released: Vec<(TaskId, &'static str, i64)>,
    pub takes: Vec<Take>,
    pub hungry: Vec<String>,
    pub told: Vec<String>,
    pub starts: Vec<(TaskId, i64)>,
    pub renewals: Vec<(TaskId, i64)>,
    pub lapsed: Vec<TaskId>,
    pub ack_calls: Vec<(Bucket, usize)>,
    pub beats: Vec<ExecutorRecord>,
    pub left: bool,
    pub marks: HashMap<(TaskId, Vec<u8>), Bytes>,
    pub fail_acks: VecDeque<Fail>,
    pub fail_takes: VecDeque<Fail>,
    /// No start and no renewal gets through.
    pub deaf: bool,
    pub next: u64,
}

#[derive(Clone)]
pub(super) struct Fake {
    pub state: Arc<Mutex<State>>,
    wake: Arc<Notify>,
    changed: Arc<Notify>,
    hints: Arc<Mutex<VecDeque<TaskId>>>,
    origin: tokio::time::Instant,
}

pub(super) struct FakeWakes {
    wake: Arc<Notify>,
    hints: Arc<Mutex<VecDeque<TaskId>>>,
}

impl Wakes for FakeWakes {
    async fn recv(&mut self) -> Wake {
        self.wake.notified().await;
        self.hints.lock().pop_front().map_or(Wake::Inbox, Wake::Cancel)
    }
}

fn lost() -> StoreError {
    StoreError::Timeout { script: "fake", timeout_ms: 2_000 }
}

/// A task to be offered.
pub(super) struct Draft {
    pub spec: Spec,
    pub bucket: u16,
    pub attempt: u32,
    pub valid_ms: i64,
    /// Due so much later: offered ahead.
    pub ahead_ms: i64,
}

impl Default for Draft {
    fn default() -> Self {
        Self { spec: spec(Priority::P3), bucket: 0, attempt: 1, valid_ms: 15_000, ahead_ms: 0 }
    }
}

pub(super) fn spec(priority: Priority) -> Spec {
    Spec {
        lane: LaneCode::new(1, priority, Tier::FRESH),
        due: UnixMs(EPOCH_MS),
        retry: Retry::default(),
        key: None,
        placement: None,
        plan: None,
        deadline: None,
        start_before: None,
        lease_ms: None,
        timeout_ms: None,
        bound: false,
        extras: Extras::default(),
        payload: Bytes::from_static(b"payload"),
    }
}

impl Fake {
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            wake: Arc::default(),
            changed: Arc::default(),
            hints: Arc::default(),
            origin: tokio::time::Instant::now(),
        }
    }

    pub fn now_ms(&self) -> i64 {
        self.now_us().div_euclid(1_000)
    }

    /// Grants a task and puts it into the inbox.
    pub fn offer(&self, draft: Draft) -> Offer {
        let offer = {
            let mut state = self.state.lock();
            state.next += 1;
            let Draft { mut spec, bucket, attempt, valid_ms, ahead_ms } = draft;
            let minute = Minute((EPOCH_MS / 60_000) as u32);
            let id = TaskId::new(minute, Bucket::new(bucket).unwrap(), state.next);
            let grant = Grant::new(attempt, Nonce::new(state.next));
            let deadline_ms = self.now_ms() + valid_ms;
            spec.due = UnixMs(self.now_ms() + ahead_ms);
            state.runs.insert(id, Run { grant, deadline_ms, started: false, cancel: false });
            let offer = Offer {
                id,
                grant,
                group: spec.lane.group(),
                urgent: spec.lane.priority().is_urgent(),
                ahead: ahead_ms > 0,
                due: spec.due,
                attempt,
                not_after: UnixMs(deadline_ms),
                spec: spec.encode(),
            };
            state.inbox.push_back(offer.clone());
            offer
        };
        self.wake.notify_one();
        offer
    }

    pub fn offer_again(&self, offer: &Offer) {
        self.state.lock().inbox.push_back(offer.clone());
        self.wake.notify_one();
    }

    /// Wishes a running task to stop, and says so.
    pub fn cancel(&self, id: TaskId) {
        if let Some(run) = self.state.lock().runs.get_mut(&id) {
            run.cancel = true;
        }
        self.hints.lock().push_back(id);
        self.wake.notify_one();
    }

    /// Waits until `done` says so of the state.
    pub async fn until(&self, what: &str, done: impl Fn(&State) -> bool) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if done(&self.state.lock()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(600), waiting).await.is_err() {
            panic!("never: {what}");
        }
    }

    fn hold(&self, rows: &[StartRow], start: bool) -> Result<Vec<StartAnswer>, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        if state.deaf {
            return Err(lost());
        }
        let answers = rows.iter().map(|row| {
            if start {
                state.starts.push((row.id, now_ms))
            } else {
                state.renewals.push((row.id, now_ms))
            }
            match state.runs.get_mut(&row.id).filter(|run| run.grant == row.grant && run.deadline_ms > now_ms)
            {
                Some(run) => {
                    run.deadline_ms = now_ms + row.lease_ms;
                    run.started |= start;
                    StartAnswer::Ok { deadline: UnixMs(run.deadline_ms), cancel: run.cancel }
                }
                None => {
                    state.lapsed.push(row.id);
                    StartAnswer::Stale
                }
            }
        });
        Ok(answers.collect())
    }
}

impl Link for Fake {
    type Wakes = FakeWakes;

    fn namespace(&self) -> &str {
        "test"
    }

    fn now_us(&self) -> i64 {
        EPOCH_MS * 1_000 + self.origin.elapsed().as_micros() as i64
    }

    fn mono(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn surely_at(&self, _: Bucket, at: UnixMs) -> Option<Instant> {
        let us = u64::try_from((at.0 - EPOCH_MS) * 1_000).unwrap_or(0);
        Some((self.origin + Duration::from_micros(us)).into_std())
    }

    async fn sleep_until(&self, at: Instant) {
        tokio::time::sleep_until(at.into()).await;
    }

    async fn group(&self, code: u32) -> Result<LaneGroup, StoreError> {
        let name = if code == 1 { "q" } else { "unserved" };
        Ok(LaneGroup::of(QueueName::new(name).unwrap()))
    }

    async fn frozen(&self) -> Result<Freeze, StoreError> {
        Ok(Freeze::default())
    }

    async fn beat(&self, record: &ExecutorRecord) -> Result<(), StoreError> {
        self.state.lock().beats.push(record.clone());
        self.changed.notify_waiters();
        Ok(())
    }

    async fn runs(&self, new: &[(QueueName, Runs)]) -> Result<Vec<(Runs, Option<Lease>)>, StoreError> {
        Ok(new.iter().map(|(_, runs)| (runs.clone(), None)).collect())
    }

    async fn mark(
        &self,
        execution: ExecutionId,
        field: &[u8],
        value: Bytes,
    ) -> Result<MarkAnswer, StoreError> {
        let mut state = self.state.lock();
        if state.runs.get(&execution.id).is_none_or(|run| run.grant != execution.grant) {
            return Ok(MarkAnswer::Stale);
        }
        state.marks.insert((execution.id, field.to_vec()), value);
        Ok(MarkAnswer::Kept)
    }

    async fn marked(&self, id: TaskId, field: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.state.lock().marks.get(&(id, field.to_vec())).cloned())
    }

    async fn unmark(&self, id: TaskId) -> Result<(), StoreError> {
        self.state.lock().marks.retain(|(own, _), _| *own != id);
        Ok(())
    }

    async fn roll(&self) -> Result<Vec<ExecutorRecord>, StoreError> {
        Ok(Vec::new())
    }

    async fn sign_off(&self, _: &str) -> Result<Vec<Offer>, StoreError> {
        Ok(Vec::new())
    }

    async fn leave(&self) -> Result<Vec<Offer>, StoreError> {
        let mut state = self.state.lock();
        state.left = true;
        Ok(state.inbox.drain(..).collect())
    }

    fn wakes(&self) -> FakeWakes {
        FakeWakes { wake: Arc::clone(&self.wake), hints: Arc::clone(&self.hints) }
    }

    async fn take(&self, ask: Take) -> Result<Taken, StoreError> {
        tokio::time::sleep(Duration::from_micros(300)).await;
        let mut state = self.state.lock();
        if let Some(Fail::Before) = state.fail_takes.pop_front() {
            return Err(lost());
        }
        state.takes.push(ask);
        let (mut most, mut urgent, mut offers) = (ask.normal, ask.urgent, Vec::new());
        let mut rest = VecDeque::new();
        for offer in std::mem::take(&mut state.inbox) {
            if offer.urgent && urgent > 0 {
                urgent -= 1;
                offers.push(offer);
            } else if most > 0 {
                most -= 1;
                offers.push(offer);
            } else {
                rest.push_back(offer);
            }
        }
        state.inbox = rest;
        let waiting = state.inbox.len() as u32;
        let room = ask.capacity > ask.in_hand + offers.len() as u32 + waiting;
        let hungry = if room { std::mem::take(&mut state.hungry) } else { Vec::new() };
        drop(state);
        self.changed.notify_waiters();
        Ok(Taken { now_us: self.now_us(), offers, waiting, hungry })
    }

    async fn tell_room(&self, pod: &str) {
        self.state.lock().told.push(pod.to_owned());
        self.changed.notify_waiters();
    }

    async fn start(&self, bucket: Bucket, rows: &[StartRow]) -> Result<Vec<StartAnswer>, StoreError> {
        assert!(rows.iter().all(|row| row.id.bucket() == bucket) && rows.len() <= 1_000);
        let answers = self.hold(rows, true);
        self.changed.notify_waiters();
        answers
    }

    async fn renew(&self, bucket: Bucket, rows: &[StartRow]) -> Result<Vec<StartAnswer>, StoreError> {
        assert!(rows.iter().all(|row| row.id.bucket() == bucket) && rows.len() <= 1_000);
        let answers = self.hold(rows, false);
        self.changed.notify_waiters();
        answers
    }

    async fn ack(&self, bucket: Bucket, rows: &[AckRow], again: bool) -> Result<Vec<AckAnswer>, StoreError> {
        assert!(rows.iter().all(|row| row.id.bucket() == bucket) && rows.len() <= 1_000);
        tokio::time::sleep(Duration::from_micros(300)).await;
        let now_ms = self.now_ms();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let fail = state.fail_acks.pop_front();
        if fail == Some(Fail::Before) {
            return Err(lost());
        }
        state.ack_calls.push((bucket, rows.len()));
        let mut answers = Vec::new();
        for row in rows {
            let execution = ExecutionId { id: row.id, grant: row.grant };
            let current = state.runs.get(&row.id).is_some_and(|run| run.grant == row.grant);
            answers.push(if current {
                state.runs.remove(&row.id);
                state.accepted.push((execution, row.clone()));
                match &row.outcome {
                    Outcome::Succeeded => AckAnswer::Succeeded,
                    Outcome::Cancelled => AckAnswer::Cancelled,
                    Outcome::Skipped => AckAnswer::Skipped,
                    Outcome::Fatal { .. } => AckAnswer::Dead,
                    Outcome::Failed { .. } | Outcome::RetryAfter { .. } => {
                        AckAnswer::Retrying { due: UnixMs(now_ms + 5_000) }
                    }
                }
            } else if again && state.accepted.iter().any(|(accepted, _)| *accepted == execution) {
                AckAnswer::Known
            } else {
                state.refused.push(row.clone());
                AckAnswer::Stale
            });
        }
        drop(guard);
        self.changed.notify_waiters();
        if fail == Some(Fail::After) { Err(lost()) } else { Ok(answers) }
    }

    async fn release(
        &self,
        bucket: Bucket,
        cause: &'static str,
        rows: &[(TaskId, Grant)],
    ) -> Result<usize, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        let mut accepted = 0;
        for (id, grant) in rows {
            assert_eq!(id.bucket(), bucket);
            if state.runs.get(id).is_some_and(|run| run.grant == *grant) {
                state.runs.remove(id);
                state.released.push((*id, cause, now_ms));
                accepted += 1;
            }
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(accepted)
    }
}
