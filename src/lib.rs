#![doc = "Minutehand."]
pub mod clock;
pub mod limits;
