//! `minutehand work`: an executor whose handler is a command, a web address, or nothing.

use super::args::{Output, WorkArgs};
use super::error::{CliError, Exit};
use super::{connect, render, serve, signal};
use crate::executor::{self, Executor, ExecutorError, ExecutorSettings, Webhook};
use crate::http::{self, Ops};
use crate::model::{Labels, QueueName};
use crate::settings::Loaded;
use crate::telemetry;
use crate::webhook::Allowed;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Settings and flags of an executor.
fn settings(args: &WorkArgs, loaded: &Loaded) -> ExecutorSettings {
    let executor = &loaded.settings.executor;
    ExecutorSettings {
        name: args.name.clone().unwrap_or_default(),
        slots: executor.slots,
        kind: executor.kind,
        urgent_slots: executor.urgent_slots,
        prefetch: executor.prefetch,
        labels: args.label.clone(),
        heartbeat_ms: executor.heartbeat.ms().unsigned_abs(),
        ack_gather_ms: executor.ack_gather.ms().unsigned_abs(),
        drain_grace_ms: executor.drain.ms().unsigned_abs(),
        stop_grace_ms: executor.stop_grace.ms().unsigned_abs(),
        journal: (!executor.journal.as_os_str().is_empty()).then(|| executor.journal.clone()),
        journal_fsync: executor.journal_fsync,
    }
}

/// Answers HTTP until dropped, where an address is named.
async fn port(loaded: &Loaded) -> Result<Option<DropGuard>, CliError> {
    let settings = &loaded.settings;
    let Ok(wanted) = settings.executor.listen.parse::<SocketAddr>() else { return Ok(None) };
    let listener = TcpListener::bind(wanted).await.map_err(|error| CliError {
        code: "setting",
        ..CliError::usage("executor.listen", format!("{wanted} cannot be listened on: {error}"))
    })?;
    let metrics = serve::metrics(settings)?;
    let ended = CancellationToken::new();
    tracing::info!(http = %listener.local_addr().unwrap_or(wanted), "serving /metrics and /healthz");
    if let Some(handle) = metrics.clone() {
        tokio::spawn(telemetry::keep_metrics(handle, settings.metrics.upkeep.duration(), ended.clone()));
    }
    let router = http::router(Ops { metrics, ready: None }, None);
    tokio::spawn(http::serve(listener, router, None, ended.clone()));
    Ok(Some(ended.drop_guard()))
}

/// Runs an executor until it is told to stop; then it drains. Told twice, it gives up what still runs.
pub async fn run(args: &WorkArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    for queue in &args.queue {
        QueueName::new(queue)?;
    }
    Labels::new(&args.label)?;
    let (stop, now) = signal::stop_then_now()?;
    // Before the space is opened, so that nothing is missed.
    let port = port(loaded).await?;
    let Some(space) = connect::space_patiently(loaded, &stop, |_| {}).await? else { return Ok(Exit::Ok) };
    let mut builder = Executor::builder(space).settings(settings(args, loaded));
    if let Some(keys) = connect::keys(&loaded.settings)? {
        builder = builder.keys(keys);
    }
    for queue in &args.queue {
        builder = match (&args.exec, &args.http) {
            (Some(command), _) => builder.handle(queue, executor::exec(command.clone())),
            (None, Some(url)) => {
                let mut settings = connect::webhook(&loaded.settings)?;
                // Where the operator says himself where tasks go, it may be inside.
                settings.sender.allowed = Allowed::All;
                (settings.url, settings.own_urls) = (Some(url.clone()), false);
                settings.batch = args.batch.map_or(settings.batch, |batch| batch as usize);
                let webhook =
                    Webhook::new(settings).map_err(|error| CliError::usage("http", error.to_string()))?;
                builder.deliver(queue, webhook)
            }
            (None, None) => builder.handle(queue, executor::discard()),
        };
    }
    let report = builder.build()?.run_until(stop, now).await.map_err(|error| match error {
        ExecutorError::Store(error) => CliError::from(error),
        ExecutorError::Journal(error) => CliError { code: "journal", ..CliError::failed(error.to_string()) },
        other => CliError::failed(other.to_string()),
    })?;
    drop(port);
    let value = serde_json::to_value(report).unwrap_or_default();
    render::show(output, &value, |value| {
        let get = |name: &str| render::plain(&value[name]);
        format!(
            "{} started, {} succeeded, {} failed, {} handed back",
            get("started"),
            get("succeeded"),
            get("failed"),
            get("handed_back")
        )
    });
    Ok(Exit::Ok)
}
