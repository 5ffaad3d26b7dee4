//! What a task is: a fixed binary header that scripts may read, options, and the opaque payload.
//!
//! Layout, big-endian; `lua/lib/spec.lua` reads the same bytes and a test compares the two.
//!
//! | at | bytes | content |
//! | --- | --- | --- |
//! | 0 | 1 | version: 1, or 2 where the retry policy is the usual one and bytes 8 to 20 are left out; 2 more where the task counts against a bound of its queue; 4 more where somebody wants to hear of its end |
//! | 1 | 1 | flags: which options follow |
//! | 2 | 4 | lane code |
//! | 6 | 2 | due, as ms within the home minute that the id names |
//! | 8 | 1 | retries |
//! | 9 | 1 | growth: 0 fixed, 1 linear, 2 exponential |
//! | 10 | 1 | jitter in percent |
//! | 11 | 4 | base wait in ms |
//! | 15 | 2 | factor in hundredths |
//! | 17 | 4 | longest wait in ms |
//! | 21 | … | options in order of their flag bits, then the payload |
//!
//! | flag | option |
//! | --- | --- |
//! | 0x01 | idempotency key: shard (1), window after the end in s (4), length (2), [its name](Key::name) if that is not the key itself (14), bytes |
//! | 0x02 | placement key: length (2), bytes |
//! | 0x04 | plan: length (1), bytes |
//! | 0x08 | deadline: end of the total time-out, ms since 1970 (6) |
//! | 0x10 | start before: ms since 1970 (6) |
//! | 0x20 | lease in ms (4) |
//! | 0x40 | execution time-out in ms (4) |
//! | 0x80 | extras that only clients and executors read: length (2), a msgpack map |

use super::digits;
use super::field::{FieldError, Reason};
use super::id::TaskId;
use super::lane::{LaneCode, PlanName};
use super::retry::{Growth, Retry};
use super::slice::UnixMs;
use crate::limits;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes before the options, with a retry policy.
pub const FIXED_LEN: usize = 21;
/// Bytes before the options of a spec that has the usual retry policy. With a payload of 100 bytes such a spec
/// fits an allocation class of 112 bytes; with a policy it would take 128.
pub const SHORT_LEN: usize = 8;
/// Version of the layout with a retry policy.
pub const VERSION: u8 = 1;
/// Version of the layout without one.
pub const VERSION_SHORT: u8 = 2;
/// Added to the version of a task that counts against its queue's bound for tasks that have not ended.
pub const BOUND: u8 = 2;
/// What is added to the version of a spec whose task's end somebody wants to hear of.
pub const ANNOUNCED: u8 = 4;
/// Number of hashes over which a bucket's idempotency keys are spread.
pub const KEY_SHARDS: u8 = 16;

/// Longest field and usual value of the hashes of keys, in bytes. See [`Key::name`] and [`Key::value`].
pub const KEY_NAME_LEN: usize = 14;

/// Flag of an idempotency key.
pub const KEYED: u8 = 0x01;
/// Flag of a placement key.
pub const PLACED: u8 = 0x02;
/// Flag of a plan.
pub const PLANNED: u8 = 0x04;
/// Flag of a deadline.
pub const DEADLINE: u8 = 0x08;
/// Flag of a latest start.
pub const START_BEFORE: u8 = 0x10;
/// Flag of a lease.
pub const LEASE: u8 = 0x20;
/// Flag of an execution time-out.
pub const TIMEOUT: u8 = 0x40;
/// Flag of extras.
pub const EXTRAS: u8 = 0x80;

/// An idempotency key and how long it blocks others after its task has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The key's bytes, 1 to 512.
    pub bytes: Bytes,
    /// How long the key is remembered after the end; 0 releases it at the end.
    pub window_ms: i64,
}

/// What only clients and executors read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Extras {
    /// Estimated run time in ms, for routing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_ms: Option<u32>,
    /// Key for consistent routing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Name of the key that the payload was sealed with; see [`super::seal`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
    /// Longest time from hand-out to start in ms, where it is not its queue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_ms: Option<u32>,
    /// Web address that is called to have it done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The subscription that hears of its end, or an empty text where others do. See [`super::subscription`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// Which part of a broadcast it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
}

