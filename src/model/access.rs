//! Roles and tokens of the HTTP port.

use super::field::{FieldError, Reason, shown};
use super::lane::check_name;
use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submit tasks, and look up, cancel and move them.
    Submit,
    /// Take tasks and report their outcomes.
    Work,
    /// See everything.
    Read,
    /// See everything, submit, and keep the service running: freeze, redrive, settings of queues.
    Operate,
    /// Everything, tokens too.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Submit, Self::Work, Self::Read, Self::Operate, Self::Admin];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Work => "work",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// Whether who has this role may do what the other one is for.
    pub const fn includes(self, other: Self) -> bool {
        match self {
            Self::Admin => true,
            Self::Operate => matches!(other, Self::Operate | Self::Read | Self::Submit),
            Self::Submit => matches!(other, Self::Submit),
            Self::Work => matches!(other, Self::Work),
            Self::Read => matches!(other, Self::Read),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            FieldError::new("role", Reason::Unknown, format!("{} is none of {names}", shown(text)))
        })
    }
}

/// Some queues: one by its name, or with a `*` at the end all that begin so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueuePattern(String);

impl QueuePattern {
    /// Whether a queue is one of them.
    pub fn fits(&self, queue: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => queue.starts_with(start),
            None => self.0 == queue,
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for QueuePattern {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        match text.strip_suffix('*') {
            Some("") => {}
            Some(start) => check_name("queue", start, limits::QUEUE_MAX_BYTES)?,
            None => check_name("queue", text, limits::QUEUE_MAX_BYTES)?,
        }
        Ok(Self(text.to_owned()))
    }
}

/// A token as its holder has it: `mh_<id>_<secret>`. Its secret is never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText {
    /// Under which it is kept.
    pub id: String,
    /// What only its holder knows.
    pub secret: String,
}

/// Characters of a token's id.
pub const TOKEN_ID_LEN: usize = 10;
/// Characters of a token's secret: 256 bits.
pub const TOKEN_SECRET_LEN: usize = 43;

impl FromStr for TokenText {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        text.strip_prefix("mh_")
            .and_then(|rest| rest.split_at_checked(TOKEN_ID_LEN))
            .and_then(|(id, rest)| Some((id, rest.strip_prefix('_')?)))
            .filter(|(id, secret)| plain(id) && plain(secret) && secret.len() == TOKEN_SECRET_LEN)
            .map(|(id, secret)| Self { id: id.to_owned(), secret: secret.to_owned() })
            .ok_or_else(|| {
                FieldError::new("token", Reason::InvalidType, "it does not have the form of a token")
            })
    }
}

impl fmt::Display for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mh_{}_{}", self.id, self.secret)
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenText({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_include_what_they_say() {
        let table: Vec<String> = Role::ALL
            .iter()
            .map(|role| {
                let others =
                    Role::ALL.iter().filter(|other| role.includes(**other)).map(|other| other.name());
                format!("{role}: {}", others.collect::<Vec<_>>().join(" "))
            })
            .collect();
        let expected = [
            "submit: submit",
            "work: work",
            "read: read",
            "operate: submit read operate",
            "admin: submit work read operate admin",
        ];
        assert_eq!(table, expected);
        assert_eq!("root".parse::<Role>().unwrap_err().field, "role");
    }

    #[test]
    fn patterns_and_tokens_are_read() {
        let fits = |pattern: &str, queue: &str| pattern.parse::<QueuePattern>().unwrap().fits(queue);
        assert!(fits("push.*", "push.sms") && fits("*", "x") && fits("mail", "mail"));
        assert!(!fits("push.*", "pus") && !fits("mail", "mail.eu"));
        assert!("a*b".parse::<QueuePattern>().is_err() && "".parse::<QueuePattern>().is_err());
        let text = format!("mh_{}_{}", "a_-4567890", "s".repeat(43));
        let token: TokenText = text.parse().unwrap();
        assert_eq!((token.id.as_str(), token.to_string()), ("a_-4567890", text));
        assert_eq!(format!("{token:?}"), "TokenText(a_-4567890)");
        for bad in ["", "mh_", "mh_a_b", "mh_ääääääääää_x"] {
            assert!(bad.parse::<TokenText>().is_err(), "{bad}");
        }
    }
}
