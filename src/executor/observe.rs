//! The executor's metrics, in one place.

use super::link::AckAnswer;
use crate::metric::handles;
use std::time::Duration;

/// A handler was entered.
pub(super) fn started(lag_ms: i64) {
    handles().start_lag.record(lag_ms as f64 / 1_000.0);
}

/// A batch of outcomes was answered.
pub(super) fn acked(answers: &[AckAnswer], took: Duration) {
    let handles = handles();
    handles.acks_duration.record(took.as_secs_f64());
    for (name, count) in tally(answers) {
        if count > 0 {
            handles.acks.add(name, count);
        }
    }
}

fn tally(answers: &[AckAnswer]) -> [(&'static str, u64); 7] {
    let mut counts = [
        ("succeeded", 0),
        ("retrying", 0),
        ("dead", 0),
        ("cancelled", 0),
        ("skipped", 0),
        ("stale", 0),
        ("known", 0),
    ];
    for answer in answers {
        let at = match answer {
            AckAnswer::Succeeded => 0,
            AckAnswer::Retrying { .. } => 1,
            AckAnswer::Dead => 2,
            AckAnswer::Cancelled => 3,
            AckAnswer::Skipped => 4,
            AckAnswer::Stale => 5,
            AckAnswer::Known => 6,
        };
        counts[at].1 += 1;
    }
    counts
}

/// Tasks were handed back.
pub(super) fn handed_back(count: u64) {
    handles().handed_back.add("stop", count);
}

/// Slots, and how many of them run a task.
pub(super) fn slots(slots: u32, busy: u32) {
    handles().executor_slots.set(f64::from(slots));
    handles().executor_busy.set(f64::from(busy));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::ACK_OUTCOMES;

    #[test]
    fn every_answer_has_its_label() {
        assert_eq!(tally(&[]).map(|(name, _)| name).as_slice(), ACK_OUTCOMES);
        assert_eq!(
            tally(&[AckAnswer::Dead, AckAnswer::Dead, AckAnswer::Known]).map(|(_, n)| n),
            [0, 0, 2, 0, 0, 0, 1]
        );
    }
}
