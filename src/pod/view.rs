//! What a pod knows of the others, as plain data: who lives, who serves which queue.

use crate::model::queue::Routing;
use crate::model::route::why::Offered;
use crate::model::route::{BROADCAST, Policy};
use crate::model::{Labels, LaneGroup, PlanName, QueueTable, UnixMs};
use crate::store::member::{ExecutorRecord, PodRecord};
use crate::store::queue::Freeze;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One executor, as routing sees it.
#[derive(Debug, Clone)]
pub struct Executor {
    /// As it reported itself.
    pub record: ExecutorRecord,
    labels: Labels,
    averages: HashMap<String, f64>,
}

impl Executor {
    fn new(record: ExecutorRecord) -> Self {
        let labels = Labels::new(&record.labels).unwrap_or_default();
        let averages = record.averages.iter().cloned().collect();
        Self { record, labels, averages }
    }

    /// Whether it takes tasks of a queue with these labels.
    pub fn serves(&self, group: &LaneGroup) -> bool {
        let Self { record, labels, .. } = self;
        let offered = Offered { queues: &record.queues, labels, draining: record.draining };
        record.capacity + record.urgent_slots > 0 && offered.serves(group)
    }

    /// Its average run time of a queue's tasks in ms, if it ran some.
    pub fn average_ms(&self, queue: &str) -> Option<f64> {
        self.averages.get(queue).copied()
    }
}

/// Executors that serve the same queues with labels share a class: quotas are counted by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub usize);

/// What a pod knows of the others.
#[derive(Debug, Default)]
pub struct View {
    /// Ids of the live pods, sorted, this one among them.
    pub pods: Vec<String>,
    /// Live pods that claimed tasks lately, at least one.
    pub busy_pods: usize,
    /// Live executors, sorted by id.
    pub executors: Vec<Arc<Executor>>,
    /// Known queues with labels, by code.
    pub groups: HashMap<u32, (LaneGroup, Class)>,
    /// Executors (places in `executors`) of each class; class 0 has none.
    pub classes: Vec<Vec<usize>>,
    /// What is frozen.
    pub freeze: Freeze,
    /// The plans among it.
    pub frozen_plans: Arc<[PlanName]>,
    /// What is set for queues.
    pub queues: Arc<QueueTable>,
    /// Whether tasks may come that only exclusive executors take.
    pub exclusive_in_use: bool,
    /// Executors (places in `executors`) that spread broadcasts.
    pub spreaders: Vec<usize>,
    /// How queues are routed that have no way of their own.
    pub default_policy: Policy,
    /// How the others are, by code.
    policies: HashMap<u32, Policy>,
    /// Weights of queues that have their own, by code.
    pub own_weights: Vec<(u32, [u32; 6])>,
    /// Dispatch time-outs of queues that have their own, in ms, by code.
    pub own_dispatch: Arc<BTreeMap<u32, i64>>,
    /// Rules of placement keys, as claims read them.
    pub placed: Bytes,
    /// How long before its time each of the executors may be given a task, in ms; 0 where there is none.
    pub ahead_ms: i64,
}

