//! `minutehand import`: a plan in a file becomes tasks.
//!
//! One thread reads, checks and packs rows; the runtime sends them. Between the two a few chunks
//! may wait, so memory stays small however large the file is.

pub mod chart;
pub mod command;
pub mod csv;
pub mod due;
pub mod input;
pub mod ndjson;
pub mod pack;
pub mod progress;
pub mod row;
pub mod sink;

use super::error::{CliError, Exit};
use super::render::grouped;
use crate::{clock, limits};
use chart::Timeline;
use input::{Format, Input};
use progress::Progress;
use row::{BadRow, Plan, Row};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::BufRead;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What ends an import before its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The input cannot be opened or is of a kind that is not read.
    #[error("{name}: {detail}")]
    Open {
        /// The input.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// The first row does not name the columns that are needed.
    #[error("{0}")]
    Header(String),
    /// Reading cannot go on behind this line.
    #[error("line {line}: {detail}; what follows was not read")]
    Broken {
        /// Where.
        line: u64,
        /// What is wrong.
        detail: String,
    },
}

impl std::convert::From<ImportError> for CliError {
    fn from(error: ImportError) -> Self {
        let message = error.to_string();
        match error {
            ImportError::Open { .. } | ImportError::Header(_) => Self::usage("", message),
            ImportError::Broken { .. } => Self::failed(message),
        }
    }
}

/// What stands at the reader's place.
#[derive(Debug)]
pub enum Next {
    /// A task.
    Row(Row),
    /// A row that is left out.
    Bad(BadRow),
    /// Nothing more.
    End,
}

/// Rows of either format.
pub enum Rows<R> {
    /// Comma-separated values.
    Csv(Box<csv::CsvRows<R>>),
    /// One object a line.
    Ndjson(Box<ndjson::NdjsonRows<R>>),
}

impl<R: BufRead> Rows<R> {
    /// Begins to read.
    pub fn new(format: Format, reader: R, plan: Plan) -> Result<Self, ImportError> {
        Ok(match format {
            Format::Csv => Self::Csv(Box::new(csv::CsvRows::new(reader, plan)?)),
            Format::Ndjson => Self::Ndjson(Box::new(ndjson::NdjsonRows::new(reader, plan))),
        })
    }

    /// The next row, good or bad.
    pub fn next_row(&mut self) -> Result<Next, ImportError> {
        match self {
            Self::Csv(rows) => rows.next_row(),
            Self::Ndjson(rows) => rows.next_row(),
        }
    }
}

/// Reads the whole input, calling `each` for every row.
pub fn scan(input: &Input, plan: &Plan, mut each: impl FnMut(Next)) -> Result<(), ImportError> {
    let (format, reader) = input.start()?;
    let mut rows = Rows::new(format, reader, plan.clone())?;
    loop {
        match rows.next_row()? {
            Next::End => return Ok(()),
            next => each(next),
        }
    }
}

/// Bad rows: all counted, the first ones kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BadRows {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub shown: Vec<BadRow>,
}

impl BadRows {
    /// Takes one; says whether it is among those that are shown.
    pub fn add(&mut self, row: BadRow) -> bool {
        self.count += 1;
        let shown = self.shown.len() < limits::BAD_ROWS_SHOWN_MAX;
        if shown {
            self.shown.push(row);
        }
        shown
    }

    /// A line about those that are not shown.
    pub fn rest(&self) -> Option<String> {
        let rest = self.count - self.shown.len() as u64;
        (rest > 0).then(|| format!("bad row: … and {} more", grouped(rest)))
    }
}

/// What an import did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Rows read, good and bad.
    pub rows: u64,
    /// Tasks that are new.
    pub created: u64,
    /// Rows whose key was known: their task stands.
    pub duplicates: u64,
    /// Rows left out.
    pub bad: u64,
    /// How long it took.
    pub seconds: f64,
    /// Rows in a second.
    pub rows_per_s: f64,
    /// The first rows that were left out.
    pub bad_rows: Vec<BadRow>,
}

impl Report {
    /// 0 when every row went in, else 1.
    pub fn exit(&self) -> Exit {
        if self.bad == 0 { Exit::Ok } else { Exit::Failed }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let plural =
            |n: u64, one: &str, more: &str| format!("{} {}", grouped(n), if n == 1 { one } else { more });
        format!(
            "imported {} in {:.2} s ({} rows/s): {} created, {}, {} bad{}",
            plural(self.rows, "row", "rows"),
            self.seconds,
            grouped(self.rows_per_s.round() as u64),
            grouped(self.created),
            plural(self.duplicates, "duplicate", "duplicates"),
            grouped(self.bad),
            if self.bad > 0 { " (left out)" } else { "" },
        )
    }
}

/// How one row was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A new task.
    Created,
    /// Its key was known.
    Duplicate,
    /// Refused; nothing was written.
    Refused(String),
}

/// Where rows go. The client in production, a list in tests.
pub trait Sink: Clone + Send + Sync + 'static {
    /// Sends rows; gives an answer for each, in their order. Safe to call again for keyed rows.
    fn submit(&self, rows: Vec<Row>) -> impl Future<Output = Result<Vec<Answer>, CliError>> + Send;
}

