//! Where Redis is, how to reach it, and whether it is fit for use.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fred::prelude::{
    Client, Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
};
use fred::types::RespVersion;
use fred::types::config::{ReconnectError, SentinelConfig, TlsConfig, TlsConnector, UnresponsiveConfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::error::StoreError;
use crate::limits::{CALL_TIMEOUT_MS, COMMAND_BUFFER_MAX, CONNECT_TIMEOUT_MS, RECONNECT_MAX_MS};

/// Connections to each master, unless set otherwise: a second one is worth 10 % and rides out a
/// large answer on the first; more cost the server more than they bring.
pub const POOL_SIZE_DEFAULT: usize = 2;
/// Most connections to each master.
pub const POOL_SIZE_MAX: usize = 16;
/// Shortest and longest time-out of a call that may be set.
pub const CALL_TIMEOUT_RANGE_MS: (u64, u64) = (200, 60_000);
/// Shortest and longest time-out of a connection that may be set.
pub const CONNECT_TIMEOUT_RANGE_MS: (u64, u64) = (50, 30_000);
/// First wait before a lost connection is opened again; doubled up to `RECONNECT_MAX_MS`.
const RECONNECT_MIN_MS: u32 = 50;
/// Random addition to each such wait, so that pods do not come back in step.
const RECONNECT_JITTER_MS: u32 = 50;
/// Messages of one connection that may wait to be handed on. More are wake-ups that say the same.
const EVENTS_KEPT: usize = 1_024;
/// Longest name that is shown to the server.
const CLIENT_NAME_MAX_BYTES: usize = 64;

/// How to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectSettings {
    /// Where: see [`RedisUrl::parse`].
    pub url: String,
    /// Login name, before the one in the address.
    pub username: Option<String>,
    /// Password, before the one in the address.
    pub password: Option<String>,
    /// Connections to each master.
    pub pool_size: usize,
    /// Time-out of a call, tries included.
    pub call_timeout_ms: u64,
    /// Time-out of opening a connection.
    pub connect_timeout_ms: u64,
    /// PEM file of the only authorities to trust; else those of the system.
    pub ca_file: Option<PathBuf>,
    /// Name shown by CLIENT LIST.
    pub client_name: String,
    /// Accept a server that may delete keys when its memory is full.
    pub allow_evicting: bool,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".into(),
            username: None,
            password: None,
            pool_size: POOL_SIZE_DEFAULT,
            call_timeout_ms: CALL_TIMEOUT_MS,
            connect_timeout_ms: CONNECT_TIMEOUT_MS,
            ca_file: None,
            client_name: "minutehand".into(),
            allow_evicting: false,
        }
    }
}

impl fmt::Debug for ConnectSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = RedisUrl::parse(&self.url).map_or_else(|_| "(not valid)".into(), |url| url.to_string());
        f.debug_struct("ConnectSettings")
            .field("url", &url)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("pool_size", &self.pool_size)
            .field("call_timeout_ms", &self.call_timeout_ms)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("ca_file", &self.ca_file)
            .field("client_name", &self.client_name)
            .field("allow_evicting", &self.allow_evicting)
            .finish()
    }
}

/// A host and its port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// Name or address.
    pub name: String,
    /// Port.
    pub port: u16,
}

impl Host {
    /// A host.
    pub fn new(name: impl Into<String>, port: u16) -> Self {
        Self { name: name.into(), port }
    }

    pub(super) fn server(&self) -> Server {
        Server::new(self.name.as_str(), self.port)
    }

    /// `host:port` as the server writes it: the last colon divides, so that IPv6 fits without brackets.
    pub(super) fn of_redirect(text: &str) -> Option<Self> {
        let (name, port) = text.rsplit_once(':')?;
        Some(Self::new(name, port.parse().ok()?))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// What stands behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// One server.
    Single(Host),
    /// One server on this machine.
    Unix(PathBuf),
    /// A cluster, by some of its nodes.
    Cluster(Vec<Host>),
    /// A master that sentinels name.
    Sentinel {
        /// Some of the sentinels.
        sentinels: Vec<Host>,
        /// The name of the master.
        service: String,
        /// Login at the sentinels.
        username: Option<String>,
        /// Password at the sentinels.
        password: Option<String>,
    },
}

/// A parsed address. Neither its `Debug` nor its `Display` shows a password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// What stands there.
    pub place: Place,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Login name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Number of the database; none in a cluster.
    pub database: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Cluster,
    Sentinel,
    Unix,
}

