//! `minutehand work`: an executor whose handler is a command, a web address, or nothing.

use super::args::{Output, WorkArgs};
use super::error::{CliError, Exit};
use super::{connect, render, signal};
use crate::executor::{self, Executor, ExecutorError, ExecutorSettings, Webhook};
use crate::model::{Labels, QueueName};
use crate::settings::Loaded;
use crate::webhook::Allowed;

/// Settings and flags of an executor.
fn settings(args: &WorkArgs, loaded: &Loaded) -> ExecutorSettings {
    let executor = &loaded.settings.executor;
    ExecutorSettings {
        name: args.name.clone().unwrap_or_default(),
        slots: executor.slots,
        kind: executor.kind,
        urgent_slots: executor.urgent_slots,
        prefetch: executor.prefetch,
        labels: args.label.clone(),
        heartbeat_ms: executor.heartbeat.ms().unsigned_abs(),
        ack_gather_ms: executor.ack_gather.ms().unsigned_abs(),
        drain_grace_ms: executor.drain.ms().unsigned_abs(),
        stop_grace_ms: executor.stop_grace.ms().unsigned_abs(),
        journal: (!executor.journal.as_os_str().is_empty()).then(|| executor.journal.clone()),
        journal_fsync: executor.journal_fsync,
    }
}

/// Runs an executor until it is told to stop; then it drains. Told twice, it gives up what still runs.
pub async fn run(args: &WorkArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    for queue in &args.queue {
        QueueName::new(queue)?;
    }
    Labels::new(&args.label)?;
    let (stop, now) = signal::stop_then_now()?;
    let space = connect::space(loaded).await?;
    let mut builder = Executor::builder(space).settings(settings(args, loaded));
    for queue in &args.queue {
        builder = match (&args.exec, &args.http) {
            (Some(command), _) => builder.handle(queue, executor::exec(command.clone())),
            (None, Some(url)) => {
                let mut settings = connect::webhook(&loaded.settings)?;
                // Where the operator says himself where tasks go, it may be inside.
                settings.sender.allowed = Allowed::All;
                (settings.url, settings.own_urls) = (Some(url.clone()), false);
                settings.batch = args.batch.map_or(settings.batch, |batch| batch as usize);
                let webhook =
                    Webhook::new(settings).map_err(|error| CliError::usage("http", error.to_string()))?;
                builder.deliver(queue, webhook)
            }
            (None, None) => builder.handle(queue, executor::discard()),
        };
    }
    let report = builder.build()?.run_until(stop, now).await.map_err(|error| match error {
        ExecutorError::Store(error) => CliError::from(error),
        ExecutorError::Journal(error) => CliError { code: "journal", ..CliError::failed(error.to_string()) },
        other => CliError::failed(other.to_string()),
    })?;
    let value = serde_json::to_value(report).unwrap_or_default();
    render::show(output, &value, |value| {
        let get = |name: &str| render::plain(&value[name]);
        format!(
            "{} started, {} succeeded, {} failed, {} handed back",
            get("started"),
            get("succeeded"),
            get("failed"),
            get("handed_back")
        )
    });
    Ok(Exit::Ok)
}
