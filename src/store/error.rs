//! What can go wrong between a caller and Redis, and what it means for the caller.

use crate::model::Durability;
use std::fmt;

/// Why a server that was reached would not run a command now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The memory limit is reached and the command would need more.
    Oom,
    /// The server is a replica.
    ReadOnly,
    /// The server cannot write its file to disk and therefore takes no writes.
    Misconf,
    /// The server is reading its file after a start.
    Loading,
    /// A script has been running for longer than the server's limit.
    Busy,
    /// The cluster has no owner for the slot, or no majority.
    ClusterDown,
    /// Fewer replicas are connected than `min-replicas-to-write` asks for.
    NoReplicas,
    /// The server is a replica without its master.
    MasterDown,
    /// The slot is on its way to another node.
    TryAgain,
}

impl Cause {
    /// The first word of the server's answer.
    pub fn word(self) -> &'static str {
        match self {
            Self::Oom => "OOM",
            Self::ReadOnly => "READONLY",
            Self::Misconf => "MISCONF",
            Self::Loading => "LOADING",
            Self::Busy => "BUSY",
            Self::ClusterDown => "CLUSTERDOWN",
            Self::NoReplicas => "NOREPLICAS",
            Self::MasterDown => "MASTERDOWN",
            Self::TryAgain => "TRYAGAIN",
        }
    }

    /// The cause that a server's answer begins with, if it is one of these.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "OOM" => Self::Oom,
            "READONLY" => Self::ReadOnly,
            "MISCONF" => Self::Misconf,
            "LOADING" => Self::Loading,
            "BUSY" => Self::Busy,
            "CLUSTERDOWN" => Self::ClusterDown,
            "NOREPLICAS" => Self::NoReplicas,
            "MASTERDOWN" => Self::MasterDown,
            "TRYAGAIN" => Self::TryAgain,
            _ => return None,
        })
    }

    /// Whether it usually passes within a call's time-out, so that the store itself tries again.
    ///
    /// Full memory, a full disk and a stuck script do not pass by themselves: the caller is told at once.
    pub(super) fn passes_soon(self) -> bool {
        !matches!(self, Self::Oom | Self::Misconf | Self::Busy)
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Oom => "raise maxmemory, or let work drain",
            Self::ReadOnly | Self::MasterDown => "a failover is under way, or the url names a replica",
            Self::Misconf => "look for a full disk in the server's log",
            Self::Loading => "the server has just started; wait",
            Self::Busy => "a script is stuck; see SCRIPT KILL",
            Self::ClusterDown => "a failover is under way, or slots have no owner",
            Self::NoReplicas => "start replicas, or lower min-replicas-to-write",
            Self::TryAgain => "the slot is being moved; wait",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why a call gave no answer.
///
/// A lost lease, a duplicate or a paused queue are answers, not errors; they are values of the
/// functions beside this file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection.
    #[error("redis unreachable at {url}: {cause}")]
    Unreachable {
        /// Where, without the password.
        url: String,
        /// What the operating system or the server said.
        cause: String,
        /// Whether the request may have reached the server before the connection broke.
        sent: bool,
    },
    /// No answer in time.
    #[error("no answer from redis to {script} within {timeout_ms} ms; the call may have been executed")]
    Timeout {
        /// The script or command.
        script: &'static str,
        /// The time-out that passed.
        timeout_ms: u64,
    },
    /// The server was reached and would not run it now.
    #[error("redis refused {script}: {detail} ({})", cause.advice())]
    Refused {
        /// The script or command.
        script: &'static str,
        /// Why.
        cause: Cause,
        /// The server's own words.
        detail: String,
    },
    /// A key holds another type than the one the script needs.
    #[error("a key used by {script} holds the wrong type: {detail}; something else writes to this namespace")]
    WrongType {
        /// The script or command.
        script: &'static str,
        /// The server's own words.
        detail: String,
    },
    /// The user lacks a right, or the login failed.
    #[error("redis does not permit {what}")]
    NoPermission {
        /// The missing right, as precisely as the server names it.
        what: String,
    },
    /// The server lacks what the scripts need.
    #[error(
        "{flavor} {version} is too old: minutehand needs Redis 7.0 or Valkey 7.2, because its scripts use \
         flags and sharded pub/sub"
    )]
    TooOld {
        /// `redis` or `valkey`.
        flavor: &'static str,
        /// The version found.
        version: String,
    },
    /// The server may throw tasks away when its memory is full.
    #[error(
        "maxmemory-policy is {policy}: redis may delete tasks when memory is full; set it to noeviction, or allow \
         an evicting server in the settings"
    )]
    UnsafeEviction {
        /// The policy found.
        policy: String,
    },
    /// The server cannot promise what a task was to be promised; nothing was sent.
    #[error("redis at {url} cannot promise durability {level}: {what}; nothing was sent")]
    CannotPromise {
        /// What was asked for.
        level: Durability,
        /// Where, without the password.
        url: String,
        /// What is in the way.
        what: String,
    },
    /// The address cannot be used.
    #[error("redis url: {what}")]
    BadUrl {
        /// What is wrong with it; never holds the password.
        what: String,
    },
    /// The answer has another shape than agreed: a script of another version, or a bug.
    #[error("unexpected answer from {script}: {what}")]
    BadReply {
        /// The script or command.
        script: &'static str,
        /// What was expected and what came.
        what: String,
    },
    /// The script failed.
    #[error("script {name} failed: {detail}")]
    Script {
        /// The script or command.
        name: &'static str,
        /// The server's own words.
        detail: String,
    },
    /// Too many commands are waiting for this server already; this one was not sent.
    #[error("too many commands are waiting for redis at {url}; send less, or wait")]
    Overloaded {
        /// Where, without the password.
        url: String,
    },
    /// The store was closed; nothing was sent.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the same call may succeed later without anyone changing it.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Refused { .. }
            | Self::Overloaded { .. } => true,
            Self::WrongType { .. }
            | Self::NoPermission { .. }
            | Self::TooOld { .. }
            | Self::UnsafeEviction { .. }
            | Self::CannotPromise { .. }
            | Self::BadUrl { .. }
            | Self::BadReply { .. }
            | Self::Script { .. }
            | Self::Closed => false,
        }
    }

    /// A short word for metrics; the set is closed.
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout { .. } => "timeout",
            Self::Refused { cause, .. } => match cause {
                Cause::Oom => "oom",
                Cause::ReadOnly => "readonly",
                Cause::Misconf => "misconf",
                Cause::Loading => "loading",
                Cause::Busy => "busy",
                Cause::ClusterDown => "clusterdown",
                Cause::NoReplicas => "noreplicas",
                Cause::MasterDown => "masterdown",
                Cause::TryAgain => "tryagain",
            },
            Self::WrongType { .. } => "wrong_type",
            Self::NoPermission { .. } => "no_permission",
            Self::TooOld { .. } => "too_old",
            Self::UnsafeEviction { .. } => "unsafe_eviction",
            Self::CannotPromise { .. } => "cannot_promise",
            Self::BadUrl { .. } => "bad_url",
            Self::BadReply { .. } => "bad_reply",
            Self::Script { .. } => "script",
            Self::Overloaded { .. } => "overloaded",
            Self::Closed => "closed",
        }
    }

    /// Whether the call may have been executed although it gave no answer.
    ///
    /// True also for the refusals that make the client drop its connection: all calls in flight on
    /// it are told the same words, and some of them may have run. A script that failed half-way has
    /// made its first writes, and an answer that cannot be read is that of a call which ran.
    pub fn fate_unknown(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Script { .. } | Self::WrongType { .. } | Self::BadReply { .. } => {
                true
            }
            Self::Unreachable { sent, .. } => *sent,
            Self::Refused { cause, .. } => {
                matches!(cause, Cause::ReadOnly | Cause::ClusterDown | Cause::MasterDown)
            }
            Self::NoPermission { .. }
            | Self::TooOld { .. }
            | Self::UnsafeEviction { .. }
            | Self::CannotPromise { .. }
            | Self::BadUrl { .. }
            | Self::Overloaded { .. }
            | Self::Closed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_where_and_what_to_do() {
        let old = StoreError::TooOld { flavor: "redis", version: "6.2.14".into() };
        assert!(
            old.to_string().starts_with("redis 6.2.14 is too old: minutehand needs Redis 7.0 or Valkey 7.2")
        );
        let full =
            StoreError::Refused { script: "intake.submit", cause: Cause::Oom, detail: "OOM no".into() };
        assert_eq!(
            full.to_string(),
            "redis refused intake.submit: OOM no (raise maxmemory, or let work drain)"
        );
        assert!(full.is_retryable() && !full.fate_unknown());
        assert_eq!(full.cause(), "oom");
    }

    #[test]
    fn every_cause_is_known_by_its_word() {
        use Cause::*;
        for cause in [Oom, ReadOnly, Misconf, Loading, Busy, ClusterDown, NoReplicas, MasterDown, TryAgain] {
            assert_eq!(Cause::of_word(cause.word()), Some(cause));
        }
        assert_eq!(Cause::of_word("ERR"), None);
    }
}