fn bad(what: impl Into<String>) -> StoreError {
    StoreError::BadUrl { what: what.into() }
}

impl RedisUrl {
    /// Reads an address. `valkey` may stand for `redis` everywhere, `rediss` for encryption.
    ///
    /// - `redis://[user:password@]host[:port][/database]`
    /// - `redis-cluster://[user:password@]host[:port][,host[:port]…]`
    /// - `redis-sentinel://[user:password@]host[:port][,host[:port]…]/[database]?sentinelServiceName=name`,
    ///   also with `sentinelUsername` and `sentinelPassword`
    /// - `unix:///path` or `redis+unix:///path`, with `?db=number`
    ///
    /// More hosts may also be given as `?node=host:port&node=host:port`. Reserved characters in
    /// names and passwords are written as `%` and two hex digits.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| bad("no scheme; it must begin like redis://host:6379"))?;
        let (kind, tls) = match scheme {
            "redis" | "valkey" => (Kind::Single, false),
            "rediss" | "valkeys" => (Kind::Single, true),
            "redis-cluster" | "valkey-cluster" => (Kind::Cluster, false),
            "rediss-cluster" | "valkeys-cluster" => (Kind::Cluster, true),
            "redis-sentinel" | "valkey-sentinel" => (Kind::Sentinel, false),
            "rediss-sentinel" | "valkeys-sentinel" => (Kind::Sentinel, true),
            "redis+unix" | "valkey+unix" | "unix" => (Kind::Unix, false),
            // What stands before `://` may be a password that lacks its scheme, so it is not repeated.
            _ => {
                return Err(bad(
                    "the scheme is none of redis, rediss, redis-cluster, rediss-cluster, redis-sentinel, \
                     rediss-sentinel, redis+unix, unix, nor one of their valkey names",
                ));
            }
        };
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (login, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let (username, password) =
            login.split_once(':').map_or((login, None), |(user, pass)| (user, Some(pass)));
        let username = decode(username, "the user name")?;
        let password = password.map(|pass| decode(pass, "the password")).transpose()?;

        let mut query = Query::parse(query)?;
        let mut database = query.take("db").map(|db| parse_database(&db)).transpose()?;
        let default_port = if kind == Kind::Sentinel { 26_379 } else { 6_379 };
        let mut nodes: Vec<Host> = Vec::new();
        if kind != Kind::Unix {
            for host in hosts.split(',') {
                nodes.push(parse_host(host, default_port)?);
            }
            for host in query.take_all("node") {
                nodes.push(parse_host(&host, default_port)?);
            }
            let number = path.trim_start_matches('/');
            if !number.is_empty() {
                database = Some(parse_database(number)?);
            }
        }
        let place = match kind {
            Kind::Single => match <[Host; 1]>::try_from(nodes) {
                Ok([host]) => Place::Single(host),
                Err(_) => return Err(bad("several hosts need the scheme redis-cluster or redis-sentinel")),
            },
            Kind::Unix => {
                if !hosts.is_empty() {
                    return Err(bad("a socket has no host; write unix:///path, with three slashes"));
                }
                if path.len() < 2 {
                    return Err(bad("no path; write unix:///path/to/the.sock"));
                }
                Place::Unix(decode(path, "the path")?.into())
            }
            Kind::Cluster if database.is_some_and(|db| db != 0) => {
                return Err(bad("a cluster has only database 0"));
            }
            Kind::Cluster => Place::Cluster(nodes),
            Kind::Sentinel => Place::Sentinel {
                sentinels: nodes,
                service: query
                    .take("sentinelServiceName")
                    .filter(|name| !name.is_empty())
                    .ok_or_else(|| bad("?sentinelServiceName=name is missing"))?,
                username: query.take("sentinelUsername"),
                password: query.take("sentinelPassword"),
            },
        };
        query.finish()?;
        if kind == Kind::Cluster {
            database = None;
        }
        let username = Some(username).filter(|name| !name.is_empty());
        let password = password.filter(|pass| !pass.is_empty());
        Ok(Self { place, tls, username, password, database })
    }

