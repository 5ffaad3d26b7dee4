//! What this process has begun and not yet reported, in a file that outlives it.
//!
//! Append-only. A run is written before its handler is entered, its outcome before the ack leaves,
//! and both are struck out when the ack is answered. A process that finds such a file reports first
//! what it says, each outcome under its own grant, so nothing here can be believed too late: a grant
//! that no longer stands is answered `stale` and changes nothing.
//!
//! | bytes | content |
//! | --- | --- |
//! | 8 | `MHJRNL1\n` |
//! | … | records: length of the body (4), checksum of length and body (4), body; big-endian |
//!
//! | body | says |
//! | --- | --- |
//! | `n` namespace | whose work this is; the first record |
//! | `b` n × (id 16, grant 18) | these handlers are entered now |
//! | `f` id 16, grant 18, lag 8, took 8, outcome 1, ms 8, counted 1, error | this one ended so |
//! | `s` n × (id 16, grant 18) | these need no report any more |
//!
//! A record that is cut short or does not match its checksum ends the file: it and what follows are
//! cut off and named in the log. What is lost with them is reported by nobody, and comes back when its
//! lease lapses.
//!
//! A record counts as written when the kernel has it, which survives the death of this process and not
//! that of the machine. With `fsync` it survives that too; outcomes that end meanwhile share one sync.
//!
//! The file is rewritten with what is open once it is large, and never grows beyond
//! [`limits::JOURNAL_MAX_BYTES`]. One process owns it, by a lock that ends with the process. When it
//! cannot be written, it is switched off, loudly: work goes on as without a journal.

use super::link::{AckRow, Outcome};
use crate::limits;
use crate::model::{ExecutionId, Grant, TaskId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: &[u8; 8] = b"MHJRNL1\n";
/// Length and checksum.
const HEAD: usize = 8;
/// Id and grant.
const EXECUTION: usize = TaskId::LEN + Grant::LEN;
/// A file in which nothing is open is emptied once it has this much.
const IDLE_BYTES: u64 = 64 << 10;
/// Times that a file is opened anew because its owner replaced it in that moment.
const OPEN_TRIES: u32 = 8;

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has it.
    #[error("journal {path} is in use by another executor; give each its own")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path} is not a journal of this version of minutehand; name another file, or move it away")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file holds unreported work of another namespace.
    #[error(
        "journal {path} holds unreported work of namespace {found}; start an executor there first, or move the file away"
    )]
    OtherNamespace {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
    },
    /// The file holds more than an executor can have begun.
    #[error("journal {path} holds more open work than an executor can have; move it away")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be used.
    #[error("could not {what} journal {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// What an earlier process left unreported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// Handlers that were entered and never ended.
    pub begun: Vec<ExecutionId>,
    /// Outcomes whose acks were not answered.
    pub finished: Vec<AckRow>,
}

/// What stands in a journal: what was begun, with its outcome once there is one.
type Open = HashMap<ExecutionId, Option<AckRow>>;

/// What reading a journal gave.
#[derive(Debug, Default)]
struct Contents {
    namespace: Option<String>,
    open: Open,
    /// Where the last good record ends.
    good: u64,
    /// Why reading ended there, if something follows.
    torn: Option<&'static str>,
}

/// Why bytes are no journal at all.
#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    Foreign,
    TooLarge,
    Io(io::ErrorKind),
}

/// The journal of a running executor.
pub(super) struct Journal {
    path: PathBuf,
    namespace: String,
    fsync: bool,
    on: AtomicBool,
    inner: Mutex<Inner>,
    /// How many bytes of all that were ever written are on the disk; see [`Journal::sync`].
    synced: Mutex<u64>,
}

struct Inner {
    file: Arc<File>,
    /// Open executions, encoded as they would be written again.
    open: HashMap<ExecutionId, Option<Box<[u8]>>>,
    /// Bytes in the file.
    size: u64,
    /// Bytes at which it is written anew.
    compact_at: u64,
    /// Bytes ever written.
    written: u64,
    /// The record in the making; kept to be filled again.
    buffer: Vec<u8>,
}

fn checksum(body: &[u8]) -> u32 {
    xxh3_64_with_seed(body, body.len() as u64) as u32
}

/// Appends a record whose body `fill` writes.
fn record(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    fill(out);
    let body = &out[start + HEAD..];
    let (length, sum) = (body.len() as u32, checksum(body));
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + HEAD].copy_from_slice(&sum.to_be_bytes());
}

