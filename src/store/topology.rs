//! Which server owns which slot, and the connections to each.
//!
//! Each master has clients of its own, so that one master's failure is felt by its slots alone. The
//! map of slots is swapped as a whole; readers never wait. It is renewed every second in a cluster,
//! and at once when an answer or a broken connection says that it may be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface, SentinelInterface};
use fred::prelude::{Client, ServerConfig};
use fred::types::ConnectHandle;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connect::{Dialer, Host, Place};
use super::error::{Cause, StoreError};
use super::reply::{Fields, Reply};
use super::script_call::{Fault, Request, send};
use crate::clock::{RedisClock, mono};
use crate::limits::{DURABLE_CALLS_MAX, RECONNECT_MAX_MS};
use crate::model::bucket::SLOTS;

/// How often the map of a cluster is renewed without any sign that it is wrong.
const REFRESH: Duration = Duration::from_millis(1_000);
/// Shortest time between two renewals: a burst of errors asks once.
const REFRESH_GAP: Duration = Duration::from_millis(50);
/// How long the nodes have to describe the cluster. A frozen node is not waited for.
const ASK_LIMIT: Duration = Duration::from_millis(250);
/// How often a connection is asked for a sign of life once a call on it was late, before the node's connections are
/// replaced: more than once, since it may be this process that comes too late to read.
const PROBES: u32 = 3;
/// How long each of them may take.
const PROBE_LIMIT: Duration = Duration::from_millis(400);
/// Nodes that are asked by a connection of their own when no known master answers.
const STRANGERS_MAX: usize = 16;
/// How often a caller that waits for a connection looks again, should a signal have been missed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often connections are opened anew for a master that a sentinel has named, and the pause that grows between.
const FOLLOWED_MAX: u32 = 3;
const FOLLOWED_AGAIN: Duration = Duration::from_millis(100);
/// Message by which sentinels announce a new master.
const SWITCH_MASTER: &str = "+switch-master";

/// Ends a task when dropped.
pub(super) struct AbortOnDrop(pub AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the supervisor of a connection knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Link {
    /// How many connections were made.
    pub ups: u64,
    /// Where the last one led.
    pub at: Option<Host>,
    /// The last trouble.
    pub error: Option<String>,
}

/// When a node's connections were last replaced, and how often they have been made since.
pub(super) type Epoch = (Instant, u64);

/// One connection with the task that keeps it.
pub(super) struct Conn {
    pub client: Client,
    pub link: watch::Receiver<Link>,
    _task: AbortOnDrop,
}

impl Conn {
    /// Starts to connect; from then on the connection is kept until this is dropped.
    pub fn open(dialer: &Dialer, server: ServerConfig) -> Self {
        let client = dialer.client(server);
        let (tx, link) = watch::channel(Link::default());
        let task = tokio::spawn(keep(client.clone(), Bytes::from(dialer.client_name.clone()), tx));
        Self { client, link, _task: AbortOnDrop(task.abort_handle()) }
    }

    /// Waits for the connection, at most `left` long; else says what the last trouble was.
    pub async fn up(&self, left: Duration) -> Result<(), String> {
        let mut link = self.link.clone();
        let first = async {
            loop {
                if self.client.is_connected() {
                    return Ok(());
                }
                if let Some(error) = link.borrow_and_update().error.clone() {
                    return Err(error);
                }
                // The client tells of a connection a moment before it counts as connected.
                let _ = timeout(LOOK_AGAIN / 10, link.changed()).await;
            }
        };
        timeout(left, first).await.unwrap_or_else(|_| Err("no connection in time".into()))
    }
}

/// Connects, names the connection, notes its troubles, and starts over should the client end.
async fn keep(client: Client, name: Bytes, link: watch::Sender<Link>) {
    let mut wait = Duration::from_millis(50);
    loop {
        let (mut ups, mut errors) = (client.reconnect_rx(), client.error_rx());
        let mut router: ConnectHandle = client.connect();
        let _abort = AbortOnDrop(router.abort_handle());
        let ended = loop {
            tokio::select! {
                ended = &mut router => break ended,
                up = ups.recv() => if let Ok(server) = up {
                    let at = Host::new(server.host.to_string(), server.port);
                    link.send_modify(|link| *link = Link { ups: link.ups + 1, at: Some(at), error: None });
                    wait = Duration::from_millis(50);
                    if !name.is_empty() {
                        let args = [name.clone()];
                        let request = Request::Command { name: "CLIENT SETNAME", args: &args };
                        // A user without the right to name its connection works all the same.
                        if let Err(fault) = send(&client, request, Duration::from_secs(1), false).await {
                            tracing::debug!(?fault, "could not name a connection to redis");
                        }
                    }
                },
                error = errors.recv() => if let Ok((error, _)) = error {
                    link.send_modify(|link| link.error = Some(error.details().to_owned()));
                },
            }
        };
        let why = match ended {
            Ok(Err(error)) => error.details().to_owned(),
            Ok(Ok(())) => "the connection was closed".into(),
            Err(error) => error.to_string(),
        };
        link.send_modify(|link| link.error = Some(why));
        let jitter = Duration::from_millis(fastrand::u64(0..50));
        sleep(wait + jitter).await;
        wait = (wait * 2).min(Duration::from_millis(RECONNECT_MAX_MS));
    }
}

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum NodeAddr {
    Host(Host),
    Unix(PathBuf),
    /// The master that the sentinels name, wherever it is.
    Named(String),
}

impl std::fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(host) => host.fmt(f),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Named(name) => write!(f, "{name} (by sentinel)"),
        }
    }
}

