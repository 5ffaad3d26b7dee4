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

mod format;
#[cfg(test)]
mod tests;

use self::format::{Unreadable, head, head_len, put_executions, put_finished, read};
#[cfg(any(test, feature = "testing"))]
pub(super) use self::format::{look, look_at_outcome, seeds};
use super::link::AckRow;
use crate::limits;
use crate::model::ExecutionId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
