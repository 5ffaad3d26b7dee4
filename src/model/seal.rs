//! Payloads that only those who hold a key can read.
//!
//! Who submits seals (XChaCha20-Poly1305), who executes opens; Redis, pods and operators see bytes. Namespace, queue and
//! the key's name are authenticated with it, so that a payload cannot be moved to another queue unnoticed. A nonce has 192
//! random bits: as many payloads as one likes may be sealed with one key.
//!
//! A sealed payload is the nonce (24 bytes), the cipher text, and the tag (16 bytes). The name of its key lies in
//! [`super::spec::Extras::sealed`].

use super::Namespace;
use super::field::{FieldError, Reason};
use super::lane::{QueueName, check_name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use std::fmt;
use std::str::FromStr;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 24;
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// By how much a sealed payload is longer.
pub const OVERHEAD_BYTES: usize = NONCE_BYTES + 16;
/// Longest name of a key: it lies in every task.
pub const NAME_MAX_BYTES: usize = 16;
/// Most keys of a ring.
pub const KEYS_MAX: usize = 64;

/// Why a sealed payload cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The ring lacks the key; one that has it may read it.
    #[error("the payload is encrypted with key {0}, which is not among the keys here")]
    UnknownKey(String),
    /// It is not what was sealed with this key for this queue.
    #[error(
        "the payload cannot be decrypted with key {0}: it is another key of that name, or the payload was changed"
    )]
    Wrong(String),
}

/// Keys by name: the first one seals, all of them open.
#[derive(Clone)]
pub struct KeyRing {
    keys: Vec<(String, XChaCha20Poly1305)>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.keys.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "KeyRing({})", names.join(" "))
    }
}

fn context(namespace: &Namespace, queue: &QueueName, name: &str) -> Vec<u8> {
    // None of the three has a line's end in it.
    format!("minutehand 1\n{namespace}\n{queue}\n{name}").into_bytes()
}

impl KeyRing {
    /// Reads a ring: a line `name:key` for each key, the key in base64. Lines that begin with `#` are left out.
    ///
    /// To rotate, put a new key before the others on every executor, then before the others where tasks are submitted;
    /// drop the old one when no task is left that was sealed with it.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        let wrong = |line: usize, what: &str| {
            FieldError::new("keys", Reason::InvalidType, format!("line {}: {what}", line + 1))
        };
        let mut keys: Vec<(String, XChaCha20Poly1305)> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // What is wrong with a key is told without it.
            let (name, key) = line.split_once(':').ok_or_else(|| wrong(at, "is not of the form name:key"))?;
            check_name("keys", name, NAME_MAX_BYTES)?;
            if keys.iter().any(|(known, _)| known == name) {
                return Err(wrong(at, &format!("key {name} is there twice")));
            }
            let bytes = STANDARD.decode(key.trim()).ok().filter(|bytes| bytes.len() == KEY_BYTES);
            let bytes = bytes.ok_or_else(|| wrong(at, "the key is not 32 bytes in base64"))?;
            let cipher = XChaCha20Poly1305::new_from_slice(&bytes)
                .map_err(|_| wrong(at, "the key is not 32 bytes in base64"))?;
            keys.push((name.to_owned(), cipher));
        }
        if keys.is_empty() {
            return Err(FieldError::new("keys", Reason::Missing, "there is no key in it"));
        }
        if keys.len() > KEYS_MAX {
            let detail = format!("{} keys; at most {KEYS_MAX} are allowed", keys.len());
            return Err(FieldError::new("keys", Reason::TooMany, detail));
        }
        Ok(Self { keys })
    }

    /// A ring's line for a key of these bytes.
    pub fn line(name: &str, key: &[u8; KEY_BYTES]) -> Result<String, FieldError> {
        check_name("name", name, NAME_MAX_BYTES)?;
        Ok(format!("{name}:{}", STANDARD.encode(key)))
    }

    /// Seals a payload with the first key; answers the key's name too. `nonce` must be random.
    pub fn seal(
        &self,
        namespace: &Namespace,
        queue: &QueueName,
        payload: &[u8],
        nonce: [u8; NONCE_BYTES],
    ) -> Result<(String, Bytes), SealError> {
        // A ring has a key.
        let Some((name, cipher)) = self.keys.first() else {
            return Err(SealError::UnknownKey(String::new()));
        };
        let aad = context(namespace, queue, name);
        let sealed = cipher.encrypt(XNonce::from_slice(&nonce), Payload { msg: payload, aad: &aad });
        let sealed = sealed.map_err(|_| SealError::Wrong(name.clone()))?;
        Ok((name.clone(), [&nonce[..], &sealed].concat().into()))
    }

    /// Opens a payload that was sealed with the key of this name.
    pub fn open(
        &self,
        namespace: &Namespace,
        queue: &QueueName,
        name: &str,
        sealed: &[u8],
    ) -> Result<Bytes, SealError> {
        let found = self.keys.iter().find(|(known, _)| known == name);
        let (_, cipher) = found.ok_or_else(|| SealError::UnknownKey(name.to_owned()))?;
        let wrong = || SealError::Wrong(name.to_owned());
        let (nonce, text) = sealed.split_at_checked(NONCE_BYTES).ok_or_else(wrong)?;
        let aad = context(namespace, queue, name);
        let opened = cipher.decrypt(XNonce::from_slice(nonce), Payload { msg: text, aad: &aad });
        opened.map(Bytes::from).map_err(|_| wrong())
    }
}