/// How a server keeps its data, as far as it was asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Persistence {
    /// It appends writes to a file.
    pub appends: bool,
    /// When that file is forced to the disk.
    pub fsync: String,
    /// It has WAITAOF.
    pub waits_for_files: bool,
    pub version: String,
    /// It was read from INFO, else from the configuration.
    pub of_info: bool,
}

/// Connections of which each serves one waiting call at a time.
struct Waiting {
    room: Semaphore,
    idle: Mutex<Vec<Conn>>,
}

/// A connection for one waiting call. Dropped without being given back, it is closed: an answer may
/// still be due on it.
pub(super) struct Lent<'a> {
    conn: Conn,
    idle: &'a Mutex<Vec<Conn>>,
    _permit: SemaphorePermit<'a>,
}

impl Lent<'_> {
    pub fn client(&self) -> &Client {
        &self.conn.client
    }

    pub fn give_back(self) {
        self.idle.lock().push(self.conn);
    }
}

/// One master and the connections to it.
pub(super) struct Node {
    pub addr: NodeAddr,
    server: ServerConfig,
    conns: ArcSwap<Vec<Conn>>,
    waiting: Waiting,
    /// What was last heard of its persistence, when, and by which connections.
    persistence: Mutex<Option<(Epoch, Instant, Persistence)>>,
    next: AtomicUsize,
    probing: AtomicBool,
    rebuilt: Mutex<Instant>,
    /// Its clock, as its answers tell it.
    pub clock: RedisClock,
}

impl Node {
    pub fn open(dialer: &Dialer, addr: NodeAddr, server: ServerConfig) -> Arc<Self> {
        let conns = Self::dial(dialer, &server);
        Arc::new(Self {
            addr,
            server,
            conns: ArcSwap::from_pointee(conns),
            waiting: Waiting { room: Semaphore::new(DURABLE_CALLS_MAX), idle: Mutex::default() },
            persistence: Mutex::default(),
            next: AtomicUsize::new(0),
            probing: AtomicBool::new(false),
            rebuilt: Mutex::new(mono()),
            clock: RedisClock::new(),
        })
    }

    fn at(dialer: &Dialer, host: Host) -> Arc<Self> {
        let server = ServerConfig::Centralized { server: host.server() };
        Self::open(dialer, NodeAddr::Host(host), server)
    }

    fn dial(dialer: &Dialer, server: &ServerConfig) -> Vec<Conn> {
        (0..dialer.pool_size).map(|_| Conn::open(dialer, server.clone())).collect()
    }

