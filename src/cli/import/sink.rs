//! Where rows of an import go: through the client, as everything does.

use super::row::Row;
use super::{Answer, Sink};
use crate::cli::error::CliError;
use crate::client::{Client, Due, NewTask, SubmitError, Submitted};
use crate::limits;
use crate::model::Key;

/// Sends rows as tasks.
#[derive(Clone)]
pub struct ClientSink {
    client: Client,
    template: NewTask,
}

impl ClientSink {
    /// Sends by this client; every task gets what `template` says and its row does not.
    pub fn new(client: Client, template: NewTask) -> Self {
        Self { client, template }
    }
}

impl Sink for ClientSink {
    async fn submit(&self, rows: Vec<Row>) -> Result<Vec<Answer>, CliError> {
        let task = |row: Row| NewTask {
            queue: row.queue,
            due: Due::At(row.due),
            priority: row.priority,
            key: row.key.map(|bytes| Key { bytes, window_ms: limits::IMPORT_KEY_WINDOW_MS }),
            placement: row.placement,
            payload: row.payload,
            ..self.template.clone()
        };
        let answers = self.client.submit_batch(rows.into_iter().map(task).collect()).await?;
        let answer = |answer| match answer {
            Ok(Submitted { created: true, .. }) => Ok(Answer::Created),
            Ok(_) => Ok(Answer::Duplicate),
            // Nothing is wrong with the row: more of them would fare alike.
            Err(error @ (SubmitError::NotDurable { .. } | SubmitError::OverBacklog { .. })) => {
                Err(error.into())
            }
            Err(error) => Ok(Answer::Refused(error.to_string())),
        };
        answers.into_iter().map(answer).collect()
    }
}