/// A part of a task that was spread over executors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The task that was spread.
    pub of: String,
    /// The executor that it is for.
    pub to: String,
    /// Which it is, from 0.
    pub index: u32,
    /// How many there are.
    pub total: u32,
}

impl Extras {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A task as it is submitted and as an executor gets it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Queue, labels, priority and tier, by code.
    pub lane: LaneCode,
    /// When it is due.
    pub due: UnixMs,
    /// When it is tried again.
    pub retry: Retry,
    /// Idempotency key.
    pub key: Option<Key>,
    /// Placement key.
    pub placement: Option<Bytes>,
    /// Plan it belongs to.
    pub plan: Option<PlanName>,
    /// After this instant the task expires, wherever it is.
    pub deadline: Option<UnixMs>,
    /// After this instant the task is skipped if it has not started.
    pub start_before: Option<UnixMs>,
    /// Lease of a started task.
    pub lease_ms: Option<u32>,
    /// Longest run of its handler.
    pub timeout_ms: Option<u32>,
    /// Whether it counts against its queue's bound for tasks that have not ended.
    pub bound: bool,
    /// What only clients and executors read.
    pub extras: Extras,
    /// The payload, opaque.
    pub payload: Bytes,
}

/// Bytes that are not a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a task spec: {0}")]
pub struct BadSpec(pub &'static str);

impl Key {
    /// Checks a key's length and window.
    pub fn new(bytes: impl Into<Bytes>, window_ms: i64) -> Result<Self, FieldError> {
        let bytes = bytes.into();
        check_key("key", &bytes)?;
        if !(0..=limits::KEY_WINDOW_MAX_MS).contains(&window_ms) {
            let detail = format!("{window_ms} ms must lie between 0 and 31 days");
            return Err(FieldError::new("key_window", Reason::OutOfRange, detail));
        }
        Ok(Self { bytes, window_ms })
    }

    /// The hash of its bucket in which a key lies.
    pub fn shard(scoped: &[u8]) -> u8 {
        ((xxh3_64(scoped) >> 32) % u64::from(KEY_SHARDS)) as u8
    }

    /// What a key is called in that hash: the key itself, or the first 14 bytes of its SHA-1 where it is longer than 13. So
    /// a field takes 16 bytes at most, and what is remembered of an ended task does not depend on its key. Two keys of one
    /// bucket have the same name by chance once 2^56 keys are there.
    pub fn name(scoped: &Bytes) -> Bytes {
        if scoped.len() < KEY_NAME_LEN {
            return scoped.clone();
        }
        Bytes::copy_from_slice(&Sha1::digest(scoped)[..KEY_NAME_LEN])
    }

    /// What that hash says of a key whose task has not ended: its id without what the bucket says, in 14 bytes instead of
    /// 16; `lua/lib/key.lua` reads and writes the same. With Redis's string header they fill an allocation class of 16.
    pub fn value(id: TaskId) -> [u8; KEY_NAME_LEN] {
        let text = id.as_bytes();
        let digit = |at: usize| digits::read(&text[at..=at]).unwrap_or(0) as u8;
        let mut out = [0; KEY_NAME_LEN];
        out[0] = digit(0) << 2 | digit(6) & 3;
        out[1..5].copy_from_slice(&text[1..5]);
        out[5..].copy_from_slice(&text[7..]);
        out
    }
}

/// Checks the length of an idempotency or placement key.
pub fn check_key(field: &'static str, bytes: &[u8]) -> Result<(), FieldError> {
    match bytes.len() {
        0 => Err(FieldError::new(field, Reason::BadName, "is empty")),
        n if n > limits::KEY_MAX_BYTES => {
            let detail = format!("has {n} bytes; at most {} are allowed", limits::KEY_MAX_BYTES);
            Err(FieldError::new(field, Reason::TooLong, detail))
        }
        _ => Ok(()),
    }
}

impl Spec {
    /// The key as Redis knows it: unique within its placement key.
    pub fn scoped_key(&self) -> Option<Bytes> {
        let key = self.key.as_ref()?;
        Some(match &self.placement {
            None => key.bytes.clone(),
            Some(placement) => {
                let mut scoped = BytesMut::with_capacity(placement.len() + 1 + key.bytes.len());
                scoped.extend_from_slice(placement);
                scoped.put_u8(0);
                scoped.extend_from_slice(&key.bytes);
                scoped.freeze()
            }
        })
    }

    /// Checks everything that does not depend on time; names the field that is wrong.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.payload.len() > limits::PAYLOAD_MAX_BYTES {
            let detail = format!(
                "has {} bytes; at most {} are allowed: store large data elsewhere and send its address",
                self.payload.len(),
                limits::PAYLOAD_MAX_BYTES
            );
            return Err(FieldError::new("payload", Reason::TooLong, detail));
        }
        if let Some(key) = &self.key {
            check_key("key", &key.bytes)?;
        }
        if let Some(placement) = &self.placement {
            check_key("placement", placement)?;
        }
        if let Some(lease) = self.lease_ms
            && !(limits::LEASE_MIN_MS..=limits::LEASE_MAX_MS).contains(&i64::from(lease))
        {
            return Err(FieldError::new(
                "lease",
                Reason::OutOfRange,
                format!("{lease} ms must lie between 1 s and 24 h"),
            ));
        }
        if let Some(ms) = self.extras.dispatch_ms
            && !(limits::LEASE_MIN_MS..=limits::LEASE_MAX_MS).contains(&i64::from(ms))
        {
            let detail = format!("{ms} ms must lie between 1 s and 24 h");
            return Err(FieldError::new("dispatch_timeout", Reason::OutOfRange, detail));
        }
        if let Some(key) = &self.extras.routing_key {
            check_key("routing_key", key.as_bytes())?;
        }
        if let Some(url) = self.extras.url.as_ref().filter(|url| url.len() > limits::URL_MAX_BYTES) {
            let detail = format!("has {} bytes; at most {} are allowed", url.len(), limits::URL_MAX_BYTES);
            return Err(FieldError::new("url", Reason::TooLong, detail));
        }
        if self.timeout_ms == Some(0) {
            return Err(FieldError::new("timeout", Reason::OutOfRange, "0 ms would end every run at once"));
        }
        Ok(())
    }

    /// Writes the spec. Only for a spec that [`Self::check`] passed: lengths are known to fit.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FIXED_LEN + 16 + self.payload.len());
        let scoped = self.scoped_key();
        let extras = if self.extras.is_empty() { None } else { rmp_serde::to_vec_named(&self.extras).ok() };
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let usual = self.retry == Retry::default();
        let announced = if self.extras.notify.is_some() { ANNOUNCED } else { 0 };
        let bound = if self.bound { BOUND } else { 0 };
        out.put_u8(if usual { VERSION_SHORT } else { VERSION } + bound + announced);
        out.put_u8(
            flag(scoped.is_some(), KEYED)
                | flag(self.placement.is_some(), PLACED)
                | flag(self.plan.is_some(), PLANNED)
                | flag(self.deadline.is_some(), DEADLINE)
                | flag(self.start_before.is_some(), START_BEFORE)
                | flag(self.lease_ms.is_some(), LEASE)
                | flag(self.timeout_ms.is_some(), TIMEOUT)
                | flag(extras.is_some(), EXTRAS),
        );
        out.extend_from_slice(self.lane.as_bytes());
        out.put_u16(self.due.offset_ms());
        let (growth, factor) = match self.retry.growth {
            Growth::Fixed => (0, 100),
            Growth::Linear => (1, 100),
            Growth::Exponential { factor_percent } => (2, factor_percent),
        };
        if !usual {
            out.put_u8(self.retry.retries);
            out.put_u8(growth);
            out.put_u8(self.retry.jitter_percent);
            out.put_u32(self.retry.base_ms);
            out.put_u16(factor);
            out.put_u32(self.retry.cap_ms);
        }
        if let (Some(scoped), Some(key)) = (&scoped, &self.key) {
            out.put_u8(Key::shard(scoped));
            out.put_u32((key.window_ms / 1_000) as u32);
            out.put_u16(scoped.len() as u16);
            if scoped.len() >= KEY_NAME_LEN {
                out.extend_from_slice(&Key::name(scoped));
            }
            out.extend_from_slice(scoped);
        }
        if let Some(placement) = &self.placement {
            out.put_u16(placement.len() as u16);
            out.extend_from_slice(placement);
        }
        if let Some(plan) = &self.plan {
            out.put_u8(plan.as_str().len() as u8);
            out.extend_from_slice(plan.as_str().as_bytes());
        }
        for at in [self.deadline, self.start_before].into_iter().flatten() {
            out.put_uint(at.0.max(0) as u64, 6);
        }
        for ms in [self.lease_ms, self.timeout_ms].into_iter().flatten() {
            out.put_u32(ms);
        }
        if let Some(extras) = extras {
            out.put_u16(extras.len() as u16);
            out.extend_from_slice(&extras);
        }
        out.extend_from_slice(&self.payload);
        out.freeze()
    }

    /// When the task of an encoded spec was first due; `home` is the begin of its home minute.
    pub fn peek_due(bytes: &[u8], home: UnixMs) -> Option<UnixMs> {
        let offset = [*bytes.get(6)?, *bytes.get(7)?];
        Some(home.plus(i64::from(u16::from_be_bytes(offset))))
    }

    /// The shard and the name of an encoded spec's key, if it has one and can be read.
    pub fn peek_key(bytes: &Bytes) -> Option<(u8, Bytes)> {
        if bytes.get(1)? & KEYED == 0 {
            return None;
        }
        let at = if bytes.first()? % 2 == 0 { SHORT_LEN } else { FIXED_LEN };
        let len =
            usize::from(u16::from_be_bytes([*bytes.get(at + 5)?, *bytes.get(at + 6)?])).min(KEY_NAME_LEN);
        bytes.get(at + 7..at + 7 + len)?;
        Some((*bytes.get(at)?, bytes.slice(at + 7..at + 7 + len)))
    }

    /// The plan of an encoded spec, if it has one and can be read.
    pub fn peek_plan(bytes: &[u8]) -> Option<&str> {
        let flags = *bytes.get(1)?;
        if flags & PLANNED == 0 {
            return None;
        }
        let mut at = if bytes.first()? % 2 == 0 { SHORT_LEN } else { FIXED_LEN };
        let word = |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
        if flags & KEYED != 0 {
            let len = word(at + 5)?;
            at += 7 + len + if len < KEY_NAME_LEN { 0 } else { KEY_NAME_LEN };
        }
        if flags & PLACED != 0 {
            at += 2 + word(at)?;
        }
        let len = usize::from(*bytes.get(at)?);
        std::str::from_utf8(bytes.get(at + 1..at + 1 + len)?).ok()
    }

    /// Reads a spec of the task whose home minute begins at `home`. The payload is a slice of `bytes`, not a copy.
    pub fn decode(bytes: &Bytes, home: UnixMs) -> Result<Self, BadSpec> {
        let mut at = Reader { bytes, at: 0 };
        let version = at.u8()?;
        if !(VERSION..=VERSION_SHORT + BOUND + ANNOUNCED).contains(&version) {
            return Err(BadSpec("unknown version"));
        }
        let flags = at.u8()?;
        let lane = LaneCode::from_bytes(at.take(4)?).ok_or(BadSpec("bad lane code"))?;
        let due = home.plus(i64::from(at.u16()?));
        let retry = if version % 2 == 1 { at.retry()? } else { Retry::default() };
        let has = |bit: u8| flags & bit != 0;
        let mut key = None;
        if has(KEYED) {
            at.u8()?;
            let window_ms = i64::from(at.u32()?) * 1_000;
            let len = usize::from(at.u16()?);
            if len >= KEY_NAME_LEN {
                at.take(KEY_NAME_LEN)?;
            }
            key = Some(Key { bytes: at.bytes(len)?, window_ms });
        }
        let placement = if has(PLACED) {
            let len = usize::from(at.u16()?);
            Some(at.bytes(len)?)
        } else {
            None
        };
        if let (Some(key), Some(placement)) = (&mut key, &placement) {
            let own = placement.len() + 1;
            if key.bytes.len() <= own {
                return Err(BadSpec("key without its placement"));
            }
            key.bytes = key.bytes.slice(own..);
        }
        let plan = if has(PLANNED) {
            let len = usize::from(at.u8()?);
            let text = std::str::from_utf8(at.take(len)?).map_err(|_| BadSpec("plan is not UTF-8"))?;
            Some(PlanName::new(text).map_err(|_| BadSpec("bad name of a plan"))?)
        } else {
            None
        };
        let deadline = if has(DEADLINE) { Some(at.ms()?) } else { None };
        let start_before = if has(START_BEFORE) { Some(at.ms()?) } else { None };
        let lease_ms = if has(LEASE) { Some(at.u32()?) } else { None };
        let timeout_ms = if has(TIMEOUT) { Some(at.u32()?) } else { None };
        let extras = if has(EXTRAS) {
            let len = usize::from(at.u16()?);
            rmp_serde::from_slice(at.take(len)?).map_err(|_| BadSpec("extras are not msgpack"))?
        } else {
            Extras::default()
        };
        let payload = bytes.slice(at.at..);
        Ok(Self {
            lane,
            due,
            retry,
            key,
            placement,
            plan,
            deadline,
            start_before,
            lease_ms,
            timeout_ms,
            bound: (version - 1) & BOUND != 0,
            extras,
            payload,
        })
    }
}

struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadSpec> {
        let found = self.bytes.get(self.at..self.at + len).ok_or(BadSpec("too short"))?;
        self.at += len;
        Ok(found)
    }

    fn bytes(&mut self, len: usize) -> Result<Bytes, BadSpec> {
        self.take(len)?;
        Ok(self.bytes.slice(self.at - len..self.at))
    }

    fn uint(&mut self, len: usize) -> Result<u64, BadSpec> {
        Ok(self.take(len)?.iter().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
    }

    fn u8(&mut self) -> Result<u8, BadSpec> {
        Ok(self.uint(1)? as u8)
    }

    fn u16(&mut self) -> Result<u16, BadSpec> {
        Ok(self.uint(2)? as u16)
    }

    fn u32(&mut self) -> Result<u32, BadSpec> {
        Ok(self.uint(4)? as u32)
    }

    fn retry(&mut self) -> Result<Retry, BadSpec> {
        let retries = self.u8()?;
        let growth = self.u8()?;
        let jitter_percent = self.u8()?;
        let base_ms = self.u32()?;
        let factor_percent = self.u16()?;
        let cap_ms = self.u32()?;
        let growth = match growth {
            0 => Growth::Fixed,
            1 => Growth::Linear,
            2 => Growth::Exponential { factor_percent },
            _ => return Err(BadSpec("unknown retry kind")),
        };
        Ok(Retry { retries, growth, base_ms, cap_ms, jitter_percent })
    }

    fn ms(&mut self) -> Result<UnixMs, BadSpec> {
        Ok(UnixMs(self.uint(6)? as i64))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::lane::{Priority, Tier};
    use proptest::prelude::*;

    pub(crate) fn plain(payload: &'static [u8]) -> Spec {
        Spec {
            lane: LaneCode::new(7, Priority::P2, Tier::FRESH),
            due: UnixMs(1_764_511_260_123),
            retry: Retry::default(),
            key: None,
            placement: None,
            plan: None,
            deadline: None,
            start_before: None,
            lease_ms: None,
            timeout_ms: None,
            bound: false,
            extras: Extras::default(),
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn golden_bytes() {
        let usual = plain(b"hi").encode();
        assert_eq!(&usual[..], &[&[2, 0][..], b"--6F", &[0, 123], b"hi"].concat()[..]);
        let retry = Retry { retries: 3, ..Retry::default() };
        let bytes = Spec { retry, ..plain(b"hi") }.encode();
        let expected = [
            &[1, 0][..],
            b"--6F",
            &[0, 123, 3, 2, 20, 0, 0, 0x13, 0x88, 1, 0xf4, 0, 0x36, 0xee, 0x80],
            b"hi",
        ]
        .concat();
        assert_eq!(&bytes[..], &expected[..]);
        let extras = Extras { notify: Some(String::new()), ..Extras::default() };
        let told = Spec { extras, ..plain(b"hi") }.encode();
        assert_eq!(&told[..2], &[6, 0x80]);
    }

    #[test]
    fn names_and_values_of_keys() {
        assert_eq!(&Key::name(&Bytes::from_static(b"order-4711"))[..], b"order-4711");
        assert_eq!(&Key::name(&Bytes::from_static(b"thirteen-long"))[..], b"thirteen-long");
        let long = Key::name(&Bytes::from_static(b"fourteen-long-"));
        assert_eq!(long[..], Sha1::digest(b"fourteen-long-")[..14]);
        let id: TaskId = "0abcd-GzZ-_abcde".parse().unwrap();
        assert_eq!(&Key::value(id), b"\x05abcdzZ-_abcde");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            key in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
            placement in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
            plan in proptest::option::of("[a-z]{1,20}"),
            deadline in proptest::option::of(0i64..limits::DUE_MAX_MS),
            start_before in proptest::option::of(0i64..limits::DUE_MAX_MS),
            lease_ms in proptest::option::of(1_000u32..86_400_000),
            timeout_ms in proptest::option::of(1u32..u32::MAX),
            cost_ms in proptest::option::of(any::<u32>()),
            retries in 1u8..4,
            notify in proptest::option::of("[a-z]{0,8}"),
            bound in any::<bool>(),
        ) {
            let spec = Spec {
                retry: Retry { retries, ..Retry::default() },
                key: key.map(|bytes| Key { bytes: bytes.into(), window_ms: 86_400_000 }),
                placement: placement.map(Bytes::from),
                plan: plan.map(|name| PlanName::new(&name).unwrap()),
                deadline: deadline.map(UnixMs),
                start_before: start_before.map(UnixMs),
                lease_ms,
                timeout_ms,
                bound,
                extras: Extras { cost_ms, notify, ..Extras::default() },
                payload: payload.into(),
                ..plain(b"")
            };
            spec.check().unwrap();
            let bytes = spec.encode();
            let name = spec.scoped_key().map(|key| (Key::shard(&key), Key::name(&key)));
            prop_assert_eq!(Spec::peek_key(&bytes), name);
            prop_assert_eq!(Spec::peek_plan(&bytes), spec.plan.as_ref().map(PlanName::as_str));
            prop_assert_eq!(&Spec::decode(&bytes, spec.due.minute().start()).unwrap(), &spec);
            for cut in 0..bytes.len() - spec.payload.len() {
                prop_assert!(Spec::decode(&bytes.slice(..cut), UnixMs(0)).is_err());
            }
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Spec::peek_plan(&bytes);
            let bytes = Bytes::from(bytes);
            let _ = Spec::peek_key(&bytes);
            let _ = Spec::decode(&bytes, UnixMs(0));
        }
    }

    #[test]
    fn each_limit_names_its_field() {
        let field = |spec: Spec| spec.check().unwrap_err().field;
        let long = Bytes::from(vec![0; limits::PAYLOAD_MAX_BYTES + 1]);
        assert_eq!(field(Spec { payload: long, ..plain(b"") }), "payload");
        let key = |len: usize| Some(Key { bytes: vec![1; len].into(), window_ms: 0 });
        assert_eq!(field(Spec { key: key(0), ..plain(b"") }), "key");
        assert_eq!(field(Spec { key: key(513), ..plain(b"") }), "key");
        assert_eq!(field(Spec { placement: Some(Bytes::new()), ..plain(b"") }), "placement");
        assert_eq!(PlanName::new("a b").unwrap_err().field, "plan");
        assert_eq!(field(Spec { lease_ms: Some(10), ..plain(b"") }), "lease");
        assert_eq!(field(Spec { timeout_ms: Some(0), ..plain(b"") }), "timeout");
        assert!(
            Spec { key: key(512), payload: vec![0; limits::PAYLOAD_MAX_BYTES].into(), ..plain(b"") }
                .check()
                .is_ok()
        );
    }
}
