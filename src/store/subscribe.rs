//! Waking sleepers by sharded publish and subscribe.
//!
//! A message is only a hint: whoever sleeps also polls. So nothing here ever fails towards the
//! caller; what cannot be heard now is subscribed again until it can. After each subscription one
//! wake-up with an empty payload is given, because something may have been said in the gap.
//!
//! Subscriptions have connections of their own, one to each master that owns a wanted channel. Twice a second each of
//! them is asked whether the server still counts a subscriber to each channel: one call for all of them. So a sleeper
//! may know that its wake-ups arrive ([`Watch::proved`]), and need not poll; where the answer stays away, or the server
//! has forgotten a channel, all who may have missed something are woken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::prelude::{Client, ServerConfig};
use fred::types::{ClusterHash, CustomCommand, Message, Value};
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connect::Place;
use super::script_call::{Fault, of_error};
use super::slot_of;
use super::topology::{AbortOnDrop, NodeAddr, Topology};
use crate::clock::mono;
use crate::limits::{RECONNECT_MAX_MS, WAKES_PROVED_MS};

/// Wake-ups kept for one slow receiver. More of them say the same, so the oldest are dropped.
const WAKES_KEPT: usize = 64;
/// How long one subscription may take before its connection is given up.
const SUBSCRIBE_LIMIT: Duration = Duration::from_millis(1_000);
/// First wait before a refused subscription is tried again; doubled up to `RENEW`.
const RETRY: Duration = Duration::from_millis(200);
/// How often everything is subscribed once more, without a word to the receivers, on a server that does not tell
/// what it is subscribed to: it finds dead connections, and channels that the server dropped while their slot left
/// and came back.
const RENEW: Duration = Duration::from_secs(10);
/// How often a connection is asked what it is subscribed to, and how long it may take to answer.
const PROVE: Duration = Duration::from_millis(WAKES_PROVED_MS);

/// A wake-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// What was published; empty when something may have been missed.
    pub payload: Bytes,
}

/// One listener on one channel; ends when dropped.
pub struct Subscription {
    hub: Arc<Hub>,
    channel: Bytes,
    proof: Arc<AtomicU64>,
    wakes: broadcast::Receiver<Wake>,
}

/// Knows whether the wake-ups of one channel arrive.
#[derive(Clone)]
pub struct Watch {
    hub: Arc<Hub>,
    proof: Arc<AtomicU64>,
}

impl Watch {
    /// Whether the server said lately, on the connection that hears them, that it counts a subscriber here.
    pub fn proved(&self) -> bool {
        let at = self.proof.load(Ordering::Acquire);
        at > 0 && self.hub.age_ms().saturating_sub(at) <= 2 * WAKES_PROVED_MS
    }
}