    pub fn server(&self) -> ServerConfig {
        self.server.clone()
    }

    pub fn host(&self) -> Option<&Host> {
        match &self.addr {
            NodeAddr::Host(host) => Some(host),
            NodeAddr::Unix(_) | NodeAddr::Named(_) => None,
        }
    }

    /// The next connected client in turn.
    fn pick(&self) -> Option<Client> {
        let conns = self.conns.load();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        (0..conns.len())
            .map(|offset| &conns[(start.wrapping_add(offset)) % conns.len()].client)
            .find(|client| client.is_connected())
            .cloned()
    }

    /// A connected client; waits for one at most `left` long, then says what is the matter.
    pub async fn client(&self, left: Duration) -> Result<Client, String> {
        if let Some(client) = self.pick() {
            return Ok(client);
        }
        let wait = async {
            loop {
                let first = self.conns.load().first().map(|conn| conn.client.clone());
                if let Some(first) = first {
                    let _ = timeout(LOOK_AGAIN, first.wait_for_connect()).await;
                }
                if let Some(client) = self.pick() {
                    return client;
                }
                // A client whose task has ended answers at once; do not spin on it.
                sleep(LOOK_AGAIN / 10).await;
            }
        };
        match timeout(left, wait).await {
            Ok(client) => Ok(client),
            Err(_) => Err(self.trouble()),
        }
    }

    /// Where its connections lead, as far as it is known; behind a name that may change.
    fn leads_to(&self) -> Option<Host> {
        self.conns.load().iter().find_map(|conn| conn.link.borrow().at.clone())
    }

    /// Whether every connection that is known to lead somewhere leads there.
    fn leads_all_to(&self, host: &Host) -> bool {
        self.conns.load().iter().all(|conn| conn.link.borrow().at.as_ref().is_none_or(|at| at == host))
    }

    /// A connection of its own for one call; waits for one at most `left` long.
    pub async fn lend(&self, dialer: &Dialer, left: Duration) -> Result<Lent<'_>, String> {
        let start = mono();
        let permit = match timeout(left, self.waiting.room.acquire()).await {
            Ok(Ok(permit)) => permit,
            _ => return Err("too many calls wait for replicas or disks".into()),
        };
        let idle = self.waiting.idle.lock().pop();
        // One that was lent while the master changed may lead to the old one.
        let same = |conn: &Conn| conn.client.is_connected() && conn.link.borrow().at == self.leads_to();
        let conn = match idle.filter(same) {
            Some(conn) => conn,
            None => Conn::open(dialer, self.server()),
        };
        conn.up(left.saturating_sub(start.elapsed())).await?;
        Ok(Lent { conn, idle: &self.waiting.idle, _permit: permit })
    }

    /// Changes whenever a connection is made: another server may then be at its end.
    pub fn epoch(&self) -> Epoch {
        let ups = self.conns.load().iter().map(|conn| conn.link.borrow().ups).sum();
        (*self.rebuilt.lock(), ups)
    }

    /// How many connections to it were made, over all its connections of now.
    pub fn connections_made(&self) -> u64 {
        self.epoch().1
    }

    /// What is known of its persistence, if that is young and heard by the connections of now.
    pub fn persistence(&self, kept: Duration) -> Option<Persistence> {
        let known = self.persistence.lock().clone();
        let (_, _, known) = known.filter(|(epoch, at, _)| *epoch == self.epoch() && at.elapsed() < kept)?;
        Some(known)
    }

    pub fn learn(&self, epoch: Epoch, known: Persistence) {
        *self.persistence.lock() = Some((epoch, mono(), known));
    }

    /// The last trouble of any of its connections.
    pub fn trouble(&self) -> String {
        let conns = self.conns.load();
        let error = conns.iter().find_map(|conn| conn.link.borrow().error.clone());
        error.unwrap_or_else(|| "no connection".into())
    }

    /// Waits until one connection stands, or the first try has failed.
    pub async fn up(&self, left: Duration) -> Result<(), String> {
        let conns = self.conns.load_full();
        match conns.first() {
            Some(first) => first.up(left).await,
            None => Err("no connection".into()),
        }
    }

    /// A call by this client had no answer in time. The connection is asked for a sign of life; where there is none, the
    /// node's connections are replaced.
    pub fn was_late(self: &Arc<Self>, topology: &Arc<Topology>, client: &Client) {
        let ours = self.conns.load().iter().any(|conn| conn.client.id() == client.id());
        if !ours || self.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (node, topology, client) = (Arc::clone(self), Arc::clone(topology), client.clone());
        tokio::spawn(async move {
            let closed = topology.closed.clone();
            let work = async {
                for _ in 0..PROBES {
                    let ping = Request::Command { name: "PING", args: &[] };
                    match send(&client, ping, PROBE_LIMIT, false).await {
                        Err(Fault::Late) if client.is_connected() => {}
                        // It answers, be it with an error, or the client has noticed by itself.
                        Ok(_) | Err(_) => return,
                    }
                }
                node.replace(&topology.dialer);
            };
            let _: Option<()> = closed.run_until_cancelled(work).await;
            node.probing.store(false, Ordering::Release);
        });
    }

    fn replace(&self, dialer: &Dialer) {
        *self.rebuilt.lock() = mono();
        tracing::warn!(node = %self.addr, "redis does not answer; its connections are replaced");
        self.conns.store(Arc::new(Self::dial(dialer, &self.server)));
    }

    /// Opens every connection anew: the server behind the name has changed.
    async fn reconnect(&self) {
        self.waiting.idle.lock().clear();
        let conns = self.conns.load_full();
        let mut all = JoinSet::new();
        for conn in conns.iter() {
            let client = conn.client.clone();
            all.spawn(async move { timeout(Duration::from_secs(2), client.force_reconnection()).await });
        }
        while all.join_next().await.is_some() {}
    }
}

