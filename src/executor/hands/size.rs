//! How much an executor may hold: its slots, and what is fetched ahead of them.

use super::held::Pool;
use super::{Inner, NORMAL, URGENT};
use crate::limits;

/// Work fetched ahead of free slots, in time: covers the way from "there is room" to the next offer.
const PREFETCH_MS: f64 = 10.0;
/// Most tasks fetched ahead unless set otherwise: one batch.
pub(in crate::executor) const PREFETCH_MAX: u32 = limits::BATCH_MAX_ROWS as u32;

/// What the inbox loop decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) struct View {
    /// Taken and not finished.
    pub held: u32,
    /// The same without what uses the urgent slots: what counts against `capacity`.
    pub in_hand: u32,
    /// Slots plus what may be fetched ahead.
    pub capacity: u32,
    /// The same of the urgent slots.
    pub urgent_capacity: u32,
    /// What may be taken now for any slot, and for urgent slots alone.
    pub room: u32,
    pub urgent_room: u32,
    /// Free normal slots for which nothing waits.
    pub idle: u32,
    /// Handlers at work, in both pools.
    pub running: u32,
}

/// How much work this executor may hold and does hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) struct Size {
    pub slots: u32,
    pub urgent_slots: u32,
    /// Most tasks fetched ahead.
    pub prefetch: u32,
}

impl Size {
    /// Urgent tasks that may be here beside those that normal slots have or will have: what the urgent slots do next is
    /// fetched ahead as for other slots. So it can be claimed before it is due also while those are all taken.
    pub(super) fn urgent_capacity(self, inner: &Inner) -> u32 {
        self.urgent_slots + ahead(self.urgent_slots, self.prefetch, inner.urgent_run_ms, PREFETCH_MS)
    }

    /// In hand, without what the urgent slots hold or will hold.
    pub(super) fn hand(self, inner: &Inner) -> u32 {
        let spare = self.urgent_capacity(inner).saturating_sub(inner.running[Pool::Urgent as usize]);
        let urgent = inner.unstarted(URGENT).saturating_sub(spare);
        inner.running[Pool::Normal as usize] + inner.unstarted(NORMAL) + urgent
    }
}

/// What may be fetched ahead when a run takes `run_ms` on average: what all slots do in 10 ms, so nothing where runs
/// are long. What is fetched cannot be overtaken by another queue's tasks any more.
pub(super) fn prefetch(size: Size, run_ms: Option<f64>) -> u32 {
    ahead(size.slots, size.prefetch, run_ms, PREFETCH_MS)
}

/// What `slots` do in `of_ms`, `most` at most.
pub(in crate::executor) fn ahead(slots: u32, most: u32, run_ms: Option<f64>, of_ms: f64) -> u32 {
    let Some(ms) = run_ms else { return 0 };
    let ahead = f64::from(slots) * of_ms / ms.max(0.001);
    if ahead >= f64::from(most) { most } else { ahead as u32 }
}
