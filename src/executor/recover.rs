//! What an earlier process left in the journal is reported before anything is taken.

use super::journal::Recovered;
use super::link::{AckAnswer, AckRow, Link, Outcome};
use super::runner::Core;
use crate::limits;
use crate::model::{Bucket, ExecutionId};
use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;

/// What is said of a handler that was entered and never ended.
pub(super) const CRASHED: &str = "executor crashed while running it";

/// Reports outcomes as they were, and what never ended as a failure that counts, all under the grants
/// they had. Tries until Redis has answered. False: told to end before that; the journal keeps the rest.
pub(super) async fn run<L: Link>(core: &Core<L>, recovered: Recovered, shutdown: &CancellationToken) -> bool {
    let (finished, crashed) = (recovered.finished.len(), recovered.begun.len());
    if finished + crashed == 0 {
        return true;
    }
    tracing::warn!(
        executor = %core.id, finished, crashed,
        "the last executor with this journal did not end in order; its work is reported first"
    );
    let mut by_bucket = BTreeMap::<Bucket, Vec<AckRow>>::new();
    let crashed = recovered.begun.into_iter().map(|ExecutionId { id, grant }| AckRow {
        id,
        grant,
        outcome: Outcome::Failed { error: CRASHED.into() },
        lag_ms: -1,
        took_ms: 0,
    });
    for row in recovered.finished.into_iter().chain(crashed) {
        by_bucket.entry(row.id.bucket()).or_default().push(row);
    }
    let chunks =
        |rows: Vec<AckRow>| rows.chunks(limits::BATCH_MAX_ROWS).map(<[_]>::to_vec).collect::<Vec<_>>();
    let mut left: Vec<(Bucket, Vec<AckRow>)> = by_bucket
        .into_iter()
        .flat_map(|(bucket, rows)| chunks(rows).into_iter().map(move |rows| (bucket, rows)))
        .collect();
    let mut tally = Tally::default();
    let mut rounds = 0;
    while !left.is_empty() {
        let mut again = Vec::new();
        for (bucket, rows) in left {
            let asked = core.link.ack(bucket, &rows, true);
            let Some(answers) = shutdown.run_until_cancelled(asked).await else { return false };
            match answers {
                Ok(answers) => tally.take(core, &answers),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%bucket, rows = rows.len(), %error, "could not report what the journal holds; trying again");
                    again.push((bucket, rows));
                    continue;
                }
                Err(error) => {
                    core.stats.lost(rows.len());
                    tracing::error!(
                        %bucket, rows = rows.len(), %error,
                        "could not report what the journal holds; it is dropped, and the tasks come back when their leases lapse"
                    );
                }
            }
            let done: Vec<_> = rows.iter().map(|row| ExecutionId { id: row.id, grant: row.grant }).collect();
            core.settle(&done);
        }
        left = again;
        if !left.is_empty() {
            rounds += 1;
            let pause = tokio::time::sleep(super::backoff(rounds));
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return false;
            }
        }
    }
    let Tally { accepted, known, stale } = tally;
    tracing::info!(executor = %core.id, accepted, known, stale, "what the journal held is reported");
    true
}

#[derive(Default)]
struct Tally {
    accepted: u64,
    /// Accepted from the process before; only the answer was lost.
    known: u64,
    /// Too late: others have these tasks by now, or they have ended.
    stale: u64,
}

impl Tally {
    fn take<L: Link>(&mut self, core: &Core<L>, answers: &[AckAnswer]) {
        for answer in answers {
            match answer {
                AckAnswer::Succeeded
                | AckAnswer::Retrying { .. }
                | AckAnswer::Dead
                | AckAnswer::Cancelled
                | AckAnswer::Skipped => {
                    self.accepted += 1;
                    core.stats.recovered();
                }
                AckAnswer::Known => self.known += 1,
                AckAnswer::Stale => {
                    self.stale += 1;
                    core.stats.stale();
                }
            }
        }
    }
}
