//! Writing msgpack, and turning JSON into it without losing a digit.
//!
//! JSON is read here and not by serde_json because the latter makes a float of an integer above
//! 64 bits before anybody can see its digits. A property test holds the two against each other.

use crate::limits;
use bytes::{BufMut, BytesMut};
use std::borrow::Cow;

/// Text that is not JSON: where, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// Bytes before the place.
    pub at: usize,
    /// What is wrong.
    pub detail: &'static str,
}

/// Writes a string.
pub fn put_str(out: &mut BytesMut, text: &str) {
    match text.len() {
        n @ 0..=31 => out.put_u8(0xa0 | n as u8),
        n @ 32..=0xff => out.put_slice(&[0xd9, n as u8]),
        n @ 0x100..=0xffff => {
            out.put_u8(0xda);
            out.put_u16(n as u16);
        }
        n => {
            out.put_u8(0xdb);
            out.put_u32(n as u32);
        }
    }
    out.put_slice(text.as_bytes());
}

/// Writes bytes that are not text.
pub fn put_bin(out: &mut BytesMut, bytes: &[u8]) {
    match bytes.len() {
        n @ 0..=0xff => out.put_slice(&[0xc4, n as u8]),
        n @ 0x100..=0xffff => {
            out.put_u8(0xc5);
            out.put_u16(n as u16);
        }
        n => {
            out.put_u8(0xc6);
            out.put_u32(n as u32);
        }
    }
    out.put_slice(bytes);
}

/// Writes a cell: a string when it is UTF-8, else bytes.
pub fn put_cell(out: &mut BytesMut, cell: &[u8]) {
    match std::str::from_utf8(cell) {
        Ok(text) => put_str(out, text),
        Err(_) => put_bin(out, cell),
    }
}

/// Leaves room for the head of a map or list whose length is not known yet.
pub fn begin(out: &mut BytesMut) -> usize {
    out.put_u8(0);
    out.len() - 1
}

/// Writes the head of a map (`true`) or list at the place that [`begin`] gave.
pub fn end(out: &mut BytesMut, at: usize, count: usize, map: bool) {
    let (short, long, longest) = if map { (0x80, 0xde, 0xdf) } else { (0x90, 0xdc, 0xdd) };
    let mut head = |first: u8, more: &[u8]| {
        let len = out.len();
        out.resize(len + more.len(), 0);
        out.copy_within(at + 1..len, at + 1 + more.len());
        out[at] = first;
        out[at + 1..at + 1 + more.len()].copy_from_slice(more);
    };
    match count {
        n @ 0..=15 => head(short | n as u8, &[]),
        n @ 16..=0xffff => head(long, &(n as u16).to_be_bytes()),
        n => head(longest, &(n as u32).to_be_bytes()),
    }
}

/// Writes an unsigned integer in its shortest form.
fn put_uint(out: &mut BytesMut, n: u64) {
    match n {
        0..=0x7f => out.put_u8(n as u8),
        0x80..=0xff => out.put_slice(&[0xcc, n as u8]),
        0x100..=0xffff => {
            out.put_u8(0xcd);
            out.put_u16(n as u16);
        }
        0x1_0000..=0xffff_ffff => {
            out.put_u8(0xce);
            out.put_u32(n as u32);
        }
        _ => {
            out.put_u8(0xcf);
            out.put_u64(n);
        }
    }
}

fn put_int(out: &mut BytesMut, n: i64) {
    match n {
        0.. => put_uint(out, n as u64),
        -32..=-1 => out.put_i8(n as i8),
        -128..=-33 => {
            out.put_u8(0xd0);
            out.put_i8(n as i8);
        }
        -32_768..=-129 => {
            out.put_u8(0xd1);
            out.put_i16(n as i16);
        }
        -2_147_483_648..=-32_769 => {
            out.put_u8(0xd2);
            out.put_i32(n as i32);
        }
        _ => {
            out.put_u8(0xd3);
            out.put_i64(n);
        }
    }
}

