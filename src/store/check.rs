//! The audit of a namespace: `lua/read/{names,audit,verify,law}.lua`.
//!
//! It walks through every key of the namespace in bounded steps, judges each task it meets in the
//! same script that met it, judges each suspect a second time before it is called damaged, and
//! compares the counters of each bucket with what its places hold. It changes nothing, and it may
//! run while tasks move: what moves between two steps is judged where it is then.
//!
//! It holds in memory what it lists, one name for each key that nothing lists, and the leases of at
//! most 50,000 running tasks.

use super::reply::Fields;
use super::script;
use super::script_call::Request;
use super::space::Space;
use super::topology::Node;
use super::{At, Reply, Store, StoreError};
use crate::clock;
use crate::keys::{Kind, prefixes, room_key_type};
use crate::limits;
use crate::model::spec::KEY_SHARDS;
use crate::model::{Bucket, State};
use crate::store::read::read_run;
use bytes::Bytes;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Keys asked for in one step of the walk.
const SCAN_KEYS: u32 = 1_000;
/// Tasks judged in one script call.
const AUDIT_ROWS: u32 = 300;
/// Bytes of specs or leases read by one script call.
const AUDIT_BYTES: usize = limits::BATCH_MAX_BYTES;
/// Names or suspects sent in one script call.
const PIECE_ROWS: usize = 500;
/// Running tasks whose leases are looked for at a time.
const LEASE_WINDOW_ROWS: usize = 50_000;
/// Bytes of a lease string read at a time.
const LEASE_PIECE_BYTES: usize = 64 << 10;
/// How often the counters of a bucket in motion are read before it is called busy.
const LAW_TRIES: u32 = 5;
/// Findings remembered to tell one that was met twice.
const TWICE_MAX: usize = 100_000;

/// A kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// A member of a due set or lane whose spec is gone.
    DueWithoutSpec,
    /// A grant whose spec is gone.
    RunWithoutSpec,
    /// A dead letter whose spec is gone.
    DeadWithoutSpec,
    /// A place record of a task that is gone.
    AtWithoutSpec,
    /// Failed attempts of a task that is gone.
    TriesWithoutSpec,
    /// A task that is in no due set or lane, does not run and is not dead: it would never start.
    SpecWithoutPlace,
    /// A task that is in more than one place: it would run twice.
    TwoPlaces,
    /// A task that stands elsewhere than its records say: it cannot be cancelled or moved.
    WrongPlace,
    /// A grant that no lease string names: its lapse is noticed late.
    RunWithoutLease,
    /// A spec that cannot be read.
    SpecUnreadable,
    /// A record or member that cannot be read.
    RecordUnreadable,
    /// A dead letter without its reason and attempts.
    DeadWithoutLetter,
    /// Reason and attempts of a task that is not dead.
    LetterWithoutDead,
    /// An idempotency key that names a task which does not exist, or has another key.
    OrphanKey,
    /// A task whose idempotency key does not name it: the key may be used again.
    KeyMissing,
    /// A timer of a task that is gone.
    TimerWithoutTask,
    /// A task with a total time-out that nothing fires.
    TimerMissing,
    /// A due set, timer, list of keys or lease string that nothing names: it would never be looked into.
    AgendaMissing,
    /// A lane with ripe tasks that is neither in its ring nor set aside: it would never be claimed.
    RingMissing,
    /// Counters that break the law of conservation, or differ from what the places hold.
    CountersOff,
    /// A key of another type under one of our names.
    WrongType,
    /// A key under our prefix whose name is none of ours.
    ForeignKey,
}

