//! What a task gets where its submitter says nothing: the queue's settings, then the installation's.

use super::NewTask;
use crate::model::field::FieldError;
use crate::model::queue::Lease;
use crate::model::{QueueSettings, Retry};

/// What a task gets where neither it nor its queue says something: the installation's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defaults {
    /// When it is tried again.
    pub retry: Retry,
    /// Lease of the started task, in ms; nothing for the usual one.
    pub lease_ms: Option<u32>,
    /// Longest run of its handler, in ms; nothing for none.
    pub timeout_ms: Option<u32>,
    /// Latest start after the due time, in ms; nothing for none.
    pub start_within_ms: Option<i64>,
    /// Total time-out from the due time on, in ms; nothing for none.
    pub expire_after_ms: Option<i64>,
}

/// What holds for one task. Times that are not there mean none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    pub retry: Retry,
    pub lease_ms: Option<u32>,
    pub timeout_ms: Option<u32>,
    pub start_within_ms: Option<i64>,
    pub expire_after_ms: Option<i64>,
}

impl Defaults {
    /// What holds for a task of a queue with these settings.
    pub(super) fn resolve(&self, task: &NewTask, queue: &QueueSettings) -> Result<Resolved, FieldError> {
        let mut retry = match &queue.retry {
            Some(own) => own.over(self.retry)?,
            None => self.retry,
        };
        if let Some(backoff) = task.backoff {
            retry = backoff.with_retries(u32::from(retry.retries))?;
        }
        if let Some(retries) = task.retries {
            retry = retry.with_retries(retries)?;
        }
        let times = queue.timeouts.clone().unwrap_or_default();
        fn pick<T: PartialEq + Default>(own: Option<T>, queue: Option<T>, base: Option<T>) -> Option<T> {
            own.or(queue).or(base).filter(|ms| *ms != T::default())
        }
        let small = |ms: i64| u32::try_from(ms).unwrap_or(u32::MAX);
        let lease = match queue.lease {
            Some(Lease::Fixed { ms }) => Some(small(ms)),
            // It follows from the runs: executors know them.
            Some(Lease::Auto) => Some(0),
            None => None,
        };
        Ok(Resolved {
            retry,
            lease_ms: pick(task.lease_ms, lease, self.lease_ms),
            timeout_ms: pick(task.timeout_ms, times.execution_ms.map(small), self.timeout_ms),
            start_within_ms: pick(task.start_within_ms, times.start_within_ms, self.start_within_ms),
            expire_after_ms: pick(task.expire_after_ms, times.total_ms, self.expire_after_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::QueueName;
    use crate::model::queue::{TimeoutDefaults, TryDefaults};

    #[test]
    fn a_task_comes_before_its_queue_and_a_queue_before_the_installation() {
        let retry = "fixed:1s".parse::<Retry>().unwrap().with_retries(9).unwrap();
        let defaults = Defaults {
            retry,
            lease_ms: Some(60_000),
            timeout_ms: Some(1_000),
            start_within_ms: Some(1_000),
            expire_after_ms: Some(1_000),
        };
        let plain = NewTask::to(QueueName::new("q").unwrap());
        let nothing = QueueSettings::default();
        let of = |task: &NewTask, queue: &QueueSettings| defaults.resolve(task, queue).unwrap();
        let base = of(&plain, &nothing);
        assert_eq!((base.retry, base.lease_ms, base.timeout_ms), (retry, Some(60_000), Some(1_000)));
        let queue = QueueSettings {
            retry: Some(TryDefaults { retries: Some(4), backoff: None }),
            timeouts: Some(TimeoutDefaults {
                execution_ms: Some(2_000),
                total_ms: Some(0),
                ..TimeoutDefaults::default()
            }),
            lease: Some(Lease::Fixed { ms: 45_000 }),
            ..QueueSettings::default()
        };
        let queued = of(&plain, &queue);
        assert_eq!((queued.retry.retries, queued.retry.wait_ms(1)), (4, retry.wait_ms(1)));
        assert_eq!((queued.lease_ms, queued.timeout_ms), (Some(45_000), Some(2_000)));
        // A queue takes a time-out away by 0; what it does not name is the installation's.
        assert_eq!((queued.expire_after_ms, queued.start_within_ms), (None, Some(1_000)));
        let own = NewTask {
            backoff: Some("linear:2s".parse().unwrap()),
            timeout_ms: Some(0),
            start_within_ms: Some(7),
            ..plain.clone()
        };
        let own_says = of(&own, &queue);
        assert_eq!((own_says.retry.retries, own_says.retry.base_ms), (4, 2_000));
        assert_eq!((own_says.timeout_ms, own_says.start_within_ms), (None, Some(7)));
        assert_eq!(of(&NewTask { retries: Some(0), ..plain.clone() }, &queue).retry.retries, 0);
        let auto = QueueSettings { lease: Some(Lease::Auto), ..QueueSettings::default() };
        assert_eq!(of(&plain, &auto).lease_ms, None, "executors choose it, whatever the installation says");
        assert_eq!(of(&NewTask { lease_ms: Some(5_000), ..plain.clone() }, &auto).lease_ms, Some(5_000));
        let error = defaults.resolve(&NewTask { retries: Some(255), ..plain }, &nothing).unwrap_err();
        assert_eq!(error.field, "retries");
    }
}
