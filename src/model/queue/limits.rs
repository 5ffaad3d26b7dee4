//! How much of a queue or downstream may be handed out: rate, running at once, retry windows, breaker.

use super::super::field::{FieldError, Reason, shown};
use super::super::slice::{UnixMs, parse_duration_ms, rfc3339};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Limits of a queue, or of a downstream that several queues share. What is not there is not limited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Tasks handed out in a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Tasks that run at the same time: claimed, offered or started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Retries handed out in a time, by how often a task has failed: the shortest window counts for tasks that
    /// failed once, the next for those that failed twice, the last for all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_windows: Vec<Rate>,
    /// When failures hold retries back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerSettings>,
    /// The breaker as someone has set it by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<Forced>,
}

/// At most so many in any stretch of time of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In how long.
    pub per_ms: i64,
    /// How many of them at the same time; a tenth if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Rate {
    /// How many may go at the same time.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.count.div_ceil(10)).clamp(1, self.count)
    }

    fn check(&self, field: &'static str) -> Result<(), FieldError> {
        let refuse = |detail: String| Err(FieldError::new(field, Reason::OutOfRange, detail));
        if !(1..=limits::RATE_MAX_ROWS).contains(&self.count) {
            return refuse(format!("{} must lie between 1 and {}", self.count, limits::RATE_MAX_ROWS));
        }
        if !(limits::RATE_MIN_MS..=limits::RATE_MAX_MS).contains(&self.per_ms) {
            return refuse(format!("{} ms must lie between 1 s and 24 h", self.per_ms));
        }
        match self.burst {
            Some(0) => refuse("a burst of 0 lets nothing go".to_owned()),
            Some(burst) if burst > self.count => {
                refuse(format!("a burst of {burst} is more than the {} of the limit itself", self.count))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Rate {
    type Err = FieldError;

    /// Reads `100/s`, `30/m`, `5/h`, `2/d` or `100/5s`.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = || {
            let detail = format!("{} is no rate; write 100/s, 30/m or 100/5s", shown(text));
            FieldError::new("rate", Reason::InvalidType, detail)
        };
        let (count, per) = text.split_once('/').ok_or_else(wrong)?;
        let count = count.parse().map_err(|_| wrong())?;
        let per_ms = match per {
            "s" | "m" | "h" | "d" => parse_duration_ms("rate", &format!("1{per}"))?,
            per => parse_duration_ms("rate", per).map_err(|_| wrong())?,
        };
        let rate = Self { count, per_ms, burst: None };
        rate.check("rate")?;
        Ok(rate)
    }
}

/// Reads a retry window, `5s=100`.
pub fn retry_window(text: &str) -> Result<Rate, FieldError> {
    let wrong = || {
        let detail = format!("{} is no window; write for example 5s=100", shown(text));
        FieldError::new("retry_window", Reason::InvalidType, detail)
    };
    let (per, count) = text.split_once('=').ok_or_else(wrong)?;
    let per_ms = parse_duration_ms("retry_window", per)?;
    let window = Rate { count: count.parse().map_err(|_| wrong())?, per_ms, burst: None };
    window.check("retry_window")?;
    Ok(window)
}

/// When failures open a breaker, and how it closes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakerSettings {
    /// Share of failures among the outcomes of the last `window_ms` that opens it, in percent.
    pub error_percent: u8,
    /// Outcomes that there must be before a share says something.
    pub min_outcomes: u32,
    /// How long it stays open before it is tried.
    pub open_ms: i64,
    /// Stretch of time whose outcomes count.
    #[serde(default = "window_default")]
    pub window_ms: i64,
    /// Tasks that try it.
    #[serde(default = "probes_default")]
    pub probes: u32,
    /// Whether fresh tasks are held as well; else only retries are.
    #[serde(default)]
    pub fresh: bool,
}

fn window_default() -> i64 {
    10_000
}

fn probes_default() -> u32 {
    5
}

impl BreakerSettings {
    fn check(&self) -> Result<(), FieldError> {
        let within = |name: &str, value: i64, least: i64, most: i64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let detail = format!("{name} of {value} must lie between {least} and {most}");
            Err(FieldError::new("breaker", Reason::OutOfRange, detail))
        };
        within("a share in percent", i64::from(self.error_percent), 1, 100)?;
        within("a number of outcomes", i64::from(self.min_outcomes), 1, i64::from(limits::RATE_MAX_ROWS))?;
        within("an open time in ms", self.open_ms, 100, limits::RATE_MAX_MS)?;
        within("a window in ms", self.window_ms, limits::RATE_MIN_MS, 3_600_000)?;
        within("a number of probes", i64::from(self.probes), 1, 1_000)
    }
}

impl FromStr for BreakerSettings {
    type Err = FieldError;

    /// Reads `50%:20:30s[:WINDOW][:fresh]`: the share, the least number of outcomes, the time it stays open, the
    /// stretch of time that counts (10s), and whether fresh tasks are held too.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = || {
            let detail = format!(
                "{} is no breaker; write for example 50%:20:30s or 50%:20:30s:10s:fresh",
                shown(text)
            );
            FieldError::new("breaker", Reason::InvalidType, detail)
        };
        let mut parts = text.split(':');
        let share = parts.next().and_then(|part| part.strip_suffix('%')).ok_or_else(wrong)?;
        let least = parts.next().ok_or_else(wrong)?;
        let open = parts.next().ok_or_else(wrong)?;
        let mut settings = Self {
            error_percent: share.parse().map_err(|_| wrong())?,
            min_outcomes: least.parse().map_err(|_| wrong())?,
            open_ms: parse_duration_ms("breaker", open)?,
            window_ms: window_default(),
            probes: probes_default(),
            fresh: false,
        };
        let rest: Vec<&str> = parts.collect();
        match rest[..] {
            [] => {}
            ["fresh"] => settings.fresh = true,
            [window] => settings.window_ms = parse_duration_ms("breaker", window)?,
            [window, "fresh"] => {
                settings.window_ms = parse_duration_ms("breaker", window)?;
                settings.fresh = true;
            }
            _ => return Err(wrong()),
        }
        settings.check()?;
        Ok(settings)
    }
}

