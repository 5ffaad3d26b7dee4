//! Which buckets this pod claims from: its fair share by rendezvous preference, followed as pods and buckets come and go.

use super::Shared;
use super::scheduler;
use crate::model::Bucket;
use crate::model::share::fair_share;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often the share is looked at when nothing else says so.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts and stops claim loops until `stop` fires; then all have let go of their buckets.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut loops: HashMap<Bucket, (CancellationToken, JoinHandle<()>)> = HashMap::new();
    let mut view = shared.view.clone();
    loop {
        let pods = view.borrow_and_update().pods.clone();
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        let spread = shared.space.spread();
        let mut live: Vec<Bucket> = spread.live().collect();
        live.sort_unstable();
        live.dedup();
        let of = |bucket: Bucket| spread.holders_of(bucket.number());
        let mine: BTreeSet<Bucket> = fair_share(&shared.settings.id, &names, &live, of).into_iter().collect();
        let gone: Vec<Bucket> = loops.keys().filter(|bucket| !mine.contains(bucket)).copied().collect();
        for bucket in gone {
            if let Some((cancel, _)) = loops.remove(&bucket) {
                tracing::debug!(%bucket, "letting go of a bucket");
                cancel.cancel();
            }
        }
        for bucket in mine {
            // A loop ends only when told to; should one have died of a bug, it is started again.
            let dead = loops.get(&bucket).is_some_and(|(_, handle)| handle.is_finished());
            if dead {
                tracing::error!(%bucket, "a claim loop ended by itself; starting it again");
            }
            if dead || !loops.contains_key(&bucket) {
                let cancel = stop.child_token();
                let handle = tokio::spawn(scheduler::run(Arc::clone(&shared), bucket, cancel.clone()));
                loops.insert(bucket, (cancel, handle));
            }
        }
        shared.tally.buckets.store(loops.len() as u64, Ordering::Relaxed);
        shared.dispatcher.owns(loops.keys().map(|bucket| bucket.number()).collect());
        tokio::select! {
            () = stop.cancelled() => break,
            changed = view.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    for (_, (cancel, handle)) in loops {
        cancel.cancel();
        let _ = handle.await;
    }
}
