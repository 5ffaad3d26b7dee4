//! Reading due times: instants, local times in a zone, epoch numbers; and replaying an old plan.

use crate::model::field::shown;
use crate::model::{FieldError, Reason, UnixMs};
use crate::settings::nearest;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// How due times of an import are read.
#[derive(Debug, Clone)]
pub struct DueReader {
    zone: Option<TimeZone>,
    rebase: Option<Rebase>,
}

/// `--rebase T=now --speed S`: the plan's time T is now, and its time runs S times as fast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rebase {
    /// An instant of the plan …
    pub from: UnixMs,
    /// … that becomes this one.
    pub to: UnixMs,
    /// How many of the plan's seconds pass in one.
    pub speed: f64,
}

/// Finds a time zone by its IANA name, `UTC`, or a fixed offset such as `+02:00`.
pub fn find_zone(name: &str) -> Result<TimeZone, FieldError> {
    let known = jiff::tz::db();
    if name.starts_with(['+', '-']) {
        // Read as part of a time, which is how offsets are written.
        if let Ok(offset) = format!("1970-01-01T12:00:00{name}[{name}]").parse::<jiff::Zoned>() {
            return Ok(offset.time_zone().clone());
        }
    } else if let Ok(zone) = known.get(name) {
        return Ok(zone);
    }
    let names: Vec<String> = known.available().map(|name| name.to_string()).collect();
    let city = name.rsplit('/').next().unwrap_or(name);
    // The city alone is as good as the full name: "Berlin" for Europe/Berlin.
    let by_city =
        names.iter().find(|known| known.rsplit('/').next().is_some_and(|c| c.eq_ignore_ascii_case(city)));
    let near = by_city.map(String::as_str).or_else(|| nearest(name, names.iter().map(String::as_str)));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "use an IANA name such as Europe/Berlin, or UTC".to_owned(),
    };
    Err(FieldError::new("tz", Reason::Unknown, format!("{} is no time zone; {hint}", shown(name))))
}

/// The instant of a local time. In a gap the first instant after it; in an overlap the first of the two.
pub fn resolve(zone: &TimeZone, local: DateTime) -> Result<Timestamp, jiff::Error> {
    let found = zone.to_ambiguous_timestamp(local);
    match found.offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local),
        AmbiguousOffset::Gap { after, .. } => {
            // Read with the later offset, a time in the gap lies before the change, so the next
            // change is the one that made the gap: its instant is the first one after it.
            let earlier = after.to_timestamp(local)?;
            match zone.following(earlier).next() {
                Some(change) => Ok(change.timestamp()),
                None => found.compatible(),
            }
        }
    }
}

impl DueReader {
    /// Reads local times in `zone`; without one, times must name their offset.
    pub fn new(zone: Option<TimeZone>) -> Self {
        Self { zone, rebase: None }
    }

    /// Reads the left side of `T=now`, checks the speed, and replays from there.
    pub fn with_rebase(mut self, rebase: &str, speed: Option<f64>, now: UnixMs) -> Result<Self, FieldError> {
        let Some((from, "now")) = rebase.rsplit_once('=') else {
            let detail = format!("{} must be TIME=now, such as 2026-11-27T05:00:00=now", shown(rebase));
            return Err(FieldError::new("rebase", Reason::InvalidType, detail));
        };
        let speed = speed.unwrap_or(1.0);
        if !(speed.is_finite() && (0.001..=1_000_000.0).contains(&speed)) {
            let detail = format!("{speed} must lie between 0.001 and 1000000");
            return Err(FieldError::new("speed", Reason::OutOfRange, detail));
        }
        let from = self.instant(from.as_bytes()).map_err(|error| FieldError { field: "rebase", ..error })?;
        self.rebase = Some(Rebase { from, to: now, speed });
        Ok(self)
    }

