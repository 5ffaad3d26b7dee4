//! Minutehand.

// Futures of calls lie within each other deeper than the usual limit.
#![recursion_limit = "256"]

pub mod cli;
pub mod client;
pub mod clock;
pub mod dev;
pub mod embed;
pub mod executor;
pub mod http;
pub mod keys;
pub mod limits;
pub mod metric;
pub mod model;
pub mod pod;
pub mod settings;
pub mod store;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod webhook;
