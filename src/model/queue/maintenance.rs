//! Times at which a queue is held, every day or on some days of the week.

use super::super::field::{FieldError, Reason, shown};
use super::super::slice::UnixMs;
use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A time of the day at which a queue is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Maintenance {
    /// Days on which it begins, Monday first.
    days: [bool; 7],
    /// Minute of the day at which it begins.
    from: u16,
    /// Minute of the day at which it ends; where that is not after `from`, the next day's.
    to: u16,
    /// Time zone by its IANA name.
    zone: String,
}

impl Maintenance {
    /// When it ends, if it is on at `now`. A local time that does not exist or exists twice is read as
    /// RFC 5545 has it: the offset before the gap, the first of the two.
    pub fn until(&self, now: UnixMs) -> Option<UnixMs> {
        let zone = jiff::tz::TimeZone::get(&self.zone).ok()?;
        let local = jiff::Timestamp::from_millisecond(now.0).ok()?.to_zoned(zone.clone());
        let at = |date: jiff::civil::Date, minute: u16| {
            let time = jiff::civil::time((minute / 60) as i8, (minute % 60) as i8, 0, 0);
            let zoned = date.to_datetime(time).to_zoned(zone.clone()).ok()?;
            Some(UnixMs(zoned.timestamp().as_millisecond()))
        };
        // It may have begun yesterday.
        [local.date().yesterday().ok()?, local.date()].into_iter().find_map(|date| {
            let day = date.weekday().to_monday_zero_offset() as usize;
            let end = if self.to > self.from { date } else { date.tomorrow().ok()? };
            let (from, to) = (at(date, self.from)?, at(end, self.to)?);
            (self.days[day] && from <= now && now < to).then_some(to)
        })
    }
}

impl FromStr for Maintenance {
    type Err = FieldError;

    /// Reads `02:00-04:00`, `sun 02:00-04:00`, `mon,wed 23:30-01:00 Europe/Berlin`. Without a zone: UTC.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = |why: &str| {
            let detail = format!("{} {why}; write for example sun 02:00-04:00 Europe/Berlin", shown(text));
            FieldError::new("maintenance", Reason::InvalidType, detail)
        };
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let mut days = [true; 7];
        if words.first().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())) {
            days = [false; 7];
            for name in words.remove(0).to_ascii_lowercase().split(',') {
                let day = DAYS.iter().position(|day| *day == name);
                days[day.ok_or_else(|| wrong("names no day of the week"))?] = true;
            }
        }
        let (span, zone) = match words[..] {
            [span] => (span, "UTC"),
            [span, zone] => (span, zone),
            _ => return Err(wrong("is no time")),
        };
        let minute = |text: &str| -> Option<u16> {
            let (hour, minute) = text.split_once(':')?;
            let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
            (hour < 24 && minute < 60).then_some(hour * 60 + minute)
        };
        let (from, to) = span.split_once('-').ok_or_else(|| wrong("has no begin and end"))?;
        let from = minute(from).ok_or_else(|| wrong("has no begin"))?;
        let to = minute(to).ok_or_else(|| wrong("has no end"))?;
        if zone.len() > limits::LABEL_MAX_BYTES || jiff::tz::TimeZone::get(zone).is_err() {
            return Err(wrong("names no time zone that is known"));
        }
        Ok(Self { days, from, to, zone: zone.to_owned() })
    }
}

impl fmt::Display for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days != [true; 7] {
            let days: Vec<&str> =
                DAYS.iter().zip(self.days).filter(|(_, on)| *on).map(|(day, _)| *day).collect();
            write!(f, "{} ", days.join(","))?;
        }
        let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        write!(f, "{}-{} {}", clock(self.from), clock(self.to), self.zone)
    }
}

impl TryFrom<String> for Maintenance {
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
        text.parse()
    }
}

impl From<Maintenance> for String {
    fn from(window: Maintenance) -> Self {
        window.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> UnixMs {
        UnixMs::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn windows_begin_and_end_where_the_zone_says() {
        let berlin: Maintenance = "sat,sun 23:30-01:00 Europe/Berlin".parse().unwrap();
        assert_eq!(berlin.to_string(), "sat,sun 23:30-01:00 Europe/Berlin");
        // 2026-12-05 is a Saturday.
        assert_eq!(berlin.until(at("2026-12-05T23:29:59+01:00")), None);
        assert_eq!(berlin.until(at("2026-12-05T23:30:00+01:00")), Some(at("2026-12-06T01:00:00+01:00")));
        assert_eq!(berlin.until(at("2026-12-06T00:59:59+01:00")), Some(at("2026-12-06T01:00:00+01:00")));
        assert_eq!(berlin.until(at("2026-12-06T01:00:00+01:00")), None);
        assert_eq!(berlin.until(at("2026-12-04T23:45:00+01:00")), None, "not on a Friday");
        // The clock goes from 02:00 to 03:00 on 2026-03-29: the window is an hour shorter.
        let night: Maintenance = "01:00-04:00 Europe/Berlin".parse().unwrap();
        assert_eq!(night.until(at("2026-03-29T01:30:00+01:00")), Some(at("2026-03-29T04:00:00+02:00")));
        let daily: Maintenance = "02:00-04:00".parse().unwrap();
        assert_eq!(daily.until(at("2026-03-29T03:00:00Z")), Some(at("2026-03-29T04:00:00Z")));
        for wrong in
            ["", "02:00", "24:00-01:00", "x 01:00-02:00", "01:00-02:00 Mars/Base", "01:00-02:00 UTC more"]
        {
            assert!(wrong.parse::<Maintenance>().is_err(), "{wrong}");
        }
    }
}