    /// Reads one due time; the plan's own, before any replay.
    pub fn instant(&self, text: &[u8]) -> Result<UnixMs, FieldError> {
        let text = text.trim_ascii();
        let looks_like_one = text.len() >= 8 && text[..4].iter().all(u8::is_ascii_digit);
        let wrong = |why: &str| {
            // What the parser says helps with a time that is almost right; of other text it says odd things.
            let why = if looks_like_one { why } else { why.split(": ").next().unwrap_or(why) };
            let detail = format!(
                "{} {why}; write 2026-12-24T18:00:00 (with --tz ZONE), 2026-12-24T18:00:00+01:00, or seconds \
                 (10 digits) or milliseconds (13) since 1970",
                shown(&String::from_utf8_lossy(text))
            );
            FieldError::new("due", Reason::InvalidType, detail)
        };
        if text.is_empty() {
            return Err(FieldError::new("due", Reason::Missing, "is empty"));
        }
        let text = std::str::from_utf8(text).map_err(|_| wrong("is not UTF-8"))?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            if digits.len() != text.len() && digits.bytes().any(|b| b != b'0') {
                return Err(FieldError::new(
                    "due",
                    Reason::OutOfRange,
                    format!("{} lies before 1970", shown(text)),
                ));
            }
            let unit = match text.len() {
                10 => 1_000,
                13 => 1,
                _ => return Err(wrong("is a number of neither 10 nor 13 digits")),
            };
            return digits.parse::<i64>().map(|n| UnixMs(n * unit)).map_err(|_| wrong("is no number"));
        }
        // A zone in brackets says more than an offset and more than --tz.
        if let Some((local, zone)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            if !has_offset(local) {
                let zone = find_zone(zone).map_err(|error| FieldError { field: "due", ..error })?;
                return local_instant(&zone, local).map_err(|why| wrong(&why));
            }
            return text
                .parse::<jiff::Zoned>()
                .map(|at| UnixMs(at.timestamp().as_millisecond()))
                .map_err(|e| wrong(&format!("is no time: {e}")));
        }
        if has_offset(text) {
            return text.parse::<Timestamp>().map(|at| UnixMs(at.as_millisecond())).map_err(|error| {
                match jiff::fmt::temporal::Pieces::parse(text).is_ok() {
                    // Well written, and beyond what can be reckoned with.
                    true => FieldError::new(
                        "due",
                        Reason::OutOfRange,
                        format!("{} is out of range; at most 10 years ahead are allowed", shown(text)),
                    ),
                    false => wrong(&format!("is no time: {error}")),
                }
            });
        }
        match &self.zone {
            Some(zone) => local_instant(zone, text).map_err(|why| wrong(&why)),
            None if text.parse::<DateTime>().is_ok() => {
                let detail = format!(
                    "{} has no offset; say with --tz which zone it is in, such as --tz UTC",
                    shown(text)
                );
                Err(FieldError::new("due", Reason::Missing, detail))
            }
            None => Err(wrong("is no time")),
        }
    }

    /// Reads one due time and moves it into the replay, where there is one.
    pub fn read(&self, text: &[u8]) -> Result<UnixMs, FieldError> {
        let at = self.instant(text)?;
        Ok(match self.rebase {
            None => at,
            Some(rebase) => rebase.apply(at),
        })
    }

    /// The zone for showing times.
    pub fn zone(&self) -> TimeZone {
        self.zone.clone().unwrap_or(TimeZone::UTC)
    }

    /// The replay, if there is one.
    pub fn rebase(&self) -> Option<Rebase> {
        self.rebase
    }
}

impl Rebase {
    /// Where an instant of the plan lies now; never before the start.
    pub fn apply(&self, at: UnixMs) -> UnixMs {
        let passed = at.0.saturating_sub(self.from.0).max(0);
        // Below 2⁵³ ms (285,000 years) and so exact; the quotient is rounded down to a millisecond.
        self.to.plus((passed as f64 / self.speed) as i64)
    }
}

fn local_instant(zone: &TimeZone, text: &str) -> Result<UnixMs, String> {
    let local: DateTime = text.parse().map_err(|error| format!("is no time: {error}"))?;
    let at = resolve(zone, local).map_err(|error| format!("is out of range: {error}"))?;
    Ok(UnixMs(at.as_millisecond()))
}