impl Subscription {
    /// The next wake-up; `None` once the store is closed. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Wake> {
        let closed = self.hub.topology.closed.clone();
        loop {
            match closed.run_until_cancelled(self.wakes.recv()).await? {
                Ok(wake) => return Some(wake),
                // What was dropped said no more than what is kept.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next wake-up, if it is there already.
    pub fn try_recv(&mut self) -> Option<Wake> {
        loop {
            match self.wakes.try_recv() {
                Ok(wake) => return Some(wake),
                // What was dropped said no more than what is kept.
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => return None,
            }
        }
    }

    /// Whether its wake-ups arrive, for whoever sleeps.
    pub fn watch(&self) -> Watch {
        Watch { hub: Arc::clone(&self.hub), proof: Arc::clone(&self.proof) }
    }

    /// The channel.
    pub fn channel(&self) -> &Bytes {
        &self.channel
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subscription({})", String::from_utf8_lossy(&self.channel))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.leave(&self.channel);
    }
}

struct Listeners {
    wakes: broadcast::Sender<Wake>,
    count: usize,
    /// When it was last proved that wake-ups arrive, in ms of the hub's age; 0: not since the last trouble.
    proof: Arc<AtomicU64>,
}

/// All channels of a store.
pub(super) struct Hub {
    topology: Arc<Topology>,
    channels: Mutex<HashMap<Bytes, Listeners>>,
    changes: watch::Sender<u64>,
    born: std::time::Instant,
    /// Whether anybody asks for proofs.
    proving: AtomicBool,
}

impl Hub {
    /// Starts the task that keeps the subscriptions where the slots are.
    pub fn start(topology: Arc<Topology>) -> Arc<Self> {
        let hub = Arc::new(Self {
            topology,
            channels: Mutex::default(),
            changes: watch::channel(0).0,
            born: mono(),
            proving: AtomicBool::new(false),
        });
        tokio::spawn(place_channels(Arc::clone(&hub)));
        hub
    }

    /// `proved`: somebody will ask whether its wake-ups arrive.
    pub fn subscribe(self: &Arc<Self>, channel: Bytes, proved: bool) -> Subscription {
        if proved {
            self.proving.store(true, Ordering::Release);
        }
        let (wakes, proof) = {
            let mut channels = self.channels.lock();
            let new =
                || Listeners { wakes: broadcast::channel(WAKES_KEPT).0, count: 0, proof: Arc::default() };
            let listeners = channels.entry(channel.clone()).or_insert_with(new);
            listeners.count += 1;
            (listeners.wakes.subscribe(), Arc::clone(&listeners.proof))
        };
        self.changes.send_modify(|count| *count += 1);
        Subscription { hub: Arc::clone(self), channel, proof, wakes }
    }

    /// Never 0.
    fn age_ms(&self) -> u64 {
        1 + u64::try_from(mono().saturating_duration_since(self.born).as_millis()).unwrap_or(0)
    }

    /// Notes that wake-ups of a channel arrive as of `at`, or that they may not: 0.
    fn prove(&self, channel: &[u8], at: u64) {
        if let Some(listeners) = self.channels.lock().get(channel) {
            listeners.proof.store(at, Ordering::Release);
        }
    }

    /// Something may have been missed on all of these.
    fn doubt<'a>(&self, channels: impl IntoIterator<Item = &'a Bytes>) {
        for channel in channels {
            self.prove(channel, 0);
            self.wake(channel, Bytes::new());
        }
    }

    fn leave(&self, channel: &Bytes) {
        {
            let mut channels = self.channels.lock();
            let Some(listeners) = channels.get_mut(channel) else { return };
            listeners.count -= 1;
            if listeners.count > 0 {
                return;
            }
            channels.remove(channel);
        }
        self.changes.send_modify(|count| *count += 1);
    }

    fn wake(&self, channel: &[u8], payload: Bytes) {
        if let Some(listeners) = self.channels.lock().get(channel) {
            // An error says that nobody listens any more.
            let _ = listeners.wakes.send(Wake { payload });
        }
    }

    /// The wanted channels by the node that owns them.
    fn by_owner(&self) -> HashMap<NodeAddr, (ServerConfig, HashSet<Bytes>)> {
        let map = self.topology.map();
        let mut owners: HashMap<NodeAddr, (ServerConfig, HashSet<Bytes>)> = HashMap::new();
        for channel in self.channels.lock().keys() {
            if let Some(node) = map.node(slot_of(channel)) {
                let owner =
                    owners.entry(node.addr.clone()).or_insert_with(|| (node.server(), HashSet::new()));
                owner.1.insert(channel.clone());
            }
        }
        owners
    }
}

/// A listener on one node.
struct Ear {
    want: watch::Sender<HashSet<Bytes>>,
    _task: AbortOnDrop,
}

async fn place_channels(hub: Arc<Hub>) {
    let closed = hub.topology.closed.clone();
    let named = matches!(hub.topology.dialer.url.place, Place::Sentinel { .. });
    let work = async {
        let (mut slots, mut channels) = (hub.topology.changes(), hub.changes.subscribe());
        let mut ears: HashMap<NodeAddr, Ear> = HashMap::new();
        loop {
            let owners = hub.by_owner();
            ears.retain(|addr, _| owners.contains_key(addr));
            for (addr, (server, want)) in owners {
                if let Some(ear) = ears.get(&addr) {
                    ear.want.send_if_modified(|now| {
                        let changed = *now != want;
                        *now = want;
                        changed
                    });
                } else {
                    let (tx, rx) = watch::channel(want);
                    let task = tokio::spawn(listen(Arc::clone(&hub), server, rx));
                    ears.insert(addr, Ear { want: tx, _task: AbortOnDrop(task.abort_handle()) });
                }
            }
            tokio::select! {
                _ = slots.changed() => if named {
                    // The name now stands for another server: begin anew there.
                    ears.clear();
                },
                _ = channels.changed() => {}
            }
        }
    };
    let _: Option<()> = closed.run_until_cancelled(work).await;
}

/// Keeps one connection subscribed to what is wanted of one node.
async fn listen(hub: Arc<Hub>, server: ServerConfig, mut want: watch::Receiver<HashSet<Bytes>>) {
    loop {
        let client = hub.topology.dialer.client(server.clone());
        let (mut ups, messages) = (client.reconnect_rx(), client.message_rx());
        let pump = tokio::spawn(pump(Arc::clone(&hub), messages));
        let mut router = client.connect();
        let _abort = (AbortOnDrop(router.abort_handle()), AbortOnDrop(pump.abort_handle()));
        let mut ear = Heard { hub: &hub, client: &client, heard: HashSet::new(), quiet: HashSet::new() };
        let mut next = Instant::from(mono()) + RENEW;
        // None: this server does not tell.
        let mut prove = Some(Instant::from(mono()) + PROVE);
        let mut up = false;
        let mut retry = RETRY;
        loop {
            tokio::select! {
                _ = &mut router => break,
                got = ups.recv() => if got.is_ok() {
                    up = true;
                    retry = RETRY;
                    hub.doubt(&ear.heard);
                    ear.heard.clear();
                },
                got = want.changed() => if got.is_err() { return },
                () = sleep_until(next) => ear.renew(),
                () = sleep_until(prove.unwrap_or(next)), if up && prove.is_some() && hub.proving.load(Ordering::Acquire) => match ear.prove().await {
                    Proof::Told => {
                        prove = Some(Instant::from(mono()) + PROVE);
                        next = next.max(Instant::from(mono()) + 2 * PROVE);
                        if ear.heard.len() == want.borrow().len() && !want.has_changed().unwrap_or(true) {
                            continue;
                        }
                    }
                    Proof::Untold => prove = None,
                    Proof::Dead => break,
                },
            }
            if up {
                let wanted = want.borrow_and_update().clone();
                match ear.settle(&wanted).await {
                    Settled::Done => {
                        next = Instant::from(mono()) + RENEW;
                        retry = RETRY;
                    }
                    Settled::Refused => {
                        next = Instant::from(mono()) + retry;
                        retry = (retry * 2).min(RENEW);
                    }
                    Settled::Dead => break,
                }
            } else {
                next = Instant::from(mono()) + RENEW;
            }
        }
        hub.doubt(&ear.heard);
        drop(_abort);
        sleep(Duration::from_millis(fastrand::u64(RECONNECT_MAX_MS / 4..RECONNECT_MAX_MS))).await;
    }
}

enum Proof {
    /// The server answered; what it has forgotten is no longer counted as heard.
    Told,
    /// It does not answer such questions.
    Untold,
    Dead,
}

enum Settled {
    Done,
    Refused,
    Dead,
}

struct Heard<'a> {
    hub: &'a Hub,
    client: &'a Client,
    /// Subscribed on this connection.
    heard: HashSet<Bytes>,
    /// Subscribed before a renewal: their receivers need not be told.
    quiet: HashSet<Bytes>,
}

