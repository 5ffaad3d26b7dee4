//! A trouble is told once a second for each kind of it, whoever meets it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Shortest time between two lines about the same trouble.
const EVERY: Duration = Duration::from_secs(1);

/// When each kind of trouble was last told. Kinds are words of the code, so there are few.
#[derive(Debug, Default)]
pub struct Complaints {
    told: Mutex<HashMap<&'static str, (Instant, u64)>>,
}

impl Complaints {
    /// Whether to tell of this trouble now; then how often it was met and not told since the last time.
    pub fn tell(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut told = self.told.lock();
        match told.get_mut(kind) {
            Some((last, kept)) if now.saturating_duration_since(*last) < EVERY => {
                *kept += 1;
                None
            }
            Some(entry) => Some(std::mem::replace(entry, (now, 0)).1),
            None => {
                told.insert(kind, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_a_second_with_what_was_kept_back() {
        let complaints = Complaints::default();
        let start = crate::clock::mono();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(complaints.tell("oom", at(0)), Some(0));
        assert_eq!(complaints.tell("oom", at(10)), None);
        assert_eq!(complaints.tell("busy", at(20)), Some(0));
        assert_eq!(complaints.tell("oom", at(999)), None);
        assert_eq!(complaints.tell("oom", at(1_000)), Some(2));
        assert_eq!(complaints.tell("oom", at(2_000)), Some(0));
    }
}