fn put_execution(out: &mut Vec<u8>, execution: &ExecutionId) {
    out.extend_from_slice(execution.id.as_bytes());
    out.extend_from_slice(execution.grant.as_bytes());
}

/// Records of one kind that name executions, each within the largest size.
fn put_executions<'a>(out: &mut Vec<u8>, kind: u8, executions: impl IntoIterator<Item = &'a ExecutionId>) {
    let mut executions = executions.into_iter().peekable();
    while executions.peek().is_some() {
        record(out, |out| {
            out.push(kind);
            for execution in executions.by_ref().take(limits::BATCH_MAX_ROWS) {
                put_execution(out, execution);
            }
        });
    }
}

fn put_finished(out: &mut Vec<u8>, row: &AckRow) {
    let (kind, ms, counted, error) = match &row.outcome {
        Outcome::Succeeded => (b'S', 0, false, ""),
        Outcome::Cancelled => (b'C', 0, false, ""),
        Outcome::Skipped => (b'K', 0, false, ""),
        Outcome::Failed { error } => (b'F', 0, false, error.as_str()),
        Outcome::Fatal { error } => (b'D', 0, false, error.as_str()),
        Outcome::RetryAfter { ms, counted, error } => (b'A', *ms, *counted, error.as_str()),
    };
    // No more is kept of an error than Redis would keep.
    let cut = error.len().saturating_sub(limits::ERROR_TAIL_MAX_BYTES);
    let error = &error[error.ceil_char_boundary(cut)..];
    record(out, |out| {
        out.push(b'f');
        put_execution(out, &ExecutionId { id: row.id, grant: row.grant });
        out.extend_from_slice(&row.lag_ms.to_be_bytes());
        out.extend_from_slice(&row.took_ms.to_be_bytes());
        out.push(kind);
        out.extend_from_slice(&ms.to_be_bytes());
        out.push(u8::from(counted));
        out.extend_from_slice(error.as_bytes());
    });
}

fn head(out: &mut Vec<u8>, namespace: &str) {
    out.extend_from_slice(MAGIC);
    record(out, |out| {
        out.push(b'n');
        out.extend_from_slice(namespace.as_bytes());
    });
}

fn head_len(namespace: &str) -> u64 {
    (MAGIC.len() + HEAD + 1 + namespace.len()) as u64
}

fn get_execution(bytes: &[u8]) -> Option<ExecutionId> {
    let (id, grant) = bytes.get(..EXECUTION)?.split_at(TaskId::LEN);
    Some(ExecutionId { id: TaskId::from_bytes(id)?, grant: Grant::from_bytes(grant)? })
}

fn get_finished(body: &[u8]) -> Option<AckRow> {
    let ExecutionId { id, grant } = get_execution(body.get(1..)?)?;
    let rest = body.get(1 + EXECUTION..)?;
    let number = |at: usize| Some(i64::from_be_bytes(rest.get(at..at + 8)?.try_into().ok()?));
    let (lag_ms, took_ms, kind, ms) = (number(0)?, number(8)?, *rest.get(16)?, number(17)?);
    let counted = match rest.get(25)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let error = rest.get(26..).filter(|error| error.len() <= limits::ERROR_TAIL_MAX_BYTES)?;
    let error = || String::from_utf8(error.to_vec()).ok();
    let outcome = match kind {
        b'S' => Outcome::Succeeded,
        b'C' => Outcome::Cancelled,
        b'K' => Outcome::Skipped,
        b'F' => Outcome::Failed { error: error()? },
        b'D' => Outcome::Fatal { error: error()? },
        b'A' => Outcome::RetryAfter { ms, counted, error: error()? },
        _ => return None,
    };
    Some(AckRow { id, grant, outcome, lag_ms, took_ms })
}

