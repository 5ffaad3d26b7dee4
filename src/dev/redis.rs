//! One private server: found, started, watched, and ended with its owner.
//!
//! The server lives in a directory that only its owner may enter and listens on a socket in it. It
//! is ended when its handle is dropped, and by the kernel when this process dies in any other way.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::wire::{Answer, Door, Wire};
use crate::clock::mono;

/// Names a server binary, before any that is found elsewhere.
pub const SERVER_VARIABLE: &str = "MINUTEHAND_REDIS_SERVER";
/// Names a Valkey, for tests that must see one.
pub const VALKEY_VARIABLE: &str = "MINUTEHAND_VALKEY_SERVER";
/// How long a server may take to answer after its start: a large append-only file is read first.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself before it is killed.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Time between two looks while a server starts or ends.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// End of a log that is shown when a server does not start.
const LOG_TAIL_BYTES: usize = 2_048;
/// Longest path of a socket that the kernel takes.
const SOCKET_PATH_MAX_BYTES: usize = 100;
/// How often a port is drawn again because another process was faster.
const PORT_TRIES: usize = 64;

/// Why there is no private server.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// No usable binary.
    #[error(
        "no redis-server or valkey-server of version 7 or later found ({looked}); run scripts/get-server, install \
         redis with your package manager, or set {SERVER_VARIABLE}"
    )]
    NotFound {
        /// What was looked at, and what was wrong with it.
        looked: String,
    },
    /// A file or process could not be had.
    #[error("could not {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The server ended or stayed silent.
    #[error("{program} did not start: {why}\n{log}")]
    Start {
        /// The binary.
        program: String,
        /// What happened.
        why: String,
        /// The end of its log.
        log: String,
    },
}

pub(super) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> DevError {
    let what = what.into();
    move |source| DevError::Io { what, source }
}

/// A server program that is new enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerBinary {
    /// Where it is.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
    /// Whether it is Valkey.
    pub valkey: bool,
}

impl ServerBinary {
    /// Looks for a server: the one named by `MINUTEHAND_REDIS_SERVER`, then what `scripts/get-server`
    /// has fetched, then the search path, then the user's cache.
    pub fn find() -> Result<Self, DevError> {
        let mut looked = Vec::new();
        if let Some(path) = std::env::var_os(SERVER_VARIABLE).filter(|path| !path.is_empty()) {
            // Whoever names one wants that one and no other.
            let path = PathBuf::from(path);
            return Self::check(&path).map_err(|why| DevError::NotFound {
                looked: format!("{SERVER_VARIABLE} names {}: {why}", path.display()),
            });
        }
        for path in candidates() {
            if !path.is_file() {
                continue;
            }
            match Self::check(&path) {
                Ok(binary) => return Ok(binary),
                Err(why) => looked.push(format!("{}: {why}", path.display())),
            }
        }
        if looked.is_empty() {
            looked.push("nothing of that name".into());
        }
        Err(DevError::NotFound { looked: looked.join(", ") })
    }

    /// Looks for a Valkey: the one named by `MINUTEHAND_VALKEY_SERVER`, then what `scripts/get-server --valkey` has
    /// fetched, then the search path. For tests that must see one.
    pub fn find_valkey() -> Option<Self> {
        let named = std::env::var_os(VALKEY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let fetched = option_env!("CARGO_MANIFEST_DIR").map(|root| Path::new(root).join("target/server"));
        let fetched = fetched.map(|root| [root.join("valkey/valkey-server"), root.join("bin/valkey-server")]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|dir| dir.join("valkey-server"));
        let places = named.into_iter().chain(fetched.into_iter().flatten()).chain(on_path);
        places.filter_map(|path| Self::check(&path).ok()).find(|binary| binary.valkey)
    }

    /// Asks one program for its version.
    fn check(path: &Path) -> Result<Self, String> {
        // The server is started in a directory of its own, where a relative path would name another file.
        let path = &std::path::absolute(path).map_err(|error| error.to_string())?;
        let told = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let told = told.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&told.stdout);
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let version = version.ok_or("does not say its version")?.to_owned();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < 7) {
            return Err(format!("version {version} is too old"));
        }
        Ok(Self { path: path.clone(), version, valkey: text.to_lowercase().contains("valkey") })
    }
}

