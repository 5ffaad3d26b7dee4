//! A queue as this executor serves it.

use crate::executor::handler::Handler;
use crate::limits;
use crate::model::runs::Runs;
use crate::model::{Labels, QueueName};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Weight of the latest run in the moving averages: the last ten or so count.
const AVERAGE_WEIGHT: f64 = 0.1;

/// A queue as this executor serves it.
pub(in crate::executor) struct Queue {
    pub name: QueueName,
    /// None: offered by mistake.
    pub handler: Option<Handler>,
    /// Moving average of the run time in ms, as the bits of an `f64`; NaN until the first run.
    average_ms: AtomicU64,
    /// Runs that have not been reported yet.
    runs: Mutex<Runs>,
    /// Lease of tasks that name none, in ms.
    lease_ms: AtomicI64,
}

impl Queue {
    pub fn new(name: QueueName, handler: Option<Handler>) -> Self {
        Self {
            name,
            handler,
            average_ms: AtomicU64::new(f64::NAN.to_bits()),
            runs: Mutex::default(),
            lease_ms: AtomicI64::new(limits::LEASE_MS),
        }
    }

    pub fn average_ms(&self) -> Option<f64> {
        let value = f64::from_bits(self.average_ms.load(Ordering::Relaxed));
        (!value.is_nan()).then_some(value)
    }

    /// Runs since this was last asked.
    pub fn take_runs(&self) -> Runs {
        std::mem::take(&mut *self.runs.lock())
    }

    /// Runs that could not be reported count the next time.
    pub fn put_back(&self, runs: &Runs) {
        self.runs.lock().merge(runs);
    }

    /// Tasks that arrive from now on and name no lease get this one.
    pub fn set_lease(&self, ms: i64) {
        self.lease_ms.store(ms, Ordering::Relaxed);
    }

    /// Lease of tasks that name none, in ms.
    pub fn lease_ms(&self) -> i64 {
        self.lease_ms.load(Ordering::Relaxed)
    }

    /// Only called under the lock of the table.
    pub fn took(&self, ms: f64, failed: bool) {
        self.runs.lock().add(ms as i64, failed);
        let average = averaged(self.average_ms(), ms);
        self.average_ms.store(average.to_bits(), Ordering::Relaxed);
    }
}

/// A moving average with one more value.
pub(in crate::executor) fn averaged(average: Option<f64>, value: f64) -> f64 {
    average.map_or(value, |average| average + (value - average) * AVERAGE_WEIGHT)
}

/// What a lane code stands for here.
#[derive(Clone)]
pub(in crate::executor) struct Route {
    pub queue: Arc<Queue>,
    pub labels: Arc<Labels>,
}
