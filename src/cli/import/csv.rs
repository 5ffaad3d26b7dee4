//! Rows of a CSV file.

use super::row::{BadRow, Plan, Role, RowMaker};
use super::{ImportError, Next, input::Bounded, pack};
use crate::limits;
use crate::model::field::shown;
use crate::settings::nearest;
use bytes::{BufMut, BytesMut};
use std::io::Read;

/// Reads rows one by one; memory is bounded by the longest row that is allowed.
pub struct CsvRows<R> {
    reader: ::csv::Reader<Bounded<R>>,
    record: ::csv::ByteRecord,
    maker: RowMaker,
    names: Vec<String>,
    /// Where each role's column is.
    roles: [Option<usize>; Role::COUNT],
    /// Columns of the payload, each with its name in msgpack.
    payload: Vec<(usize, Vec<u8>)>,
    /// Whether lines end with CR LF, as the header's does.
    crlf: bool,
}

impl<R: Read> CsvRows<R> {
    /// Reads the header and finds the columns in it.
    pub fn new(input: R, plan: Plan) -> Result<Self, ImportError> {
        let mut reader = ::csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            // With the usual terminator the reader stops before the LF of a CR LF, and its line numbers
            // then depend on the kind of file. The CR is taken off below.
            .terminator(::csv::Terminator::Any(b'\n'))
            .buffer_capacity(256 << 10)
            .from_reader(Bounded::new(input, limits::IMPORT_ROW_MAX_BYTES as u64));
        let mut record = ::csv::ByteRecord::new();
        if !reader.read_byte_record(&mut record).map_err(|error| broken(&error, 1))? {
            return Err(ImportError::Header(
                "the file is empty; its first row must name the columns".to_owned(),
            ));
        }
        let crlf = record.iter().next_back().is_some_and(|cell| cell.ends_with(b"\r"));
        let names = header(&record)?;
        let mut roles = [None; Role::COUNT];
        for (role, name) in plan.roles() {
            roles[role as usize] = Some(find(&names, role, name)?);
        }
        let payload = names
            .iter()
            .enumerate()
            .filter(|(at, _)| !roles.contains(&Some(*at)))
            .map(|(at, name)| {
                let mut packed = BytesMut::new();
                pack::put_str(&mut packed, name);
                (at, packed.to_vec())
            })
            .collect();
        Ok(Self { reader, record, maker: RowMaker::new(plan), names, roles, payload, crlf })
    }

    /// The next row, good or bad. Blank lines are passed over.
    pub fn next_row(&mut self) -> Result<Next, ImportError> {
        loop {
            self.reader.get_ref().begin_row();
            let before = self.reader.position().line();
            if !self.reader.read_byte_record(&mut self.record).map_err(|error| broken(&error, before))? {
                return Ok(Next::End);
            }
            if !(self.record.len() == 1 && self.record.as_slice() == b"\r") {
                return Ok(self.row());
            }
        }
    }

    /// The line on which the row in hand begins. The reader knows where it ends, behind any blank
    /// lines that it passed over, and the row has as many lines as its cells have line feeds.
    fn line(&self) -> u64 {
        let inside = self.record.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
        let ended = u64::from(!self.reader.get_ref().at_end());
        self.reader.position().line().saturating_sub(inside + ended)
    }

    /// Whether a quote was opened in this row and never closed, so that it holds all that followed it.
    ///
    /// A line feed ends a row but within quotes. So where the end of the file ended a row whose last cell
    /// has one, that cell was quoted, and a quote that closes it would be the file's last byte.
    fn is_open(&self) -> bool {
        let source = self.reader.get_ref();
        let last = self.record.iter().next_back().unwrap_or_default();
        source.at_end() && last.contains(&b'\n') && source.last_byte() != b'"'
    }

    fn row(&mut self) -> Next {
        let cells = &self.record;
        if self.is_open() {
            let at = cells.len() - 1;
            let detail = "a quote is opened and never closed; what follows was not read".to_owned();
            let column = self.names.get(at).cloned();
            return Next::Bad(BadRow { line: self.line(), column, position: Some(at as u64 + 1), detail });
        }
        if cells.len() != self.names.len() {
            let detail =
                format!("the row has {}, the header has {}", columns(cells.len()), columns(self.names.len()));
            return Next::Bad(BadRow { line: self.line(), column: None, position: None, detail });
        }
        let line = self.line();
        let (last, crlf) = (cells.len() - 1, self.crlf);
        let cell = |at: usize| match cells.get(at).unwrap_or_default() {
            [text @ .., b'\r'] if crlf && at == last => text,
            text => text,
        };
        self.maker.reserve();
        let head = pack::begin(&mut self.maker.buf);
        for (at, name) in &self.payload {
            self.maker.buf.put_slice(name);
            pack::put_cell(&mut self.maker.buf, cell(*at));
        }
        pack::end(&mut self.maker.buf, head, self.payload.len(), true);
        let texts = self.roles.map(|at| at.map(cell));
        match self.maker.row(line, texts) {
            Ok(row) => Next::Row(row),
            Err((_, error)) if error.field == "payload" => {
                Next::Bad(BadRow { line, column: None, position: None, detail: error.detail })
            }
            Err((role, error)) => {
                let at = self.roles[role as usize];
                let column = at.and_then(|at| self.names.get(at)).cloned();
                Next::Bad(BadRow { line, column, position: at.map(|at| at as u64 + 1), detail: error.detail })
            }
        }
    }
}

fn columns(n: usize) -> String {
    if n == 1 { "1 column".to_owned() } else { format!("{n} columns") }
}

fn broken(error: &::csv::Error, line: u64) -> ImportError {
    let line = error.position().map_or(line, ::csv::Position::line);
    ImportError::Broken { line, detail: error.to_string() }
}

/// Names of the columns: each there, each once, each text.
fn header(record: &::csv::ByteRecord) -> Result<Vec<String>, ImportError> {
    if record.len() > limits::IMPORT_COLUMNS_MAX {
        let detail = format!(
            "the header has {} columns; at most {} are allowed",
            record.len(),
            limits::IMPORT_COLUMNS_MAX
        );
        return Err(ImportError::Header(detail));
    }
    let mut names: Vec<String> = Vec::with_capacity(record.len());
    for (at, cell) in record.iter().enumerate() {
        if cell.trim_ascii_end().contains(&b'\r') {
            let detail =
                "lines must end with LF or CR LF; this file has CR alone: tr '\\r' '\\n' makes it readable";
            return Err(ImportError::Header(detail.to_owned()));
        }
        let Ok(name) = std::str::from_utf8(cell.trim_ascii()) else {
            return Err(ImportError::Header(format!("the name of column {} is not UTF-8", at + 1)));
        };
        if name.is_empty() {
            return Err(ImportError::Header(format!("column {} has no name in the header", at + 1)));
        }
        if let Some(first) = names.iter().position(|known| known == name) {
            let detail = format!("columns {} and {} are both named {}", first + 1, at + 1, shown(name));
            return Err(ImportError::Header(detail));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn find(names: &[String], role: Role, name: &str) -> Result<usize, ImportError> {
    names.iter().position(|known| known == name).ok_or_else(|| {
        let list = names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", ");
        let near = nearest(name, names.iter().map(String::as_str));
        let near = near.map_or(String::new(), |near| format!("; did you mean {}?", shown(near)));
        let detail =
            format!("there is no column {} (--{}); the file has {list}{near}", shown(name), role.option());
        ImportError::Header(detail)
    })
}
