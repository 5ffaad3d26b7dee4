//! The only module that talks to Redis: one connection pool for each master, one function for each
//! script, and answers as plain values.
//!
//! `connect` says where and how, `topology` who owns what, `script_call` sends one request,
//! `reply` is what comes back, `error` what does not, and `subscribe` wakes sleepers.
//!
//! Deliberately absent: blocking commands (a cut one loses what it popped), transactions (a script
//! is one), reads from replicas (a replica of a half-moved slot answers nonsense), and repeating a
//! call whose fate is unknown (the caller knows whether the script can tell).

mod args;
mod connect;
mod durable;
mod error;
mod mutate;
mod reply;
mod rights;
mod script;
mod script_call;
mod space;
mod subscribe;
mod topology;

pub mod access;
pub mod bucket;
pub mod check;
pub mod dead;
pub mod decider;
pub mod due;
pub mod events;
pub mod intake;
pub mod member;
pub mod outcome;
pub mod purge;
pub mod queue;
pub mod read;
pub mod run;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fred::interfaces::ClientLike;
use fred::prelude::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use crate::model::bucket::{SLOTS, slot_of_key as slot_of};
pub use crate::model::spread::Spread;
pub use connect::{
    CALL_TIMEOUT_RANGE_MS, CONNECT_TIMEOUT_RANGE_MS, ConnectSettings, Flavor, Host, Mode, NodeInfo,
    POOL_SIZE_DEFAULT, POOL_SIZE_MAX, Place, RedisUrl, ServerInfo,
};
pub use durable::Shortfall;
pub use error::{Cause, StoreError};
pub use reply::{Fields, Reply};
pub use script::{ALL as SCRIPTS, Script};
pub use space::{Birth, Space};
pub use subscribe::{Subscription, Wake};

use crate::clock::mono;
use crate::limits::CALL_RETRIES_MAX;
use crate::model::Durability;
use connect::Dialer;
use script_call::{Fault, Request};
use subscribe::Hub;
use topology::{Node, Topology};

/// Times that one call follows a redirect. Two suffice; more happen while slots are on the move.
const REDIRECTS_MAX: u32 = 8;
/// Times that one call loads its script. Where someone flushes the scripts in between, its text is sent instead.
const LOADS_MAX: u32 = 1;
/// First wait before the store tries a call again; doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(10);
/// How long a call waits for a connection to one node before it asks again who owns its slot.
const WAIT_FOR_NODE: Duration = Duration::from_millis(100);

/// Which server a plain command goes to.
#[derive(Debug, Clone, Copy)]
pub enum At<'a> {
    /// The owner of this key.
    Key(&'a [u8]),
    /// The owner of this slot.
    Slot(u16),
    /// Any master.
    Any,
}

/// One call of a script, for [`Store::call_many`].
#[derive(Debug, Clone)]
pub struct Call {
    /// The script.
    pub script: &'static Script,
    /// Its two keys: `{tag}:meta` and `{tag}:never`.
    pub keys: [Bytes; 2],
    /// Its arguments.
    pub args: Vec<Bytes>,
}

/// The way to Redis. Cheap to clone; the connections end with the last clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    topology: Arc<Topology>,
    hub: Arc<Hub>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.topology.close();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.url())
    }
}

impl Store {
    /// Connects and checks that every master is fit for use.
    ///
    /// Fails within a second or two when nothing answers. Later on lost connections are opened again
    /// by themselves.
    pub async fn connect(settings: ConnectSettings) -> Result<Self, StoreError> {
        let dialer = Dialer::new(settings)?;
        let topology = Topology::connect(dialer).await?;
        let hub = Hub::start(Arc::clone(&topology));
        let store = Self { inner: Arc::new(Inner { topology, hub }) };
        store.check().await?;
        Ok(store)
    }

    /// The address, without a password.
    pub fn url(&self) -> String {
        self.inner.topology.dialer.url.to_string()
    }

    /// How the servers stand together.
    pub fn mode(&self) -> Mode {
        match self.inner.topology.dialer.url.place {
            Place::Single(_) | Place::Unix(_) => Mode::Single,
            Place::Cluster(_) => Mode::Cluster,
            Place::Sentinel { .. } => Mode::Sentinel,
        }
    }

    /// How many connections to masters were made so far, and how often the map of a cluster changed: where it has
    /// grown, another server may be at the end of one.
    pub fn connections_made(&self) -> u64 {
        let topology = &self.inner.topology;
        let made: u64 = topology.map().nodes.iter().map(|node| node.connections_made()).sum();
        made + *topology.changes().borrow()
    }

