//! What happened: one task's life, the tail of all events, and a replay of them.

use super::{Client, ClientError, repeat};
use crate::limits;
use crate::model::event::{Event, Line, Trimmed};
use crate::model::replay::{Replay, Report};
use crate::model::{Bucket, FieldError, Reason, TaskId, UnixMs};
use crate::store::events::{self, Stretch};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A task's life, as far as it is kept.
#[derive(Debug, Clone, Serialize)]
pub struct Trace {
    /// Its moves, in order.
    pub events: Vec<Event>,
    /// Events of its bucket that have been trimmed away; its submission may be among them.
    pub trimmed: Option<Trimmed>,
}

/// Reads the events of all buckets as they come.
#[derive(Debug)]
pub struct EventTail {
    client: Client,
    after: Vec<Option<String>>,
}

/// A place in the events of all buckets, to go on from. Its text is for keeping, not for reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPlace(Vec<Option<String>>);

impl EventPlace {
    pub(super) fn of(places: impl Iterator<Item = Option<String>>) -> Self {
        Self(places.collect())
    }

    pub(super) fn places(&self) -> impl Iterator<Item = Option<&str>> {
        self.0.iter().map(Option::as_deref)
    }
}

impl fmt::Display for EventPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<&str> = self.0.iter().map(|place| place.as_deref().unwrap_or("")).collect();
        f.write_str(&places.join(","))
    }
}

impl FromStr for EventPlace {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let entry = |text: &str| {
            let number =
                |text: &str| !text.is_empty() && text.len() < 20 && text.bytes().all(|b| b.is_ascii_digit());
            text.split_once('-').is_some_and(|(ms, seq)| number(ms) && number(seq))
        };
        let places: Vec<&str> = text.split(',').collect();
        if places.len() > usize::from(limits::BUCKETS_MAX)
            || !places.iter().all(|place| place.is_empty() || entry(place))
        {
            let detail = "not a place that an event was told with";
            return Err(FieldError::new("Last-Event-ID", Reason::InvalidType, detail));
        }
        Ok(Self(places.iter().map(|place| (!place.is_empty()).then(|| (*place).to_owned())).collect()))
    }
}

impl Client {
    /// A task's life.
    pub async fn trace(&self, id: TaskId) -> Result<Trace, ClientError> {
        let space = self.space();
        let found = repeat(space, || events::trace(space, id)).await?;
        let begins =
            found.events.first().is_some_and(|event| event.event == crate::model::event::Move::Submitted);
        Ok(Trace { events: found.events, trimmed: found.trimmed.filter(|_| !begins) })
    }

    /// Reads events from the start of what is kept.
    pub fn events(&self) -> EventTail {
        let buckets = usize::from(self.space().spread().peak);
        EventTail { client: self.clone(), after: vec![None; buckets] }
    }

    /// Reads events from a place on; buckets that were added since are read from their start.
    pub fn events_from(&self, place: EventPlace) -> EventTail {
        let mut tail = self.events();
        let common = tail.after.len().min(place.0.len());
        tail.after[..common].clone_from_slice(&place.0[..common]);
        tail
    }

    /// Reads events from an instant on.
    pub fn events_since(&self, at: UnixMs) -> EventTail {
        let mut tail = self.events();
        tail.after.fill(Some(format!("{}-0", at.0.max(0))));
        tail
    }

    /// Feeds everything that is kept through the table of states.
    pub async fn replay(&self, must_end: bool) -> Result<Report, ClientError> {
        let mut tail = self.events();
        let mut replays: Vec<Option<Replay>> = (0..tail.after.len()).map(|_| None).collect();
        for (bucket, replay) in replays.iter_mut().enumerate() {
            loop {
                let stretch = tail.read(bucket).await?;
                let replay = replay.get_or_insert_with(|| Replay::new(false));
                // The stream begins at a trim marker, or was trimmed while it was read.
                if stretch.gap {
                    replay.trim(u16::try_from(bucket).unwrap_or(0));
                }
                stretch.events.iter().for_each(|event| replay.feed(event));
                if !stretch.more {
                    break;
                }
            }
        }
        let mut all = Report { ok: true, ..Report::default() };
        for report in replays.into_iter().flatten().map(|replay| replay.finish(must_end)) {
            all.ok &= report.ok;
            all.events += report.events;
            all.tasks += report.tasks;
            all.ended += report.ended;
            all.unfinished += report.unfinished;
            all.accepted += report.accepted;
            all.redispatched += report.redispatched;
            all.faults += report.faults;
            all.findings.extend(report.findings);
        }
        all.findings.truncate(crate::model::replay::FINDINGS_LISTED);
        Ok(all)
    }
}

impl EventTail {
    async fn read(&mut self, bucket: usize) -> Result<Stretch, ClientError> {
        let space = self.client.space();
        let Some(number) = u16::try_from(bucket).ok().and_then(Bucket::new) else {
            return Ok(Stretch::default());
        };
        let after = self.after[bucket].clone();
        let stretch = repeat(space, || events::stretch(space, number, None, after.as_deref())).await?;
        if let Some(last) = &stretch.last {
            self.after[bucket] = Some(last.clone());
        }
        Ok(stretch)
    }

    /// Where it has come to.
    pub fn place(&self) -> EventPlace {
        EventPlace(self.after.clone())
    }

    /// Leaves out everything that has happened so far.
    pub async fn skip_past(&mut self) -> Result<(), ClientError> {
        for bucket in 0..self.after.len() {
            while self.read(bucket).await?.more {}
        }
        Ok(())
    }

    /// What has happened since the last call, at most a stretch of each bucket, in order of time.
    pub async fn next(&mut self) -> Result<Vec<Event>, ClientError> {
        let mut out = Vec::new();
        // Buckets that came meanwhile.
        let peak = usize::from(self.client.space().keep_spread().await?.peak);
        self.after.resize(self.after.len().max(peak), None);
        for bucket in 0..self.after.len() {
            out.extend(self.read(bucket).await?.events);
        }
        out.sort_by_key(|event| event.at);
        Ok(out)
    }

    /// The same; where events are gone that nobody has read, this stands first.
    pub async fn next_lines(&mut self) -> Result<Vec<Line>, ClientError> {
        let (mut out, mut events) = (Vec::new(), Vec::new());
        for bucket in 0..self.after.len() {
            let stretch = self.read(bucket).await?;
            out.extend(stretch.trimmed.filter(|_| stretch.gap).map(|trimmed| Line::Trimmed { trimmed }));
            events.extend(stretch.events);
        }
        events.sort_by_key(|event| event.at);
        out.extend(events.into_iter().map(Line::Event));
        Ok(out)
    }
}
