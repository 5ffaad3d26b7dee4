//! `minutehand serve`: a pod and its HTTP port.

use super::connect::Obstacle;
use super::error::{CliError, Exit};
use super::waiting::Waiting;
use super::{connect, render, signal};
use crate::client::{Client, ClientError, Defaults, NewTask};
use crate::embed::house::House;
use crate::executor::{Webhook, WebhookSettings};
use crate::http::{self, Api, Door, Ops};
use crate::model::decide::Rules;
use crate::model::queue::Weights;
use crate::model::{Namespace, QueueName};
use crate::pod::decider::DeciderSettings;
use crate::pod::{DigestSettings, Pod, PodSettings};
use crate::settings::{Loaded, Settings};
use crate::store::{Space, StoreError};
use crate::telemetry;
use metrics_exporter_prometheus::PrometheusHandle;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The HTTP port. It is answered from the first moment on: by probes alone until there is a pod.
pub struct Port {
    /// Where HTTP is answered.
    pub http: SocketAddr,
    secure: bool,
    waiting: Waiting,
    metrics: Option<PrometheusHandle>,
    ended: CancellationToken,
    web: JoinHandle<io::Result<()>>,
}

impl Port {
    /// Takes the port and begins to answer.
    pub async fn open(settings: &Settings) -> Result<Self, CliError> {
        let (wanted, files) = (settings.pod.listen, &settings.http);
        let tls = match files.tls_cert.as_os_str().is_empty() {
            true => None,
            false => Some(http::acceptor(&files.tls_cert, &files.tls_key).map_err(|error| CliError {
                code: "setting",
                ..CliError::usage("http.tls_cert", error.to_string())
            })?),
        };
        let metrics = metrics(settings)?;
        let listener = listen(wanted).await?;
        let http = listener.local_addr().unwrap_or(wanted);
        let waiting = Waiting::new(settings, metrics.clone());
        let (secure, ended) = (tls.is_some(), CancellationToken::new());
        if let Some(handle) = metrics.clone() {
            tokio::spawn(telemetry::keep_metrics(handle, settings.metrics.upkeep.duration(), ended.clone()));
        }
        let web = tokio::spawn(http::serve_latest(listener, waiting.router(), tls, ended.clone()));
        Ok(Self { http, secure, waiting, metrics, ended, web })
    }

    /// Where HTTP is answered.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.secure { "https" } else { "http" }, self.http)
    }

    /// Ends what is answered.
    async fn close(self) {
        self.ended.cancel();
        match self.web.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "http port ended with an error"),
            Err(error) => tracing::warn!(%error, "http port broke off"),
        }
    }
}

/// A pod that does not run yet, and its HTTP port, which answers all requests.
pub struct Served {
    pod: Pod,
    house: House,
    port: Port,
}

/// Whether callers must show a token. On an address that others reach, nobody is let in unasked by accident.
async fn door(client: &Client, settings: &Settings) -> Result<Door, Obstacle> {
    let (wanted, http) = (settings.pod.listen, &settings.http);
    if http.insecure {
        return Ok(Door::Open);
    }
    if wanted.ip().is_loopback() && !http.require_token {
        return Ok(Door::Loopback);
    }
    let tokens = match client.tokens().await {
        Ok(tokens) => tokens,
        Err(ClientError::Store(error)) => return Err(error.into()),
        Err(error) => return Err(CliError::from(error).into()),
    };
    if tokens.is_empty() {
        let what = match http.require_token {
            true => "http.require_token is set, and there is no token yet".to_owned(),
            false => format!(
                "{wanted} is reached by other machines, and there is no token yet to tell who they are"
            ),
        };
        let error = CliError { code: "no_token", ..CliError::usage("pod.listen", what) };
        return Err(Obstacle::Lasting(error.hint(
            "make one with `minutehand token create --name ops --role admin`, listen on 127.0.0.1, or say --insecure",
        )));
    }
    Ok(Door::Tokens)
}

/// What a pod is made of, read from the settings before Redis is there, so that what is wrong is said at once.
pub struct Plan {
    pod: PodSettings,
    webhook: WebhookSettings,
    defaults: Defaults,
    template: NewTask,
}