    /// The policy by which some master may delete keys when its memory is full, if one has such a policy.
    pub async fn evicting_policy(&self) -> Result<Option<String>, StoreError> {
        for node in self.server_info().await?.nodes {
            if let Some(policy) = self.policy_of(&node).await.filter(|policy| policy != "noeviction") {
                return Ok(Some(policy));
            }
        }
        Ok(None)
    }

    async fn policy_of(&self, node: &NodeInfo) -> Option<String> {
        if node.maxmemory_policy.is_some() {
            return node.maxmemory_policy.clone();
        }
        // Some services leave it out of INFO; some also forbid CONFIG, and then nobody knows.
        let args = vec![Bytes::from_static(b"maxmemory-policy")];
        let told = self.command("CONFIG GET", At::Any, args).await.ok()?;
        told.pairs("CONFIG GET").ok()?.pop()?.1.text("CONFIG GET").ok()
    }

    async fn check(&self) -> Result<(), StoreError> {
        let info = self.server_info().await?;
        for node in &info.nodes {
            node.check_version()?;
            if node.cluster && info.mode != Mode::Cluster {
                return Err(StoreError::BadUrl {
                    what: format!(
                        "{} is part of a cluster; write redis-cluster:// instead of redis://",
                        node.addr
                    ),
                });
            }
            if !node.cluster && info.mode == Mode::Cluster {
                return Err(StoreError::BadUrl {
                    what: format!("{} is not part of a cluster; write redis:// instead", node.addr),
                });
            }
            let policy = self.policy_of(node).await;
            if policy.is_none() {
                tracing::warn!(node = %node.addr, "it cannot be asked whether this server deletes keys when its memory is full; its maxmemory-policy must be noeviction");
            }
            connect::check_policy(policy.as_deref(), self.inner.topology.dialer.allow_evicting)?;
        }
        Ok(())
    }

    /// What the masters say about themselves. Masters that do not answer are left out, unless none does.
    pub async fn server_info(&self) -> Result<ServerInfo, StoreError> {
        let (mut nodes, mut trouble) = (Vec::new(), None);
        for (addr, told) in self.on_each_master("INFO", Vec::new()).await {
            match told.and_then(|reply| reply.text("INFO")) {
                Ok(text) => nodes.push(NodeInfo::parse(addr, &text)),
                Err(error) => trouble = Some(error),
            }
        }
        let number =
            |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
        match nodes.iter().min_by_key(|node| number(&node.version)) {
            Some(oldest) => {
                let (version, flavor) = (oldest.version.clone(), oldest.flavor);
                Ok(ServerInfo { version, flavor, mode: self.mode(), nodes })
            }
            None => Err(trouble.unwrap_or(StoreError::Closed)),
        }
    }

    /// The node that owns a slot, as far as is known now; nothing while nobody does.
    pub fn node_of_slot(&self, slot: u16) -> Option<String> {
        self.inner.topology.owner(slot).map(|node| node.addr.to_string())
    }

    /// The local instant from which on the clock of the server that owns `slot` surely shows `at_ms`; none
    /// where that server has not answered lately.
    pub fn surely_at(&self, slot: u16, at_ms: i64) -> Option<Instant> {
        self.inner.topology.owner(slot)?.clock.surely_at(at_ms)
    }

    /// Ends all connections. Calls in flight are cut off; later ones answer [`StoreError::Closed`].
    pub async fn close(&self) {
        self.inner.topology.close();
        // Ended tasks let go of their sockets when the runtime next comes to them.
        tokio::task::yield_now().await;
    }

    /// Runs a script where its first key lives.
    ///
    /// The script is loaded where it is missing, redirects are followed, and "not now" is tried
    /// again, all within the call's time-out. A call whose fate is unknown is not repeated.
    ///
    /// Dropping the future is safe: the answer is then read and thrown away.
    pub async fn call(
        &self,
        script: &'static Script,
        keys: [Bytes; 2],
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let slot = slot_of(&keys[0]);
        let level = Durability::Memory;
        self.run(Request::Script { script, keys: &keys, args: &args, level, whole: false }, Some(slot)).await
    }

    /// Runs several calls at the same time; the answers stand in the order of the calls.
    pub async fn call_many(&self, calls: Vec<Call>) -> Vec<Result<Reply, StoreError>> {
        let mut answers: Vec<Result<Reply, StoreError>> = Vec::new();
        answers.resize_with(calls.len(), || Err(StoreError::Closed));
        let mut running = JoinSet::new();
        for (at, Call { script, keys, args }) in calls.into_iter().enumerate() {
            let store = self.clone();
            running.spawn(async move { (at, store.call(script, keys, args).await) });
        }
        while let Some(done) = running.join_next().await {
            if let Ok((at, answer)) = done {
                answers[at] = answer;
            }
        }
        answers
    }

