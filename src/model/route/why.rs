//! Why nobody takes a task, in words.

use crate::model::{Labels, LaneGroup};

/// An executor, as far as it matters whom it can serve.
#[derive(Debug, Clone, Copy)]
pub struct Offered<'a> {
    /// Queues it serves; `*` is every queue.
    pub queues: &'a [String],
    /// Labels it has.
    pub labels: &'a Labels,
    /// Whether it takes nothing new.
    pub draining: bool,
}

impl Offered<'_> {
    fn serves_queue(&self, group: &LaneGroup) -> bool {
        self.queues.iter().any(|queue| queue == group.queue.as_str() || queue == "*")
    }

    /// Whether it may take tasks of the queue with these labels.
    pub fn serves(&self, group: &LaneGroup) -> bool {
        !self.draining && self.serves_queue(group) && self.fits(group)
    }

    fn fits(&self, group: &LaneGroup) -> bool {
        group.labels.satisfied_by(self.labels) && self.is_for(group)
    }

    /// Labels that begin with `@` are exclusive: who has one takes only tasks that ask for one of them.
    fn is_for(&self, group: &LaneGroup) -> bool {
        let mut exclusive = self.labels.as_slice().iter().filter(|label| label.starts_with('@')).peekable();
        exclusive.peek().is_none()
            || exclusive.any(|label| group.labels.as_slice().binary_search(label).is_ok())
    }
}

/// Why none of the executors serves a queue with labels; nothing when one does.
pub fn unserved(group: &LaneGroup, executors: &[Offered<'_>]) -> Option<String> {
    if executors.iter().any(|executor| executor.serves(group)) {
        return None;
    }
    let queue = &group.queue;
    // Those beside pods, which are there for tasks of their own, would have nothing to do with it in any case.
    let open: Vec<_> = executors.iter().filter(|executor| executor.is_for(group)).collect();
    let alive: Vec<_> = open.iter().filter(|executor| executor.serves_queue(group)).collect();
    if alive.is_empty() {
        return Some(match (open.len(), executors.len()) {
            (0, 0) => "no executor lives".to_owned(),
            (0 | 1, _) => format!("no executor serves queue {queue}"),
            (count, _) => format!("none of {count} executors serves queue {queue}"),
        });
    }
    if alive.iter().any(|executor| executor.fits(group)) {
        return Some(format!("all executors that serve queue {queue} drain"));
    }
    let nobody_has = |label: &&String| {
        let has = |executor: &&&Offered<'_>| executor.labels.as_slice().binary_search(label).is_ok();
        !alive.iter().any(has)
    };
    let missing: Vec<_> = group.labels.as_slice().iter().filter(nobody_has).map(String::as_str).collect();
    Some(match missing.as_slice() {
        [] => format!("no executor has all labels {}", group.labels.as_slice().join(", ")),
        [label] => format!("no executor has label {label}"),
        labels => format!("no executor has labels {}", labels.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_what_is_missing() {
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        /// A queue that is served, labels, and whether it drains.
        type Has = (&'static str, &'static [&'static str], bool);
        let table: [(&str, &[Has], Option<&str>); 13] = [
            ("a", &[("*", &["@own"], false)], Some("no executor serves queue a")),
            ("a|gpu", &[("*", &["@own"], false), ("a", &[], false)], Some("no executor has label gpu")),
            ("a", &[("b", &[], false), ("c", &[], false)], Some("none of 2 executors serves queue a")),
            ("a|@own", &[("*", &["@own", "@other"], false)], None),
            ("a|gpu", &[], Some("no executor lives")),
            ("a|gpu", &[("b", &["gpu"], false)], Some("no executor serves queue a")),
            ("a|gpu", &[("a", &[], false), ("b", &["gpu"], false)], Some("no executor has label gpu")),
            ("a|gpu", &[("*", &["gpu"], false)], None),
            ("a|gpu", &[("a", &["gpu"], true)], Some("all executors that serve queue a drain")),
            (
                "a|gpu",
                &[("a", &["gpu"], true), ("a", &[], false)],
                Some("all executors that serve queue a drain"),
            ),
            ("a|gpu,zone=a", &[("a", &["x"], false)], Some("no executor has labels gpu, zone=a")),
            (
                "a|gpu,zone=a",
                &[("a", &["gpu"], false), ("a", &["zone=a"], false)],
                Some("no executor has all labels gpu, zone=a"),
            ),
            ("a", &[("a", &[], false)], None),
        ];
        for (group, executors, expected) in table {
            let parts: Vec<_> = executors
                .iter()
                .map(|(queue, labels, draining)| (text(&[queue]), Labels::new(*labels).unwrap(), *draining))
                .collect();
            let offered: Vec<_> = parts
                .iter()
                .map(|(queues, labels, draining)| Offered { queues, labels, draining: *draining })
                .collect();
            let group = LaneGroup::from_text(group).unwrap();
            assert_eq!(unserved(&group, &offered).as_deref(), expected, "{group:?} {executors:?}");
        }
    }
}
