//! Submitting, cancelling and moving pending tasks: `lua/intake/`.

use super::script;
use super::space::Space;
use super::{Reply, Shortfall, StoreError};
use crate::limits;
use crate::model::queue::Collapse;
use crate::model::spec::Spec;
use crate::model::{Bucket, Durability, Grant, Priority, QueueName, State, TaskId, UnixMs, digits, spec};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A task ready to be sent: all of a call's rows are of one bucket.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its id.
    pub id: TaskId,
    /// What it is; `due` lies in the id's home minute.
    pub spec: Spec,
    /// `spec`, encoded.
    pub bytes: Bytes,
    /// The bound of its queue, where [`Spec::bound`] says that it counts against one.
    pub backlog: Option<Arc<Backlog>>,
    /// What becomes of it while another of its placement key is pending.
    pub collapse: Option<Collapse>,
}

/// A bound for the tasks of a queue that have not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The queue.
    pub queue: QueueName,
    /// Most tasks, over all buckets.
    pub most: u64,
}

impl Row {
    /// Encodes a spec that [`Spec::check`] passed, under an id whose home minute is that of its due time.
    pub fn new(id: TaskId, spec: Spec) -> Self {
        let bytes = spec.encode();
        Self { id, spec, bytes, backlog: None, collapse: None }
    }
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowAnswer {
    /// It is pending now.
    Created,
    /// A task with this key, or this very row from an earlier sending, stands under this id.
    Duplicate(TaskId),
    /// Sent again too late to tell whether the first sending arrived; nothing was written.
    FateUnknown,
    /// The bucket's share of the bound of its queue is used up.
    OverBacklog,
    /// Sent again to a bucket that takes no new tasks any more, and the first sending had not arrived.
    SpreadChanged,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitAnswer {
    /// An answer for each row, in order, and the server's time.
    Rows {
        /// The answers.
        answers: Vec<RowAnswer>,
        /// Redis's time of the call.
        now: UnixMs,
        /// What is missing to the durability asked for. The rows may stand all the same.
        lacks: Option<Shortfall>,
    },
    /// The bucket takes no new tasks: read the spread anew and choose another.
    SpreadChanged,
}

/// How a call is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sending {
    /// Ms since these rows were first sent; nothing for the first sending.
    pub again_after_ms: Option<i64>,
    /// Whether the bucket was chosen by the spread, so that a closed one refuses.
    pub by_spread: bool,
    /// How safe the rows must be before the call answers.
    pub durability: Durability,
}

/// Makes rows of one bucket pending. At most [`limits::BATCH_MAX_ROWS`] rows; they are put in order of due time.
///
/// Safe to repeat with [`Sending::again_after_ms`]: what stands is answered, nothing is made twice.
pub async fn submit(
    space: &Space,
    bucket: Bucket,
    rows: &[Row],
    sending: Sending,
) -> Result<SubmitAnswer, StoreError> {
    if rows.is_empty() {
        let now = UnixMs(space.clock().now_ms());
        return Ok(SubmitAnswer::Rows { answers: Vec::new(), now, lacks: None });
    }
    debug_assert!(rows.len() <= limits::BATCH_MAX_ROWS);
    debug_assert!(rows.iter().all(|row| row.id.bucket() == bucket && row.id.home() == row.spec.due.minute()));
    // Rows by minute and urgency: each such group goes into one hash and one due set.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let group_of = |row: &Row| (row.spec.due.minute(), !row.spec.lane.priority().is_urgent());
    order.sort_by_key(|at| (group_of(&rows[*at]), rows[*at].spec.due));
    let groups: Vec<&[usize]> = order.chunk_by(|a, b| group_of(&rows[*a]) == group_of(&rows[*b])).collect();

    let mut shards: [Vec<(usize, Bytes)>; spec::KEY_SHARDS as usize] = Default::default();
    let mut timers = Vec::new();
    let (mut first, mut largest) = (i64::MAX, 0);
    for (place, at) in order.iter().enumerate() {
        let row = &rows[*at];
        first = first.min(row.spec.due.0);
        largest = largest.max(row.bytes.len());
        if let Some((shard, name)) = Spec::peek_key(&row.bytes) {
            shards[usize::from(shard % spec::KEY_SHARDS)].push((place, name));
        }
        if let Some(deadline) = row.spec.deadline {
            timers.push((place, deadline));
        }
    }
    let mut bounds: BTreeMap<u32, (u64, Vec<usize>)> = BTreeMap::new();
    for (place, at) in order.iter().enumerate().filter(|(_, at)| rows[**at].spec.bound) {
        let row = &rows[*at];
        let most =
            row.backlog.as_ref().map_or(i64::MAX as u64, |own| space.spread().share_of(own.most, bucket));
        bounds.entry(row.spec.lane.group()).or_insert_with(|| (most, Vec::new())).1.push(place);
    }
    let used = shards.iter().filter(|rows| !rows.is_empty()).count();

    let mut args = space.args(16 + rows.len() * 4, 256 + rows.len() * 80);
    match sending.again_after_ms {
        Some(ms) => args.number(ms.max(0)),
        None => args.bytes(b""),
    };
    args.bytes(if sending.by_spread { b"1" } else { b"0" });
    args.number(first).number(largest).number(groups.len()).number(used).number(timers.len());
    args.number(bounds.len());
    for group in &groups {
        let head = &rows[group[0]];
        args.number(head.spec.due.minute());
        args.bytes(if head.spec.lane.priority().is_urgent() { b"u" } else { b"" });
        args.number(group.len());
        for at in *group {
            let row = &rows[*at];
            let mut offset = [0; 3];
            digits::write(&mut offset, u128::from(row.spec.due.offset_ms()));
            args.raw(row.id.as_bytes()).raw(row.spec.lane.as_bytes()).raw(&offset);
        }
        args.cut();
        for at in *group {
            let row = &rows[*at];
            args.number(row.spec.due.0).joined(&[row.id.as_bytes(), row.spec.lane.as_bytes()]);
        }
        for at in *group {
            let row = &rows[*at];
            args.bytes(row.id.as_bytes()).shared(row.bytes.clone());
        }
    }
    for (shard, places) in shards.iter().enumerate().filter(|(_, places)| !places.is_empty()) {
        args.number(shard).number(places.len());
        for (place, _) in places {
            args.part(format_args!("{:04}", place + 1));
        }
        args.cut();
        for (_, name) in places {
            args.shared(name.clone());
        }
        for (place, _) in places {
            args.bytes(&spec::Key::value(rows[order[*place]].id));
        }
    }
    for (group, (most, places)) in bounds {
        let mut code = [0; 3];
        digits::write(&mut code, u128::from(group));
        args.bytes(&code).number(most);
        for place in places {
            args.part(format_args!("{:04}", place + 1));
        }
        args.cut();
    }
    for (place, deadline) in timers {
        args.number(place + 1).number(deadline.minute()).number(deadline.0);
    }

    let (answer, lacks) =
        space.call_durable(&script::SUBMIT, space.guard(bucket), args, sending.durability).await?;
    let now = UnixMs(answer.now_ms());
    if &answer.word[..] == b"SPREAD_CHANGED" {
        return Ok(SubmitAnswer::SpreadChanged);
    }
    let mut fields = answer.ok()?;
    let mut answers = vec![RowAnswer::Created; rows.len()];
    while fields.left() > 0 {
        let place = usize::try_from(fields.int("row")?).unwrap_or(0);
        let code = fields.bytes("code")?;
        let id = fields.bytes("id")?;
        let at = place.checked_sub(1).and_then(|place| order.get(place));
        let at = *at.ok_or_else(|| fields.bad(format!("row {place} was not sent")))?;
        answers[at] = match &code[..] {
            b"DUPLICATE" => {
                let id = TaskId::from_bytes(&id).ok_or_else(|| fields.bad("bad id"))?;
                // The very row that was sent before: it was created then.
                if id == rows[at].id { RowAnswer::Created } else { RowAnswer::Duplicate(id) }
            }
            b"FATE_UNKNOWN" => RowAnswer::FateUnknown,
            b"OVER_BACKLOG" => RowAnswer::OverBacklog,
            b"SPREAD_CHANGED" => RowAnswer::SpreadChanged,
            other => return Err(fields.bad(format!("unknown code {}", String::from_utf8_lossy(other)))),
        };
    }
    Ok(SubmitAnswer::Rows { answers, now, lacks })
}

/// Makes rows of one bucket pending of which no more than one of a placement key may wait, [`Row::collapse`] says how;
/// at most [`limits::SINGLE_MAX_ROWS`]. `who` goes into the history of what is replaced.
///
/// Safe to repeat with [`Sending::again_after_ms`], as [`submit`] is.
pub async fn collapse(
    space: &Space,
    bucket: Bucket,
    who: &str,
    rows: &[Row],
    sending: Sending,
) -> Result<SubmitAnswer, StoreError> {
    debug_assert!(rows.len() <= limits::SINGLE_MAX_ROWS);
    let mut args = space.args(3 + 5 * rows.len(), 64 + rows.len() * 64);
    args.bytes(clip(who, 99));
    match sending.again_after_ms {
        Some(ms) => args.number(ms.max(0)),
        None => args.bytes(b""),
    };
    for row in rows {
        let mut offset = [0; 3];
        digits::write(&mut offset, u128::from(row.spec.due.offset_ms()));
        let how: &[u8] = if row.collapse == Some(Collapse::Keep) { b"K" } else { b"R" };
        args.bytes(row.id.as_bytes()).number(row.spec.due.0).joined(&[&offset, how]);
        match row.backlog.as_ref().filter(|_| row.spec.bound) {
            Some(own) => args.number(space.spread().share_of(own.most, bucket)),
            None => args.bytes(b""),
        };
        args.shared(row.bytes.clone());
    }
    let (answer, lacks) =
        space.call_durable(&script::COLLAPSE, space.guard(bucket), args, sending.durability).await?;
    let now = UnixMs(answer.now_ms());
    let mut fields = answer.ok()?;
    let letters = fields.bytes("letters")?;
    let mut answers = Vec::with_capacity(rows.len());
    for letter in letters.iter() {
        answers.push(match letter {
            b'C' => RowAnswer::Created,
            b'D' => {
                let id = fields.bytes("id")?;
                RowAnswer::Duplicate(TaskId::from_bytes(&id).ok_or_else(|| fields.bad("bad id"))?)
            }
            b'U' => RowAnswer::FateUnknown,
            b'O' => RowAnswer::OverBacklog,
            other => return Err(fields.bad(format!("unknown letter {other}"))),
        });
    }
    if answers.len() != rows.len() {
        return Err(fields.bad("not one letter a row"));
    }
    Ok(SubmitAnswer::Rows { answers, now, lacks })
}

/// What became of a wish to cancel or move a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WishAnswer {
    /// Done: it was pending.
    Done,
    /// It is running; a cancel was noted there, and its holder may be told.
    Running {
        /// Pod or executor that holds it.
        holder: String,
    },
    /// It is a dead letter.
    Dead,
    /// It had ended already.
    Ended(State),
    /// Nothing is known of it.
    Unknown,
}