impl Damage {
    const ALL: [Self; 22] = [
        Self::DueWithoutSpec,
        Self::RunWithoutSpec,
        Self::DeadWithoutSpec,
        Self::AtWithoutSpec,
        Self::TriesWithoutSpec,
        Self::SpecWithoutPlace,
        Self::TwoPlaces,
        Self::WrongPlace,
        Self::RunWithoutLease,
        Self::SpecUnreadable,
        Self::RecordUnreadable,
        Self::DeadWithoutLetter,
        Self::LetterWithoutDead,
        Self::OrphanKey,
        Self::KeyMissing,
        Self::TimerWithoutTask,
        Self::TimerMissing,
        Self::AgendaMissing,
        Self::RingMissing,
        Self::CountersOff,
        Self::WrongType,
        Self::ForeignKey,
    ];

    /// The name in reports and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DueWithoutSpec => "due_without_spec",
            Self::RunWithoutSpec => "run_without_spec",
            Self::DeadWithoutSpec => "dead_without_spec",
            Self::AtWithoutSpec => "at_without_spec",
            Self::TriesWithoutSpec => "tries_without_spec",
            Self::SpecWithoutPlace => "spec_without_place",
            Self::TwoPlaces => "two_places",
            Self::WrongPlace => "wrong_place",
            Self::RunWithoutLease => "run_without_lease",
            Self::SpecUnreadable => "spec_unreadable",
            Self::RecordUnreadable => "record_unreadable",
            Self::DeadWithoutLetter => "dead_without_letter",
            Self::LetterWithoutDead => "letter_without_dead",
            Self::OrphanKey => "orphan_key",
            Self::KeyMissing => "key_missing",
            Self::TimerWithoutTask => "timer_without_task",
            Self::TimerMissing => "timer_missing",
            Self::AgendaMissing => "agenda_missing",
            Self::RingMissing => "ring_missing",
            Self::CountersOff => "counters_off",
            Self::WrongType => "wrong_type",
            Self::ForeignKey => "foreign_key",
        }
    }

    fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// Whether it makes the places hold another number of tasks than the counters say.
    const fn shifts_places(self) -> bool {
        matches!(self, Self::SpecWithoutPlace | Self::TwoPlaces)
    }
}

/// One damage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// What kind.
    pub kind: Damage,
    /// The bucket, where it is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u16>,
    /// The task, where one is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The key in Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What was found, in words.
    pub detail: String,
}

/// What an audit found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    /// Whether no damage was found.
    pub ok: bool,
    /// The damages, at most [`CheckOptions::list_max`].
    pub violations: Vec<Violation>,
    /// All damages by kind, listed or not.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Tasks whose spec was judged.
    pub tasks_seen: u64,
    /// Keys of the namespace that were met.
    pub keys_seen: u64,
    /// Buckets that have keys.
    pub buckets: u64,
    /// Buckets whose counters were not compared with their places: they were in motion all the time,
    /// or too much of the agenda is missing.
    pub busy: Vec<u16>,
    /// How long it took.
    pub took_ms: i64,
}

impl CheckReport {
    /// All damages, listed or not.
    pub fn count(&self) -> u64 {
        self.kinds.values().sum()
    }
}

/// How far an audit has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckProgress {
    /// Keys met.
    pub keys: u64,
    /// Tasks judged.
    pub tasks: u64,
    /// Damages found.
    pub damages: u64,
}

/// How an audit is to be made.
pub struct CheckOptions<'a> {
    /// Most damages that are listed; all are counted.
    pub list_max: usize,
    /// Told after every step.
    pub progress: Option<&'a (dyn Fn(CheckProgress) + Send + Sync)>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self { list_max: 1_000, progress: None }
    }
}

impl std::fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CheckOptions {{ list_max: {} }}", self.list_max)
    }
}

/// Audits a namespace. Reads only.
pub async fn check(space: &Space, options: CheckOptions<'_>) -> Result<CheckReport, StoreError> {
    let start = clock::mono();
    let mut audit = Audit {
        space,
        options,
        report: CheckReport::default(),
        buckets: BTreeMap::new(),
        tags: HashMap::new(),
        known: HashSet::new(),
    };
    audit.walk_all().await?;
    let numbers: Vec<Bucket> = audit.buckets.keys().filter_map(|number| Bucket::new(*number)).collect();
    for bucket in &numbers {
        if audit.state(*bucket).wrong.is_empty() {
            audit.leases(*bucket).await?;
            audit.law(*bucket).await?;
        }
        audit.tell();
    }
    Ok(audit.finish(clock::elapsed_ms(start)))
}

