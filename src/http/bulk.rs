//! `POST /v1/tasks:bulk`: any number of tasks, one answer for each, in bounded memory.
//!
//! Rows are read as they come, submitted a batch at a time with a few batches under way, and answered in
//! order while the rest is still on its way. Who sends faster than Redis takes is slowed down by the
//! connection itself. Who sends without reading answers gets about [`ANSWERS_AHEAD`] batches ahead.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::new_task::TaskBody;
use super::wire::{Format, decode, too_large};
use crate::client::NewTask;
use crate::{clock, limits};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use utoipa::ToSchema;

/// Batches that are being submitted at a time.
const UNDER_WAY: usize = 4;
/// Batches of answers that wait for a slow reader.
const ANSWERS_AHEAD: usize = 64;

/// What became of a row.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "row": 0, "id": "0mBBZ-RGXFDo9dTn", "created": true }))]
pub(super) struct RowAnswer {
    /// Which row, from 0.
    row: u64,
    /// The id that stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Whether this row made it; else its key was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<bool>,
    /// Why it was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RowError>,
}

/// Why a row was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RowError {
    /// For machines.
    pub code: String,
    /// The field to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// For people.
    pub message: String,
}

/// Submit any number of tasks.
///
/// The body is NDJSON (one task a line) or msgpack (one map behind the other); the answer is of the same kind,
/// one row for each task, in order, and begins before the body has ended. A row that is refused does
/// not stop the others. Send rows with a `key` when the request may have to be sent again.
#[utoipa::path(
    post, path = "/v1/tasks:bulk", tag = "tasks",
    request_body(content = String, content_type = "application/x-ndjson", description = "one task a line",
        example = "{\"queue\":\"mail\",\"key\":\"a\"}\n{\"queue\":\"mail\",\"key\":\"b\"}\n"),
    responses((status = 200, description = "one row for each task", body = RowAnswer, content_type = "application/x-ndjson"))
)]
pub(super) async fn bulk(
    State(api): State<Api>,
    caller: Caller,
    request: Request,
) -> Result<Response, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    let format = match kind {
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" => Format::Json,
        "application/json" => Format::Json,
        _ => Format::content(request.headers()).filter(|format| *format == Format::Msgpack).ok_or_else(
            || {
                let message = "Content-Type must be application/x-ndjson or application/msgpack";
                Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
            },
        )?,
    };
    let permit = std::sync::Arc::clone(&api.rooms.bulk).try_acquire_owned().map_err(|_| {
        Problem::too_many("busy", format!("{} bulk requests are under way already", limits::HTTP_BULKS_MAX))
    })?;
    let (answers, mut ready) = mpsc::channel::<Bytes>(ANSWERS_AHEAD);
    tokio::spawn(run(api, caller, format, request.into_body(), answers, permit));
    let stream = futures_util::stream::poll_fn(move |cx| ready.poll_recv(cx)).map(Ok::<_, std::io::Error>);
    let kind = match format {
        Format::Json => "application/x-ndjson",
        Format::Msgpack => "application/msgpack",
    };
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], Body::from_stream(stream)).into_response())
}

/// Rows gathered for one batch: tasks, and what was wrong with the others.
#[derive(Default)]
struct Batch {
    first: u64,
    rows: Vec<Result<NewTask, RowError>>,
    bytes: usize,
}

