//! Grants: one hand-out of a task, numbered by a fence that only grows.

use super::field::{FieldError, Reason, shown};
use super::id::TaskId;
use std::fmt;
use std::str::FromStr;

/// Forty bits of chance that tell two hand-outs with the same fence apart, as after a fail-over that lost the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce([u8; Self::LEN]);

impl Nonce {
    /// Hexadecimal digits.
    pub const LEN: usize = 10;

    /// A nonce of the low forty bits of `bits`.
    pub fn new(bits: u64) -> Self {
        let mut text = [0; Self::LEN];
        hex(&mut text, bits);
        Self(text)
    }

    /// Its digits.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

fn hex(out: &mut [u8], mut value: u64) {
    for slot in out.iter_mut().rev() {
        *slot = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

/// A grant as scripts compare it: eight hexadecimal digits of the fence, ten of the nonce.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant([u8; Self::LEN]);

impl Grant {
    /// Characters in a grant.
    pub const LEN: usize = 18;

    /// Puts a grant together.
    pub fn new(fence: u32, nonce: Nonce) -> Self {
        let mut text = [0; Self::LEN];
        hex(&mut text[..8], u64::from(fence));
        text[8..].copy_from_slice(&nonce.0);
        Self(text)
    }

    /// Reads 18 lower-case hexadecimal digits.
    pub fn from_bytes(text: &[u8]) -> Option<Self> {
        let text: [u8; Self::LEN] = text.try_into().ok()?;
        text.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).then_some(Self(text))
    }

    /// The fence.
    pub fn fence(&self) -> u32 {
        self.0[..8].iter().fold(0, |value, digit| (value << 4) | char::from(*digit).to_digit(16).unwrap_or(0))
    }

    /// The nonce.
    pub fn nonce(&self) -> Nonce {
        let mut text = [0; Nonce::LEN];
        text.copy_from_slice(&self.0[8..]);
        Nonce(text)
    }

    /// Its digits.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of one execution: `<id>.<fence>.<nonce>`. Fit as an idempotency key for what the task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecutionId {
    /// The task.
    pub id: TaskId,
    /// Its grant.
    pub grant: Grant,
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.id, self.grant.fence(), &self.grant.as_str()[8..])
    }
}

impl FromStr for ExecutionId {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let wrong = || {
            let detail = format!("{} is no execution id: those read <task id>.<fence>.<nonce>", shown(text));
            FieldError::new("execution_id", Reason::InvalidType, detail)
        };
        let mut parts = text.split('.');
        let (Some(id), Some(fence), Some(nonce), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let fence: u32 = fence.parse().map_err(|_| wrong())?;
        let mut digits = [0; Grant::LEN];
        hex(&mut digits[..8], u64::from(fence));
        digits[8..].copy_from_slice(
            nonce.as_bytes().get(..Nonce::LEN).filter(|n| n.len() == nonce.len()).ok_or_else(wrong)?,
        );
        Ok(Self { id: id.parse()?, grant: Grant::from_bytes(&digits).ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Minute};

    #[test]
    fn execution_ids_are_read_back() {
        let id = TaskId::new(Minute(29_408_521), Bucket::new(3).unwrap(), 7);
        let execution = ExecutionId { id, grant: Grant::new(300, Nonce::new(0x12_3456_789a)) };
        let text = execution.to_string();
        assert_eq!(text, format!("{id}.300.123456789a"));
        assert_eq!(text.parse::<ExecutionId>().unwrap(), execution);
        assert_eq!(execution.grant.fence(), 300);
        for wrong in ["", "a.b.c", &format!("{id}.1.12"), &format!("{id}.x.123456789a"), &format!("{text}.1")]
        {
            assert!(wrong.parse::<ExecutionId>().is_err(), "{wrong}");
        }
    }
}