    /// The hosts named in the address; none for a socket.
    pub fn hosts(&self) -> &[Host] {
        match &self.place {
            Place::Single(host) => std::slice::from_ref(host),
            Place::Cluster(hosts) => hosts,
            Place::Sentinel { sentinels, .. } => sentinels,
            Place::Unix(_) => &[],
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls { "s" } else { "" };
        match &self.place {
            Place::Unix(path) => write!(f, "unix://{}", path.display())?,
            Place::Single(_) => write!(f, "redis{s}://")?,
            Place::Cluster(_) => write!(f, "redis{s}-cluster://")?,
            Place::Sentinel { .. } => write!(f, "redis{s}-sentinel://")?,
        }
        for (at, host) in self.hosts().iter().enumerate() {
            write!(f, "{}{host}", if at == 0 { "" } else { "," })?;
        }
        match (&self.place, self.database) {
            (Place::Unix(_), Some(db)) if db > 0 => write!(f, "?db={db}"),
            (Place::Unix(_), _) => Ok(()),
            (Place::Sentinel { service, .. }, db) => {
                write!(f, "/{}?sentinelServiceName={service}", db.unwrap_or(0))
            }
            (_, Some(db)) if db > 0 => write!(f, "/{db}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Result<Self, StoreError> {
        let parts = text.split('&').filter(|part| !part.is_empty());
        parts
            .map(|part| {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                Ok((decode(name, "a query name")?, decode(value, "a query value")?))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1)
    }

    fn take_all(&mut self, name: &str) -> Vec<String> {
        std::iter::from_fn(|| self.take(name)).collect()
    }

    fn finish(self) -> Result<(), StoreError> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(32).filter(char::is_ascii_alphanumeric).collect();
                Err(bad(format!(
                    "unknown or repeated query name {shown:?}; known are db, node, sentinelServiceName, \
                     sentinelUsername and sentinelPassword, each where it has a meaning"
                )))
            }
        }
    }
}

fn parse_database(text: &str) -> Result<u8, StoreError> {
    text.parse().map_err(|_| bad("the database must be a number from 0 to 255"))
}

fn parse_host(text: &str, default_port: u16) -> Result<Host, StoreError> {
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, port) = rest.split_once(']').ok_or_else(|| bad("an address in brackets lacks its ]"))?;
        (name, port.strip_prefix(':'))
    } else {
        text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)))
    };
    if name.is_empty() {
        return Err(bad("a host is empty"));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => {
                return Err(bad(
                    "a port is not a number from 1 to 65535 (a password with : or / or @ in it must be written with %)",
                ));
            }
        },
    };
    Ok(Host::new(decode(name, "a host")?, port))
}

/// Undoes percent-encoding.
fn decode(text: &str, what: &str) -> Result<String, StoreError> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit =
            || bytes.next().and_then(|b| char::from(b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push(high * 16 + low),
            _ => {
                return Err(bad(format!(
                    "in {what}, a % is not followed by two hex digits (write % itself as %25)"
                )));
            }
        }
    }
    String::from_utf8(out).map_err(|_| bad(format!("{what} is not UTF-8")))
}

/// Everything needed to open one more connection: kept for the life of a store.
pub(super) struct Dialer {
    /// The address, with its login replaced by the settings' own.
    pub url: RedisUrl,
    pub pool_size: usize,
    pub call_timeout: Duration,
    pub connect_timeout: Duration,
    pub client_name: String,
    pub allow_evicting: bool,
    tls: Option<TlsConfig>,
}

impl Dialer {
    pub fn new(settings: ConnectSettings) -> Result<Self, StoreError> {
        let mut url = RedisUrl::parse(&settings.url)?;
        url.username = settings.username.filter(|name| !name.is_empty()).or(url.username);
        url.password = settings.password.filter(|pass| !pass.is_empty()).or(url.password);
        if url.username.is_some() && url.password.is_none() {
            return Err(bad("a user name is given, but no password"));
        }
        let tls = match (url.tls, settings.ca_file) {
            (true, ca_file) => Some(tls_config(ca_file.as_deref())?),
            (false, Some(_)) => return Err(bad("a CA file is set, but the scheme is not rediss")),
            (false, None) => None,
        };
        let clamp = |ms: u64, (low, high): (u64, u64)| Duration::from_millis(ms.clamp(low, high));
        let name = settings.client_name.chars().filter(char::is_ascii_graphic);
        Ok(Self {
            url,
            pool_size: settings.pool_size.clamp(1, POOL_SIZE_MAX),
            call_timeout: clamp(settings.call_timeout_ms, CALL_TIMEOUT_RANGE_MS),
            connect_timeout: clamp(settings.connect_timeout_ms, CONNECT_TIMEOUT_RANGE_MS),
            client_name: name.take(CLIENT_NAME_MAX_BYTES).collect(),
            allow_evicting: settings.allow_evicting,
            tls,
        })
    }

