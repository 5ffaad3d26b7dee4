//! A private server, its CPU and memory, and a bare connection that pipelines.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use minutehand::dev::redis::{PrivateServer, ServerOptions};
use minutehand::store::{ConnectSettings, SCRIPTS, Store};

use super::stat::Failure;

/// How a bench reaches its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A socket in the file system.
    Unix,
    /// A port of this machine.
    Tcp,
}

/// A private server without persistence (`--save "" --appendonly no`), fresh and empty.
pub struct Redis {
    server: PrivateServer,
    control: Bare,
    door: Door,
}

impl Redis {
    /// Starts one.
    pub fn start(door: Door) -> Result<Self, Failure> {
        let options = ServerOptions { tcp: door == Door::Tcp, ..ServerOptions::default() };
        let server = PrivateServer::start_blocking(options)?;
        let control = Bare::open(&server, door)?;
        Ok(Self { server, control, door })
    }

    /// Its address.
    pub fn url(&self) -> Result<String, Failure> {
        Ok(match self.door {
            Door::Unix => self.server.url(),
            Door::Tcp => self.server.tcp_url().ok_or("the server has no port")?,
        })
    }

    /// Its port, where it has one.
    pub fn port(&self) -> Result<i64, Failure> {
        Ok(self.server.port().ok_or("the server has no port")?.into())
    }

    /// A store on it, with as many connections as asked for.
    pub async fn store(&self, pool_size: usize) -> Result<Store, Failure> {
        let url = self.url()?;
        let settings =
            ConnectSettings { url, pool_size, call_timeout_ms: 30_000, ..ConnectSettings::default() };
        Ok(Store::connect(settings).await?)
    }

    /// A bare connection.
    pub fn bare(&self) -> io::Result<Bare> {
        Bare::open(&self.server, self.door)
    }

    /// Name and version of the program.
    pub fn version(&self) -> String {
        let binary = self.server.binary();
        format!("{} {}", if binary.valkey { "valkey" } else { "redis" }, binary.version)
    }

    /// CPU that the server's main thread has used so far, in µs, as the server says. The question itself
    /// costs some 20 µs, so it is asked before and after a whole run and not in between.
    pub fn cpu_us(&mut self) -> Result<f64, Failure> {
        let info = self.info("cpu")?;
        let field = |name: &str| number(&info, name).map(|seconds| seconds * 1e6);
        Ok(field("used_cpu_user_main_thread")? + field("used_cpu_sys_main_thread")?)
    }

    /// The same as the kernel says, without asking the server: for the steps within a run. What a step's
    /// last answer leaves to do falls to the next step.
    pub fn cpu_us_outside(&self) -> f64 {
        let Some(pid) = self.server.pid() else { return 0.0 };
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1_000.0
    }

