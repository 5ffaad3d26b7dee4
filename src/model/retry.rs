//! When a failed task is tried again.

use super::field::{FieldError, Reason, shown};
use super::slice::{duration_text, parse_duration_ms};
use crate::limits;
use std::fmt;
use std::str::FromStr;

/// How the wait grows from one failure to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Growth {
    /// Always the base.
    Fixed,
    /// The base times the number of failures.
    Linear,
    /// The base times a factor for each failure after the first; in hundredths.
    Exponential {
        /// Hundredths, 100 to 10,000.
        factor_percent: u16,
    },
}

/// A retry policy: how often, after how long.
///
/// The wait after failure n is `min(cap, base × f(n))`, of which a share of up to `jitter_percent`
/// is taken away by chance, so that tasks which failed together do not return together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Retry {
    /// Tries after the first one; 0 to 254.
    pub retries: u8,
    /// How the wait grows.
    pub growth: Growth,
    /// The first wait.
    pub base_ms: u32,
    /// The longest wait.
    pub cap_ms: u32,
    /// Share of the wait that chance may take away, 0 to 100.
    pub jitter_percent: u8,
}

impl Default for Retry {
    /// Two retries; 5 s, then 25 s, at most an hour; a fifth by chance.
    fn default() -> Self {
        Self {
            retries: 2,
            growth: Growth::Exponential { factor_percent: 500 },
            base_ms: 5_000,
            cap_ms: 3_600_000,
            jitter_percent: 20,
        }
    }
}

impl Retry {
    /// The longest wait after the `failures`-th failure (from 1), without chance.
    ///
    /// Total for all inputs: it grows up to the cap and stays there.
    ///
    /// ```
    /// use minutehand::model::Retry;
    /// let retry: Retry = "exponential:1s:x2:10m".parse().unwrap();
    /// assert_eq!([1, 2, 10, 11, 1_000].map(|n| retry.wait_ms(n)), [1_000, 2_000, 512_000, 600_000, 600_000]);
    /// ```
    pub fn wait_ms(&self, failures: u32) -> i64 {
        let (n, base) = (f64::from(failures.max(1)), f64::from(self.base_ms));
        let wait = match self.growth {
            Growth::Fixed => base,
            Growth::Linear => base * n,
            Growth::Exponential { factor_percent } => {
                base * (f64::from(factor_percent) / 100.0).powf(n - 1.0)
            }
        };
        // f64::min takes the cap for an infinite wait; 0 × ∞ is not a number and means the base was 0.
        if wait.is_nan() { 0 } else { wait.min(f64::from(self.cap_ms)) as i64 }
    }

    /// The wait with chance applied: `chance` in 0..1 takes away up to the jitter's share.
    pub fn wait_jittered_ms(&self, failures: u32, chance: f64) -> i64 {
        let wait = self.wait_ms(failures) as f64;
        (wait - wait * f64::from(self.jitter_percent) / 100.0 * chance.clamp(0.0, 1.0)).floor() as i64
    }

    /// The same with another number of retries.
    pub fn with_retries(self, retries: u32) -> Result<Self, FieldError> {
        match u8::try_from(retries) {
            Ok(retries) if u32::from(retries) <= limits::RETRIES_MAX => Ok(Self { retries, ..self }),
            _ => {
                let detail = format!("{retries} is over the limit of {}", limits::RETRIES_MAX);
                Err(FieldError::new("retries", Reason::OutOfRange, detail))
            }
        }
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (base, cap) = (duration_text(self.base_ms.into()), duration_text(self.cap_ms.into()));
        match self.growth {
            Growth::Fixed => write!(f, "fixed:{base}"),
            Growth::Linear => write!(f, "linear:{base}:{cap}"),
            Growth::Exponential { factor_percent } => {
                write!(f, "exponential:{base}:x{}:{cap}", f64::from(factor_percent) / 100.0)
            }
        }
    }
}

impl FromStr for Retry {
    type Err = FieldError;

