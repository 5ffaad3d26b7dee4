//! Minutehand.

pub mod clock;
pub mod limits;
pub mod metric;
pub mod model;
pub mod keys;
pub mod store;
pub mod pod;
pub mod client;
pub mod http;
pub mod dev;
pub mod settings;
pub mod telemetry;
pub mod cli;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
