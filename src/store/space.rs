//! A namespace in a store: its tags, its lane codes, its spread, and the clock of its server.

use super::args::Args;
use super::queue::Known;
use super::reply::Fields;
use super::script::{self, Script};
use super::{Reply, Shortfall, Store, StoreError};
use crate::clock::{self, RedisClock};
use crate::keys::{Guard, Kind, ROOM_KEYS};
use crate::limits;
use crate::metric;
use crate::model::spec::KEY_SHARDS;
use crate::model::spread::{Bounds, Spread, read_hot, read_list};
use crate::model::{Bucket, Durability, LaneGroup, Namespace, Tag, UnixMs};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

/// What a namespace is created with; where it stands already, what stands counts.
#[derive(Debug, Clone, Copy)]
pub struct Birth {
    /// Buckets over which keyed tasks go.
    pub key_buckets: u16,
    /// Buckets at the start.
    pub buckets: u16,
    /// Holders at the start.
    pub holders: u8,
}

impl Default for Birth {
    fn default() -> Self {
        Self { key_buckets: limits::KEY_BUCKETS_DEFAULT, buckets: limits::KEY_BUCKETS_DEFAULT, holders: 1 }
    }
}

/// A namespace in a store. Cheap to clone.
#[derive(Clone)]
pub struct Space {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    namespace: Namespace,
    guards: Vec<OnceLock<Guard>>,
    spread: RwLock<Spread>,
    /// When the spread was last read.
    spread_read: parking_lot::Mutex<std::time::Instant>,
    groups: RwLock<Groups>,
    queues: Known,
    clock: RedisClock,
    /// Time that tests make the scripts believe; `i64::MIN` lets Redis tell it.
    injected_ms: AtomicI64,
}

#[derive(Default)]
struct Groups {
    codes: HashMap<LaneGroup, u32>,
    names: HashMap<u32, LaneGroup>,
}

const REAL_TIME: i64 = i64::MIN;

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Space({} in {:?})", self.inner.namespace, self.inner.store)
    }
}

impl Space {
    /// Opens a namespace, creating it with the usual eight buckets where there is none.
    pub async fn open(store: Store, namespace: Namespace) -> Result<Self, StoreError> {
        Self::open_as(store, namespace, Birth::default()).await
    }

    /// Opens a namespace, creating it as `birth` says where there is none.
    pub async fn open_as(store: Store, namespace: Namespace, birth: Birth) -> Result<Self, StoreError> {
        let guards = (0..limits::BUCKETS_MAX).map(|_| OnceLock::new()).collect();
        let spread = Spread::born(1, 1, 1);
        let inner = Inner {
            store,
            namespace,
            guards,
            spread: RwLock::new(spread),
            spread_read: parking_lot::Mutex::new(clock::mono()),
            groups: RwLock::default(),
            queues: Known::default(),
            clock: RedisClock::new(),
            injected_ms: AtomicI64::new(REAL_TIME),
        };
        let space = Self { inner: Arc::new(inner) };
        space.read_spread(birth).await?;
        // The first answer measured the opening of a connection as well; this one measures the clock.
        space.read_spread(birth).await?;
        space.check_rights().await?;
        Ok(space)
    }

    async fn read_spread(&self, birth: Birth) -> Result<Spread, StoreError> {
        let mut args = self.args(4, 64);
        args.number(birth.key_buckets).number(birth.buckets).number(birth.holders);
        let guard = Guard::room(self.namespace(), "spread");
        let mut fields = self.call(&script::SPREAD, &guard, args).await?.ok()?;
        let spread = Spread {
            key_buckets: bucket_count(&mut fields, "key buckets")?,
            buckets: bucket_count(&mut fields, "buckets")?,
            holders: u8::try_from(fields.int("holders")?).unwrap_or(1).max(1),
            epoch: u64::try_from(fields.int("epoch")?).unwrap_or(0),
            peak: bucket_count(&mut fields, "peak")?,
            closing: read_list(&fields.text("closing")?).into(),
            hot: read_hot(&fields.text("hot")?).into(),
            bounds: {
                let mut bound = |name| Ok::<_, StoreError>(fields.text(name)?.parse().ok());
                Bounds {
                    min: bound("least")?,
                    max: bound("most")?,
                    pin: bound("pin")?,
                    manual: fields.text("manual")? == "1",
                }
            },
            born_ms: fields.int("its birth")?,
        };
        *self.inner.spread_read.lock() = clock::mono();
        let mut known = self.inner.spread.write();
        let before = known.born_ms;
        // Answers may overtake each other; a namespace that was made anew begins to count anew.
        if spread.epoch >= known.epoch || spread.born_ms != before {
            *known = spread.clone();
        }
        let now = known.clone();
        drop(known);
        if before != 0 && before != spread.born_ms {
            // The codes of queues went with it; others will be given out.
            *self.inner.groups.write() = Groups::default();
            metric::handles().history_lost.add("emptied", 1);
            tracing::error!(
                namespace = %self.namespace(),
                before = %UnixMs(before),
                now = %UnixMs(spread.born_ms),
                "redis has forgotten this namespace (FLUSHALL, or a server that came back without its file): all tasks \
                 that waited are gone; it was made anew, and what is submitted from now on runs"
            );
        }
        Ok(now)
    }