/// Who owns what, at one moment.
pub(super) struct Map {
    /// Index into `nodes` by slot; empty when one node owns all.
    slots: Vec<u16>,
    pub nodes: Vec<Arc<Node>>,
    epoch: u64,
    /// Replicas and others that may describe the cluster when no master does.
    others: Vec<Host>,
}

/// What is said of a cluster that is not put together yet: like its own word for it, so that who starts waits.
const NO_SLOTS: &str =
    "CLUSTERDOWN no node of the cluster has slots; redis-cli --cluster create assigns them";

/// A slot without an owner.
const NOBODY: u16 = u16::MAX;

impl Map {
    pub fn node(&self, slot: u16) -> Option<&Arc<Node>> {
        if self.slots.is_empty() {
            return self.nodes.first();
        }
        self.slots.get(usize::from(slot)).and_then(|at| self.nodes.get(usize::from(*at)))
    }
}

/// What one node says about the cluster.
#[derive(Debug, Default, PartialEq, Eq)]
struct View {
    epoch: u64,
    ranges: Vec<(u16, u16, Host)>,
    replicas: Vec<Host>,
}

impl View {
    /// Reads CLUSTER INFO and CLUSTER SLOTS. `asked` stands for a host that the server leaves open.
    fn parse(info: &str, slots: Reply, asked: &str) -> Result<Self, StoreError> {
        let script = "CLUSTER SLOTS";
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        let epoch = epoch.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let mut view = Self { epoch, ..Self::default() };
        let host = |mut fields: Fields| -> Result<Host, StoreError> {
            let name = fields.maybe_bytes("a host")?.unwrap_or_default();
            let name = String::from_utf8_lossy(&name).into_owned();
            let port = u16::try_from(fields.int("a port")?).map_err(|_| fields.bad("a port out of range"))?;
            let known = !name.is_empty() && name != "?";
            Ok(Host::new(if known { name } else { asked.to_owned() }, port))
        };
        for range in slots.array(script)? {
            let mut range = range.fields(script)?;
            let slot = |n: i64| u16::try_from(n).ok().filter(|slot| *slot < SLOTS);
            let (low, high) = (slot(range.int("first slot")?), slot(range.int("last slot")?));
            let (Some(low), Some(high)) = (low, high.filter(|high| low <= Some(*high))) else {
                return Err(range.bad("a slot out of range"));
            };
            view.ranges.push((low, high, host(range.fields("the master")?)?));
            while range.left() > 0 {
                view.replicas.push(host(range.fields("a replica")?)?);
            }
        }
        Ok(view)
    }
}

