//! The one reader of the local clock: for sleeping and for measuring, never for deciding.
//!
//! What is due, lapsed or lost is decided by Redis's clock. What stands here serves to sleep until
//! a time that Redis named, and to say how long something took.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Now, on the local monotonic clock.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn mono() -> Instant {
    Instant::now()
}

/// Microseconds since 1970 by the local wall clock. Only to estimate the distance to Redis's clock,
/// and to stamp log lines.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_us() -> i64 {
    match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

/// Milliseconds that passed since `start`, rounded down.
pub fn elapsed_ms(start: Instant) -> i64 {
    i64::try_from(mono().saturating_duration_since(start).as_millis()).unwrap_or(i64::MAX)
}

/// A whole number of milliseconds as a `Duration`; nothing for a negative one.
pub fn ms(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// The Redis clock as seen from this process: the local monotonic clock plus an offset that is
/// renewed by each answer that carries Redis's time.
///
/// An estimate has an error of at most half of its round trip, so the offset from the shortest
/// recent round trip is kept. It serves to sleep and to measure; scripts decide.
#[derive(Debug)]
pub struct RedisClock {
    origin: Instant,
    inner: parking_lot::Mutex<Estimate>,
    floor: parking_lot::Mutex<Floor>,
    /// Redis time in µs at which tests hold it; [`UNKNOWN`] lets it run.
    held_us: AtomicI64,
}

/// The surest lower bound of the distance between Redis's clock and the local one.
///
/// Redis said `redis_us` before its answer arrived, so its clock is at least that far ahead. The best
/// answer of a while is kept; each also says what the distance is at most, which shows a leap back.
#[derive(Debug, Clone, Copy)]
struct Floor {
    /// Redis time less local µs since `origin`, at least; best of this window.
    young_us: i64,
    /// The same, best of the window before.
    old_us: i64,
    /// When this window began, in local µs since `origin`.
    since_us: i64,
}

/// No lower bound is known.
const UNKNOWN: i64 = i64::MIN;
/// An answer counts for this window and the next.
const FLOOR_WINDOW_US: i64 = 250_000;
/// How much two clocks may drift apart meanwhile: 100 µs a second, for the up to three windows that the
/// older answers may be old.
const FLOOR_DRIFT_US: i64 = 3 * FLOOR_WINDOW_US / 10_000;
/// Without an answer for this long nothing is known any more.
const FLOOR_KEPT_US: i64 = 10_000_000;

/// How long to wait where time is held.
const HELD_WAIT: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy)]
struct Estimate {
    /// Redis time in µs at `origin`, as estimated.
    at_origin_us: i64,
    /// Round trip of the sample that made the estimate, in µs.
    round_trip_us: i64,
    /// Local µs since `origin` at which the sample was taken.
    taken_us: i64,
    known: bool,
}

impl Default for RedisClock {
    fn default() -> Self {
        Self::new()
    }
}

impl RedisClock {
    /// A clock that follows the local wall clock until the first sample.
    pub fn new() -> Self {
        let inner = Estimate { at_origin_us: wall_us(), round_trip_us: i64::MAX, taken_us: 0, known: false };
        let floor = Floor { young_us: UNKNOWN, old_us: UNKNOWN, since_us: 0 };
        Self {
            origin: mono(),
            inner: parking_lot::Mutex::new(inner),
            floor: parking_lot::Mutex::new(floor),
            held_us: AtomicI64::new(UNKNOWN),
        }
    }

