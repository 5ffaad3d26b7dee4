//! The Lua scripts: each composed here in one line, called by digest.

use std::collections::BTreeSet;
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
    /// What the server gets, made on first use.
    text: OnceLock<String>,
}

impl Script {
    /// A script; costs nothing until it is called.
    pub const fn new(name: &'static str, body: &'static str) -> Self {
        Self { name, body, sha: OnceLock::new(), text: OnceLock::new() }
    }

    /// The digest by which the server knows the script: lower-case hex of SHA-1.
    pub fn sha1(&self) -> &str {
        self.sha.get_or_init(|| format!("{:x}", Sha1::digest(self.text().as_bytes())))
    }

    /// The text that the server gets: [`Self::body`], with a look at the user's rights before the operation begins.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let body = super::mutate::text(self).unwrap_or_else(|| self.body.to_owned());
            self.asks_first(body)
        })
    }

    /// Every command that the script runs, read from its text.
    pub fn commands(&self) -> BTreeSet<&'static str> {
        let mut found = BTreeSet::new();
        for call in ["call('", "look('"] {
            for rest in self.body.split(call).skip(1) {
                let name = rest.split('\'').next().unwrap_or("");
                if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase()) {
                    found.insert(name);
                }
            }
        }
        // Those whose names are looked up in a table, by the type of the key (`lib/need`).
        for (kind, command) in [
            ("zset", "ZCARD"),
            ("hash", "HLEN"),
            ("set", "SCARD"),
            ("string", "STRLEN"),
            ("stream", "XLEN"),
            ("list", "LLEN"),
        ] {
            let asked =
                [format!("need('{kind}'"), format!("need_all('{kind}'"), format!("{kind} = '{command}'")];
            if asked[..2].iter().any(|call| self.body.contains(call))
                || (self.body.contains(&asked[2]) && !self.body.contains("local function need("))
            {
                found.insert(command);
            }
        }
        found
    }

    /// Scripts do not roll back, and a right can be taken away at any moment: one that writes asks, before it does
    /// anything, whether it may run all that it may come to run. It costs 0.1 µs a command.
    fn asks_first(&self, mut body: String) -> String {
        let operation = format!("\n-- {}: ", self.name.replacen('.', "/", 1));
        let Some(at) = body.rfind(&operation).filter(|_| !body.contains("no-writes")) else { return body };
        let ask = |name: &&str| match *name {
            // With a channel of ours. And SET with a key: asked without one, Valkey 9.1 crashes where the user has patterns.
            "SPUBLISH" | "SET" => format!("may('{name}', KEYS[1], '')"),
            name => format!("may('{name}')"),
        };
        let all: Vec<String> = self.commands().iter().map(ask).collect();
        let asked = format!(
            "\ndo local may = redis.acl_check_cmd if not ({}) then error({{ err = 'NOPERM a command of {}' }}) end end",
            all.join(" and "),
            self.name
        );
        body.insert_str(at, &asked);
        body
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
    SUBMIT = "intake.submit" "" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/place" "lib/wake"] "intake/submit";
    CANCEL = "intake.cancel" "allow-oom" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/pending"] "intake/cancel";
    RESCHEDULE = "intake.reschedule" "" ["lib/agenda" "lib/need" "lib/roomy" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/pending" "lib/wake"] "intake/reschedule";
    REPRIORITIZE = "intake.reprioritize" "" ["lib/agenda" "lib/need" "lib/roomy" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/pending" "lib/wake"] "intake/reprioritize";
    EDIT = "intake.edit" "" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/pending" "lib/wake"] "intake/edit";
    COLLAPSE = "intake.collapse" "" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/wake"] "intake/collapse";
    CLAIM = "due.claim" "allow-oom" ["lib/agenda" "lib/calm" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail"] "due/claim";
    RELEASE = "due.release" "allow-oom" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail" "lib/wake"] "due/release";
    YIELD = "due.yield" "allow-oom" [] "due/yield";
    START = "run.start" "allow-oom" ["lib/need" "lib/event" "lib/run" "lib/hold"] "run/start";
    RENEW = "run.renew" "allow-oom" ["lib/need" "lib/run" "lib/hold"] "run/renew";
    OFFERED = "run.offer" "allow-oom" ["lib/need" "lib/event" "lib/run" "lib/hold"] "run/offer";
    ACK = "run.ack" "allow-oom" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/ended" "lib/fail" "lib/wake"] "run/ack";
    MARK = "run.mark" "" ["lib/need" "lib/run"] "run/mark";
    DAILY = "run.daily" "" ["lib/need"] "run/daily";
    REDRIVE = "dead.redrive" "" ["lib/agenda" "lib/need" "lib/roomy" "lib/size" "lib/recent" "lib/digit" "lib/event" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/tally" "lib/unplace" "lib/outcome" "lib/finish" "lib/fail" "lib/pending" "lib/wake"] "dead/redrive";
    OUTCOMES_TAKE = "outcome.take" "allow-oom" ["lib/need"] "outcome/take";
    OUTCOMES_READ = "outcome.read" "no-writes" [] "outcome/read";
    OUTCOMES_PASS = "outcome.pass" "allow-oom" ["lib/need"] "outcome/pass";
    DELETE = "dead.delete" "allow-oom" ["lib/need" "lib/size" "lib/digit" "lib/event"] "dead/delete";
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
    SIZE = "bucket.size" "allow-oom" ["lib/need" "lib/size"] "bucket/size";
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
    GET = "read.get" "no-writes" ["lib/need" "lib/roomy" "lib/recent" "lib/digit" "lib/spec" "lib/at" "lib/run" "lib/turn" "lib/pending"] "read/get";
    DEAD = "read.dead" "no-writes" [] "read/dead";
    TRACE = "read.trace" "no-writes" [] "read/trace";
    COUNTS = "read.counts" "no-writes" ["lib/agenda"] "read/counts";
    AUDIT = "read.audit" "no-writes" ["lib/agenda" "lib/need" "lib/roomy" "lib/digit" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/audit"] "read/audit";
    VERIFY = "read.verify" "no-writes" ["lib/agenda" "lib/need" "lib/roomy" "lib/digit" "lib/spec" "lib/key" "lib/at" "lib/run" "lib/place" "lib/turn" "lib/unplace" "lib/audit"] "read/verify";
    RIGHTS = "read.rights" "no-writes" [] "read/rights";
    NAMES = "read.names" "no-writes" ["lib/agenda" "lib/digit"] "read/names";
    LAW = "read.law" "no-writes" ["lib/agenda" "lib/digit"] "read/law";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_asks_before_it_does() {
        for script in ALL {
            let (body, text) = (script.body, script.text());
            if body.starts_with("#!lua flags=no-writes") {
                assert_eq!(body, text, "{}", script.name);
                continue;
            }
            let asked = text.find("do local may = redis.acl_check_cmd").expect(script.name);
            let end = asked + text[asked..].find('\n').unwrap();
            for command in script.commands() {
                assert!(text[asked..end].contains(&format!("may('{command}'")), "{}: {command}", script.name);
            }
            // Fragments only define functions; the one that acts writes with one command alone.
            let before = text[..asked].replace("call('TIME')", "");
            let writes = ["HSET", "HDEL", "ZADD", "ZREM", "SET", "XADD", "APPEND", "UNLINK", "DEL"];
            let top =
                before.lines().filter(|line| writes.iter().any(|w| line.starts_with(&format!("call('{w}'"))));
            assert_eq!(top.count(), 0, "{}", script.name);
        }
    }

    #[test]
    fn the_digest_is_the_one_redis_makes() {
        static ONE: Script = Script::new("test.one", "return 1");
        assert_eq!(ONE.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
