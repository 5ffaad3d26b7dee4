//! Grants are started and renewed: what the keeper has to say, and what it hears.

use super::held::{FAR, Phase, Verdict};
use super::{Hands, Keep, START_AFTER};
use crate::executor::handler::Stop;
use crate::executor::link::{StartAnswer, StartRow};
use crate::limits;
use crate::model::{Bucket, ExecutionId};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Rows for the keeper's next calls, by bucket: to start, to renew.
pub(in crate::executor) type Calls = BTreeMap<Bucket, (Vec<StartRow>, Vec<StartRow>)>;

impl Hands {
    /// Asks for a `start` before the handler runs; the keeper must be woken afterwards.
    pub fn ask_start(&self, execution: &ExecutionId, now: Instant) -> oneshot::Receiver<Verdict> {
        let (tell, told) = oneshot::channel();
        if let Some(held) = self.inner.lock().held.get_mut(execution) {
            held.act_at = now;
            held.asked = Some(tell);
        }
        told
    }

    /// What the keeper has to say now, except to `busy` buckets, where a call is under way.
    /// Handlers whose lease ran out meanwhile are told to stop.
    pub fn calls(&self, now: Instant, busy: &HashSet<Bucket>) -> Calls {
        let mut calls = Calls::new();
        let mut inner = self.inner.lock();
        for (execution, held) in &mut inner.held {
            if let Some(signal) = held.signal.as_ref().filter(|_| held.phase == Phase::Running)
                && held.asked.is_none()
                && now + held.lapse_margin() >= held.good_until
                && !signal.has(Stop::LeaseLost)
            {
                tracing::warn!(%execution, "lease could not be renewed in time; the handler is told to stop");
                signal.fire(Stop::LeaseLost);
            }
            if now < held.act_at {
                continue;
            }
            // What is done and has lapsed is for its ack to find out.
            if held.phase == Phase::Done && now >= held.good_until {
                held.act_at = now + FAR;
                continue;
            }
            let bucket = execution.id.bucket();
            if busy.contains(&bucket) {
                continue;
            }
            let start = held.phase == Phase::Running && !held.started;
            let lease =
                if start || held.started || self.keep == Keep::Lease { held.lease } else { held.dispatch };
            // If no answer comes it is asked again: ten times in a lease, at most ten times a second.
            held.act_at = now + (lease / 10).clamp(Duration::from_millis(100), Duration::from_secs(2));
            let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(limits::LEASE_MAX_MS);
            let row = StartRow { id: execution.id, grant: execution.grant, lease_ms };
            let (starts, renews) = calls.entry(bucket).or_default();
            if start { starts.push(row) } else { renews.push(row) }
        }
        calls
    }

    /// Takes in the answers to one call that left at `sent`. Answers how many grants were stale.
    pub fn answered(
        &self,
        start: bool,
        rows: &[StartRow],
        answers: &[StartAnswer],
        sent: Instant,
        now: Instant,
        now_ms: i64,
    ) -> usize {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut stale = 0;
        for (row, answer) in rows.iter().zip(answers) {
            let execution = ExecutionId { id: row.id, grant: row.grant };
            let Some(held) = inner.held.get_mut(&execution) else { continue };
            let (deadline, cancel) = match *answer {
                StartAnswer::Ok { deadline, cancel } => (deadline, cancel),
                StartAnswer::Stale => {
                    stale += 1;
                    match held.phase {
                        Phase::Waiting => inner.drop_waiting(&execution),
                        Phase::Running => {
                            held.act_at = now + FAR;
                            if let Some(signal) = &held.signal {
                                signal.fire(Stop::Stale);
                            }
                            if let Some(asked) = held.asked.take() {
                                let _ = asked.send(Verdict::Stale);
                            }
                        }
                        Phase::Done => held.act_at = now + FAR,
                    }
                    continue;
                }
            };
            // The lease counts from before the request left; a shorter one that Redis names is believed.
            let asked_for = sent + crate::clock::ms(row.lease_ms);
            let named = now + crate::clock::ms(deadline.0 - now_ms).min(FAR);
            held.good_until = held.good_until.max(asked_for.min(named));
            held.started |= start;
            let soonest = now + Duration::from_millis(100);
            held.act_at = if held.started || (self.keep == Keep::Lease && held.phase != Phase::Running) {
                (sent + held.lease / 3).max(soonest)
            } else if held.phase == Phase::Running {
                // Renewed while it waited, and it has begun since.
                held.act_at.min(now + START_AFTER)
            } else {
                held.renew_at().unwrap_or(soonest).max(soonest)
            };
            if cancel {
                held.cancelled = true;
                if let Some(signal) = &held.signal {
                    signal.fire(Stop::Cancelled);
                }
            }
            if let Some(asked) = held.asked.take_if(|_| start) {
                let _ = asked.send(if cancel { Verdict::Cancelled } else { Verdict::Go });
            }
        }
        stale
    }
}