impl Contents {
    /// Takes in one record's body. None: it is no record of this version.
    fn apply(&mut self, body: &[u8]) -> Option<Result<(), Unreadable>> {
        let executions = |body: &[u8]| -> Option<Vec<ExecutionId>> {
            let list = &body[1..];
            let whole = !list.is_empty() && list.len().is_multiple_of(EXECUTION);
            if whole { list.chunks(EXECUTION).map(get_execution).collect() } else { None }
        };
        match body.first()? {
            b'n' if self.namespace.is_none() => {
                self.namespace = Some(String::from_utf8(body[1..].to_vec()).ok()?);
            }
            // Whose work is it? Nothing may stand before that is said.
            _ if self.namespace.is_none() => return None,
            b'b' => {
                for execution in executions(body)? {
                    self.open.entry(execution).or_insert(None);
                }
            }
            b'f' => {
                let row = get_finished(body)?;
                self.open.insert(ExecutionId { id: row.id, grant: row.grant }, Some(row));
            }
            b's' => {
                for execution in executions(body)? {
                    self.open.remove(&execution);
                }
            }
            _ => return None,
        }
        let fits = self.open.len() <= limits::JOURNAL_OPEN_MAX;
        Some(if fits { Ok(()) } else { Err(Unreadable::TooLarge) })
    }
}

/// Fills as much of `into` as there is.
fn read_up_to(reader: &mut impl Read, into: &mut [u8]) -> Result<usize, Unreadable> {
    let mut at = 0;
    while at < into.len() {
        match reader.read(&mut into[at..]) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Unreadable::Io(error.kind())),
        }
    }
    Ok(at)
}

/// Reads a journal up to its first bad record. Total for all inputs, in bounded memory.
fn read(mut reader: impl Read) -> Result<Contents, Unreadable> {
    let mut contents = Contents::default();
    let mut magic = [0; MAGIC.len()];
    let length = read_up_to(&mut reader, &mut magic)?;
    if magic[..length] != MAGIC[..length] {
        return Err(Unreadable::Foreign);
    }
    if length < MAGIC.len() {
        // Cut off while it was made; nothing can have been in it.
        contents.torn = (length > 0).then_some("its head is cut short");
        return Ok(contents);
    }
    contents.good = MAGIC.len() as u64;
    let mut body = Vec::new();
    loop {
        let mut head = [0; HEAD];
        let length = read_up_to(&mut reader, &mut head)?;
        if length == 0 {
            return Ok(contents);
        }
        let [a, b, c, d, e, f, g, h] = head;
        let (size, sum) = (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes([e, f, g, h]));
        let torn = if length < HEAD {
            "it is cut short"
        } else if size == 0 || size > limits::JOURNAL_RECORD_MAX_BYTES {
            "its length is impossible"
        } else {
            body.resize(size, 0);
            if read_up_to(&mut reader, &mut body)? < size {
                "it is cut short"
            } else if checksum(&body) != sum {
                "its checksum does not match"
            } else {
                match contents.apply(&body) {
                    Some(Ok(())) => {
                        contents.good += (HEAD + size) as u64;
                        continue;
                    }
                    Some(Err(error)) => return Err(error),
                    None => "it is of no known kind",
                }
            }
        };
        contents.torn = Some(torn);
        return Ok(contents);
    }
}

/// Reads anything as a journal; answers how many executions are open in it.
#[cfg(any(test, feature = "testing"))]
pub(super) fn look(bytes: &[u8]) -> Option<usize> {
    read(bytes).ok().map(|contents| contents.open.len())
}

/// Reads anything as the body of a record of an outcome. What is read can be written and read again.
#[cfg(any(test, feature = "testing"))]
pub(super) fn look_at_outcome(body: &[u8]) -> Option<AckRow> {
    let row = get_finished(body)?;
    let mut again = Vec::new();
    put_finished(&mut again, &row);
    assert_eq!(get_finished(&again[HEAD..]).as_ref(), Some(&row), "what was written can be read");
    Some(row)
}

/// Journals, and bodies of outcomes, that are well formed.
#[cfg(any(test, feature = "testing"))]
pub(super) fn seeds() -> [Vec<Vec<u8>>; 2] {
    let id = TaskId::new(crate::model::Minute(29_408_521), crate::model::Bucket::default(), 7);
    let execution = ExecutionId { id, grant: Grant::new(3, crate::model::Nonce::new(9)) };
    let error = || "no such number".to_owned();
    let outcomes = [
        Outcome::Succeeded,
        Outcome::Failed { error: error() },
        Outcome::Fatal { error: error() },
        Outcome::RetryAfter { ms: 5_000, counted: true, error: error() },
    ];
    let mut journal = Vec::new();
    head(&mut journal, "mh");
    put_executions(&mut journal, b'b', [&execution]);
    let mut bodies = Vec::new();
    for outcome in outcomes {
        let row = AckRow { id, grant: execution.grant, outcome, lag_ms: 3, took_ms: 14 };
        let mut out = Vec::new();
        put_finished(&mut out, &row);
        journal.extend_from_slice(&out);
        bodies.push(out[HEAD..].to_vec());
    }
    put_executions(&mut journal, b's', [&execution]);
    [vec![journal], bodies]
}

