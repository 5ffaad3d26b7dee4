//! What the operating system asks of a running command.

use super::error::CliError;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Fires at the first SIGTERM or SIGINT. A second one ends the process at once, as one expects who asks twice.
pub fn stop() -> Result<CancellationToken, CliError> {
    let cannot = |error: std::io::Error| CliError::failed(format!("signals cannot be heard: {error}"));
    let mut term = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        let mut asked = 0;
        loop {
            let code = tokio::select! {
                _ = term.recv() => 143,
                _ = interrupt.recv() => 130,
            };
            asked += 1;
            if asked > 1 {
                std::process::exit(code);
            }
            tracing::info!("asked to stop; once more ends it at once");
            stop.cancel();
        }
    });
    Ok(token)
}
