//! Several private servers that belong together: a cluster, or a master with sentinels.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use super::redis::{DevError, PrivateServer, ServerBinary, ServerOptions, blocking, io_error};
use super::wire::Answer;
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

/// What the servers of a fleet are to be like, beside the usual.
#[derive(Debug, Clone, Default)]
pub struct FleetOptions {
    /// What each server is to be like.
    pub each: ServerOptions,
    /// Variables of the environment of those that begin as replicas.
    pub replica_env: Vec<(String, OsString)>,
}

impl FleetOptions {
    fn plain(&self) -> Result<ServerOptions, DevError> {
        let mut options = self.each.clone();
        options.binary = Some(options.binary.map_or_else(ServerBinary::find, Ok)?);
        options.tcp = true;
        options.lines.push("repl-diskless-sync-delay 0".into());
        Ok(options)
    }

    fn replica(&self, plain: &ServerOptions) -> ServerOptions {
        let mut options = plain.clone();
        options.env.extend(self.replica_env.iter().cloned());
        options
    }
}

/// A range of slots with the ports of its master and of its replicas.
struct Range {
    low: u16,
    high: u16,
    ports: Vec<u16>,
}

fn ranges(answer: &Answer) -> Vec<Range> {
    let Answer::List(ranges) = answer else { return Vec::new() };
    let number = |answer: &Answer| match answer {
        Answer::Int(n) => u16::try_from(*n).ok(),
        Answer::Nil | Answer::Text(_) | Answer::List(_) => None,
    };
    let port = |answer: &Answer| match answer {
        Answer::List(node) => node.get(1).and_then(number),
        Answer::Nil | Answer::Text(_) | Answer::Int(_) => None,
    };
    let range = |range: &Answer| match range {
        Answer::List(range) => {
            let (low, high) = (range.first().and_then(number)?, range.get(1).and_then(number)?);
            Some(Range { low, high, ports: range.iter().skip(2).filter_map(port).collect() })
        }
        Answer::Nil | Answer::Text(_) | Answer::Int(_) => None,
    };
    ranges.iter().filter_map(range).collect()
}

