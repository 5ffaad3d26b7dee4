//! The settings of all queues of a namespace, as read at one moment.

use super::super::lane::QueueName;
use super::super::slice::UnixMs;
use super::{DownstreamName, DownstreamSettings, LimitOwner, LimitSettings, Pause, QueueSettings, Switches};
use crate::model::subscription::{Subscription, SubscriptionName};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// What is set for the queues of a namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueTable {
    /// Grows with every change.
    pub epoch: u64,
    /// Queues for which something is set.
    pub queues: BTreeMap<QueueName, Arc<QueueSettings>>,
    /// Downstreams for which something is set.
    pub downstreams: BTreeMap<DownstreamName, Arc<DownstreamSettings>>,
    /// What is set for all.
    pub switches: Switches,
    /// Who wants to hear of ends of tasks.
    pub subscriptions: BTreeMap<SubscriptionName, Arc<Subscription>>,
}

/// What holds a whole queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold<'a> {
    /// Someone paused it.
    Paused(&'a Pause),
    /// It is one of its times of maintenance.
    Maintenance {
        /// When that ends.
        until: UnixMs,
    },
}

impl QueueTable {
    /// What is set for a queue; nothing where nothing is.
    pub fn of(&self, queue: &QueueName) -> &QueueSettings {
        static NOTHING: LazyLock<QueueSettings> = LazyLock::new(QueueSettings::default);
        self.queues.get(queue).map_or(&*NOTHING, |settings| settings)
    }

    /// Whether somebody wants to hear of the end of a task of this kind.
    pub fn announces(&self, queue: &str, plan: Option<&str>, key: Option<&[u8]>) -> bool {
        self.subscriptions.values().any(|wish| wish.wants_new(queue, plan, key))
    }

    /// What is set for a downstream; nothing where nothing is.
    pub fn of_downstream(&self, name: &DownstreamName) -> &DownstreamSettings {
        static NOTHING: LazyLock<DownstreamSettings> = LazyLock::new(DownstreamSettings::default);
        self.downstreams.get(name).map_or(&*NOTHING, |settings| settings)
    }

    /// What holds a queue at `now`, if something does.
    pub fn hold_of(&self, queue: &QueueName, now: UnixMs) -> Option<Hold<'_>> {
        let settings = self.queues.get(queue)?;
        if let Some(pause) = &settings.pause {
            return Some(Hold::Paused(pause));
        }
        let until = settings.maintenance.iter().find_map(|window| window.until(now))?;
        Some(Hold::Maintenance { until })
    }

    /// The limits that a queue's tasks keep to when they are claimed, with their owners.
    pub fn limits_of<'a>(&'a self, queue: &QueueName) -> Vec<(LimitOwner, &'a LimitSettings)> {
        let Some(settings) = self.queues.get(queue) else { return Vec::new() };
        let own = settings.limits.as_ref().map(|limits| (LimitOwner::Queue(queue.clone()), limits));
        let shared = settings.downstream.as_ref().and_then(|name| {
            let settings = self.downstreams.get(name)?;
            Some((LimitOwner::Downstream(name.clone()), &settings.limits))
        });
        own.into_iter().chain(shared).filter(|(_, limits)| !limits.is_empty()).collect()
    }
}
