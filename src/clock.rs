//! The one reader of the local clock: for sleeping and for measuring, never for deciding.
//!
//! What is due, lapsed or lost is decided by Redis's clock. What stands here serves to sleep until
//! a time that Redis named, and to say how long something took.

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
}

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
        Self { origin: mono(), inner: parking_lot::Mutex::new(inner) }
    }

    fn local_us(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
    }

    /// Takes one sample: Redis said `redis_us` somewhere between `sent` and now.
    pub fn sample(&self, sent: Instant, redis_us: i64) {
        let (sent_us, got_us) = (self.local_us(sent), self.local_us(mono()));
        let round_trip_us = got_us - sent_us;
        let at_origin_us = redis_us - (sent_us + round_trip_us / 2);
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
        self.inner.lock().at_origin_us + self.local_us(at)
    }

    /// Redis time now, in ms, as estimated.
    pub fn now_ms(&self) -> i64 {
        self.now_us().div_euclid(1_000)
    }

    /// How long to sleep until Redis's clock shows `at_ms`; zero when it already does.
    pub fn until_ms(&self, at_ms: i64) -> Duration {
        let us = at_ms.saturating_mul(1_000).saturating_sub(self.now_us());
        Duration::from_micros(u64::try_from(us).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