    /// A client for one place, not yet connected. Its first connection fails at once or succeeds;
    /// a lost one is opened again by the client itself.
    pub fn client(&self, server: ServerConfig) -> Client {
        let config = Config {
            fail_fast: true,
            username: self.url.username.clone(),
            password: self.url.password.clone(),
            server,
            version: RespVersion::RESP3,
            database: self.url.database,
            tls: self.tls.clone(),
            ..Config::default()
        };
        Client::new(config, Some(self.performance()), Some(self.connection()), Some(reconnect_policy()))
    }

    /// A client for one sentinel, not yet connected.
    pub fn sentinel_client(&self, host: &Host) -> fred::clients::SentinelClient {
        let (username, password) = match &self.url.place {
            Place::Sentinel { username, password, .. } => (username.clone(), password.clone()),
            _ => (None, None),
        };
        let config = SentinelConfig {
            host: host.name.clone(),
            port: host.port,
            username,
            password,
            tls: self.tls.clone(),
        };
        fred::clients::SentinelClient::new(
            config,
            Some(self.performance()),
            Some(self.connection()),
            Some(reconnect_policy()),
        )
    }

    fn performance(&self) -> PerformanceConfig {
        PerformanceConfig {
            // Each call has a time-out of its own; this one bounds what the client sends by itself.
            default_command_timeout: self.call_timeout,
            broadcast_channel_capacity: EVENTS_KEPT,
            ..PerformanceConfig::default()
        }
    }

    fn connection(&self) -> ConnectionConfig {
        // The client's own check of silent connections stays off: it compares with the last write, so a process that
        // is kept from reading for a while takes its server for dead. `Node::was_late` asks the server instead.
        ConnectionConfig {
            connection_timeout: self.connect_timeout,
            internal_command_timeout: self.connect_timeout,
            // One attempt: a second one would run a script twice without anyone knowing.
            max_command_attempts: 1,
            max_command_buffer_len: COMMAND_BUFFER_MAX,
            auto_client_setname: false,
            disable_cluster_health_check: true,
            unresponsive: UnresponsiveConfig { max_timeout: None, ..UnresponsiveConfig::default() },
            tcp: TcpConfig {
                nodelay: Some(true),
                keepalive: Some(socket2::TcpKeepalive::new().with_time(Duration::from_secs(15))),
                #[cfg(target_os = "linux")]
                user_timeout: Some(Duration::from_secs(2)),
                ..TcpConfig::default()
            },
            // A replica is left at once: the next connection may find the master. LOADING is not
            // among them: it passes on the same connection, and each drop fails all calls in flight.
            reconnect_errors: vec![
                ReconnectError::ReadOnly,
                ReconnectError::ClusterDown,
                ReconnectError::MasterDown,
            ],
            ..ConnectionConfig::default()
        }
    }
}

fn reconnect_policy() -> ReconnectPolicy {
    let longest = u32::try_from(RECONNECT_MAX_MS).unwrap_or(1_000);
    let mut policy = ReconnectPolicy::new_exponential(0, RECONNECT_MIN_MS, longest, 2);
    policy.set_jitter(RECONNECT_JITTER_MS);
    policy
}

fn tls_config(ca_file: Option<&Path>) -> Result<TlsConfig, StoreError> {
    let Some(path) = ca_file else {
        let system = TlsConnector::default_rustls();
        return system
            .map(TlsConfig::from)
            .map_err(|error| bad(format!("could not read the system's authorities: {error}")));
    };
    let fail = |what: String| bad(format!("ca file {}: {what}", path.display()));
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| fail(error.to_string()))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| fail(error.to_string()))?;
        roots.add(certificate).map_err(|error| fail(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fail("holds no certificate".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(config).into())
}

/// Which product answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl Flavor {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        }
    }
}

/// How the servers stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One server.
    Single,
    /// A cluster.
    Cluster,
    /// A master named by sentinels.
    Sentinel,
}

impl Mode {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// What the masters say about themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// The product's own version; the oldest one of a cluster.
    pub version: String,
    /// Which product.
    pub flavor: Flavor,
    /// How the servers stand together.
    pub mode: Mode,
    /// Each master that answered.
    pub nodes: Vec<NodeInfo>,
}

