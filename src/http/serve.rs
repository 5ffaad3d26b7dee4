//! Connections: bounded in number, each with time-outs, with or without TLS, ended in order.

use crate::{clock, limits};
use arc_swap::ArcSwap;
use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(pub SocketAddr);

/// Wait after an accept that failed, as when files run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Answers on `listener` until shutdown, then ends the requests under way.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    serve_latest(listener, Arc::new(ArcSwap::from_pointee(router)), tls, shutdown).await
}

/// The same with a router that may be replaced meanwhile: each connection has the one of the moment when it was made.
pub async fn serve_latest(
    listener: TcpListener,
    router: Arc<ArcSwap<Router>>,
    tls: Option<TlsAcceptor>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(limits::HTTP_CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(clock::ms(limits::HTTP_HEADERS_MS))
        .max_buf_size(limits::HTTP_HEADERS_MAX_BYTES);
    loop {
        // A permit before a connection; what does not get one waits in the kernel's backlog.
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = Arc::clone(&permits).acquire_owned() => permit.ok(),
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !is_of_the_peer(&error) {
                    tracing::warn!(%error, "could not accept a connection; trying again");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (router, tls, builder) = (Router::clone(&router.load()), tls.clone(), builder.clone());
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let _permit = permit;
            match tls {
                Some(tls) => {
                    let time_out = clock::ms(limits::HTTP_HEADERS_MS);
                    match tokio::time::timeout(time_out, tls.accept(stream)).await {
                        Ok(Ok(stream)) => talk(&builder, stream, peer, router, watcher).await,
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS came about"),
                        Err(_) => tracing::debug!(%peer, "no TLS came about in time"),
                    }
                }
                None => talk::<TcpStream>(&builder, stream, peer, router, watcher).await,
            }
        });
    }
    // A client that keeps its connection open must not keep the pod from stopping.
    let _ = tokio::time::timeout(clock::ms(limits::HTTP_STOP_MS), graceful.shutdown()).await;
    Ok(())
}

async fn talk<S>(builder: &Builder, stream: S, peer: SocketAddr, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = router.layer(axum::Extension(Peer(peer)));
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%peer, %error, "a connection broke off");
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
