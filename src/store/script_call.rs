//! One request to one server, and what its failure means.

use std::time::Duration;

use bytes::Bytes;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::prelude::{Client, Options};
use fred::types::{ClusterHash, CustomCommand, Value};

use super::connect::Host;
use super::error::{Cause, StoreError};
use super::reply::Reply;
use super::script::Script;
use crate::model::Durability;

/// What is to be sent. Its parts are counted references: sending it again copies no bytes.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    /// A script by its digest or as its `whole` text, with the two keys that every script declares. Where
    /// `level` waits for others, the answer is a list: that of the script, and that of the wait.
    Script {
        script: &'static Script,
        keys: &'a [Bytes; 2],
        args: &'a [Bytes],
        level: Durability,
        whole: bool,
    },
    /// A plain command.
    Command { name: &'static str, args: &'a [Bytes] },
}

impl Request<'_> {
    /// Its name in errors and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Script { script, .. } => script.name,
            Self::Command { name, .. } => name,
        }
    }

    /// Sends the script's text from now on; false where nothing is gained by it.
    pub fn as_whole(&mut self) -> bool {
        match self {
            Self::Script { whole: whole @ false, .. } => {
                *whole = true;
                true
            }
            Self::Script { .. } | Self::Command { .. } => false,
        }
    }

    /// How safe its writes must be before it is answered.
    pub fn level(&self) -> Durability {
        match self {
            Self::Script { level, .. } => *level,
            Self::Command { .. } => Durability::Memory,
        }
    }

    fn command(&self) -> (CustomCommand, Vec<Value>) {
        // One client talks to one server, so the client's own choice of a slot has no meaning.
        let whole = |name| CustomCommand::new_static(name, ClusterHash::FirstKey, false);
        match self {
            Self::Script { script, keys, args, whole: as_text, .. } => {
                let mut values = Vec::with_capacity(args.len() + 4);
                let text = if *as_text { script.text() } else { script.sha1() };
                values.push(Value::Bytes(Bytes::from_static(text.as_bytes())));
                values.push(Value::Bytes(Bytes::from_static(b"2")));
                values.extend(keys.iter().cloned().map(Value::Bytes));
                values.extend(args.iter().cloned().map(Value::Bytes));
                (whole(if *as_text { "EVAL" } else { "EVALSHA" }), values)
            }
            Self::Command { name, args } => (whole(name), args.iter().cloned().map(Value::Bytes).collect()),
        }
    }
}

/// Why a request gave no answer, as far as it matters for what to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server does not know the script: load it there and send again.
    NoScript,
    /// The slot belongs to another node.
    Moved { slot: u16, host: Host },
    /// The slot is on its way to another node, and this key has arrived there.
    Ask { host: Host },
    /// The server would not run it now.
    Refused { cause: Cause, detail: String },
    /// There was no connection; it was not sent.
    Unsent { detail: String },
    /// The connection broke; it may have been executed.
    Broken { detail: String },
    /// No answer in time; it may have been executed.
    Late,
    /// Too many commands wait already; it was not sent.
    Full,
    /// Trying again is of no use.
    Fatal(StoreError),
}

/// Sends one request and waits for its answer, at most `left` long.
pub(super) async fn send(
    client: &Client,
    request: Request<'_>,
    left: Duration,
    asking: bool,
) -> Result<Reply, Fault> {
    let name = request.name();
    let (command, values) = request.command();
    let options = Options { timeout: Some(left), max_attempts: Some(1), ..Options::default() };
    if asking {
        // The two must be neighbours on one connection, which the client grants within one pipeline.
        let answers = neighbours(client, &options, vec![plain("ASKING"), (command, values)]).await;
        let last = answers.map_err(|error| of_error(name, &error))?.pop();
        return match last {
            Some(Ok(value)) => Ok(Reply::from_value(value)),
            Some(Err(error)) => Err(of_error(name, &error)),
            None => Err(Fault::Broken { detail: "an answer is missing".into() }),
        };
    }
    match client.with_options(&options).custom_raw(command, values).await {
        Ok(frame) => Reply::from_frame(frame).map_err(|text| of_text(name, &text)),
        Err(error) => Err(of_error(name, &error)),
    }
}

