//! `minutehand key`: keys with which payloads are encrypted.

use super::args::{KeyCommand, Output};
use super::error::{CliError, Exit};
use super::render;
use crate::clock;
use crate::model::UnixMs;
use crate::model::seal::{KEY_BYTES, KeyRing};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;

/// Prints a new key.
pub fn run(command: &KeyCommand, output: Output) -> Result<Exit, CliError> {
    let KeyCommand::New { name } = command;
    // A name only has to be new among the few of one file.
    let today = || UnixMs(clock::wall_us() / 1_000).to_string().chars().take(10).collect::<String>();
    let name = name.clone().unwrap_or_else(|| format!("k{}", today().replace('-', "")));
    let mut key = [0; KEY_BYTES];
    SystemRandom::new()
        .fill(&mut key)
        .map_err(|_| CliError::failed("the operating system gave no random bytes"))?;
    let line = KeyRing::line(&name, &key)?;
    render::show(output, &json!({ "name": name, "line": line }), |_| line.clone());
    Ok(Exit::Ok)
}