/// What is remembered of a bucket during an audit.
#[derive(Debug, Default)]
struct Seen {
    /// Names of keys with a wrong type.
    wrong: BTreeSet<String>,
    /// Due sets and lanes that nothing lists, at most [`PIECE_ROWS`].
    unlisted: BTreeSet<String>,
    /// Whether there are more of them, so that places cannot be counted in one go.
    unlisted_more: bool,
    /// Damages that make places and counters differ.
    shifts: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Suspect {
    kind: Damage,
    id: String,
    key: String,
    detail: String,
    member: Bytes,
}

struct Audit<'a> {
    space: &'a Space,
    options: CheckOptions<'a>,
    report: CheckReport,
    buckets: BTreeMap<u16, Seen>,
    tags: HashMap<String, Option<Bucket>>,
    known: HashSet<(Damage, String, String)>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn suspects(fields: &mut Fields) -> Result<Vec<Suspect>, StoreError> {
    let mut out = Vec::with_capacity(fields.left() / 5);
    while fields.left() > 0 {
        let kind = fields.bytes("kind")?;
        let kind =
            Damage::from_name(&kind).ok_or_else(|| fields.bad(format!("unknown kind {}", text(&kind))))?;
        out.push(Suspect {
            kind,
            id: text(&fields.bytes("id")?),
            key: text(&fields.bytes("key")?),
            detail: text(&fields.bytes("detail")?),
            member: fields.bytes("member")?,
        });
    }
    Ok(out)
}

impl Audit<'_> {
    fn state(&mut self, bucket: Bucket) -> &mut Seen {
        self.buckets.entry(bucket.number()).or_default()
    }

    fn tell(&self) {
        if let Some(progress) = self.options.progress {
            let (keys, tasks) = (self.report.keys_seen, self.report.tasks_seen);
            progress(CheckProgress { keys, tasks, damages: self.report.count() });
        }
    }

    fn report(
        &mut self,
        kind: Damage,
        bucket: Option<Bucket>,
        id: &str,
        key: Option<String>,
        detail: String,
    ) {
        let name = (kind, id.to_owned(), key.clone().unwrap_or_default());
        if self.known.contains(&name) {
            return;
        }
        if self.known.len() < TWICE_MAX {
            self.known.insert(name);
        }
        *self.report.kinds.entry(kind.name()).or_default() += 1;
        if let Some(bucket) = bucket.filter(|_| kind.shifts_places()) {
            self.state(bucket).shifts += 1;
        }
        if self.report.violations.len() < self.options.list_max {
            let id = Some(id).filter(|id| !id.is_empty()).map(str::to_owned);
            self.report.violations.push(Violation {
                kind,
                bucket: bucket.map(Bucket::number),
                id,
                key,
                detail,
            });
        }
    }

    fn key_of(&self, bucket: Bucket, name: &str) -> String {
        text(&self.space.guard(bucket).key(name))
    }

    fn report_in(&mut self, kind: Damage, bucket: Bucket, id: &str, name: &str, detail: impl Into<String>) {
        let key = self.key_of(bucket, name);
        self.report(kind, Some(bucket), id, Some(key), detail.into());
    }

