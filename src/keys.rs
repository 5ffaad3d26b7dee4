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
//! | `agenda` | ZSET | names of what becomes due, by minute: due sets, `t<minute>` timers, `k<hour>` keys to forget |
//! | `due:<minute>[u][.<second>[.<part>]]` | ZSET | id + lane, by due ms; `u` holds P0 and P1 |
//! | `ready:<lane>` | ZSET | ripe ids of a lane with a backlog, by due ms |
//! | `ring:<priority>` | ZSET | lanes with a backlog, by turn |
//! | `parked` | SET | lanes with a backlog that may not be claimed |
//! | `task:<home minute>` | HASH | id → spec |
//! | `at` | HASH | id → due, lane, fence, failures, of tasks that are not at home |
//! | `run` | HASH | id → phase, deadline, grant, lane, holder |
//! | `lease:<second>` | STRING | ids whose lease may lapse then |
//! | `timer:<minute>` | ZSET | ids with a deadline, by ms |
//! | `keys:<shard>` | HASH | idempotency key → id, state |
//! | `keyend:<hour>` | STRING | keys that may be forgotten then |
//! | `recent:<10 s>` | STRING | ids and outcomes of finished tasks |
//! | `tries` | HASH | id → failed attempts so far |
//! | `dead` | ZSET | ids of dead letters, by time |
//! | `dead:<id>` | HASH | reason, time, attempts |
//! | `events` | STREAM | packed moves |
//! | `counts` | HASH | counters of the conservation law, ripe backlog, deficits |
//! | `lag:<minute>` | HASH | start − due, as a histogram; ends by itself after 10 minutes |
//! | `lock` | HASH | pod → permit, until, planned wake-up |
//! | `last:<pod>` | STRING | call id and grants of the pod's last claim |
//!
//! | other tag | keys | content |
//! | --- | --- | --- |
//! | `<namespace>:lanes` | `by_name`, `by_code` (HASH) | codes of queues with labels |
//! | `<namespace>:spread` | `spread` (HASH) | buckets, holders, epoch |
//! | `<namespace>:pods`, `<namespace>:executors` | `seen` (ZSET), `records` (HASH) | who lives |
//! | `<namespace>:x:<executor>` | `slots` (HASH), `inbox`, `urgent` (LIST), `wake` (channel) | an executor's inbox |
//! | `<namespace>:p:<pod>` | `room` (channel) | where a pod hears of room |

use crate::model::{Namespace, Tag};
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
}
