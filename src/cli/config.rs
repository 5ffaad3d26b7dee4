//! `minutehand config show`.

use super::args::{ConfigCommand, Output};
use super::render;
use crate::settings::{DEFAULT_TOML, Loaded};

/// Prints the settings that hold.
pub fn run(command: &ConfigCommand, loaded: &Loaded, output: Output) {
    let ConfigCommand::Show { origin, defaults } = command;
    match output {
        _ if *defaults => render::print(DEFAULT_TOML),
        Output::Json => render::print(&loaded.to_json(*origin).to_string()),
        Output::Table => render::print(&loaded.to_toml(*origin)),
    }
}
