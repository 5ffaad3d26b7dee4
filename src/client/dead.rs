//! Dead letters, as operators see them: listed, redriven at a rate, deleted.

use super::{Client, ClientError, repeat};
use crate::limits;
use crate::model::field::shown;
use crate::model::{Bucket, FieldError, QueueName, Reason, TaskId, UnixMs};
use crate::store::dead::{self, DeadLetter, RedriveAnswer};
use crate::store::read::Attempt;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Which dead letters are meant; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// Dead for at least this long.
    pub older_than_ms: Option<i64>,
    /// Reason or last error fits this pattern: `*` stands for anything; without one, it is looked for inside.
    pub reason: Option<String>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// A dead letter.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct DeadView {
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Its queue.
    pub queue: String,
    /// When it died.
    #[serde(with = "crate::model::slice::rfc3339")]
    #[schema(value_type = String)]
    pub at: UnixMs,
    /// Why, in one word.
    pub reason: String,
    /// Its last error.
    pub error: String,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
}

/// What a redrive did.
#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq, utoipa::ToSchema)]
pub struct Redriven {
    /// Pending again.
    pub redriven: u64,
    /// Left alone, since another task has their key: the letter and that task.
    #[schema(value_type = Vec<Vec<String>>)]
    pub key_conflicts: Vec<(TaskId, TaskId)>,
    /// Not dead, or no longer.
    pub unknown: u64,
}

impl DeadFilter {
    fn fits(&self, letter: &DeadLetter, queue: &str, now: UnixMs) -> bool {
        let error = letter.attempts.last().map_or("", |attempt| attempt.error.as_str());
        self.queue.as_ref().is_none_or(|wanted| wanted.as_str() == queue)
            && self.older_than_ms.is_none_or(|ms| letter.at.plus(ms) <= now)
            && self
                .reason
                .as_ref()
                .is_none_or(|pattern| fits(pattern, &letter.reason) || fits(pattern, error))
    }
}

/// Whether `text` fits a pattern in which `*` stands for anything; a pattern without one is looked for inside.
fn fits(pattern: &str, text: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else { return text.contains(pattern) };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Where a list of dead letters goes on. Its text is for keeping, not for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeadCursor {
    bucket: u16,
    from: i64,
    skip: usize,
}

impl fmt::Display for DeadCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.bucket, self.from, self.skip)
    }
}

impl FromStr for DeadCursor {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let mut parts = text.split('.').map(|part| part.parse::<u64>().ok());
        let mut next = || parts.next().flatten();
        let found = (|| {
            let bucket = u16::try_from(next()?).ok().filter(|bucket| *bucket < limits::BUCKETS_MAX)?;
            let (from, skip) = (i64::try_from(next()?).ok()?, usize::try_from(next()?).ok()?);
            Some(Self { bucket, from, skip: Some(skip).filter(|skip| *skip <= limits::DEAD_KEEP_ROWS)? })
        })();
        found.filter(|_| text.split('.').count() == 3).ok_or_else(|| {
            FieldError::new("cursor", Reason::InvalidType, format!("{} is no cursor", shown(text)))
        })
    }
}

/// Pages that one call reads at most: a filter that nothing fits must not hold it up for long.
const PAGES_AT_ONCE: usize = 50;

impl Client {
    /// Dead letters that fit, oldest first in each bucket.
    pub async fn dead_list(&self, filter: &DeadFilter) -> Result<Vec<DeadView>, ClientError> {
        let limit = filter.limit.unwrap_or(usize::MAX);
        let (mut out, mut cursor) = (Vec::new(), DeadCursor::default());
        loop {
            let rest = DeadFilter { limit: Some(limit - out.len()), ..filter.clone() };
            let (mut page, next) = self.dead_page(&rest, cursor).await?;
            out.append(&mut page);
            match next {
                Some(next) if out.len() < limit => cursor = next,
                _ => return Ok(out),
            }
        }
    }

