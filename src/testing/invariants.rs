//! What must hold whatever happens, judged from outside: by the events of every bucket and its counters.
//!
//! A [`Ledger`] follows the event streams and knows for each task where it stands. It says what it finds
//! wrong: a move that is not legal, a second outcome, a fence that did not grow, a grant before its time,
//! a counter that counts something else.

use crate::model::event::{Event, Move};
use crate::model::replay::Replay;
use crate::model::{Bucket, State, TaskId, UnixMs};
use crate::store::{Space, StoreError, events, read};
use std::collections::BTreeMap;

/// What is known of one task.
#[derive(Debug, Clone)]
pub struct Life {
    /// Where it stands.
    pub state: State,
    /// When it is due.
    pub due: UnixMs,
    /// Its last grant; the current one while it runs.
    pub fence: u32,
    /// Whether it was asked to stop while it ran.
    pub cancel_asked: bool,
    /// How often it was granted.
    pub grants: u32,
    /// Outcomes that ended it: one at most, and one more for each redrive.
    pub ends: u32,
    /// How often it was set back from the dead letters.
    pub redrives: u32,
    /// All its moves.
    pub events: Vec<Event>,
}

/// Follows a namespace from its birth.
#[derive(Debug, Default)]
pub struct Ledger {
    lives: BTreeMap<TaskId, Life>,
    replay: Replay,
    after: BTreeMap<u16, String>,
}

impl Ledger {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// All tasks.
    pub fn lives(&self) -> &BTreeMap<TaskId, Life> {
        &self.lives
    }

    /// One task.
    pub fn life(&self, id: TaskId) -> Option<&Life> {
        self.lives.get(&id)
    }

    /// Whether a grant is the current one of a running task.
    pub fn is_current(&self, id: TaskId, fence: u32) -> bool {
        self.lives.get(&id).is_some_and(|life| life.state == State::Running && life.fence == fence)
    }

    /// Tasks in a state.
    pub fn count(&self, state: State) -> usize {
        self.lives.values().filter(|life| life.state == state).count()
    }

    /// Reads what has happened since, and judges it. `Err` is what is wrong, with the task's history.
    pub async fn follow(&mut self, space: &Space) -> Result<Result<(), String>, StoreError> {
        for number in 0..space.spread().peak {
            let Some(bucket) = Bucket::new(number) else { continue };
            loop {
                let after = self.after.get(&number).map(String::as_str);
                let stretch = events::stretch(space, bucket, None, after).await?;
                if let Some(last) = stretch.last {
                    self.after.insert(number, last);
                }
                if stretch.unreadable > 0 {
                    return Ok(Err(format!("bucket {number} has events that cannot be read")));
                }
                for event in stretch.events {
                    if let Err(wrong) = self.take(event) {
                        return Ok(Err(wrong));
                    }
                }
                if !stretch.more {
                    break;
                }
            }
        }
        Ok(Ok(()))
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        self.replay.feed(&event);
        let id = event.id;
        let found =
            self.replay.findings().last().map(|finding| format!("{:?}: {}", finding.kind, finding.detail));
        let life = self.lives.entry(id).or_insert_with(|| Life {
            state: State::Pending,
            due: UnixMs(0),
            fence: 0,
            cancel_asked: false,
            grants: 0,
            ends: 0,
            redrives: 0,
            events: Vec::new(),
        });
        let early = event.event == Move::Claimed && event.at < life.due;
        let due = life.due;
        life.apply(&event);
        life.events.push(event);
        let wrong = match found {
            Some(found) => found,
            None if early => format!("claimed before {due}"),
            None if life.ends > life.redrives + 1 => "ended twice".to_owned(),
            None => return Ok(()),
        };
        Err(format!("{id}: {wrong}\n{}", life.story()))
    }

    /// Compares every counter of every bucket with what the events say.
    pub async fn agree(&self, space: &Space) -> Result<Result<(), String>, StoreError> {
        let mut expected: BTreeMap<(u16, State), i64> = BTreeMap::new();
        for (id, life) in &self.lives {
            *expected.entry((id.bucket().number(), life.state)).or_default() += 1;
        }
        for number in 0..space.spread().peak {
            let Some(bucket) = Bucket::new(number) else { continue };
            let counts = read::counts(space, bucket).await?;
            let of = |state| expected.get(&(number, state)).copied().unwrap_or(0);
            for state in State::ALL {
                if counts.count(state.name()) != of(state) {
                    let (counted, found) = (counts.count(state.name()), of(state));
                    return Ok(Err(format!(
                        "bucket {number} counts {counted} {state}; by its events it has {found}"
                    )));
                }
            }
            let all: i64 = State::ALL.into_iter().map(of).sum();
            if counts.count("submitted") != all {
                let counted = counts.count("submitted");
                return Ok(Err(format!(
                    "bucket {number} counts {counted} submitted; by its events it has {all}"
                )));
            }
        }
        Ok(Ok(()))
    }
}

impl Life {
    fn apply(&mut self, event: &Event) {
        let to = match event.event {
            Move::Submitted => Some(State::Pending),
            Move::Claimed => {
                self.grants += 1;
                self.fence = event.fence.unwrap_or(0);
                self.cancel_asked = false;
                Some(State::Running)
            }
            Move::CancelAsked => {
                self.cancel_asked = true;
                None
            }
            Move::Retried | Move::HandedBack | Move::Lost => Some(State::Pending),
            Move::Redriven => {
                self.redrives += 1;
                Some(State::Pending)
            }
            Move::Succeeded => Some(State::Succeeded),
            Move::Died => Some(State::Dead),
            Move::Cancelled => Some(State::Cancelled),
            Move::Expired => Some(State::Expired),
            Move::Skipped => Some(State::Skipped),
            Move::Deleted | Move::Repaired => Some(State::Deleted),
            Move::Offered | Move::Started | Move::Moved | Move::Edited | Move::SetAside => None,
        };
        if let (Move::Submitted | Move::Retried | Move::Moved | Move::Redriven, Some(due)) =
            (event.event, event.due)
        {
            self.due = due;
        }
        if let Some(to) = to {
            self.ends += u32::from((to.is_final() && to != State::Deleted) || to == State::Dead);
            self.state = to;
        }
    }

    /// All its moves, a line each.
    pub fn story(&self) -> String {
        let line = |event: &Event| {
            let fence = event.fence.map(|fence| format!(" under {fence}")).unwrap_or_default();
            format!("  {} {:?}{fence} by {:?} {}", event.at, event.event, event.actor, event.cause)
        };
        self.events.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
