//! Writes a sample of the routing decisions into a file, for those who ask why a task went where it did.

use super::Shared;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the file is written anew.
const EVERY: Duration = Duration::from_secs(5);

/// Keeps the file up to date until `stop` fires, and writes it a last time then.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let Some(path) = shared.settings.route_record.clone() else { return };
    let mut written = 0;
    loop {
        let stopped = stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none();
        let (decisions, seen) = shared.dispatcher.decisions();
        if seen > written {
            written = seen;
            let path = path.clone();
            let wrote = tokio::task::spawn_blocking(move || write(&path, &decisions)).await;
            if let Err(error) = wrote.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
                let path = shared.settings.route_record.as_deref().unwrap_or(Path::new(""));
                tracing::warn!(path = %path.display(), %error, "could not write the record of routing decisions");
            }
        }
        if stopped {
            return;
        }
    }
}

/// One decision a line; a reader sees the file before or after, never half of it.
fn write(path: &Path, decisions: &[crate::model::route::record::Decision]) -> std::io::Result<()> {
    let half = path.with_extension("new");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&half)?);
    for decision in decisions {
        serde_json::to_writer(&mut out, decision)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    std::fs::rename(half, path)
}
