//! The nearest name to a mistyped one.

/// The candidate that a mistyped `name` was most likely meant to be; nothing when none is near.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    // A third of the name may be wrong: beyond that a guess confuses more than it helps.
    let most = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&name, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far() {
        let names = ["pod.lock", "pod.poll", "redis.url"];
        assert_eq!(nearest("pod.lok", names), Some("pod.lock"));
        assert_eq!(nearest("Redis.URL", names), Some("redis.url"));
        assert_eq!(nearest("pdo.poll", names), Some("pod.poll"));
        assert_eq!(nearest("executor.slots", names), None);
        assert_eq!(nearest("", names), None);
    }
}