    /// Reads the spread anew. A namespace that is gone is made again as it was.
    pub async fn refresh_spread(&self) -> Result<Spread, StoreError> {
        let Spread { key_buckets, buckets, holders, .. } = self.spread();
        self.read_spread(Birth { key_buckets, buckets, holders }).await
    }

    /// The same, if that was not done lately: so every process hears within [`limits::SPREAD_KEPT_MS`] that the
    /// namespace has changed, or has been emptied.
    pub async fn keep_spread(&self) -> Result<Spread, StoreError> {
        let read = *self.inner.spread_read.lock();
        if clock::elapsed_ms(read) < limits::SPREAD_KEPT_MS {
            Ok(self.spread())
        } else {
            self.refresh_spread().await
        }
    }

    /// The spread as last read.
    pub fn spread(&self) -> Spread {
        self.inner.spread.read().clone()
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.inner.namespace
    }

    /// The server's clock, as estimated from the answers.
    pub fn clock(&self) -> &RedisClock {
        &self.inner.clock
    }

    /// The local instant from which on the clock of a bucket's server surely shows `at`; none where that
    /// server has not answered lately.
    pub fn surely_at(&self, bucket: Bucket, at: UnixMs) -> Option<std::time::Instant> {
        self.store().surely_at(super::slot_of(&self.guard(bucket).keys[0]), at.0)
    }

    /// The guard keys of a bucket.
    pub fn guard(&self, bucket: Bucket) -> &Guard {
        let make = || Guard::bucket(&Tag::of(&self.inner.namespace, bucket));
        self.inner.guards[usize::from(bucket.number())].get_or_init(make)
    }

    /// The code of a queue with its labels; made where there is none yet.
    pub async fn lane_group(&self, group: &LaneGroup) -> Result<u32, StoreError> {
        if let Some(code) = self.inner.groups.read().codes.get(group) {
            return Ok(*code);
        }
        let mut args = self.args(3, 256);
        args.number(limits::LANE_GROUPS_MAX).bytes(group.to_text().as_bytes());
        let guard = Guard::room(self.namespace(), "lanes");
        let mut fields = self.call(&script::LANE, &guard, args).await?.ok()?;
        let code = fields.int("code")?;
        let code = u32::try_from(code).map_err(|_| StoreError::Script {
            name: script::LANE.name,
            detail: format!(
                "the namespace has {} queues with labels already; no more fit",
                limits::LANE_GROUPS_MAX
            ),
        })?;
        self.learn(group.clone(), code);
        Ok(code)
    }

    /// The group of a code, if this process knows it already.
    pub fn known_name(&self, code: u32) -> Option<LaneGroup> {
        self.inner.groups.read().names.get(&code).cloned()
    }

    /// The queue and labels of a code.
    pub async fn group_of(&self, code: u32) -> Result<LaneGroup, StoreError> {
        if let Some(group) = self.known_name(code) {
            return Ok(group);
        }
        let key = Guard::room(self.namespace(), "lanes").key("by_code");
        let args = vec![key.clone(), Bytes::from(code.to_string())];
        let text = self.store().command("HGET", super::At::Key(&key), args).await?.text("HGET")?;
        let group = LaneGroup::from_text(&text)
            .map_err(|error| StoreError::BadReply { script: "HGET", what: error.to_string() })?;
        self.learn(group.clone(), code);
        Ok(group)
    }

