//! An executor in a process of its own that notes when each handler was entered.
//!
//! The server is on this machine, so its clock is this machine's, and a handler can say by it when it was
//! entered, without any estimate.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use clap::Args;
use minutehand::clock;
use minutehand::executor::{Executor, ExecutorSettings};
use minutehand::model::Namespace;
use minutehand::store::{ConnectSettings, Space, Store};
use tokio_util::sync::CancellationToken;

use crate::kit::stat::Failure;

/// What a worker is told.
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// The server.
    #[arg(long)]
    redis: String,
    /// The namespace.
    #[arg(long)]
    namespace: String,
    /// The queue.
    #[arg(long)]
    queue: String,
    /// Where the notes go at the end: due and start of each, in µs, 8 bytes each, little-endian.
    #[arg(long)]
    out: PathBuf,
}

/// Works with default settings until its standard input ends.
pub async fn run(args: WorkerArgs) -> Result<(), Failure> {
    let store = Store::connect(ConnectSettings { url: args.redis, ..ConnectSettings::default() }).await?;
    let space = Space::open(store, Namespace::new(&args.namespace)?).await?;
    let notes: Arc<Mutex<Vec<(i64, i64)>>> = Arc::default();
    let own = Arc::clone(&notes);
    let executor = Executor::builder(space)
        .settings(ExecutorSettings::default())
        .handle(args.queue, move |task, _| {
            let start = clock::wall_us();
            let due = task.due.0 * 1_000;
            if let Ok(mut notes) = own.lock() {
                notes.push((due, start));
            }
            async { Ok(()) }
        })
        .build()?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.cancel();
    });
    executor.run(stop).await?;
    let notes = notes.lock().map_err(|_| "a handler panicked")?;
    let bytes: Vec<u8> =
        notes.iter().flat_map(|(due, start)| [due.to_le_bytes(), start.to_le_bytes()]).flatten().collect();
    std::fs::write(args.out, bytes)?;
    Ok(())
}
