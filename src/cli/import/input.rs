//! Where an import's bytes come from: a file or stdin, gzip or not, CSV or NDJSON.

use super::ImportError;
use flate2::bufread::MultiGzDecoder;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Form of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values; the first row names the columns.
    Csv,
    /// One JSON object a line.
    Ndjson,
}

/// A source that may be read once, or from its start again.
pub struct Input {
    /// For messages.
    pub name: String,
    file: Option<File>,
    /// Whether `file` can be read from its start again.
    again: bool,
    /// Bytes in it, as they lie there (so compressed, if they are).
    pub size: Option<u64>,
    /// Bytes read so far.
    pub read: Arc<AtomicU64>,
    format: Option<Format>,
}

impl Input {
    /// Opens a file, or stdin for `-`. The format is that asked for, else told by the name, else by the first byte.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, ImportError> {
        let read = Arc::new(AtomicU64::new(0));
        if path == Path::new("-") {
            return Ok(Self { name: "stdin".to_owned(), file: None, again: false, size: None, read, format });
        }
        let name = path.display().to_string();
        let cannot = |error: io::Error| ImportError::Open { name: name.clone(), detail: error.to_string() };
        let file = File::open(path).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        if meta.is_dir() {
            return Err(ImportError::Open { name, detail: "is a directory".to_owned() });
        }
        let again = meta.is_file();
        let size = again.then_some(meta.len());
        let format = format.or_else(|| format_of_name(&name));
        Ok(Self { name, file: Some(file), again, size, read, format })
    }

    /// An input of bytes in memory.
    pub fn of_bytes(name: &str, bytes: &[u8], format: Format) -> Result<Self, ImportError> {
        let cannot =
            |error: io::Error| ImportError::Open { name: name.to_owned(), detail: error.to_string() };
        let mut file = temporary().map_err(cannot)?;
        io::Write::write_all(&mut file, bytes).map_err(cannot)?;
        let size = Some(bytes.len() as u64);
        Ok(Self {
            name: name.to_owned(),
            file: Some(file),
            again: true,
            size,
            read: Arc::default(),
            format: Some(format),
        })
    }

    /// Makes sure that the input can be read twice: what is no plain file is first written to a
    /// temporary one, which has no name any more and goes when the process does.
    pub fn make_repeatable(&mut self) -> Result<(), ImportError> {
        if self.again {
            return Ok(());
        }
        let name = self.name.clone();
        let cannot = |error: io::Error| ImportError::Open {
            name: name.clone(),
            detail: format!("could not be set aside: {error}"),
        };
        let mut spool = temporary().map_err(cannot)?;
        let copied = match self.file.take() {
            Some(mut file) => io::copy(&mut file, &mut spool),
            None => io::copy(&mut io::stdin().lock(), &mut spool),
        };
        self.size = Some(copied.map_err(cannot)?);
        self.file = Some(spool);
        self.again = true;
        Ok(())
    }

    /// The bytes from the start, unpacked, and their format.
    pub fn start(&self) -> Result<(Format, Box<dyn BufRead>), ImportError> {
        let cannot =
            |error: io::Error| ImportError::Open { name: self.name.clone(), detail: error.to_string() };
        let raw: Box<dyn Read> = match &self.file {
            Some(file) => {
                let mut file = file.try_clone().map_err(cannot)?;
                if self.again {
                    file.seek(SeekFrom::Start(0)).map_err(cannot)?;
                }
                Box::new(file)
            }
            None => Box::new(io::stdin()),
        };
        self.read.store(0, Ordering::Relaxed);
        let mut raw =
            BufReader::with_capacity(256 << 10, Counted { inner: raw, read: Arc::clone(&self.read) });
        let first = raw.fill_buf().map_err(cannot)?;
        let mut plain: Box<dyn BufRead> = if first.starts_with(&[0x1f, 0x8b]) {
            Box::new(BufReader::with_capacity(256 << 10, MultiGzDecoder::new(raw)))
        } else {
            Box::new(raw)
        };
        let first = plain.fill_buf().map_err(cannot)?;
        let refuse =
            |detail: &str| Err(ImportError::Open { name: self.name.clone(), detail: detail.to_owned() });
        if first.starts_with(&[0xff, 0xfe]) || first.starts_with(&[0xfe, 0xff]) {
            return refuse("is UTF-16; iconv -f UTF-16 -t UTF-8 makes it readable");
        }
        if first.starts_with(b"PK\x03\x04") {
            return refuse("is a zip archive or a spreadsheet; unpack it or save it as CSV");
        }
        if first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            return refuse("is compressed with zstd; unpack it first: zstd -dc FILE | minutehand import -");
        }
        if first.starts_with(&[0xef, 0xbb, 0xbf]) {
            plain.consume(3);
        }
        let format = match self.format {
            Some(format) => format,
            None => {
                let first = plain.fill_buf().map_err(cannot)?;
                match first.iter().find(|byte| !byte.is_ascii_whitespace()) {
                    Some(b'{' | b'[') => Format::Ndjson,
                    _ => Format::Csv,
                }
            }
        };
        Ok((format, plain))
    }
}

