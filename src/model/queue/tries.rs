//! Retries and time-outs that a queue's tasks get when their submitter says nothing else.

use super::super::field::{FieldError, Reason};
use super::super::retry::Retry;
use crate::limits;
use serde::{Deserialize, Serialize};

/// When a queue's tasks are tried again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TryDefaults {
    /// Tries after the first one, 0 to 254.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Wait before them, in the grammar of [`Retry`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
}

impl TryDefaults {
    /// The policy that follows, where `base` is what the installation says.
    pub fn over(&self, base: Retry) -> Result<Retry, FieldError> {
        let policy = match &self.backoff {
            Some(text) => text.parse::<Retry>()?.with_retries(u32::from(base.retries))?,
            None => base,
        };
        self.retries.map_or(Ok(policy), |retries| policy.with_retries(retries))
    }

    /// Checks both.
    pub fn check(&self) -> Result<(), FieldError> {
        self.over(Retry::default()).map(|_| ())
    }
}

/// Time-outs of a queue's tasks, in ms. One that is not there is the installation's; 0 means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeoutDefaults {
    /// From hand-out to start; never 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_ms: Option<i64>,
    /// Longest run of a handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_ms: Option<i64>,
    /// Total time-out, from the due time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<i64>,
    /// Latest start after the due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_within_ms: Option<i64>,
}

impl TimeoutDefaults {
    /// Checks each against its range.
    pub fn check(&self) -> Result<(), FieldError> {
        let within = |field, value: Option<i64>, least: i64, most: i64| match value {
            Some(ms) if !(least..=most).contains(&ms) => {
                let detail = format!("{ms} ms must lie between {least} and {most} ms");
                Err(FieldError::new(field, Reason::OutOfRange, detail))
            }
            _ => Ok(()),
        };
        within("dispatch_timeout", self.dispatch_ms, limits::LEASE_MIN_MS, limits::LEASE_MAX_MS)?;
        // Milliseconds of it lie in 32 bits.
        within("timeout", self.execution_ms, 0, i64::from(u32::MAX))?;
        within("expire_after", self.total_ms, 0, limits::DUE_AHEAD_MAX_MS)?;
        within("start_within", self.start_within_ms, 0, limits::DUE_AHEAD_MAX_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_says_what_it_wants_and_the_installation_the_rest() {
        let base = "linear:1s:9s".parse::<Retry>().unwrap().with_retries(7).unwrap();
        let of = |retries, backoff: Option<&str>| {
            TryDefaults { retries, backoff: backoff.map(str::to_owned) }.over(base).unwrap()
        };
        assert_eq!(of(None, None), base);
        assert_eq!(of(Some(1), None), base.with_retries(1).unwrap());
        let fixed = of(None, Some("fixed:200ms"));
        assert_eq!((fixed.retries, fixed.wait_ms(9)), (7, 200));
        assert!(TryDefaults { retries: None, backoff: Some("often".into()) }.check().is_err());
    }
}
