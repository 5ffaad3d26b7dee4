//! A master with one replica, for tests that lose the one or the other.

use minutehand::client::{Client, NewTask, SubmitError, Submitted};
use minutehand::dev::redis::{Fsync, PrivateServer, ServerBinary, ServerOptions};
use minutehand::model::{Durability, Namespace, QueueName};
use minutehand::store::{Birth, ConnectSettings, Space, Store};
use minutehand::testing::fault::{Behind, FaultProxy};
use std::net::SocketAddr;
use std::time::Duration;

/// Nothing here may take this long.
pub const NEVER: Duration = Duration::from_secs(30);

pub struct Pair {
    pub master: PrivateServer,
    pub replica: PrivateServer,
}

/// What master and replica have in common.
fn options() -> ServerOptions {
    ServerOptions {
        tcp: true,
        // A replica that comes back finds what it has missed.
        lines: vec!["repl-diskless-sync-delay 0".into(), "repl-backlog-size 16mb".into()],
        ..ServerOptions::default()
    }
}

/// Starts a replica of `master`, which it reaches by this port, and waits until it follows.
pub async fn replica_of(master: &PrivateServer, port: u16, options: ServerOptions) -> PrivateServer {
    let follow = format!("replicaof 127.0.0.1 {port}");
    let lines = options.lines.iter().cloned().chain([follow]).collect();
    let replica = PrivateServer::start(ServerOptions { lines, ..options }).await.expect("a replica");
    let up = async {
        loop {
            // The master says so while the replica still puts the first snapshot to its disk, which may take seconds.
            let info = |server: &PrivateServer| server.run(&["INFO", "replication"]).expect("info");
            if info(master).text().contains("state=online")
                && info(&replica).text().contains("master_link_status:up")
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(NEVER, up).await.expect("the replica follows");
    replica
}

impl Pair {
    pub async fn start(binary: Option<ServerBinary>, append_only: Option<Fsync>) -> Self {
        let options = ServerOptions { binary, append_only, ..options() };
        let master = PrivateServer::start(options.clone()).await.expect("a master");
        let replica = replica_of(&master, master.port().expect("a port"), options).await;
        Self { master, replica }
    }

    /// A pair whose replica hears of its master by a link that can be paused.
    pub async fn linked() -> (Self, FaultProxy) {
        let master = PrivateServer::start(options()).await.expect("a master");
        let at = SocketAddr::from(([127, 0, 0, 1], master.port().expect("a port")));
        let link = FaultProxy::start(Behind::Tcp(at)).await.expect("a link");
        let replica = replica_of(&master, link.addr().port(), options()).await;
        (Self { master, replica }, link)
    }

    /// A replica of what was the replica and is a master now.
    pub async fn heir(&self) -> PrivateServer {
        replica_of(&self.replica, self.replica.port().expect("a port"), options()).await
    }

    /// Makes the replica a master of its own; from then on it hears nothing of the old one.
    pub fn promote(&self) {
        self.replica.run(&["REPLICAOF", "NO", "ONE"]).expect("a promotion");
    }
}

/// A space on this server, one bucket if it is new.
pub async fn space_on(server: &PrivateServer) -> Space {
    space_at(server.url()).await
}

/// The same at an address.
pub async fn space_at(url: String) -> Space {
    let settings = ConnectSettings { url, ..ConnectSettings::default() };
    let store = Store::connect(settings).await.expect("a store");
    let birth = Birth { key_buckets: 1, buckets: 1, holders: 1 };
    Space::open_as(store, Namespace::new("pair").expect("a namespace"), birth).await.expect("a space")
}

pub fn task(durability: Durability) -> NewTask {
    NewTask { durability, ..NewTask::to(QueueName::new("push").expect("a queue")) }
}

/// Submits one task of this level.
pub async fn submit(client: &Client, task: NewTask) -> Result<Submitted, SubmitError> {
    client.submit_batch(vec![task]).await.expect("redis is there").remove(0)
}
