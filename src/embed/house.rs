//! The executor beside a pod, for what belongs to no executor: broadcasts, and tasks that name a web address.
//!
//! It offers two labels that begin with `@`; an executor with such a label gets only tasks that ask for one of
//! them. A task that names an address asks for [`WEBHOOK`]; pods send one that is to be spread to who offers
//! [`BROADCAST`].

use super::broadcast;
use crate::client::Client;
use crate::executor::{
    Executor, ExecutorError, ExecutorReport, ExecutorSettings, HandlerError, Task, Transport, Webhook,
    WebhookSettings,
};
use crate::model::FieldError;
use crate::model::route::{BROADCAST, WEBHOOK};
use crate::store::Space;
use tokio_util::sync::CancellationToken;

/// Tasks that the house runs at once: they wait for others, and cost little.
const SLOTS: u32 = 256;
/// How long it may take to end: a broadcast goes on elsewhere, with the parts that it has made.
const DRAIN_MS: u64 = 3_000;

/// The executor of a pod, not yet running.
#[derive(Debug)]
pub struct House {
    executor: Executor,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum HouseError {
    /// A setting is wrong.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Web calls cannot be made.
    #[error("{0}")]
    Webhook(String),
}

impl House {
    /// Makes it; `webhook` says how addresses are called that tasks name.
    pub fn new(space: Space, name: &str, webhook: WebhookSettings) -> Result<Self, HouseError> {
        let webhook = Webhook::new(webhook).map_err(|error| HouseError::Webhook(error.to_string()))?;
        let client = Client::new(space.clone());
        let settings = ExecutorSettings {
            name: name.to_owned(),
            slots: SLOTS,
            drain_grace_ms: DRAIN_MS,
            labels: vec![BROADCAST.to_owned(), WEBHOOK.to_owned()],
            ..ExecutorSettings::default()
        };
        let executor = Executor::builder(space).settings(settings).handle_any(move |task: Task, context| {
            let (client, webhook) = (client.clone(), webhook.clone());
            async move {
                if task.extras.url.is_some() {
                    webhook.deliver(task, context).await
                } else if task.extras.part.is_none() {
                    broadcast::spread(&client, task, &context).await
                } else {
                    Err(HandlerError::retry_after(
                        1_000,
                        false,
                        "a part of a broadcast is not for this executor",
                    ))
                }
            }
        });
        Ok(Self { executor: executor.build()? })
    }

    /// Runs until `stop`, then ends in order.
    pub async fn run(self, stop: CancellationToken) -> Result<ExecutorReport, ExecutorError> {
        self.executor.run(stop).await
    }
}
