//! `minutehand cancel`.

use super::args::{IdArgs, Output};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::Cancelled;
use crate::model::TaskId;
use crate::settings::Loaded;

/// Cancels a task that waits, or asks a running one to stop.
pub async fn run(args: &IdArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let id: TaskId = args.id.parse()?;
    let done = connect::client(loaded).await?.cancel(id, &connect::who(), "cli").await?;
    let (value, text) = match done {
        Cancelled::Done => (serde_json::json!({ "id": id, "cancelled": true }), format!("{id} is cancelled")),
        Cancelled::Asked { holder } => (
            serde_json::json!({ "id": id, "cancelled": false, "asked": holder }),
            format!("{id} is running at {}; it was asked to stop", render::safe(&holder)),
        ),
    };
    render::show(output, &value, |_| text);
    Ok(Exit::Ok)
}