/// What one master says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Where it is.
    pub addr: String,
    /// Which product.
    pub flavor: Flavor,
    /// The product's own version.
    pub version: String,
    /// The version of Redis whose commands it has.
    pub redis_version: String,
    /// Memory in use.
    pub used_memory_bytes: u64,
    /// Limit of memory; 0 is none.
    pub max_memory_bytes: u64,
    /// What it does when the limit is reached.
    pub maxmemory_policy: Option<String>,
    /// Processor time of the thread that runs commands, since the start; not every system tells.
    pub main_thread_us: Option<u64>,
    /// Connections.
    pub clients: u64,
    /// Replicas connected to it.
    pub replicas: u64,
    /// Whether each write is appended to a file.
    pub append_only: bool,
    /// Whether it is part of a cluster.
    pub cluster: bool,
    /// Seconds since its start.
    pub uptime_s: u64,
}

impl NodeInfo {
    /// Reads an answer of INFO.
    pub(super) fn parse(addr: String, info: &str) -> Self {
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let number = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let seconds = |name: &str| field(name).and_then(|text| text.parse::<f64>().ok());
        let main_thread = seconds("used_cpu_user_main_thread").zip(seconds("used_cpu_sys_main_thread"));
        let redis_version = field("redis_version").unwrap_or("").to_owned();
        let valkey = field("valkey_version");
        Self {
            addr,
            flavor: if valkey.is_some() { Flavor::Valkey } else { Flavor::Redis },
            version: valkey.map_or_else(|| redis_version.clone(), str::to_owned),
            redis_version,
            used_memory_bytes: number("used_memory"),
            max_memory_bytes: number("maxmemory"),
            maxmemory_policy: field("maxmemory_policy").map(str::to_owned),
            main_thread_us: main_thread
                .map(|(user, sys)| Duration::from_secs_f64((user + sys).clamp(0.0, 1e12)))
                .and_then(|time| u64::try_from(time.as_micros()).ok()),
            clients: number("connected_clients"),
            replicas: number("connected_slaves"),
            append_only: number("aof_enabled") == 1,
            cluster: number("cluster_enabled") == 1,
            uptime_s: number("uptime_in_seconds"),
        }
    }

    /// Whether its version is new enough: flags in scripts and sharded pub/sub came with 7.0.
    pub(super) fn check_version(&self) -> Result<(), StoreError> {
        if self.redis_version_at_least(7, 0) {
            return Ok(());
        }
        let version = if self.version.is_empty() { "(unknown version)".into() } else { self.version.clone() };
        Err(StoreError::TooOld { flavor: self.flavor.name(), version })
    }

    /// Whether it has the commands of this version of Redis.
    pub(super) fn redis_version_at_least(&self, major: u32, minor: u32) -> bool {
        let mut parts = self.redis_version.split('.').map(|part| part.parse::<u32>().ok());
        let found = (parts.next().flatten(), parts.next().flatten());
        found >= (Some(major), Some(minor))
    }
}