    /// All groups of the namespace. They are fetched only when there are more than are known: codes never change.
    pub async fn groups(&self) -> Result<Vec<(u32, LaneGroup)>, StoreError> {
        let key = Guard::room(self.namespace(), "lanes").key("by_code");
        let at = super::At::Key(&key);
        let count = self.store().command("HLEN", at, vec![key.clone()]).await?.int("HLEN")?;
        if usize::try_from(count).unwrap_or(0) != self.inner.groups.read().names.len() {
            let all = self.store().command("HGETALL", at, vec![key.clone()]).await?;
            for (code, text) in all.pairs("HGETALL")? {
                let code = Reply::Bytes(code).int("HGETALL")?;
                let text = text.text("HGETALL")?;
                if let (Ok(code), Ok(group)) = (u32::try_from(code), LaneGroup::from_text(&text)) {
                    self.learn(group, code);
                }
            }
        }
        let groups = self.inner.groups.read();
        let mut out: Vec<_> = groups.names.iter().map(|(code, group)| (*code, group.clone())).collect();
        out.sort_unstable_by_key(|(code, _)| *code);
        Ok(out)
    }

    fn learn(&self, group: LaneGroup, code: u32) {
        let mut groups = self.inner.groups.write();
        groups.names.insert(code, group.clone());
        groups.codes.insert(group, code);
    }

    /// What is known of the settings of queues.
    pub(super) fn known_queues(&self) -> &Known {
        &self.inner.queues
    }

    /// Makes the scripts believe that it is `now_ms`; nothing lets Redis tell the time again. For tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn inject_now(&self, now_ms: Option<i64>) {
        self.inner.injected_ms.store(now_ms.unwrap_or(REAL_TIME), Ordering::Relaxed);
    }

    /// From now on tasks live at this time, which stands still until it is set anew; who lives goes on by
    /// Redis's clock. For tests, in a namespace whose tasks never saw a later time.
    #[cfg(any(test, feature = "testing"))]
    pub fn hold_time_at(&self, now: UnixMs) {
        self.inner.clock.hold_at(now.0);
    }

    /// Whether time stands still for tasks.
    pub(crate) fn holds_time(&self) -> bool {
        self.inner.clock.held_us().is_some()
    }

    /// Arguments of a script, the first of which is the time.
    pub(super) fn args(&self, count: usize, bytes: usize) -> Args {
        match self.inner.clock.held_us() {
            None => self.live_args(count, bytes),
            Some(held_us) => {
                let mut args = Args::with_capacity(count + 1, bytes + 16);
                args.number(held_us.div_euclid(1_000));
                args
            }
        }
    }

    /// The same for scripts about who lives: they go by Redis's clock where time is held for tasks.
    pub(super) fn live_args(&self, count: usize, bytes: usize) -> Args {
        let mut args = Args::with_capacity(count + 1, bytes + 16);
        match self.inner.injected_ms.load(Ordering::Relaxed) {
            REAL_TIME => args.shared(Bytes::new()),
            now => args.number(now),
        };
        args
    }

    /// Calls a script; its answer has a word for what it means, the server's time, and the rest.
    pub(super) async fn call(
        &self,
        script: &'static Script,
        guard: &Guard,
        args: Args,
    ) -> Result<Answer, StoreError> {
        Ok(self.call_durable(script, guard, args, Durability::Memory).await?.0)
    }

    fn measured(&self, script: &'static Script, sent: std::time::Instant, error: Option<&StoreError>) {
        let metrics = metric::handles();
        metrics.redis_call_duration.record(script.name, sent.elapsed().as_secs_f64());
        if let Some(error) = error {
            let cause = error.cause();
            metrics.redis_errors.add(cause, 1);
            if metric::WRITE_REFUSED_CAUSES.contains(&cause) {
                metrics.redis_write_refused.add(cause, 1);
            }
        }
    }

    /// The same, answered once its writes are as safe as `level` says; else what is missing is told too.
    pub(super) async fn call_durable(
        &self,
        script: &'static Script,
        guard: &Guard,
        args: Args,
        level: Durability,
    ) -> Result<(Answer, Option<Shortfall>), StoreError> {
        let sent = clock::mono();
        let (keys, args) = (guard.keys.clone(), args.done());
        let told = match level {
            Durability::Memory => self.inner.store.call(script, keys, args).await.map(|reply| (reply, None)),
            level => self.inner.store.call_durable(script, keys, args, level).await,
        };
        self.measured(script, sent, told.as_ref().err());
        let (reply, lacks) = match told {
            Ok(told) => told,
            Err(StoreError::WrongType { script, detail }) => {
                let detail = self.wrong_key(guard, detail).await;
                return Err(StoreError::WrongType { script, detail });
            }
            Err(StoreError::NoPermission { what }) => {
                let what = self.name_right(guard, what).await;
                return Err(StoreError::NoPermission { what });
            }
            Err(error) => return Err(error),
        };
        let mut fields = reply.fields(script.name)?;
        let word = fields.bytes("a word")?;
        let stamp = fields.int("the time")?;
        // A wait is no measure of the way there and back.
        if !level.waits() {
            self.inner.clock.sample(sent, stamp);
        }
        Ok((Answer { word, now_us: stamp, fields, script }, lacks))
    }
}

