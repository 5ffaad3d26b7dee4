//! Whether Redis is still fit for use: looked at whenever a connection was made anew, and from time to time.

use super::Shared;
use crate::clock;
use crate::metric;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often it is asked whether a connection was made since: that costs no call.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often Redis is asked though no connection was made: somebody may have changed its settings.
const ASK_EVERY: Duration = Duration::from_secs(15);

/// Looks until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let store = shared.space.store();
    let (mut seen, mut asked, mut unsafe_now) = (0, None, None::<String>);
    loop {
        let connections = store.connections_made();
        let now = clock::mono();
        let old = asked.is_none_or(|at| now.saturating_duration_since(at) >= ASK_EVERY);
        if connections != seen || old {
            // An error here is told by those who have work to do.
            if let Ok(found) = store.evicting_policy().await {
                (seen, asked) = (connections, Some(now));
                metric::handles().redis_evicting.set(if found.is_some() { 1.0 } else { 0.0 });
                match (&found, &unsafe_now) {
                    (Some(policy), was) if was.as_ref() != Some(policy) => tracing::error!(
                        policy,
                        "redis may delete tasks when its memory is full; set maxmemory-policy to noeviction"
                    ),
                    (None, Some(_)) => tracing::info!("redis no longer deletes keys when its memory is full"),
                    (Some(_), _) | (None, None) => {}
                }
                unsafe_now = found;
            }
        }
        if let Some(policy) = &unsafe_now {
            let cause =
                format!("eviction_policy_unsafe: maxmemory-policy is {policy}, redis may delete tasks");
            shared.ready.failing(clock::mono(), cause);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
