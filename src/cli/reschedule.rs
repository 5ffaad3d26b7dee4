//! `minutehand reschedule`.

use super::args::{Output, RescheduleArgs};
use super::error::{CliError, Exit};
use super::input::when;
use super::submit::due;
use super::{connect, render};
use crate::model::TaskId;
use crate::settings::Loaded;

/// Gives a pending task another due time.
pub async fn run(args: &RescheduleArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let id: TaskId = args.id.parse()?;
    let wish = due(when(&args.due)?);
    let due = connect::client(loaded).await?.reschedule(id, wish, &connect::who()).await?;
    let value = serde_json::json!({ "id": id, "due": due.to_string() });
    render::show(output, &value, |_| format!("{id} is due at {due}"));
    Ok(Exit::Ok)
}