    fn finish(mut self, took_ms: i64) -> CheckReport {
        // A task that stands in the wrong place is not one that stands nowhere.
        let wrong: HashSet<String> = self
            .known
            .iter()
            .filter(|(kind, ..)| *kind == Damage::WrongPlace)
            .map(|(_, id, _)| id.clone())
            .collect();
        let nowhere = |kind: Damage, id: &str| kind == Damage::SpecWithoutPlace && wrong.contains(id);
        let twice = self.known.iter().filter(|(kind, id, _)| nowhere(*kind, id)).count() as u64;
        self.report.violations.retain(|v| !nowhere(v.kind, v.id.as_deref().unwrap_or("")));
        if let Some(count) = self.report.kinds.get_mut(Damage::SpecWithoutPlace.name()) {
            *count = count.saturating_sub(twice);
        }
        self.report.kinds.retain(|_, count| *count > 0);
        self.report.ok = self.report.kinds.is_empty();
        self.report.buckets = self.buckets.len() as u64;
        self.report.took_ms = took_ms;
        self.report
    }

    // ---- the walk through all keys ----

    async fn walk_all(&mut self) -> Result<(), StoreError> {
        let store = self.space.store().clone();
        for node in store.masters() {
            for prefix in prefixes(self.space.namespace()) {
                let pattern = Bytes::from(format!("{prefix}*"));
                let mut cursor = Bytes::from_static(b"0");
                loop {
                    let (next, keys) = store.scan(&node, cursor, &pattern, SCAN_KEYS).await?;
                    self.page(keys).await?;
                    self.tell();
                    if &next[..] == b"0" {
                        break;
                    }
                    cursor = next;
                }
            }
        }
        Ok(())
    }

    async fn page(&mut self, keys: Vec<Bytes>) -> Result<(), StoreError> {
        self.report.keys_seen += keys.len() as u64;
        let mut by_bucket: BTreeMap<u16, Vec<(Kind, String)>> = BTreeMap::new();
        for key in keys {
            let Some((tag, name)) = std::str::from_utf8(&key).ok().and_then(split_key) else {
                self.report(Damage::ForeignKey, None, "", Some(text(&key)), "not a name of ours".into());
                continue;
            };
            let own = self.space.namespace().as_str().len();
            if tag.as_bytes().get(own) == Some(&b':') {
                self.room_key(&key, &tag[own + 1..], name).await?;
                continue;
            }
            let bucket = self.bucket_of(tag);
            match (bucket, Kind::of(name)) {
                (Some(bucket), Some(kind)) => {
                    by_bucket.entry(bucket.number()).or_default().push((kind, name.to_owned()));
                }
                (Some(_), None) => {
                    self.report(
                        Damage::ForeignKey,
                        bucket,
                        "",
                        Some(text(&key)),
                        "not a name of ours".into(),
                    );
                }
                (None, _) => {
                    let detail = "its hash tag is that of no bucket".into();
                    self.report(Damage::ForeignKey, None, "", Some(text(&key)), detail);
                }
            }
        }
        for (number, names) in by_bucket {
            if let Some(bucket) = Bucket::new(number) {
                self.bucket_keys(bucket, names).await?;
            }
        }
        Ok(())
    }

    fn bucket_of(&mut self, tag: &str) -> Option<Bucket> {
        if let Some(known) = self.tags.get(tag) {
            return *known;
        }
        let number =
            tag.get(self.space.namespace().as_str().len() + 1..).and_then(|rest| rest.split_once('.'));
        let bucket = number.and_then(|(number, _)| number.parse().ok()).and_then(Bucket::new);
        let bucket = bucket.filter(|bucket| self.key_of(*bucket, "meta") == format!("{{{tag}}}:meta"));
        // Foreign tags are not remembered without bound.
        if self.tags.len() < 4 * usize::from(limits::BUCKETS_MAX) {
            self.tags.insert(tag.to_owned(), bucket);
        }
        bucket
    }

    async fn room_key(&mut self, key: &Bytes, room: &str, name: &str) -> Result<(), StoreError> {
        let Some(expected) = room_key_type(room, name) else {
            self.report(Damage::ForeignKey, None, "", Some(text(key)), "not a name of ours".into());
            return Ok(());
        };
        let found =
            self.space.store().command("TYPE", At::Key(key), vec![key.clone()]).await?.text("TYPE")?;
        if found != expected && found != "none" {
            let detail = format!("holds a {found}, expected a {expected}");
            self.report(Damage::WrongType, None, "", Some(text(key)), detail);
        }
        Ok(())
    }

