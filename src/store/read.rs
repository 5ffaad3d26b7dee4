//! Reading without changing anything: `lua/read/`.

use super::script;
use super::space::Space;
use super::{Reply, StoreError};
use crate::model::bins::start_of;
use crate::model::{Bucket, Grant, LaneCode, Phase, State, TaskId, UnixMs, digits};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Where a task is that is not at home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// When it is due now.
    pub due: UnixMs,
    /// Its lane now.
    pub lane: LaneCode,
    /// Number of its last grant.
    pub fence: u32,
    /// How often it has failed.
    pub failures: u32,
    /// Grants lost without a start.
    pub losses: u32,
    /// How often it was moved or edited, modulo 256.
    pub edits: u8,
}

/// A running task's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How far it has come.
    pub phase: Phase,
    /// Whether someone wishes it to stop.
    pub cancel: bool,
    /// When its lease lapses.
    pub deadline: UnixMs,
    /// Its grant.
    pub grant: Grant,
    /// Pod or executor that holds it.
    pub holder: String,
}

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Attempt {
    /// When it ended.
    #[serde(with = "crate::model::slice::rfc3339")]
    #[schema(value_type = String)]
    pub at: UnixMs,
    /// Number of its grant.
    pub fence: u32,
    /// Executor it ran on.
    pub executor: String,
    /// What went wrong.
    pub error: String,
}

/// What is known of a task.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its state.
    pub state: State,
    /// Its spec, encoded; gone when the task has ended.
    pub spec: Option<Bytes>,
    /// Where it is, if not at home.
    pub place: Option<Place>,
    /// Its record, if it runs.
    pub run: Option<Run>,
    /// Failed attempts.
    pub attempts: Vec<Attempt>,
    /// Why and when it died.
    pub dead: Option<(String, UnixMs)>,
    /// Whether its lane may not be claimed now.
    pub held: bool,
    /// What it waits for, where it is set aside for others of its placement key, and when that is looked after.
    pub waits: Option<(Waits, Option<UnixMs>)>,
    /// Redis's time of the answer.
    pub now: UnixMs,
}

/// Why a task waits for others of its placement key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It is this one's turn.
    Turn(TaskId),
    /// So many run.
    Running(u32),
    /// It has had its share for now.
    Share,
}

fn number(text: &[u8], radix: u32) -> Option<i64> {
    i64::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok()
}

/// Reads a place record.
pub fn read_place(record: &[u8]) -> Option<Place> {
    Some(Place {
        due: UnixMs(number(record.get(..13)?, 10)?),
        lane: LaneCode::from_bytes(record.get(13..17)?)?,
        fence: u32::try_from(number(record.get(17..25)?, 16)?).ok()?,
        failures: u32::try_from(number(record.get(25..27)?, 16)?).ok()?,
        losses: u32::try_from(number(record.get(27..29)?, 16)?).ok()?,
        edits: u8::try_from(number(record.get(29..31)?, 16)?).ok()?,
    })
}

/// Reads a run record.
pub fn read_run(record: &[u8]) -> Option<Run> {
    Some(Run {
        phase: Phase::from_letter(*record.first()?)?,
        cancel: *record.get(1)? == b'C',
        deadline: UnixMs(number(record.get(3..16)?, 10)?),
        grant: Grant::from_bytes(record.get(16..34)?)?,
        holder: String::from_utf8_lossy(record.get(40..)?).into_owned(),
    })
}

/// Reads failed attempts; stops at the first that cannot be read.
pub fn read_attempts(mut bytes: &[u8]) -> Vec<Attempt> {
    fn one(bytes: &[u8]) -> Option<(Attempt, &[u8])> {
        let (at, fence) = (number(bytes.get(..13)?, 10)?, number(bytes.get(13..21)?, 16)?);
        let len = usize::try_from(number(bytes.get(21..23)?, 10)?).ok()?;
        let executor = String::from_utf8_lossy(bytes.get(23..23 + len)?).into_owned();
        let bytes = bytes.get(23 + len..)?;
        let len = usize::try_from(number(bytes.get(..4)?, 10)?).ok()?;
        let error = String::from_utf8_lossy(bytes.get(4..4 + len)?).into_owned();
        let fence = u32::try_from(fence).ok()?;
        Some((Attempt { at: UnixMs(at), fence, executor, error }, bytes.get(4 + len..)?))
    }
    let mut out = Vec::new();
    while let Some((attempt, rest)) = one(bytes) {
        out.push(attempt);
        bytes = rest;
    }
    out
}

