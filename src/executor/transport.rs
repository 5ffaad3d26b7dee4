//! How a task that this process holds reaches whoever does the work.
//!
//! Whatever the way, the runtime around it is the same: slots, leases, time-outs, retries and the fence. A
//! function in this process is one transport ([`Local`]: every handler), a command another ([`exec`](super::exec)),
//! a web call a third ([`Webhook`](super::Webhook)); workers that poll over HTTP hold their grants themselves.

use super::handler::{Context, HandlerFuture, HandlerResult, Task};
use std::future::Future;

/// A way to have a task done.
pub trait Transport: Send + Sync + 'static {
    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// Has the task done; answers how it ended. Dropped where the handler was told to stop and did not.
    fn deliver(&self, task: Task, context: Context) -> HandlerFuture;
}

/// A function of this process.
#[derive(Debug, Clone)]
pub struct Local<F>(pub F);

impl<F, Fut> Transport for Local<F>
where
    F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    fn name(&self) -> &'static str {
        "local"
    }

    fn deliver(&self, task: Task, context: Context) -> HandlerFuture {
        Box::pin((self.0)(task, context))
    }
}
