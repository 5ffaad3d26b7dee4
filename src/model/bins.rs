//! Bins for lengths of time: exact where it is short, at most 6 % wide where it is long.

/// Bin of a length of time: exact below 32 ms, then 16 bins for each doubling.
pub fn bin_of(ms: i64) -> u16 {
    let ms = ms.clamp(0, (1 << 40) - 1) as u64;
    if ms < 32 {
        return ms as u16;
    }
    let power = 63 - ms.leading_zeros(); // ≥ 5
    (32 + (power - 5) * 16 + ((ms >> (power - 4)) as u32 & 15)) as u16
}

/// The smallest length of a bin, in ms.
pub fn start_of(bin: u16) -> i64 {
    if bin < 32 {
        return i64::from(bin);
    }
    let (power, step) = ((bin - 32) / 16 + 5, (bin - 32) % 16);
    (16 + i64::from(step)) << (power - 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bins_hold_their_lengths(ms in 0i64..(1 << 39)) {
            let bin = bin_of(ms);
            let (low, high) = (start_of(bin), start_of(bin + 1));
            prop_assert!(low <= ms && ms < high, "{low} <= {ms} < {high}");
            prop_assert!(high - low <= 1 + ms / 16);
        }
    }

    #[test]
    fn bins_fit_two_digits_and_never_say_none() {
        assert_eq!((bin_of(31), bin_of(32), start_of(32)), (31, 32, 32));
        assert!(bin_of(i64::MAX) < 4_000);
    }
}
