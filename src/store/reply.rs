//! Answers of the server, moved out of the client's own types without a copy.

use std::vec;

use bytes::Bytes;
use fred::interfaces::Resp3Frame;
use fred::types::Value;

use super::error::StoreError;

/// An answer. Scripts give whole numbers, strings and lists; the few plain commands that are used
/// fit in as well: a map is a flat list of keys and values, a truth value is 0 or 1, and a fraction
/// is its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A whole number.
    Int(i64),
    /// A string of bytes.
    Bytes(Bytes),
    /// A list.
    Array(Vec<Reply>),
}

fn bad(script: &'static str, want: &str, got: &Reply) -> StoreError {
    StoreError::BadReply { script, what: format!("expected {want}, got {}", got.kind()) }
}

impl Reply {
    /// The time in µs that a script's answer carries after its word.
    pub(super) fn stamp_us(&self) -> Option<i64> {
        let Self::Array(parts) = self else { return None };
        match parts.get(1)? {
            Self::Int(us) => Some(*us),
            Self::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            Self::Nil | Self::Array(_) => None,
        }
    }

    /// What kind of answer this is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nothing",
            Self::Int(_) => "a number",
            Self::Bytes(_) => "a string",
            Self::Array(_) => "a list",
        }
    }

    /// A whole number, or a string that is one.
    pub fn int(self, script: &'static str) -> Result<i64, StoreError> {
        match self {
            Self::Int(n) => Ok(n),
            Self::Bytes(text) => std::str::from_utf8(&text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| bad(script, "a number", &Self::Bytes(text))),
            other => Err(bad(script, "a number", &other)),
        }
    }

    /// A string of bytes.
    pub fn bytes(self, script: &'static str) -> Result<Bytes, StoreError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            other => Err(bad(script, "a string", &other)),
        }
    }

    /// A string of bytes, or nothing.
    pub fn maybe_bytes(self, script: &'static str) -> Result<Option<Bytes>, StoreError> {
        match self {
            Self::Nil => Ok(None),
            other => other.bytes(script).map(Some),
        }
    }

    /// Text.
    pub fn text(self, script: &'static str) -> Result<String, StoreError> {
        let bytes = self.bytes(script)?;
        String::from_utf8(bytes.into())
            .map_err(|_| StoreError::BadReply { script, what: "expected text, got other bytes".into() })
    }

    /// A list.
    pub fn array(self, script: &'static str) -> Result<Vec<Reply>, StoreError> {
        match self {
            Self::Array(items) => Ok(items),
            other => Err(bad(script, "a list", &other)),
        }
    }

    /// A list, to be read from its front.
    pub fn fields(self, script: &'static str) -> Result<Fields, StoreError> {
        Ok(Fields { script, at: 0, items: self.array(script)?.into_iter() })
    }

    /// A flat list of names and values.
    pub fn pairs(self, script: &'static str) -> Result<Vec<(Bytes, Reply)>, StoreError> {
        let mut fields = self.fields(script)?;
        let mut pairs = Vec::with_capacity(fields.left() / 2);
        while fields.left() > 0 {
            pairs.push((fields.bytes("a name")?, fields.next("a value")?));
        }
        Ok(pairs)
    }

    /// From the client's frame. The text of an error comes back as `Err`.
    pub(super) fn from_frame(frame: Resp3Frame) -> Result<Self, String> {
        Ok(match frame {
            Resp3Frame::BlobString { data, .. } | Resp3Frame::SimpleString { data, .. } => Self::Bytes(data),
            Resp3Frame::VerbatimString { data, .. } | Resp3Frame::BigNumber { data, .. } => Self::Bytes(data),
            Resp3Frame::Number { data, .. } => Self::Int(data),
            Resp3Frame::Boolean { data, .. } => Self::Int(i64::from(data)),
            Resp3Frame::Double { data, .. } => Self::Bytes(data.to_string().into()),
            Resp3Frame::Null => Self::Nil,
            Resp3Frame::Array { data, .. } | Resp3Frame::Push { data, .. } => Self::list(data)?,
            Resp3Frame::Set { data, .. } => Self::list(data)?,
            Resp3Frame::Map { data, .. } => {
                let mut items = Vec::with_capacity(data.len() * 2);
                for (key, value) in data {
                    items.push(Self::from_frame(key)?);
                    items.push(Self::from_frame(value)?);
                }
                Self::Array(items)
            }
            Resp3Frame::SimpleError { data, .. } => return Err(data.to_string()),
            Resp3Frame::BlobError { data, .. } => return Err(String::from_utf8_lossy(&data).into_owned()),
            Resp3Frame::Hello { .. } | Resp3Frame::ChunkedString(_) => {
                return Err("ERR the server sent a frame that has no place here".into());
            }
        })
    }

    fn list(frames: impl IntoIterator<Item = Resp3Frame>) -> Result<Self, String> {
        frames.into_iter().map(Self::from_frame).collect::<Result<_, _>>().map(Self::Array)
    }

    /// From the client's value: the form in which pipelines answer.
    pub(super) fn from_value(value: Value) -> Self {
        match value {
            Value::Null => Self::Nil,
            Value::Integer(n) => Self::Int(n),
            Value::Boolean(yes) => Self::Int(i64::from(yes)),
            Value::Double(n) => Self::Bytes(n.to_string().into()),
            Value::String(text) => Self::Bytes(text.into_inner()),
            Value::Bytes(bytes) => Self::Bytes(bytes),
            Value::Queued => Self::Bytes(Bytes::from_static(b"QUEUED")),
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from_value).collect()),
            Value::Map(map) => {
                let pairs = map.inner().into_iter();
                Self::Array(
                    pairs.flat_map(|(k, v)| [Self::Bytes(k.into_bytes()), Self::from_value(v)]).collect(),
                )
            }
        }
    }
}

