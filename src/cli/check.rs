//! `minutehand check`.

use super::args::Output;
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::settings::Loaded;
use crate::store::check::{CheckOptions, check};

/// Looks for damage. Exit code 1 when there is any.
pub async fn run(loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let space = connect::space(loaded).await?;
    let report = check(&space, CheckOptions::default()).await?;
    let value = serde_json::to_value(&report).map_err(|error| CliError::failed(error.to_string()))?;
    render::show(output, &value, render::check);
    Ok(if report.ok { Exit::Ok } else { Exit::Failed })
}
