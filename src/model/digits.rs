//! The 64 digits in which ids and lane codes are written: URL-safe, and sorting as numbers do.

const DIGITS: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

const VALUES: [u8; 256] = {
    let mut values = [255u8; 256];
    let mut at = 0;
    while at < 64 {
        values[DIGITS[at] as usize] = at as u8;
        at += 1;
    }
    values
};

/// Writes `value` into all of `out`, most significant digit first. Bits that do not fit are lost.
pub fn write(out: &mut [u8], mut value: u128) {
    for slot in out.iter_mut().rev() {
        *slot = DIGITS[(value & 63) as usize];
        value >>= 6;
    }
}

/// Reads digits written by [`write()`]; nothing when one is not of the 64, or there are over 21.
pub fn read(text: &[u8]) -> Option<u128> {
    if text.len() > 21 {
        return None;
    }
    let mut value = 0u128;
    for digit in text {
        match VALUES[usize::from(*digit)] {
            255 => return None,
            low => value = (value << 6) | u128::from(low),
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(value in 0u128..(1 << 96)) {
            let mut out = [0; 16];
            write(&mut out, value);
            prop_assert_eq!(read(&out), Some(value));
        }

        #[test]
        fn text_sorts_as_numbers_do(a in 0u128..(1 << 96), b in 0u128..(1 << 96)) {
            let (mut x, mut y) = ([0; 16], [0; 16]);
            write(&mut x, a);
            write(&mut y, b);
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }
    }

    #[test]
    fn other_characters_are_refused() {
        assert_eq!(read(b"ab+c"), None);
        assert_eq!(read("é".as_bytes()), None);
        assert_eq!(read(b""), Some(0));
    }
}
