//! Several private servers that belong together: a cluster, or a master with sentinels.

use std::io;
use std::time::Duration;

use super::redis::{DevError, PrivateServer, ServerBinary, ServerOptions, blocking, io_error};
use crate::clock::mono;

/// How long servers may take to find each other.
const MEET_LIMIT: Duration = Duration::from_secs(30);
/// Time between two looks meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Slots of a cluster.
const SLOTS: usize = crate::model::bucket::SLOTS as usize;
/// The name by which the sentinels know the master.
pub const SENTINEL_SERVICE: &str = "minutehand";

/// Asks again and again until the answer is yes.
fn wait_until(what: &str, mut yes: impl FnMut() -> io::Result<bool>) -> Result<(), DevError> {
    let deadline = mono() + MEET_LIMIT;
    loop {
        let last = match yes() {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) => Some(error),
        };
        if mono() >= deadline {
            let source = last.unwrap_or_else(|| io::ErrorKind::TimedOut.into());
            return Err(DevError::Io { what: format!("wait until {what}"), source });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn port(server: &PrivateServer) -> String {
    server.port().unwrap_or(0).to_string()
}

/// A running private cluster.
#[derive(Debug)]
pub struct PrivateCluster {
    /// The masters as they were at the start, in the order of their slots.
    pub masters: Vec<PrivateServer>,
    /// The replicas, those of the first master first.
    pub replicas: Vec<PrivateServer>,
}

impl PrivateCluster {
    /// Starts a cluster with its slots divided evenly, and waits until every node knows all of it.
    pub async fn start(masters: usize, replicas_each: usize) -> Result<Self, DevError> {
        blocking(move || Self::start_blocking(masters, replicas_each)).await
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking(masters: usize, replicas_each: usize) -> Result<Self, DevError> {
        let binary = ServerBinary::find()?;
        let options = ServerOptions { cluster: true, binary: Some(binary), ..ServerOptions::default() };
        let launch = |count: usize| -> Result<Vec<_>, DevError> {
            (0..count).map(|_| PrivateServer::start_blocking(options.clone())).collect()
        };
        let cluster = Self { masters: launch(masters)?, replicas: launch(masters * replicas_each)? };
        let all = || cluster.masters.iter().chain(&cluster.replicas);
        for (at, master) in cluster.masters.iter().enumerate() {
            let (low, high) = (at * SLOTS / masters, (at + 1) * SLOTS / masters - 1);
            master
                .run(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])
                .and_then(|_| master.run(&["CLUSTER", "ADDSLOTSRANGE", &low.to_string(), &high.to_string()]))
                .map_err(io_error("give slots to a master"))?;
        }
        if let Some(first) = cluster.masters.first() {
            for other in all().skip(1) {
                first
                    .run(&["CLUSTER", "MEET", "127.0.0.1", &port(other)])
                    .map_err(io_error("let two nodes meet"))?;
            }
        }
        let count = masters * (1 + replicas_each);
        let known = format!("cluster_known_nodes:{count}");
        for node in all() {
            wait_until("all nodes know each other", || {
                Ok(node.run(&["CLUSTER", "INFO"])?.text().lines().any(|line| line == known))
            })?;
        }
        for (at, replica) in cluster.replicas.iter().enumerate() {
            let id = cluster.masters[at / replicas_each].run(&["CLUSTER", "MYID"]);
            let id = id.map_err(io_error("ask a master for its id"))?.text().to_owned();
            wait_until("a replica has its master", || {
                replica.run(&["CLUSTER", "REPLICATE", &id]).map(|_| true)
            })?;
            wait_until("a replica has its data", || {
                Ok(replica.run(&["INFO", "replication"])?.text().contains("master_link_status:up"))
            })?;
        }
        for node in all() {
            wait_until("the cluster is complete", || {
                let info = node.run(&["CLUSTER", "INFO"])?;
                let slots = node.run(&["CLUSTER", "SLOTS"])?;
                let complete = match &slots {
                    super::wire::Answer::List(ranges) => {
                        ranges.len() == masters
                            && ranges.iter().all(|range| match range {
                                super::wire::Answer::List(range) => range.len() == 3 + replicas_each,
                                _ => false,
                            })
                    }
                    _ => false,
                };
                Ok(complete && info.text().lines().any(|line| line == "cluster_state:ok"))
            })?;
        }
        Ok(cluster)
    }

    /// The address for a store.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.masters.iter().map(|node| format!("127.0.0.1:{}", port(node))).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The master that owns a slot by the division made at the start.
    pub fn first_owner(&self, slot: u16) -> &PrivateServer {
        let at = (usize::from(slot) * self.masters.len()) / SLOTS;
        // The division rounds down, so the neighbour may be the owner.
        let next = (at + 1).min(self.masters.len() - 1);
        if usize::from(slot) >= next * SLOTS / self.masters.len() {
            &self.masters[next]
        } else {
            &self.masters[at]
        }
    }
}

/// A running master with a replica and three sentinels.
#[derive(Debug)]
pub struct PrivateSentinel {
    /// The master at the start.
    pub master: PrivateServer,
    /// The replica at the start.
    pub replica: PrivateServer,
    /// The sentinels.
    pub sentinels: Vec<PrivateServer>,
}

impl PrivateSentinel {
    /// Starts all five, and waits until every sentinel knows the others and the replica.
    pub async fn start() -> Result<Self, DevError> {
        blocking(Self::start_blocking).await
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking() -> Result<Self, DevError> {
        let binary = ServerBinary::find()?;
        let options = ServerOptions { tcp: true, binary: Some(binary), ..ServerOptions::default() };
        let no_wait = "repl-diskless-sync-delay 0".to_owned();
        let plain = ServerOptions { lines: vec![no_wait], ..options.clone() };
        let master = PrivateServer::start_blocking(plain.clone())?;
        let replica = PrivateServer::start_blocking(plain)?;
        replica.run(&["REPLICAOF", "127.0.0.1", &port(&master)]).map_err(io_error("start a replica"))?;
        wait_until("the replica has its data", || {
            Ok(replica.run(&["INFO", "replication"])?.text().contains("master_link_status:up"))
        })?;
        let lines = vec![
            format!("sentinel monitor {SENTINEL_SERVICE} 127.0.0.1 {} 2", port(&master)),
            format!("sentinel down-after-milliseconds {SENTINEL_SERVICE} 1000"),
            format!("sentinel failover-timeout {SENTINEL_SERVICE} 3000"),
        ];
        let options = ServerOptions { sentinel: true, lines, ..options };
        let sentinels =
            (0..3).map(|_| PrivateServer::start_blocking(options.clone())).collect::<Result<Vec<_>, _>>()?;
        for sentinel in &sentinels {
            wait_until("the sentinels know each other and the replica", || {
                let info = sentinel.run(&["INFO", "sentinel"])?;
                Ok(info.text().contains("status=ok") && info.text().contains("slaves=1,sentinels=3"))
            })?;
        }
        Ok(Self { master, replica, sentinels })
    }

    /// The address for a store.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|node| format!("127.0.0.1:{}", port(node))).collect();
        format!("redis-sentinel://{}?sentinelServiceName={SENTINEL_SERVICE}", hosts.join(","))
    }
}