impl FromStr for KeyRing {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(names: &[(&str, u8)]) -> KeyRing {
        let lines: Vec<String> =
            names.iter().map(|(name, byte)| KeyRing::line(name, &[*byte; KEY_BYTES]).unwrap()).collect();
        lines.join("\n").parse().unwrap()
    }

    fn place() -> (Namespace, QueueName) {
        (Namespace::new("mh").unwrap(), QueueName::new("mail").unwrap())
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened_and_nothing_else(
            payload in proptest::collection::vec(any::<u8>(), 0..200), nonce: [u8; NONCE_BYTES], flip: proptest::sample::Index, bit in 0u8..8,
        ) {
            let ((namespace, queue), keys) = (place(), ring(&[("k2", 2), ("k1", 1)]));
            let (name, sealed) = keys.seal(&namespace, &queue, &payload, nonce).unwrap();
            prop_assert_eq!((name.as_str(), sealed.len()), ("k2", payload.len() + OVERHEAD_BYTES));
            prop_assert_eq!(keys.open(&namespace, &queue, &name, &sealed), Ok(payload.clone().into()));
            let mut changed = sealed.to_vec();
            changed[flip.index(sealed.len())] ^= 1 << bit;
            prop_assert_eq!(keys.open(&namespace, &queue, &name, &changed), Err(SealError::Wrong("k2".into())));
            for cut in [0, NONCE_BYTES, sealed.len() - 1] {
                prop_assert!(keys.open(&namespace, &queue, &name, &sealed[..cut]).is_err());
            }
        }
    }

    #[test]
    fn keys_rotate_and_wrong_ones_are_told() {
        let (namespace, queue) = place();
        let (old, both, other) = (ring(&[("k1", 1)]), ring(&[("k2", 2), ("k1", 1)]), ring(&[("k1", 9)]));
        let (name, sealed) = old.seal(&namespace, &queue, b"x", [0; NONCE_BYTES]).unwrap();
        assert_eq!(both.open(&namespace, &queue, &name, &sealed), Ok(Bytes::from_static(b"x")));
        let (name2, sealed2) = both.seal(&namespace, &queue, b"x", [0; NONCE_BYTES]).unwrap();
        assert_eq!(old.open(&namespace, &queue, &name2, &sealed2), Err(SealError::UnknownKey("k2".into())));
        assert_eq!(other.open(&namespace, &queue, &name, &sealed), Err(SealError::Wrong("k1".into())));
        let elsewhere = QueueName::new("other").unwrap();
        assert_eq!(old.open(&namespace, &elsewhere, &name, &sealed), Err(SealError::Wrong("k1".into())));
    }

    #[test]
    fn rings_are_checked_and_never_shown() {
        let line = KeyRing::line("k1", &[7; KEY_BYTES]).unwrap();
        let keys: KeyRing = format!("# mine\n\n {line} \n").parse().unwrap();
        assert_eq!(format!("{keys:?}"), "KeyRing(k1)");
        for bad in [
            "",
            "k1",
            "k1:short",
            "a b:AAAA",
            &format!("{line}\n{line}"),
            &format!("{}:{}", "n".repeat(17), &line[3..]),
        ] {
            let error = bad.parse::<KeyRing>().unwrap_err();
            assert!(error.field == "keys" && !error.detail.contains(&line[3..]), "{error}");
        }
    }
}