fn format_of_name(name: &str) -> Option<Format> {
    let name = name.to_lowercase();
    match name.trim_end_matches(".gz").rsplit('.').next() {
        Some("csv") => Some(Format::Csv),
        Some("ndjson" | "jsonl" | "json") => Some(Format::Ndjson),
        _ => None,
    }
}

/// A file without a name, readable by nobody else.
fn temporary() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("minutehand-import-{}", uuid::Uuid::new_v4()));
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Ends a row that has no end. The CSV reader keeps a whole row in memory, and one quote that is
/// not closed makes a row of the rest of the file.
pub struct Bounded<R> {
    inner: R,
    most: u64,
    since: Cell<u64>,
    at_end: Cell<bool>,
    last: Cell<u8>,
}

impl<R> Bounded<R> {
    /// Lets at most `most` bytes through from one call of [`Self::begin_row`] to the next.
    pub fn new(inner: R, most: u64) -> Self {
        Self { inner, most, since: Cell::new(0), at_end: Cell::new(false), last: Cell::new(0) }
    }

    /// Whether the source has said that it has no more.
    pub fn at_end(&self) -> bool {
        self.at_end.get()
    }

    /// The last byte that came out of the source.
    pub fn last_byte(&self) -> u8 {
        self.last.get()
    }

    /// A new row begins.
    pub fn begin_row(&self) {
        self.since.set(0);
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.since.get() > self.most {
            let detail = format!("the row is longer than {} bytes; is a quote not closed?", self.most);
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        let n = self.inner.read(buf)?;
        self.at_end.set(n == 0 && !buf.is_empty());
        if let Some(last) = buf[..n].last() {
            self.last.set(*last);
        }
        self.since.set(self.since.get() + n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn names_tell_the_format() {
        assert_eq!(format_of_name("a/PLAN.CSV.gz"), Some(Format::Csv));
        assert_eq!(format_of_name("plan.jsonl"), Some(Format::Ndjson));
        assert_eq!(format_of_name("plan.ndjson.gz"), Some(Format::Ndjson));
        assert_eq!(format_of_name("plan"), None);
    }

    #[test]
    fn gzip_and_byte_order_mark_are_seen_by_their_bytes() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(b"\xef\xbb\xbf {\"a\":1}\n").unwrap();
        let mut spool = temporary().unwrap();
        spool.write_all(&packed.finish().unwrap()).unwrap();
        let input = Input {
            name: "x".into(),
            file: Some(spool),
            again: true,
            size: None,
            read: Arc::default(),
            format: None,
        };
        for _ in 0..2 {
            let (format, mut bytes) = input.start().unwrap();
            let mut text = String::new();
            bytes.read_to_string(&mut text).unwrap();
            assert_eq!((format, text.as_str()), (Format::Ndjson, " {\"a\":1}\n"));
        }
    }
}
