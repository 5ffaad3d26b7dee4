//! Minutehand.

pub mod clock;
pub mod executor;
pub mod limits;
pub mod model;
