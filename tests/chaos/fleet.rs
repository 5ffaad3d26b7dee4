//! The Redis under test, in each shape it comes in, and what is done to it.

use crate::NAMESPACE;
use minutehand::dev::fleet::{FleetOptions, PrivateCluster, PrivateSentinel, SENTINEL_SERVICE};
use minutehand::dev::redis::{Fsync, PrivateServer, ServerBinary, ServerOptions};
use minutehand::dev::wire::Answer;
use minutehand::keys::Guard;
use minutehand::model::{Bucket, Namespace, Tag};
use minutehand::store::slot_of;
use minutehand::testing::clock::WrongClock;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    One,
    Valkey,
    Cluster,
    Sentinel,
}

/// How far the clocks of those that begin as replicas are off, if they are.
const WRONG_BY_MS: i64 = 30_000;
/// How long a frozen master sleeps: longer than the node time-out and the sentinels' patience.
const FROZEN: Duration = Duration::from_millis(4_500);

/// How long a fleet is whole before the next heavy fault, so that there is load to be lost.
const PEACE: Duration = Duration::from_millis(2_500);

pub enum Redis {
    One { server: Arc<PrivateServer>, proxy: FaultProxy },
    Cluster { cluster: PrivateCluster, moved: Option<u16>, added: bool },
    Sentinel(PrivateSentinel),
}

/// A Redis with what is pending for it.
pub struct Bench {
    pub redis: Redis,
    /// Servers (by port) that are frozen or dead, and when that ends.
    wounds: Vec<(u16, Instant)>,
    /// The rare faults that have not had their turn yet.
    rare: Vec<&'static str>,
    /// Since when it has been whole.
    whole_since: Option<Instant>,
    /// Keys that were moved with their slots.
    pub keys_moved: usize,
    _clock: Option<WrongClock>,
}

const CLUSTER_FAULTS: [&str; 6] =
    ["slot_moved", "master_killed", "failover_asked", "master_frozen", "shard_added", "slot_moved_back"];
const SENTINEL_FAULTS: [&str; 3] = ["failover_asked", "master_killed", "master_frozen"];

impl Bench {
    pub async fn start(shape: Shape, dir: &Path, rng: &mut fastrand::Rng) -> Self {
        let (clock, env) = if matches!(shape, Shape::Cluster | Shape::Sentinel) {
            match WrongClock::new(dir, "replicas") {
                Ok(clock) => {
                    let ms = if rng.bool() { WRONG_BY_MS } else { -WRONG_BY_MS };
                    clock.shift_ms(ms).unwrap();
                    println!("the clocks of those that begin as replicas are {ms} ms off");
                    let env = clock.env();
                    (Some(clock), env)
                }
                Err(error) => {
                    println!("all clocks are right: {error}");
                    (None, Vec::new())
                }
            }
        } else {
            (None, Vec::new())
        };
        let binary = (shape == Shape::Valkey).then(|| ServerBinary::find_valkey().unwrap());
        let fsync =
            if matches!(shape, Shape::One | Shape::Valkey) { Fsync::Always } else { Fsync::EverySecond };
        let each = ServerOptions { append_only: Some(fsync), tcp: true, binary, ..ServerOptions::default() };
        let options = FleetOptions { each: each.clone(), replica_env: env };
        let redis = match shape {
            Shape::One | Shape::Valkey => {
                let server = Arc::new(PrivateServer::start(each).await.unwrap());
                println!("on {} {}", server.binary().path.display(), server.binary().version);
                let proxy = FaultProxy::start(Behind::Unix(server.socket())).await.unwrap();
                Redis::One { server, proxy }
            }
            Shape::Cluster => {
                let cluster = PrivateCluster::start_as(3, 1, options).await.unwrap();
                Redis::Cluster { cluster, moved: None, added: false }
            }
            Shape::Sentinel => Redis::Sentinel(PrivateSentinel::start_as(options).await.unwrap()),
        };
        let rare = match &redis {
            Redis::One { .. } => Vec::new(),
            Redis::Cluster { .. } => CLUSTER_FAULTS.to_vec(),
            Redis::Sentinel(_) => SENTINEL_FAULTS.to_vec(),
        };
        Self { redis, wounds: Vec::new(), rare, whole_since: None, keys_moved: 0, _clock: clock }
    }

