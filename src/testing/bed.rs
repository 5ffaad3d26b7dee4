//! One private server for a whole test binary, and a fresh namespace for each test.
//!
//! The server starts with the first test that asks for it and ends with the process. A test that
//! kills, freezes or fills its server starts one of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::dev::redis::{DevError, Fsync, PrivateServer, ServerOptions};
use crate::model::Namespace;
use crate::pod::{Pod, PodSettings};
use crate::store::{ConnectSettings, Space, Store, StoreError};

/// A server with a namespace that nobody else uses.
#[derive(Debug)]
pub struct Bed {
    server: Arc<PrivateServer>,
    namespace: String,
}

/// What is waited for comes sooner than this, or never.
const NEVER: Duration = Duration::from_secs(40);

/// Why there is no bed.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
    /// No server.
    #[error(transparent)]
    Dev(#[from] DevError),
    /// No connection.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn fresh_namespace() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{:x}-{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The line of `deploy/users.acl`, for a namespace.
pub fn least_rights(namespace: &str) -> String {
    let text = include_str!("../../deploy/users.acl");
    let line = text.lines().find(|line| line.starts_with("user ")).unwrap_or_default();
    line.replace("{mh", &format!("{{{namespace}"))
}

/// The same address for the user of [`least_rights`].
pub fn as_limited(url: &str) -> String {
    url.replacen("://", "://minutehand:CHANGE-ME@", 1)
}

impl Bed {
    /// The shared server, started if this is the first call of the process.
    pub async fn shared() -> Result<Self, BedError> {
        // Statics are not dropped: the server ends with the process, by the kernel.
        static SERVER: OnceLock<Arc<PrivateServer>> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let server = tokio::task::spawn_blocking(|| {
            let _one_at_a_time = STARTING.lock();
            if let Some(server) = SERVER.get() {
                return Ok(Arc::clone(server));
            }
            let server = Arc::new(PrivateServer::start_blocking(ServerOptions::default())?);
            Ok::<_, DevError>(Arc::clone(SERVER.get_or_init(|| server)))
        });
        let server = server.await.map_err(|error| DevError::Io {
            what: "start a thread".into(),
            source: std::io::Error::other(error),
        })??;
        Ok(Self { server, namespace: fresh_namespace() })
    }

    /// A server of its own, for a test that harms it. It also knows the user of `deploy/users.acl`.
    pub async fn own_server(mut options: ServerOptions) -> Result<Self, BedError> {
        let namespace = fresh_namespace();
        options.lines.push(least_rights(&namespace));
        let server = Arc::new(PrivateServer::start(options).await?);
        Ok(Self { server, namespace })
    }

    /// The address of [`own_server`](Self::own_server) for the user with the least rights.
    pub fn limited_url(&self) -> String {
        as_limited(&self.server.url())
    }

    /// A server of its own that keeps what it acknowledged when it is killed.
    pub async fn own_durable() -> Result<Self, BedError> {
        Self::own_server(ServerOptions { append_only: Some(Fsync::Always), ..ServerOptions::default() }).await
    }

    /// This test's namespace: short, unique in its server.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The server.
    pub fn server(&self) -> &PrivateServer {
        &self.server
    }

    /// Settings for a store on this server.
    pub fn settings(&self) -> ConnectSettings {
        ConnectSettings { url: self.server.url(), ..ConnectSettings::default() }
    }

    /// Its namespace, on a connection of its own.
    pub async fn open(&self) -> Result<Space, BedError> {
        // The names made here are all valid.
        let namespace = Namespace::new(&self.namespace).expect("a name of our own");
        Ok(Space::open(self.store().await?, namespace).await?)
    }

    /// A new store. It belongs to the calling test's runtime, so it is not shared between tests.
    pub async fn store(&self) -> Result<Store, BedError> {
        Ok(Store::connect(self.settings()).await?)
    }
}

/// Waits until something is so; panics where it never is.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(NEVER, waiting).await.is_ok(), "waited in vain until {what}");
}

/// A pod at work, and what ends it in order.
pub fn start_pod(space: &Space, settings: PodSettings) -> (CancellationToken, JoinHandle<()>) {
    let (stop, pod) = (CancellationToken::new(), Pod::new(space.clone(), settings));
    let token = stop.clone();
    (stop, tokio::spawn(async move { pod.run(token).await.expect("a pod that ends in order") }))
}
