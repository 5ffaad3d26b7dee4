//! Over how many buckets a namespace spreads its tasks, and within which bounds that may change.

use super::bucket::Bucket;
use crate::limits;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a namespace spreads its tasks over buckets. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    /// Buckets over which keyed tasks go; a power of two, fixed for ever.
    pub key_buckets: u16,
    /// Buckets to which new tasks without a key go; never below `key_buckets`.
    pub buckets: u16,
    /// Pods that may hold one bucket at a time, where [`Self::hot`] does not say otherwise.
    pub holders: u8,
    /// Grows with every change.
    pub epoch: u64,
    /// When the namespace was made, in ms by Redis's clock.
    pub born_ms: i64,
    /// The most buckets there ever were.
    pub peak: u16,
    /// Buckets that take no new tasks and are not empty yet, in order.
    pub closing: Arc<[u16]>,
    /// Buckets with a number of holders of their own, in order.
    pub hot: Arc<[(u16, u8)]>,
    /// What the automatic keeps to.
    pub bounds: Bounds,
}

/// Bounds of the automatic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Bounds {
    /// Fewest buckets.
    pub min: Option<u16>,
    /// Most buckets.
    pub max: Option<u16>,
    /// So many buckets, whatever the load.
    pub pin: Option<u16>,
    /// The automatic is off: only a pin and bounds change something.
    pub manual: bool,
}

impl Spread {
    /// A spread as it is when a namespace is created.
    pub fn born(key_buckets: u16, buckets: u16, holders: u8) -> Self {
        let (closing, hot) = (Arc::default(), Arc::default());
        let bounds = Bounds::default();
        Self { key_buckets, buckets, holders, epoch: 0, born_ms: 0, peak: buckets, closing, hot, bounds }
    }

    /// The buckets that may hold tasks: those that take new ones, and those that close.
    pub fn live(&self) -> impl Iterator<Item = Bucket> + use<> {
        let closing = Arc::clone(&self.closing);
        let closing = (0..closing.len()).filter_map(move |at| Bucket::new(closing[at]));
        (0..self.buckets).filter_map(Bucket::new).chain(closing)
    }

    /// Every bucket there ever was; those that vanished keep their counters.
    pub fn all(&self) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.peak.max(self.buckets)).filter_map(Bucket::new)
    }

    /// Pods that may hold this bucket.
    pub fn holders_of(&self, bucket: u16) -> u8 {
        self.hot.iter().find(|(hot, _)| *hot == bucket).map_or(self.holders, |(_, holders)| *holders).max(1)
    }

    /// What one bucket may hold of a bound on all of them together, at least 1: half of the bound goes to all buckets
    /// alike, and half to those of keyed tasks, which cannot go elsewhere. These shares add up to the bound, or to the
    /// number of buckets where that is more.
    pub fn share_of(&self, most: u64, bucket: Bucket) -> u64 {
        let of = |part: u64, among: u16| {
            let (among, at) = (u64::from(among.max(1)), u64::from(bucket.number()));
            if at < among { part / among + u64::from(at < part % among) } else { 0 }
        };
        let keyed = if self.key_buckets < self.buckets { most / 2 } else { 0 };
        (of(most - keyed, self.buckets) + of(keyed, self.key_buckets)).max(1)
    }

    /// Fewest buckets that this namespace may have.
    pub fn floor(&self) -> u16 {
        self.bounds.min.unwrap_or(1).max(self.key_buckets).min(limits::BUCKETS_MAX)
    }

    /// Most buckets that this namespace may have.
    pub fn ceiling(&self) -> u16 {
        self.bounds.max.unwrap_or(limits::BUCKETS_MAX).max(self.floor())
    }
}

/// Numbers with commas, as they lie in Redis.
pub fn list_text(list: &[u16]) -> String {
    list.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// Reads what [`list_text`] wrote; what cannot be read is left out.
pub fn read_list(text: &str) -> Vec<u16> {
    let mut out: Vec<u16> =
        text.split(',').filter_map(|word| word.parse().ok()).filter(|n| *n < limits::BUCKETS_MAX).collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// `bucket:holders` with commas, as it lies in Redis.
pub fn hot_text(hot: &[(u16, u8)]) -> String {
    hot.iter().map(|(bucket, holders)| format!("{bucket}:{holders}")).collect::<Vec<_>>().join(",")
}

/// Reads what [`hot_text`] wrote; what cannot be read is left out.
pub fn read_hot(text: &str) -> Vec<(u16, u8)> {
    let one = |word: &str| {
        let (bucket, holders) = word.split_once(':')?;
        Some((bucket.parse().ok()?, holders.parse().ok()?))
    };
    let mut out: Vec<(u16, u8)> = text.split(',').filter_map(one).collect();
    out.retain(|(bucket, holders)| {
        *bucket < limits::BUCKETS_MAX && (1..=limits::HOLDERS_MAX as u8).contains(holders)
    });
    out.sort_unstable();
    out.dedup_by_key(|(bucket, _)| *bucket);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_are_read_back(list in proptest::collection::btree_set(0u16..1_024, 0..40)) {
            let list: Vec<u16> = list.into_iter().collect();
            prop_assert_eq!(read_list(&list_text(&list)), list.clone());
            let hot: Vec<(u16, u8)> = list.iter().map(|bucket| (*bucket, (bucket % 8 + 1) as u8)).collect();
            prop_assert_eq!(read_hot(&hot_text(&hot)), hot);
        }

        #[test]
        fn any_text_is_a_list(text in ".{0,40}") {
            prop_assert!(read_list(&text).is_sorted());
            prop_assert!(read_hot(&text).is_sorted());
        }
    }

    #[test]
    fn live_buckets_are_those_of_the_spread_and_those_that_close() {
        let spread =
            Spread { closing: [5, 9].into(), hot: [(2, 3)].into(), peak: 16, ..Spread::born(2, 4, 1) };
        let numbers: Vec<u16> = spread.live().map(Bucket::number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 5, 9]);
        assert_eq!(spread.all().count(), 16);
        assert_eq!([spread.holders_of(2), spread.holders_of(3)], [3, 1]);
        let bounded = Spread { bounds: Bounds { min: Some(1), max: Some(1), ..Bounds::default() }, ..spread };
        assert_eq!((bounded.floor(), bounded.ceiling()), (2, 2), "never below the buckets of keys");
    }
}
