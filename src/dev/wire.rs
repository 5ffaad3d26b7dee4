//! A few commands over a plain connection, to set servers up before there is a store to do it with.
//!
//! Blocking, RESP2, no TLS: for private servers on this machine only.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a connection or an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest string and list that is read.
const LENGTH_MAX: usize = 64 << 20;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of this machine.
    Tcp(SocketAddr),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Nil,
    /// A whole number.
    Int(i64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Answer>),
}

impl Answer {
    /// The text, or an empty one.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Nil | Self::Int(_) | Self::List(_) => "",
        }
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// An open connection.
pub struct Wire {
    stream: BufReader<Box<dyn Stream>>,
}

impl Wire {
    /// Connects.
    pub fn open(door: &Door) -> io::Result<Self> {
        let stream: Box<dyn Stream> = match door {
            Door::Unix(path) => Box::new(unix(path)?),
            Door::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(addr, LIMIT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                Box::new(stream)
            }
        };
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its answer; an error answer is an `Err`.
    pub fn run(&mut self, words: &[&str]) -> io::Result<Answer> {
        let mut out = format!("*{}\r\n", words.len());
        for word in words {
            out.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(out.as_bytes())?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Answer> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| wrong("an empty line"))?;
        let length = || match rest.parse::<i64>() {
            Ok(-1) => Ok(None),
            Ok(n) => {
                usize::try_from(n).ok().filter(|n| *n <= LENGTH_MAX).map(Some).ok_or_else(|| wrong(line))
            }
            Err(_) => Err(wrong(line)),
        };
        match kind {
            "+" => Ok(Answer::Text(rest.to_owned())),
            "-" => Err(io::Error::other(rest.to_owned())),
            ":" => rest.parse().map(Answer::Int).map_err(|_| wrong(line)),
            "$" => {
                let Some(length) = length()? else { return Ok(Answer::Nil) };
                let mut data = vec![0; length + 2];
                self.stream.read_exact(&mut data)?;
                data.truncate(length);
                Ok(Answer::Text(String::from_utf8_lossy(&data).into_owned()))
            }
            "*" => {
                let Some(length) = length()? else { return Ok(Answer::Nil) };
                (0..length).map(|_| self.read()).collect::<io::Result<_>>().map(Answer::List)
            }
            _ => Err(wrong(line)),
        }
    }
}

fn unix(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn wrong(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of redis: {line:?}"))
}
