//! Every Redis key of Minutehand, its type, and the rule of its hash tag.
//!
//! All keys of a bucket begin with `{<namespace>.<bucket>.<suffix>}:` (see [`crate::model::Tag`]) and so lie
//! in one cluster slot; a script gets `meta` and `never` as its keys and derives the others. What does not
//! belong to a bucket has a tag of its own: `{<namespace>:<room>}:`.
//!
//! | key of a bucket | type | content |
//! | --- | --- | --- |
//! | `meta` | HASH | layout version, clock last seen, closed mark, cursors; always there |
//! | `never` | | never there: with `meta` it makes the server refuse half-moved slots |
//! | `agenda` | ZSET | names of what becomes due, by minute: due sets (one name for both sets of a minute), `t<minute>` timers, `k<hour>` keys to forget |
//! | `due:<minute>[u][.<second>[.<part>]]` | ZSET | id + lane, by due ms; `u` holds P0 and P1 |
//! | `ready:<lane>` | ZSET | ripe ids of a lane with a backlog, by due ms |
//! | `ring:<priority>` | ZSET | lanes with a backlog, by turn |
//! | `held:<plan>` | ZSET | id + lane of tasks of a frozen plan that were set aside, by due ms |
//! | `helds` | ZSET | plans that have such a set |
//! | `kept` | ZSET | tasks that wait for others of their placement key, by key and due |
//! | `looks` | ZSET | placement keys with rules → when they are looked after |
//! | `turns`, `flight`, `spent`, `newest` | HASH | placement key → whose turn it is, who runs, when some went, who was submitted last |
//! | `parked` | SET | lanes with a backlog that may not be claimed |
//! | `task:<home hour>` | HASH | id → spec |
//! | `at` | HASH | id → due, lane, fence, failures, of tasks that are not at home |
//! | `run` | HASH | id → phase, deadline, grant, lane, holder |
//! | `lease:<second, with a tenth>` | STRING | ids whose lease may lapse then |
//! | `leases` | ZSET | seconds that have such a string |
//! | `timer:<minute>` | ZSET | ids with a deadline, by ms |
//! | `keys:<shard>` | HASH | name of an idempotency key → id without its bucket; until when it stands, once the task has ended |
//! | `keyend:<hour>` | STRING | names of keys that may be forgotten then |
//! | `recent:<10 s>` | STRING | ids and outcomes of finished tasks |
//! | `recents` | ZSET | tens of seconds that have such a string |
//! | `tries` | HASH | id → failed attempts so far |
//! | `dead` | ZSET | ids of dead letters, by time |
//! | `dead:<id>` | HASH | reason, time, attempts |
//! | `events` | STREAM | packed moves |
//! | `tally` | HASH | running tasks and outcomes, only of queues that have a limit which asks for them |
//! | `cut` | HASH | letter of a move → how many have been trimmed off the stream |
//! | `outbox` | STREAM | ends of tasks of which somebody wants to hear |
//! | `readers` | HASH | subscription → how far it has got them; who delivers |
//! | `bytes` | HASH | home hour → bytes of its specs, `#` of all; only where the namespace has a quota for bytes |
//! | `counts` | HASH | counters of the conservation law, ripe backlog, deficits |
//! | `lag:<minute>` | HASH | start − due, as a histogram; ends by itself after 10 minutes |
//! | `lock` | HASH | pod → permit, until, planned wake-up |
//! | `mark:<id>` | HASH | what handlers keep for a task: progress, checkpoint, steps done; ends by itself after a week |
//! | `last:<pod>` | STRING | call id and grants of the pod's last claim |
//!
//! | other tag | keys | content |
//! | --- | --- | --- |
//! | `<namespace>:lanes` | `by_name`, `by_code` (HASH), `new` (channel) | codes of queues with labels |
//! | `<namespace>:spread` | `spread` (HASH), `new` (channel) | buckets, those that close, holders, bounds, epoch |
//! | `<namespace>:decider` | `lead` (HASH), `windows`, `changes` (LIST) | who decides, and what was decided on which figures |
//! | `<namespace>:digest` | `digest` (HASH) | how far owners were told of dead letters, and who does it |
//! | `<namespace>:runs` | `q:<queue>` (HASH) | how long tasks of a queue run, in bins, and how many fail |
//! | `<namespace>:freeze` | `frozen` (HASH), `new` (channel) | what is frozen |
//! | `<namespace>:access` | `tokens` (HASH), `notes` (STREAM), `new` (channel) | tokens of the HTTP port, what operators did |
//! | `<namespace>:queues` | `records` (HASH), `new` (channel) | what is set for queues, as JSON behind a version |
//! | `<namespace>:l:<q or d>:<name>` | `allotted`, `shares`, `breaker` (HASH) | what pods hold of the limits of a queue or downstream |
//! | `<namespace>:pods`, `<namespace>:executors` | `seen` (ZSET), `records` (HASH), `new` (channel) | who lives |
//! | `<namespace>:executors` | `lost`, `drained` (SET) | whose inbox is still to be looked after; who is to be given nothing |
//! | `<namespace>:x:<executor>` | `slots` (HASH), `inbox`, `urgent` (LIST), `wake` (channel) | an executor's inbox |
//! | `<namespace>:days:<name>/<segment>` | `day:<day>` (STRING) | subjects met on a day, a bit each; ends by itself after two days |
//! | `<namespace>:p:<pod>` | `room` (channel) | where a pod hears of room |

