//! What an owner is told of a queue's new dead letters: numbers, reasons and a few names, never a list.

use super::id::TaskId;
use super::lane::QueueName;
use super::slice::UnixMs;
use crate::limits;
use serde::Serialize;
use std::collections::BTreeMap;

/// New dead letters of one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// What this is, for those who get several kinds of messages.
    pub kind: &'static str,
    /// Name of the installation's data.
    pub namespace: String,
    /// The queue.
    pub queue: QueueName,
    /// They died at this instant or later …
    #[serde(with = "super::slice::rfc3339")]
    pub from: UnixMs,
    /// … and before this one.
    #[serde(with = "super::slice::rfc3339")]
    pub to: UnixMs,
    /// How many.
    pub count: u64,
    /// Whether there may be more: counting ended at a bound.
    pub more: bool,
    /// How many by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Some of them, the oldest first.
    pub ids: Vec<TaskId>,
    /// The last error of the first of them.
    pub error: String,
}

impl Digest {
    /// A digest without letters.
    pub fn new(namespace: &str, queue: QueueName, from: UnixMs, to: UnixMs) -> Self {
        Self {
            kind: "minutehand.dead_letters",
            namespace: namespace.to_owned(),
            queue,
            from,
            to,
            count: 0,
            more: false,
            reasons: BTreeMap::new(),
            ids: Vec::new(),
            error: String::new(),
        }
    }

    /// Counts a letter.
    pub fn add(&mut self, id: TaskId, reason: &str, error: &str) {
        self.count += 1;
        // Reasons are words of ours; should they ever not be, they are bounded all the same.
        if self.reasons.len() < limits::DIGEST_REASONS_MAX || self.reasons.contains_key(reason) {
            *self.reasons.entry(reason.to_owned()).or_default() += 1;
        }
        if self.ids.len() < limits::DIGEST_IDS_MAX {
            self.ids.push(id);
        }
        if self.count == 1 {
            self.error = error.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Minute};

    #[test]
    fn a_digest_counts_all_and_names_a_few() {
        let id = |n| TaskId::new(Minute(29_408_521), Bucket::default(), n);
        let (from, to) = (UnixMs(1_764_511_260_000), UnixMs(1_764_511_560_000));
        let mut digest = Digest::new("mh", QueueName::new("push").unwrap(), from, to);
        for n in 0..1_000 {
            digest.add(id(n), if n % 4 == 0 { "fatal" } else { "handler_error" }, &format!("boom {n}"));
        }
        let value = serde_json::to_value(&digest).unwrap();
        assert_eq!(value["kind"], "minutehand.dead_letters");
        assert_eq!(
            (&value["queue"], &value["count"], &value["error"]),
            (&"push".into(), &1_000.into(), &"boom 0".into())
        );
        assert_eq!(value["from"], "2025-11-30T14:01:00.000Z");
        assert_eq!(value["reasons"], serde_json::json!({ "fatal": 250, "handler_error": 750 }));
        assert_eq!(digest.ids, (0..limits::DIGEST_IDS_MAX as u64).map(id).collect::<Vec<_>>());
    }
}