/// Whether a time of day is followed by `Z` or an offset. Looks behind the date, whose dashes are no offset.
fn has_offset(text: &str) -> bool {
    text.as_bytes().get(10..).is_some_and(|rest| rest.iter().any(|b| matches!(b, b'Z' | b'z' | b'+' | b'-')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> DueReader {
        DueReader::new(Some(find_zone(name).unwrap()))
    }

    fn read(reader: &DueReader, text: &str) -> Result<String, &'static str> {
        reader.read(text.as_bytes()).map(|at| at.to_string()).map_err(|error| error.reason.code())
    }

    #[test]
    fn gap_is_the_first_instant_after_and_overlap_the_first() {
        let berlin = zone("Europe/Berlin");
        let at = |text| read(&berlin, text).unwrap();
        assert_eq!(at("2026-03-29T01:59:59"), "2026-03-29T00:59:59.000Z");
        assert_eq!(at("2026-03-29T02:00:00"), "2026-03-29T01:00:00.000Z");
        assert_eq!(at("2026-03-29T02:30:00"), "2026-03-29T01:00:00.000Z");
        assert_eq!(at("2026-03-29 02:59:59.999"), "2026-03-29T01:00:00.000Z");
        assert_eq!(at("2026-03-29T03:00:00"), "2026-03-29T01:00:00.000Z");
        assert_eq!(at("2026-10-25T02:30:00"), "2026-10-25T00:30:00.000Z");
        assert_eq!(at("2026-10-25T03:00:00"), "2026-10-25T02:00:00.000Z");
        // Half an hour of gap (Lord Howe), and a whole day that Samoa left out.
        assert_eq!(
            read(&zone("Australia/Lord_Howe"), "2026-10-04T02:15:00").unwrap(),
            "2026-10-03T15:30:00.000Z"
        );
        assert_eq!(read(&zone("Pacific/Apia"), "2011-12-30T12:00:00").unwrap(), "2011-12-30T10:00:00.000Z");
        // New York, as in the example plan.
        assert_eq!(
            read(&zone("America/New_York"), "2013-11-27T05:00:00").unwrap(),
            "2013-11-27T10:00:00.000Z"
        );
    }

    #[test]
    fn instants_and_numbers_need_no_zone() {
        let none = DueReader::new(None);
        let at = |text| read(&none, text);
        assert_eq!(at("2026-12-24T18:00:00+01:00").unwrap(), "2026-12-24T17:00:00.000Z");
        assert_eq!(at(" 2026-12-24 18:00:00Z ").unwrap(), "2026-12-24T18:00:00.000Z");
        assert_eq!(at("2026-12-24T18:00[Europe/Berlin]").unwrap(), "2026-12-24T17:00:00.000Z");
        assert_eq!(at("1764511260").unwrap(), "2025-11-30T14:01:00.000Z");
        assert_eq!(at("1764511260123").unwrap(), "2025-11-30T14:01:00.123Z");
        assert_eq!(read(&zone("+02:00"), "2026-01-01T02:00:00").unwrap(), "2026-01-01T00:00:00.000Z");
        assert_eq!(read(&zone("UTC"), "2026-01-01").unwrap(), "2026-01-01T00:00:00.000Z");
        assert_eq!(at("2026-12-24T18:00:00"), Err("missing"));
        assert_eq!(at(""), Err("missing"));
        assert_eq!(at("-1"), Err("out_of_range"));
        assert_eq!(at("9999-12-31T23:00:00Z"), Err("out_of_range"));
        for wrong in ["12", "17645112600", "1.5", "1e400", "NaN", "-0", "tomorrow", "10000-01-01T00:00:00Z"] {
            assert_eq!(at(wrong), Err("invalid_type"), "{wrong}");
        }
        assert_eq!(none.read(b"\xff\xfe").unwrap_err().reason, Reason::InvalidType);
    }

    #[test]
    fn unknown_zones_name_the_nearest() {
        let detail = |name| find_zone(name).unwrap_err().detail;
        assert_eq!(detail("Europe/Belin"), "`Europe/Belin` is no time zone; did you mean Europe/Berlin?");
        assert_eq!(detail("Berlin"), "`Berlin` is no time zone; did you mean Europe/Berlin?");
        assert_eq!(
            detail("Narnia"),
            "`Narnia` is no time zone; use an IANA name such as Europe/Berlin, or UTC"
        );
    }

    #[test]
    fn a_replay_moves_and_shrinks_time() {
        let now = UnixMs(1_764_511_260_123);
        let reader =
            zone("America/New_York").with_rebase("2013-11-27T05:00:00=now", Some(600.0), now).unwrap();
        let at = |text: &str| reader.read(text.as_bytes()).unwrap().0 - now.0;
        assert_eq!(at("2013-11-27T05:00:00"), 0);
        assert_eq!(at("2013-11-27T05:10:00"), 1_000);
        assert_eq!(at("2013-11-28T05:00:00"), 144_000);
        assert_eq!(at("2013-11-27T04:00:00"), 0, "what lies before the start is due at once");
        let offset = DueReader::new(None).with_rebase("2013-11-27T05:00:00-05:00=now", None, now).unwrap();
        assert_eq!(offset.read(b"2013-11-27T10:00:01Z").unwrap().0 - now.0, 1_000);
        let wrong = |rebase, speed| DueReader::new(None).with_rebase(rebase, speed, now).unwrap_err().field;
        assert_eq!(wrong("2013-11-27T05:00:00", None), "rebase");
        assert_eq!(wrong("2013-11-27T05:00:00=now", None), "rebase");
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(wrong("2013-11-27T05:00:00Z=now", Some(speed)), "speed");
        }
    }
}