/// The map, its upkeep, and what is needed to open connections.
pub(super) struct Topology {
    pub dialer: Dialer,
    map: ArcSwap<Map>,
    /// Serializes changes of the map, not reads.
    change: Mutex<()>,
    wanted: Notify,
    changes: watch::Sender<u64>,
    pub closed: CancellationToken,
}

impl Topology {
    /// Connects for the first time: fails within the connection's time-out, with the reason.
    pub async fn connect(dialer: Dialer) -> Result<Arc<Self>, StoreError> {
        let place = dialer.url.place.clone();
        let (slots, nodes, others) = match &place {
            Place::Single(host) => (Vec::new(), vec![Node::at(&dialer, host.clone())], Vec::new()),
            Place::Unix(path) => {
                let server = ServerConfig::Unix { path: path.clone() };
                (Vec::new(), vec![Node::open(&dialer, NodeAddr::Unix(path.clone()), server)], Vec::new())
            }
            Place::Sentinel { sentinels, service, username, password } => {
                let server = ServerConfig::Sentinel {
                    hosts: sentinels.iter().map(Host::server).collect(),
                    service_name: service.clone(),
                    username: username.clone(),
                    password: password.clone(),
                };
                (Vec::new(), vec![Node::open(&dialer, NodeAddr::Named(service.clone()), server)], Vec::new())
            }
            Place::Cluster(seeds) => (vec![NOBODY; usize::from(SLOTS)], Vec::new(), seeds.clone()),
        };
        let cluster = matches!(place, Place::Cluster(_));
        let map = Map { slots, nodes, epoch: 0, others };
        let topology = Arc::new(Self {
            dialer,
            map: ArcSwap::from_pointee(map),
            change: Mutex::new(()),
            wanted: Notify::new(),
            changes: watch::channel(0).0,
            closed: CancellationToken::new(),
        });
        // A sentinel, its sisters and the master are asked one after the other.
        let left = topology.dialer.connect_timeout * 3;
        if cluster {
            topology.refresh(left).await.map_err(|cause| topology.cannot_start(&cause))?;
        }
        for node in &topology.map.load_full().nodes {
            let up = node.up(left).await;
            // In a cluster that is in the middle of a failover the other masters are good enough.
            if !cluster {
                up.map_err(|cause| topology.cannot_start(&cause))?;
            }
        }
        if cluster {
            tokio::spawn(keep_map(Arc::clone(&topology)));
        }
        if let Place::Sentinel { sentinels, service, .. } = &place {
            for host in sentinels {
                tokio::spawn(watch_sentinel(Arc::clone(&topology), host.clone(), service.clone()));
            }
        }
        Ok(topology)
    }

    fn cannot_start(&self, cause: &str) -> StoreError {
        if cause.contains("cluster support disabled") {
            let what = "the server is not part of a cluster; write redis:// instead of redis-cluster://";
            return StoreError::BadUrl { what: what.into() };
        }
        if let (Some(number), true) = (self.dialer.url.database, cause.contains("DB index is out of range")) {
            let what = format!("the server has no database {number}");
            return StoreError::BadUrl { what };
        }
        match super::script_call::of_text("HELLO", cause) {
            Fault::Fatal(error @ StoreError::NoPermission { .. }) => error,
            Fault::Refused { cause: cause @ Cause::ClusterDown, detail } => {
                StoreError::Refused { script: "CLUSTER SLOTS", cause, detail }
            }
            _ => self.unreachable(cause.to_owned(), false),
        }
    }

    pub fn unreachable(&self, cause: String, sent: bool) -> StoreError {
        StoreError::Unreachable { url: self.dialer.url.to_string(), cause, sent }
    }

    pub fn map(&self) -> Arc<Map> {
        self.map.load_full()
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.load().node(slot).cloned()
    }

