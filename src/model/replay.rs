//! Events fed through the table of states: what never may happen, found offline.
//!
//! Each move has a state it comes from and one it leads to; a grant must be current when its outcome
//! is accepted; a fence only grows. The same rules hold in the scripts: this is the second opinion.

use super::event::{Event, Move};
use super::id::TaskId;
use super::slice::UnixMs;
use super::state::State;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// Findings that are listed; all are counted.
pub const FINDINGS_LISTED: usize = 1_000;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A move that the task's state does not allow.
    IllegalStep,
    /// Outcomes of more than one grant, or twice of one, were accepted.
    DoubleAcceptance,
    /// A task was granted while an older grant was neither given back nor lapsed.
    LeaseOverlap,
    /// A fence that did not grow.
    FenceNotGrown,
    /// Events of a task that was never submitted, and nothing was trimmed.
    NeverSubmitted,
    /// The stream ends and the task has not.
    Unfinished,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// The task.
    pub id: TaskId,
    /// When.
    pub at: UnixMs,
    /// What was seen, in words.
    pub detail: String,
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether nothing is wrong. Unfinished tasks are no fault of a live stream.
    pub ok: bool,
    /// Moves read.
    pub events: u64,
    /// Tasks seen.
    pub tasks: u64,
    /// Tasks that have come to an end.
    pub ended: u64,
    /// Tasks that have not.
    pub unfinished: u64,
    /// Outcomes accepted.
    pub accepted: u64,
    /// Hand-outs beyond the first of each task.
    pub redispatched: u64,
    /// Faults found, all of them.
    pub faults: u64,
    /// The first of the faults.
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, Copy)]
struct Track {
    state: State,
    /// Grant that is out.
    fence: Option<u32>,
    /// Highest grant seen.
    highest: u32,
    grants: u32,
    last: UnixMs,
}

/// Reads events in order, of one bucket or of many.
#[derive(Debug, Default)]
pub struct Replay {
    tasks: HashMap<TaskId, Track>,
    report: Report,
    trimmed: bool,
    /// Buckets whose beginning is gone.
    cut: BTreeSet<u16>,
}

impl Replay {
    /// A replay of a stream from its beginning, or from where it was `trimmed`.
    pub fn new(trimmed: bool) -> Self {
        Self { trimmed, ..Self::default() }
    }

    /// The events of this bucket begin here, or go on here after a gap: its tasks may be anywhere.
    pub fn trim(&mut self, bucket: u16) {
        self.cut.insert(bucket);
        let report = &mut self.report;
        self.tasks.retain(|id, track| {
            let goes = id.bucket().number() == bucket;
            if goes {
                report.tasks += 1;
                report.ended += u64::from(track.state.is_final() || track.state == State::Dead);
            }
            !goes
        });
    }

    fn fault(&mut self, kind: Kind, event: &Event, detail: String) {
        self.report.faults += 1;
        if self.report.findings.len() < FINDINGS_LISTED {
            self.report.findings.push(Finding { kind, id: event.id, at: event.at, detail });
        }
    }

