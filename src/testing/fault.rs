//! A proxy in front of a server that delays, cuts and stalls on demand.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// Bytes moved at a time.
const PIECE_BYTES: usize = 16 << 10;

/// The server behind the proxy.
#[derive(Debug, Clone)]
pub enum Behind {
    /// A socket in the file system.
    Unix(PathBuf),
    /// An address.
    Tcp(SocketAddr),
}

/// What the proxy does to each piece on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// How long each piece is held back, both ways.
    pub delay: Duration,
    /// Nothing is passed on, either way, and nothing is closed: the other side looks frozen.
    pub half_open: bool,
    /// The client's bytes are not read any more, so that its buffers fill up; answers still pass.
    pub deaf: bool,
}

/// What happens once a proxy has passed on so many commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// Every connection is cut: the server has the command, and its answer goes nowhere.
    Cut,
    /// Nothing passes any more, either way, and nothing is closed.
    Stall,
}

/// Longest word that is kept of what a command does.
const WORD_MAX_BYTES: usize = 64;

/// Finds the ends of commands in what a client sends, piece by piece.
#[derive(Debug, Default)]
struct Commands {
    line: Vec<u8>,
    /// Arguments of the command, and those that are still to come.
    all: u64,
    args: u64,
    /// Bytes of an argument that are still to come, with the end of its line.
    bulk: usize,
    /// Its second word: that of a script's call is the script's digest.
    second: Vec<u8>,
}

/// A command that ends in a piece.
#[derive(Debug, PartialEq, Eq)]
struct End {
    at: usize,
    second: Vec<u8>,
}

impl Commands {
    /// Where in this piece commands end.
    fn ends(&mut self, piece: &[u8]) -> Vec<End> {
        let (mut at, mut ends) = (0, Vec::new());
        while at < piece.len() {
            if self.bulk > 0 {
                let here = self.bulk.min(piece.len() - at);
                if self.args + 1 == self.all {
                    let room = WORD_MAX_BYTES.saturating_sub(self.second.len()).min(here);
                    self.second.extend_from_slice(&piece[at..at + room]);
                }
                (self.bulk, at) = (self.bulk - here, at + here);
                if self.bulk == 0 {
                    self.args = self.args.saturating_sub(1);
                    if self.args == 0 {
                        ends.push(End { at, second: std::mem::take(&mut self.second) });
                    }
                }
                continue;
            }
            self.line.push(piece[at]);
            at += 1;
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.trim().parse().ok());
                match (line[0], number) {
                    (b'*', Some(args)) => (self.all, self.args) = (args, args),
                    (b'$', Some(length)) => self.bulk = length as usize + 2,
                    _ => ends.push(End { at, second: Vec::new() }),
                }
            }
        }
        ends
    }
}

/// A trap that is set.
struct Set {
    /// Commands until it springs.
    left: u64,
    /// Only those whose second word begins so count.
    only: Vec<u8>,
    trap: Trap,
}

struct State {
    behind: Mutex<Behind>,
    fault: watch::Sender<Fault>,
    /// Grows with each order to cut all connections.
    cuts: watch::Sender<u64>,
    /// Bytes from the server until all is cut; `u64::MAX` is never.
    cut_after: AtomicU64,
    /// Commands until a trap springs; none is set.
    trap: Mutex<Option<Set>>,
    sprung: AtomicBool,
    accepted: AtomicU64,
}