fn candidates() -> Vec<PathBuf> {
    let fetched = |root: PathBuf| ["valkey-server", "redis-server"].map(|name| root.join(name));
    let mut places = Vec::new();
    let roots = [option_env!("CARGO_MANIFEST_DIR").map(PathBuf::from), std::env::current_dir().ok()];
    for root in roots.into_iter().flatten() {
        places.extend(fetched(root.join("target/server/bin")));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in ["redis-server", "valkey-server"] {
        places.extend(std::env::split_paths(&path).map(|dir| dir.join(name)));
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache =
        std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from).or_else(home);
    places.extend(cache.into_iter().flat_map(|dir| fetched(dir.join("minutehand/server"))));
    places
}

/// When an append-only file is forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Every second.
    EverySecond,
    /// Before each answer.
    Always,
}

/// What a private server is to be like.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Keep the data here, and keep them after the end; else in a directory that goes with the server.
    pub data_dir: Option<PathBuf>,
    /// Append each write to a file; without it nothing survives a restart.
    pub append_only: Option<Fsync>,
    /// Listen on a free port of 127.0.0.1 as well.
    pub tcp: bool,
    /// Limit of memory.
    pub max_memory_bytes: Option<u64>,
    /// Be a node of a cluster; implies `tcp`.
    pub cluster: bool,
    /// Be a sentinel; implies `tcp`.
    pub sentinel: bool,
    /// Which program; else the first that is found.
    pub binary: Option<ServerBinary>,
    /// Lines of the configuration that come after all others.
    pub lines: Vec<String>,
    /// Variables of its environment beside those of this process.
    pub env: Vec<(String, OsString)>,
}

/// A running private server. Dropping it ends it.
pub struct PrivateServer {
    process: Arc<Process>,
}

struct Process {
    binary: ServerBinary,
    dir: Dir,
    port: Option<u16>,
    sentinel: bool,
    env: Vec<(String, OsString)>,
    child: Mutex<Option<Child>>,
    paused: AtomicBool,
}