use crate::model::{LaneCode, Namespace, Tag, TaskId};
use bytes::Bytes;

/// The two keys that every script declares, for one tag.
#[derive(Debug, Clone)]
pub struct Guard {
    /// `{tag}:meta` and `{tag}:never`.
    pub keys: [Bytes; 2],
}

impl Guard {
    /// The guard of a bucket.
    pub fn bucket(tag: &Tag) -> Self {
        Self::of(tag.as_str())
    }

    /// The guard of one of the namespace's rooms: `lanes`, `spread`, `pods`, `executors`, `x:<executor>`, `p:<pod>`.
    pub fn room(namespace: &Namespace, room: &str) -> Self {
        Self::of(&format!("{namespace}:{room}"))
    }

    fn of(tag: &str) -> Self {
        Self { keys: [format!("{{{tag}}}:meta").into(), format!("{{{tag}}}:never").into()] }
    }

    /// Another key (or sharded channel) under the same tag.
    pub fn key(&self, name: &str) -> Bytes {
        let meta = &self.keys[0];
        let prefix = &meta[..meta.len() - 4];
        [prefix, name.as_bytes()].concat().into()
    }
}

/// What all of a namespace's keys begin with: `{<namespace>.` for buckets, `{<namespace>:` for the rest.
pub fn prefixes(namespace: &Namespace) -> [String; 2] {
    [format!("{{{namespace}."), format!("{{{namespace}:")]
}

/// What a key of a bucket is, by its name behind the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `meta`
    Meta,
    /// `agenda`
    Agenda,
    /// `due:…`
    Due,
    /// `ready:…`
    Ready,
    /// `ring:…`
    Ring,
    /// `parked`
    Parked,
    /// `held:…`
    Held,
    /// `helds`
    Helds,
    /// `kept`
    Kept,
    /// `looks`
    Looks,
    /// `turns`
    Turns,
    /// `flight`
    Flight,
    /// `spent`
    Spent,
    /// `newest`
    Newest,
    /// `task:…`
    Task,
    /// `at`
    At,
    /// `run`
    Run,
    /// `lease:…`
    Lease,
    /// `leases`
    Leases,
    /// `timer:…`
    Timer,
    /// `keys:…`
    Keys,
    /// `keyend:…`
    KeyEnd,
    /// `recent:…`
    Recent,
    /// `recents`
    Recents,
    /// `tries`
    Tries,
    /// `dead`
    Dead,
    /// `dead:…`
    Letter,
    /// `events`
    Events,
    /// `cut`
    Cut,
    /// `outbox`
    Outbox,
    /// `readers`
    Readers,
    /// `bytes`
    Bytes,
    /// `counts`
    Counts,
    /// `tally`
    Tally,
    /// `lag:…`
    Lag,
    /// `lock`
    Lock,
    /// `last:…`
    Last,
    /// `mark:…`
    Mark,
}

impl Kind {
    /// The names that every bucket may have once, in one list.
    pub const SINGLE: [&'static str; 24] = [
        "kept", "looks", "turns", "flight", "spent", "newest", "meta", "agenda", "leases", "recents",
        "parked", "helds", "at", "run", "tries", "dead", "events", "cut", "counts", "tally", "lock",
        "outbox", "readers", "bytes",
    ];

