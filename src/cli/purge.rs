//! `minutehand quota` and `minutehand purge`: what a namespace may hold, and its end.

use super::args::{Output, PurgeArgs, QuotaArgs};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::Quota;
use crate::settings::Loaded;
use serde_json::json;

/// Removes everything of the namespace, if it is meant and nobody works in it.
pub async fn run(args: &PurgeArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let namespace = &loaded.settings.namespace;
    if args.yes != *namespace {
        let message = format!("says {}, and the namespace is {namespace}", render::safe(&args.yes));
        return Err(CliError::usage("yes", message));
    }
    let removed = connect::client(loaded).await?.purge().await?;
    let value = json!({ "namespace": namespace, "removed_keys": removed });
    render::show(output, &value, |_| format!("namespace {namespace} is gone: {removed} keys"));
    Ok(Exit::Ok)
}

/// Shows the quota, or sets it.
pub async fn quota(args: &QuotaArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let client = connect::client(loaded).await?;
    let mut most = client.quota().await?;
    if args.tasks.is_some() || args.bytes.is_some() {
        let changed = |new: Option<u64>, old| new.map_or(old, |most| Some(most).filter(|most| *most > 0));
        most = Quota { tasks: changed(args.tasks, most.tasks), bytes: changed(args.bytes, most.bytes) };
        let bound = |most: Option<u64>| most.map_or_else(|| "any".to_owned(), |most| most.to_string());
        let detail = format!("{} tasks, {} bytes", bound(most.tasks), bound(most.bytes));
        client.note(&connect::who(), "quota.set", &loaded.settings.namespace, &detail).await?;
        most = client.quota_set(most).await?;
    }
    let held = client.quota_bytes().await?;
    let value = json!({ "tasks": most.tasks, "bytes": most.bytes, "held_bytes": held });
    render::show(output, &value, |_| {
        let tasks = match most.tasks {
            Some(most) => format!("at most {most} tasks that have not ended"),
            None => "any number of tasks".to_owned(),
        };
        match (most.bytes, held) {
            (Some(most), Some(held)) => format!("{tasks}, of at most {most} bytes; they have {held} now"),
            _ => format!("{tasks}, of any size"),
        }
    });
    Ok(Exit::Ok)
}
