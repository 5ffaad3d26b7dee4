//! The bytes of a journal: records written, and read from anything.

use crate::executor::link::{AckRow, Outcome};
use crate::limits;
use crate::model::{ExecutionId, Grant, TaskId};
use std::collections::HashMap;
use std::io::{self, Read};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(super) const MAGIC: &[u8; 8] = b"MHJRNL1\n";
/// Length and checksum.
pub(super) const HEAD: usize = 8;
/// Id and grant.
pub(super) const EXECUTION: usize = TaskId::LEN + Grant::LEN;

/// What stands in a journal: what was begun, with its outcome once there is one.
pub(super) type Open = HashMap<ExecutionId, Option<AckRow>>;

/// What reading a journal gave.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub namespace: Option<String>,
    pub open: Open,
    /// Where the last good record ends.
    pub good: u64,
    /// Why reading ended there, if something follows.
    pub torn: Option<&'static str>,
}

/// Why bytes are no journal at all.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Foreign,
    TooLarge,
    Io(io::ErrorKind),
}

pub(super) fn checksum(body: &[u8]) -> u32 {
    xxh3_64_with_seed(body, body.len() as u64) as u32
}

/// Appends a record whose body `fill` writes.
pub(super) fn record(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    fill(out);
    let body = &out[start + HEAD..];
    let (length, sum) = (body.len() as u32, checksum(body));
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + HEAD].copy_from_slice(&sum.to_be_bytes());
}

pub(super) fn put_execution(out: &mut Vec<u8>, execution: &ExecutionId) {
    out.extend_from_slice(execution.id.as_bytes());
    out.extend_from_slice(execution.grant.as_bytes());
}

/// Records of one kind that name executions, each within the largest size.
pub(super) fn put_executions<'a>(
    out: &mut Vec<u8>,
    kind: u8,
    executions: impl IntoIterator<Item = &'a ExecutionId>,
) {
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

pub(super) fn put_finished(out: &mut Vec<u8>, row: &AckRow) {
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

pub(super) fn head(out: &mut Vec<u8>, namespace: &str) {
    out.extend_from_slice(MAGIC);
    record(out, |out| {
        out.push(b'n');
        out.extend_from_slice(namespace.as_bytes());
    });
}

pub(super) fn head_len(namespace: &str) -> u64 {
    (MAGIC.len() + HEAD + 1 + namespace.len()) as u64
}

pub(super) fn get_execution(bytes: &[u8]) -> Option<ExecutionId> {
    let (id, grant) = bytes.get(..EXECUTION)?.split_at(TaskId::LEN);
    Some(ExecutionId { id: TaskId::from_bytes(id)?, grant: Grant::from_bytes(grant)? })
}

pub(super) fn get_finished(body: &[u8]) -> Option<AckRow> {
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
pub(super) fn read_up_to(reader: &mut impl Read, into: &mut [u8]) -> Result<usize, Unreadable> {
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
pub(super) fn read(mut reader: impl Read) -> Result<Contents, Unreadable> {
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
pub(in crate::executor) fn look(bytes: &[u8]) -> Option<usize> {
    read(bytes).ok().map(|contents| contents.open.len())
}

/// Reads anything as the body of a record of an outcome. What is read can be written and read again.
#[cfg(any(test, feature = "testing"))]
pub(in crate::executor) fn look_at_outcome(body: &[u8]) -> Option<AckRow> {
    let row = get_finished(body)?;
    let mut again = Vec::new();
    put_finished(&mut again, &row);
    assert_eq!(get_finished(&again[HEAD..]).as_ref(), Some(&row), "what was written can be read");
    Some(row)
}

/// Journals, and bodies of outcomes, that are well formed.
#[cfg(any(test, feature = "testing"))]
pub(in crate::executor) fn seeds() -> [Vec<Vec<u8>>; 2] {
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