    async fn bucket_keys(&mut self, bucket: Bucket, names: Vec<(Kind, String)>) -> Result<(), StoreError> {
        if !self.buckets.contains_key(&bucket.number()) {
            // First the keys that every script leans on: where one of them is wrong, nothing else can be judged.
            let mut well_known: Vec<(Kind, String)> = Vec::new();
            let singles = Kind::SINGLE.iter().map(|name| (*name).to_owned());
            let rings = (0..6).map(|level| format!("ring:{level}"));
            let shards = (0..KEY_SHARDS).map(|shard| format!("keys:{shard}"));
            for name in singles.chain(rings).chain(shards) {
                well_known.extend(Kind::of(&name).map(|kind| (kind, name)));
            }
            self.state(bucket);
            self.names(bucket, &well_known).await?;
        }
        for piece in names.chunks(PIECE_ROWS) {
            self.names(bucket, piece).await?;
        }
        let wrong = &self.state(bucket).wrong;
        let sound = |name: &String| Kind::SINGLE.contains(&name.as_str()) || name.starts_with("ring:");
        if wrong.iter().any(sound) {
            return Ok(());
        }
        // Specs first: what is met elsewhere is then known to have been judged.
        let mut walk: Vec<(Kind, String)> = names
            .into_iter()
            .filter(|(kind, name)| {
                let walked = matches!(
                    kind,
                    Kind::Task
                        | Kind::Due
                        | Kind::Ready
                        | Kind::Held
                        | Kind::Kept
                        | Kind::Timer
                        | Kind::Dead
                        | Kind::At
                        | Kind::Tries
                        | Kind::Run
                        | Kind::Keys
                );
                walked && !wrong.contains(name)
            })
            .collect();
        walk.sort_by_key(|(kind, _)| *kind != Kind::Task);
        let specs = walk.iter().take_while(|(kind, _)| *kind == Kind::Task).count();
        let names: Vec<String> = walk.into_iter().map(|(_, name)| name).collect();
        self.report.tasks_seen += self.walk(bucket, &names[..specs]).await?;
        self.walk(bucket, &names[specs..]).await?;
        Ok(())
    }

    /// Types, and whether the agenda, a ring or the dead letters list what they should.
    async fn names(&mut self, bucket: Bucket, names: &[(Kind, String)]) -> Result<(), StoreError> {
        let mut args = self.space.args(names.len(), names.len() * 24);
        for (_, name) in names {
            args.bytes(name.as_bytes());
        }
        let mut fields = self.space.call(&script::NAMES, self.space.guard(bucket), args).await?.ok()?;
        for (kind, name) in names {
            let found = fields.text("type")?;
            let size = fields.int("size")?;
            let listed = fields.int("listed")? == 1;
            if found == "none" {
                continue;
            }
            let expected = kind.redis_type();
            if found != expected {
                self.state(bucket).wrong.insert(name.clone());
                let detail = format!("holds a {found}, expected a {expected}");
                self.report_in(Damage::WrongType, bucket, "", name, detail);
            } else if !listed {
                let (damage, id, detail) = match kind {
                    Kind::Ready => {
                        (Damage::RingMissing, "", format!("{size} ripe tasks that nobody would claim"))
                    }
                    Kind::Letter => {
                        let id = name.strip_prefix("dead:").unwrap_or("");
                        (Damage::LetterWithoutDead, id, "the task is not among the dead letters".into())
                    }
                    _ => (Damage::AgendaMissing, "", format!("{size} entries that nobody would look at")),
                };
                if matches!(kind, Kind::Due | Kind::Ready | Kind::Held) {
                    let seen = self.state(bucket);
                    seen.unlisted.insert(name.clone());
                    if seen.unlisted.len() > PIECE_ROWS {
                        seen.unlisted.pop_last();
                        seen.unlisted_more = true;
                    }
                }
                self.report_in(damage, bucket, id, name, detail);
            }
        }
        Ok(())
    }