impl Heard<'_> {
    fn renew(&mut self) {
        self.quiet = std::mem::take(&mut self.heard);
    }

    /// Asks the server which of the channels it knows subscribers of, over the connection that hears them.
    async fn prove(&mut self) -> Proof {
        let asked = self.hub.age_ms();
        let heard: Vec<Bytes> = self.heard.iter().cloned().collect();
        let ask = CustomCommand::new_static("PUBSUB", ClusterHash::FirstKey, false);
        let words = std::iter::once(Bytes::from_static(b"SHARDNUMSUB")).chain(heard.iter().cloned());
        let asking = self.client.custom::<Value, Value>(ask, words.map(Value::Bytes).collect());
        let counts = match timeout(PROVE, asking).await {
            Ok(Ok(Value::Array(counts))) if counts.len() == 2 * heard.len() => counts,
            Ok(Ok(_)) => return Proof::Untold,
            Ok(Err(error)) => match of_error("PUBSUB", &error) {
                Fault::Fatal(_) => return Proof::Untold,
                _ => return Proof::Dead,
            },
            Err(_) => return Proof::Dead,
        };
        for (channel, pair) in heard.iter().zip(counts.chunks(2)) {
            if pair[1].as_i64().is_some_and(|count| count > 0) {
                self.hub.prove(channel, asked);
            } else {
                self.heard.remove(channel);
                self.hub.doubt([channel]);
            }
        }
        Proof::Told
    }

    /// Subscribes and unsubscribes one by one: the answers of several would come out of step.
    async fn settle(&mut self, wanted: &HashSet<Bytes>) -> Settled {
        let mut settled = Settled::Done;
        for channel in wanted.difference(&self.heard.clone()) {
            let name = String::from_utf8_lossy(channel).into_owned();
            match timeout(SUBSCRIBE_LIMIT, self.client.ssubscribe(name)).await {
                Ok(Ok(())) => {
                    self.heard.insert(channel.clone());
                    if !self.quiet.remove(channel) {
                        self.hub.wake(channel, Bytes::new());
                    }
                }
                Ok(Err(error)) => {
                    if matches!(of_error("SSUBSCRIBE", &error), Fault::Fatal(_)) {
                        // A missing right or command: sleepers then wake by their poll alone.
                        tracing::warn!(%error, "could not subscribe to wake-ups");
                    } else {
                        self.hub.topology.want_refresh();
                    }
                    settled = Settled::Refused;
                }
                Err(_) => return Settled::Dead,
            }
        }
        self.quiet.clear();
        for channel in self.heard.clone().difference(wanted) {
            let name = String::from_utf8_lossy(channel).into_owned();
            if timeout(SUBSCRIBE_LIMIT, self.client.sunsubscribe(name)).await.is_err() {
                return Settled::Dead;
            }
            self.heard.remove(channel);
        }
        settled
    }
}

async fn pump(hub: Arc<Hub>, mut messages: broadcast::Receiver<Message>) {
    loop {
        match messages.recv().await {
            Ok(Message { channel, value, .. }) => {
                let payload = match value {
                    Value::Bytes(bytes) => bytes,
                    Value::String(text) => text.into_inner(),
                    _ => Bytes::new(),
                };
                hub.wake(channel.as_bytes(), payload);
            }
            // Whose messages were dropped is not known.
            Err(broadcast::error::RecvError::Lagged(_)) => {
                let all: Vec<Bytes> = hub.channels.lock().keys().cloned().collect();
                hub.doubt(&all);
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
