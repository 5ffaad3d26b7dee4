//! How long this machine let those wait who wished to run: what no code can help, and what bounds of time must leave room for.

use crate::clock::mono;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that sleeps for a moment over and over, and notes how much too late it wakes.
#[derive(Debug)]
pub struct Stalls {
    stop: Arc<AtomicBool>,
    watch: JoinHandle<Duration>,
}

impl Stalls {
    /// Watches from now on.
    pub fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let watch = std::thread::spawn(move || {
            let (mut longest, nap) = (Duration::ZERO, Duration::from_millis(5));
            while !told.load(Ordering::Relaxed) {
                let start = mono();
                std::thread::sleep(nap);
                longest = longest.max(start.elapsed().saturating_sub(nap));
            }
            longest
        });
        Self { stop, watch }
    }

    /// The longest stall so far.
    pub fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.watch.join().unwrap_or_default()
    }

    /// The same in ms.
    pub fn end(self) -> i64 {
        i64::try_from(self.longest().as_millis()).unwrap_or(i64::MAX)
    }
}
