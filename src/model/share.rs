//! Which pod should hold which bucket: rendezvous hashing, cut to fair shares.
//!
//! Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998): each pair of
//! bucket and pod has a weight by hash; a bucket prefers the pods in order of weight. Every pod
//! computes the same answer from the same list, and a pod that comes or goes moves few buckets.

use super::bucket::Bucket;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn weight(pod: &str, bucket: u16) -> u64 {
    xxh3_64_with_seed(pod.as_bytes(), u64::from(bucket))
}

/// Those of `buckets` that `me` should hold among the live `pods`.
///
/// Shares differ by at most one: buckets are given out in order, each to the pod with the greatest
/// weight that is still below its share. The first `buckets % pods` pods by name take one more.
/// A bucket that `holders_of` gives k holders goes to k − 1 further pods as well, those it prefers
/// most; they hold it beside their share.
pub fn fair_share(
    me: &str,
    pods: &[&str],
    buckets: &[Bucket],
    holders_of: impl Fn(Bucket) -> u8,
) -> Vec<Bucket> {
    let mut names: Vec<&str> = pods.to_vec();
    names.sort_unstable();
    names.dedup();
    let Some(mine) = names.iter().position(|name| *name == me) else { return Vec::new() };
    let count = names.len();
    let (share, over) = (buckets.len() / count, buckets.len() % count);
    let mut room: Vec<usize> = (0..count).map(|pod| share + usize::from(pod < over)).collect();
    let mut out = Vec::with_capacity(room[mine]);
    for bucket in buckets {
        let weight = |pod: usize| (weight(names[pod], bucket.number()), pod);
        let Some(best) = (0..count).filter(|pod| room[*pod] > 0).max_by_key(|pod| weight(*pod)) else {
            continue;
        };
        room[best] -= 1;
        let further = usize::from(holders_of(*bucket).max(1)) - 1;
        // How many of the other pods this bucket prefers to this one.
        let before = (0..count).filter(|pod| *pod != best && weight(*pod) > weight(mine)).count();
        if best == mine || before < further {
            out.push(*bucket);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn all(pods: &[&str], buckets: u16) -> BTreeMap<u16, String> {
        let mut out = BTreeMap::new();
        for pod in pods {
            let buckets: Vec<Bucket> = (0..buckets).filter_map(Bucket::new).collect();
            for bucket in fair_share(pod, pods, &buckets, |_| 1) {
                assert!(out.insert(bucket.number(), (*pod).to_owned()).is_none(), "two pods hold {bucket}");
            }
        }
        out
    }

    proptest! {
        #[test]
        fn every_bucket_has_one_pod_and_shares_differ_by_one(count in 1usize..12, buckets in 1u16..130) {
            let names: Vec<String> = (0..count).map(|n| format!("pod-{n}")).collect();
            let pods: Vec<&str> = names.iter().map(String::as_str).collect();
            let held = all(&pods, buckets);
            prop_assert_eq!(held.len(), usize::from(buckets));
            let sizes: Vec<usize> = pods.iter().map(|p| held.values().filter(|h| h == p).count()).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn a_new_pod_moves_few_buckets() {
        let before = all(&["a", "b", "c", "d"], 64);
        let after = all(&["a", "b", "c", "d", "e"], 64);
        let moved = before.iter().filter(|(bucket, pod)| after[bucket] != **pod).count();
        assert!((12..=28).contains(&moved), "{moved} of 64 buckets moved");
    }

    #[test]
    fn a_pod_that_is_not_listed_holds_nothing() {
        let buckets: Vec<Bucket> = (0..8).filter_map(Bucket::new).collect();
        assert!(fair_share("x", &["a"], &buckets, |_| 1).is_empty());
        assert!(fair_share("x", &[], &buckets, |_| 1).is_empty());
    }

    #[test]
    fn a_hot_bucket_has_as_many_pods_as_it_asks_for_and_the_others_one() {
        let pods = ["a", "b", "c", "d", "e"];
        let buckets: Vec<Bucket> = (0..8).filter_map(Bucket::new).collect();
        for hot in [1, 2, 3, 5, 8] {
            let mut held = [0; 8];
            for pod in pods {
                let of = |bucket: Bucket| if bucket.number() == 3 { hot } else { 1 };
                for bucket in fair_share(pod, &pods, &buckets, of) {
                    held[usize::from(bucket.number())] += 1;
                }
            }
            let most = usize::from(hot).min(pods.len());
            assert_eq!(held, [1, 1, 1, most, 1, 1, 1, 1]);
        }
    }
}
