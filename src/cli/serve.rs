//! `minutehand serve`: a pod and its HTTP port.

use super::error::{CliError, Exit};
use super::{connect, signal};
use crate::http::{self, HttpState};
use crate::model::Namespace;
use crate::pod::{Pod, PodSettings};
use crate::settings::{Loaded, Settings};
use crate::store::Space;
use crate::telemetry;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A pod with its HTTP port, not yet running.
pub struct Served {
    pod: Pod,
    listener: TcpListener,
    /// Where HTTP is answered.
    pub http: SocketAddr,
    metrics: Option<metrics_exporter_prometheus::PrometheusHandle>,
}

/// Takes the port and makes the pod. Install the metrics before the space is opened, so that nothing is missed.
pub async fn prepare(
    space: Space,
    settings: &Settings,
    metrics: Option<metrics_exporter_prometheus::PrometheusHandle>,
) -> Result<Served, CliError> {
    let wanted = settings.pod.listen;
    let listener = TcpListener::bind(wanted).await.map_err(|error| {
        CliError {
            code: "setting",
            ..CliError::usage("pod.listen", format!("{wanted} cannot be listened on: {error}"))
        }
        .hint("--listen 127.0.0.1:0 takes a free port")
    })?;
    let http = listener.local_addr().unwrap_or(wanted);
    let pod = PodSettings {
        listen: http.to_string(),
        lock_ms: settings.pod.lock.ms(),
        poll_ms: settings.pod.poll.ms(),
        dispatch_ms: settings.defaults.dispatch_timeout.ms(),
        gather_max_ms: settings.pod.gather.ms().unsigned_abs(),
        look_ahead_ms: settings.pod.look_ahead.ms(),
        ..PodSettings::default()
    };
    Ok(Served { pod: Pod::new(space, pod), listener, http, metrics })
}

impl Served {
    /// Works until `stop`, then lets go in order: the pod first, so that its last state can be seen.
    pub async fn run(self, settings: &Settings, stop: CancellationToken) -> Result<(), CliError> {
        let ended = CancellationToken::new();
        let state = HttpState { metrics: self.metrics.clone(), ready: self.pod.ready() };
        let web = tokio::spawn(http::serve(self.listener, http::router(state), ended.clone()));
        let upkeep = self.metrics.map(|handle| {
            tokio::spawn(telemetry::keep_metrics(handle, settings.metrics.upkeep.duration(), ended.clone()))
        });
        tracing::info!(http = %self.http, "serving /metrics, /healthz and /readyz");
        let result = self.pod.run(stop).await;
        ended.cancel();
        match web.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "http port ended with an error"),
            Err(error) => tracing::warn!(%error, "http port broke off"),
        }
        if let Some(upkeep) = upkeep {
            let _ = upkeep.await;
        }
        Ok(result?)
    }
}

/// The recorder, if metrics are on.
pub fn metrics(
    settings: &Settings,
) -> Result<Option<metrics_exporter_prometheus::PrometheusHandle>, CliError> {
    if !settings.metrics.enabled {
        return Ok(None);
    }
    telemetry::init_metrics().map(Some).map_err(|error| CliError::failed(error.to_string()))
}

/// Runs a pod until it is told to stop.
pub async fn run(loaded: &Loaded) -> Result<Exit, CliError> {
    let settings = &loaded.settings;
    Namespace::new(&settings.namespace)?;
    let stop = signal::stop()?;
    let metrics = metrics(settings)?;
    let space = connect::space(loaded).await?;
    let served = prepare(space, settings, metrics).await?;
    // One line on stdout for scripts that take a free port; the log is on stderr.
    super::render::print(&format!("listening on http://{}", served.http));
    served.run(settings, stop).await?;
    Ok(Exit::Ok)
}