impl Space {
    /// Names the key that a server's WRONGTYPE is about, where it can be found: one call over the names
    /// that every bucket has, what its agenda lists next, and the keys of this minute.
    async fn wrong_key(&self, guard: &Guard, detail: String) -> String {
        if let Some(named) = detail.strip_prefix("WRONGTYPE ").filter(|named| named.starts_with("key ")) {
            // The server adds where in the script it was raised.
            return named.split(" script: ").next().unwrap_or(named).to_owned();
        }
        let now_ms = match self.inner.injected_ms.load(Ordering::Relaxed) {
            REAL_TIME => self.inner.clock.now_ms(),
            now => now,
        };
        let mut names: Vec<String> = Kind::SINGLE.iter().map(|name| (*name).to_owned()).collect();
        names.extend((0..6).map(|level| format!("ring:{level}")));
        names.extend((0..KEY_SHARDS).map(|shard| format!("keys:{shard}")));
        names.extend(ROOM_KEYS.iter().map(|(name, _)| (*name).to_owned()));
        let (minute, ten) = (now_ms.div_euclid(60_000), now_ms.div_euclid(10_000));
        for minute in minute - 10..=minute + 10 {
            for stem in ["due", "timer", "task", "lag"] {
                names.push(format!("{stem}:{minute}"));
            }
            names.push(format!("due:{minute}u"));
        }
        names.extend((ten - 90..=ten).map(|ten| format!("recent:{ten}")));
        names.extend((0..40).map(|s| format!("lease:{}.0", now_ms.div_euclid(1_000) + s)));
        names.truncate(500);
        let args =
            std::iter::once(Bytes::new()).chain(names.iter().map(|name| name.clone().into())).collect();
        let found = match self.inner.store.call(&script::NAMES, guard.keys.clone(), args).await {
            Ok(reply) => reply.fields(script::NAMES.name),
            Err(error) => Err(error),
        };
        let Ok(mut fields) = found else { return detail };
        let named = || -> Result<Option<String>, StoreError> {
            fields.bytes("a word")?;
            fields.int("the time")?;
            for name in names {
                let found = fields.text("type")?;
                fields.next("size")?;
                fields.next("listed")?;
                let room = ROOM_KEYS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
                let expected = room.or_else(|| Kind::of(&name).map(Kind::redis_type));
                if let Some(expected) = expected.filter(|expected| *expected != found && found != "none") {
                    let key = String::from_utf8_lossy(&guard.key(&name)).into_owned();
                    return Ok(Some(format!("key {key} holds a {found}, expected a {expected}")));
                }
            }
            Ok(None)
        };
        named().ok().flatten().unwrap_or(detail)
    }
}

fn bucket_count(fields: &mut Fields, name: &str) -> Result<u16, StoreError> {
    let number = fields.int(name)?;
    let count = u16::try_from(number).ok().filter(|n| (1..=limits::BUCKETS_MAX).contains(n));
    count.ok_or_else(|| fields.bad(format!("{name} is {number}, not between 1 and {}", limits::BUCKETS_MAX)))
}

/// A script's answer: a word, the server's time, and the rest.
pub(super) struct Answer {
    pub word: Bytes,
    pub now_us: i64,
    pub fields: Fields,
    script: &'static Script,
}

impl Answer {
    /// The rest of an answer whose word is OK.
    pub fn ok(self) -> Result<Fields, StoreError> {
        if &self.word[..] == b"OK" { Ok(self.fields) } else { Err(self.unexpected()) }
    }

    /// An error for a word that the caller does not know.
    pub fn unexpected(&self) -> StoreError {
        let what = format!("unknown word {}", String::from_utf8_lossy(&self.word));
        StoreError::BadReply { script: self.script.name, what }
    }

    /// The server's time in ms.
    pub fn now_ms(&self) -> i64 {
        self.now_us.div_euclid(1_000)
    }
}
