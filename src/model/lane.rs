//! Lanes: the unit that is claimed fairly, held and limited.

use super::digits;
use super::field::{FieldError, Reason, shown};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// How urgent a task is: P0 most, P5 least. P0 and P1 ripen first and run in the urgent pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub enum Priority {
    /// Most urgent.
    P0,
    /// Urgent.
    P1,
    /// Above normal.
    P2,
    /// Normal; what a task has that names none.
    #[default]
    P3,
    /// Below normal.
    P4,
    /// Least urgent.
    P5,
}

impl Priority {
    /// All, most urgent first.
    pub const ALL: [Self; 6] = [Self::P0, Self::P1, Self::P2, Self::P3, Self::P4, Self::P5];
    /// Shares of a claim when every priority has a backlog, in percent of their sum.
    pub const WEIGHTS: [u32; 6] = [40, 25, 15, 10, 6, 4];

    /// 0 to 5.
    pub const fn level(self) -> u8 {
        self as u8
    }

    /// The priority of a level, if it is one.
    pub fn from_level(level: u8) -> Option<Self> {
        Self::ALL.get(usize::from(level)).copied()
    }

    /// Whether tasks of it lie in a due set of their own and run in the urgent pool.
    pub const fn is_urgent(self) -> bool {
        matches!(self, Self::P0 | Self::P1)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{}", self.level())
    }
}

impl FromStr for Priority {
    type Err = FieldError;

    /// Reads `P0`, `p0` or `0`.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let level = text.trim().trim_start_matches(['P', 'p']).parse::<u8>().ok();
        level.and_then(Self::from_level).ok_or_else(|| {
            FieldError::new("priority", Reason::OutOfRange, format!("{} is none of P0 to P5", shown(text)))
        })
    }
}