    /// From now on it stands still at this time, until it is held at another. For tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn hold_at(&self, now_ms: i64) {
        self.held_us.store(now_ms.saturating_mul(1_000), Ordering::Release);
    }

    /// Where it is held, in µs.
    pub(crate) fn held_us(&self) -> Option<i64> {
        Some(self.held_us.load(Ordering::Acquire)).filter(|us| *us != UNKNOWN)
    }

    fn local_us(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
    }

    /// Takes one sample: Redis said `redis_us` somewhere between `sent` and now.
    pub fn sample(&self, sent: Instant, redis_us: i64) {
        let (sent_us, got_us) = (self.local_us(sent), self.local_us(mono()));
        let round_trip_us = got_us - sent_us;
        let at_origin_us = redis_us - (sent_us + round_trip_us / 2);
        self.floor.lock().sample(redis_us - got_us, redis_us - sent_us, got_us);
        let mut now = self.inner.lock();
        let age_us = got_us - now.taken_us;
        let off_us = (at_origin_us - now.at_origin_us).abs();
        // A better sample, an aged one (drift of 100 ppm over 10 s is 1 ms), or a leap.
        let replace = !now.known
            || round_trip_us <= now.round_trip_us
            || age_us > 10_000_000
            || off_us > round_trip_us + now.round_trip_us + 2_000;
        if replace {
            *now = Estimate { at_origin_us, round_trip_us, taken_us: got_us, known: true };
        }
    }

    /// Redis time now, in µs, as estimated.
    pub fn now_us(&self) -> i64 {
        self.at_us(mono())
    }

    /// Redis time in µs at a local instant, as estimated.
    pub fn at_us(&self, at: Instant) -> i64 {
        self.held_us().unwrap_or_else(|| self.inner.lock().at_origin_us + self.local_us(at))
    }

    /// The local instant from which on Redis's clock surely shows `at_ms` or later; none where no answer is
    /// young enough to tell. It comes a little late, by the fastest answer's way back.
    pub fn surely_at(&self, at_ms: i64) -> Option<Instant> {
        let now_us = self.local_us(mono());
        let offset_us = self.floor.lock().at(now_us)?;
        let local_us = at_ms.saturating_mul(1_000).saturating_sub(offset_us);
        self.origin.checked_add(Duration::from_micros(u64::try_from(local_us).unwrap_or(0)))
    }

    /// Redis time now, in ms, as estimated.
    pub fn now_ms(&self) -> i64 {
        self.now_us().div_euclid(1_000)
    }

    /// How long to sleep until Redis's clock shows `at_ms`; zero when it already does.
    pub fn until_ms(&self, at_ms: i64) -> Duration {
        let us = at_ms.saturating_mul(1_000).saturating_sub(self.now_us());
        // Time that is held moves by leaps, of which those who wait are told.
        if us > 0 && self.held_us().is_some() {
            return HELD_WAIT;
        }
        Duration::from_micros(u64::try_from(us).unwrap_or(0))
    }
}

impl Floor {
    fn sample(&mut self, least_us: i64, most_us: i64, now_us: i64) {
        if self.young_us.max(self.old_us) > most_us {
            // The clock leapt back, or another server answers.
            *self = Self { young_us: least_us, old_us: UNKNOWN, since_us: now_us };
        } else if now_us - self.since_us >= FLOOR_WINDOW_US {
            let old_us = if now_us - self.since_us < 2 * FLOOR_WINDOW_US { self.young_us } else { UNKNOWN };
            *self = Self { young_us: least_us, old_us, since_us: now_us };
        } else {
            self.young_us = self.young_us.max(least_us);
        }
    }

    fn at(&self, now_us: i64) -> Option<i64> {
        let known = self.young_us.max(self.old_us);
        let age_us = now_us - self.since_us;
        if known == UNKNOWN || age_us >= FLOOR_KEPT_US {
            return None;
        }
        Some(known - FLOOR_DRIFT_US - (age_us - FLOOR_WINDOW_US).max(0) / 10_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_bound_is_never_above_the_clock_that_answers() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut floor = Floor { young_us: UNKNOWN, old_us: UNKNOWN, since_us: 0 };
        assert_eq!(floor.at(0), None);
        let (mut now, mut offset, mut best) = (0, chance.i64(-1_000_000..1_000_000), i64::MAX);
        for step in 0..20_000 {
            now += chance.i64(0..50_000);
            offset += chance.i64(-1..=1);
            let (there, back) = (chance.i64(20..3_000), chance.i64(20..3_000));
            let said = now + offset;
            let (sent, got) = (now - there, now + back);
            floor.sample(said - got, said - sent, got);
            now = got;
            let bound = floor.at(now).unwrap();
            assert!(bound <= offset, "step {step}: {bound} is above {offset}");
            best = best.min(offset - bound);
            if step % 5_000 == 4_999 {
                // The clock leaps, either way: the next answer is believed.
                offset += if chance.bool() { 120_000_000 } else { -120_000_000 };
                floor.sample(offset - 100, offset + 100, now);
                assert_eq!(floor.at(now), Some(offset - 100 - FLOOR_DRIFT_US));
            }
        }
        assert!(best < FLOOR_DRIFT_US + 500, "close where answers were fast: {best}");
        assert_eq!(floor.at(now + FLOOR_KEPT_US), None, "old answers tell nothing");
    }

    #[test]
    fn a_sample_sets_the_clock_and_a_leap_replaces_it() {
        let clock = RedisClock::new();
        clock.sample(mono(), 5_000_000_000);
        assert!((clock.now_us() - 5_000_000_000).abs() < 1_000_000);
        clock.sample(mono(), 95_000_000_000);
        assert!((clock.now_us() - 95_000_000_000).abs() < 1_000_000);
        assert_eq!(clock.until_ms(1), Duration::ZERO);
    }
}