/// A breaker that someone has opened or closed by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forced {
    /// Open: nothing that it may hold goes. Closed: failures do not open it.
    pub open: bool,
    /// Since when, by Redis's clock.
    #[serde(with = "rfc3339")]
    pub since: UnixMs,
    /// By whom.
    #[serde(default)]
    pub who: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl LimitSettings {
    /// Checks every part.
    pub fn check(&self) -> Result<(), FieldError> {
        self.rate.iter().try_for_each(|rate| rate.check("rate"))?;
        if self.running == Some(0) {
            let detail = "0 lets nothing run; pause the queue instead".to_owned();
            return Err(FieldError::new("running", Reason::OutOfRange, detail));
        }
        if self.retry_windows.len() > 6 {
            let detail = format!("{} windows; there are six tiers", self.retry_windows.len());
            return Err(FieldError::new("retry_window", Reason::TooMany, detail));
        }
        self.retry_windows.iter().try_for_each(|window| window.check("retry_window"))?;
        if self.retry_windows.windows(2).any(|pair| pair[0].per_ms >= pair[1].per_ms) {
            let detail = "windows must have different lengths, shortest first".to_owned();
            return Err(FieldError::new("retry_window", Reason::OutOfRange, detail));
        }
        self.breaker.iter().try_for_each(BreakerSettings::check)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether running tasks and outcomes are counted for it.
    pub fn counts(&self) -> bool {
        self.running.is_some() || self.breaker.is_some()
    }

    /// The tiers, 1 to 6, that the retry window at this place counts for.
    pub fn tiers_of(&self, window: usize) -> std::ops::RangeInclusive<u8> {
        let first = window as u8 + 1;
        if window + 1 == self.retry_windows.len() { first..=6 } else { first..=first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_windows_and_breakers_are_read_or_refused() {
        let rate = |text: &str| {
            text.parse::<Rate>().map(|rate| (rate.count, rate.per_ms)).map_err(|e| e.reason.code())
        };
        assert_eq!(rate("100/s"), Ok((100, 1_000)));
        assert_eq!(rate("2/d"), Ok((2, 86_400_000)));
        assert_eq!(rate("100/5s"), Ok((100, 5_000)));
        for wrong in ["", "100", "x/s", "-1/s", "1/x", "1.5/s"] {
            assert_eq!(rate(wrong), Err("invalid_type"), "{wrong}");
        }
        assert_eq!(
            (rate("0/s"), rate("1/100ms"), rate("1/2d")),
            (Err("out_of_range"), Err("out_of_range"), Err("out_of_range"))
        );
        assert_eq!(retry_window("5s=100").unwrap(), Rate { count: 100, per_ms: 5_000, burst: None });
        assert!(retry_window("100").is_err() && retry_window("5s=0").is_err());
        let breaker = |text: &str| text.parse::<BreakerSettings>().map_err(|e| e.reason.code());
        let plain = BreakerSettings {
            error_percent: 50,
            min_outcomes: 20,
            open_ms: 30_000,
            window_ms: 10_000,
            probes: 5,
            fresh: false,
        };
        assert_eq!(breaker("50%:20:30s"), Ok(plain));
        assert_eq!(breaker("50%:20:30s:fresh"), Ok(BreakerSettings { fresh: true, ..plain }));
        assert_eq!(
            breaker("50%:20:30s:1m:fresh"),
            Ok(BreakerSettings { fresh: true, window_ms: 60_000, ..plain })
        );
        for wrong in ["", "50", "50:20:30s", "50%:20", "x%:20:30s", "50%:20:30s:10s:y", "50%:20:30s:1:2:3"] {
            assert_eq!(breaker(wrong), Err("invalid_type"), "{wrong}");
        }
        for wrong in ["0%:20:30s", "101%:20:30s", "50%:0:30s", "50%:20:1ms"] {
            assert_eq!(breaker(wrong), Err("out_of_range"), "{wrong}");
        }
    }

    #[test]
    fn the_last_window_counts_for_all_further_failures() {
        let window = |per_ms| Rate { count: 5, per_ms, burst: None };
        let limits =
            LimitSettings { retry_windows: vec![window(5_000), window(25_000)], ..LimitSettings::default() };
        assert_eq!((limits.tiers_of(0), limits.tiers_of(1)), (1..=1, 2..=6));
        assert!(limits.check().is_ok() && !limits.is_empty() && !limits.counts());
        let twice = LimitSettings { retry_windows: vec![window(5_000); 2], ..LimitSettings::default() };
        assert_eq!(twice.check().unwrap_err().field, "retry_window");
        let burst = |burst| Rate { count: 25, per_ms: 1_000, burst };
        assert_eq!(
            [burst(None), burst(Some(25)), Rate { count: 1, ..burst(None) }].map(|rate| rate.burst()),
            [3, 25, 1]
        );
    }
}