/// A checked queue name: 1 to 128 of `a-z A-Z 0-9 . _ - : / @ +`, not beginning with `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, FieldError> {
        check_name("queue", name, limits::QUEUE_MAX_BYTES)?;
        Ok(Self(name.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A checked name of a plan: of the same letters as a queue's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanName(Arc<str>);

impl PlanName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, FieldError> {
        check_name("plan", name, limits::PLAN_MAX_BYTES)?;
        Ok(Self(name.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlanName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for PlanName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Checks a queue, label or plan name.
pub fn check_name(field: &'static str, name: &str, max_bytes: usize) -> Result<(), FieldError> {
    if name.len() > max_bytes {
        let detail = format!("{} has {} bytes; at most {max_bytes} are allowed", shown(name), name.len());
        return Err(FieldError::new(field, Reason::TooLong, detail));
    }
    if name.is_empty() {
        return Err(FieldError::new(field, Reason::BadName, "must not be empty"));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-:/@+=".contains(&b);
    if name.starts_with('-') || !name.bytes().all(fits) {
        let detail = format!(
            "{} may only have letters, digits and . _ - : / @ + =, and not begin with -",
            shown(name)
        );
        return Err(FieldError::new(field, Reason::BadName, detail));
    }
    Ok(())
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl FromStr for QueueName {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        Self::new(text)
    }
}

impl Serialize for QueueName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Labels that an executor must have (`gpu`, `zone=a`), sorted, without doubles.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Labels(Vec<String>);

impl Labels {
    /// Checks and sorts labels.
    pub fn new<T: AsRef<str>>(labels: impl IntoIterator<Item = T>) -> Result<Self, FieldError> {
        let mut out: Vec<String> = labels.into_iter().map(|label| label.as_ref().to_owned()).collect();
        for label in &out {
            check_name("labels", label, limits::LABEL_MAX_BYTES)?;
        }
        out.sort_unstable();
        out.dedup();
        if out.len() > limits::LABELS_MAX {
            let detail = format!("{} labels; at most {} are allowed", out.len(), limits::LABELS_MAX);
            return Err(FieldError::new("labels", Reason::TooMany, detail));
        }
        Ok(Self(out))
    }

    /// The labels, sorted.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    /// These and one more.
    pub fn with(&self, label: &str) -> Result<Self, FieldError> {
        Self::new(self.0.iter().map(String::as_str).chain([label]))
    }

    /// Whether a task with these labels may run where `offered` holds.
    pub fn satisfied_by(&self, offered: &Self) -> bool {
        self.0.iter().all(|label| offered.0.binary_search(label).is_ok())
    }
}

/// What a lane code stands for, but for priority and tier: a queue and the labels asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneGroup {
    /// The queue.
    pub queue: QueueName,
    /// Labels that an executor must have.
    pub labels: Labels,
}

impl LaneGroup {
    /// The group of a queue without labels.
    pub fn of(queue: QueueName) -> Self {
        Self { queue, labels: Labels::default() }
    }

    /// Text under which the namespace keeps the group's code: `queue[|label,label]`.
    pub fn to_text(&self) -> String {
        match self.labels.as_slice() {
            [] => self.queue.to_string(),
            labels => format!("{}|{}", self.queue, labels.join(",")),
        }
    }

    /// Reads what [`Self::to_text`] wrote.
    pub fn from_text(text: &str) -> Result<Self, FieldError> {
        let (queue, labels) = text.split_once('|').unwrap_or((text, ""));
        let labels = Labels::new(labels.split(',').filter(|label| !label.is_empty()))?;
        Ok(Self { queue: QueueName::new(queue)?, labels })
    }
}

/// 0 for fresh tasks, 1 to 6 by how often a task has failed (6 and more share one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tier(u8);

impl Tier {
    /// The tier of tasks that have not failed.
    pub const FRESH: Self = Self(0);

    /// The tier after so many failures.
    pub fn after(failures: u32) -> Self {
        Self(failures.min(6) as u8)
    }

    /// 0 to 6.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// A lane's short code: three digits for the group, one for priority and tier.
///
/// The group part is given out once per namespace and never reused, so a script needs no table to
/// find the retry lane or the other priority of a task: it changes the last digit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneCode([u8; Self::LEN]);

impl LaneCode {
    /// Characters in a code.
    pub const LEN: usize = 4;

    /// The code of a group's number, a priority and a tier.
    pub fn new(group: u32, priority: Priority, tier: Tier) -> Self {
        let mut text = [0; Self::LEN];
        let low = (u32::from(priority.level()) << 3) | u32::from(tier.0);
        digits::write(&mut text, u128::from((group << 6) | low));
        Self(text)
    }

    /// Reads four characters.
    pub fn from_bytes(text: &[u8]) -> Option<Self> {
        let text: [u8; Self::LEN] = text.try_into().ok()?;
        let low = digits::read(&text)? & 63;
        (low >> 3 <= 5 && low & 7 <= 6).then_some(Self(text))
    }

    fn value(self) -> u32 {
        digits::read(&self.0).unwrap_or(0) as u32
    }

    /// The number of the group.
    pub fn group(self) -> u32 {
        self.value() >> 6
    }

    /// The priority.
    pub fn priority(self) -> Priority {
        Priority::from_level(((self.value() >> 3) & 7) as u8).unwrap_or_default()
    }

    /// The tier.
    pub fn tier(self) -> Tier {
        Tier((self.value() & 7) as u8)
    }

    /// The same group and tier at another priority.
    pub fn at_priority(self, priority: Priority) -> Self {
        Self::new(self.group(), priority, self.tier())
    }

    /// The code's bytes, as Redis has them.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The first three digits: the group as scripts know it.
    pub fn group_text(&self) -> &[u8] {
        &self.0[..3]
    }

    /// The code's text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }
}

impl fmt::Debug for LaneCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.group(), self.priority(), self.tier().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_are_read_back(group in 0u32..limits::LANE_GROUPS_MAX, level in 0u8..6, failures in 0u32..300) {
            let priority = Priority::from_level(level).unwrap();
            let code = LaneCode::new(group, priority, Tier::after(failures));
            prop_assert_eq!(LaneCode::from_bytes(code.as_bytes()), Some(code));
            prop_assert_eq!((code.group(), code.priority()), (group, priority));
            prop_assert_eq!(u32::from(code.tier().number()), failures.min(6));
            let other = code.at_priority(Priority::P5);
            prop_assert_eq!((other.group_text(), other.tier()), (code.group_text(), code.tier()));
        }
    }

    #[test]
    fn names_are_checked() {
        for good in ["push.sms", "a", "mail:eu/west@1", &"q".repeat(128)] {
            assert!(QueueName::new(good).is_ok(), "{good}");
        }
        for (bad, code) in [
            ("", "bad_name"),
            ("a b", "bad_name"),
            ("-x", "bad_name"),
            ("é", "bad_name"),
            ("a\0", "bad_name"),
        ] {
            assert_eq!(QueueName::new(bad).unwrap_err().reason.code(), code);
        }
        assert_eq!(QueueName::new(&"q".repeat(129)).unwrap_err().reason.code(), "too_long");
    }

    #[test]
    fn groups_are_read_back() {
        let group = LaneGroup {
            queue: QueueName::new("video").unwrap(),
            labels: Labels::new(["zone=a", "gpu", "gpu"]).unwrap(),
        };
        assert_eq!(group.to_text(), "video|gpu,zone=a");
        assert_eq!(LaneGroup::from_text(&group.to_text()).unwrap(), group);
        let offered = Labels::new(["gpu", "zone=a", "fast"]).unwrap();
        assert!(group.labels.satisfied_by(&offered) && !offered.satisfied_by(&group.labels));
    }

    #[test]
    fn priorities_are_read_and_refused() {
        assert_eq!("p0".parse::<Priority>().unwrap(), Priority::P0);
        for wrong in ["P6", "-1", "", "high", "P-0", "256"] {
            assert_eq!(wrong.parse::<Priority>().unwrap_err().reason, Reason::OutOfRange, "{wrong}");
        }
    }
}