/// A list that is read from its front, each element with a name for the message when it does not fit.
#[derive(Debug)]
pub struct Fields {
    script: &'static str,
    at: usize,
    items: vec::IntoIter<Reply>,
}

impl Fields {
    /// How many elements are left.
    pub fn left(&self) -> usize {
        self.items.len()
    }

    /// The next element, whatever it is.
    pub fn next(&mut self, name: &str) -> Result<Reply, StoreError> {
        let at = self.at;
        self.at += 1;
        let script = self.script;
        self.items.next().ok_or_else(|| StoreError::BadReply {
            script,
            what: format!("the list ends before {name} at place {at}"),
        })
    }

    fn named<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Reply, &'static str) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let at = self.at;
        let item = self.next(name)?;
        read(item, self.script).map_err(|error| match error {
            StoreError::BadReply { script, what } => {
                StoreError::BadReply { script, what: format!("{name} at place {at}: {what}") }
            }
            other => other,
        })
    }

    /// The next element as a whole number.
    pub fn int(&mut self, name: &str) -> Result<i64, StoreError> {
        self.named(name, Reply::int)
    }

    /// The next element as a string of bytes.
    pub fn bytes(&mut self, name: &str) -> Result<Bytes, StoreError> {
        self.named(name, Reply::bytes)
    }

    /// The next element as a string of bytes, or nothing.
    pub fn maybe_bytes(&mut self, name: &str) -> Result<Option<Bytes>, StoreError> {
        self.named(name, Reply::maybe_bytes)
    }

    /// The next element as text.
    pub fn text(&mut self, name: &str) -> Result<String, StoreError> {
        self.named(name, Reply::text)
    }

    /// The next element as a list.
    pub fn array(&mut self, name: &str) -> Result<Vec<Reply>, StoreError> {
        self.named(name, Reply::array)
    }

    /// The next element as a list to be read from its front.
    pub fn fields(&mut self, name: &str) -> Result<Fields, StoreError> {
        self.named(name, Reply::fields)
    }

    /// An error that says what is wrong with this answer, for the caller's own checks.
    pub fn bad(&self, what: impl Into<String>) -> StoreError {
        StoreError::BadReply { script: self.script, what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(text: &'static str) -> Resp3Frame {
        Resp3Frame::BlobString { data: Bytes::from_static(text.as_bytes()), attributes: None }
    }

    #[test]
    fn frames_are_moved_not_copied() {
        let data = Bytes::from(vec![0xff_u8; 64]);
        let at = data.as_ptr();
        let Ok(Reply::Bytes(moved)) = Reply::from_frame(Resp3Frame::BlobString { data, attributes: None })
        else {
            panic!("a string must stay a string");
        };
        assert_eq!(moved.as_ptr(), at);
    }

    #[test]
    fn lists_keep_their_order_and_nested_errors_surface() {
        let list = |data| Resp3Frame::Array { data, attributes: None };
        let number = Resp3Frame::Number { data: 7, attributes: None };
        let got = Reply::from_frame(list(vec![blob("a"), number, Resp3Frame::Null, list(vec![blob("b")])]));
        let b = Reply::Array(vec![Reply::Bytes("b".into())]);
        assert_eq!(got, Ok(Reply::Array(vec![Reply::Bytes("a".into()), Reply::Int(7), Reply::Nil, b])));
        let error = Resp3Frame::SimpleError { data: "OOM full".into(), attributes: None };
        assert_eq!(Reply::from_frame(list(vec![blob("a"), error])), Err("OOM full".into()));
    }

    #[test]
    fn a_misfit_names_script_field_and_place() {
        let reply = Reply::Array(vec![Reply::Bytes("12".into()), Reply::Nil]);
        let mut fields = reply.fields("due.claim").expect("a list");
        assert_eq!(fields.int("now"), Ok(12));
        let error = fields.int("lag").expect_err("nil is no number");
        assert_eq!(
            error.to_string(),
            "unexpected answer from due.claim: lag at place 1: expected a number, got nothing"
        );
        assert!(
            fields.bytes("more").expect_err("the end").to_string().contains("ends before more at place 2")
        );
    }

    #[test]
    fn pairs_need_an_even_list() {
        let even = Reply::Array(vec![Reply::Bytes("a".into()), Reply::Int(1)]);
        assert_eq!(even.pairs("x"), Ok(vec![("a".into(), Reply::Int(1))]));
        assert!(Reply::Array(vec![Reply::Bytes("a".into())]).pairs("x").is_err());
    }
}
