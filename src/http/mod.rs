//! The HTTP port: metrics, health and readiness, and the API under `/v1`.
//!
//! Handlers hold no rules: they read a request, call [`crate::client`], and write its answer, so that this door checks
//! like every other. One resource a file; `error` alone makes status codes of errors; `wire` reads and writes bodies;
//! `access` says who may do what; `docs` tells all of it as OpenAPI.
//!
//! Everything is bounded: open connections, the time of an answer, the length of a request, and what streams.

mod access;
mod acks;
mod bulk;
mod caller;
mod dead;
mod docs;
mod edit;
mod error;
mod events;
mod executors;
mod follow;
mod freeze;
pub mod health;
mod new_task;
mod poll;
mod progress;
mod queues;
mod quota;
mod renew;
mod serve;
mod status;
mod subscriptions;
mod tasks;
mod tls;
mod tokens;
mod wire;

pub use access::Door;
pub use error::Problem;
pub use serve::{serve, serve_latest};
pub use tls::{TlsError, acceptor};

use crate::client::{Client, NewTask, with_patience};
use crate::model::access::Role;
use crate::pod::ready::Readiness;
use crate::{clock, executor, limits};
use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::trace::TraceLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What the routes of operators show. Cheap to clone.
#[derive(Clone, Default)]
pub struct Ops {
    /// Renders the metrics; none when they are switched off.
    pub metrics: Option<PrometheusHandle>,
    /// Fed by the loops of the pod; none where no pod runs.
    pub ready: Option<Arc<Readiness>>,
}

/// What the API works with. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    /// Does everything.
    pub(crate) client: Client,
    /// A task for which nothing is said.
    pub(crate) template: Arc<NewTask>,
    /// Ends what waits or streams.
    pub(crate) shutdown: CancellationToken,
    pub(crate) door: executor::door::Door,
    pub(crate) poll_wait: Duration,
    keeper: Arc<access::Keeper>,
    rooms: Arc<Rooms>,
}

/// How many of a kind may be under way.
struct Rooms {
    bulk: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    polls: Semaphore,
    check: Semaphore,
}

impl Api {
    /// The API over a client; `template` is a task for which nothing is said. `shutdown` ends what waits or streams.
    /// Must be called within a tokio runtime.
    pub fn new(client: Client, template: NewTask, door: Door, shutdown: CancellationToken) -> Self {
        let rooms = Rooms {
            bulk: Arc::new(Semaphore::new(limits::HTTP_BULKS_MAX)),
            streams: Arc::new(Semaphore::new(limits::HTTP_STREAMS_MAX)),
            polls: Semaphore::new(limits::HTTP_POLLS_MAX),
            check: Semaphore::new(1),
        };
        let keeper = Arc::new(access::Keeper::new(door));
        tokio::spawn(Arc::clone(&keeper).keep(client.clone(), shutdown.clone()));
        let door = executor::door::Door::new(client.space().clone(), shutdown.clone());
        let poll_wait = clock::ms(limits::POLL_WAIT_MAX_MS);
        Self {
            client,
            template: Arc::new(template),
            shutdown,
            door,
            poll_wait,
            keeper,
            rooms: Arc::new(rooms),
        }
    }

    /// The same with a bound on how long polls wait; wishes for more are cut to it.
    #[must_use]
    pub fn poll_wait(mut self, most: Duration) -> Self {
        self.poll_wait = most;
        self
    }
}

/// `/metrics`, `/healthz`, `/readyz`, the API if there is one, and what is common to all routes.
pub fn router(ops: Ops, api: Option<Api>) -> Router {
    let own = ops_router(ops);
    let all = match api {
        Some(api) => own.merge(api_router(api)),
        None => own,
    };
    dressed(all.fallback(error::no_such_path))
}

/// The routes of operators while there is nothing else yet: whatever else is asked for is answered with `why`, and every
/// answer ends its connection, so that the next request meets whoever answers then.
pub fn waiting_router(ops: Ops, why: Arc<ArcSwap<Problem>>) -> Router {
    let refuse = move || {
        let why = Problem::clone(&why.load());
        async move { why }
    };
    dressed(ops_router(ops).fallback(refuse)).layer(from_fn(last_on_its_connection))
}

async fn last_on_its_connection(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn ops_router(ops: Ops) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .with_state(ops)
        .layer(from_fn(in_time))
}