    /// Where pods, executors and producers find it.
    pub fn url(&self) -> String {
        match &self.redis {
            Redis::One { proxy, .. } => proxy.url(),
            Redis::Cluster { cluster, .. } => cluster.url(),
            Redis::Sentinel(fleet) => fleet.url(),
        }
    }

    /// Where the judge finds it: past the proxy.
    pub fn direct_url(&self) -> String {
        match &self.redis {
            Redis::One { server, .. } => server.url(),
            Redis::Cluster { .. } | Redis::Sentinel(_) => self.url(),
        }
    }

    pub fn is_fleet(&self) -> bool {
        !matches!(self.redis, Redis::One { .. })
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        match &self.redis {
            Redis::One { server, .. } => vec![server.as_ref()],
            Redis::Cluster { cluster, .. } => cluster.nodes().collect(),
            Redis::Sentinel(fleet) => fleet.nodes().into_iter().collect(),
        }
    }

    fn masters(&self) -> Vec<&PrivateServer> {
        match &self.redis {
            Redis::One { server, .. } => vec![server.as_ref()],
            Redis::Cluster { cluster, .. } => cluster.masters_now(),
            Redis::Sentinel(fleet) => fleet.master_now().into_iter().collect(),
        }
    }

    /// Every key there is.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for master in self.masters() {
            if let Ok(Answer::List(found)) = master.run(&["KEYS", "*"]) {
                keys.extend(found.iter().map(|key| key.text().to_owned()));
            }
        }
        keys
    }

    /// Lets go on, or starts again, what has been away for long enough.
    pub async fn heal(&mut self, now: Instant) {
        let (healed, rest) = std::mem::take(&mut self.wounds).into_iter().partition(|(_, till)| *till <= now);
        self.wounds = rest;
        let healed: Vec<(u16, Instant)> = healed;
        for server in self.servers() {
            if healed.iter().any(|(port, _)| server.port() == Some(*port)) {
                if server.pid().is_some() {
                    server.resume();
                } else {
                    server.restart().await.unwrap();
                }
            }
        }
    }

    /// Waits until everything runs again and is in step.
    pub async fn whole(&mut self, limit: Duration) {
        let start = minutehand::clock::mono();
        loop {
            self.heal(start + Duration::from_secs(3_600)).await;
            let whole = match &self.redis {
                Redis::One { server, .. } => server.is_awake(),
                Redis::Cluster { cluster, .. } => cluster.is_whole(),
                Redis::Sentinel(fleet) => fleet.is_whole(),
            };
            if whole {
                return;
            }
            assert!(start.elapsed() < limit, "the fleet has not come together again in {limit:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Makes a rare and heavy fault, if the fleet has recovered from the last one.
    pub async fn heavy(&mut self, rng: &mut fastrand::Rng) -> Option<&'static str> {
        let whole = self.wounds.is_empty()
            && match &self.redis {
                Redis::One { .. } => return None,
                Redis::Cluster { cluster, .. } => cluster.is_whole(),
                Redis::Sentinel(fleet) => fleet.is_whole(),
            };
        let now = minutehand::clock::mono();
        if !whole {
            self.whole_since = None;
            return None;
        }
        let since = *self.whole_since.get_or_insert(now);
        if now.saturating_duration_since(since) < PEACE {
            return None;
        }
        self.whole_since = None;
        if self.rare.is_empty() {
            self.rare = match &self.redis {
                Redis::Cluster { added, .. } => {
                    CLUSTER_FAULTS.iter().copied().filter(|fault| *fault != "shard_added" || !added).collect()
                }
                _ => SENTINEL_FAULTS.to_vec(),
            };
            rng.shuffle(&mut self.rare);
        }
        let kind = self.rare.remove(0);
        match (kind, &mut self.redis) {
            ("slot_moved" | "slot_moved_back", Redis::Cluster { cluster, moved, .. }) => {
                let slot = match moved.take() {
                    Some(slot) => slot,
                    None => {
                        let bucket = Bucket::new(rng.u16(0..8)).unwrap();
                        let tag = Tag::of(&Namespace::new(NAMESPACE).unwrap(), bucket);
                        let slot = slot_of(&Guard::bucket(&tag).keys[0]);
                        *moved = Some(slot);
                        slot
                    }
                };
                let owner = cluster.owner(slot).unwrap().port();
                let others: Vec<_> =
                    cluster.masters_now().into_iter().filter(|master| master.port() != owner).collect();
                let target = others[rng.usize(0..others.len())];
                self.keys_moved += cluster.move_slot(slot, target).unwrap();
            }
            ("shard_added", Redis::Cluster { cluster, added, .. }) => {
                cluster.add_shard().unwrap();
                *added = true;
                // It takes over two buckets.
                let namespace = Namespace::new(NAMESPACE).unwrap();
                for bucket in [0, 5] {
                    let tag = Tag::of(&namespace, Bucket::new(bucket).unwrap());
                    let slot = slot_of(&Guard::bucket(&tag).keys[0]);
                    let to = cluster.masters.last().unwrap();
                    self.keys_moved += cluster.move_slot(slot, to).unwrap();
                }
            }
            ("failover_asked", Redis::Cluster { cluster, .. }) => {
                let masters = cluster.masters_now();
                let master = masters[rng.usize(0..masters.len())];
                if let Some(replica) = cluster.replica_of(master) {
                    replica.run(&["CLUSTER", "FAILOVER"]).unwrap();
                }
            }
            ("failover_asked", Redis::Sentinel(fleet)) => {
                // Too soon after the last one it is refused; then this was none.
                if let Err(error) = fleet.sentinels[0].run(&["SENTINEL", "FAILOVER", SENTINEL_SERVICE]) {
                    println!("no failover: {error}");
                    return Some("failover_refused");
                }
            }
            ("master_killed" | "master_frozen", _) => {
                let masters = self.masters();
                let master = masters[rng.usize(0..masters.len())];
                let port = master.port().unwrap();
                if kind == "master_killed" {
                    master.kill9()
                } else {
                    master.pause()
                }
                self.wounds.push((port, now + FROZEN));
            }
            (kind, _) => unreachable!("{kind}"),
        }
        Some(kind)
    }

    /// Disturbs connections or the server itself, briefly.
    pub async fn light(&self, rng: &mut fastrand::Rng) -> &'static str {
        match &self.redis {
            Redis::One { server, proxy } => match rng.u8(0..44) {
                0..6 => {
                    server.kill9();
                    server.restart().await.unwrap();
                    "redis_restarted"
                }
                6..20 => {
                    proxy.cut();
                    "connections_cut"
                }
                20..34 => {
                    proxy.cut_after(rng.u64(1..60_000));
                    "cut_in_mid_reply"
                }
                _ => {
                    proxy.set(Fault { delay: Duration::from_millis(rng.u64(5..120)), ..Fault::default() });
                    tokio::time::sleep(Duration::from_millis(400)).await;
                    proxy.set(Fault::default());
                    "replies_delayed"
                }
            },
            Redis::Cluster { .. } | Redis::Sentinel(_) => {
                for server in self.servers().into_iter().filter(|server| server.is_awake()) {
                    let kind = if rng.bool() { "normal" } else { "pubsub" };
                    // One that is just going away is left alone.
                    let _ = server.run(&["CLIENT", "KILL", "TYPE", kind]);
                }
                "connections_cut"
            }
        }
    }
}
