//! What holds queues back, and how that is said.

use crate::model::{PlanName, QueueName, QueueTable};
use crate::store::queue::{self, Freeze};
use crate::store::{Space, StoreError};
use serde::Serialize;
use std::sync::Arc;

/// What holds queues back at a moment.
#[derive(Debug, Clone, Default)]
pub struct Holds {
    /// What is frozen.
    pub freeze: Freeze,
    /// What is set for queues.
    pub queues: Arc<QueueTable>,
}

/// A queue of which nothing is claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct HeldQueue {
    /// The queue.
    pub queue: String,
    /// Why, since when, and by whom.
    pub why: String,
}

impl Holds {
    /// Reads them as they stand now.
    pub async fn read(space: &Space) -> Result<Self, StoreError> {
        Ok(Self { freeze: queue::frozen(space).await?, queues: queue::refresh(space).await? })
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.freeze.frozen.is_empty() && self.queues.queues.is_empty()
    }

    /// Whether everything is.
    pub fn all(&self) -> bool {
        self.freeze.all()
    }

    /// What holds a queue back: `queue push is paused since …`.
    pub fn of_queue(&self, queue: &QueueName) -> Option<String> {
        if let Some(frozen) = self.freeze.of_queue(queue) {
            let what = if self.freeze.all() { "everything".to_owned() } else { format!("queue {queue}") };
            return Some(sentence(&format!("{what} is frozen"), frozen.since, &frozen.who, &frozen.cause));
        }
        let pause = self.queues.pause_of(queue)?;
        Some(sentence(&format!("queue {queue} is paused"), pause.since, &pause.who, &pause.why))
    }

    /// What holds a plan back: `plan sale is frozen since …`.
    pub fn of_plan(&self, plan: &PlanName) -> Option<String> {
        let frozen = self.freeze.of_plan(plan.as_str())?;
        Some(sentence(&format!("plan {plan} is frozen"), frozen.since, &frozen.who, &frozen.cause))
    }

    /// The queues that are held by more than a freeze.
    pub fn list(&self) -> Vec<HeldQueue> {
        let held = self.queues.paused().map(|(queue, pause)| HeldQueue {
            queue: queue.to_string(),
            why: sentence(&format!("queue {queue} is paused"), pause.since, &pause.who, &pause.why),
        });
        held.collect()
    }
}

fn sentence(what: &str, since: crate::model::UnixMs, who: &str, why: &str) -> String {
    let by = if who.is_empty() { String::new() } else { format!(" by {who}") };
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    format!("{what} since {since}{by}{why}")
}