/// A command without arguments.
fn plain(name: &'static str) -> (CustomCommand, Vec<Value>) {
    (CustomCommand::new_static(name, ClusterHash::FirstKey, false), Vec::new())
}

/// Sends commands in one pipeline, so that nothing comes between them.
async fn neighbours(
    client: &Client,
    options: &Options,
    commands: Vec<(CustomCommand, Vec<Value>)>,
) -> Result<Vec<Result<Value, Error>>, Error> {
    let pipeline = client.pipeline().with_options(options);
    for (command, values) in commands {
        pipeline.custom::<(), Value>(command, values).await?;
    }
    Ok(pipeline.try_all::<Value>().await)
}

/// Makes a script known to one server.
pub(super) async fn load(client: &Client, script: &'static Script, left: Duration) -> Result<(), Fault> {
    let body = [Bytes::from_static(script.text().as_bytes())];
    let got = send(client, Request::Command { name: "SCRIPT LOAD", args: &body }, left, false).await?;
    match got {
        Reply::Bytes(sha) if sha == script.sha1().as_bytes() => Ok(()),
        other => Err(Fault::Fatal(StoreError::BadReply {
            script: script.name,
            what: format!("expected its digest from SCRIPT LOAD, got {}", other.kind()),
        })),
    }
}

/// What an error of the client means.
pub(super) fn of_error(name: &'static str, error: &Error) -> Fault {
    let detail = error.details();
    match error.kind() {
        ErrorKind::Timeout => Fault::Late,
        ErrorKind::Backpressure => Fault::Full,
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Protocol | ErrorKind::Parse => {
            Fault::Broken { detail: detail.to_owned() }
        }
        ErrorKind::Tls | ErrorKind::Sentinel | ErrorKind::Routing => {
            Fault::Unsent { detail: detail.to_owned() }
        }
        // The client gives most answers of the server the kind `Unknown`, and its own troubles too.
        _ => match detail {
            "Failed to route command."
            | "Failed to send command to router."
            | "Client is not initialized." => Fault::Unsent { detail: "no connection".into() },
            _ if detail.starts_with("Too many failed write attempts")
                || detail.contains("channel closed") =>
            {
                Fault::Broken { detail: detail.to_owned() }
            }
            _ => of_text(name, detail),
        },
    }
}

/// What an error of the server means, by the first word of its text.
pub(super) fn of_text(name: &'static str, text: &str) -> Fault {
    let word = text.split([' ', '\r', '\n']).next().unwrap_or("");
    if let Some(cause) = Cause::of_word(word) {
        return Fault::Refused { cause, detail: text.to_owned() };
    }
    let detail = text.to_owned();
    match word {
        "NOSCRIPT" => return Fault::NoScript,
        "MOVED" | "ASK" => {
            let mut words = text.split(' ').skip(1);
            let slot = words.next().and_then(|slot| slot.parse().ok());
            let host = words.next().and_then(Host::of_redirect);
            return match (slot, host) {
                (Some(slot), Some(host)) if word == "MOVED" => Fault::Moved { slot, host },
                (Some(_), Some(host)) => Fault::Ask { host },
                _ => Fault::Fatal(StoreError::BadReply {
                    script: name,
                    what: format!("a redirect without a target: {detail}"),
                }),
            };
        }
        "WRONGTYPE" => return Fault::Fatal(StoreError::WrongType { script: name, detail }),
        "NOPERM" | "NOAUTH" | "WRONGPASS" => return Fault::Fatal(no_permission(name, text)),
        _ => {}
    }
    if text.contains("ACL failure in script") || text.contains("can't run this command") {
        return Fault::Fatal(no_permission(name, text));
    }
    Fault::Fatal(StoreError::Script { name, detail })
}

