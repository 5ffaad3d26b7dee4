//! `minutehand serve`: a pod and its HTTP port.

use super::error::{CliError, Exit};
use super::{connect, render, signal};
use crate::client::{Client, NewTask};
use crate::clock;
use crate::embed::house::House;
use crate::http::{self, Api, Door, Ops};
use crate::model::decide::Rules;
use crate::model::queue::Weights;
use crate::model::{Namespace, QueueName};
use crate::pod::decider::DeciderSettings;
use crate::pod::ready::Readiness;
use crate::pod::{DigestSettings, Pod, PodSettings};
use crate::settings::{Loaded, Settings};
use crate::store::{Space, StoreError};
use crate::telemetry;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A pod with its HTTP port, not yet running.
pub struct Served {
    pod: Pod,
    house: House,
    client: Client,
    listener: TcpListener,
    /// Where HTTP is answered.
    pub http: SocketAddr,
    metrics: Option<metrics_exporter_prometheus::PrometheusHandle>,
    door: Door,
    tls: Option<tokio_rustls::TlsAcceptor>,
}

/// Whether callers must show a token. On an address that others reach, nobody is let in unasked by accident.
async fn door(client: &Client, settings: &Settings) -> Result<Door, CliError> {
    let (wanted, http) = (settings.pod.listen, &settings.http);
    if http.insecure {
        return Ok(Door::Open);
    }
    if wanted.ip().is_loopback() && !http.require_token {
        return Ok(Door::Loopback);
    }
    if client.tokens().await?.is_empty() {
        let what = match http.require_token {
            true => "http.require_token is set, and there is no token yet".to_owned(),
            false => format!(
                "{wanted} is reached by other machines, and there is no token yet to tell who they are"
            ),
        };
        return Err(CliError { code: "no_token", ..CliError::usage("pod.listen", what) }.hint(
            "make one with `minutehand token create --name ops --role admin`, listen on 127.0.0.1, or say --insecure",
        ));
    }
    Ok(Door::Tokens)
}

/// Takes the port and makes the pod. Install the metrics before the space is opened, so that nothing is missed.
pub async fn prepare(
    space: Space,
    settings: &Settings,
    metrics: Option<metrics_exporter_prometheus::PrometheusHandle>,
) -> Result<Served, CliError> {
    let wanted = settings.pod.listen;
    let client = Client::with_defaults(space.clone(), connect::defaults(settings)?);
    let door = door(&client, settings).await?;
    let tls = match settings.http.tls_cert.as_os_str().is_empty() {
        true => None,
        false => Some(http::acceptor(&settings.http.tls_cert, &settings.http.tls_key).map_err(|error| {
            CliError { code: "setting", ..CliError::usage("http.tls_cert", error.to_string()) }
        })?),
    };
    let listener = listen(wanted).await?;
    let http = listener.local_addr().unwrap_or(wanted);
    let webhook = connect::webhook(settings)?;
    let record = Some(settings.pod.route_record.clone()).filter(|path| !path.as_os_str().is_empty());
    let pod = PodSettings {
        listen: http.to_string(),
        lock_ms: settings.pod.lock.ms(),
        poll_ms: settings.pod.poll.ms(),
        dispatch_ms: settings.defaults.dispatch_timeout.ms(),
        gather_max_ms: settings.pod.gather.ms().unsigned_abs(),
        digest: DigestSettings {
            webhook: Some(settings.alerts.dead_webhook.clone()).filter(|url| !url.is_empty()),
            every_ms: settings.alerts.dead_every.ms(),
        },
        weights: settings.pod.weights.parse::<Weights>()?.0,
        routing: settings.pod.routing,
        ageing_ms: settings.pod.ageing.ms(),
        route_sample: if record.is_some() { settings.pod.route_sample as usize } else { 0 },
        route_record: record,
        decider: DeciderSettings {
            enabled: settings.decider.enabled,
            rules: Rules {
                target_ms: settings.decider.target.ms(),
                window_ms: settings.decider.window.ms(),
                ..Rules::default()
            },
            linger_ms: settings.decider.linger.ms(),
        },
        look_ahead_ms: settings.pod.look_ahead.ms(),
        webhook: webhook.sender.clone(),
        ..PodSettings::default()
    };
    let pod = Pod::new(space.clone(), pod);
    let house = House::new(space, pod.id(), webhook)
        .map_err(|error| CliError::usage("webhook", error.to_string()))?;
    Ok(Served { pod, house, client, listener, http, metrics, door, tls })
}