/// A running proxy. Dropping it cuts everything.
pub struct FaultProxy {
    addr: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

impl FaultProxy {
    /// Starts a proxy on a free port of this machine.
    pub async fn start(behind: Behind) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State {
            behind: Mutex::new(behind),
            fault: watch::channel(Fault::default()).0,
            cuts: watch::channel(0).0,
            cut_after: AtomicU64::new(u64::MAX),
            trap: Mutex::new(None),
            sprung: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&state))).abort_handle();
        Ok(Self { addr, state, task })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The address for a store.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Sets what happens to each piece from now on; the default passes everything on at once.
    pub fn set(&self, fault: Fault) {
        self.state.fault.send_replace(fault);
    }

    /// Cuts every connection now. New ones are accepted.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|count| *count += 1);
    }

    /// Cuts every connection once the server has sent this many more bytes: in the middle of an answer.
    pub fn cut_after(&self, bytes: u64) {
        self.state.cut_after.store(bytes, Ordering::SeqCst);
    }

    /// Whether the cut asked for by [`cut_after`](Self::cut_after) has happened.
    pub fn was_cut(&self) -> bool {
        self.state.cut_after.load(Ordering::SeqCst) == u64::MAX
    }

    /// Sets a trap that springs when the server has been sent so many more commands, on all connections together.
    pub fn after_commands(&self, count: u64, trap: Trap) {
        self.set_trap(count, Vec::new(), trap);
    }

    /// The same after so many calls of one script, by its digest.
    pub fn after_calls(&self, sha1: &str, count: u64, trap: Trap) {
        self.set_trap(count, sha1.as_bytes().to_vec(), trap);
    }

    fn set_trap(&self, count: u64, only: Vec<u8>, trap: Trap) {
        self.state.sprung.store(false, Ordering::SeqCst);
        *self.state.trap.lock() = Some(Set { left: count.max(1), only, trap });
    }

    /// Leads new connections to another server, as an address does that moves in a fail-over; those that stand are cut.
    pub fn lead_to(&self, behind: Behind) {
        *self.state.behind.lock() = behind;
        self.cut();
    }

    /// Whether the trap of [`after_commands`](Self::after_commands) has sprung.
    pub fn sprung(&self) -> bool {
        self.state.sprung.load(Ordering::SeqCst)
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    /// Counts commands that end here. Answers where the one ends with which the trap springs, if it does.
    fn spring(&self, ends: &[End]) -> Option<(usize, Trap)> {
        let mut set = self.trap.lock();
        let trap = set.as_mut()?;
        let mut counted = ends.iter().filter(|end| end.second.starts_with(&trap.only));
        let last = usize::try_from(trap.left - 1).ok().and_then(|skipped| counted.nth(skipped));
        let Some(end) = last else {
            trap.left -= ends.iter().filter(|end| end.second.starts_with(&trap.only)).count() as u64;
            return None;
        };
        let sprung = (end.at, trap.trap);
        *set = None;
        self.sprung.store(true, Ordering::SeqCst);
        Some(sprung)
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    // Connections end with this set, and so with the proxy.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                state.accepted.fetch_add(1, Ordering::SeqCst);
                // Without it small pieces would be held back by the kernel; an error changes nothing else.
                let _ = client.set_nodelay(true);
                connections.spawn(connect(client, Arc::clone(&state)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(client: TcpStream, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    let served = async {
        let behind = state.behind.lock().clone();
        match behind {
            Behind::Unix(path) => serve(client, UnixStream::connect(path).await?, &state).await,
            Behind::Tcp(addr) => serve(client, TcpStream::connect(addr).await?, &state).await,
        }
    };
    tokio::select! {
        // However a connection ends, both of its ends are closed.
        _ = served => {}
        _ = cuts.changed() => {}
    }
}

async fn serve<S: AsyncRead + AsyncWrite>(client: TcpStream, server: S, state: &State) -> io::Result<()> {
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = tokio::io::split(server);
    tokio::select! {
        done = carry(client_in, server_out, state, false) => done,
        done = carry(server_in, client_out, state, true) => done,
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    answers: bool,
) -> io::Result<()> {
    let mut fault = state.fault.subscribe();
    let mut piece = vec![0; PIECE_BYTES];
    let mut commands = Commands::default();
    let stalled = |fault: &Fault| fault.half_open || (fault.deaf && !answers);
    loop {
        // The sender lives as long as the state, so this waits for a change and nothing else.
        let _ = fault.wait_for(|fault| !stalled(fault)).await;
        let length = tokio::select! {
            length = from.read(&mut piece) => length?,
            _ = fault.wait_for(stalled) => continue,
        };
        if length == 0 {
            return Ok(());
        }
        let delay = fault.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let _ = fault.wait_for(|fault| !stalled(fault)).await;
        let mut pass = length;
        if !answers {
            let ends = commands.ends(&piece[..length]);
            if let Some((at, trap)) = state.spring(&ends) {
                to.write_all(&piece[..at]).await?;
                to.flush().await?;
                match trap {
                    Trap::Cut => {
                        state.cuts.send_modify(|count| *count += 1);
                        return Ok(());
                    }
                    Trap::Stall => {
                        state.fault.send_modify(|fault| fault.half_open = true);
                        let _ = fault.wait_for(|fault| !stalled(fault)).await;
                        to.write_all(&piece[at..length]).await?;
                        continue;
                    }
                }
            }
        }
        if answers {
            let left = state.cut_after.load(Ordering::SeqCst);
            let length = u64::try_from(length).unwrap_or(u64::MAX);
            if left != u64::MAX {
                pass = pass.min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left.checked_sub(length);
                state.cut_after.store(left.unwrap_or(u64::MAX), Ordering::SeqCst);
                if left.is_none() {
                    to.write_all(&piece[..pass]).await?;
                    to.flush().await?;
                    state.cuts.send_modify(|count| *count += 1);
                    return Ok(());
                }
            }
        }
        to.write_all(&piece[..pass]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_end_where_they_end_however_they_are_cut() {
        let sent = b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$8\r\n*1\r\n$4\r\n\r\nPING\r\n";
        let end = |at: usize, second: &str| End { at, second: second.as_bytes().to_vec() };
        let expected = [end(14, ""), end(sent.len() - 6, "a\r\n"), end(sent.len(), "")];
        assert_eq!(Commands::default().ends(sent), expected);
        let (mut commands, mut found) = (Commands::default(), Vec::new());
        for (at, byte) in sent.iter().enumerate() {
            let ends = commands.ends(&[*byte]).into_iter();
            found.extend(ends.map(|end| End { at: at + end.at, ..end }));
        }
        assert_eq!(found, expected);
    }
}