    /// The node at a host: one of the masters, or a new one that the next renewal takes in or drops.
    pub fn node_at(&self, host: Host) -> Arc<Node> {
        let known = self.map.load().nodes.iter().find(|node| node.host() == Some(&host)).cloned();
        known.unwrap_or_else(|| self.add(host, None))
    }

    /// A count that grows with each change of the map.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Asks for a renewal soon.
    pub fn want_refresh(&self) {
        self.wanted.notify_one();
    }

    /// Takes over what a node said of one slot. The next renewal checks it.
    pub fn moved(&self, slot: u16, host: Host) -> Arc<Node> {
        let node = self.add(host, Some(slot));
        self.want_refresh();
        node
    }

    fn add(&self, host: Host, slot: Option<u16>) -> Arc<Node> {
        let _change = self.change.lock();
        let map = self.map.load();
        let known = map.nodes.iter().position(|node| node.host() == Some(&host));
        let mut nodes = map.nodes.clone();
        let at = known.unwrap_or_else(|| {
            nodes.push(Node::at(&self.dialer, host));
            nodes.len() - 1
        });
        let node = Arc::clone(&nodes[at]);
        let mut slots = map.slots.clone();
        if let (Some(slot), Ok(at)) = (slot, u16::try_from(at))
            && let Some(owner) = slots.get_mut(usize::from(slot))
        {
            *owner = at;
        }
        self.map.store(Arc::new(Map { slots, nodes, epoch: map.epoch, others: map.others.clone() }));
        self.changes.send_modify(|count| *count += 1);
        node
    }

    /// Asks the nodes who owns what and takes the newest view.
    async fn refresh(&self, limit: Duration) -> Result<(), String> {
        let map = self.map();
        let mut asked = JoinSet::new();
        for node in &map.nodes {
            if let (Some(client), Some(host)) = (node.pick(), node.host()) {
                let host = host.name.clone();
                asked.spawn(async move { ask(&client, &host, ASK_LIMIT).await });
            }
        }
        let (mut views, mut trouble) = gather(asked).await;
        let masters_told = views.len();
        if views.is_empty() || views.len() * 2 < map.nodes.len() {
            // Too few masters to trust: ask whoever else may know, by connections of their own.
            let mut asked = JoinSet::new();
            for host in map.others.iter().take(STRANGERS_MAX) {
                let conn = Conn::open(&self.dialer, ServerConfig::Centralized { server: host.server() });
                let name = host.name.clone();
                asked.spawn(async move {
                    conn.up(limit).await?;
                    ask(&conn.client, &name, limit).await
                });
            }
            let (more, why) = gather(asked).await;
            views.extend(more);
            trouble = why.or(trouble);
        }
        let Some(view) = views.into_iter().max_by_key(|view| view.epoch) else {
            return Err(trouble.unwrap_or_else(|| "no node answers".into()));
        };
        // An older view comes from nodes that are cut off, unless all masters agree on it.
        if view.epoch < map.epoch && masters_told < map.nodes.len() {
            return Err("only nodes with an older view of the cluster answer".into());
        }
        if view.ranges.is_empty() {
            return Err(NO_SLOTS.into());
        }
        self.apply(&view);
        Ok(())
    }