impl Journal {
    /// Opens or makes the journal at `path` for executors of `namespace`, and tells what it holds.
    /// Blocks on the disk.
    pub fn open(path: &Path, namespace: &str, fsync: bool) -> Result<(Self, Recovered), JournalError> {
        let fail = |what| move |source| JournalError::Io { what, path: path.to_owned(), source };
        let file = lock(path)?;
        let found = file.metadata().map_err(fail("look at"))?;
        if !found.is_file() {
            return Err(JournalError::Foreign { path: path.to_owned() });
        }
        let size = found.len();
        if size > limits::JOURNAL_MAX_BYTES {
            return Err(JournalError::TooLarge { path: path.to_owned() });
        }
        let contents = read(BufReader::with_capacity(64 << 10, &*file)).map_err(|error| match error {
            Unreadable::Foreign => JournalError::Foreign { path: path.to_owned() },
            Unreadable::TooLarge => JournalError::TooLarge { path: path.to_owned() },
            Unreadable::Io(kind) => fail("read")(kind.into()),
        })?;
        if let Some(why) = contents.torn {
            let (at, bytes) = (contents.good, size - contents.good);
            tracing::warn!(
                journal = %path.display(), at, bytes, why,
                "the journal's last record is damaged; it and what follows are cut off"
            );
        }
        let found = contents.namespace.as_deref().unwrap_or(namespace);
        if found != namespace && !contents.open.is_empty() {
            return Err(JournalError::OtherNamespace { path: path.to_owned(), found: found.to_owned() });
        }
        let mut open = HashMap::with_capacity(contents.open.len());
        let mut recovered = Recovered::default();
        for (execution, row) in contents.open {
            let encoded = row.as_ref().map(|row| {
                let mut out = Vec::new();
                put_finished(&mut out, row);
                out.into_boxed_slice()
            });
            open.insert(execution, encoded);
            match row {
                Some(row) => recovered.finished.push(row),
                None => recovered.begun.push(execution),
            }
        }
        let journal = Self {
            path: path.to_owned(),
            namespace: namespace.to_owned(),
            fsync,
            on: AtomicBool::new(true),
            inner: Mutex::new(Inner {
                file,
                open,
                size: contents.good,
                compact_at: limits::JOURNAL_COMPACT_BYTES,
                written: 0,
                buffer: Vec::new(),
            }),
            synced: Mutex::new(0),
        };
        {
            let mut inner = journal.inner.lock();
            inner.file.set_len(contents.good).map_err(fail("cut"))?;
            if contents.namespace.as_deref() != Some(namespace) {
                journal.rewrite(&mut inner).map_err(fail("begin"))?;
            }
        }
        Ok((journal, recovered))
    }

    /// Whether it is being written.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Handlers are about to be entered.
    pub fn begin(&self, executions: &[ExecutionId]) {
        self.write(|inner, out| {
            for execution in executions {
                inner.entry(*execution).or_insert(None);
            }
            put_executions(out, b'b', executions);
        });
    }

    /// A handler has ended, and another one is about to be entered in its place. Answers what to give
    /// to [`Journal::sync`].
    pub fn finish(&self, row: &AckRow, next: Option<&ExecutionId>) -> u64 {
        self.write(|inner, out| {
            put_finished(out, row);
            inner.insert(ExecutionId { id: row.id, grant: row.grant }, Some(out.as_slice().into()));
            if let Some(next) = next {
                inner.entry(*next).or_insert(None);
                put_executions(out, b'b', [next]);
            }
        })
    }

    /// Nothing needs to be reported of these any more.
    pub fn settle(&self, executions: &[ExecutionId]) {
        self.write(|inner, out| {
            let known: Vec<_> =
                executions.iter().filter(|execution| inner.remove(execution).is_some()).collect();
            put_executions(out, b's', known);
        });
    }

