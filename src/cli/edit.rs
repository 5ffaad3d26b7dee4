//! `minutehand edit` and `minutehand reprioritize`.

use super::args::{EditArgs, Output, ReprioritizeArgs};
use super::error::{CliError, Exit};
use super::input::payload;
use super::{connect, render};
use crate::client::Edit;
use crate::model::slice::parse_duration_ms;
use crate::model::{ExecutionId, FieldError, Priority, Retry, State, TaskId};
use crate::settings::Loaded;

/// Reads what shall change. Everything is checked before Redis is asked.
fn edit(args: &EditArgs) -> Result<Edit, CliError> {
    let time = |field, text: &Option<String>| -> Result<Option<i64>, FieldError> {
        text.as_deref().map(|text| parse_duration_ms(field, text)).transpose()
    };
    Ok(Edit {
        payload: args.payload.as_deref().map(payload).transpose()?,
        retries: args.retries,
        backoff: args.backoff.as_deref().map(str::parse::<Retry>).transpose()?,
        timeout_ms: time("timeout", &args.timeout)?,
        lease_ms: time("lease", &args.lease)?,
        start_within_ms: time("start_within", &args.start_within)?,
        expire_after_ms: time("expire_after", &args.expire_after)?,
        notify: args.notify.clone(),
    })
}

/// Changes a task's payload, retries or time-outs.
pub async fn run(args: &EditArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let id: TaskId = args.id.parse()?;
    let edit = edit(args)?;
    let execution = args.execution.as_deref().map(str::parse::<ExecutionId>).transpose()?;
    let done = connect::client(loaded).await?.edit(id, &edit, execution, &connect::who()).await?;
    let value = serde_json::json!({ "id": id, "state": done.state, "changed": done.changed });
    render::show(output, &value, |_| match (done.changed, done.state) {
        (false, _) => format!("{id} is so already"),
        (true, State::Running) => {
            format!("{id} is edited; it runs now, and this attempt goes on with what it began with")
        }
        (true, State::Dead) => format!("{id} is edited; it is a dead letter until it is redriven"),
        (true, _) => format!("{id} is edited"),
    });
    Ok(Exit::Ok)
}

/// Gives a pending task another priority.
pub async fn reprioritize(
    args: &ReprioritizeArgs,
    loaded: &Loaded,
    output: Output,
) -> Result<Exit, CliError> {
    let id: TaskId = args.id.parse()?;
    let priority: Priority = args.priority.parse()?;
    connect::client(loaded).await?.reprioritize(id, priority, &connect::who()).await?;
    let value = serde_json::json!({ "id": id, "priority": priority.to_string() });
    render::show(output, &value, |_| format!("{id} is {priority} now"));
    Ok(Exit::Ok)
}
