//! `minutehand purge`.

use super::args::{Output, PurgeArgs};
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