/// A directory, with whether it goes when its owner does.
struct Dir {
    path: PathBuf,
    ours: bool,
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.ours {
            // Nothing can be done about a leftover in the temporary directory.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl PrivateServer {
    /// Starts a server and waits until it answers.
    pub async fn start(options: ServerOptions) -> Result<Self, DevError> {
        blocking(move || Self::start_blocking(options)).await
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking(options: ServerOptions) -> Result<Self, DevError> {
        let binary = options.binary.clone().map_or_else(ServerBinary::find, Ok)?;
        let networked = options.tcp || options.cluster || options.sentinel;
        let mut tries = if networked { 5 } else { 1 };
        loop {
            tries -= 1;
            let dir = make_dir(options.data_dir.as_deref())?;
            let port = networked.then(free_port).transpose()?;
            let config = configuration(&options, &dir.path, port);
            let file = dir.path.join("server.conf");
            fs::write(&file, config).map_err(io_error(format!("write {}", file.display())))?;
            let child = Mutex::new(None);
            let process = Process {
                binary: binary.clone(),
                dir,
                port,
                sentinel: options.sentinel,
                env: options.env.clone(),
                child,
                paused: AtomicBool::new(false),
            };
            match process.launch() {
                Ok(()) => return Ok(Self { process: Arc::new(process) }),
                // Another process may have taken the port between the look and the start.
                Err(DevError::Start { log, .. }) if tries > 0 && log.contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The address for a store: the socket.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The address for a store by TCP, if it listens there.
    pub fn tcp_url(&self) -> Option<String> {
        self.process.port.map(|port| format!("redis://127.0.0.1:{port}"))
    }

    /// The port, if it listens on one.
    pub fn port(&self) -> Option<u16> {
        self.process.port
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.process.socket()
    }

    /// The directory with its data, configuration and log.
    pub fn dir(&self) -> &Path {
        &self.process.dir.path
    }

    /// The program.
    pub fn binary(&self) -> &ServerBinary {
        &self.process.binary
    }

    /// The process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.child.lock().as_ref().map(Child::id)
    }

    /// Runs one command on a connection of its own, blocking. For setting up; not for work.
    pub fn run(&self, words: &[&str]) -> io::Result<Answer> {
        Wire::open(&self.process.door())?.run(words)
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Ends the server without a chance to save anything.
    pub fn kill9(&self) {
        self.process.kill9();
    }

    /// Freezes the server: its connections stay open and nothing answers.
    pub fn pause(&self) {
        self.process.paused.store(true, Ordering::SeqCst);
        self.process.signal(libc::SIGSTOP);
    }

    /// Whether it runs and is not frozen.
    pub fn is_awake(&self) -> bool {
        self.pid().is_some() && !self.process.paused.load(Ordering::SeqCst)
    }

    /// Lets a frozen server go on.
    pub fn resume(&self) {
        self.process.paused.store(false, Ordering::SeqCst);
        self.process.signal(libc::SIGCONT);
    }

    /// Ends the server if it runs, by its own shutdown, and starts it again in its place.
    pub async fn restart(&self) -> Result<(), DevError> {
        self.end().await;
        let process = Arc::clone(&self.process);
        blocking(move || process.launch()).await
    }

    /// Starts the server again after its death; the thread ends when it answers, or has failed to.
    pub fn restart_in_background(&self) -> std::thread::JoinHandle<Result<(), DevError>> {
        let process = Arc::clone(&self.process);
        std::thread::spawn(move || process.launch())
    }

    /// Ends the server: asks it first, so that it saves what it is set to save.
    pub async fn shutdown(self) {
        self.end().await;
    }

    async fn end(&self) {
        self.resume();
        self.process.signal(libc::SIGTERM);
        let deadline = mono() + END_LIMIT;
        loop {
            match self.process.child.lock().as_mut().map(Child::try_wait) {
                Some(Ok(None)) if mono() < deadline => {}
                _ => break,
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.kill9();
    }
}

impl Process {
    fn socket(&self) -> PathBuf {
        self.dir.path.join("server.sock")
    }

    fn door(&self) -> Door {
        Door::Unix(self.socket())
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.dir.path.join("server.log")).unwrap_or_default();
        let from = log.len().saturating_sub(LOG_TAIL_BYTES);
        String::from_utf8_lossy(&log[from..]).into_owned()
    }

    fn launch(&self) -> Result<(), DevError> {
        let mut command = Command::new(&self.binary.path);
        command.arg(self.dir.path.join("server.conf"));
        if self.sentinel {
            command.arg("--sentinel");
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.dir.path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn(command).map_err(io_error(format!("run {}", self.binary.path.display())))?;
        let mut slot = self.child.lock();
        let child = slot.insert(child);
        let deadline = mono() + START_LIMIT;
        let failed = |why: String| DevError::Start {
            program: self.binary.path.display().to_string(),
            why,
            log: self.log_tail(),
        };
        loop {
            if let Ok(mut wire) = Wire::open(&self.door()) {
                match wire.run(&["PING"]) {
                    Ok(_) => return Ok(()),
                    // It asks for a login: it is up.
                    Err(error) if error.to_string().starts_with("NO") => return Ok(()),
                    Err(_) => {}
                }
            }
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Err(failed(format!("it ended with {status}"))),
                Err(error) => return Err(failed(error.to_string())),
            }
            if mono() >= deadline {
                return Err(failed("it does not answer".into()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn kill9(&self) {
        self.paused.store(false, Ordering::SeqCst);
        if let Some(mut child) = self.child.lock().take() {
            // Both fail only if it has ended already. A frozen process ends as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: libc::c_int) {
        let child = self.child.lock();
        if let Some(pid) = child.as_ref().and_then(|child| libc::pid_t::try_from(child.id()).ok()) {
            // SAFETY: kill has no memory effects; the child has not been waited for, so the number is its own.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

impl std::fmt::Debug for PrivateServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateServer({})", self.url())
    }
}

/// Runs what blocks off the runtime's own threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DevError> + Send + 'static,
) -> Result<T, DevError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(DevError::Io { what: "start a thread".into(), source: io::Error::other(error) }),
    }
}

/// Removes what processes that were killed have left behind: a private directory whose maker is
/// gone, with a socket on which nobody listens.
fn sweep(temporary: &Path) {
    let Ok(entries) = fs::read_dir(temporary) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker =
            name.to_str().and_then(|name| name.strip_prefix("minutehand-")?.split('-').next()?.parse().ok());
        let Some(maker) = maker.filter(|pid: &libc::pid_t| *pid > 0) else { continue };
        // SAFETY: signal 0 is never delivered; it only asks whether the process exists.
        let alive = unsafe { libc::kill(maker, 0) } == 0
            || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
        let refused = || {
            let tried = std::os::unix::net::UnixStream::connect(entry.path().join("server.sock"));
            tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if !alive && refused() {
            // It may belong to another user; then it stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn make_dir(data_dir: Option<&Path>) -> Result<Dir, DevError> {
    let make = |path: &Path| {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
    };
    let dir = match data_dir {
        Some(path) => {
            let path = std::path::absolute(path).map_err(io_error("find the data directory"))?;
            Dir { path, ours: false }
        }
        None => {
            static SWEPT: std::sync::Once = std::sync::Once::new();
            SWEPT.call_once(|| sweep(&std::env::temp_dir()));
            let name = format!("minutehand-{}-{:08x}", std::process::id(), fastrand::u32(..));
            let temporary = std::env::temp_dir().join(&name);
            let short = temporary.as_os_str().len() + "/server.sock".len() <= SOCKET_PATH_MAX_BYTES;
            Dir { path: if short { temporary } else { Path::new("/tmp").join(name) }, ours: true }
        }
    };
    if dir.path.as_os_str().len() + "/server.sock".len() > SOCKET_PATH_MAX_BYTES {
        let source = io::Error::new(io::ErrorKind::InvalidFilename, "the path is too long for a socket");
        return Err(DevError::Io { what: format!("use {}", dir.path.display()), source });
    }
    make(&dir.path).map_err(io_error(format!("make {}", dir.path.display())))?;
    Ok(dir)
}

fn configuration(options: &ServerOptions, dir: &Path, port: Option<u16>) -> String {
    let dir = dir.display();
    let mut lines = vec![
        format!("dir \"{dir}\""),
        format!("unixsocket \"{dir}/server.sock\""),
        "unixsocketperm 700".into(),
        format!("logfile \"{dir}/server.log\""),
        format!("port {}", port.unwrap_or(0)),
        "bind 127.0.0.1".into(),
        "daemonize no".into(),
    ];
    if !options.sentinel {
        lines.push("save \"\"".into());
        lines.push("maxmemory-policy noeviction".into());
        match options.append_only {
            None => lines.push("appendonly no".into()),
            Some(fsync) => {
                let when = if fsync == Fsync::Always { "always" } else { "everysec" };
                lines.push("appendonly yes".into());
                lines.push(format!("appendfsync {when}"));
            }
        }
        lines.extend(options.max_memory_bytes.map(|bytes| format!("maxmemory {bytes}")));
    }
    if options.cluster {
        lines.push("cluster-enabled yes".into());
        lines.push("cluster-node-timeout 2000".into());
        lines.push("cluster-require-full-coverage no".into());
    }
    lines.extend(options.lines.iter().cloned());
    lines.join("\n") + "\n"
}

/// A port that nobody uses, with the one that a cluster node opens beside it, 10,000 higher.
fn free_port() -> Result<u16, DevError> {
    let free = |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok();
    (0..PORT_TRIES)
        // Below the range from which the system gives ports to outgoing connections.
        .map(|_| fastrand::u16(11_000..22_000))
        .find(|port| free(*port) && free(*port + 10_000))
        .ok_or_else(|| DevError::Io {
            what: "find a free port".into(),
            source: io::ErrorKind::AddrInUse.into(),
        })
}

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process that the kernel ends when this one dies.
///
/// The kernel ends it already when the *thread* that started it ends, so one thread that never ends
/// starts them all.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    static THREAD: OnceLock<Option<mpsc::Sender<Job>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (tx, rx) = mpsc::channel::<Job>();
        let work = move || {
            for (mut command, answer) in rx {
                // An error says that nobody waits any more; the child ends as its handle drops unused.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    let _ = child.kill();
                }
            }
        };
        std::thread::Builder::new().name("servers".into()).spawn(work).ok().map(|_| tx)
    });
    #[cfg(target_os = "linux")]
    // SAFETY: between fork and exec only prctl is called, which is safe there.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let (tx, rx) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts servers is gone");
    thread.as_ref().ok_or_else(gone)?.send((command, tx)).map_err(|_| gone())?;
    rx.recv().map_err(|_| gone())?
}
