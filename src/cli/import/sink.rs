//! Where rows of an import go: through the client, as everything does.

use super::row::Row;
use super::{Answer, Sink};
use crate::cli::connect::TaskDefaults;
use crate::cli::error::CliError;
use crate::client::{Client, Due, NewTask, Submitted};
use crate::limits;
use crate::model::Key;

/// Sends rows as tasks.
#[derive(Clone)]
pub struct ClientSink {
    client: Client,
    defaults: TaskDefaults,
}

impl ClientSink {
    /// Sends by this client; every task gets these defaults.
    pub fn new(client: Client, defaults: TaskDefaults) -> Self {
        Self { client, defaults }
    }
}

impl Sink for ClientSink {
    async fn submit(&self, rows: Vec<Row>) -> Result<Vec<Answer>, CliError> {
        let task = |row: Row| NewTask {
            due: Due::At(row.due),
            priority: row.priority,
            retry: self.defaults.retry,
            lease_ms: self.defaults.lease_ms,
            key: row.key.map(|bytes| Key { bytes, window_ms: limits::IMPORT_KEY_WINDOW_MS }),
            payload: row.payload,
            ..NewTask::to(row.queue)
        };
        let answers = self.client.submit_batch(rows.into_iter().map(task).collect()).await?;
        Ok(answers
            .into_iter()
            .map(|answer| match answer {
                Ok(Submitted { created: true, .. }) => Answer::Created,
                Ok(_) => Answer::Duplicate,
                Err(error) => Answer::Refused(error.to_string()),
            })
            .collect())
    }
}