    /// Commands that clients have sent so far; what scripts call inside is not counted, nor is the question.
    pub fn calls(&mut self) -> Result<f64, Failure> {
        let info = self.info("commandstats")?;
        let names = ["evalsha", "eval", "spublish", "publish", "ping", "hget", "hgetall", "hlen"];
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            names.contains(&name).then(|| rest.split(',').next()?.parse::<f64>().ok()).flatten()
        });
        Ok(calls.sum())
    }

    /// Bytes that the server has received and sent so far.
    pub fn wire(&mut self) -> Result<(f64, f64), Failure> {
        let info = self.info("stats")?;
        Ok((number(&info, "total_net_input_bytes")?, number(&info, "total_net_output_bytes")?))
    }

    /// The slow log: scripts and commands that took 10 ms or more of the clock, with how long. The clock counts also
    /// what the server waited for a core, so on a full machine short ones are among them.
    pub fn slow(&mut self) -> Result<Vec<String>, Failure> {
        let Answer::List(entries) = self.control.ask(&["SLOWLOG", "GET", "20"])? else {
            return Err("SLOWLOG GET gave no list".into());
        };
        let text = |answer: &Answer| match answer {
            Answer::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let told = entries.iter().filter_map(|entry| {
            let Answer::List(parts) = entry else { return None };
            let (Some(Answer::Int(us)), Some(Answer::List(command))) = (parts.get(2), parts.get(3)) else {
                return None;
            };
            let words: Vec<String> = command.iter().take(2).map(text).collect();
            let script = words.get(1).and_then(|sha| SCRIPTS.iter().find(|script| script.sha1() == sha));
            let name = script.map_or_else(|| words.join(" "), |script| script.name.to_owned());
            Some(format!("{name} {:.1} ms", *us as f64 / 1_000.0))
        });
        Ok(told.collect())
    }

    /// Bytes of data in the server: allocated, less what it allocates when empty and for clients.
    pub fn dataset_bytes(&mut self) -> Result<f64, Failure> {
        let info = self.info("memory")?;
        Ok(number(&info, "used_memory")? - number(&info, "mem_clients_normal")?)
    }

    /// Bytes by kind of key: the part after the tag, up to its next `:`. Exact (every element is counted),
    /// so it takes a while.
    pub fn bytes_by_kind(&mut self) -> Result<Vec<(String, usize, f64)>, Failure> {
        let mut kinds = std::collections::BTreeMap::<String, (usize, f64)>::new();
        let mut cursor = "0".to_owned();
        loop {
            let found = self.control.ask(&["SCAN", &cursor, "COUNT", "10000"])?;
            let Answer::List(mut parts) = found else { return Err("SCAN gave no list".into()) };
            let (Some(Answer::List(keys)), Some(Answer::Bytes(next))) = (parts.pop(), parts.pop()) else {
                return Err("SCAN gave another form".into());
            };
            for piece in keys.chunks(500) {
                for key in piece {
                    let Answer::Bytes(key) = key else { continue };
                    self.control.add(&[b"MEMORY", b"USAGE", key, b"SAMPLES", b"1000"]);
                }
                let sizes = self.control.answers()?;
                for (key, size) in piece.iter().zip(sizes) {
                    let (Answer::Bytes(key), Answer::Int(size)) = (key, size) else { continue };
                    let name = String::from_utf8_lossy(key).into_owned();
                    let kind = name.split_once("}:").map_or("?", |(_, rest)| rest);
                    let kind = kind.split(':').next().unwrap_or(kind).to_owned();
                    let slot = kinds.entry(kind).or_default();
                    slot.0 += 1;
                    slot.1 += size as f64;
                }
            }
            cursor = String::from_utf8_lossy(&next).into_owned();
            if cursor == "0" {
                return Ok(kinds.into_iter().map(|(kind, (keys, bytes))| (kind, keys, bytes)).collect());
            }
        }
    }

    fn info(&mut self, section: &str) -> Result<String, Failure> {
        match self.control.ask(&["INFO", section])? {
            Answer::Bytes(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Err("INFO gave no text".into()),
        }
    }
}

fn number(info: &str, name: &str) -> Result<f64, Failure> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).ok_or_else(|| format!("INFO lacks {name}").into())
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    List(Vec<Answer>),
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A bare connection: commands are gathered, sent in one write, and answered in order.
pub struct Bare {
    stream: BufReader<Box<dyn Stream>>,
    out: Vec<u8>,
    open: usize,
}

impl Bare {
    fn open(server: &PrivateServer, door: Door) -> io::Result<Self> {
        let stream: Box<dyn Stream> = match (door, server.port()) {
            (Door::Tcp, Some(port)) => {
                let stream = TcpStream::connect(("127.0.0.1", port))?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            _ => Box::new(UnixStream::connect(server.socket())?),
        };
        Ok(Self { stream: BufReader::with_capacity(1 << 18, stream), out: Vec::new(), open: 0 })
    }

    /// Begins a command of so many words.
    pub fn begin(&mut self, words: usize) -> &mut Self {
        self.out.extend_from_slice(format!("*{words}\r\n").as_bytes());
        self.open += 1;
        self
    }

    /// Adds a word to the command.
    pub fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        let word = word.as_ref();
        self.out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        self.out.extend_from_slice(word);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Adds a whole command.
    pub fn add(&mut self, words: &[&[u8]]) {
        self.begin(words.len());
        for word in words {
            self.word(word);
        }
    }

    /// Sends what was gathered and reads the answers; an error answer is an `Err`.
    pub fn answers(&mut self) -> io::Result<Vec<Answer>> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        (0..std::mem::take(&mut self.open)).map(|_| self.read()).collect()
    }

    /// One command, one answer.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Answer> {
        self.add(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        self.answers()?.pop().ok_or_else(|| io::Error::other("no answer"))
    }

    fn read(&mut self) -> io::Result<Answer> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        let wrong = || io::Error::other(format!("not an answer: {text:?}"));
        let (kind, rest) = text.split_at_checked(1).ok_or_else(wrong)?;
        let number = rest.parse::<i64>();
        match kind {
            "-" => Err(io::Error::other(rest.to_owned())),
            "+" => Ok(Answer::Bytes(rest.into())),
            ":" => number.map(Answer::Int).map_err(|_| wrong()),
            "$" | "*" => {
                let Ok(length) = usize::try_from(number.map_err(|_| wrong())?) else {
                    return Ok(Answer::Nil);
                };
                if kind == "*" {
                    return (0..length).map(|_| self.read()).collect::<io::Result<_>>().map(Answer::List);
                }
                let mut data = vec![0; length + 2];
                self.stream.read_exact(&mut data)?;
                data.truncate(length);
                Ok(Answer::Bytes(data))
            }
            _ => Err(wrong()),
        }
    }
}