impl View {
    /// Puts a view together.
    pub fn new(
        pods: &[PodRecord],
        executors: Vec<ExecutorRecord>,
        groups: Vec<(u32, LaneGroup)>,
        freeze: Freeze,
        queues: Arc<QueueTable>,
        now: UnixMs,
    ) -> Self {
        let mut names: Vec<String> =
            pods.iter().filter(|pod| !pod.draining).map(|pod| pod.id.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let mut executors: Vec<Arc<Executor>> =
            executors.into_iter().map(|record| Arc::new(Executor::new(record))).collect();
        executors.sort_by(|a, b| a.record.id.cmp(&b.record.id));
        let mut classes: Vec<Vec<usize>> = vec![Vec::new()];
        let mut known: BTreeMap<Vec<usize>, usize> = BTreeMap::from([(Vec::new(), 0)]);
        let mut by_group = HashMap::with_capacity(groups.len());
        let mut policies = HashMap::new();
        let mut own_weights = Vec::new();
        let mut placed: BTreeMap<u32, String> = BTreeMap::new();
        let mut own_dispatch = BTreeMap::new();
        for (code, group) in groups {
            // Queues that are frozen, paused or in maintenance are nobody's: their lanes stand aside until they may go on.
            let open = freeze.of_queue(&group.queue).is_none() && queues.hold_of(&group.queue, now).is_none();
            let serving: Vec<usize> = (0..if open { executors.len() } else { 0 })
                .filter(|at| executors[*at].serves(&group))
                .collect();
            let class = *known.entry(serving).or_insert_with_key(|serving| {
                classes.push(serving.clone());
                classes.len() - 1
            });
            policies.extend(
                queues.of(&group.queue).routing.as_ref().and_then(Routing::policy).map(|own| (code, own)),
            );
            let settings = queues.of(&group.queue);
            own_weights.extend(settings.weights.map(|own| (code, own.0)));
            own_dispatch
                .extend(settings.timeouts.as_ref().and_then(|own| own.dispatch_ms).map(|ms| (code, ms)));
            placed.extend(queues.of(&group.queue).placement.as_ref().map(|own| (code, own.rule(code))));
            by_group.insert(code, (group, Class(class)));
        }
        let busy_pods = pods.iter().filter(|pod| pod.busy).count().max(1);
        let ahead_ms = executors.iter().map(|executor| executor.record.ahead_ms).min().unwrap_or(0);
        let frozen_plans = freeze.plans().cloned().collect();
        let default_policy = Policy::default();
        let spreads = |at: &usize| {
            let Executor { record, labels, .. } = &*executors[*at];
            !record.draining && labels.as_slice().iter().any(|label| label == BROADCAST)
        };
        let exclusive_in_use = policies.values().any(|own| *own == Policy::Broadcast)
            || classes.iter().flatten().any(|at| executors[*at].record.is_exclusive());
        let spreaders = (0..executors.len()).filter(spreads).collect();
        Self {
            pods: names,
            busy_pods,
            executors,
            groups: by_group,
            classes,
            freeze,
            frozen_plans,
            queues,
            exclusive_in_use,
            spreaders,
            default_policy,
            policies,
            own_weights,
            placed: placed.into_values().collect::<String>().into(),
            own_dispatch: Arc::new(own_dispatch),
            ahead_ms,
        }
    }

    /// How a queue's tasks are routed.
    pub fn policy(&self, group: u32) -> Policy {
        self.policies.get(&group).copied().unwrap_or(self.default_policy)
    }

    /// Executors (places in `executors`) that serve a queue; nothing when its code is not known yet.
    pub fn serving(&self, group: u32) -> Option<&[usize]> {
        let (_, class) = self.groups.get(&group)?;
        Some(&self.classes[class.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::QueueName;

    fn executor(id: &str, queues: &[&str], labels: &[&str]) -> ExecutorRecord {
        let text = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        ExecutorRecord {
            id: id.into(),
            queues: text(queues),
            labels: text(labels),
            capacity: 1,
            ..ExecutorRecord::default()
        }
    }

    #[test]
    fn groups_served_by_the_same_executors_share_a_class() {
        let group = |text: &str| LaneGroup::from_text(text).unwrap();
        let groups =
            ["a", "b", "a|gpu", "c"].iter().zip(1..).map(|(text, code)| (code, group(text))).collect();
        let draining = ExecutorRecord { draining: true, ..executor("z", &["*"], &[]) };
        let executors = vec![executor("y", &["a", "b"], &[]), executor("x", &["*"], &["gpu"]), draining];
        let view = View::new(&[], executors, groups, Freeze::default(), Arc::default(), UnixMs(0));
        assert_eq!(view.serving(1), Some(&[0, 1][..]));
        assert_eq!(view.groups[&1].1, view.groups[&2].1);
        assert_eq!(view.serving(3), Some(&[0][..]), "labels count");
        assert_eq!(view.serving(4), Some(&[0][..]));
        assert_eq!(view.serving(9), None);
        assert_eq!(LaneGroup::of(QueueName::new("a").unwrap()), group("a"));
    }
}
