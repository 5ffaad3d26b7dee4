//! `minutehand status`.

use super::args::Output;
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::settings::Loaded;

/// Shows how things stand.
pub async fn run(loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let status = connect::client(loaded).await?.status().await?;
    let value = serde_json::to_value(&status).map_err(|error| CliError::failed(error.to_string()))?;
    render::show(output, &value, render::status);
    Ok(Exit::Ok)
}