/// A cursor over one JSON text.
pub struct Json<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    /// At the start of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn wrong<T>(&self, detail: &'static str) -> Result<T, JsonError> {
        Err(JsonError { at: self.at, detail })
    }

    /// The next byte that is not blank, not taken.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Bytes before the cursor.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Takes this byte, or says what is missing.
    pub fn expect(&mut self, byte: u8, detail: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return self.wrong(detail);
        }
        self.at += 1;
        Ok(())
    }

    /// Nothing may follow.
    pub fn finish(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.wrong("something follows the value"),
        }
    }

    /// Takes a string.
    pub fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.expect(b'"', "a string must begin with a quote")?;
        let start = self.at;
        let mut decoded: Option<Vec<u8>> = None;
        let mut copied = start;
        loop {
            match self.text.get(self.at) {
                None => return self.wrong("the string has no end"),
                Some(b'"') => break,
                Some(0..=0x1f) => return self.wrong("a control character must be written as \\u00XX"),
                Some(b'\\') => {
                    let out = decoded.get_or_insert_default();
                    out.extend_from_slice(&self.text[copied..self.at]);
                    self.at += 1;
                    self.escape(out)?;
                    copied = self.at;
                }
                Some(_) => self.at += 1,
            }
        }
        let raw = &self.text[copied..self.at];
        let not_utf8 = |at: usize| JsonError { at, detail: "the string is not UTF-8" };
        let text = match decoded {
            None => Cow::Borrowed(std::str::from_utf8(raw).map_err(|e| not_utf8(start + e.valid_up_to()))?),
            Some(mut out) => {
                out.extend_from_slice(raw);
                Cow::Owned(String::from_utf8(out).map_err(|_| not_utf8(start))?)
            }
        };
        self.at += 1;
        Ok(text)
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), JsonError> {
        let Some(byte) = self.text.get(self.at) else { return self.wrong("the string has no end") };
        let plain = match byte {
            b'"' | b'\\' | b'/' => *byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.at += 1;
                let mut code = self.hex4()?;
                if (0xd800..0xdc00).contains(&code) {
                    if self.text.get(self.at..self.at + 2) != Some(b"\\u") {
                        return self.wrong("half of a surrogate pair");
                    }
                    self.at += 2;
                    let low = self.hex4()?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return self.wrong("half of a surrogate pair");
                    }
                    code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                }
                // Only a low half that stands alone is no character here.
                let Some(char) = char::from_u32(code) else { return self.wrong("half of a surrogate pair") };
                out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return self.wrong("an unknown escape"),
        };
        out.push(plain);
        self.at += 1;
        Ok(())
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let Some(digits) = self.text.get(self.at..self.at + 4) else {
            return self.wrong("\\u needs four digits");
        };
        let mut code = 0;
        for byte in digits {
            let Some(digit) = char::from(*byte).to_digit(16) else {
                return self.wrong("\\u needs four digits");
            };
            code = code * 16 + digit;
        }
        self.at += 4;
        Ok(code)
    }

    /// Takes a number; gives its text and whether it is an integer.
    pub fn number(&mut self) -> Result<(&'a str, bool), JsonError> {
        let start = self.at;
        let mut integer = true;
        if self.text.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match self.text.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return self.wrong("not a JSON value"),
        }
        if self.text.get(self.at) == Some(&b'.') {
            integer = false;
            self.at += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            integer = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        // Only ASCII has been taken.
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        Ok((text, integer))
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.digits();
        if self.at == start { self.wrong("a digit is missing") } else { Ok(()) }
    }

    /// Takes `true`, `false` or `null`.
    pub fn word(&mut self) -> Result<&'static str, JsonError> {
        let rest = &self.text[self.at..];
        for word in ["true", "false", "null"] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(word);
            }
        }
        self.wrong("not a JSON value")
    }

    /// Takes a value of any kind and writes it as msgpack.
    ///
    /// Integers keep their digits: as integers when they fit 64 bits, else as text. Other numbers
    /// become 64-bit floats; those beyond the range of one are refused.
    pub fn value(&mut self, out: &mut BytesMut, depth: usize) -> Result<(), JsonError> {
        if depth > limits::IMPORT_DEPTH_MAX {
            return self.wrong("nested too deeply");
        }
        match self.peek() {
            Some(b'"') => put_str(out, &self.string()?),
            Some(b'{') => {
                self.at += 1;
                let (head, mut count) = (begin(out), 0);
                if self.peek() == Some(b'}') {
                    self.at += 1;
                } else {
                    loop {
                        self.peek();
                        put_str(out, &self.string()?);
                        self.expect(b':', "a colon is missing")?;
                        self.value(out, depth + 1)?;
                        count += 1;
                        if !self.more(b'}', "a comma or } is missing")? {
                            break;
                        }
                    }
                }
                end(out, head, count, true);
            }
            Some(b'[') => {
                self.at += 1;
                let (head, mut count) = (begin(out), 0);
                if self.peek() == Some(b']') {
                    self.at += 1;
                } else {
                    loop {
                        self.value(out, depth + 1)?;
                        count += 1;
                        if !self.more(b']', "a comma or ] is missing")? {
                            break;
                        }
                    }
                }
                end(out, head, count, false);
            }
            Some(b'-' | b'0'..=b'9') => {
                let start = self.at;
                let (text, integer) = self.number()?;
                match (integer, text.parse::<u64>(), text.parse::<i64>()) {
                    (true, Ok(n), _) => put_uint(out, n),
                    (true, _, Ok(n)) if n != 0 => put_int(out, n),
                    (true, ..) if text != "-0" => put_str(out, text),
                    _ => match text.parse::<f64>() {
                        Ok(n) if n.is_finite() => {
                            out.put_u8(0xcb);
                            out.put_f64(n);
                        }
                        _ => return Err(JsonError { at: start, detail: "the number is beyond 64 bits" }),
                    },
                }
            }
            Some(b't' | b'f' | b'n') => match self.word()? {
                "true" => out.put_u8(0xc3),
                "false" => out.put_u8(0xc2),
                _ => out.put_u8(0xc0),
            },
            Some(_) => return self.wrong("not a JSON value"),
            None => return self.wrong("a value is missing"),
        }
        Ok(())
    }

    /// After an element: takes a comma (true) or the closing bracket (false).
    pub fn more(&mut self, close: u8, detail: &'static str) -> Result<bool, JsonError> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => self.wrong(detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn pack(text: &[u8]) -> Result<BytesMut, JsonError> {
        let (mut json, mut out) = (Json::new(text), BytesMut::new());
        json.value(&mut out, 0)?;
        json.finish()?;
        Ok(out)
    }

    fn round(text: &str) -> Value {
        rmp_serde::from_slice(&pack(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn integers_keep_every_digit() {
        for text in [
            "9007199254740993",
            "18446744073709551615",
            "-9223372036854775808",
            "0",
            "-1",
            "-33",
            "-129",
            "127",
            "128",
            "65536",
            "4294967296",
        ] {
            assert_eq!(round(text).to_string(), text);
        }
        assert_eq!(round("18446744073709551616"), Value::from("18446744073709551616"));
        assert_eq!(round("-9223372036854775809"), Value::from("-9223372036854775809"));
        assert_eq!(round("0.1").as_f64(), Some(0.1));
        assert_eq!(round("1e3").as_f64(), Some(1_000.0));
        assert_eq!(&pack(b"-0").unwrap()[..], &[0xcb, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(pack(b"1e400").unwrap_err().detail, "the number is beyond 64 bits");
    }

    #[test]
    fn golden_bytes() {
        let bytes = pack(br#" {"a":[1,-1,null,true,false],"b":"\u00e9\ud83d\ude00"} "#).unwrap();
        let expected =
            [&[0x82, 0xa1, b'a', 0x95, 1, 0xff, 0xc0, 0xc3, 0xc2, 0xa1, b'b', 0xa6][..], "é😀".as_bytes()]
                .concat();
        assert_eq!(&bytes[..], &expected[..]);
        for count in [0, 15, 16, 65_535, 65_536] {
            let list = format!("[{}]", vec!["7"; count].join(","));
            assert_eq!(round(&list).as_array().unwrap().len(), count);
            let map: Vec<String> = (0..count).map(|n| format!("\"{n}\":{n}")).collect();
            assert_eq!(round(&format!("{{{}}}", map.join(","))).as_object().unwrap().len(), count);
        }
        for len in [31, 32, 255, 256, 65_535, 65_536] {
            assert_eq!(round(&format!("\"{}\"", "x".repeat(len))), Value::from("x".repeat(len)));
        }
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        for (text, at) in [
            ("", 0),
            ("{", 1),
            ("{\"a\"}", 4),
            ("[1,]", 3),
            ("01", 1),
            ("1.", 2),
            ("tru", 0),
            ("\"\\ud800\"", 7),
            ("\"\\udc00\"", 7),
            ("\"\t\"", 1),
            ("{} x", 3),
            ("NaN", 0),
        ] {
            assert_eq!(pack(text.as_bytes()).map_err(|e| e.at), Err(at), "{text}");
        }
        assert_eq!(pack(b"\"a\xff\"").unwrap_err(), JsonError { at: 2, detail: "the string is not UTF-8" });
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(pack(deep(limits::IMPORT_DEPTH_MAX).as_bytes()).is_ok());
        assert_eq!(pack(deep(1_000_000).as_bytes()).unwrap_err().detail, "nested too deeply");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
            ".{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 20, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                proptest::collection::btree_map(".{0,8}", inner, 0..20)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_comes_back_from_msgpack(value in value()) {
            prop_assert_eq!(round(&value.to_string()), value);
        }

        #[test]
        fn any_text_is_taken_or_refused_as_serde_json_does(text in r#"[\[\]{}",:0-9eE.+\-tfnrualse \\\u0000-\u0020]{0,24}"#) {
            let theirs: Result<Value, _> = serde_json::from_str(&text);
            prop_assert_eq!(pack(text.as_bytes()).is_ok(), theirs.is_ok(), "{:?}", text);
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(pack(&bytes).is_ok(), serde_json::from_slice::<Value>(&bytes).is_ok());
        }
    }
}