    /// Takes the next event.
    pub fn feed(&mut self, event: &Event) {
        self.report.events += 1;
        let Some(mut track) = self.tasks.get(&event.id).copied() else {
            let whole = !self.trimmed && !self.cut.contains(&event.id.bucket().number());
            if event.event != Move::Submitted && whole {
                let detail = format!("first seen as {:?}", event.event);
                self.fault(Kind::NeverSubmitted, event, detail);
            }
            let (state, fence) = match event.event {
                // Where the beginning is gone, the first event says where the task was.
                Move::Submitted => (State::Pending, None),
                other => (after(other).unwrap_or(State::Pending), event.fence),
            };
            let fence = if state == State::Running { fence } else { None };
            let highest = event.fence.unwrap_or(0);
            self.tasks.insert(
                event.id,
                Track { state, fence, highest, grants: u32::from(fence.is_some()), last: event.at },
            );
            self.report.accepted += u64::from(is_outcome(event.event));
            return;
        };
        track.last = track.last.max(event.at);
        let from = track.state;
        match event.event {
            Move::Submitted => {
                self.fault(Kind::IllegalStep, event, format!("submitted again while {from}"));
            }
            Move::Claimed => {
                if from == State::Running {
                    let detail = format!("grant {:?} was still out", track.fence);
                    self.fault(Kind::LeaseOverlap, event, detail);
                } else if from != State::Pending {
                    self.fault(Kind::IllegalStep, event, format!("claimed while {from}"));
                }
                let fence = event.fence.unwrap_or(0);
                if fence <= track.highest {
                    self.fault(Kind::FenceNotGrown, event, format!("{fence} after {}", track.highest));
                }
                self.report.redispatched += u64::from(track.grants > 0);
                track = Track {
                    state: State::Running,
                    fence: event.fence,
                    highest: track.highest.max(fence),
                    grants: track.grants + 1,
                    ..track
                };
            }
            Move::Offered | Move::Started | Move::CancelAsked => {
                if from != State::Running || (event.fence.is_some() && event.fence != track.fence) {
                    let detail = format!(
                        "{:?} of grant {:?} while {from} under {:?}",
                        event.event, event.fence, track.fence
                    );
                    self.fault(Kind::IllegalStep, event, detail);
                }
            }
            Move::Moved | Move::SetAside => {
                if from != State::Pending {
                    self.fault(Kind::IllegalStep, event, format!("{} while {from}", event.event));
                }
            }
            Move::Edited => {
                if from.is_final() || (event.fence.is_some() && event.fence != track.fence) {
                    let detail =
                        format!("edited under {:?} while {from} under {:?}", event.fence, track.fence);
                    self.fault(Kind::IllegalStep, event, detail);
                }
            }
            Move::Repaired => track.state = State::Deleted,
            to => {
                let next = after(to).unwrap_or(from);
                let outcome = is_outcome(to);
                if outcome && (from.is_final() || (from == State::Dead && to != Move::Redriven)) {
                    self.fault(Kind::DoubleAcceptance, event, format!("{to:?} although it was {from}"));
                } else if outcome && event.fence.is_some() && event.fence != track.fence {
                    let detail =
                        format!("{to:?} of grant {:?} while {:?} was current", event.fence, track.fence);
                    self.fault(Kind::DoubleAcceptance, event, detail);
                } else if !from.may_become(next) {
                    self.fault(Kind::IllegalStep, event, format!("{to:?} while {from}"));
                }
                self.report.accepted += u64::from(outcome);
                track.state = next;
                track.fence = None;
            }
        }
        self.tasks.insert(event.id, track);
    }

    /// The faults found so far.
    pub fn findings(&self) -> &[Finding] {
        &self.report.findings
    }

    /// The result. A stream that `must_end` leaves no task unfinished.
    pub fn finish(mut self, must_end: bool) -> Report {
        let mut open: Vec<(TaskId, Track)> = Vec::new();
        for (id, track) in &self.tasks {
            if track.state.is_final() || track.state == State::Dead {
                self.report.ended += 1;
            } else {
                open.push((*id, *track));
            }
        }
        self.report.tasks += self.tasks.len() as u64;
        self.report.unfinished = open.len() as u64;
        if must_end {
            open.sort_unstable_by_key(|(id, _)| *id);
            for (id, track) in open {
                self.report.faults += 1;
                if self.report.findings.len() < FINDINGS_LISTED {
                    let detail = format!("still {}", track.state);
                    self.report.findings.push(Finding { kind: Kind::Unfinished, id, at: track.last, detail });
                }
            }
        }
        self.report.ok = self.report.faults == 0;
        self.report
    }
}

/// The state a move leads to, where it changes the state.
fn after(event: Move) -> Option<State> {
    Some(match event {
        Move::Submitted | Move::Retried | Move::HandedBack | Move::Lost | Move::Redriven => State::Pending,
        Move::Claimed | Move::Offered | Move::Started | Move::CancelAsked => State::Running,
        Move::Succeeded => State::Succeeded,
        Move::Died => State::Dead,
        Move::Cancelled => State::Cancelled,
        Move::Expired => State::Expired,
        Move::Skipped => State::Skipped,
        Move::Deleted | Move::Repaired => State::Deleted,
        Move::Moved | Move::Edited | Move::SetAside => return None,
    })
}