    /// Runs a plain command. For the few reads that need no script; never for one that blocks.
    pub async fn command(
        &self,
        name: &'static str,
        at: At<'_>,
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let slot = match at {
            At::Key(key) => Some(slot_of(key)),
            At::Slot(slot) => Some(slot),
            At::Any => None,
        };
        self.run(Request::Command { name, args: &args }, slot).await
    }

    /// Runs a plain command on every master at the same time, once each, and tells where each answer is from.
    pub async fn on_each_master(
        &self,
        name: &'static str,
        args: Vec<Bytes>,
    ) -> Vec<(String, Result<Reply, StoreError>)> {
        let args: Arc<[Bytes]> = args.into();
        let mut running = JoinSet::new();
        for (at, node) in self.inner.topology.map().nodes.iter().cloned().enumerate() {
            let (store, args) = (self.clone(), Arc::clone(&args));
            running.spawn(async move {
                let request = Request::Command { name, args: &args };
                let left = store.inner.topology.dialer.call_timeout;
                let told = match store.send(&node, request, left, false).await {
                    Ok(reply) => Ok(reply),
                    Err(fault) => Err(store.error(name, fault)),
                };
                (at, node.addr.to_string(), told)
            });
        }
        let mut answers = Vec::new();
        while let Some(done) = running.join_next().await {
            answers.extend(done.ok());
        }
        answers.sort_by_key(|(at, _, _)| *at);
        answers.into_iter().map(|(_, addr, told)| (addr, told)).collect()
    }

    /// Where the master is that owns a slot, as far as is known.
    pub fn node_of(&self, slot: u16) -> Option<String> {
        self.inner.topology.owner(slot).map(|node| node.addr.to_string())
    }

    /// Listens on a sharded channel. It never fails: while the channel cannot be heard, nothing
    /// comes, and the caller's own poll backs it up.
    pub fn subscribe(&self, channel: Bytes) -> Subscription {
        self.inner.hub.subscribe(channel, false)
    }

    /// The same, where somebody wants to know whether its messages arrive: see [`Subscription::watch`].
    pub fn subscribe_proved(&self, channel: Bytes) -> Subscription {
        self.inner.hub.subscribe(channel, true)
    }

    /// Sends a small message to whoever listens on a sharded channel.
    pub async fn publish(&self, channel: Bytes, payload: Bytes) -> Result<(), StoreError> {
        let slot = slot_of(&channel);
        let args = [channel, payload];
        self.run(Request::Command { name: "SPUBLISH", args: &args }, Some(slot)).await.map(|_| ())
    }

    async fn send(
        &self,
        node: &Arc<Node>,
        request: Request<'_>,
        left: Duration,
        asking: bool,
    ) -> Result<Reply, Fault> {
        if request.level() != Durability::Memory {
            // Behind a pointer, so that the common calls are not made larger by it.
            return Box::pin(self.send_durable(node, request, left, asking)).await;
        }
        let start = mono();
        // In a cluster the slot may get another owner while its old one is away.
        let wait = if node.host().is_some() { left.min(WAIT_FOR_NODE) } else { left };
        let client = node.client(wait).await.map_err(|detail| Fault::Unsent { detail })?;
        let left = left.saturating_sub(mono().saturating_duration_since(start)).max(Duration::from_millis(1));
        self.send_by(node, &client, request, left, asking).await
    }

    /// Sends by this client, and notes how the node fares.
    async fn send_by(
        &self,
        node: &Arc<Node>,
        client: &Client,
        request: Request<'_>,
        left: Duration,
        asking: bool,
    ) -> Result<Reply, Fault> {
        let topology = &self.inner.topology;
        let sent = mono();
        let mut answer = script_call::send(client, request, left, asking).await;
        if matches!(answer, Err(Fault::Late)) && !client.is_connected() {
            // It waited for a connection that never came. It may also have been lost with the last one.
            answer = Err(Fault::Broken { detail: node.trouble() });
        }
        match &answer {
            Err(Fault::Late) => {
                node.was_late(topology, client);
                topology.want_refresh();
            }
            Err(Fault::Broken { .. } | Fault::Unsent { .. }) => topology.want_refresh(),
            Ok(reply) => {
                if let Some(stamp_us) = reply.stamp_us().filter(|_| matches!(request, Request::Script { .. }))
                {
                    node.clock.sample(sent, stamp_us);
                }
            }
            Err(_) => {}
        }
        answer
    }

