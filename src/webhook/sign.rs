//! Signatures of the Standard Webhooks scheme: HMAC-SHA256 over id, time and body.
//!
//! | header | content |
//! | --- | --- |
//! | `webhook-id` | id of the message, the same when it is sent again |
//! | `webhook-timestamp` | seconds since 1970 |
//! | `webhook-signature` | `v1,` and base64 of the signature of `id.timestamp.body`; one for each key |
//!
//! While keys are changed a message is signed with all of them, so that a receiver may know the old or the new.

use crate::model::field::{FieldError, Reason};
use ring::hmac;
use std::fmt;
use std::path::Path;

/// What a written key begins with.
const PREFIX: &str = "whsec_";
/// Shortest and longest key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=64;
/// Most keys at a time: one that goes, one that comes, and one for an accident.
const KEYS_MAX: usize = 4;

/// A secret that sender and receiver share.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    /// A key of 16 to 64 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, FieldError> {
        if !KEY_BYTES.contains(&secret.len()) {
            let detail = format!("has {} bytes; 16 to 64 are needed", secret.len());
            return Err(FieldError::new("webhook_key", Reason::OutOfRange, detail));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// Reads `whsec_` and base64.
    pub fn read(text: &str) -> Result<Self, FieldError> {
        let text = text.trim();
        let secret = text.strip_prefix(PREFIX).and_then(unbase64).ok_or_else(|| {
            let detail = format!("must be {PREFIX} and base64 of 16 to 64 bytes");
            FieldError::new("webhook_key", Reason::InvalidType, detail)
        })?;
        Self::new(&secret)
    }

    fn sign(&self, id: &str, at_s: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        for part in [id.as_bytes(), b".", at_s.to_string().as_bytes(), b".", body] {
            context.update(part);
        }
        format!("v1,{}", base64(context.sign().as_ref()))
    }

    fn verify(&self, id: &str, at_s: i64, body: &[u8], signature: &[u8]) -> bool {
        let message = [id.as_bytes(), b".", at_s.to_string().as_bytes(), b".", body].concat();
        hmac::verify(&self.0, &message, signature).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The keys that are in use, the newest first. None: messages are not signed.
#[derive(Debug, Clone, Default)]
pub struct Keys(Vec<Key>);

impl Keys {
    /// These keys.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Result<Self, FieldError> {
        let keys: Vec<_> = keys.into_iter().collect();
        if keys.len() > KEYS_MAX {
            let detail = format!("{} keys; at most {KEYS_MAX} may be in use at a time", keys.len());
            return Err(FieldError::new("webhook_key", Reason::TooMany, detail));
        }
        Ok(Self(keys))
    }

    /// Reads a file with a key a line, the newest first; lines that begin with `#` say something to people.
    pub fn read(path: &Path) -> Result<Self, FieldError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let detail = format!("{} cannot be read: {error}", path.display());
            FieldError::new("webhook_key", Reason::InvalidType, detail)
        })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self::new(lines.map(Key::read).collect::<Result<Vec<_>, _>>()?)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The header with the signatures of a message by all keys.
    pub fn sign(&self, id: &str, at_s: i64, body: &[u8]) -> String {
        self.0.iter().map(|key| key.sign(id, at_s, body)).collect::<Vec<_>>().join(" ")
    }

    /// For receivers: whether a message was signed by one of these keys, at most `tolerance_s` away from `now_s`.
    pub fn verify(
        &self,
        id: &str,
        at_s: i64,
        body: &[u8],
        header: &str,
        now_s: i64,
        tolerance_s: i64,
    ) -> bool {
        now_s.saturating_sub(at_s).saturating_abs() <= tolerance_s
            && header
                .split(' ')
                .filter_map(|signature| unbase64(signature.strip_prefix("v1,")?))
                .any(|signature| self.0.iter().any(|key| key.verify(id, at_s, body, &signature)))
    }
}

fn base64(bytes: &[u8]) -> String {
    crate::model::base64::encode(bytes)
}

fn unbase64(text: &str) -> Option<Vec<u8>> {
    crate::model::base64::decode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the scheme's own specification.
    #[test]
    fn a_signature_is_that_of_the_standard() {
        let key = Key::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        assert_eq!(
            key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_changed_message_or_key_or_an_old_one_is_not_believed() {
        let key = |n: u8| Key::new(&[n; 24]).unwrap();
        let both = Keys::new([key(2), key(1)]).unwrap();
        let old = Keys::new([key(1)]).unwrap();
        let header = both.sign("m", 1_000, b"body");
        assert_eq!(header.split(' ').count(), 2);
        assert!(old.verify("m", 1_000, b"body", &header, 1_290, 300), "while keys change, both are good");
        assert!(both.verify("m", 1_000, b"body", &old.sign("m", 1_000, b"body"), 1_000, 300));
        assert!(!old.verify("m", 1_000, b"Body", &header, 1_000, 300));
        assert!(!old.verify("n", 1_000, b"body", &header, 1_000, 300));
        assert!(!old.verify("m", 1_001, b"body", &header, 1_001, 300));
        assert!(!old.verify("m", 1_000, b"body", &header, 1_301, 300), "too old");
        assert!(!Keys::new([key(3)]).unwrap().verify("m", 1_000, b"body", &header, 1_000, 300));
        for wrong in ["", "v1,", "v1,!!", "v2,AAAA", "v1"] {
            assert!(!old.verify("m", 1_000, b"body", wrong, 1_000, 300), "{wrong}");
        }
    }

    #[test]
    fn keys_that_are_none_are_refused_and_never_shown() {
        for wrong in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_***"] {
            assert_eq!(Key::read(wrong).unwrap_err().field, "webhook_key", "{wrong}");
        }
        let key = Key::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(format!("{key:?}"), "Key(…)");
        assert!(Keys::new(vec![key; 5]).is_err());
    }
}
