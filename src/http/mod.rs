//! The HTTP port of a pod: metrics, health and readiness.
//!
//! Everything is bounded: open connections, the time of an answer, the length of a request.

pub mod health;
mod listener;

use crate::pod::ready::Readiness;
use crate::{clock, limits};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

/// What the routes show. Cheap to clone.
#[derive(Clone)]
pub struct HttpState {
    /// Renders the metrics; none when they are switched off.
    pub metrics: Option<PrometheusHandle>,
    /// Fed by the loops of the pod.
    pub ready: Arc<Readiness>,
}

/// The routes: `/metrics`, `/healthz`, `/readyz`.
pub fn router(state: HttpState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .with_state(state)
        .layer(RequestBodyLimitLayer::new(limits::HTTP_BODY_MAX_BYTES))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            clock::ms(limits::HTTP_TIMEOUT_MS),
        ))
        .layer(CatchPanicLayer::new())
        .layer(TraceLayer::new_for_http())
}

/// Answers on `listener` until shutdown, then ends the requests under way.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) -> io::Result<()> {
    let listener = listener::Bounded::new(listener, limits::HTTP_CONNECTIONS_MAX);
    let served = axum::serve(listener, router).with_graceful_shutdown({
        let shutdown = shutdown.clone();
        async move { shutdown.cancelled().await }
    });
    // A client that keeps its connection open must not keep the pod from stopping.
    let late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(clock::ms(limits::HTTP_STOP_MS)).await;
    };
    tokio::select! {
        result = served => result,
        () = late => Ok(()),
    }
}

async fn metrics(State(state): State<HttpState>) -> Response {
    match state.metrics {
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
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

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
        let state = HttpState { metrics: Some(recorder.handle()), ready: Arc::clone(&ready) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router(state), shutdown.clone()));

        let (status, text) = ask(at, "/metrics").await;
        assert!(status == 200 && text.contains("minutehand_offers_total 7\n"));
        assert_eq!(ask(at, "/healthz").await, (200, "{\"status\":\"alive\"}".to_owned()));
        let (status, body) = ask(at, "/readyz").await;
        assert_eq!((status, body.contains("\"ready\":false")), (503, true), "{body}");
        ready.worked(clock::mono());
        let (status, body) = ask(at, "/readyz").await;
        assert_eq!((status, body.contains("\"ready\":true")), (200, true), "{body}");
        assert_eq!(ask(at, "/nothing").await.0, 404);

        // An idle connection that is never closed does not hold the stop up.
        let _idle = TcpStream::connect(at).await.unwrap();
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }
}
