//! Buckets, and the hash tags that put them on evenly spread slots of a Redis Cluster.

use super::field::{FieldError, Reason, shown};
use crate::limits;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// The number of a bucket, below [`limits::BUCKETS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bucket(u16);

impl Bucket {
    /// The bucket with this number; nothing beyond the limit.
    pub const fn new(number: u16) -> Option<Self> {
        if number < limits::BUCKETS_MAX { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The bucket of a key among `key_buckets`, a power of two. Fixed for the life of a namespace.
    pub fn of_key(key: &[u8], key_buckets: u16) -> Self {
        Self((xxh3_64(key) % u64::from(key_buckets.clamp(1, limits::BUCKETS_MAX))) as u16)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of one installation's data in Redis. All its keys carry it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The namespace used when none is named.
    pub const DEFAULT: &'static str = "mh";

    /// Checks a name: 1 to 32 of `a-z A-Z 0-9 _ -`.
    pub fn new(name: &str) -> Result<Self, FieldError> {
        if name.len() > limits::NAMESPACE_MAX_BYTES {
            let detail = format!("{} is over {} bytes long", shown(name), limits::NAMESPACE_MAX_BYTES);
            return Err(FieldError::new("namespace", Reason::TooLong, detail));
        }
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if name.is_empty() || !name.bytes().all(fits) {
            let detail = format!("{} may only have letters, digits, _ and -, and not be empty", shown(name));
            return Err(FieldError::new("namespace", Reason::BadName, detail));
        }
        Ok(Self(name.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What stands between the braces of a bucket's keys: `<namespace>.<bucket>.<suffix>`.
///
/// The suffix is chosen so that bucket b lies at the b-th point of the bit-reversal (van der Corput)
/// sequence over the 16,384 slots, rotated by a hash of the namespace. The first 2ⁿ buckets of a
/// namespace are thus evenly spaced for each n, and two namespaces do not share their hot spots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(Arc<str>);

impl Tag {
    /// The tag of `bucket` in `namespace`. Costs some 16,000 hash steps, so keep it.
    pub fn of(namespace: &Namespace, bucket: Bucket) -> Self {
        let slot = slot_of_bucket(namespace, bucket);
        let stem = format!("{namespace}.{bucket}.");
        // 36⁴ suffixes over 16,384 slots: the first hit comes after 16,384 tries on average, and a
        // miss of all has a chance of e⁻¹⁰²; CRC16 being linear, in truth every slot is hit.
        let start = crc16(0, stem.as_bytes());
        let suffix = (1..=4u32).find_map(|width| suffix_for(start, slot, width));
        Self(format!("{stem}{}", suffix.unwrap_or_default()).into())
    }

    /// The text between the braces.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The slot in a Redis Cluster.
    pub fn slot(&self) -> u16 {
        crc16(0, self.0.as_bytes()) % SLOTS
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The slot that bucket `bucket` shall have.
pub fn slot_of_bucket(namespace: &Namespace, bucket: Bucket) -> u16 {
    let point = bucket.number().reverse_bits() >> 2; // 14 of 16 bits
    let turn = (xxh3_64(namespace.as_str().as_bytes()) % u64::from(SLOTS)) as u16;
    (point + turn) % SLOTS
}

fn suffix_for(start: u16, slot: u16, width: u32) -> Option<String> {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    (0..36u32.pow(width)).find_map(|number| {
        let (mut rest, mut text) = (number, [0u8; 4]);
        for place in text.iter_mut().take(width as usize) {
            *place = LETTERS[(rest % 36) as usize];
            rest /= 36;
        }
        let text = &text[..width as usize];
        (crc16(start, text) % SLOTS == slot).then(|| String::from_utf8_lossy(text).into_owned())
    })
}

const CRC_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC16/XMODEM, the hash of Redis Cluster (cluster specification, appendix A), going on from `crc`.
pub fn crc16(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, byte| (crc << 8) ^ CRC_TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of a key: the hash of what stands between its first `{` and the next `}`, if there is
/// something, else of the whole key.
pub fn slot_of_key(key: &[u8]) -> u16 {
    let inner = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|b| *b == b'}').filter(|len| *len > 0).map(|len| &rest[..len])
    });
    crc16(0, inner.unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc16_matches_the_cluster_specification() {
        assert_eq!(crc16(0, b"123456789"), 0x31C3);
        assert_eq!(slot_of_key(b"foo"), 12_182);
        assert_eq!(slot_of_key(b"{user1000}.following"), slot_of_key(b"user1000"));
        assert_eq!(slot_of_key(b"foo{}{bar}"), crc16(0, b"foo{}{bar}") % SLOTS);
    }

    #[test]
    fn tags_lie_on_their_slots() {
        for name in ["mh", "a", "shop-eu_2", &"n".repeat(32)] {
            let namespace = Namespace::new(name).unwrap();
            for number in [0, 1, 2, 7, 63, 1_023] {
                let bucket = Bucket::new(number).unwrap();
                let tag = Tag::of(&namespace, bucket);
                assert_eq!(tag.slot(), slot_of_bucket(&namespace, bucket), "{tag}");
                assert_eq!(slot_of_key(format!("{{{tag}}}:meta").as_bytes()), tag.slot());
            }
        }
    }

    /// Buckets per master when the slots are cut into contiguous ranges as `redis-cli` does.
    fn per_master(namespace: &str, buckets: u16, masters: u16) -> Vec<usize> {
        let namespace = Namespace::new(namespace).unwrap();
        let mut out = vec![0; usize::from(masters)];
        for number in 0..buckets {
            let slot = slot_of_bucket(&namespace, Bucket::new(number).unwrap());
            let master = u32::from(slot) * u32::from(masters) / u32::from(SLOTS);
            out[master as usize] += 1;
        }
        out
    }

    #[test]
    fn buckets_are_spread_evenly_over_masters() {
        let mut rotated = per_master("mh", 64, 6);
        rotated.sort_unstable();
        assert_eq!(rotated, [10, 10, 11, 11, 11, 11]);
        for name in ["mh", "a", "b", "prod", "eu-west"] {
            for masters in [1, 2, 3, 5, 6] {
                for buckets in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024] {
                    let loads = per_master(name, buckets, masters);
                    let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
                    assert!(most - least <= 2, "{name}: {buckets} buckets on {masters} masters: {loads:?}");
                    if buckets >= masters * 2 {
                        assert!(*least > 0);
                    }
                }
            }
        }
    }

    #[test]
    fn namespaces_are_checked() {
        assert!(Namespace::new("mh").is_ok());
        for (name, code) in [("", "bad_name"), ("a{b", "bad_name"), ("a:b", "bad_name"), ("é", "bad_name")] {
            assert_eq!(Namespace::new(name).unwrap_err().reason.code(), code);
        }
        assert_eq!(Namespace::new(&"n".repeat(33)).unwrap_err().reason.code(), "too_long");
    }

    #[test]
    fn a_key_keeps_its_bucket() {
        assert_eq!(Bucket::of_key(b"order-1", 8), Bucket::of_key(b"order-1", 8));
        let hit: std::collections::BTreeSet<u16> =
            (0..200).map(|n| Bucket::of_key(format!("k{n}").as_bytes(), 8).number()).collect();
        assert_eq!(hit.len(), 8);
    }
}