/// Reads `input` and sends its good rows to `sink`. Gives what was done even where it ended early.
pub async fn run<S: Sink>(
    input: Input,
    plan: Plan,
    sink: S,
    progress: &mut Progress,
) -> (Report, Result<(), CliError>) {
    let start = clock::mono();
    let (chunks, mut incoming) = mpsc::channel(limits::IMPORT_CHUNKS_WAITING);
    // A thread of its own and not the runtime's: one that waits for stdin cannot be ended.
    let reader =
        std::thread::Builder::new().name("import".to_owned()).spawn(move || read(&input, &plan, &chunks));
    let mut report = Report::default();
    let (mut bad, mut sending, mut done) = (BadRows::default(), JoinSet::new(), 0);
    let mut tick = tokio::time::interval(progress::TICK);
    let mut result =
        reader.map(|_| ()).map_err(|error| CliError::failed(format!("could not start a thread: {error}")));
    let mut open = result.is_ok();
    while open || !sending.is_empty() {
        tokio::select! {
            chunk = incoming.recv(), if open && sending.len() < limits::IMPORT_IN_FLIGHT => match chunk {
                None => open = false,
                Some(Err(error)) => {
                    result = Err(CliError::from(error));
                    open = false;
                }
                Some(Ok(chunk)) => {
                    let Chunk { rows, bad: wrong } = chunk;
                    report.rows += rows.len() as u64 + wrong.count;
                    done += wrong.count;
                    take_bad(&mut bad, wrong, progress);
                    if !rows.is_empty() {
                        let sink = sink.clone();
                        sending.spawn(async move {
                            let lines: Vec<u64> = rows.iter().map(|row| row.line).collect();
                            (lines, sink.submit(rows).await)
                        });
                    }
                }
            },
            Some(sent) = sending.join_next(), if !sending.is_empty() => match sent {
                Ok((lines, Ok(answers))) => {
                    done += lines.len() as u64;
                    for (line, answer) in lines.into_iter().zip(answers) {
                        match answer {
                            Answer::Created => report.created += 1,
                            Answer::Duplicate => report.duplicates += 1,
                            Answer::Refused(detail) => {
                                let row = BadRow { line, column: None, position: None, detail };
                                take_bad(&mut bad, BadRows { count: 1, shown: vec![row] }, progress);
                            }
                        }
                    }
                }
                Ok((_, Err(error))) => {
                    // What is under way is waited for, nothing more is sent.
                    open = false;
                    if result.is_ok() {
                        result = Err(error);
                    }
                }
                Err(error) => {
                    open = false;
                    result = Err(CliError::failed(format!("a sender broke off: {error}")));
                }
            },
            _ = tick.tick() => progress.tick(done),
        }
    }
    progress.finish();
    report.bad = bad.count;
    report.bad_rows = bad.shown;
    report.seconds = clock::mono().saturating_duration_since(start).as_secs_f64();
    report.rows_per_s = if report.seconds > 0.0 { report.rows as f64 / report.seconds } else { 0.0 };
    (report, result)
}

fn take_bad(all: &mut BadRows, some: BadRows, progress: &Progress) {
    let unseen = some.count - some.shown.len() as u64;
    for row in some.shown {
        let line = format!("bad row: {row}");
        if all.add(row) {
            progress.say(&line);
        }
    }
    all.count += unseen;
}

struct Chunk {
    rows: Vec<Row>,
    bad: BadRows,
}

/// The reader's thread: ends when the input does, or when nobody takes its chunks any more.
fn read(input: &Input, plan: &Plan, chunks: &mpsc::Sender<Result<Chunk, ImportError>>) {
    let empty = || Chunk { rows: Vec::with_capacity(limits::IMPORT_CHUNK_ROWS), bad: BadRows::default() };
    let (mut chunk, mut bytes) = (empty(), 0);
    let begin = || -> Result<Rows<Box<dyn BufRead>>, ImportError> {
        let (format, reader) = input.start()?;
        Rows::new(format, reader, plan.clone())
    };
    let mut rows = match begin() {
        Ok(rows) => rows,
        Err(error) => {
            let _ = chunks.blocking_send(Err(error));
            return;
        }
    };
    loop {
        let next = rows.next_row();
        let (last, error) = match next {
            Ok(Next::Row(row)) => {
                bytes += row.payload.len() + row.key.as_ref().map_or(0, |key| key.len());
                chunk.rows.push(row);
                (false, None)
            }
            Ok(Next::Bad(row)) => {
                chunk.bad.add(row);
                (false, None)
            }
            Ok(Next::End) => (true, None),
            Err(error) => (true, Some(error)),
        };
        let full = chunk.rows.len() >= limits::IMPORT_CHUNK_ROWS
            || bytes >= limits::IMPORT_CHUNK_BYTES
            || chunk.bad.count >= limits::IMPORT_CHUNK_ROWS as u64;
        if full || last {
            bytes = 0;
            if chunks.blocking_send(Ok(std::mem::replace(&mut chunk, empty()))).is_err() {
                return;
            }
        }
        if let Some(error) = error {
            let _ = chunks.blocking_send(Err(error));
        }
        if last {
            return;
        }
    }
}

/// What `--strict` and `--dry-run` learn from reading everything once.
#[derive(Debug, Default)]
pub struct Survey {
    /// Good rows by due time.
    pub timeline: Timeline,
    /// Bad rows.
    pub bad: BadRows,
    /// Good rows that are due before the import began: they start at once.
    pub past: u64,
    /// The first rows, for showing.
    pub first: VecDeque<Row>,
}

/// Rows that a survey keeps.
const FIRST_KEPT: usize = 3;

/// Reads everything and sends nothing.
pub fn survey(input: &Input, plan: &Plan) -> Result<Survey, ImportError> {
    let mut survey = Survey::default();
    scan(input, plan, |next| match next {
        Next::Row(row) => {
            survey.past += u64::from(row.due < plan.now);
            survey.timeline.add(row.due);
            if survey.first.len() < FIRST_KEPT {
                survey.first.push_back(row);
            }
        }
        Next::Bad(row) => {
            survey.bad.add(row);
        }
        Next::End => {}
    })?;
    Ok(survey)
}

#[cfg(test)]
mod tests;
