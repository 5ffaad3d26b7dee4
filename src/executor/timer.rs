//! Starts what was taken ahead of its time on its millisecond.
//!
//! Tokio's timers end on whole milliseconds, rounded up. A thread that does nothing but sleep wakes within some
//! 0.1 ms, so the last moment is slept there.

use super::link::Link;
use super::runner::Core;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Waits of at most this long are left to the thread alone; of longer ones the rest.
const EXACT: Duration = Duration::from_millis(3);

/// A thread that sleeps for one task at a time.
pub(super) struct Timer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    reached: Notify,
}

#[derive(Default)]
struct State {
    at: Option<Instant>,
    ended: bool,
}

impl Timer {
    /// Starts its thread.
    pub fn new() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name("start-timer".into()).spawn(move || own.run())?;
        Ok(Self { shared })
    }

    /// Sleeps until `at`. Only one caller at a time; a dropped call is forgotten.
    pub async fn until(&self, at: Instant) {
        if let Some(early) = at.checked_sub(EXACT).filter(|early| *early > crate::clock::mono()) {
            tokio::time::sleep_until(early.into()).await;
        }
        self.shared.state.lock().at = Some(at);
        self.shared.changed.notify_one();
        while crate::clock::mono() < at {
            self.shared.reached.notified().await;
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            match state.at {
                Some(at) if crate::clock::mono() >= at => {
                    state.at = None;
                    self.reached.notify_one();
                }
                Some(at) => {
                    let _ = self.changed.wait_until(&mut state, at);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

/// Gives slots to tasks whose time has come, until this executor closes.
pub(super) async fn start_in_time<L: Link>(core: Arc<Core<L>>) {
    loop {
        let next = core.hands.next_start();
        let time = async {
            match next {
                Some(at) => core.link.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = core.closing.cancelled() => return,
            () = core.hands.sooner.notified() => {}
            () = time => core.launch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::mono;

    #[tokio::test]
    async fn it_never_wakes_early_and_a_dropped_sleep_is_forgotten() {
        let timer = Timer::new().unwrap();
        for us in [0, 100, 900, 2_000, 5_000] {
            let at = mono() + Duration::from_micros(us);
            timer.until(at).await;
            assert!(mono() >= at);
        }
        let far = mono() + Duration::from_secs(3_600);
        let cut = tokio::time::timeout(Duration::from_millis(5), timer.until(far)).await;
        assert!(cut.is_err());
        let at = mono() + Duration::from_millis(2);
        timer.until(at).await;
        assert!(mono() >= at);
    }
}