    /// Waits until what was written up to `mark` is on the disk, if that is asked for.
    pub async fn sync(self: &Arc<Self>, mark: u64) {
        if !self.fsync || !self.is_on() {
            return;
        }
        let journal = Arc::clone(self);
        // Whoever waits for the lock finds its records synced by the one before, with all the others.
        let sync = move || {
            let mut synced = journal.synced.lock();
            if *synced >= mark {
                return;
            }
            let (file, written) = {
                let inner = journal.inner.lock();
                (Arc::clone(&inner.file), inner.written)
            };
            match file.sync_data() {
                Ok(()) => *synced = written,
                Err(error) => journal.give_up("could not be forced to the disk", &error.to_string()),
            }
        };
        // It only fails if the runtime ends, and this process with it.
        let _ = tokio::task::spawn_blocking(sync).await;
    }

    fn give_up(&self, what: &str, why: &str) {
        if self.on.swap(false, Ordering::AcqRel) {
            tracing::error!(
                journal = %self.path.display(), why,
                "the journal {what}; it is off until this executor is started again: what is running or \
                 unreported when it dies comes back when the leases lapse"
            );
        }
    }

    /// Appends the records that `fill` makes. Answers how many bytes were ever written.
    fn write(&self, fill: impl FnOnce(&mut HashMap<ExecutionId, Option<Box<[u8]>>>, &mut Vec<u8>)) -> u64 {
        if !self.is_on() {
            return 0;
        }
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.buffer.clear();
        fill(&mut inner.open, &mut inner.buffer);
        if inner.buffer.is_empty() {
            return inner.written;
        }
        let length = inner.buffer.len() as u64;
        if inner.size + length > limits::JOURNAL_MAX_BYTES || inner.open.len() > limits::JOURNAL_OPEN_MAX {
            self.give_up("is full", "more is open than an executor should have");
            return 0;
        }
        if let Err(error) = (&*inner.file).write_all(&inner.buffer) {
            // Half a record would hide all that came after it.
            let _ = inner.file.set_len(inner.size);
            self.give_up("could not be written", &error.to_string());
            return 0;
        }
        inner.size += length;
        inner.written += length;
        if let Err(error) = self.shorten(inner) {
            self.give_up("could not be written anew", &error.to_string());
        }
        inner.written
    }

    /// Keeps the file small.
    fn shorten(&self, inner: &mut Inner) -> io::Result<()> {
        let head = head_len(&self.namespace);
        if inner.open.is_empty() && inner.size >= head + IDLE_BYTES {
            inner.file.set_len(head)?;
            inner.size = head;
            inner.compact_at = limits::JOURNAL_COMPACT_BYTES;
        } else if inner.size >= inner.compact_at {
            self.rewrite(inner)?;
        }
        Ok(())
    }

    /// Writes what is open into a new file, which then takes the place of the old one.
    fn rewrite(&self, inner: &mut Inner) -> io::Result<()> {
        let mut out = Vec::new();
        head(&mut out, &self.namespace);
        put_executions(&mut out, b'b', inner.open.iter().filter(|(_, row)| row.is_none()).map(|(id, _)| id));
        for row in inner.open.values().flatten() {
            out.extend_from_slice(row);
        }
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        let file = options().open(&new)?;
        // Before it can be found under its name: its owner is this process from the start.
        file.try_lock().map_err(io::Error::from)?;
        file.set_len(0)?;
        (&file).write_all(&out)?;
        if self.fsync {
            file.sync_data()?;
        }
        fs::rename(&new, &self.path)?;
        if self.fsync
            && let Some(dir) = self.path.parent()
        {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            File::open(dir)?.sync_all()?;
        }
        inner.file = Arc::new(file);
        inner.size = out.len() as u64;
        inner.written += inner.size;
        inner.compact_at = limits::JOURNAL_COMPACT_BYTES.max(2 * inner.size);
        Ok(())
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({})", self.path.display())
    }
}

/// For the owner's eyes only: errors of handlers may say anything.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options
}

