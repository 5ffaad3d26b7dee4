//! Rows of a file with one JSON object a line.

use super::pack::{self, Json, JsonError};
use super::row::{BadRow, Plan, Role, RowMaker};
use super::{ImportError, Next};
use crate::limits;
use crate::model::field::shown;
use std::borrow::Cow;
use std::io::{BufRead, ErrorKind};

/// Reads rows one by one; memory is bounded by the longest line that is allowed.
pub struct NdjsonRows<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
    maker: RowMaker,
    roles: Vec<(Role, String)>,
}

enum Line {
    There,
    TooLong,
    End,
}

impl<R: BufRead> NdjsonRows<R> {
    /// Reads lines of `reader`.
    pub fn new(reader: R, plan: Plan) -> Self {
        let roles = plan.roles().into_iter().map(|(role, name)| (role, name.to_owned())).collect();
        Self { reader, line: Vec::new(), number: 0, maker: RowMaker::new(plan), roles }
    }

    /// The next row, good or bad. Blank lines are passed over.
    pub fn next_row(&mut self) -> Result<Next, ImportError> {
        loop {
            let found = self
                .next_line()
                .map_err(|error| ImportError::Broken { line: self.number, detail: error.to_string() })?;
            match found {
                Line::End => return Ok(Next::End),
                Line::TooLong => {
                    let detail = format!("the line is longer than {} bytes", limits::IMPORT_ROW_MAX_BYTES);
                    return Ok(Next::Bad(BadRow { line: self.number, column: None, position: None, detail }));
                }
                Line::There if self.line.trim_ascii().is_empty() => {}
                Line::There => {
                    let line = std::mem::take(&mut self.line);
                    let next = self.row(&line);
                    self.line = line;
                    return Ok(next);
                }
            }
        }
    }

    /// Reads one line into `self.line`, without its end; passes over the rest of one that is too long.
    fn next_line(&mut self) -> std::io::Result<Line> {
        self.line.clear();
        self.number += 1;
        let mut too_long = false;
        loop {
            let chunk = match self.reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                return Ok(match (too_long, self.line.is_empty()) {
                    (true, _) => Line::TooLong,
                    (false, true) => Line::End,
                    (false, false) => Line::There,
                });
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if self.line.len() + part.len() > limits::IMPORT_ROW_MAX_BYTES {
                too_long = true;
                self.line.clear();
            }
            if !too_long {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(if too_long { Line::TooLong } else { Line::There });
            }
        }
    }

    fn row(&mut self, line: &[u8]) -> Next {
        let number = self.number;
        let bad = |column: Option<&str>, position: Option<u64>, detail: String| {
            Next::Bad(BadRow { line: number, column: column.map(str::to_owned), position, detail })
        };
        self.maker.reserve();
        let texts = match fields(line, &self.roles, &mut self.maker) {
            Ok(texts) => texts,
            Err(Trouble::Json(error)) => {
                self.maker.buf.clear();
                return bad(None, Some(error.at as u64 + 1), error.detail.to_owned());
            }
            Err(Trouble::Column(name, detail)) => {
                self.maker.buf.clear();
                return bad(Some(&name), None, detail);
            }
        };
        match self.maker.row(number, texts.each_ref().map(|text| text.as_deref())) {
            Ok(row) => Next::Row(row),
            Err((_, error)) if error.field == "payload" => bad(None, None, error.detail),
            Err((role, error)) => {
                let name = self.roles.iter().find(|(known, _)| *known == role).map(|(_, name)| name.as_str());
                bad(name, None, error.detail)
            }
        }
    }
}

enum Trouble {
    Json(JsonError),
    Column(String, String),
}

impl std::convert::From<JsonError> for Trouble {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

/// Splits an object into the texts of the columns with a role and a msgpack map of the others.
fn fields<'a>(
    line: &'a [u8],
    roles: &[(Role, String)],
    maker: &mut RowMaker,
) -> Result<[Option<Cow<'a, [u8]>>; Role::COUNT], Trouble> {
    let mut json = Json::new(line);
    match json.peek() {
        Some(b'{') => json.expect(b'{', "a row must be an object")?,
        Some(b'[') => {
            let detail = "a list; each line must be one object (jq -c '.[]' makes that of a list)";
            return Err(Trouble::Json(JsonError { at: json.position(), detail }));
        }
        _ => return Err(Trouble::Json(JsonError { at: json.position(), detail: "a row must be an object" })),
    }
    let mut texts: [Option<Cow<'a, [u8]>>; Role::COUNT] = Default::default();
    let mut seen: Vec<Cow<'a, str>> = Vec::new();
    let out = &mut maker.buf;
    let (head, mut count) = (pack::begin(out), 0);
    let mut go_on = json.peek() != Some(b'}');
    if !go_on {
        json.expect(b'}', "")?;
    }
    while go_on {
        json.peek();
        let name = json.string()?;
        json.expect(b':', "a colon is missing")?;
        if seen.contains(&name) {
            return Err(Trouble::Column(name.into_owned(), "is there twice".to_owned()));
        }
        if seen.len() >= limits::IMPORT_COLUMNS_MAX {
            let detail = format!("is one more than the {} columns allowed", limits::IMPORT_COLUMNS_MAX);
            return Err(Trouble::Column(name.into_owned(), detail));
        }
        match roles.iter().find(|(_, known)| *known == name) {
            Some((role, _)) => texts[*role as usize] = text_of(&mut json, &name)?,
            None => {
                pack::put_str(out, &name);
                json.value(out, 1)?;
                count += 1;
            }
        }
        seen.push(name);
        go_on = json.more(b'}', "a comma or } is missing")?;
    }
    json.finish()?;
    pack::end(out, head, count, true);
    // A priority that is left out is the usual one, and a placement key may be left out; the others must be there.
    let absent = roles.iter().find(|(role, name)| {
        !matches!(*role, Role::Priority | Role::Placement)
            && texts[*role as usize].is_none()
            && !seen.iter().any(|known| known == name)
    });
    match absent {
        None => Ok(texts),
        Some((role, name)) => {
            let list = seen.iter().take(20).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
            let has = if list.is_empty() { "nothing".to_owned() } else { list };
            Err(Trouble::Column(name.clone(), format!("is missing (--{}); the row has {has}", role.option())))
        }
    }
}

/// The text of a string or number; nothing for null.
fn text_of<'a>(json: &mut Json<'a>, name: &str) -> Result<Option<Cow<'a, [u8]>>, Trouble> {
    match json.peek() {
        Some(b'"') => Ok(Some(match json.string()? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        })),
        Some(b'-' | b'0'..=b'9') => Ok(Some(Cow::Borrowed(json.number()?.0.as_bytes()))),
        Some(b'n') => {
            json.word()?;
            Ok(None)
        }
        _ => Err(Trouble::Column(name.to_owned(), "must be a string or a number".to_owned())),
    }
}
