//! The Lua scripts: each composed here in one line, called by digest.

use std::sync::OnceLock;

use sha1::{Digest, Sha1};

/// One script: its name in metrics and errors, its text, and its digest, made on first use.
#[derive(Debug)]
pub struct Script {
    /// `family.verb`, as in metrics, spans and errors.
    pub name: &'static str,
    /// The whole text as the server gets it.
    pub body: &'static str,
    sha: OnceLock<String>,
    /// The text with a fault planted on purpose, where there is one.
    planted: OnceLock<Option<String>>,
}

impl Script {
    /// A script; costs nothing until it is called.
    pub const fn new(name: &'static str, body: &'static str) -> Self {
        Self { name, body, sha: OnceLock::new(), planted: OnceLock::new() }
    }

    /// The digest by which the server knows the script: lower-case hex of SHA-1.
    pub fn sha1(&self) -> &str {
        self.sha.get_or_init(|| format!("{:x}", Sha1::digest(self.text().as_bytes())))
    }

    /// The text that the server gets: [`Self::body`], unless a fault is planted.
    pub fn text(&self) -> &str {
        self.planted.get_or_init(|| super::mutate::text(self)).as_deref().unwrap_or(self.body)
    }
}

macro_rules! lua {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $path, ".lua"))
    };
}

// `name = "flags" [fragments] "file"`: the fragments of lua/lib in the order they need each other, then the operation.
macro_rules! scripts {
    ($($const:ident = $name:literal $flags:literal [$($lib:literal)*] $file:literal;)*) => {
        $(
            #[doc = concat!("`lua/", $file, ".lua`")]
            pub static $const: Script = Script::new(
                $name,
                concat!("#!lua flags=", $flags, "\n", lua!("lib/base"), $(lua!($lib),)* lua!($file)),
            );
        )*
        /// Every script, for tests and for loading them ahead.
        pub static ALL: &[&Script] = &[$(&$const),*];
    };
}

scripts! {
    SUBMIT = "intake.submit" "" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/place" "lib/wake"] "intake/submit";
    CANCEL = "intake.cancel" "allow-oom" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/pending"] "intake/cancel";
    RESCHEDULE = "intake.reschedule" "" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/pending" "lib/wake"] "intake/reschedule";
    REPRIORITIZE = "intake.reprioritize" "" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/pending" "lib/wake"] "intake/reprioritize";
    EDIT = "intake.edit" "" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/pending" "lib/wake"] "intake/edit";
    COLLAPSE = "intake.collapse" "" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/wake"] "intake/collapse";
    CLAIM = "due.claim" "allow-oom" ["lib/agenda" "lib/calm" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail"] "due/claim";
    RELEASE = "due.release" "allow-oom" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail" "lib/wake"] "due/release";
    YIELD = "due.yield" "allow-oom" [] "due/yield";
    START = "run.start" "allow-oom" ["lib/need" "lib/event" "lib/run" "lib/hold"] "run/start";
    RENEW = "run.renew" "allow-oom" ["lib/need" "lib/run" "lib/hold"] "run/renew";
    OFFERED = "run.offer" "allow-oom" ["lib/need" "lib/event" "lib/run" "lib/hold"] "run/offer";
    ACK = "run.ack" "allow-oom" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail" "lib/wake"] "run/ack";
    MARK = "run.mark" "" ["lib/need" "lib/run"] "run/mark";
    REDRIVE = "dead.redrive" "" ["lib/agenda" "lib/need" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail" "lib/pending" "lib/wake"] "dead/redrive";
    OUTCOMES_TAKE = "outcome.take" "allow-oom" ["lib/need"] "outcome/take";
    OUTCOMES_READ = "outcome.read" "no-writes" [] "outcome/read";
    OUTCOMES_PASS = "outcome.pass" "allow-oom" ["lib/need"] "outcome/pass";
    DELETE = "dead.delete" "allow-oom" ["lib/need" "lib/digit" "lib/event"] "dead/delete";
    DIGEST = "dead.digest" "allow-oom" [] "dead/digest";
    FREEZE = "queue.freeze" "allow-oom" [] "queue/freeze";
    TOKEN = "access.token" "allow-oom" [] "access/token";
    QUOTA = "access.quota" "allow-oom" [] "access/quota";
    NOTE = "access.note" "allow-oom" [] "access/note";
    NOTES = "access.notes" "no-writes" [] "access/notes";
    PUT = "queue.put" "allow-oom" [] "queue/put";
    ALLOT = "queue.allot" "allow-oom" [] "queue/allot";
    RUNS = "queue.runs" "allow-oom" [] "queue/runs";
    LANE = "queue.lane" "" [] "queue/lane";
    SPREAD = "queue.spread" "allow-oom" [] "queue/spread";
    RESIZE = "bucket.resize" "allow-oom" ["lib/need"] "bucket/resize";
    BUCKET_MARK = "bucket.mark" "allow-oom" ["lib/need"] "bucket/mark";
    VANISH = "bucket.vanish" "allow-oom" ["lib/need"] "bucket/vanish";
    LEAD = "decider.lead" "allow-oom" ["lib/need"] "decider/lead";
    DECIDED = "decider.note" "allow-oom" ["lib/need"] "decider/note";
    LOAD = "read.load" "no-writes" ["lib/agenda"] "read/load";
    AGENDA = "read.agenda" "no-writes" ["lib/agenda"] "read/agenda";
    BEAT = "member.beat" "allow-oom" [] "member/beat";
    LEAVE = "member.leave" "allow-oom" [] "member/leave";
    DRAIN = "member.drain" "allow-oom" [] "member/drain";
    INBOX = "member.inbox" "allow-oom" ["lib/room"] "member/inbox";
    OFFER = "member.offer" "allow-oom" ["lib/room"] "member/offer";
    RECALL = "member.recall" "allow-oom" ["lib/room" "lib/digit" "lib/spec"] "member/recall";
    TAKE = "member.take" "allow-oom" ["lib/room"] "member/take";
    GET = "read.get" "no-writes" ["lib/need" "lib/recent" "lib/digit" "lib/spec" "lib/at" "lib/run" "lib/turn" "lib/pending"] "read/get";
    DEAD = "read.dead" "no-writes" [] "read/dead";
    TRACE = "read.trace" "no-writes" [] "read/trace";
    COUNTS = "read.counts" "no-writes" ["lib/agenda"] "read/counts";
    AUDIT = "read.audit" "no-writes" ["lib/agenda" "lib/need" "lib/digit" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/audit"] "read/audit";
    VERIFY = "read.verify" "no-writes" ["lib/agenda" "lib/need" "lib/digit" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/audit"] "read/verify";
    RIGHTS = "read.rights" "no-writes" [] "read/rights";
    NAMES = "read.names" "no-writes" ["lib/agenda" "lib/digit"] "read/names";
    LAW = "read.law" "no-writes" ["lib/agenda" "lib/digit"] "read/law";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_one_redis_makes() {
        static ONE: Script = Script::new("test.one", "return 1");
        assert_eq!(ONE.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