fn dressed(all: Router) -> Router {
    let large = SizeAbove::new(limits::HTTP_GZIP_MIN_BYTES)
        .and(NotForContentType::const_new("text/event-stream"))
        .and(NotForContentType::const_new("application/x-ndjson"));
    all.method_not_allowed_fallback(error::no_such_method)
        .layer(CompressionLayer::new().compress_when(large))
        .layer(RequestDecompressionLayer::new())
        .layer(from_fn(encoded))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(named))
        .layer(TraceLayer::new_for_http())
}

/// The routes of the API by the roles they are for, and how they are told.
fn routes(api: &Api) -> (Router<Api>, OpenApi) {
    let group = |roles: &'static [Role], router: OpenApiRouter<Api>| {
        router.route_layer(from_fn_with_state(access::Group { api: api.clone(), roles }, access::guard))
    };
    let quick = |router: OpenApiRouter<Api>| router.route_layer(from_fn(in_time));
    let submit = OpenApiRouter::new()
        .routes(routes!(tasks::submit))
        .routes(routes!(tasks::cancel))
        .routes(routes!(edit::edit))
        .routes(routes!(subscriptions::put))
        .routes(routes!(subscriptions::remove))
        .routes(routes!(subscriptions::confirm))
        .routes(routes!(tasks::reschedule))
        .routes(routes!(tasks::reprioritize));
    let look_up = OpenApiRouter::new()
        .routes(routes!(tasks::get))
        .routes(routes!(tasks::trace))
        .routes(routes!(subscriptions::list))
        .routes(routes!(subscriptions::show));
    let hear = OpenApiRouter::new().routes(routes!(subscriptions::follow));
    let read = OpenApiRouter::new()
        .routes(routes!(freeze::show))
        .routes(routes!(queues::list))
        .routes(routes!(queues::show))
        .routes(routes!(dead::list))
        .routes(routes!(dead::show))
        .routes(routes!(status::status))
        .routes(routes!(status::buckets))
        .routes(routes!(status::spread))
        .routes(routes!(quota::show))
        .routes(routes!(status::pods))
        .routes(routes!(executors::list))
        .routes(routes!(executors::show));
    let operate = OpenApiRouter::new()
        .routes(routes!(freeze::freeze))
        .routes(routes!(freeze::thaw))
        .routes(routes!(queues::set))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(executors::drain))
        .routes(routes!(executors::resume))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::delete));
    let admin = OpenApiRouter::new()
        .routes(routes!(tokens::list))
        .routes(routes!(tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(quota::set))
        .routes(routes!(tokens::notes));
    // What takes its time has bounds of its own.
    let work = OpenApiRouter::new()
        .routes(routes!(acks::acks))
        .routes(routes!(renew::renew))
        .routes(routes!(progress::progress))
        .routes(routes!(poll::leave));
    let wait = OpenApiRouter::new().routes(routes!(poll::poll));
    let bulk = OpenApiRouter::new().routes(routes!(bulk::bulk));
    let follow = OpenApiRouter::new().routes(routes!(events::follow)).routes(routes!(status::check_all));
    OpenApiRouter::new()
        .merge(group(&[Role::Submit], quick(submit)))
        .merge(group(&[Role::Submit], bulk))
        .merge(group(&[Role::Work], quick(work)))
        .merge(group(&[Role::Work], wait))
        .merge(group(&[Role::Read, Role::Submit], quick(look_up)))
        .merge(group(&[Role::Read, Role::Submit], hear))
        .merge(group(&[Role::Read], quick(read)))
        .merge(group(&[Role::Read], follow))
        .merge(group(&[Role::Operate], quick(operate)))
        .merge(group(&[Role::Admin], quick(admin)))
        .split_for_parts()
}

fn api_router(api: Api) -> Router {
    let (router, document) = routes(&api);
    let text: Arc<str> = docs::text(&docs::finish(document)).into();
    let document = get(move || {
        let text = Arc::clone(&text);
        async move { ([(header::CONTENT_TYPE, "application/json")], text.to_string()) }
    });
    router.route("/openapi.json", document).route("/docs", get(docs::page)).with_state(api)
}