/// Opens the file that stands at `path` and becomes its owner.
fn lock(path: &Path) -> Result<Arc<File>, JournalError> {
    let fail = |what| move |source| JournalError::Io { what, path: path.to_owned(), source };
    for _ in 0..OPEN_TRIES {
        let file = options().open(path).map_err(fail("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(fail("lock")(error)),
        }
        // Its last owner may have put a new file into its place between the two steps.
        let mine = file.metadata().map_err(fail("look at"))?;
        match fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (mine.dev(), mine.ino()) => return Ok(Arc::new(file)),
            _ => {}
        }
    }
    Err(JournalError::InUse { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Minute, Nonce};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A directory that goes with its test.
    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("minutehand-journal-{}", uuid::Uuid::new_v4()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("journal")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn execution(number: u64) -> ExecutionId {
        let id = TaskId::new(Minute(29_408_521), Bucket::new((number % 4) as u16).unwrap(), number);
        ExecutionId { id, grant: Grant::new(1, Nonce::new(number)) }
    }

    fn row(number: u64, outcome: Outcome) -> AckRow {
        let ExecutionId { id, grant } = execution(number);
        AckRow { id, grant, outcome, lag_ms: 3, took_ms: 11 }
    }

    fn done(number: u64) -> AckRow {
        row(number, Outcome::Succeeded)
    }

    fn open(path: &Path) -> (Arc<Journal>, Recovered) {
        let (journal, recovered) = Journal::open(path, "mh", false).unwrap();
        (Arc::new(journal), recovered)
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        let error = || "\\PC{0,40}";
        prop_oneof![
            Just(Outcome::Succeeded),
            Just(Outcome::Cancelled),
            Just(Outcome::Skipped),
            error().prop_map(|error| Outcome::Failed { error }),
            error().prop_map(|error| Outcome::Fatal { error }),
            (0i64..99_999, any::<bool>(), error()).prop_map(|(ms, counted, error)| Outcome::RetryAfter {
                ms,
                counted,
                error
            }),
        ]
    }

    #[test]
    fn what_was_begun_and_what_ended_is_found_again() {
        let dir = Dir::new();
        let (journal, nothing) = open(&dir.file());
        assert_eq!(nothing, Recovered::default());
        journal.begin(&[execution(1), execution(2), execution(3)]);
        let failed = row(1, Outcome::Failed { error: "no route to host: é".into() });
        journal.finish(&failed, Some(&execution(4)));
        journal.finish(&done(2), None);
        journal.settle(&[execution(2), execution(77)]);
        drop(journal);
        let (_journal, mut found) = open(&dir.file());
        found.begun.sort_by_key(|execution| execution.grant);
        assert_eq!((found.begun, found.finished), (vec![execution(3), execution(4)], vec![failed]));
        let mode = fs::metadata(dir.file()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "errors of handlers are nobody else's business");
    }

    #[test]
    fn a_journal_has_one_owner() {
        let dir = Dir::new();
        let (journal, _) = open(&dir.file());
        let error = Journal::open(&dir.file(), "mh", false).unwrap_err();
        assert!(matches!(error, JournalError::InUse { .. }), "{error}");
        assert!(error.to_string().ends_with("is in use by another executor; give each its own"), "{error}");
        // Also after it was written anew, which puts another file into its place.
        journal.rewrite(&mut journal.inner.lock()).unwrap();
        assert!(matches!(Journal::open(&dir.file(), "mh", false).unwrap_err(), JournalError::InUse { .. }));
        drop(journal);
        open(&dir.file());
    }

    #[test]
    fn it_takes_no_file_for_a_journal_that_is_none() {
        let dir = Dir::new();
        fs::write(dir.file(), "a plan of mine").unwrap();
        let error = Journal::open(&dir.file(), "mh", false).unwrap_err();
        assert!(matches!(error, JournalError::Foreign { .. }), "{error}");
        assert_eq!(fs::read(dir.file()).unwrap(), b"a plan of mine", "and leaves it alone");
        let nowhere = Journal::open(&dir.0.join("no/where"), "mh", false).unwrap_err();
        assert!(nowhere.to_string().contains("could not open journal"), "{nowhere}");
        let device = Journal::open(Path::new("/dev/null"), "mh", false).unwrap_err();
        assert!(matches!(device, JournalError::Foreign { .. }), "{device}");
    }

    #[test]
    fn work_of_another_namespace_is_not_lost_on_the_way() {
        let dir = Dir::new();
        let (journal, _) = open(&dir.file());
        journal.begin(&[execution(1)]);
        drop(journal);
        let error = Journal::open(&dir.file(), "other", false).unwrap_err();
        assert!(matches!(&error, JournalError::OtherNamespace { found, .. } if found == "mh"), "{error}");
        let (journal, found) = open(&dir.file());
        assert_eq!(found.begun, [execution(1)]);
        journal.settle(&found.begun);
        drop(journal);
        // Nothing is open in it: it may change hands.
        Journal::open(&dir.file(), "other", false).unwrap();
        let (_, found) = Journal::open(&dir.file(), "other", false).unwrap();
        assert_eq!(found, Recovered::default());
    }

    #[test]
    fn it_stays_small_whatever_passes_through_it() {
        let dir = Dir::new();
        let (journal, _) = open(&dir.file());
        let late = row(0, Outcome::Fatal { error: "e".repeat(1_024) });
        journal.begin(&[execution(0)]);
        journal.finish(&late, None);
        let mut largest = 0;
        for number in 1..40_000 {
            journal.begin(&[execution(number)]);
            journal.finish(&done(number), None);
            journal.settle(&[execution(number)]);
            largest = largest.max(journal.inner.lock().size);
        }
        assert!(largest < limits::JOURNAL_COMPACT_BYTES + 1_024, "{largest}");
        assert_eq!(journal.inner.lock().size, fs::metadata(dir.file()).unwrap().len());
        journal.settle(&[execution(0)]);
        // With nothing open it is emptied in its place.
        for number in 1..2_000 {
            journal.finish(&done(number), None);
            journal.settle(&[execution(number)]);
            assert!(journal.inner.lock().size <= IDLE_BYTES + 1_024);
        }
        drop(journal);
        assert_eq!(open(&dir.file()).1, Recovered::default());
    }

    #[test]
    fn a_journal_that_cannot_be_written_is_switched_off() {
        let dir = Dir::new();
        let (journal, _) = open(&dir.file());
        journal.begin(&[execution(1)]);
        journal.inner.lock().file = Arc::new(File::open(dir.file()).unwrap());
        journal.begin(&[execution(2)]);
        assert!(!journal.is_on());
        journal.finish(&done(1), None);
        journal.settle(&[execution(1)]);
        drop(journal);
        assert_eq!(open(&dir.file()).1.begun, [execution(1)], "what had been written still stands");
    }

    #[test]
    fn one_that_is_too_full_is_switched_off_and_one_that_is_found_so_is_refused() {
        let dir = Dir::new();
        let (journal, _) = open(&dir.file());
        let many = |from: u64, to: u64| (from..to).map(execution).collect::<Vec<_>>();
        let most = limits::JOURNAL_OPEN_MAX as u64;
        journal.begin(&many(0, most));
        assert!(journal.is_on());
        journal.begin(&many(most, most + 1));
        assert!(!journal.is_on());
        drop(journal);
        assert_eq!(open(&dir.file()).1.begun.len(), limits::JOURNAL_OPEN_MAX);
        let mut out = Vec::new();
        head(&mut out, "mh");
        put_executions(&mut out, b'b', &many(0, most + 1));
        assert_eq!(read(&out[..]).unwrap_err(), Unreadable::TooLarge);
    }

    #[tokio::test]
    async fn a_sync_covers_what_was_written_before_it() {
        let dir = Dir::new();
        let (journal, _) = Journal::open(&dir.file(), "mh", true).unwrap();
        let journal = Arc::new(journal);
        let first = journal.finish(&done(1), None);
        let second = journal.finish(&done(2), None);
        assert!(first < second);
        journal.sync(second).await;
        assert_eq!(*journal.synced.lock(), second);
        // Synced already: nothing is done.
        journal.sync(first).await;
        assert_eq!(*journal.synced.lock(), second);
    }

    /// A step in the life of a journal, for execution `.1`.
    #[derive(Debug, Clone)]
    enum Step {
        Begin(u64),
        Finish(u64, Outcome, Option<u64>),
        Settle(u64),
        Rewrite,
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..12).prop_map(Step::Begin),
            4 => (0u64..12, outcome(), proptest::option::of(0u64..12)).prop_map(|(n, o, next)| Step::Finish(n, o, next)),
            3 => (0u64..12).prop_map(Step::Settle),
            1 => Just(Step::Rewrite),
            1 => Just(Step::Restart),
        ]
    }

    fn sorted(found: Recovered) -> BTreeMap<ExecutionId, Option<AckRow>> {
        let begun = found.begun.into_iter().map(|execution| (execution, None));
        let finished =
            found.finished.into_iter().map(|row| (ExecutionId { id: row.id, grant: row.grant }, Some(row)));
        begun.chain(finished).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever happens in whatever order, the next process finds what a table in memory would hold.
        #[test]
        fn it_is_a_table_that_outlives_its_process(steps in proptest::collection::vec(step(), 0..60)) {
            let dir = Dir::new();
            let (mut journal, _) = open(&dir.file());
            let mut model = BTreeMap::<ExecutionId, Option<AckRow>>::new();
            for step in steps.into_iter().chain([Step::Restart]) {
                match step {
                    Step::Begin(n) => {
                        journal.begin(&[execution(n)]);
                        model.entry(execution(n)).or_insert(None);
                    }
                    Step::Finish(n, outcome, next) => {
                        let next = next.map(execution);
                        journal.finish(&row(n, outcome.clone()), next.as_ref());
                        model.insert(execution(n), Some(row(n, outcome)));
                        if let Some(next) = next {
                            model.entry(next).or_insert(None);
                        }
                    }
                    Step::Settle(n) => {
                        journal.settle(&[execution(n)]);
                        model.remove(&execution(n));
                    }
                    Step::Rewrite => journal.rewrite(&mut journal.inner.lock()).unwrap(),
                    Step::Restart => {
                        drop(journal);
                        let found;
                        (journal, found) = open(&dir.file());
                        prop_assert_eq!(sorted(found), model.clone());
                    }
                }
            }
        }

        /// A file that was cut anywhere, or in which bytes were turned, gives what its first good records
        /// say; it can be written on, and the next process finds both.
        #[test]
        fn a_damaged_tail_costs_only_itself(
            outcomes in proptest::collection::vec(outcome(), 1..12),
            cut in any::<prop::sample::Index>(),
            flip in proptest::option::of((any::<prop::sample::Index>(), 1u8..=255)),
        ) {
            let dir = Dir::new();
            let mut bytes = Vec::new();
            head(&mut bytes, "mh");
            let mut ends = vec![bytes.len()];
            let rows: Vec<_> = outcomes.into_iter().enumerate().map(|(n, outcome)| row(n as u64, outcome)).collect();
            for row in &rows {
                put_finished(&mut bytes, row);
                ends.push(bytes.len());
            }
            let mut good = cut.index(bytes.len() - ends[0]) + ends[0];
            bytes.truncate(good);
            if let Some((at, mask)) = flip.filter(|_| good > ends[0]) {
                let at = ends[0] + at.index(good - ends[0]);
                bytes[at] ^= mask;
                good = at;
            }
            let whole = ends.iter().filter(|end| **end <= good).count() - 1;
            fs::write(dir.file(), &bytes).unwrap();
            let (journal, found) = open(&dir.file());
            prop_assert_eq!(found.finished.len(), whole);
            prop_assert!(found.finished.iter().all(|row| rows[..whole].contains(row)));
            prop_assert_eq!(fs::metadata(dir.file()).unwrap().len(), ends[whole] as u64, "the rest is cut off");
            journal.begin(&[execution(99)]);
            drop(journal);
            let (_, found) = open(&dir.file());
            prop_assert_eq!((found.finished.len(), found.begun), (whole, vec![execution(99)]));
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            magic: bool,
            size in proptest::option::of(any::<u32>()),
        ) {
            let mut all = if magic { MAGIC.to_vec() } else { Vec::new() };
            if let Some(size) = size {
                all.extend_from_slice(&size.to_be_bytes());
            }
            all.extend_from_slice(&bytes);
            if let Ok(contents) = read(&all[..]) {
                prop_assert!(contents.good <= all.len() as u64);
                prop_assert_eq!(contents.torn.is_some(), contents.good < all.len() as u64);
            }
        }

        /// Also where the checksum is right and only the body is of another version.
        #[test]
        fn any_body_is_a_value_or_an_error(body in proptest::collection::vec(any::<u8>(), 1..200), kind in prop::sample::select(b"nbfsx".to_vec())) {
            let mut all = Vec::new();
            head(&mut all, "mh");
            record(&mut all, |out| {
                out.push(kind);
                out.extend_from_slice(&body);
            });
            let contents = read(&all[..]).unwrap();
            prop_assert!(contents.open.len() <= 200 / EXECUTION);
        }

        #[test]
        fn outcomes_are_read_back(outcome in outcome(), lag_ms: i64, took_ms: i64) {
            let row = AckRow { lag_ms, took_ms, ..row(5, outcome) };
            let mut out = Vec::new();
            put_finished(&mut out, &row);
            prop_assert_eq!(get_finished(&out[HEAD..]), Some(row));
        }
    }
}