    /// A part of [`Self::dead_list`], at most the filter's limit from a cursor on, and where the next one begins.
    pub async fn dead_page(
        &self,
        filter: &DeadFilter,
        from: DeadCursor,
    ) -> Result<(Vec<DeadView>, Option<DeadCursor>), ClientError> {
        let space = self.space();
        space.groups().await?;
        let (limit, now) = (filter.limit.unwrap_or(usize::MAX), UnixMs(space.clock().now_ms()));
        let (mut out, mut at, mut pages) = (Vec::new(), from, 0);
        while let Some(bucket) = Bucket::new(at.bucket).filter(|_| at.bucket < space.spread().peak) {
            if out.len() >= limit || pages >= PAGES_AT_ONCE {
                return Ok((out, Some(at)));
            }
            pages += 1;
            let page = repeat(space, || dead::page(space, bucket, UnixMs(at.from), at.skip)).await?;
            let full = page.len() == dead::PAGE_MAX;
            for letter in page {
                if out.len() >= limit {
                    return Ok((out, Some(at)));
                }
                // Letters of one millisecond are told apart by how many of them were seen.
                at.skip = if letter.at.0 == at.from { at.skip + 1 } else { 1 };
                at.from = letter.at.0;
                let group = letter.lane.and_then(|lane| space.known_name(lane.group()));
                let queue = group.map(|group| group.queue.to_string()).unwrap_or_default();
                if filter.fits(&letter, &queue, now) {
                    let error = letter.attempts.last().map(|attempt| attempt.error.clone());
                    out.push(DeadView {
                        id: letter.id,
                        queue,
                        at: letter.at,
                        reason: letter.reason,
                        error: error.unwrap_or_default(),
                        attempts: letter.attempts,
                    });
                }
            }
            if !full {
                at = DeadCursor { bucket: at.bucket + 1, from: 0, skip: 0 };
            }
        }
        Ok((out, None))
    }

    /// Sets dead letters back to pending, `per_second` of them due in each second (all at once without).
    pub async fn redrive(
        &self,
        ids: &[TaskId],
        per_second: Option<f64>,
        who: &str,
    ) -> Result<Redriven, ClientError> {
        let space = self.space();
        let now = space.clock().now_ms();
        let mut by_bucket: HashMap<Bucket, Vec<(TaskId, UnixMs)>> = HashMap::new();
        for (place, id) in ids.iter().enumerate() {
            let wait_ms = per_second.map_or(0.0, |rate| place as f64 * 1_000.0 / rate.max(0.001));
            let due = UnixMs(now.saturating_add(wait_ms as i64));
            by_bucket.entry(id.bucket()).or_default().push((*id, due));
        }
        let mut out = Redriven::default();
        for (bucket, rows) in by_bucket {
            for piece in rows.chunks(limits::BATCH_MAX_ROWS / 2) {
                let answers = repeat(space, || dead::redrive(space, bucket, who, piece)).await?;
                for ((id, _), answer) in piece.iter().zip(answers) {
                    match answer {
                        RedriveAnswer::Pending => out.redriven += 1,
                        RedriveAnswer::KeyConflict(other) => out.key_conflicts.push((*id, other)),
                        RedriveAnswer::Unknown => out.unknown += 1,
                    }
                }
            }
        }
        Ok(out)
    }

    /// Removes dead letters for good; answers how many there were.
    pub async fn dead_delete(&self, ids: &[TaskId], who: &str) -> Result<u64, ClientError> {
        let space = self.space();
        let mut by_bucket: HashMap<Bucket, Vec<TaskId>> = HashMap::new();
        for id in ids {
            by_bucket.entry(id.bucket()).or_default().push(*id);
        }
        let mut deleted = 0;
        for (bucket, ids) in by_bucket {
            for piece in ids.chunks(limits::BATCH_MAX_ROWS / 2) {
                let gone = repeat(space, || dead::delete(space, bucket, who, piece)).await?;
                deleted += gone.into_iter().filter(|gone| *gone).count() as u64;
            }
        }
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("timeout", "a timeout of 3 s", true),
            ("handler_*", "handler_error", true),
            ("*error", "handler_error", true),
            ("h*r_e*r", "handler_error", true),
            ("handler*x", "handler_error", false),
            ("*", "", true),
            ("", "anything", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
