//! One private server for a whole test binary, and a fresh namespace for each test.
//!
//! The server starts with the first test that asks for it and ends with the process. A test that
//! kills, freezes or fills its server starts one of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::dev::redis::{DevError, Fsync, PrivateServer, ServerOptions};
use crate::store::{ConnectSettings, Store, StoreError};

/// A server with a namespace that nobody else uses.
#[derive(Debug)]
pub struct Bed {
    server: Arc<PrivateServer>,
    namespace: String,
}

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

    /// A server of its own, for a test that harms it.
    pub async fn own_server(options: ServerOptions) -> Result<Self, BedError> {
        let server = Arc::new(PrivateServer::start(options).await?);
        Ok(Self { server, namespace: fresh_namespace() })
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

    /// A new store. It belongs to the calling test's runtime, so it is not shared between tests.
    pub async fn store(&self) -> Result<Store, BedError> {
        Ok(Store::connect(self.settings()).await?)
    }
}
