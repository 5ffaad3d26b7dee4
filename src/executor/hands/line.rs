//! Those of one class that wait for a slot: first come, first served within a queue, and the queues by turns.
//!
//! So a task waits for the runs of its own queue and for one of each other queue, not for all that another queue had
//! fetched before it.

use super::held::Arrived;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Which queue: where it lies in memory, since a queue that waits is held by its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct At(usize);

impl At {
    fn of(task: &Arrived) -> Self {
        Self(Arc::as_ptr(&task.route.queue).addr())
    }
}

/// The tasks that wait.
#[derive(Default)]
pub(super) struct Line {
    /// The queues of which something waits.
    queues: HashMap<At, VecDeque<Arrived>>,
    /// The same, whose turn is next first.
    turns: VecDeque<At>,
    /// What the last one to go had allocated, for the next one to come.
    spare: VecDeque<Arrived>,
}

impl Line {
    pub fn push(&mut self, task: Arrived) {
        let at = At::of(&task);
        let queue = self.queues.entry(at).or_insert_with(|| {
            self.turns.push_back(at);
            std::mem::take(&mut self.spare)
        });
        queue.push_back(task);
    }

    pub fn pop(&mut self) -> Option<Arrived> {
        let at = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&at)?;
        let task = queue.pop_front();
        if queue.is_empty() {
            self.spare = self.queues.remove(&at)?;
        } else {
            self.turns.push_back(at);
        }
        task
    }

    /// Takes out all of them.
    pub fn take(&mut self) -> impl Iterator<Item = Arrived> + use<> {
        let mut all = std::mem::take(self);
        std::iter::from_fn(move || all.pop())
    }
}