/// Whether tasks are safe when memory is full.
pub(super) fn check_policy(policy: Option<&str>, allow_evicting: bool) -> Result<(), StoreError> {
    match policy {
        Some("noeviction") | None => Ok(()),
        Some(_) if allow_evicting => Ok(()),
        Some(policy) => Err(StoreError::UnsafeEviction { policy: policy.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RedisUrl {
        RedisUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refuse(text: &str) -> String {
        RedisUrl::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn every_scheme_is_read() {
        let cases = [
            ("redis://localhost", "redis://localhost:6379"),
            ("valkey://h:1/3", "redis://h:1/3"),
            ("rediss://u:p@h:1", "rediss://h:1"),
            ("valkeys://h", "rediss://h:6379"),
            ("redis://[::1]:7000", "redis://[::1]:7000"),
            ("redis-cluster://a,b:7001", "redis-cluster://a:6379,b:7001"),
            ("rediss-cluster://a?node=b:2&node=c:3", "rediss-cluster://a:6379,b:2,c:3"),
            ("valkey-cluster://a/0", "redis-cluster://a:6379"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("redis+unix:///run/a%20b.sock?db=2", "unix:///run/a b.sock?db=2"),
            ("valkey+unix://u:p@/run/x", "unix:///run/x"),
            (
                "redis-sentinel://u:p@s1,s2:5/1?sentinelServiceName=mh",
                "redis-sentinel://s1:26379,s2:5/1?sentinelServiceName=mh",
            ),
        ];
        for (text, shown) in cases {
            assert_eq!(parse(text).to_string(), shown, "{text}");
        }
    }

    #[test]
    fn logins_are_decoded_and_never_shown() {
        let url = parse("redis://some%40user:p%3a%2Fss%25@h:1");
        assert_eq!(url.username.as_deref(), Some("some@user"));
        assert_eq!(url.password.as_deref(), Some("p:/ss%"));
        assert_eq!(parse("redis://:only@h").username, None);
        assert_eq!(parse("redis://:on@ly@h").password.as_deref(), Some("on@ly"));
        assert!(!format!("{url:?} {url}").contains("ss%"));
        let settings = ConnectSettings {
            url: "redis://u:secret@h".into(),
            password: Some("secret".into()),
            ..ConnectSettings::default()
        };
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn a_bad_address_is_named_without_its_password() {
        let cases = [
            ("localhost:6379", "no scheme"),
            ("http://secret@h", "the scheme is none of"),
            ("secret://h", "the scheme is none of"),
            ("redis://", "a host is empty"),
            ("redis://u:secret@", "a host is empty"),
            ("redis://u:secret@h:port", "a port is not a number"),
            ("redis://u:secret@h:0", "a port is not a number"),
            ("redis://u:sec/ret@h:1", "a port is not a number"),
            ("redis://u:secret%@h", "in the password, a %"),
            ("redis://h/x", "the database must be"),
            ("redis://h/256", "the database must be"),
            ("redis://a,b", "several hosts need"),
            ("redis://[::1", "lacks its ]"),
            ("redis-cluster://a/1", "only database 0"),
            ("redis-sentinel://a", "sentinelServiceName=name is missing"),
            ("unix://run/redis.sock", "three slashes"),
            ("unix://", "no path"),
            ("redis://h?secret=1", "unknown or repeated query name"),
        ];
        for (text, want) in cases {
            let error = refuse(text);
            assert!(error.contains(want), "{text}: {error}");
            assert!(!error.contains("secret") || text.contains("?secret"), "{text}: {error}");
        }
    }

    #[test]
    fn settings_fit_together() {
        let dial = |change: fn(&mut ConnectSettings)| {
            let mut settings = ConnectSettings::default();
            change(&mut settings);
            Dialer::new(settings)
        };
        let dialer = dial(|s| s.pool_size = 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(dialer.pool_size, 1);
        let names = |s: &mut ConnectSettings| s.client_name = "a b\nc".into();
        assert_eq!(dial(names).map(|d| d.client_name).ok().as_deref(), Some("abc"));
        assert!(dial(|s| s.username = Some("u".into())).is_err());
        assert!(dial(|s| s.ca_file = Some("/x".into())).is_err());
        let missing = dial(|s| {
            s.url = "rediss://h".into();
            s.ca_file = Some("/nowhere.pem".into());
        });
        assert!(missing.err().is_some_and(|error| error.to_string().contains("/nowhere.pem")));
    }

    #[test]
    fn versions_and_policies_are_judged() {
        let info = |text: &str| NodeInfo::parse("h:1".into(), text);
        let old = info("# Server\r\nredis_version:6.2.14\r\n");
        assert_eq!(
            old.check_version().expect_err("old").to_string(),
            "redis 6.2.14 is too old: minutehand needs Redis 7.0 or Valkey 7.2, because its scripts use flags and \
             sharded pub/sub"
        );
        let valkey = info("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nused_memory:12\r\nmaxmemory:0\r\n");
        assert_eq!((valkey.flavor, valkey.version.as_str()), (Flavor::Valkey, "9.1.2"));
        assert_eq!((valkey.used_memory_bytes, valkey.max_memory_bytes), (12, 0));
        assert_eq!(valkey.check_version(), Ok(()));
        assert!(info("").check_version().is_err());
        let busy =
            info("redis_version:7.0.0\nused_cpu_sys_main_thread:0.5\nused_cpu_user_main_thread:1.25\n");
        assert_eq!(busy.main_thread_us, Some(1_750_000));
        assert_eq!(check_policy(Some("noeviction"), false), Ok(()));
        assert!(check_policy(Some("allkeys-lru"), false).is_err());
        assert_eq!(check_policy(Some("allkeys-lru"), true), Ok(()));
    }

    #[test]
    fn redirects_name_a_host() {
        assert_eq!(Host::of_redirect("10.0.0.1:7000"), Some(Host::new("10.0.0.1", 7000)));
        assert_eq!(Host::of_redirect("::1:7000"), Some(Host::new("::1", 7000)));
        assert_eq!(Host::of_redirect(":7000"), Some(Host::new("", 7000)));
        assert_eq!(Host::of_redirect("x"), None);
    }
}
