//! Settings: the defaults (which are the manual), files, the environment and flags, in this order.
//!
//! [`default.toml`](DEFAULT_TOML) holds every key there is. The layers above it may only name keys
//! that stand there, and each value remembers where it came from.

pub mod check;
pub mod layer;
mod near;
mod span;

pub use check::Warning;
pub use layer::{Flag, Loaded, Origin, SettingsError, Sources};
pub use near::nearest;
pub use span::Span;

use crate::executor::WorkKind;
use crate::model::route::Policy;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The manual: every key with its default and what it does.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of the installation's data in Redis.
    pub namespace: String,
    /// Where Redis is and how it is called.
    pub redis: RedisSettings,
    /// A scheduler instance.
    pub pod: PodSection,
    /// Decides on the number of buckets.
    pub decider: DeciderSection,
    /// The HTTP port of a pod.
    pub http: HttpSection,
    /// Encryption of payloads.
    pub crypto: CryptoSection,
    /// A process that runs tasks.
    pub executor: ExecutorSection,
    /// What a task gets whose submitter says nothing else.
    pub defaults: TaskDefaults,
    /// Who is told when something is wrong.
    pub alerts: AlertSettings,
    /// Web calls.
    pub webhook: WebhookSection,
    /// Log lines.
    pub log: LogSettings,
    /// Metrics.
    pub metrics: MetricsSettings,
}

/// Where Redis is and how it is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSettings {
    /// Address; empty means a running `minutehand dev`, else the usual port of this machine.
    pub url: String,
    /// User, if not part of the URL; empty for none.
    pub username: String,
    /// File that holds the password; empty for none.
    pub password_file: PathBuf,
    /// PEM file of the authority to trust; empty for the system's.
    pub ca_file: PathBuf,
    /// Connections per server for short calls.
    pub pool: u32,
    /// Longest wait for an answer.
    pub call_timeout: Span,
    /// Longest wait for a connection.
    pub connect_timeout: Span,
    /// Start even where Redis may evict keys.
    pub allow_evicting: bool,
}

/// A scheduler instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodSection {
    /// Where HTTP is answered.
    pub listen: SocketAddr,
    /// Life of a permit for a bucket without renewal.
    pub lock: Span,
    /// Longest sleep of a claim loop.
    pub poll: Span,
    /// Longest gathering of a busy claim loop.
    pub gather: Span,
    /// How an executor is chosen for tasks of queues that have no way of their own.
    pub routing: Policy,
    /// Shares of P0 to P5, in the grammar of [`crate::model::queue::Weights`].
    pub weights: String,
    /// How long a task must wait for its turn until its priority's share doubles; zero for never.
    pub ageing: Span,
    /// File for a sample of the routing decisions; empty for none.
    pub route_record: PathBuf,
    /// How many of them it has.
    pub route_sample: u32,
    /// How long before it is due a task is claimed.
    pub look_ahead: Span,
}

/// The HTTP port of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    /// Whether a token is needed on a loopback address too.
    pub require_token: bool,
    /// Whether no token is needed on any address.
    pub insecure: bool,
    /// Longest wait of a poll.
    pub poll_wait: Span,
    /// PEM file of the certificate; empty for no TLS.
    pub tls_cert: PathBuf,
    /// PEM file of its key.
    pub tls_key: PathBuf,
}

/// Encryption of payloads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CryptoSection {
    /// File with keys; empty for none.
    pub keys_file: PathBuf,
}

/// Decides on the number of buckets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeciderSection {
    /// Whether this pod takes part.
    pub enabled: bool,
    /// Start − due that 99 in 100 tasks shall not exceed.
    pub target: Span,
    /// Time from one decision to the next.
    pub window: Span,
    /// How long a closed bucket stays before it vanishes.
    pub linger: Span,
}

/// A process that runs tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutorSection {
    /// Where HTTP is answered; empty for nowhere.
    pub listen: String,
    /// Tasks that run at the same time; zero for what suits the kind.
    pub slots: u32,
    /// What they spend their time with.
    pub kind: WorkKind,
    /// Slots beside these for P0 and P1 alone.
    pub urgent_slots: u32,
    /// Tasks that may be fetched ahead of free slots.
    pub prefetch: u32,
    /// How often an executor reports itself.
    pub heartbeat: Span,
    /// Longest gathering of outcomes.
    pub ack_gather: Span,
    /// Longest time for running tasks at a stop.
    pub drain: Span,
    /// Time for a task that was told to stop.
    pub stop_grace: Span,
    /// File of the journal; empty for none.
    pub journal: PathBuf,
    /// Whether it must survive the machine's death too.
    pub journal_fsync: bool,
}

/// What a task gets whose submitter says nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskDefaults {
    /// Tries after the first one.
    pub retries: u32,
    /// Wait before them, in the grammar of [`crate::model::Retry`].
    pub backoff: String,
    /// Lease of a started task.
    pub lease: Span,
    /// Time from hand-out to start.
    pub dispatch_timeout: Span,
    /// Longest run of a handler; zero for none.
    pub timeout: Span,
    /// Latest start after the due time; zero for none.
    pub start_within: Span,
    /// Total time-out from the due time on; zero for none.
    pub expire_after: Span,
    /// How safe a task must be before its submit answers, in the grammar of [`crate::model::Durability`].
    pub durability: String,
}

/// Who is told when something is wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertSettings {
    /// Address that is told of dead letters; empty for none.
    pub dead_webhook: String,
    /// Least time between two messages about one queue.
    pub dead_every: Span,
}

/// Web calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSection {
    /// File with the keys that calls are signed with; empty for none.
    pub keys: PathBuf,
    /// Inner networks that calls may go to, in the grammar of [`crate::webhook::Allowed`].
    pub allow: String,
    /// Longest call.
    pub timeout: Span,
    /// Calls to one host at a time.
    pub per_host: u32,
    /// Most tasks of one call.
    pub batch: u32,
    /// Redirects that are followed.
    pub redirects: u32,
    /// Whether 3xx and 4xx are tried again.
    pub retry_refused: bool,
}

/// Log lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// For people or for machines.
    pub format: LogFormat,
    /// A level or a filter.
    pub level: String,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line an event.
    Text,
    /// One JSON object an event.
    Json,
}

/// Metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSettings {
    /// Whether `/metrics` is served.
    pub enabled: bool,
    /// How often samples are folded into histograms.
    pub upkeep: Span,
}

impl Settings {
    /// Reads all layers and checks the result.
    pub fn load(sources: &Sources) -> Result<Loaded, SettingsError> {
        layer::load(sources)
    }
}