    /// The kind of a name; nothing for a name that is none of ours.
    pub fn of(name: &str) -> Option<Self> {
        let number =
            |text: &str| !text.is_empty() && text.len() <= 12 && text.bytes().all(|b| b.is_ascii_digit());
        let (stem, rest) = match name.split_once(':') {
            Some((stem, rest)) => (stem, Some(rest)),
            None => (name, None),
        };
        Some(match (stem, rest) {
            ("meta", None) => Self::Meta,
            ("agenda", None) => Self::Agenda,
            ("leases", None) => Self::Leases,
            ("recents", None) => Self::Recents,
            ("parked", None) => Self::Parked,
            ("helds", None) => Self::Helds,
            ("kept", None) => Self::Kept,
            ("looks", None) => Self::Looks,
            ("turns", None) => Self::Turns,
            ("flight", None) => Self::Flight,
            ("spent", None) => Self::Spent,
            ("newest", None) => Self::Newest,
            ("at", None) => Self::At,
            ("run", None) => Self::Run,
            ("tries", None) => Self::Tries,
            ("dead", None) => Self::Dead,
            ("events", None) => Self::Events,
            ("cut", None) => Self::Cut,
            ("outbox", None) => Self::Outbox,
            ("readers", None) => Self::Readers,
            ("bytes", None) => Self::Bytes,
            ("counts", None) => Self::Counts,
            ("tally", None) => Self::Tally,
            ("lock", None) => Self::Lock,
            ("due", Some(rest)) if is_due_name(rest) => Self::Due,
            ("ready", Some(rest)) if LaneCode::from_bytes(rest.as_bytes()).is_some() => Self::Ready,
            ("ring", Some("0" | "1" | "2" | "3" | "4" | "5")) => Self::Ring,
            ("held", Some(rest)) if !rest.is_empty() => Self::Held,
            ("task", Some(rest)) if number(rest) => Self::Task,
            ("lease", Some(rest)) if is_lease_name(rest) => Self::Lease,
            ("timer", Some(rest)) if number(rest) => Self::Timer,
            ("keys", Some(rest)) if number(rest) => Self::Keys,
            ("keyend", Some(rest)) if number(rest) => Self::KeyEnd,
            ("recent", Some(rest)) if number(rest) => Self::Recent,
            ("lag", Some(rest)) if number(rest) => Self::Lag,
            ("dead", Some(rest)) if TaskId::from_bytes(rest.as_bytes()).is_some() => Self::Letter,
            ("mark", Some(rest)) if TaskId::from_bytes(rest.as_bytes()).is_some() => Self::Mark,
            ("last", Some(rest)) if !rest.is_empty() => Self::Last,
            _ => return None,
        })
    }

    /// The type that `TYPE` answers for it.
    pub const fn redis_type(self) -> &'static str {
        match self {
            Self::Agenda
            | Self::Leases
            | Self::Recents
            | Self::Due
            | Self::Ready
            | Self::Ring
            | Self::Held
            | Self::Helds
            | Self::Kept
            | Self::Looks
            | Self::Timer
            | Self::Dead => "zset",
            Self::Turns | Self::Flight | Self::Spent | Self::Newest | Self::Readers => "hash",
            Self::Meta | Self::Task | Self::At | Self::Run | Self::Keys | Self::Tries => "hash",
            Self::Letter | Self::Mark | Self::Cut | Self::Counts | Self::Tally | Self::Lag | Self::Lock => {
                "hash"
            }
            Self::Bytes => "hash",
            Self::Lease | Self::KeyEnd | Self::Recent | Self::Last => "string",
            Self::Parked => "set",
            Self::Events | Self::Outbox => "stream",
        }
    }
}

