//! The programs of this example, by name. The tests run them too.

use std::future::Future;
use std::pin::Pin;

#[path = "cancel.rs"]
mod cancel;
#[path = "checkpoint.rs"]
mod checkpoint;
#[path = "hello.rs"]
mod hello;
#[path = "keys.rs"]
mod keys;
#[path = "labels.rs"]
mod labels;
#[path = "later.rs"]
mod later;
#[path = "layers.rs"]
mod layers;
#[path = "once.rs"]
mod once;
#[path = "outcomes.rs"]
mod outcomes;
#[path = "stream.rs"]
mod stream;
#[path = "typed.rs"]
mod typed;
#[path = "until.rs"]
mod until;

type Program = fn(String, String) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// All programs; each takes the URL of a Redis and a namespace.
pub const ALL: [(&str, Program); 11] = [
    ("hello", |redis, namespace| Box::pin(hello::run(redis, namespace))),
    ("later", |redis, namespace| Box::pin(later::run(redis, namespace))),
    ("typed", |redis, namespace| Box::pin(typed::run(redis, namespace))),
    ("keys", |redis, namespace| Box::pin(keys::run(redis, namespace))),
    ("checkpoint", |redis, namespace| Box::pin(checkpoint::run(redis, namespace))),
    ("once", |redis, namespace| Box::pin(once::run(redis, namespace))),
    ("cancel", |redis, namespace| Box::pin(cancel::run(redis, namespace))),
    ("layers", |redis, namespace| Box::pin(layers::run(redis, namespace))),
    ("labels", |redis, namespace| Box::pin(labels::run(redis, namespace))),
    ("outcomes", |redis, namespace| Box::pin(outcomes::run(redis, namespace))),
    ("stream", |redis, namespace| Box::pin(stream::run(redis, namespace))),
];