/// An answer within [`limits::HTTP_TIMEOUT_MS`], and a refusal of Redis soon: the caller may have others to ask.
async fn in_time(request: Request, next: Next) -> Response {
    let work = with_patience(clock::ms(limits::HTTP_REPEAT_MS), next.run(request));
    match tokio::time::timeout(clock::ms(limits::HTTP_TIMEOUT_MS), work).await {
        Ok(response) => response,
        Err(_) => error::timed_out().into_response(),
    }
}

/// Longest request id that is taken from a caller.
const REQUEST_ID_MAX_BYTES: usize = 128;

/// Gives every request an id, that of the caller where it has one, and sends it back.
async fn named(request: Request, next: Next) -> Response {
    let name = HeaderName::from_static("x-request-id");
    let given = request.headers().get(&name).filter(|id| {
        let text = id.as_bytes();
        (1..=REQUEST_ID_MAX_BYTES).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
    });
    let id = match given {
        Some(id) => id.clone(),
        None => HeaderValue::from_str(&uuid::Uuid::new_v4().simple().to_string())
            .unwrap_or_else(|_| HeaderValue::from_static("-")),
    };
    let mut response = next.run(request).await;
    response.headers_mut().insert(name, id);
    response
}

/// Says in words that a body is encoded in a way that is not known here: the layer below answers that without any.
async fn encoded(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let accepted = response.headers().get(header::ACCEPT_ENCODING).cloned();
    match accepted {
        Some(accepted) if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            let message = "Content-Encoding must be one of Accept-Encoding, or be left out";
            let problem = Problem::new(response.status(), "unsupported_encoding", message);
            let mut response = problem.into_response();
            response.headers_mut().insert(header::ACCEPT_ENCODING, accepted);
            response
        }
        _ => response,
    }
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(text, "a request panicked");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "a fault in this program; its log says more")
        .into_response()
}

async fn metrics(State(ops): State<Ops>) -> Response {
    match ops.metrics {
        Some(handle) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], handle.render())
                .into_response()
        }
        None => {
            (StatusCode::NOT_FOUND, "metrics are switched off (metrics.enabled = false)\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    async fn ask(at: std::net::SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        (status, text.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned())
    }

    #[tokio::test]
    async fn metrics_health_and_readiness_are_served_until_shutdown() {
        let recorder = crate::telemetry::recorder().unwrap();
        let handles = metrics::with_local_recorder(&recorder, crate::metric::Handles::register);
        handles.offers.increment(7);
        let ready = Arc::new(Readiness::new(Duration::from_secs(60)));
        let ops = Ops { metrics: Some(recorder.handle()), ready: Some(Arc::clone(&ready)) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router(ops, None), None, shutdown.clone()));

        let (status, text) = ask(at, "/metrics").await;
        assert!(status == 200 && text.contains("minutehand_offers_total 7\n"));
        assert_eq!(ask(at, "/healthz").await, (200, "{\"status\":\"alive\"}".to_owned()));
        let (status, body) = ask(at, "/readyz").await;
        assert_eq!((status, body.contains("\"ready\":false")), (503, true), "{body}");
        ready.worked(clock::mono());
        let (status, body) = ask(at, "/readyz").await;
        assert_eq!((status, body.contains("\"ready\":true")), (200, true), "{body}");
        let (status, body) = ask(at, "/nothing").await;
        assert_eq!((status, body.contains("\"code\":\"not_found\"")), (404, true), "{body}");

        // An idle connection that is never closed does not hold the stop up.
        let _idle = TcpStream::connect(at).await.unwrap();
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_waits_refuses_with_the_cause_and_keeps_no_connection_for_itself() {
        let why = Arc::new(ArcSwap::from_pointee(Problem::unavailable("unavailable", "no redis yet")));
        let router = Arc::new(ArcSwap::from_pointee(waiting_router(Ops::default(), why)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve_latest(listener, Arc::clone(&router), None, shutdown.clone()));
        // It would keep its connection: the answer is read to the end that the server makes.
        let kept = async |path: &str| {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        assert!(kept("/healthz").await.starts_with("HTTP/1.1 200"));
        let text = kept("/v1/status").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("no redis yet"), "{text}");
        assert!(text.contains("retry-after: 1\r\n") && text.contains("connection: close\r\n"), "{text}");
        router.store(Arc::new(Router::new().route("/v1/status", get(async || "here"))));
        assert_eq!(ask(at, "/v1/status").await, (200, "here".to_owned()));
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }
}