fn wish(letter: u8) -> Option<WishAnswer> {
    match letter {
        b'P' => Some(WishAnswer::Done),
        b'R' => Some(WishAnswer::Running { holder: String::new() }),
        b'D' => Some(WishAnswer::Dead),
        b'?' => Some(WishAnswer::Unknown),
        other => State::from_letter(char::from(other)).map(WishAnswer::Ended),
    }
}

/// Cancels tasks of one bucket; `who` and `cause` go into their history. Long lists go in pieces.
///
/// Repeated, it answers `Ended(Cancelled)` for what it cancelled before.
pub async fn cancel(
    space: &Space,
    bucket: Bucket,
    who: &str,
    cause: &str,
    ids: &[TaskId],
) -> Result<Vec<WishAnswer>, StoreError> {
    let mut out = Vec::with_capacity(ids.len());
    for piece in ids.chunks(limits::SINGLE_MAX_ROWS) {
        out.append(&mut cancel_piece(space, bucket, who, cause, piece).await?);
    }
    Ok(out)
}

async fn cancel_piece(
    space: &Space,
    bucket: Bucket,
    who: &str,
    cause: &str,
    ids: &[TaskId],
) -> Result<Vec<WishAnswer>, StoreError> {
    let mut args = space.args(3 + ids.len(), 64 + cause.len() + ids.len() * TaskId::LEN);
    args.bytes(clip(who, 99)).bytes(clip(cause, limits::ERROR_TAIL_MAX_BYTES));
    for id in ids {
        args.bytes(id.as_bytes());
    }
    let mut fields = space.call(&script::CANCEL, space.guard(bucket), args).await?.ok()?;
    let letters = fields.bytes("letters")?;
    let mut out = Vec::with_capacity(ids.len());
    for letter in letters.iter() {
        out.push(match letter {
            // The script says C both for what it cancelled now and for what was cancelled before;
            // either way the task is cancelled and did not run.
            b'C' => WishAnswer::Done,
            b'A' => WishAnswer::Running { holder: fields.text("holder")? },
            other => wish(*other).ok_or_else(|| fields.bad(format!("unknown letter {other}")))?,
        });
    }
    if out.len() == ids.len() { Ok(out) } else { Err(fields.bad("not one letter an id")) }
}