/// A second and a tenth; builds before the tenths wrote none.
fn is_lease_name(rest: &str) -> bool {
    let (second, tenth) = rest.split_once('.').unwrap_or((rest, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits(second) && second.len() <= 12 && tenth.len() == 1 && digits(tenth)
}

/// `<minute>[u][.<second>[.<part>]]`
fn is_due_name(name: &str) -> bool {
    let mut parts = name.split('.');
    let minute = parts.next().unwrap_or("");
    let minute = minute.strip_suffix('u').unwrap_or(minute);
    let second = parts.next().is_none_or(|s| s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit()));
    let part = parts.next().is_none_or(|p| p.len() == 1 && p.bytes().all(|b| b.is_ascii_hexdigit()));
    let digits = !minute.is_empty() && minute.len() <= 12 && minute.bytes().all(|b| b.is_ascii_digit());
    digits && second && part && parts.next().is_none()
}

fn is_day(name: &str) -> bool {
    name.strip_prefix("day:").is_some_and(|day| !day.is_empty() && day.bytes().all(|b| b.is_ascii_digit()))
}

/// Names that only rooms have, with their types.
pub const ROOM_KEYS: [(&str, &str); 20] = [
    ("digest", "hash"),
    ("tokens", "hash"),
    ("notes", "stream"),
    ("allotted", "hash"),
    ("shares", "hash"),
    ("breaker", "hash"),
    ("frozen", "hash"),
    ("by_name", "hash"),
    ("by_code", "hash"),
    ("spread", "hash"),
    ("lead", "hash"),
    ("windows", "list"),
    ("changes", "list"),
    ("records", "hash"),
    ("seen", "zset"),
    ("lost", "set"),
    ("drained", "set"),
    ("slots", "hash"),
    ("inbox", "list"),
    ("urgent", "list"),
];

/// The type of a key of one of the namespace's rooms; nothing for a name that is none of ours.
pub fn room_key_type(room: &str, name: &str) -> Option<&'static str> {
    let room = room.split_once(':').map_or(room, |(kind, _)| kind);
    let ours = matches!(
        (room, name),
        ("lanes", "by_name" | "by_code")
            | ("spread", "spread")
            | ("decider", "lead" | "windows" | "changes")
            | ("freeze", "frozen")
            | ("digest", "digest")
            | ("access", "tokens" | "notes")
            | ("pods" | "executors", "records" | "seen")
            | ("executors", "lost" | "drained")
            | ("queues", "records")
            | ("l", "allotted" | "shares" | "breaker")
            | ("x", "slots" | "inbox" | "urgent")
    );
    match name {
        "meta" => Some("hash"),
        _ if room == "days" && is_day(name) => Some("string"),
        _ if room == "runs" && name.strip_prefix("q:").is_some_and(|queue| !queue.is_empty()) => Some("hash"),
        _ => ROOM_KEYS.iter().find(|(known, _)| ours && *known == name).map(|(_, kind)| *kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bucket;
    use crate::model::bucket::slot_of_key;

    #[test]
    fn all_keys_of_a_tag_share_a_slot() {
        let namespace = Namespace::new("mh").unwrap();
        let tag = Tag::of(&namespace, Bucket::new(3).unwrap());
        let guard = Guard::bucket(&tag);
        assert_eq!(guard.key("due:1"), format!("{{{tag}}}:due:1"));
        assert_eq!(slot_of_key(&guard.key("due:1")), slot_of_key(&guard.keys[1]));
        assert_eq!(&Guard::room(&namespace, "x:ex-1").key("inbox")[..], b"{mh:x:ex-1}:inbox");
    }

    #[test]
    fn names_tell_kinds_and_strangers_have_none() {
        let table = [
            ("meta", Some(Kind::Meta)),
            ("due:29408521", Some(Kind::Due)),
            ("due:29408521u.07.f", Some(Kind::Due)),
            ("due:29408521.7", None),
            ("due:", None),
            ("ready:--6F", Some(Kind::Ready)),
            ("ring:6", None),
            ("dead", Some(Kind::Dead)),
            ("dead:x", None),
            ("meta:1", None),
            ("lease:1764511261.3", Some(Kind::Lease)),
            ("lease:1764511261", Some(Kind::Lease)),
            ("lease:1764511261.30", None),
            ("last:p1", Some(Kind::Last)),
            ("stranger", None),
        ];
        for (name, kind) in table {
            assert_eq!(Kind::of(name), kind, "{name}");
        }
        for name in Kind::SINGLE {
            assert!(Kind::of(name).is_some(), "{name}");
        }
        assert_eq!(room_key_type("x:ex-1", "inbox"), Some("list"));
        assert_eq!(room_key_type("lanes", "inbox"), None);
        assert_eq!(room_key_type("days:promo/3", "day:20515"), Some("string"));
        assert_eq!((room_key_type("days:promo/3", "day:x"), room_key_type("pods", "day:1")), (None, None));
        assert_eq!((room_key_type("runs", "q:a:b"), room_key_type("runs", "x")), (Some("hash"), None));
    }
}