/// What is known of one task; nothing when it never was, or ended too long ago.
pub async fn get(space: &Space, id: TaskId) -> Result<Option<Found>, StoreError> {
    let mut args = space.args(2, 32);
    args.bytes(id.as_bytes());
    let answer = space.call(&script::GET, space.guard(id.bucket()), args).await?;
    let now = UnixMs(answer.now_ms());
    let mut fields = answer.ok()?;
    let letter = fields.bytes("letter")?;
    let mut part = |name| Ok::<_, StoreError>(Some(fields.bytes(name)?).filter(|bytes| !bytes.is_empty()));
    let (spec, place, run) = (part("spec")?, part("place")?, part("run")?);
    let (tries, reason, died, attempts) =
        (part("tries")?, part("reason")?, part("died at")?, part("attempts")?);
    let held = fields.int("held")? == 1;
    let waits = fields.bytes("what it waits for")?;
    let again = fields.bytes("when that is looked after")?;
    let waits = match waits.split_first() {
        Some((b'o', id)) => TaskId::from_bytes(id).map(Waits::Turn),
        Some((b'r', count)) => {
            number(count, 10).and_then(|count| Some(Waits::Running(u32::try_from(count).ok()?)))
        }
        Some(_) => Some(Waits::Share),
        None => None,
    };
    let waits = waits.map(|waits| (waits, number(&again, 10).map(UnixMs)));
    if &letter[..] == b"?" {
        return Ok(None);
    }
    let state = letter.first().and_then(|letter| State::from_letter(char::from(*letter)));
    let state = state.ok_or_else(|| fields.bad("unknown letter"))?;
    let dead = reason.map(|reason| {
        let at = died.as_deref().and_then(|at| number(at, 10)).unwrap_or(0);
        (String::from_utf8_lossy(&reason).into_owned(), UnixMs(at))
    });
    Ok(Some(Found {
        state,
        spec,
        place: place.as_deref().and_then(read_place),
        run: run.as_deref().and_then(read_run),
        attempts: attempts.or(tries).as_deref().map(read_attempts).unwrap_or_default(),
        dead,
        held,
        waits,
        now,
    }))
}

/// Start − due over the last five minutes: a histogram by [`crate::model::bins`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lags {
    bins: BTreeMap<u16, u64>,
    /// The largest lag, exact, in ms.
    pub max_ms: i64,
}

impl Lags {
    /// A histogram of which only the bins are known.
    pub fn of_bins(bins: BTreeMap<u16, u64>) -> Self {
        Self { bins, max_ms: i64::MAX }
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bin, count) in &other.bins {
            *self.bins.entry(*bin).or_default() += count;
        }
        self.max_ms = self.max_ms.max(other.max_ms);
    }

    /// Starts counted.
    pub fn count(&self) -> u64 {
        self.bins.values().sum()
    }

    /// The lag that a share `q` of the starts did not pass, in ms; nothing without starts.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        let count = self.count();
        let rank = ((count as f64) * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.bins.iter().find_map(|(bin, n)| {
            seen += n;
            // The upper end of the bin: never better than the truth.
            (seen >= rank && count > 0).then(|| (start_of(bin + 1) - 1).min(self.max_ms))
        })
    }
}