/// Gives a pending task another due time.
pub async fn reschedule(space: &Space, who: &str, id: TaskId, due: UnixMs) -> Result<WishAnswer, StoreError> {
    let mut args = space.args(4, 128);
    args.bytes(clip(who, 99)).bytes(id.as_bytes()).number(due.0);
    one_wish(space.call(&script::RESCHEDULE, space.guard(id.bucket()), args).await?)
}

/// Gives a pending task another priority.
pub async fn reprioritize(
    space: &Space,
    who: &str,
    id: TaskId,
    priority: Priority,
) -> Result<WishAnswer, StoreError> {
    let mut args = space.args(4, 128);
    args.bytes(clip(who, 99)).bytes(id.as_bytes()).number(priority.level());
    one_wish(space.call(&script::REPRIORITIZE, space.guard(id.bucket()), args).await?)
}

/// What became of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditAnswer {
    /// The task was in this state: pending, running (what runs goes on with what it began with), or dead.
    Done(State),
    /// It does not run under the grant that was named.
    Stale,
    /// It was changed since it was read.
    Changed,
    /// It had ended already.
    Ended(State),
    /// Nothing is known of it.
    Unknown,
}

/// Replaces a task's spec, as it was read with `edits`, by one with the same lane, due time, keys and plan. With a
/// `grant`, only while the task runs under it. `what` says in words what is changed.
pub async fn edit(
    space: &Space,
    who: &str,
    id: TaskId,
    grant: Option<Grant>,
    edits: u8,
    spec: &Spec,
    what: &str,
) -> Result<EditAnswer, StoreError> {
    let mut args = space.args(7, 256 + spec.payload.len());
    args.bytes(clip(who, 99)).bytes(id.as_bytes());
    match &grant {
        Some(grant) => args.bytes(grant.as_bytes()),
        None => args.bytes(b""),
    };
    args.number(edits).shared(spec.encode()).bytes(clip(what, limits::ERROR_TAIL_MAX_BYTES));
    let mut fields = space.call(&script::EDIT, space.guard(id.bucket()), args).await?.ok()?;
    let letter = fields.bytes("a letter")?;
    Ok(match &letter[..] {
        b"P" => EditAnswer::Done(State::Pending),
        b"R" => EditAnswer::Done(State::Running),
        b"D" => EditAnswer::Done(State::Dead),
        b"O" => EditAnswer::Stale,
        b"V" => EditAnswer::Changed,
        b"?" => EditAnswer::Unknown,
        other => {
            let state = other.first().and_then(|letter| State::from_letter(char::from(*letter)));
            EditAnswer::Ended(state.ok_or_else(|| fields.bad("unknown letter"))?)
        }
    })
}

fn one_wish(answer: super::space::Answer) -> Result<WishAnswer, StoreError> {
    let mut fields = answer.ok()?;
    let reply = fields.next("a letter")?;
    match &reply {
        Reply::Bytes(letter) if letter.len() == 1 => wish(letter[0]),
        _ => None,
    }
    .ok_or_else(|| fields.bad("expected one letter"))
}

/// At most `max` bytes of a text, cut between characters.
pub(super) fn clip(text: &str, max: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(max)]
}