    fn apply(&self, view: &View) {
        let _change = self.change.lock();
        let map = self.map.load();
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut at_host: BTreeMap<&Host, u16> = BTreeMap::new();
        let mut slots = vec![NOBODY; usize::from(SLOTS)];
        for (low, high, host) in &view.ranges {
            let at = *at_host.entry(host).or_insert_with(|| {
                let known = map.nodes.iter().find(|node| node.host() == Some(host)).cloned();
                nodes.push(known.unwrap_or_else(|| Node::at(&self.dialer, host.clone())));
                // A cluster has at most as many masters as slots, so this never overflows.
                u16::try_from(nodes.len() - 1).unwrap_or(NOBODY)
            });
            slots[usize::from(*low)..=usize::from(*high)].fill(at);
        }
        let same = slots == map.slots
            && nodes.len() == map.nodes.len()
            && nodes.iter().zip(&map.nodes).all(|(new, old)| Arc::ptr_eq(new, old));
        let seeds = self.dialer.url.hosts().iter();
        let masters = view.ranges.iter().map(|(_, _, host)| host);
        let others: BTreeSet<Host> = seeds.chain(&view.replicas).chain(masters).cloned().collect();
        let others = others.into_iter().collect();
        self.map.store(Arc::new(Map { slots, nodes, epoch: view.epoch, others }));
        if !same {
            tracing::info!(epoch = view.epoch, masters = at_host.len(), "the cluster's slots have changed");
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Drops all connections; calls in flight are cut off.
    pub fn close(&self) {
        self.closed.cancel();
        let _change = self.change.lock();
        self.map.store(Arc::new(Map { slots: Vec::new(), nodes: Vec::new(), epoch: 0, others: Vec::new() }));
        self.changes.send_modify(|count| *count += 1);
    }
}

async fn gather(mut asked: JoinSet<Result<View, String>>) -> (Vec<View>, Option<String>) {
    let (mut views, mut trouble) = (Vec::new(), None);
    while let Some(told) = asked.join_next().await {
        match told {
            Ok(Ok(view)) => views.push(view),
            Ok(Err(why)) => trouble = Some(why),
            Err(error) => trouble = Some(error.to_string()),
        }
    }
    (views, trouble)
}

async fn ask(client: &Client, host: &str, limit: Duration) -> Result<View, String> {
    let info = send(client, Request::Command { name: "CLUSTER INFO", args: &[] }, limit, false);
    let slots = send(client, Request::Command { name: "CLUSTER SLOTS", args: &[] }, limit, false);
    let (info, slots) = tokio::join!(info, slots);
    let told = |fault| match fault {
        Fault::Fatal(error) => error.to_string(),
        other => format!("{other:?}"),
    };
    let info = info.map_err(told)?.text("CLUSTER INFO").map_err(|error| error.to_string())?;
    View::parse(&info, slots.map_err(told)?, host).map_err(|error| error.to_string())
}

async fn keep_map(topology: Arc<Topology>) {
    let closed = topology.closed.clone();
    let work = async {
        // The same trouble is told once, not every second.
        let mut trouble = None;
        loop {
            let _ = timeout(REFRESH, topology.wanted.notified()).await;
            let now = topology.refresh(topology.dialer.connect_timeout).await.err();
            if let Some(why) = now.as_ref().filter(|_| now != trouble) {
                tracing::warn!(why, "could not renew the cluster's slots");
            }
            trouble = now;
            sleep(REFRESH_GAP).await;
        }
    };
    let _: Option<()> = closed.run_until_cancelled(work).await;
}

/// Listens to one sentinel: when it names another master, every connection is opened anew. Without
/// this the client would write to the old master until that is reconfigured, and lose the writes.
async fn watch_sentinel(topology: Arc<Topology>, host: Host, service: String) {
    let closed = topology.closed.clone();
    let work = async {
        loop {
            let client = topology.dialer.sentinel_client(&host);
            let (mut ups, mut messages) = (client.reconnect_rx(), client.message_rx());
            let mut router = client.connect();
            let _abort = AbortOnDrop(router.abort_handle());
            loop {
                tokio::select! {
                    _ = &mut router => break,
                    up = ups.recv() => if up.is_ok() {
                        if let Err(error) = client.subscribe(SWITCH_MASTER).await {
                            tracing::warn!(%host, %error, "could not listen to a sentinel");
                        }
                        // What it said while nobody listened is not said again.
                        match ask_sentinel(&topology, &host, &service).await {
                            Ok(master) => follow(&topology, &host, &service, &master).await,
                            Err(why) => tracing::debug!(%host, why, "could not ask a sentinel for the master"),
                        }
                    },
                    message = messages.recv() => if let Ok(message) = message
                        && let Some(master) = message.value.as_str().and_then(|text| new_master(&text, &service))
                    {
                        follow(&topology, &host, &service, &master).await;
                    },
                }
            }
            sleep(Duration::from_millis(RECONNECT_MAX_MS)).await;
        }
    };
    let _: Option<()> = closed.run_until_cancelled(work).await;
}

/// The new master's place in a sentinel's message: the name, the old place, the new one.
fn new_master(text: &str, service: &str) -> Option<Host> {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        [name, _, _, host, port] if name == service => Some(Host::new(host, port.parse().ok()?)),
        _ => None,
    }
}

/// Asks a sentinel where the master is, by a connection of its own: on the one that listens nothing else may be said.
async fn ask_sentinel(topology: &Topology, host: &Host, service: &str) -> Result<Host, String> {
    let client = topology.dialer.sentinel_client(host);
    let router = client.connect();
    let _abort = AbortOnDrop(router.abort_handle());
    let asked = async {
        client.wait_for_connect().await?;
        client.get_master_addr_by_name::<(String, u16), _>(service).await
    };
    match timeout(topology.dialer.connect_timeout, asked).await {
        Ok(Ok((name, port))) => Ok(Host::new(name, port)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".into()),
    }
}

/// Sees to it that all connections lead to the master that a sentinel has named. A connection asks the sentinels by
/// itself, and may ask one that has not heard of it yet; then it is opened once more.
async fn follow(topology: &Topology, host: &Host, service: &str, master: &Host) {
    let behind =
        || topology.map().nodes.iter().filter(|node| !node.leads_all_to(master)).cloned().collect::<Vec<_>>();
    if behind().is_empty() {
        return;
    }
    tracing::info!(%host, service, %master, "a sentinel names another master");
    for round in 0..FOLLOWED_MAX {
        sleep(FOLLOWED_AGAIN * round).await;
        for node in behind() {
            node.reconnect().await;
        }
        topology.changes.send_modify(|count| *count += 1);
        if behind().is_empty() {
            return;
        }
    }
    tracing::debug!(%host, %master, "the connections do not lead to the master that this sentinel names");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bucket::slot_of_key;

    #[test]
    fn slots_are_those_of_the_specification() {
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}:meta", 12_182),
            ("foo{foo}{bar}", 12_182),
            ("", 0),
        ] {
            assert_eq!(slot_of_key(key.as_bytes()), slot, "{key}");
        }
        // An empty tag is none: the whole key counts.
        assert_ne!(slot_of_key(b"{}foo"), slot_of_key(b"{}bar"));
    }