impl Served {
    /// Where HTTP is answered.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.http)
    }

    /// Works until `stop`, then lets go in order: the pod first, so that its last state can be seen.
    pub async fn run(self, settings: &Settings, stop: CancellationToken) -> Result<(), CliError> {
        let ended = CancellationToken::new();
        let ops = Ops { metrics: self.metrics.clone(), ready: Some(self.pod.ready()) };
        let any = NewTask::to(QueueName::new("any")?);
        let template = NewTask { durability: settings.defaults.durability.parse()?, ..any };
        let api = Api::new(self.client, template, self.door, ended.clone())
            .poll_wait(settings.http.poll_wait.duration());
        let web =
            tokio::spawn(http::serve(self.listener, http::router(ops, Some(api)), self.tls, ended.clone()));
        let upkeep = self.metrics.map(|handle| {
            tokio::spawn(telemetry::keep_metrics(handle, settings.metrics.upkeep.duration(), ended.clone()))
        });
        tracing::info!(http = %self.http, "serving /v1, /docs, /metrics, /healthz and /readyz");
        let at_home = tokio::spawn(self.house.run(stop.clone()));
        let result = self.pod.run(stop).await;
        match at_home.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the executor beside the pod ended with an error"),
            Err(error) => tracing::warn!(%error, "the executor beside the pod broke off"),
        }
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

/// Opens the namespace. Where Redis is there and refuses for now, HTTP is served meanwhile: alive, not ready, and why.
async fn open(
    loaded: &Loaded,
    metrics: &Option<metrics_exporter_prometheus::PrometheusHandle>,
    stop: &CancellationToken,
) -> Result<Option<Space>, CliError> {
    let error = match connect::space_or_refusal(loaded).await? {
        Ok(space) => return Ok(Some(space)),
        Err(error) => error,
    };
    let settings = &loaded.settings;
    let ready = Arc::new(Readiness::new(settings.pod.poll.duration() * 3));
    ready.failing(clock::mono(), error.to_string());
    let ended = CancellationToken::new();
    let listener = listen(settings.pod.listen).await?;
    if let Ok(http) = listener.local_addr() {
        render::print(&format!("waiting for redis; listening on http://{http}"));
    }
    let ops = Ops { metrics: metrics.clone(), ready: Some(Arc::clone(&ready)) };
    let web = tokio::spawn(http::serve(listener, http::router(ops, None), None, ended.clone()));
    let refused = |error: &StoreError| ready.failing(clock::mono(), error.to_string());
    let space = connect::space_patiently(loaded, stop, refused).await;
    ended.cancel();
    let _ = web.await;
    space
}

/// Takes the port.
async fn listen(wanted: SocketAddr) -> Result<TcpListener, CliError> {
    TcpListener::bind(wanted).await.map_err(|error| {
        CliError {
            code: "setting",
            ..CliError::usage("pod.listen", format!("{wanted} cannot be listened on: {error}"))
        }
        .hint("--listen 127.0.0.1:0 takes a free port")
    })
}

/// Runs a pod until it is told to stop.
pub async fn run(loaded: &Loaded) -> Result<Exit, CliError> {
    let settings = &loaded.settings;
    Namespace::new(&settings.namespace)?;
    let stop = signal::stop()?;
    let metrics = metrics(settings)?;
    let Some(space) = open(loaded, &metrics, &stop).await? else { return Ok(Exit::Ok) };
    let served = prepare(space, settings, metrics).await?;
    // One line on stdout for scripts that take a free port; the log is on stderr.
    render::print(&format!("listening on {}", served.url()));
    served.run(settings, stop).await?;
    Ok(Exit::Ok)
}
