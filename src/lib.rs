//! Minutehand.

pub mod clock;
pub mod limits;
pub mod model;
pub mod keys;
pub mod store;
pub mod client;
pub mod dev;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
