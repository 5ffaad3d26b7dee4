//! `minutehand work`: an executor whose handler is a command, a web address, or nothing.

use super::args::{Output, WorkArgs};
use super::error::{CliError, Exit};
use super::{connect, render, signal};
use crate::executor::{self, Executor, ExecutorError};
use crate::model::{Labels, QueueName};
use crate::settings::Loaded;

/// Runs an executor until it is told to stop; then it drains.
pub async fn run(args: &WorkArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    for queue in &args.queue {
        QueueName::new(queue)?;
    }
    Labels::new(&args.label)?;
    let stop = signal::stop()?;
    let space = connect::space(loaded).await?;
    let mut builder = Executor::builder(space).slots(loaded.settings.executor.slots);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    for label in &args.label {
        builder = builder.label(label);
    }
    for queue in &args.queue {
        builder = match (&args.exec, &args.http) {
            (Some(command), _) => builder.handle(queue, executor::exec(command.clone())),
            (None, Some(url)) => {
                let handler = executor::http(url).map_err(|error| CliError::usage("http", error.to_string()))?;
                builder.handle(queue, handler)
            }
            (None, None) => builder.handle(queue, executor::discard()),
        };
    }
    let report = builder.build()?.run(stop).await.map_err(|error| match error {
        ExecutorError::Store(error) => CliError::from(error),
        other => CliError::failed(other.to_string()),
    })?;
    let value = serde_json::to_value(report).unwrap_or_default();
    render::show(output, &value, |value| {
        let get = |name: &str| render::plain(&value[name]);
        format!("{} started, {} succeeded, {} failed, {} handed back", get("started"), get("succeeded"), get("failed"), get("handed_back"))
    });
    Ok(Exit::Ok)
}
