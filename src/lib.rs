#![doc = "Minutehand."]
pub mod clock;
pub mod limits;
pub mod store;
