//! Limits of placement keys: what one recipient, tenant or order may have at a time.

use super::super::field::{FieldError, Reason, shown};
use super::super::{digits, slice::parse_duration_ms};
use super::Rate;
use crate::limits;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What becomes of a task while another of its placement key is pending and was never handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collapse {
    /// It takes the other's place, which is cancelled.
    Replace,
    /// It is not made; the other one's id is answered.
    Keep,
}

impl FromStr for Collapse {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        match text {
            "replace" => Ok(Self::Replace),
            "keep" => Ok(Self::Keep),
            _ => {
                let detail = format!("{} is neither replace nor keep", shown(text));
                Err(FieldError::new("placement_collapse", Reason::InvalidType, detail))
            }
        }
    }
}

/// Limits of each placement key of a queue. Tasks with other labels, and tasks without a placement key, are apart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementSettings {
    /// Tasks of a key that run at the same time: claimed, offered or started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// One after the other, in due order: the next one only when the one before has ended for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// Tasks of a key handed out in any stretch of this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Tasks of a key handed out in any 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_day: Option<u32>,
    /// What becomes of a further task of a key while one is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<Collapse>,
}

/// Reads the rate of a placement key: `3/h`, `1/5s`.
pub fn placement_rate(text: &str) -> Result<Rate, FieldError> {
    let wrong = || {
        let detail = format!("{} is no rate; write 3/h, 1/5s or 10/m", shown(text));
        FieldError::new("placement_rate", Reason::InvalidType, detail)
    };
    let (count, per) = text.split_once('/').ok_or_else(wrong)?;
    let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
    let per_ms = parse_duration_ms("placement_rate", &per).map_err(|_| wrong())?;
    Ok(Rate { count: count.parse().map_err(|_| wrong())?, per_ms, burst: None })
}

impl PlacementSettings {
    /// Checks every part.
    pub fn check(&self) -> Result<(), FieldError> {
        let within = |field, value: Option<u32>, most: u32| match value {
            Some(value) if !(1..=most).contains(&value) => {
                let detail = format!("{value} must lie between 1 and {most}");
                Err(FieldError::new(field, Reason::OutOfRange, detail))
            }
            _ => Ok(()),
        };
        within("placement_running", self.running, limits::PLACEMENT_RUNNING_MAX)?;
        within("placement_rate", self.rate.map(|rate| rate.count), limits::PLACEMENT_LOG_MAX)?;
        within("placement_day", self.per_day, limits::PLACEMENT_LOG_MAX)?;
        if let Some(rate) = self.rate {
            if !(1..=limits::RATE_MAX_MS).contains(&rate.per_ms) {
                let detail = format!("{} ms must lie between 1 ms and 24 h", rate.per_ms);
                return Err(FieldError::new("placement_rate", Reason::OutOfRange, detail));
            }
            if rate.burst.is_some() {
                let detail = "has no burst: all of it may go at once";
                return Err(FieldError::new("placement_rate", Reason::Unknown, detail));
            }
        }
        if self.ordered && self.running.is_some_and(|most| most > 1) {
            let detail = "tasks that go one after the other never run together; leave it out";
            return Err(FieldError::new("placement_running", Reason::OutOfRange, detail));
        }
        Ok(())
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The rule as claims read it, for a queue with labels; `lua/lib/turn.lua` has its places.
    pub fn rule(&self, group: u32) -> String {
        let mut code = [0; 3];
        digits::write(&mut code, u128::from(group));
        let code: String = code.map(char::from).into_iter().collect();
        let window = |count: Option<u32>, ms: i64| format!("{:03}{ms:08}", count.unwrap_or(0));
        format!(
            "{code}{}{}{:02}{}{}",
            u8::from(self.ordered),
            u8::from(self.collapse.is_some()),
            self.running.unwrap_or(0),
            window(self.rate.map(|rate| rate.count), self.rate.map_or(0, |rate| rate.per_ms)),
            window(self.per_day, 86_400_000),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_their_places() {
        let mut own = PlacementSettings { running: Some(3), ..PlacementSettings::default() };
        assert_eq!(own.rule(0), "---00030000000000000086400000");
        own.rate = Some(placement_rate("3/h").unwrap());
        (own.per_day, own.collapse, own.ordered, own.running) = (Some(5), Some(Collapse::Keep), true, None);
        assert_eq!(own.rule(64), "-0-11000030360000000586400000");
        assert_eq!(own.rule(64).len(), 29);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rate =
            |text: &str| placement_rate(text).map(|rate| (rate.count, rate.per_ms)).map_err(|e| e.field);
        assert_eq!(
            (rate("3/h"), rate("1/5s"), rate("10/m")),
            (Ok((3, 3_600_000)), Ok((1, 5_000)), Ok((10, 60_000)))
        );
        for wrong in ["", "3", "x/h", "3/x", "-1/s", "1.5/s"] {
            assert_eq!(rate(wrong), Err("placement_rate"), "{wrong}");
        }
        let field = |own: PlacementSettings| own.check().map_err(|error| (error.field, error.reason.code()));
        let base = PlacementSettings::default;
        assert_eq!(field(base()), Ok(()));
        assert_eq!(
            field(PlacementSettings { running: Some(0), ..base() }),
            Err(("placement_running", "out_of_range"))
        );
        assert_eq!(
            field(PlacementSettings { running: Some(65), ..base() }),
            Err(("placement_running", "out_of_range"))
        );
        assert_eq!(
            field(PlacementSettings { per_day: Some(101), ..base() }),
            Err(("placement_day", "out_of_range"))
        );
        let rate = |text: &str| Some(placement_rate(text).unwrap());
        assert_eq!(
            field(PlacementSettings { rate: rate("1/2d"), ..base() }),
            Err(("placement_rate", "out_of_range"))
        );
        assert_eq!(
            field(PlacementSettings { rate: rate("0/h"), ..base() }),
            Err(("placement_rate", "out_of_range"))
        );
        let both = PlacementSettings { ordered: true, running: Some(2), ..base() };
        assert_eq!(field(both), Err(("placement_running", "out_of_range")));
        assert_eq!("x".parse::<Collapse>().unwrap_err().field, "placement_collapse");
    }
}