    /// Reads `fixed:200ms`, `linear:5s[:CAP]`, `exponential:5s[:xFACTOR[:CAP]]`. Retries stay at the default.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = |why: &str| {
            let detail =
                format!("{} {why}; write fixed:200ms, linear:5s:10m or exponential:5s:x5:1h", shown(text));
            FieldError::new("backoff", Reason::InvalidType, detail)
        };
        let wait = |part: &str| -> Result<u32, FieldError> {
            let ms = parse_duration_ms("backoff", part)?;
            u32::try_from(ms).ok().filter(|ms| i64::from(*ms) <= limits::BACKOFF_MAX_MS).ok_or_else(|| {
                FieldError::new("backoff", Reason::OutOfRange, format!("{} is over 7 days", shown(part)))
            })
        };
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default();
        let base_ms = wait(parts.next().ok_or_else(|| wrong("has no wait"))?)?;
        let default = Self::default();
        let mut cap_ms = None;
        let growth = match kind {
            "fixed" => Growth::Fixed,
            "linear" => Growth::Linear,
            "exponential" => {
                let mut factor_percent = 500;
                if let Some(part) = parts.next() {
                    let number = part.strip_prefix('x').ok_or_else(|| wrong("has a factor without x"))?;
                    let number: f64 = number.parse().map_err(|_| wrong("has no number as factor"))?;
                    if !(1.0..=100.0).contains(&number) {
                        let detail = format!("factor {} must lie between 1 and 100", shown(part));
                        return Err(FieldError::new("backoff", Reason::OutOfRange, detail));
                    }
                    factor_percent = (number * 100.0).round() as u16;
                }
                Growth::Exponential { factor_percent }
            }
            _ => return Err(wrong("is of an unknown kind")),
        };
        if growth != Growth::Fixed {
            cap_ms = parts.next().map(wait).transpose()?;
        }
        if parts.next().is_some() {
            return Err(wrong("has too many parts"));
        }
        let cap_ms = cap_ms.unwrap_or(default.cap_ms.max(base_ms));
        if cap_ms < base_ms {
            let detail = format!("{} has a cap below its base", shown(text));
            return Err(FieldError::new("backoff", Reason::OutOfRange, detail));
        }
        Ok(Self { growth, base_ms, cap_ms, ..default })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Retry, &'static str> {
        text.parse::<Retry>().map_err(|error| error.reason.code())
    }

    #[test]
    fn doubling_stops_at_its_cap_up_to_a_thousand_failures() {
        let retry = read("exponential:1s:x2:10m").unwrap();
        for n in 1..=1_000u32 {
            let expected = if n <= 10 { 1_000 << (n - 1) } else { 600_000 };
            assert_eq!(retry.wait_ms(n), expected, "failure {n}");
            let waited = retry.wait_jittered_ms(n, 0.999);
            assert!(waited >= expected / 2 && waited <= expected);
        }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let retry = read("exponential:5s").unwrap();
        assert_eq!(
            [1, 2, 3, 4, 5, 9].map(|n| retry.wait_ms(n)),
            [5_000, 25_000, 125_000, 625_000, 3_125_000, 3_600_000]
        );
        assert_eq!(retry, Retry::default());
        assert_eq!(
            read("linear:5s:12s").map(|r| [1, 2, 3, 9].map(|n| r.wait_ms(n))),
            Ok([5_000, 10_000, 12_000, 12_000])
        );
        assert_eq!(read("fixed:200ms").map(|r| r.wait_ms(77)), Ok(200));
        assert_eq!(read("fixed:0ms").map(|r| r.wait_ms(1_000)), Ok(0));
        assert_eq!(read("fixed:2h").map(|r| r.wait_ms(1)), Ok(7_200_000));
    }

    #[test]
    fn bad_policies_are_refused() {
        for (text, code) in [
            ("", "invalid_type"),
            ("often", "invalid_type"),
            ("fixed:5", "invalid_type"),
            ("fixed:5s:x2", "invalid_type"),
            ("exponential:5s:2", "invalid_type"),
            ("exponential:1s:x0", "out_of_range"),
            ("exponential:1s:x-1", "out_of_range"),
            ("exponential:1s:xNaN", "out_of_range"),
            ("exponential:1s:x1e308", "out_of_range"),
            ("exponential:10s:x2:1s", "out_of_range"),
            ("fixed:8d", "out_of_range"),
            ("fixed:-1s", "out_of_range"),
        ] {
            assert_eq!(read(text), Err(code), "{text}");
        }
    }

    proptest! {
        #[test]
        fn waits_never_shrink_and_stay_in_bounds(base in 1u32..100_000, factor in 100u16..=10_000, n in 1u32..1_000) {
            let growth = Growth::Exponential { factor_percent: factor };
            let retry = Retry { retries: 9, growth, base_ms: base, cap_ms: 600_000, jitter_percent: 50 };
            let (this, next) = (retry.wait_ms(n), retry.wait_ms(n + 1));
            prop_assert!(this >= i64::from(base) && this <= next && next <= 600_000);
            prop_assert_eq!(retry.to_string().parse::<Retry>().unwrap().wait_ms(n), this);
        }
    }
}
