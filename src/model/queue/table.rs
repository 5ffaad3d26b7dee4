//! The settings of all queues of a namespace, as read at one moment.

use super::super::lane::QueueName;
use super::{Pause, QueueSettings};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// What is set for the queues of a namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueTable {
    /// Grows with every change.
    pub epoch: u64,
    /// Queues for which something is set.
    pub queues: BTreeMap<QueueName, Arc<QueueSettings>>,
}

impl QueueTable {
    /// What is set for a queue; nothing where nothing is.
    pub fn of(&self, queue: &QueueName) -> &QueueSettings {
        static NOTHING: LazyLock<QueueSettings> = LazyLock::new(QueueSettings::default);
        self.queues.get(queue).map_or(&*NOTHING, |settings| settings)
    }

    /// Why a queue is paused, if it is.
    pub fn pause_of(&self, queue: &QueueName) -> Option<&Pause> {
        self.queues.get(queue)?.pause.as_ref()
    }

    /// The queues that are paused.
    pub fn paused(&self) -> impl Iterator<Item = (&QueueName, &Pause)> {
        self.queues.iter().filter_map(|(queue, settings)| Some((queue, settings.pause.as_ref()?)))
    }
}
