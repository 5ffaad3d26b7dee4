//! What the HTTP port of a service answers while it waits for Redis: alive, not ready, and why.

use crate::clock;
use crate::http::{self, Ops, Problem};
use crate::pod::ready::Readiness;
use crate::settings::Settings;
use crate::store::StoreError;
use arc_swap::ArcSwap;
use axum::Router;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;

/// The routes of a port: those of waiting, until there are others.
pub struct Waiting {
    router: Arc<ArcSwap<Router>>,
    ready: Arc<Readiness>,
    why: Arc<ArcSwap<Problem>>,
}

impl Waiting {
    /// Nothing is in the way yet.
    pub fn new(settings: &Settings, metrics: Option<PrometheusHandle>) -> Self {
        // News are as old as this where a server is waited for that does not answer at all.
        let redis = &settings.redis;
        let news = redis.connect_timeout.duration() * 3 + redis.call_timeout.duration() * 2;
        let ready = Arc::new(Readiness::new(news.max(settings.pod.poll.duration() * 3)));
        let why =
            Problem::unavailable("unavailable", "it has just started and is not connected to redis yet");
        let why = Arc::new(ArcSwap::from_pointee(why));
        let ops = Ops { metrics, ready: Some(Arc::clone(&ready)) };
        let router = http::waiting_router(ops, Arc::clone(&why));
        Self { router: Arc::new(ArcSwap::from_pointee(router)), ready, why }
    }

    /// For [`http::serve_latest`].
    pub fn router(&self) -> Arc<ArcSwap<Router>> {
        Arc::clone(&self.router)
    }

    /// Says from now on that this is in the way.
    pub fn says(&self, error: &StoreError) {
        self.ready.failing(clock::mono(), error.to_string());
        self.why.store(Arc::new(Problem::from(error.clone())));
    }

    /// The wait is over.
    pub fn ends(&self, router: Router) {
        self.router.store(Arc::new(router));
    }
}
