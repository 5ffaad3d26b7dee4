//! What the operating system asks of a running command.

use super::error::CliError;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Fires at the first SIGTERM or SIGINT. A second one ends the process at once, as one expects who asks twice.
pub fn stop() -> Result<CancellationToken, CliError> {
    let stop = CancellationToken::new();
    hear(vec![(stop.clone(), "asked to stop; once more ends it at once")])?;
    Ok(stop)
}

/// Fires the first token at the first SIGTERM or SIGINT, the second at the second: what still runs is then
/// given up, in order. A third signal ends the process at once.
pub fn stop_then_now() -> Result<(CancellationToken, CancellationToken), CliError> {
    let (stop, now) = (CancellationToken::new(), CancellationToken::new());
    hear(vec![
        (stop.clone(), "asked to stop; once more does not wait for running tasks"),
        (now.clone(), "asked twice; running tasks are dropped and handed back"),
    ])?;
    Ok((stop, now))
}

/// Fires one token after the other; a signal for which none is left ends the process.
fn hear(steps: Vec<(CancellationToken, &'static str)>) -> Result<(), CliError> {
    let cannot = |error: std::io::Error| CliError::failed(format!("signals cannot be heard: {error}"));
    let mut term = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    tokio::spawn(async move {
        let mut steps = steps.into_iter();
        loop {
            let code = tokio::select! {
                _ = term.recv() => 143,
                _ = interrupt.recv() => 130,
            };
            let Some((token, say)) = steps.next() else { std::process::exit(code) };
            tracing::info!("{say}");
            token.cancel();
        }
    });
    Ok(())
}
