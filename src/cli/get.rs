//! `minutehand get`.

use super::args::{IdArgs, Output};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::{ClientError, TaskView};
use crate::model::TaskId;
use crate::settings::Loaded;
use serde_json::Value;

/// A task as JSON: with `payload` where that is text, else `payload_base64`.
pub fn json(task: &TaskView) -> Result<Value, CliError> {
    let mut value = serde_json::to_value(task).map_err(|error| CliError::failed(error.to_string()))?;
    if let (Value::Object(object), Some(payload)) = (&mut value, &task.payload) {
        render::put_payload(object, payload);
    }
    Ok(value)
}

/// Shows one task.
pub async fn run(args: &IdArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let id: TaskId = args.id.parse()?;
    let task = connect::client(loaded).await?.get(id).await?.ok_or(ClientError::NotFound(id))?;
    render::show(output, &json(&task)?, render::task);
    Ok(Exit::Ok)
}