    async fn run(&self, mut request: Request<'_>, slot: Option<u16>) -> Result<Reply, StoreError> {
        let topology = &self.inner.topology;
        let name = request.name();
        let deadline = mono() + topology.dialer.call_timeout;
        let slot = slot.unwrap_or_else(|| {
            let map = topology.map();
            // Any master: the owner of a slot drawn at random, so that all have their turn.
            if map.nodes.len() > 1 { fastrand::u16(0..SLOTS) } else { 0 }
        });
        let (mut redirects, mut loads, mut tries) = (0, 0, 0);
        let mut last = Fault::Late;
        let mut asked: Option<Arc<Node>> = None;
        loop {
            let left = deadline.saturating_duration_since(mono());
            let owner = topology.owner(slot);
            let asking = asked.is_some();
            let fault = match asked.take().or(owner) {
                _ if topology.closed.is_cancelled() => return Err(StoreError::Closed),
                _ if left.is_zero() => return Err(self.error(name, last)),
                Some(node) => match self.send(&node, request, left, asking).await {
                    Ok(reply) => return Ok(reply),
                    Err(Fault::NoScript) if loads < LOADS_MAX => {
                        loads += 1;
                        match self.load(&node, request, deadline).await {
                            Ok(()) => {
                                asked = asking.then_some(node);
                                continue;
                            }
                            Err(fault) => fault,
                        }
                    }
                    Err(Fault::NoScript) if request.as_whole() => {
                        asked = asking.then_some(node);
                        continue;
                    }
                    Err(Fault::Moved { slot, host }) if redirects < REDIRECTS_MAX => {
                        redirects += 1;
                        topology.moved(slot, named(host, &node));
                        continue;
                    }
                    Err(Fault::Ask { host }) if redirects < REDIRECTS_MAX => {
                        redirects += 1;
                        asked = Some(topology.node_at(named(host, &node)));
                        continue;
                    }
                    Err(fault) => fault,
                },
                None => {
                    topology.want_refresh();
                    let detail = format!("CLUSTERDOWN no master is known for slot {slot}");
                    Fault::Refused { cause: Cause::ClusterDown, detail }
                }
            };
            let again = match &fault {
                Fault::Refused { cause, .. } => cause.passes_soon() && tries < CALL_RETRIES_MAX,
                // Nothing was sent, so this costs the server nothing: it goes on until the deadline.
                Fault::Unsent { .. } => true,
                _ => false,
            };
            if !again || !pause(tries, deadline).await {
                return Err(self.error(name, fault));
            }
            tries += 1;
            if !matches!(fault, Fault::Refused { cause: Cause::TryAgain, .. }) {
                topology.want_refresh();
            }
            last = fault;
        }
    }

    async fn load(&self, node: &Node, request: Request<'_>, deadline: Instant) -> Result<(), Fault> {
        let Request::Script { script, .. } = request else { return Err(Fault::NoScript) };
        let left = || deadline.saturating_duration_since(mono());
        let client = node.client(left()).await.map_err(|detail| Fault::Unsent { detail })?;
        script_call::load(&client, script, left()).await
    }

    fn error(&self, name: &'static str, fault: Fault) -> StoreError {
        let topology = &self.inner.topology;
        if topology.closed.is_cancelled() && matches!(fault, Fault::Unsent { .. }) {
            return StoreError::Closed;
        }
        match fault {
            Fault::Unsent { detail } => topology.unreachable(detail, false),
            Fault::Broken { detail } => topology.unreachable(detail, true),
            Fault::Late => {
                let timeout_ms = u64::try_from(topology.dialer.call_timeout.as_millis()).unwrap_or(u64::MAX);
                StoreError::Timeout { script: name, timeout_ms }
            }
            Fault::Refused { cause, detail } => StoreError::Refused { script: name, cause, detail },
            Fault::Full => StoreError::Overloaded { url: self.url() },
            Fault::NoScript => {
                StoreError::Script { name, detail: "NOSCRIPT right after it was loaded".into() }
            }
            Fault::Moved { .. } | Fault::Ask { .. } => StoreError::Refused {
                script: name,
                cause: Cause::TryAgain,
                detail: "redirected from node to node".into(),
            },
            Fault::Fatal(error) => error,
        }
    }
}

/// A redirect may leave the host open: it is then the one that sent it.
fn named(host: Host, sender: &Node) -> Host {
    match sender.host() {
        Some(sender) if host.name.is_empty() => Host::new(sender.name.clone(), host.port),
        _ => host,
    }
}

/// Waits before the next try; false when the deadline leaves no time for one.
async fn pause(tries: u32, deadline: Instant) -> bool {
    let longest = RETRY_MIN * 2_u32.saturating_pow(tries.min(CALL_RETRIES_MAX));
    let wait = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
    if mono() + wait >= deadline {
        return false;
    }
    sleep(wait).await;
    true
}