    /// Judges all tasks in these keys; answers how many there were.
    async fn walk(&mut self, bucket: Bucket, names: &[String]) -> Result<u64, StoreError> {
        let (mut at, mut cursor, mut tasks) = (0, Bytes::from_static(b"0"), 0);
        while at < names.len() {
            let piece = &names[at..names.len().min(at + PIECE_ROWS)];
            let mut args = self.space.args(3 + piece.len(), 64 + piece.len() * 24);
            args.number(AUDIT_ROWS).number(AUDIT_BYTES).shared(cursor);
            for name in piece {
                args.bytes(name.as_bytes());
            }
            let mut fields = self.space.call(&script::AUDIT, self.space.guard(bucket), args).await?.ok()?;
            at += usize::try_from(fields.int("keys")?).unwrap_or(0);
            cursor = fields.bytes("cursor")?;
            tasks += u64::try_from(fields.int("tasks")?).unwrap_or(0);
            let found = suspects(&mut fields)?;
            for piece in found.chunks(PIECE_ROWS) {
                self.verify(bucket, piece).await?;
            }
            self.tell();
        }
        Ok(tasks)
    }

    /// Judges suspects again, and reports those that are found guilty of the same.
    async fn verify(&mut self, bucket: Bucket, suspects_: &[Suspect]) -> Result<(), StoreError> {
        let (nameless, named): (Vec<&Suspect>, Vec<&Suspect>) =
            suspects_.iter().partition(|s| s.id.is_empty());
        for suspect in nameless {
            self.report_in(suspect.kind, bucket, "", &suspect.key, suspect.detail.clone());
        }
        let mut at = 0;
        while at < named.len() {
            let mut args = self.space.args(2 + named.len() * 4, named.len() * 64);
            args.number(AUDIT_BYTES);
            for suspect in &named[at..] {
                let place = if suspect.member.is_empty() { "" } else { suspect.key.as_str() };
                args.bytes(suspect.id.as_bytes()).bytes(place.as_bytes()).shared(suspect.member.clone());
                args.bytes(if suspect.kind == Damage::RunWithoutLease { b"1" } else { b"" });
            }
            let mut fields = self.space.call(&script::VERIFY, self.space.guard(bucket), args).await?.ok()?;
            let done = usize::try_from(fields.int("tasks")?).unwrap_or(0).max(1);
            let guilty = suspects(&mut fields)?;
            for suspect in &named[at..named.len().min(at + done)] {
                let same =
                    |s: &&Suspect| s.kind == suspect.kind && s.id == suspect.id && s.key == suspect.key;
                if let Some(again) = guilty.iter().find(same) {
                    self.report_in(again.kind, bucket, &again.id, &again.key, again.detail.clone());
                }
            }
            at += done;
        }
        Ok(())
    }

    // ---- leases ----

    /// Looks for the lease string of each running task: a string is read once for each window of tasks.
    async fn leases(&mut self, bucket: Bucket) -> Result<(), StoreError> {
        let store = self.space.store().clone();
        let run = self.space.guard(bucket).key("run");
        let mut cursor = Bytes::from_static(b"0");
        let mut window: HashMap<Bytes, i64> = HashMap::new();
        loop {
            let args = vec![run.clone(), cursor, Bytes::from_static(b"COUNT"), Bytes::from_static(b"500")];
            let mut answer = store.command("HSCAN", At::Key(&run), args).await?.fields("HSCAN")?;
            cursor = answer.bytes("cursor")?;
            for (id, record) in Reply::Array(answer.array("records")?).pairs("HSCAN")? {
                if let Some(record) = read_run(&record.bytes("HSCAN")?) {
                    window.insert(id, (record.deadline.0 + 99).div_euclid(100));
                }
            }
            let last = &cursor[..] == b"0";
            if last || window.len() >= LEASE_WINDOW_ROWS {
                self.lease_window(bucket, &mut window).await?;
            }
            if last {
                return Ok(());
            }
        }
    }