/// Reads rows and submits them.
async fn run(
    api: Api,
    caller: Caller,
    format: Format,
    body: Body,
    answers: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
) {
    // As many batches are under way as this has room for; answers leave in the order of the rows.
    let (under_way, mut done) = mpsc::channel::<JoinHandle<Bytes>>(UNDER_WAY);
    tokio::spawn(async move {
        while let Some(batch) = done.recv().await {
            let Ok(bytes) = batch.await else { return };
            // A reader that stands still for long is given up, and with it the rest of its rows.
            let sent = tokio::time::timeout(clock::ms(limits::HTTP_IDLE_MS), answers.send(bytes)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    });
    let mut body = body.into_data_stream();
    let (mut cutter, mut batch) = (Cutter::new(format), Batch::default());
    loop {
        let next = tokio::select! {
            biased;
            next = tokio::time::timeout(clock::ms(limits::HTTP_IDLE_MS), body.next()) => next,
            // What has come is submitted when nothing more waits to be read.
            () = std::future::ready(()), if !batch.rows.is_empty() => {
                if under_way.send(batch.submit(&api, format)).await.is_err() { return }
                continue;
            }
        };
        let mut trouble = None;
        let ended = match next {
            Ok(Some(Ok(piece))) => {
                cutter.push(&piece);
                false
            }
            Ok(None) => true,
            Ok(Some(Err(error))) => {
                let message = format!("the body broke off: {error}");
                trouble = Some(Problem::new(StatusCode::BAD_REQUEST, "bad_body", message));
                true
            }
            Err(_) => {
                let message = format!("nothing came for {} s", limits::HTTP_IDLE_MS / 1_000);
                trouble = Some(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", message));
                true
            }
        };
        while let Some(row) = cutter.next(ended && trouble.is_none()) {
            let row = match row {
                Cut::Row(bytes) => decode::<TaskBody>(format, &bytes)
                    .and_then(|body| body.into_task(&api.template))
                    .and_then(|task| caller.must_have(task.queue.as_str()).map(|()| task)),
                Cut::TooLong => Err(too_large(limits::HTTP_BODY_MAX_BYTES)),
                Cut::Broken(what) => {
                    trouble = Some(Problem::new(StatusCode::BAD_REQUEST, "bad_body", what));
                    break;
                }
            };
            batch.bytes += row.as_ref().map_or(0, |task| task.payload.len() + 256);
            batch.rows.push(row.map_err(|problem| problem.row()));
            let full = batch.rows.len() >= limits::BATCH_MAX_ROWS || batch.bytes >= limits::BATCH_MAX_BYTES;
            if full && under_way.send(batch.submit(&api, format)).await.is_err() {
                return;
            }
        }
        let last = ended || trouble.is_some();
        // What ends the stream badly is the answer to the row that did not come.
        batch.rows.extend(trouble.map(|problem| Err(problem.row())));
        if last {
            if !batch.rows.is_empty() {
                let _ = under_way.send(batch.submit(&api, format)).await;
            }
            return;
        }
    }
}

impl Batch {
    /// Sends what has gathered, and begins anew. The answer is what the rows' answers are written as.
    fn submit(&mut self, api: &Api, format: Format) -> JoinHandle<Bytes> {
        let next = Self { first: self.first + self.rows.len() as u64, ..Self::default() };
        let Self { first, rows, .. } = std::mem::replace(self, next);
        let client = api.client.clone();
        tokio::spawn(async move {
            let mut answers: Vec<Option<RowAnswer>> = Vec::with_capacity(rows.len());
            let (mut tasks, mut places) = (Vec::new(), Vec::new());
            for (at, row) in rows.into_iter().enumerate() {
                let row_number = first + at as u64;
                match row {
                    Ok(task) => {
                        tasks.push(task);
                        places.push(at);
                        answers.push(None);
                    }
                    Err(error) => answers.push(Some(RowAnswer::refused(row_number, error))),
                }
            }
            match client.submit_batch(tasks).await {
                Ok(done) => {
                    for (place, answer) in places.into_iter().zip(done) {
                        let row = first + place as u64;
                        answers[place] = Some(match answer {
                            Ok(done) => RowAnswer {
                                row,
                                id: Some(done.id.to_string()),
                                created: Some(done.created),
                                error: None,
                            },
                            Err(error) => RowAnswer::refused(row, Problem::from(error).row()),
                        });
                    }
                }
                Err(error) => {
                    let error = Problem::from(error).row();
                    for place in places {
                        answers[place] = Some(RowAnswer::refused(first + place as u64, error.clone()));
                    }
                }
            }
            write(format, answers.into_iter().flatten())
        })
    }
}

impl RowAnswer {
    fn refused(row: u64, error: RowError) -> Self {
        Self { row, id: None, created: None, error: Some(error) }
    }
}

fn write(format: Format, rows: impl Iterator<Item = RowAnswer>) -> Bytes {
    let mut out = Vec::new();
    for row in rows {
        // Rows hold nothing that cannot be written.
        match format {
            Format::Json => {
                out.extend(serde_json::to_vec(&row).unwrap_or_default());
                out.push(b'\n');
            }
            Format::Msgpack => out.extend(rmp_serde::to_vec_named(&row).unwrap_or_default()),
        }
    }
    out.into()
}

/// What is cut from a stream of rows.
#[derive(Debug, PartialEq, Eq)]
enum Cut {
    Row(Bytes),
    /// Longer than a row may be; it was left out.
    TooLong,
    /// No row can be found from here on.
    Broken(&'static str),
}

/// Cuts a stream of bytes into rows. It holds no more than one row and what came with it.
struct Cutter {
    format: Format,
    buffer: BytesMut,
    /// Up to here no end of a line was found.
    looked: usize,
    /// The rest of a line that was too long.
    skipping: bool,
}

impl Cutter {
    fn new(format: Format) -> Self {
        Self { format, buffer: BytesMut::new(), looked: 0, skipping: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next row; `ended` says that nothing more comes.
    fn next(&mut self, ended: bool) -> Option<Cut> {
        match self.format {
            Format::Json => self.line(ended),
            Format::Msgpack => self.value(ended),
        }
    }

    fn line(&mut self, ended: bool) -> Option<Cut> {
        loop {
            let end = self.buffer[self.looked..].iter().position(|byte| *byte == b'\n');
            let line = match end {
                Some(end) => {
                    let line = self.buffer.split_to(self.looked + end + 1).freeze();
                    line.slice(..line.len() - 1)
                }
                None if self.buffer.len() > limits::HTTP_BODY_MAX_BYTES => {
                    self.buffer.clear();
                    self.looked = 0;
                    // One answer for the whole line, however long it is.
                    if !std::mem::replace(&mut self.skipping, true) {
                        return Some(Cut::TooLong);
                    }
                    return None;
                }
                None if ended && !self.buffer.is_empty() => self.buffer.split().freeze(),
                None => {
                    self.looked = self.buffer.len();
                    return None;
                }
            };
            self.looked = 0;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if line.len() > limits::HTTP_BODY_MAX_BYTES {
                return Some(Cut::TooLong);
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(Cut::Row(line));
            }
        }
    }

    fn value(&mut self, ended: bool) -> Option<Cut> {
        if self.buffer.is_empty() {
            return None;
        }
        match msgpack_len(&self.buffer) {
            Ok(Some(len)) if len <= limits::HTTP_BODY_MAX_BYTES => {
                Some(Cut::Row(self.buffer.split_to(len).freeze()))
            }
            Ok(None) if self.buffer.len() <= limits::HTTP_BODY_MAX_BYTES => {
                ended.then_some(Cut::Broken("the body ends in the middle of a row"))
            }
            Ok(_) => Some(Cut::Broken("a row is longer than allowed")),
            Err(()) => Some(Cut::Broken("a row is not msgpack")),
        }
    }
}

/// How long the msgpack value at the front is; nothing while its end has not come.
fn msgpack_len(bytes: &[u8]) -> Result<Option<usize>, ()> {
    let (mut at, mut values) = (0usize, 1u64);
    while values > 0 {
        let Some(&marker) = bytes.get(at) else { return Ok(None) };
        // Length of the number behind the marker, and what it counts: bytes, or values.
        let (width, fixed, inside) = match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0, 0),
            0x80..=0x8f => (0, 0, u64::from(marker & 15) * 2),
            0x90..=0x9f => (0, 0, u64::from(marker & 15)),
            0xa0..=0xbf => (0, usize::from(marker & 31), 0),
            0xc1 => return Err(()),
            0xc4 | 0xd9 => (1, 0, 0),
            0xc5 | 0xda => (2, 0, 0),
            0xc6 | 0xdb => (4, 0, 0),
            0xc7 => (1, 1, 0),
            0xc8 => (2, 1, 0),
            0xc9 => (4, 1, 0),
            0xcc | 0xd0 => (0, 1, 0),
            0xcd | 0xd1 => (0, 2, 0),
            0xca | 0xce | 0xd2 => (0, 4, 0),
            0xcb | 0xcf | 0xd3 => (0, 8, 0),
            0xd4..=0xd8 => (0, 1 + (1 << (marker - 0xd4)), 0),
            0xdc..=0xdf => (if marker & 1 == 0 { 2 } else { 4 }, 0, 0),
        };
        let Some(number) = bytes.get(at + 1..at + 1 + width) else { return Ok(None) };
        let number = number.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
        let (skip, inside) = match marker {
            0xdc | 0xdd => (0, number as u64),
            0xde | 0xdf => (0, number as u64 * 2),
            _ => (number, inside),
        };
        at = at.saturating_add(1 + width + fixed).saturating_add(skip);
        values = values - 1 + inside;
    }
    Ok((at <= bytes.len()).then_some(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everything that is cut from some bytes that come in pieces; the first that is broken ends it.
    fn cut(format: Format, bytes: &[u8], step: usize) -> Vec<Cut> {
        let (mut cutter, mut out) = (Cutter::new(format), Vec::new());
        let pieces = bytes.chunks(step).map(|piece| (piece, false)).chain([(&[][..], true)]);
        for (piece, ended) in pieces {
            cutter.push(piece);
            while let Some(row) = cutter.next(ended) {
                let broken = matches!(row, Cut::Broken(_));
                out.push(row);
                if broken {
                    return out;
                }
            }
        }
        out
    }

    #[test]
    fn lines_are_cut_wherever_the_pieces_end() {
        for step in 1..9 {
            let rows = cut(Format::Json, b"{1}\n\r\n{22}\r\n{3}", step);
            let row = |text: &'static [u8]| Cut::Row(Bytes::from_static(text));
            assert_eq!(rows, [row(b"{1}"), row(b"{22}\r"), row(b"{3}")], "{step}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_one_answer_and_no_memory() {
        let long = vec![b'x'; 3 * limits::HTTP_BODY_MAX_BYTES];
        let rows = cut(Format::Json, &[&long[..], b"\n{}\n"].concat(), 1 << 16);
        assert_eq!(rows, [Cut::TooLong, Cut::Row(Bytes::from_static(b"{}"))]);
    }

    proptest! {
        #[test]
        fn msgpack_is_cut_where_its_values_end(
            values in proptest::collection::vec((any::<i64>(), ".{0,40}", proptest::collection::vec(any::<f64>(), 0..20)), 0..20),
            step in 1usize..50,
        ) {
            let each: Vec<Vec<u8>> = values.iter().map(|value| rmp_serde::to_vec(value).unwrap()).collect();
            let rows: Vec<Cut> = each.iter().map(|row| Cut::Row(row.clone().into())).collect();
            prop_assert_eq!(cut(Format::Msgpack, &each.concat(), step), rows);
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1usize..50) {
            cut(Format::Msgpack, &bytes, step);
            cut(Format::Json, &bytes, step);
        }
    }
}
