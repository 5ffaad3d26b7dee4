//! What happened: one task's life, the tail of all events, and a replay of them.

use super::{Client, ClientError, repeat};
use crate::model::event::{Event, Line, Trimmed};
use crate::model::replay::{Replay, Report};
use crate::model::{Bucket, TaskId};
use crate::store::events::{self, Stretch};
use serde::Serialize;

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
        let buckets = usize::from(self.space().spread().buckets);
        EventTail { client: self.clone(), after: vec![None; buckets] }
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

    /// Leaves out everything that has happened so far.
    pub async fn skip_past(&mut self) -> Result<(), ClientError> {
        for bucket in 0..self.after.len() {
            while self.read(bucket).await?.more {}
        }
        Ok(())
    }

    /// What has happened since the last call, at most a stretch of each bucket, in order of time. Where events are
    /// gone that nobody has read, this stands first.
    pub async fn next(&mut self) -> Result<Vec<Line>, ClientError> {
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