/// Whether a move is an outcome that ends a grant for good.
fn is_outcome(event: Move) -> bool {
    matches!(
        event,
        Move::Succeeded | Move::Retried | Move::Died | Move::Cancelled | Move::Expired | Move::Skipped
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Minute};

    fn replay(moves: &[(Move, Option<u32>)], trimmed: bool) -> Report {
        let id = TaskId::new(Minute(29_408_521), Bucket::default(), 7);
        let mut replay = Replay::new(trimmed);
        for (at, (event, fence)) in moves.iter().enumerate() {
            let (fence, at) = (*fence, UnixMs(at as i64));
            replay.feed(&Event {
                at,
                id,
                event: *event,
                fence,
                actor: String::new(),
                due: None,
                cause: String::new(),
            });
        }
        replay.finish(true)
    }

    fn kinds(moves: &[(Move, Option<u32>)]) -> Vec<Kind> {
        replay(moves, false).findings.iter().map(|finding| finding.kind).collect()
    }

    use Move::*;

    #[test]
    fn a_whole_life_is_clean() {
        let life = [
            (Submitted, None),
            (Edited, None),
            (Claimed, Some(1)),
            (Edited, Some(1)),
            (HandedBack, Some(1)),
            (Claimed, Some(2)),
            (Started, Some(2)),
            (Retried, Some(2)),
            (Claimed, Some(3)),
            (Lost, Some(3)),
            (Claimed, Some(4)),
            (Died, Some(4)),
            (Redriven, None),
            (Claimed, Some(5)),
            (CancelAsked, Some(5)),
            (Cancelled, Some(5)),
        ];
        let report = replay(&life, false);
        assert!(report.ok, "{report:?}");
        assert_eq!(
            (report.events, report.tasks, report.ended, report.redispatched, report.accepted),
            (16, 1, 1, 4, 3)
        );
    }

    #[test]
    fn each_fault_has_its_name() {
        assert_eq!(
            kinds(&[(Submitted, None), (Claimed, Some(1)), (Claimed, Some(2)), (Succeeded, Some(2))]),
            [Kind::LeaseOverlap]
        );
        assert_eq!(
            kinds(&[(Submitted, None), (Claimed, Some(1)), (Succeeded, Some(1)), (Succeeded, Some(1))]),
            [Kind::DoubleAcceptance]
        );
        assert_eq!(
            kinds(&[
                (Submitted, None),
                (Claimed, Some(1)),
                (Lost, Some(1)),
                (Claimed, Some(2)),
                (Succeeded, Some(1))
            ]),
            [Kind::DoubleAcceptance]
        );
        assert_eq!(
            kinds(&[
                (Submitted, None),
                (Claimed, Some(2)),
                (HandedBack, Some(2)),
                (Claimed, Some(2)),
                (Succeeded, Some(2))
            ]),
            [Kind::FenceNotGrown]
        );
        assert_eq!(kinds(&[(Claimed, Some(1)), (Succeeded, Some(1))]), [Kind::NeverSubmitted]);
        assert_eq!(kinds(&[(Submitted, None)]), [Kind::Unfinished]);
        assert_eq!(kinds(&[(Submitted, None), (Started, None), (Cancelled, None)]), [Kind::IllegalStep]);
    }

    #[test]
    fn a_trimmed_stream_may_begin_anywhere() {
        assert!(replay(&[(Claimed, Some(4)), (Succeeded, Some(4))], true).ok);
        assert!(replay(&[(Succeeded, Some(4))], true).ok);
        // A gap in the middle: what was known of that bucket's tasks is forgotten, of others' not.
        let id = |bucket| TaskId::new(Minute(29_408_521), Bucket::new(bucket).unwrap(), 7);
        let event = |bucket, event, fence| Event {
            at: UnixMs(1),
            id: id(bucket),
            event,
            fence,
            actor: String::new(),
            due: None,
            cause: String::new(),
        };
        let mut replay = Replay::new(false);
        for bucket in [0, 1] {
            replay.feed(&event(bucket, Submitted, None));
            replay.feed(&event(bucket, Claimed, Some(1)));
        }
        replay.trim(0);
        replay.feed(&event(0, Succeeded, Some(3)));
        assert_eq!(replay.findings(), []);
        replay.feed(&event(1, Succeeded, Some(3)));
        assert_eq!(replay.findings()[0].kind, Kind::DoubleAcceptance);
        let report = replay.finish(false);
        assert_eq!((report.events, report.tasks, report.ended, report.unfinished), (6, 3, 2, 0));
    }
}
