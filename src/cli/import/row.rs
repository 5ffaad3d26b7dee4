//! What a row of a file becomes: a task to submit, or a complaint with its place.

use super::due::DueReader;
use crate::limits;
use crate::model::{FieldError, Priority, QueueName, Reason, UnixMs, spec::check_key};
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// A task as a row describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Line on which the row begins, from 1.
    pub line: u64,
    /// The queue.
    pub queue: QueueName,
    /// The priority.
    pub priority: Priority,
    /// When it is due; may lie in the past, which means at once.
    pub due: UnixMs,
    /// Its idempotency key.
    pub key: Option<Bytes>,
    /// Its placement key.
    pub placement: Option<Bytes>,
    /// A msgpack map of the other columns.
    pub payload: Bytes,
}

/// A row that is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadRow {
    /// Line on which the row begins, from 1.
    pub line: u64,
    /// Name of the column to blame.
    pub column: Option<String>,
    /// Which column that is, from 1; or the character in the line, where no column is known.
    pub position: Option<u64>,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        match (&self.column, self.position) {
            (Some(column), Some(position)) => write!(f, ", column {position} ({column})")?,
            (Some(column), None) => write!(f, ", column {column}")?,
            (None, Some(position)) => write!(f, ", character {position}")?,
            (None, None) => {}
        }
        write!(f, ": {}", self.detail)
    }
}

/// One value for all rows, or a column that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From<T> {
    /// The same for all.
    Fixed(T),
    /// The column of this name.
    Column(String),
}

/// How rows are read: which column means what.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Column of the due time.
    pub due: String,
    /// Reads its values.
    pub due_reader: DueReader,
    /// The queue.
    pub queue: From<QueueName>,
    /// Column of the idempotency key.
    pub key: Option<String>,
    /// Column of the placement key. An empty cell means none.
    pub placement: Option<String>,
    /// The priority. An empty cell means the usual one.
    pub priority: From<Priority>,
    /// When the import began: due times are checked against it.
    pub now: UnixMs,
}

/// What a column that is no payload is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The due time.
    Due,
    /// The queue.
    Queue,
    /// The idempotency key.
    Key,
    /// The priority.
    Priority,
    /// The placement key.
    Placement,
}

impl Role {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// The option that names this column.
    pub const fn option(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Queue => "queue-column",
            Self::Key => "key",
            Self::Priority => "priority-column",
            Self::Placement => "placement",
        }
    }
}

impl Plan {
    /// The columns that are no payload, with their roles.
    pub fn roles(&self) -> Vec<(Role, &str)> {
        let mut roles = vec![(Role::Due, self.due.as_str())];
        if let From::Column(name) = &self.queue {
            roles.push((Role::Queue, name));
        }
        if let Some(name) = &self.key {
            roles.push((Role::Key, name));
        }
        if let From::Column(name) = &self.priority {
            roles.push((Role::Priority, name));
        }
        if let Some(name) = &self.placement {
            roles.push((Role::Placement, name));
        }
        roles
    }
}

/// Makes rows. Keeps one buffer from which payloads and keys are cut, so that a row costs no
/// allocation of its own, and the queue names it has checked.
pub struct RowMaker {
    plan: Plan,
    /// Payload and key of the row in hand are written here.
    pub buf: BytesMut,
    queues: HashMap<Box<[u8]>, QueueName>,
}

/// Checked names kept; beyond it the memory begins anew. Bounds what a file of nothing but
/// different queues can take.
const QUEUES_KEPT: usize = 4_096;
const BUF_BYTES: usize = 256 << 10;

impl RowMaker {
    /// A maker for this plan.
    pub fn new(plan: Plan) -> Self {
        Self { plan, buf: BytesMut::with_capacity(BUF_BYTES), queues: HashMap::new() }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes a row of the payload that stands in `buf` and the texts of the columns with a role.
    /// Whether it works or not, `buf` is empty afterwards.
    pub fn row(&mut self, line: u64, texts: [Option<&[u8]>; Role::COUNT]) -> Result<Row, (Role, FieldError)> {
        let payload = self.buf.split().freeze();
        self.checked(line, payload, texts)
    }

    fn checked(
        &mut self,
        line: u64,
        payload: Bytes,
        texts: [Option<&[u8]>; Role::COUNT],
    ) -> Result<Row, (Role, FieldError)> {
        let [due, queue, key, priority, placement] = texts;
        let at = |role: Role| move |error: FieldError| (role, error);
        let due = self.plan.due_reader.read(due.unwrap_or_default()).map_err(at(Role::Due))?;
        due.checked_due(self.plan.now).map_err(at(Role::Due))?;
        let queue = match &self.plan.queue {
            From::Fixed(queue) => queue.clone(),
            From::Column(_) => self.queue(queue.unwrap_or_default()).map_err(at(Role::Queue))?,
        };
        let priority = match &self.plan.priority {
            From::Fixed(priority) => *priority,
            From::Column(_) => match priority.unwrap_or_default().trim_ascii() {
                b"" => Priority::default(),
                text => String::from_utf8_lossy(text).parse().map_err(at(Role::Priority))?,
            },
        };
        let key = match self.plan.key {
            None => None,
            Some(_) => {
                let key = key.unwrap_or_default();
                check_key("key", key).map_err(at(Role::Key))?;
                self.reserve();
                self.buf.put_slice(key);
                Some(self.buf.split().freeze())
            }
        };
        let placement = match placement.filter(|text| self.plan.placement.is_some() && !text.is_empty()) {
            None => None,
            Some(text) => {
                check_key("placement", text).map_err(at(Role::Placement))?;
                self.reserve();
                self.buf.put_slice(text);
                Some(self.buf.split().freeze())
            }
        };
        if payload.len() > limits::PAYLOAD_MAX_BYTES {
            let detail = format!(
                "payload has {} bytes; at most {} are allowed",
                payload.len(),
                limits::PAYLOAD_MAX_BYTES
            );
            return Err((Role::Due, FieldError::new("payload", Reason::TooLong, detail)));
        }
        Ok(Row { line, queue, priority, due, key, placement, payload })
    }

    /// Room for the usual row, taken a quarter of a megabyte at a time.
    pub fn reserve(&mut self) {
        if self.buf.capacity() < 1_024 {
            self.buf.reserve(BUF_BYTES);
        }
    }

    fn queue(&mut self, text: &[u8]) -> Result<QueueName, FieldError> {
        let text = text.trim_ascii();
        if let Some(queue) = self.queues.get(text) {
            return Ok(queue.clone());
        }
        let queue = match std::str::from_utf8(text) {
            Ok(text) => QueueName::new(text)?,
            Err(_) => return Err(FieldError::new("queue", Reason::BadName, "is not UTF-8")),
        };
        if self.queues.len() >= QUEUES_KEPT {
            self.queues.clear();
        }
        self.queues.insert(text.into(), queue.clone());
        Ok(queue)
    }
}
