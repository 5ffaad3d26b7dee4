//! Private servers, for `minutehand dev`, tests and benches.
//!
//! One supervisor for all three: what a developer tries at home is what the tests have run on.

pub mod fleet;
pub mod redis;
pub mod wire;