/// Names the right that is missing, as precisely as the server does.
fn no_permission(name: &'static str, text: &str) -> StoreError {
    let quoted = text.split('\'').nth(1);
    let what = if text.starts_with("NOAUTH") {
        "anything without a login; give a user name and a password".into()
    } else if text.starts_with("WRONGPASS") {
        "this login: user name or password is wrong, or the user is off".into()
    } else if text.contains(" channel") {
        format!("{name} on its channel: the user's ACL lacks the channel pattern (&…)")
    } else if text.contains(" key") {
        format!("{name} on its keys: the user's ACL lacks the key pattern (~…)")
    } else if let Some(command) = quoted.filter(|_| text.starts_with("NOPERM")) {
        format!("the command {}: the user's ACL lacks +{command}", command.to_uppercase())
    } else {
        format!("what {name} does: {text}")
    };
    StoreError::NoPermission { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_decides() {
        let host = || Host::new("10.0.0.1", 7000);
        let refused = |cause, text: &str| Fault::Refused { cause, detail: text.into() };
        let table = [
            ("NOSCRIPT No matching script. Please use EVAL.", Fault::NoScript),
            ("NOSCRIPT No matching script.", Fault::NoScript),
            ("MOVED 3999 10.0.0.1:7000", Fault::Moved { slot: 3999, host: host() }),
            ("ASK 3999 10.0.0.1:7000", Fault::Ask { host: host() }),
            ("LOADING Redis is loading", refused(Cause::Loading, "LOADING Redis is loading")),
            ("TRYAGAIN Multiple keys", refused(Cause::TryAgain, "TRYAGAIN Multiple keys")),
            ("OOM command not allowed", refused(Cause::Oom, "OOM command not allowed")),
            ("READONLY You can't", refused(Cause::ReadOnly, "READONLY You can't")),
            ("MISCONF Redis is", refused(Cause::Misconf, "MISCONF Redis is")),
            ("BUSY Redis is busy", refused(Cause::Busy, "BUSY Redis is busy")),
            ("CLUSTERDOWN The cluster", refused(Cause::ClusterDown, "CLUSTERDOWN The cluster")),
            ("NOREPLICAS Not enough", refused(Cause::NoReplicas, "NOREPLICAS Not enough")),
            ("MASTERDOWN Link", refused(Cause::MasterDown, "MASTERDOWN Link")),
        ];
        for (text, want) in table {
            assert_eq!(of_text("a.b", text), want, "{text}");
        }
    }

    #[test]
    fn what_is_of_no_use_to_repeat_is_fatal() {
        let fatal = |text| match of_text("a.b", text) {
            Fault::Fatal(error) => error.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert!(fatal("WRONGTYPE Operation against").contains("a key used by a.b holds the wrong type"));
        assert_eq!(fatal("ERR user_script:1: boom"), "script a.b failed: ERR user_script:1: boom");
        assert!(fatal("MOVED x").contains("without a target"));
        let right = fatal("NOPERM this user has no permissions to run the 'evalsha' command");
        assert_eq!(right, "redis does not permit the command EVALSHA: the user's ACL lacks +evalsha");
        let keys = fatal("NOPERM this user has no permissions to access one of the keys used as arguments");
        assert!(keys.contains("key pattern"), "{keys}");
        assert!(fatal("NOAUTH Authentication required.").contains("without a login"));
        assert!(fatal("WRONGPASS invalid username-password pair or user is disabled.").contains("is wrong"));
    }

    #[test]
    fn the_clients_own_errors_say_whether_something_was_sent() {
        let error = |kind, text| of_error("a.b", &Error::new(kind, text));
        assert_eq!(error(ErrorKind::Timeout, "Request timed out."), Fault::Late);
        assert_eq!(error(ErrorKind::Backpressure, "full"), Fault::Full);
        assert!(matches!(error(ErrorKind::IO, "closed"), Fault::Broken { .. }));
        assert!(matches!(error(ErrorKind::Canceled, "closed"), Fault::Broken { .. }));
        assert!(matches!(error(ErrorKind::Unknown, "Failed to route command."), Fault::Unsent { .. }));
        assert_eq!(error(ErrorKind::Unknown, "NOSCRIPT No matching script."), Fault::NoScript);
        let down = error(ErrorKind::Cluster, "CLUSTERDOWN The cluster is down");
        assert!(matches!(down, Fault::Refused { cause: Cause::ClusterDown, .. }));
    }
}
