//! What happened: one task's life, the tail of all events, and a replay of them.

use super::{Client, ClientError, repeat};
use crate::model::event::Event;
use crate::model::replay::{Replay, Report};
use crate::model::{Bucket, TaskId, UnixMs};
use crate::store::events::{self, Stretch};
use serde::Serialize;

/// A task's life, as far as it is kept.
#[derive(Debug, Clone, Serialize)]
pub struct Trace {
    /// Its moves, in order.
    pub events: Vec<Event>,
    /// Events before this instant have been trimmed away; its submission may be among them.
    pub gone_before: Option<UnixMs>,
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
        Ok(Trace { events: found.events, gone_before: found.trimmed_before.filter(|_| !begins) })
    }

    /// Reads events from the start of what is kept.
    pub fn events(&self) -> EventTail {
        let buckets = usize::from(self.space().spread().peak);
        EventTail { client: self.clone(), after: vec![None; buckets] }
    }

    /// Feeds everything that is kept through the table of states.
    pub async fn replay(&self, must_end: bool) -> Result<Report, ClientError> {
        let mut tail = self.events();
        let mut replays: Vec<Option<Replay>> = (0..tail.after.len()).map(|_| None).collect();
        for (bucket, replay) in replays.iter_mut().enumerate() {
            loop {
                let stretch = tail.read(bucket).await?;
                let trimmed = stretch.trimmed_before.is_some();
                let replay = replay.get_or_insert_with(|| Replay::new(trimmed));
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

    /// What has happened since the last call, at most a stretch of each bucket, in order of time.
    pub async fn next(&mut self) -> Result<Vec<Event>, ClientError> {
        let mut out = Vec::new();
        // Buckets that came meanwhile.
        let peak = usize::from(self.client.space().spread_lately().peak);
        self.after.resize(self.after.len().max(peak), None);
        for bucket in 0..self.after.len() {
            out.extend(self.read(bucket).await?.events);
        }
        out.sort_by_key(|event| event.at);
        Ok(out)
    }
}