    async fn lease_window(
        &mut self,
        bucket: Bucket,
        window: &mut HashMap<Bytes, i64>,
    ) -> Result<(), StoreError> {
        let store = self.space.store().clone();
        let tenths: BTreeSet<i64> = window.values().copied().collect();
        for tenth in tenths {
            let key = self.space.guard(bucket).key(&format!("lease:{}.{}", tenth / 10, tenth % 10));
            let mut at = 0;
            loop {
                let range = [at, at + LEASE_PIECE_BYTES - 1].map(|n| Bytes::from(n.to_string()));
                let [from, to] = range;
                let piece = store.command("GETRANGE", At::Key(&key), vec![key.clone(), from, to]).await?;
                let piece = piece.bytes("GETRANGE")?;
                for id in piece.chunks(16) {
                    if window.get(id) == Some(&tenth) {
                        window.remove(id);
                    }
                }
                at += LEASE_PIECE_BYTES;
                if piece.len() < LEASE_PIECE_BYTES {
                    break;
                }
            }
        }
        let unnamed: Vec<Suspect> = window
            .drain()
            .map(|(id, _)| Suspect {
                kind: Damage::RunWithoutLease,
                id: text(&id),
                key: "run".into(),
                detail: String::new(),
                member: Bytes::new(),
            })
            .collect();
        for piece in unnamed.chunks(PIECE_ROWS) {
            self.verify(bucket, piece).await?;
        }
        Ok(())
    }

    // ---- counters ----

    async fn law(&mut self, bucket: Bucket) -> Result<(), StoreError> {
        let tries = if self.state(bucket).unlisted_more { 0 } else { LAW_TRIES };
        for _ in 0..tries {
            if let Some(law) = self.read_law(bucket).await? {
                for detail in law.broken(self.state(bucket).shifts) {
                    self.report_in(Damage::CountersOff, bucket, "", "counts", detail);
                }
                return Ok(());
            }
        }
        self.report.busy.push(bucket.number());
        Ok(())
    }

    /// Reads the counters and counts the places; nothing when something moved meanwhile.
    async fn read_law(&mut self, bucket: Bucket) -> Result<Option<Law>, StoreError> {
        let (mut law, mut rank, mut signature) = (Law::default(), 0, None);
        let unlisted: Vec<String> = self.state(bucket).unlisted.iter().cloned().collect();
        while rank >= 0 {
            let mut args = self.space.args(2 + unlisted.len(), 64 + unlisted.len() * 24);
            args.number(rank);
            for name in &unlisted {
                args.bytes(name.as_bytes());
            }
            let mut fields = self.space.call(&script::LAW, self.space.guard(bucket), args).await?.ok()?;
            let seen = fields.bytes("signature")?;
            if *signature.get_or_insert_with(|| seen.clone()) != seen {
                return Ok(None);
            }
            let first = rank == 0;
            rank = fields.int("rank")?;
            law.due += fields.int("due")?;
            let (ready, held) = (fields.int("ready")?, fields.int("held")?);
            let (running, dead) = (fields.int("running")?, fields.int("dead")?);
            if first {
                law.ready = (ready >= 0).then_some(ready);
                law.held = (held >= 0).then_some(held);
                (law.running, law.dead) = (running, dead);
                for (name, value) in Reply::Array(fields.array("counts")?).pairs(script::LAW.name)? {
                    // Deficits are fractions and no part of the law.
                    if let Ok(value) = value.int(script::LAW.name) {
                        law.counts.insert(text(&name), value);
                    }
                }
            }
        }
        Ok(Some(law))
    }
}

