//! What is done around every handler: middleware.

use super::handler::{Context, Handler, HandlerFuture, Task};
use std::future::Future;
use std::sync::Arc;

/// The rest of the way to the handler.
#[derive(Clone)]
pub struct Next(pub(super) Handler);

impl Next {
    /// Goes on to the handler, or to the next layer before it.
    pub fn run(&self, task: Task, context: Context) -> HandlerFuture {
        (self.0)(task, context)
    }
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Next")
    }
}

/// One layer: a function of the task, its context and the rest of the way.
pub(super) type Layer = Arc<dyn Fn(Task, Context, Next) -> HandlerFuture + Send + Sync>;

pub(super) fn layer<F, Fut>(wrap: F) -> Layer
where
    F: Fn(Task, Context, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = super::HandlerResult> + Send + 'static,
{
    Arc::new(move |task, context, next| Box::pin(wrap(task, context, next)))
}

/// Puts layers around a handler, the first outermost.
pub(super) fn wrapped(handler: Handler, layers: &[Layer]) -> Handler {
    layers.iter().rev().fold(handler, |inner, layer| {
        let (layer, next) = (Arc::clone(layer), Next(inner));
        Arc::new(move |task, context| layer(task, context, next.clone()))
    })
}
