//! Builds the arguments of a script in one allocation.

use bytes::{Bytes, BytesMut};
use std::fmt::Write;

/// Arguments in the making. Small ones are written into one shared buffer and cut off as slices of it.
pub(crate) struct Args {
    buffer: BytesMut,
    out: Vec<Bytes>,
}

impl Args {
    /// Room for `count` arguments and `bytes` bytes of small ones; grows where needed.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(bytes), out: Vec::with_capacity(count) }
    }

    /// An argument that is at hand already; not copied.
    pub fn shared(&mut self, bytes: Bytes) -> &mut Self {
        self.out.push(bytes);
        self
    }

    /// A small argument, copied.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(bytes);
        self.cut()
    }

    /// One argument of several parts, copied one behind the other.
    pub fn joined(&mut self, parts: &[&[u8]]) -> &mut Self {
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
        self.cut()
    }

    /// A number as its decimal text.
    pub fn number(&mut self, number: impl std::fmt::Display) -> &mut Self {
        self.part(format_args!("{number}")).cut()
    }

    /// Adds to the argument in the making; [`Self::cut`] ends it.
    pub fn part(&mut self, text: std::fmt::Arguments<'_>) -> &mut Self {
        // Writing into memory does not fail.
        let _ = self.buffer.write_fmt(text);
        self
    }

    /// Adds bytes to the argument in the making; [`Self::cut`] ends it.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(bytes);
        self
    }

    /// Ends the argument in the making.
    pub fn cut(&mut self) -> &mut Self {
        self.out.push(self.buffer.split().freeze());
        self
    }

    /// The arguments.
    pub fn done(self) -> Vec<Bytes> {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_where_they_end() {
        let mut args = Args::with_capacity(4, 4);
        args.number(12).joined(&[b"a", b"bc"]).bytes(b"").shared(Bytes::from_static(b"x"));
        args.part(format_args!("{:02}", 7)).raw(b"!").cut();
        assert_eq!(args.done(), ["12", "abc", "", "x", "07!"]);
    }
}