fn field(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// A running private cluster.
#[derive(Debug)]
pub struct PrivateCluster {
    /// The masters as they were at the start, in the order of their slots; those added later follow.
    pub masters: Vec<PrivateServer>,
    /// The replicas, those of the first master first; those of added masters follow.
    pub replicas: Vec<PrivateServer>,
    options: FleetOptions,
}

impl PrivateCluster {
    /// Starts a cluster with its slots divided evenly, and waits until every node knows all of it.
    pub async fn start(masters: usize, replicas_each: usize) -> Result<Self, DevError> {
        Self::start_as(masters, replicas_each, FleetOptions::default()).await
    }

    /// The same with servers of a kind.
    pub async fn start_as(
        masters: usize,
        replicas_each: usize,
        options: FleetOptions,
    ) -> Result<Self, DevError> {
        blocking(move || Self::start_blocking(masters, replicas_each, options)).await
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking(
        masters: usize,
        replicas_each: usize,
        options: FleetOptions,
    ) -> Result<Self, DevError> {
        let mut plain = options.plain()?;
        plain.cluster = true;
        let as_replica = options.replica(&plain);
        let launch = |count: usize, options: &ServerOptions| -> Result<Vec<_>, DevError> {
            (0..count).map(|_| PrivateServer::start_blocking(options.clone())).collect()
        };
        let cluster = Self {
            masters: launch(masters, &plain)?,
            replicas: launch(masters * replicas_each, &as_replica)?,
            options,
        };
        for (at, master) in cluster.masters.iter().enumerate() {
            let (low, high) = (at * SLOTS / masters, (at + 1) * SLOTS / masters - 1);
            master
                .run(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])
                .and_then(|_| master.run(&["CLUSTER", "ADDSLOTSRANGE", &low.to_string(), &high.to_string()]))
                .map_err(io_error("give slots to a master"))?;
        }
        cluster.meet()?;
        for (at, replica) in cluster.replicas.iter().enumerate() {
            replicate(&cluster.masters[at / replicas_each], replica)?;
        }
        for node in cluster.nodes() {
            wait_until("the cluster is complete", || {
                let info = node.run(&["CLUSTER", "INFO"])?;
                let slots = ranges(&node.run(&["CLUSTER", "SLOTS"])?);
                let complete = slots.len() == masters
                    && slots.iter().all(|range| range.ports.len() == 1 + replicas_each);
                Ok(complete && info.text().lines().any(|line| line == "cluster_state:ok"))
            })?;
        }
        Ok(cluster)
    }

    /// Lets every node know every other.
    fn meet(&self) -> Result<(), DevError> {
        if let Some(first) = self.masters.first() {
            for other in self.nodes().skip(1) {
                first
                    .run(&["CLUSTER", "MEET", "127.0.0.1", &port(other)])
                    .map_err(io_error("let two nodes meet"))?;
            }
        }
        let known = format!("cluster_known_nodes:{}", self.masters.len() + self.replicas.len());
        for node in self.nodes() {
            wait_until("all nodes know each other", || {
                Ok(node.run(&["CLUSTER", "INFO"])?.text().lines().any(|line| line == known))
            })?;
        }
        Ok(())
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &PrivateServer> {
        self.masters.iter().chain(&self.replicas)
    }

    fn at_port(&self, port: u16) -> Option<&PrivateServer> {
        self.nodes().find(|node| node.port() == Some(port))
    }

    /// Who owns what now, by the node with the newest view.
    fn view(&self) -> Vec<Range> {
        let told = self.nodes().filter(|node| node.is_awake()).filter_map(|node| {
            let info = node.run(&["CLUSTER", "INFO"]).ok()?;
            let epoch = field(info.text(), "cluster_current_epoch")?.parse::<u64>().ok()?;
            Some((epoch, ranges(&node.run(&["CLUSTER", "SLOTS"]).ok()?)))
        });
        told.max_by_key(|(epoch, _)| *epoch).map(|(_, ranges)| ranges).unwrap_or_default()
    }

    /// The master that owns a slot now.
    pub fn owner(&self, slot: u16) -> Option<&PrivateServer> {
        let view = self.view();
        let range = view.iter().find(|range| (range.low..=range.high).contains(&slot))?;
        self.at_port(*range.ports.first()?)
    }

    /// The masters of now that own slots.
    pub fn masters_now(&self) -> Vec<&PrivateServer> {
        let mut ports: Vec<u16> =
            self.view().iter().filter_map(|range| range.ports.first().copied()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.into_iter().filter_map(|port| self.at_port(port)).collect()
    }

    /// A replica of a master.
    pub fn replica_of(&self, master: &PrivateServer) -> Option<&PrivateServer> {
        let view = self.view();
        let range = view.iter().find(|range| range.ports.first().copied() == master.port())?;
        self.at_port(*range.ports.get(1)?)
    }

    /// Whether every node runs and agrees, and every master has a replica that is in step.
    pub fn is_whole(&self) -> bool {
        let masters = self.masters_now();
        !masters.is_empty()
            && self.nodes().all(|node| {
                let asked = || -> io::Result<bool> {
                    let info = node.run(&["CLUSTER", "INFO"])?;
                    let replication = node.run(&["INFO", "replication"])?;
                    let master = masters.iter().any(|master| master.port() == node.port());
                    let in_step = if master {
                        field(replication.text(), "role").as_deref() == Some("master")
                            && replication.text().contains("state=online")
                    } else {
                        replication.text().contains("master_link_status:up")
                            && replication.text().contains("master_sync_in_progress:0")
                    };
                    let slots = ranges(&node.run(&["CLUSTER", "SLOTS"])?);
                    Ok(in_step
                        && info.text().contains("cluster_state:ok")
                        && slots.iter().all(|range| range.ports.len() >= 2))
                };
                node.is_awake() && asked().unwrap_or(false)
            })
    }

    /// Moves a slot with all it holds, key by key, while whoever uses it goes on. Answers how many keys it held.
    pub fn move_slot(&self, slot: u16, to: &PrivateServer) -> Result<usize, DevError> {
        let moved = |count: &mut usize| -> io::Result<()> {
            let from = self.owner(slot).ok_or_else(|| io::Error::other("nobody owns the slot"))?;
            let id = |node: &PrivateServer| node.run(&["CLUSTER", "MYID"]).map(|id| id.text().to_owned());
            let (from_id, to_id, number) = (id(from)?, id(to)?, slot.to_string());
            if from_id == to_id {
                return Ok(());
            }
            to.run(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &from_id])?;
            from.run(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &to_id])?;
            let target = port(to);
            let held = || from.run(&["CLUSTER", "GETKEYSINSLOT", &number, "10"]);
            while let Answer::List(keys) = held()? {
                if keys.is_empty() {
                    break;
                }
                let mut words = vec!["MIGRATE", "127.0.0.1", &target, "", "0", "5000", "KEYS"];
                words.extend(keys.iter().map(Answer::text));
                from.run(&words)?;
                *count += keys.len();
            }
            for node in [to, from] {
                node.run(&["CLUSTER", "SETSLOT", &number, "NODE", &to_id])?;
            }
            for node in self.masters_now() {
                // The others hear of it by themselves as well; replicas refuse.
                let _ = node.run(&["CLUSTER", "SETSLOT", &number, "NODE", &to_id]);
            }
            Ok(())
        };
        let mut count = 0;
        // In the middle of it a node may hold the cluster for down, or be one no more; begun, it must be ended.
        wait_until(&format!("slot {slot} has moved"), || {
            moved(&mut count)?;
            Ok(true)
        })?;
        Ok(count)
    }

    /// Adds a master with a replica; it owns nothing yet.
    pub fn add_shard(&mut self) -> Result<(), DevError> {
        let mut plain = self.options.plain()?;
        plain.cluster = true;
        let as_replica = self.options.replica(&plain);
        self.masters.push(PrivateServer::start_blocking(plain)?);
        self.replicas.push(PrivateServer::start_blocking(as_replica)?);
        self.meet()?;
        match (self.masters.last(), self.replicas.last()) {
            (Some(master), Some(replica)) => replicate(master, replica),
            _ => Ok(()),
        }
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

fn replicate(master: &PrivateServer, replica: &PrivateServer) -> Result<(), DevError> {
    let id = master.run(&["CLUSTER", "MYID"]);
    let id = id.map_err(io_error("ask a master for its id"))?.text().to_owned();
    wait_until("a replica has its master", || replica.run(&["CLUSTER", "REPLICATE", &id]).map(|_| true))?;
    wait_until("a replica has its data", || {
        Ok(replica.run(&["INFO", "replication"])?.text().contains("master_link_status:up"))
    })
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
        Self::start_as(FleetOptions::default()).await
    }

    /// The same with servers of a kind.
    pub async fn start_as(options: FleetOptions) -> Result<Self, DevError> {
        blocking(move || Self::start_blocking(&options)).await
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking(options: &FleetOptions) -> Result<Self, DevError> {
        let plain = options.plain()?;
        let master = PrivateServer::start_blocking(plain.clone())?;
        let replica = PrivateServer::start_blocking(options.replica(&plain))?;
        replica.run(&["REPLICAOF", "127.0.0.1", &port(&master)]).map_err(io_error("start a replica"))?;
        wait_until("the replica has its data", || {
            Ok(replica.run(&["INFO", "replication"])?.text().contains("master_link_status:up"))
        })?;
        let lines = vec![
            format!("sentinel monitor {SENTINEL_SERVICE} 127.0.0.1 {} 2", port(&master)),
            format!("sentinel down-after-milliseconds {SENTINEL_SERVICE} 1000"),
            format!("sentinel failover-timeout {SENTINEL_SERVICE} 3000"),
        ];
        let options = ServerOptions {
            sentinel: true,
            lines,
            tcp: true,
            binary: plain.binary,
            ..ServerOptions::default()
        };
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

    /// Master and replica, in the order of the start.
    pub fn nodes(&self) -> [&PrivateServer; 2] {
        [&self.master, &self.replica]
    }

    /// The master that the sentinels name now.
    pub fn master_now(&self) -> Option<&PrivateServer> {
        let told =
            self.sentinels.first()?.run(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SENTINEL_SERVICE]).ok()?;
        let Answer::List(address) = told else { return None };
        let port = address.get(1)?.text().parse::<u16>().ok()?;
        self.nodes().into_iter().find(|node| node.port() == Some(port))
    }

    /// Whether both servers run, and the one that is not the master is in step with it.
    pub fn is_whole(&self) -> bool {
        let Some(master) = self.master_now() else { return false };
        let as_told = |node: &PrivateServer| -> io::Result<bool> {
            let info = node.run(&["INFO", "replication"])?;
            let role = field(info.text(), "role");
            Ok(if node.port() == master.port() {
                role.as_deref() == Some("master") && info.text().contains("state=online")
            } else {
                role.as_deref() == Some("slave")
                    && info.text().contains("master_link_status:up")
                    && field(info.text(), "master_port") == Some(port(master))
            })
        };
        let known = || -> io::Result<bool> {
            let info = self.sentinels[0].run(&["INFO", "sentinel"])?;
            Ok(info.text().contains("status=ok"))
        };
        self.nodes().into_iter().all(|node| node.is_awake() && as_told(node).unwrap_or(false))
            && known().unwrap_or(false)
    }

    /// The address for a store.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|node| format!("127.0.0.1:{}", port(node))).collect();
        format!("redis-sentinel://{}?sentinelServiceName={SENTINEL_SERVICE}", hosts.join(","))
    }
}