/// A bucket's counters and figures.
#[derive(Debug, Clone, Default)]
pub struct BucketCounts {
    /// Counters by name.
    pub counts: BTreeMap<String, i64>,
    /// Lags of the last five minutes.
    pub lags: Lags,
    /// Pods that hold it, and until when.
    pub holders: Vec<(String, UnixMs)>,
    /// Whether it takes no new tasks.
    pub closed: bool,
    /// Due time of its first pending task that is not ripe yet.
    pub first_due: Option<UnixMs>,
    /// When the first time-out of a task passes.
    pub first_timer: Option<UnixMs>,
    /// Ripe tasks by lane, of lanes that stand aside.
    pub parked: Vec<(LaneCode, u64)>,
    /// Ripe tasks by lane, of lanes that wait for their turn.
    pub ready: Vec<(LaneCode, u64)>,
    /// Entries of the agenda.
    pub agenda: u64,
    /// Tasks that have failed and not ended.
    pub tries: i64,
    /// Redis's time of the answer.
    pub now: UnixMs,
}

impl BucketCounts {
    /// One counter; 0 where it never counted.
    pub fn count(&self, name: &str) -> i64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// A bucket's counters, read in one script.
pub async fn counts(space: &Space, bucket: Bucket) -> Result<BucketCounts, StoreError> {
    let answer = space.call(&script::COUNTS, space.guard(bucket), space.args(1, 16)).await?;
    let mut out = BucketCounts { now: UnixMs(answer.now_ms()), ..BucketCounts::default() };
    let mut fields = answer.ok()?;
    let name = script::COUNTS.name;
    for (counter, value) in Reply::Array(fields.array("counts")?).pairs(name)? {
        let counter = String::from_utf8_lossy(&counter).into_owned();
        if !counter.starts_with("deficit") {
            out.counts.insert(counter, value.int(name)?);
        }
    }
    for (bin, value) in Reply::Array(fields.array("lag")?).pairs(name)? {
        if &bin[..] == b"max" {
            let max = digits::read(&value.bytes(name)?).unwrap_or(0);
            out.lags.max_ms = out.lags.max_ms.max(max as i64);
        } else if let Some(bin) = digits::read(&bin) {
            *out.lags.bins.entry(bin as u16).or_default() += u64::try_from(value.int(name)?).unwrap_or(0);
        }
    }
    for (pod, value) in Reply::Array(fields.array("lock")?).pairs(name)? {
        let value = value.bytes(name)?;
        // A pod may rest for longer than its permit lasts; until when stands behind it.
        let time = |at: std::ops::Range<usize>| value.get(at).and_then(|text| number(text, 10)).unwrap_or(0);
        let until = time(16..29).max(time(29..42));
        if until > out.now.0 {
            out.holders.push((String::from_utf8_lossy(&pod).into_owned(), UnixMs(until)));
        }
    }
    out.closed = !fields.bytes("closed")?.is_empty();
    out.first_due = number(&fields.bytes("first due")?, 10).map(UnixMs);
    out.first_timer = number(&fields.bytes("first timer")?, 10).map(UnixMs);
    for list in [&mut out.parked, &mut out.ready] {
        for (lane, size) in Reply::Array(fields.array("lanes")?).pairs(name)? {
            if let Some(lane) = LaneCode::from_bytes(&lane) {
                list.push((lane, u64::try_from(size.int(name)?).unwrap_or(0)));
            }
        }
    }
    out.agenda = u64::try_from(fields.int("agenda")?).unwrap_or(0);
    out.tries = fields.int("tries")?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bins::bin_of;

    #[test]
    fn quantiles_are_never_better_than_the_truth() {
        let mut lags = Lags::default();
        for lag in 0..1_000i64 {
            *lags.bins.entry(bin_of(lag)).or_default() += 1;
        }
        lags.max_ms = 999;
        assert_eq!(lags.quantile(0.01), Some(9));
        let p50 = lags.quantile(0.5).unwrap();
        assert!((499..=520).contains(&p50), "{p50}");
        assert_eq!(lags.quantile(1.0), Some(999));
        assert_eq!(Lags::default().quantile(0.5), None);
    }

    #[test]
    fn attempts_are_read_back_and_a_torn_one_is_left_out() {
        let bytes = b"17645112601230000000104ex-10004boom1764511260999000000020";
        let attempts = read_attempts(bytes);
        assert_eq!(attempts.len(), 1);
        assert_eq!((attempts[0].fence, attempts[0].error.as_str()), (1, "boom"));
    }
}
