//! Pods and executors as processes, with default settings.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use minutehand::client::Client;
use minutehand::clock;
use minutehand::dev::redis::spawn;
use minutehand::model::Namespace;
use minutehand::store::{Birth, Space, member};

use super::redis::Redis;
use super::stat::Failure;

/// The queue that they serve.
pub const QUEUE: &str = "bench";
const NAMESPACE: &str = "bench";

/// A child process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// When a handler was entered.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// When its task was due, by the server's clock, in µs.
    pub due_us: i64,
    /// When its handler was entered, by the same clock.
    pub start_us: i64,
}

/// Pods and executors at work.
pub struct Fleet {
    /// The namespace.
    pub space: Space,
    /// The same for those who submit.
    pub client: Client,
    pods: Vec<Running>,
    workers: Vec<(Running, PathBuf)>,
    url: String,
}

impl Fleet {
    /// Opens the namespace with so many buckets, each for so many holders; starts nothing.
    pub async fn open(redis: &Redis, buckets: u16, holders: u8) -> Result<Self, Failure> {
        let birth = Birth { key_buckets: buckets, buckets, holders };
        let space = Space::open_as(redis.store(4).await?, Namespace::new(NAMESPACE)?, birth).await?;
        let client = Client::new(space.clone());
        Ok(Self { space, client, pods: Vec::new(), workers: Vec::new(), url: redis.url()? })
    }

    /// Starts pods.
    pub fn add_pods(&mut self, pods: usize) -> Result<(), Failure> {
        for _ in 0..pods {
            let mut command = Command::new(env!("CARGO_BIN_EXE_minutehand"));
            command.args(["serve", "--listen", "127.0.0.1:0", "--log-level", "warn"]);
            command.args(["--redis", &self.url, "--namespace", NAMESPACE]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            self.pods.push(Running(spawn(command)?));
        }
        Ok(())
    }

    /// Starts executors, and waits until all that were started have joined.
    pub async fn add_workers(&mut self, workers: usize) -> Result<(), Failure> {
        for _ in 0..workers {
            let name = format!("minutehand-bench-{}-{:x}", std::process::id(), fastrand::u64(..));
            let out = std::env::temp_dir().join(name);
            let mut command = Command::new(std::env::current_exe()?);
            command.args([
                "worker",
                "--redis",
                &self.url,
                "--namespace",
                NAMESPACE,
                "--queue",
                QUEUE,
                "--out",
            ]);
            command.arg(&out).stdin(Stdio::piped()).stdout(Stdio::null());
            self.workers.push((Running(spawn(command)?), out));
        }
        let start = clock::mono();
        while member::executors(&self.space).await?.len() < self.workers.len()
            || member::pods(&self.space).await?.len() < self.pods.len()
        {
            if start.elapsed() > Duration::from_secs(30) {
                return Err("the fleet did not come up".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until nothing waits or runs any more.
    pub async fn quiet(&self, longest: Duration) -> Result<(), Failure> {
        let start = clock::mono();
        loop {
            let (counts, _) = self.client.counts().await?;
            if counts.is_quiet() {
                return Ok(());
            }
            if start.elapsed() > longest {
                return Err(format!("not done after {} s: {counts:?}", longest.as_secs()).into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends the executors in order, then the pods; answers when each handler was entered, in order of starts.
    pub async fn end(mut self) -> Result<Vec<Start>, Failure> {
        let mut starts = Vec::new();
        for (worker, out) in &mut self.workers {
            drop(worker.0.stdin.take());
            let status = worker.0.wait()?;
            if !status.success() {
                return Err(format!("a worker ended with {status}").into());
            }
            let bytes = std::fs::read(&out)?;
            let _ = std::fs::remove_file(&out);
            let word = |part: &[u8]| part.try_into().map_or(0, i64::from_le_bytes);
            starts.extend(
                bytes
                    .chunks_exact(16)
                    .map(|note| Start { due_us: word(&note[..8]), start_us: word(&note[8..]) }),
            );
        }
        starts.sort_unstable_by_key(|start| start.start_us);
        Ok(starts)
    }
}

/// Start − due of many, in ms.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Lag {
    pub count: usize,
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Lag {
    /// Of all starts; an error if one was early.
    pub fn of(starts: &[Start]) -> Result<Self, Failure> {
        let mut lags: Vec<i64> = starts.iter().map(|start| start.start_us - start.due_us).collect();
        lags.sort_unstable();
        let (Some(least), Some(most)) = (lags.first(), lags.last()) else {
            return Err("nothing started".into());
        };
        if *least < 0 {
            let early = lags.iter().filter(|lag| **lag < 0).count();
            return Err(format!("{early} of {} started early, the worst by {} µs", lags.len(), -least).into());
        }
        let at = |share: f64| lags[((lags.len() - 1) as f64 * share) as usize] as f64 / 1_000.0;
        Ok(Self {
            count: lags.len(),
            min: *least as f64 / 1_000.0,
            p50: at(0.5),
            p99: at(0.99),
            max: *most as f64 / 1_000.0,
        })
    }
}
