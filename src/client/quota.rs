//! How many tasks a namespace may hold, so that one does not fill the memory that others share.
//!
//! Each client looks once a second, so a quota is passed by at most what its clients submit in a second. It costs
//! one call a second where there is none, and one more for each bucket where there is one.

use super::{Client, ClientError, repeat};
use crate::model::{FieldError, Reason};
use crate::store::access;
use crate::{clock, limits};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long a look is good.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was seen at the last look, and what was let through since.
#[derive(Debug, Default)]
pub(super) struct QuotaWatch(Mutex<Option<Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    most: Option<u64>,
    held: u64,
}

impl Client {
    /// How many tasks that have not ended the namespace may hold; nothing for any number.
    pub async fn quota(&self) -> Result<Option<u64>, ClientError> {
        let space = self.space();
        Ok(repeat(space, || access::quota(space, None)).await?)
    }

    /// Bounds how many tasks that have not ended the namespace may hold; nothing takes the bound away.
    pub async fn quota_set(&self, most: Option<u64>) -> Result<Option<u64>, ClientError> {
        if most.is_some_and(|most| most > limits::QUOTA_TASKS_MAX) {
            let detail = format!("at most {} can be said", limits::QUOTA_TASKS_MAX);
            return Err(FieldError::new("tasks", Reason::OutOfRange, detail).into());
        }
        let space = self.space();
        let set = repeat(space, || access::quota(space, Some(most.unwrap_or(0)))).await?;
        *self.inner.quota.0.lock() = None;
        Ok(set)
    }

    /// Lets so many more tasks through, or says that there is no room for them.
    pub(super) async fn within_quota(&self, more: usize) -> Result<(), ClientError> {
        let known = self.inner.quota.0.lock().filter(|seen| seen.at.elapsed() < LOOK_EVERY);
        if known.is_none() {
            let most = self.quota().await?;
            let held = match most {
                Some(_) => {
                    let (counts, _) = self.counts().await?;
                    u64::try_from(counts.waiting + counts.pending + counts.running).unwrap_or(0)
                }
                None => 0,
            };
            *self.inner.quota.0.lock() = Some(Seen { at: clock::mono(), most, held });
        }
        let mut seen = self.inner.quota.0.lock();
        let Some(seen) = seen.as_mut() else { return Ok(()) };
        match seen.most {
            Some(most) if seen.held + more as u64 > most => Err(ClientError::OverQuota { most }),
            _ => {
                seen.held += more as u64;
                Ok(())
            }
        }
    }
}
