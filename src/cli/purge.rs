//! `minutehand quota` and `minutehand purge`: what a namespace may hold, and its end.

use super::args::{Output, PurgeArgs, QuotaArgs};
use super::error::{CliError, Exit};
use super::{connect, render};
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
    let most = match args.tasks {
        Some(most) => {
            client.note(&connect::who(), "quota.set", &loaded.settings.namespace, &most.to_string()).await?;
            client.quota_set(Some(most).filter(|most| *most > 0)).await?
        }
        None => client.quota().await?,
    };
    render::show(output, &json!({ "tasks": most }), |_| match most {
        Some(most) => format!("at most {most} tasks that have not ended"),
        None => "any number of tasks".to_owned(),
    });
    Ok(Exit::Ok)
}