    #[test]
    fn a_sentinels_message_names_the_new_master() {
        let text = "mymaster 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(new_master(text, "mymaster"), Some(Host::new("10.0.0.2", 6_380)));
        for other in ["another 1 1 2 2", "mymaster 1 1 2", "mymaster 1 1 2 x", "mymaster 1 1 2 2 3", ""] {
            assert_eq!(new_master(other, "mymaster"), None, "{other}");
        }
    }

    #[test]
    fn a_view_is_read_and_open_hosts_are_filled_in() {
        let text = |text: &'static str| Reply::Bytes(Bytes::from_static(text.as_bytes()));
        let node =
            |host: Reply, port| Reply::Array(vec![host, Reply::Int(port), text("id"), Reply::Array(vec![])]);
        let slots = Reply::Array(vec![
            Reply::Array(vec![Reply::Int(0), Reply::Int(99), node(text("a"), 1), node(text("r"), 2)]),
            Reply::Array(vec![Reply::Int(100), Reply::Int(16_383), node(Reply::Nil, 3)]),
        ]);
        let view = View::parse("cluster_state:ok\r\ncluster_current_epoch:6\r\n", slots, "asked");
        let want = View {
            epoch: 6,
            ranges: vec![(0, 99, Host::new("a", 1)), (100, 16_383, Host::new("asked", 3))],
            replicas: vec![Host::new("r", 2)],
        };
        assert_eq!(view, Ok(want));
        for (low, high) in [(0, 16_384), (-1, 5), (9, 8)] {
            let wild = Reply::Array(vec![Reply::Array(vec![Reply::Int(low), Reply::Int(high)])]);
            let error = View::parse("", wild, "asked").expect_err("no such range");
            assert!(error.to_string().contains("a slot out of range"), "{error}");
        }
    }
}
