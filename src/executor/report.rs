//! Adds up how long tasks run with what other executors know, and follows the leases that are set for queues.

use super::Core;
use super::hands::Queue;
use super::inbox::Queues;
use super::link::Link;
use crate::limits;
use crate::model::QueueName;
use crate::model::queue::Lease;
use crate::model::runs::Runs;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often runs are reported and leases looked up.
const EVERY: Duration = Duration::from_secs(20);

/// The lease of tasks that name none: what is set for their queue, or what follows from their runs.
fn lease_ms(set: Option<Lease>, runs: &Runs) -> i64 {
    match set {
        Some(Lease::Fixed { ms }) => ms,
        Some(Lease::Auto) => runs.suggested_lease_ms().unwrap_or(limits::LEASE_MS),
        None => limits::LEASE_MS,
    }
}

/// What is to be reported of these queues.
pub(super) fn news(queues: &[Arc<Queue>]) -> Vec<(QueueName, Runs)> {
    queues.iter().map(|queue| (queue.name.clone(), queue.take_runs())).collect()
}

/// Takes the leases from the answer to a report. What could not be reported counts the next time.
pub(super) fn heard(
    queues: &[Arc<Queue>],
    new: &[(QueueName, Runs)],
    told: Result<Vec<(Runs, Option<Lease>)>, StoreError>,
) {
    match told {
        Ok(told) => {
            for (queue, (runs, set)) in queues.iter().zip(told) {
                queue.set_lease(lease_ms(set, &runs));
            }
        }
        Err(error) => {
            tracing::debug!(%error, "could not report how long tasks ran; the next report has it");
            queues.iter().zip(new).for_each(|(queue, (_, runs))| queue.put_back(runs));
        }
    }
}

/// Lets the time between two reports pass: not all executors report at once.
pub(super) async fn pause() {
    tokio::time::sleep(EVERY.mul_f64(fastrand::f64().mul_add(0.2, 0.9))).await;
}

/// Reports until `done`, and once more then. What cannot be reported counts the next time.
pub(super) async fn run<L: Link>(core: Arc<Core<L>>, queues: Arc<Queues>, done: CancellationToken) {
    loop {
        for queues in queues.all().chunks(limits::RUNS_QUEUES_MAX) {
            let new = news(queues);
            let told = core.link.runs(&new).await;
            heard(queues, &new, told);
        }
        if done.is_cancelled() {
            return;
        }
        tokio::select! {
            () = done.cancelled() => {}
            () = pause() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_what_is_set_or_follows_from_the_runs() {
        let mut runs = Runs::default();
        assert_eq!(lease_ms(Some(Lease::Auto), &runs), limits::LEASE_MS);
        (0..100).for_each(|_| runs.add(60_000, false));
        assert_eq!(lease_ms(None, &runs), limits::LEASE_MS);
        assert_eq!(lease_ms(Some(Lease::Fixed { ms: 5_000 }), &runs), 5_000);
        assert_eq!(lease_ms(Some(Lease::Auto), &runs), 60_000 * 3 + 30_000);
    }
}
