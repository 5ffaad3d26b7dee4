//! What the claim loops of a pod do with their time, and how busy its process is.

use crate::clock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest time over which shares are taken.
const SAMPLE_MIN: Duration = Duration::from_millis(900);

/// The time that one claim loop has spent, in µs.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    busy_us: AtomicU64,
    starved_us: AtomicU64,
    tasks: AtomicU64,
}

impl Meter {
    /// It claimed so many tasks, which took from `start` until now.
    pub fn worked(&self, start: Instant, tasks: usize) {
        self.busy_us.fetch_add(since_us(start), Ordering::Relaxed);
        self.tasks.fetch_add(tasks as u64, Ordering::Relaxed);
    }

    /// It has waited for room from `start` until now.
    pub fn starved(&self, start: Instant) {
        self.starved_us.fetch_add(since_us(start), Ordering::Relaxed);
    }
}

fn since_us(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// What one claim loop did lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopLoad {
    pub bucket: u16,
    pub busy_permille: u16,
    pub starved_permille: u16,
}

#[derive(Debug, Default)]
struct Sample {
    at: Option<Instant>,
    cpu: Duration,
    seen: BTreeMap<u16, [u64; 3]>,
    loads: Vec<LoopLoad>,
    cpu_permille: u16,
}

/// The meters of a pod's claim loops.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    loops: Mutex<BTreeMap<u16, Arc<Meter>>>,
    sample: Mutex<Sample>,
}

impl Meters {
    /// The meter of a bucket's loop.
    pub fn of(&self, bucket: u16) -> Arc<Meter> {
        Arc::clone(self.loops.lock().entry(bucket).or_default())
    }

    /// Forgets the meter of a bucket that is no longer held.
    pub fn forget(&self, bucket: u16) {
        self.loops.lock().remove(&bucket);
    }

    /// What the loops that were not idle did lately, and the share of its processors that this process used.
    pub fn sample(&self) -> (Vec<LoopLoad>, u16) {
        let mut sample = self.sample.lock();
        let now = clock::mono();
        let passed = sample.at.map(|at| now.saturating_duration_since(at));
        if passed.is_some_and(|passed| passed < SAMPLE_MIN) {
            return (sample.loads.clone(), sample.cpu_permille);
        }
        let cpu = cpu_time();
        let mut seen = BTreeMap::new();
        for (bucket, meter) in self.loops.lock().iter() {
            let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
            seen.insert(*bucket, [read(&meter.busy_us), read(&meter.starved_us), read(&meter.tasks)]);
        }
        if let Some(passed) = passed {
            sample.loads = loads(&sample.seen, &seen, passed);
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            sample.cpu_permille = permille(cpu.saturating_sub(sample.cpu), passed * cores as u32);
        }
        (sample.at, sample.cpu, sample.seen) = (Some(now), cpu, seen);
        (sample.loads.clone(), sample.cpu_permille)
    }
}

fn loads(before: &BTreeMap<u16, [u64; 3]>, now: &BTreeMap<u16, [u64; 3]>, passed: Duration) -> Vec<LoopLoad> {
    let mut out = Vec::new();
    for (bucket, now) in now {
        let before = before.get(bucket).copied().unwrap_or_default();
        let [busy, starved, tasks] = [0, 1, 2].map(|at| now[at].saturating_sub(before[at]));
        let share = |us| permille(Duration::from_micros(us), passed);
        // A loop that only looks now and then is idle, and not worth telling of.
        let busy_permille = share(busy);
        if tasks > 0 || starved > 0 || busy_permille >= 50 {
            let busy_permille = busy_permille.max(1);
            out.push(LoopLoad { bucket: *bucket, busy_permille, starved_permille: share(starved) });
        }
    }
    out
}

fn permille(part: Duration, whole: Duration) -> u16 {
    if whole.is_zero() {
        return 0;
    }
    (part.as_secs_f64() / whole.as_secs_f64() * 1_000.0).clamp(0.0, 1_000.0) as u16
}

/// Processor time that this process has used.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes a whole `rusage` into the room it is given, or fails and leaves it zeroed.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| {
        let whole = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        whole + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_time_between_two_samples() {
        let before = BTreeMap::from([(1, [500_000, 0, 10]), (2, [0, 0, 0])]);
        let now = BTreeMap::from([
            (1, [1_300_000, 100_000, 20]),
            (2, [10_000, 0, 0]),
            (3, [400, 0, 1]),
            (4, [0; 3]),
        ]);
        let told = loads(&before, &now, Duration::from_secs(1));
        let load =
            |bucket, busy_permille, starved_permille| LoopLoad { bucket, busy_permille, starved_permille };
        assert_eq!(told, [load(1, 800, 100), load(3, 1, 0)], "idle loops are left out");
        assert!(cpu_time() > Duration::ZERO);
    }
}
