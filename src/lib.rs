#![doc = "Minutehand."]
pub mod clock;
pub mod dev;
pub mod limits;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