/// A bucket's counters and what its places hold, of one moment.
#[derive(Debug, Default)]
struct Law {
    counts: BTreeMap<String, i64>,
    due: i64,
    ready: Option<i64>,
    held: Option<i64>,
    running: i64,
    dead: i64,
}

impl Law {
    /// What does not agree, in words. Differences of up to `shifts` follow from damages that were named already.
    fn broken(&self, shifts: i64) -> Vec<String> {
        let count = |name: &str| self.counts.get(name).copied().unwrap_or(0);
        let mut out = Vec::new();
        let sum: i64 = State::ALL.iter().map(|state| count(state.name())).sum();
        if count("submitted") != sum {
            out.push(format!("submitted is {}, all states together are {sum}", count("submitted")));
        }
        let mut compare = |name: &str, held: i64, place: &str| {
            let counted = count(name);
            if (counted - held).abs() > shifts {
                out.push(format!("{name} counts {counted}, {place} hold {held}"));
            }
        };
        if let (Some(ready), Some(held)) = (self.ready, self.held) {
            compare("pending", self.due + ready + held, "due sets, lanes and what is set aside");
        }
        if let Some(ready) = self.ready {
            compare("ready", ready, "lanes");
        }
        if let Some(held) = self.held {
            compare("held", held, "what is set aside");
        }
        compare("running", self.running, "grants");
        compare("dead", self.dead, "dead letters");
        out.extend(
            self.counts.iter().filter(|(_, value)| **value < 0).map(|(name, v)| format!("{name} is {v}")),
        );
        out
    }
}

fn split_key(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix('{')?.split_once("}:")
}

impl Store {
    pub(super) fn masters(&self) -> Vec<std::sync::Arc<Node>> {
        self.inner.topology.map().nodes.clone()
    }

    /// One step of a walk through the keys of one master.
    pub(super) async fn scan(
        &self,
        node: &std::sync::Arc<Node>,
        cursor: Bytes,
        pattern: &Bytes,
        count: u32,
    ) -> Result<(Bytes, Vec<Bytes>), StoreError> {
        let word = Bytes::from_static;
        let count = Bytes::from(count.to_string());
        let args = [cursor, word(b"MATCH"), pattern.clone(), word(b"COUNT"), count];
        let request = Request::Command { name: "SCAN", args: &args };
        let left = self.inner.topology.dialer.call_timeout;
        let told = self.send(node, request, left, false).await.map_err(|fault| self.error("SCAN", fault))?;
        let mut fields = told.fields("SCAN")?;
        let cursor = fields.bytes("cursor")?;
        let keys =
            fields.array("keys")?.into_iter().map(|key| key.bytes("SCAN")).collect::<Result<_, _>>()?;
        Ok((cursor, keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_back_and_serialize_as_they_are_named() {
        for kind in Damage::ALL {
            assert_eq!(Damage::from_name(kind.name().as_bytes()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn the_law_says_what_is_broken() {
        let counts = |list: &[(&str, i64)]| list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let law = Law {
            counts: counts(&[
                ("submitted", 6),
                ("pending", 3),
                ("ready", 1),
                ("running", 2),
                ("succeeded", 1),
            ]),
            due: 2,
            ready: Some(1),
            held: Some(0),
            running: 2,
            dead: 0,
        };
        assert_eq!(law.broken(0), Vec::<String>::new());
        let off = Law { due: 1, ..law };
        assert_eq!(off.broken(0), ["pending counts 3, due sets, lanes and what is set aside hold 2"]);
        assert_eq!(off.broken(1), Vec::<String>::new());
        let torn = Law { counts: counts(&[("submitted", 2), ("pending", -1)]), ..Law::default() };
        assert_eq!(torn.broken(9), ["submitted is 2, all states together are -1", "pending is -1"]);
    }
}
