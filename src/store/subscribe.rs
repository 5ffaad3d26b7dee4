//! Waking sleepers by sharded publish and subscribe.
//!
//! A message is only a hint: whoever sleeps also polls. So nothing here ever fails towards the
//! caller; what cannot be heard now is subscribed again until it can. After each subscription one
//! wake-up with an empty payload is given, because something may have been said in the gap.
//!
//! Subscriptions have connections of their own, one to each master that owns a wanted channel.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::prelude::{Client, ServerConfig};
use fred::types::{Message, Value};
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connect::Place;
use super::script_call::{Fault, of_error};
use super::slot_of;
use super::topology::{AbortOnDrop, NodeAddr, Topology};
use crate::clock::mono;
use crate::limits::RECONNECT_MAX_MS;

/// Wake-ups kept for one slow receiver. More of them say the same, so the oldest are dropped.
const WAKES_KEPT: usize = 64;
/// How long one subscription may take before its connection is given up.
const SUBSCRIBE_LIMIT: Duration = Duration::from_millis(1_000);
/// First wait before a refused subscription is tried again; doubled up to `RENEW`.
const RETRY: Duration = Duration::from_millis(200);
/// How often everything is subscribed once more, without a word to the receivers: it finds dead
/// connections, and channels that the server dropped while their slot left and came back.
const RENEW: Duration = Duration::from_secs(10);

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
    wakes: broadcast::Receiver<Wake>,
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
}

/// All channels of a store.
pub(super) struct Hub {
    topology: Arc<Topology>,
    channels: Mutex<HashMap<Bytes, Listeners>>,
    changes: watch::Sender<u64>,
}

impl Hub {
    /// Starts the task that keeps the subscriptions where the slots are.
    pub fn start(topology: Arc<Topology>) -> Arc<Self> {
        let hub = Arc::new(Self { topology, channels: Mutex::default(), changes: watch::channel(0).0 });
        tokio::spawn(place_channels(Arc::clone(&hub)));
        hub
    }

    pub fn subscribe(self: &Arc<Self>, channel: Bytes) -> Subscription {
        let wakes = {
            let mut channels = self.channels.lock();
            let new = || Listeners { wakes: broadcast::channel(WAKES_KEPT).0, count: 0 };
            let listeners = channels.entry(channel.clone()).or_insert_with(new);
            listeners.count += 1;
            listeners.wakes.subscribe()
        };
        self.changes.send_modify(|count| *count += 1);
        Subscription { hub: Arc::clone(self), channel, wakes }
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
        let mut up = false;
        let mut retry = RETRY;
        loop {
            tokio::select! {
                _ = &mut router => break,
                got = ups.recv() => if got.is_ok() {
                    up = true;
                    retry = RETRY;
                    ear.heard.clear();
                },
                got = want.changed() => if got.is_err() { return },
                () = sleep_until(next) => ear.renew(),
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
        drop(_abort);
        sleep(Duration::from_millis(fastrand::u64(RECONNECT_MAX_MS / 4..RECONNECT_MAX_MS))).await;
    }
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
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
