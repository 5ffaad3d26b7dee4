//! `minutehand work`: an executor whose handler is a command, a web address, or nothing.

use super::args::{Output, WorkArgs};
use super::error::{CliError, Exit};
use super::waiting::Waiting;
use super::{connect, render, serve, signal};
use crate::executor::{self, Executor, ExecutorError, ExecutorSettings, Webhook};
use crate::http::{self, Ops};
use crate::model::{Labels, QueueName};
use crate::settings::{Loaded, Settings};
use crate::store::StoreError;
use crate::telemetry;
use crate::webhook::Allowed;
use metrics_exporter_prometheus::PrometheusHandle;
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

/// The HTTP port of an executor, answered until dropped.
struct Port {
    waiting: Waiting,
    metrics: Option<PrometheusHandle>,
    _ended: DropGuard,
}

impl Port {
    /// Takes the port, where an address is named, and begins to answer.
    async fn open(settings: &Settings) -> Result<Option<Self>, CliError> {
        let Ok(wanted) = settings.executor.listen.parse::<SocketAddr>() else { return Ok(None) };
        let listener = TcpListener::bind(wanted).await.map_err(|error| CliError {
            code: "setting",
            ..CliError::usage("executor.listen", format!("{wanted} cannot be listened on: {error}"))
        })?;
        let metrics = serve::metrics(settings)?;
        let ended = CancellationToken::new();
        let http = listener.local_addr().unwrap_or(wanted);
        tracing::info!(%http, "serving /metrics, /healthz and /readyz");
        if let Some(handle) = metrics.clone() {
            tokio::spawn(telemetry::keep_metrics(handle, settings.metrics.upkeep.duration(), ended.clone()));
        }
        let waiting = Waiting::new(settings, metrics.clone());
        tokio::spawn(http::serve_latest(listener, waiting.router(), None, ended.clone()));
        Ok(Some(Self { waiting, metrics, _ended: ended.drop_guard() }))
    }
}

/// Web calls to one address.
fn webhook(args: &WorkArgs, url: &str, settings: &Settings) -> Result<Webhook, CliError> {
    let mut settings = connect::webhook(settings)?;
    // Where the operator says himself where tasks go, it may be inside.
    settings.sender.allowed = Allowed::All;
    (settings.url, settings.own_urls) = (Some(url.to_owned()), false);
    settings.batch = args.batch.map_or(settings.batch, |batch| batch as usize);
    Webhook::new(settings).map_err(|error| CliError::usage("http", error.to_string()))
}

/// Runs an executor until it is told to stop; then it drains. Told twice, it gives up what still runs.
pub async fn run(args: &WorkArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    for queue in &args.queue {
        QueueName::new(queue)?;
    }
    Labels::new(&args.label)?;
    // What is wrong with the settings is said before Redis is waited for.
    connect::settings(&loaded.settings)?;
    let keys = connect::keys(&loaded.settings)?;
    args.http.as_ref().map(|url| webhook(args, url, &loaded.settings)).transpose()?;
    let (stop, now) = signal::stop_then_now()?;
    // Before the space is opened, so that nothing is missed.
    let port = Port::open(&loaded.settings).await?;
    let waits = |error: &StoreError| {
        if let Some(port) = &port {
            port.waiting.says(error);
        }
    };
    let attempt = async || connect::try_space(loaded).await;
    let Some(space) = connect::patiently(&stop, attempt, waits).await? else { return Ok(Exit::Ok) };
    if let Some(port) = &port {
        port.waiting.ends(http::router(Ops { metrics: port.metrics.clone(), ready: None }, None));
    }
    let mut builder = Executor::builder(space).settings(settings(args, loaded));
    if let Some(keys) = keys {
        builder = builder.keys(keys);
    }
    for queue in &args.queue {
        builder = match (&args.exec, &args.http) {
            (Some(command), _) => builder.handle(queue, executor::exec(command.clone())),
            // Each queue has batches of its own.
            (None, Some(url)) => builder.deliver(queue, webhook(args, url, &loaded.settings)?),
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
