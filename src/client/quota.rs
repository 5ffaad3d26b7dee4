//! How much a namespace may hold, so that one does not fill the memory that others share.
//!
//! Each client looks once a second, so a quota is passed by at most what other clients submit in a second: what goes
//! through this one is added as it goes. It costs one call a second where there is none, and one more for each bucket
//! where there is one for tasks, or for bytes. Bytes are counted by the scripts that write and remove tasks, from the
//! first look on that finds a quota for them.

use super::{Client, ClientError, NewTask, repeat};
use crate::model::{Bucket, FieldError, Reason};
pub use crate::store::access::Quota;
use crate::store::{StoreError, access, bucket};
use crate::{clock, limits};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long a look is good.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What a spec has beside payload and keys, about.
const HEAD_BYTES: u64 = 16;
/// Buckets that are asked at the same time.
const AT_ONCE: usize = 16;

/// What was seen at the last look, and what was let through since.
#[derive(Debug, Default)]
pub(super) struct QuotaWatch(Mutex<Option<Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    most: Quota,
    tasks: u64,
    bytes: u64,
}

/// About as many bytes as a task takes as it is kept.
fn bytes_of(task: &NewTask) -> u64 {
    let key = task.key.as_ref().map_or(0, |key| key.bytes.len() + 7);
    let placement = task.placement.as_ref().map_or(0, |placement| placement.len() + 2);
    (task.payload.len() + key + placement) as u64 + HEAD_BYTES
}

impl Client {
    /// How much the namespace may hold.
    pub async fn quota(&self) -> Result<Quota, ClientError> {
        let space = self.space();
        Ok(repeat(space, || access::quota(space, None)).await?)
    }

    /// Bounds how much the namespace may hold; nothing takes a bound away.
    pub async fn quota_set(&self, set: Quota) -> Result<Quota, ClientError> {
        for (field, most) in [("tasks", set.tasks), ("bytes", set.bytes)] {
            if most.is_some_and(|most| most > limits::QUOTA_MAX) {
                let detail = format!("at most {} can be said", limits::QUOTA_MAX);
                return Err(FieldError::new(field, Reason::OutOfRange, detail).into());
            }
        }
        let space = self.space();
        let stands = repeat(space, || access::quota(space, Some(set))).await?;
        self.held_bytes(Some(stands.bytes.is_some())).await?;
        *self.inner.quota.0.lock() = None;
        Ok(stands)
    }

    /// Bytes that tasks and dead letters of the namespace take, where there is a quota for them.
    pub async fn quota_bytes(&self) -> Result<Option<u64>, ClientError> {
        match self.quota().await?.bytes {
            Some(_) => Ok(Some(self.held_bytes(Some(true)).await?)),
            None => Ok(None),
        }
    }

    /// Bytes of all buckets; `count`: whether they are counted from now on.
    async fn held_bytes(&self, count: Option<bool>) -> Result<u64, ClientError> {
        let space = self.space();
        let all: Vec<Bucket> = match count {
            // Wherever they may ever have been counted.
            Some(false) => (0..space.spread().peak).filter_map(Bucket::new).collect(),
            _ => space.spread().all().collect(),
        };
        let mut sum = 0;
        for some in all.chunks(AT_ONCE) {
            let calls = some.iter().map(|at| repeat(space, move || bucket::size(space, *at, count)));
            let found = futures_util::future::join_all(calls).await;
            sum += found.into_iter().sum::<Result<u64, StoreError>>()?;
        }
        Ok(sum)
    }

    /// Lets more tasks through, or says that there is no room for them.
    pub(super) async fn within_quota(&self, tasks: &[NewTask]) -> Result<(), ClientError> {
        let known = self.inner.quota.0.lock().filter(|seen| seen.at.elapsed() < LOOK_EVERY);
        if known.is_none() {
            let most = self.quota().await?;
            let (mut tasks, mut bytes) = (0, 0);
            if most.tasks.is_some() {
                let (counts, _) = self.counts().await?;
                tasks = u64::try_from(counts.waiting + counts.pending + counts.running).unwrap_or(0);
            }
            if most.bytes.is_some() {
                bytes = self.held_bytes(Some(true)).await?;
            }
            *self.inner.quota.0.lock() = Some(Seen { at: clock::mono(), most, tasks, bytes });
        }
        let mut seen = self.inner.quota.0.lock();
        let Some(seen) = seen.as_mut() else { return Ok(()) };
        let more = tasks.len() as u64;
        if let Some(most) = seen.most.tasks.filter(|most| seen.tasks + more > *most) {
            return Err(ClientError::OverQuota { field: "tasks", most });
        }
        if let Some(most) = seen.most.bytes {
            let more: u64 = tasks.iter().map(bytes_of).sum();
            if seen.bytes + more > most {
                return Err(ClientError::OverQuota { field: "bytes", most });
            }
            seen.bytes += more;
        }
        seen.tasks += more;
        Ok(())
    }
}
