//! Minutehand.

pub mod cli;
pub mod clock;
pub mod http;
pub mod limits;
pub mod metric;
pub mod model;
pub mod settings;
pub mod telemetry;