impl Plan {
    /// Reads the settings.
    pub fn new(settings: &Settings) -> Result<Self, CliError> {
        Namespace::new(&settings.namespace)?;
        let webhook = connect::webhook(settings)?;
        Webhook::new(webhook.clone()).map_err(|error| CliError::usage("webhook", error.to_string()))?;
        let any = NewTask::to(QueueName::new("any")?);
        let template = NewTask { durability: settings.defaults.durability.parse()?, ..any };
        let defaults = connect::defaults(settings)?;
        Ok(Self { pod: pod_settings(settings, &webhook)?, webhook, defaults, template })
    }
}

fn pod_settings(settings: &Settings, webhook: &WebhookSettings) -> Result<PodSettings, CliError> {
    let record = Some(settings.pod.route_record.clone()).filter(|path| !path.as_os_str().is_empty());
    Ok(PodSettings {
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
    })
}

/// A namespace to work in, and who may come in by the port.
pub struct Opened {
    client: Client,
    door: Door,
}

impl Opened {
    /// In a space that is open.
    pub async fn of(space: Space, plan: &Plan, settings: &Settings) -> Result<Self, Obstacle> {
        let client = Client::with_defaults(space, plan.defaults);
        let door = door(&client, settings).await?;
        Ok(Self { client, door })
    }
}

impl Served {
    /// Makes the pod and opens the API. Open the port before the space, so that its metrics miss nothing.
    pub fn new(port: Port, plan: Plan, opened: Opened, settings: &Settings) -> Result<Self, CliError> {
        let Opened { client, door } = opened;
        let space = client.space().clone();
        let pod = Pod::new(space.clone(), PodSettings { listen: port.http.to_string(), ..plan.pod });
        let house = House::new(space, pod.id(), plan.webhook)
            .map_err(|error| CliError::usage("webhook", error.to_string()))?;
        let ops = Ops { metrics: port.metrics.clone(), ready: Some(pod.ready()) };
        let api = Api::new(client, plan.template, door, port.ended.clone())
            .poll_wait(settings.http.poll_wait.duration());
        port.waiting.ends(http::router(ops, Some(api)));
        tracing::info!(http = %port.http, "serving /v1, /docs, /metrics, /healthz and /readyz");
        Ok(Self { pod, house, port })
    }

    /// Where HTTP is answered.
    pub fn url(&self) -> String {
        self.port.url()
    }

    /// Works until `stop`, then lets go in order: the pod first, so that its last state can be seen.
    pub async fn run(self, stop: CancellationToken) -> Result<(), CliError> {
        let at_home = tokio::spawn(self.house.run(stop.clone()));
        let result = self.pod.run(stop).await;
        match at_home.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the executor beside the pod ended with an error"),
            Err(error) => tracing::warn!(%error, "the executor beside the pod broke off"),
        }
        self.port.close().await;
        Ok(result?)
    }
}

/// The recorder, if metrics are on.
pub fn metrics(settings: &Settings) -> Result<Option<PrometheusHandle>, CliError> {
    if !settings.metrics.enabled {
        return Ok(None);
    }
    telemetry::init_metrics().map(Some).map_err(|error| CliError::failed(error.to_string()))
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

/// Runs a pod until it is told to stop. While Redis is not there, or refuses, it waits.
pub async fn run(loaded: &Loaded) -> Result<Exit, CliError> {
    let settings = &loaded.settings;
    let plan = Plan::new(settings)?;
    connect::settings(settings)?;
    let stop = signal::stop()?;
    let port = Port::open(settings).await?;
    let said = AtomicBool::new(false);
    let waits = |error: &StoreError| {
        port.waiting.says(error);
        if !said.swap(true, Ordering::Relaxed) {
            render::print(&format!("waiting for redis; listening on {}", port.url()));
        }
    };
    let attempt = async || Opened::of(connect::try_space(loaded).await?, &plan, settings).await;
    let Some(opened) = connect::patiently(&stop, attempt, waits).await? else {
        port.close().await;
        return Ok(Exit::Ok);
    };
    let served = Served::new(port, plan, opened, settings)?;
    // One line on stdout for scripts that take a free port; the log is on stderr.
    render::print(&format!("listening on {}", served.url()));
    served.run(stop).await?;
    Ok(Exit::Ok)
}
