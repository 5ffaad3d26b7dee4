//! What all benches share: a private server, the bare wire, tasks of a known shape, and reports.

pub mod fleet;
pub mod plot;
pub mod proxy;
pub mod redis;
pub mod report;
pub mod shape;
pub mod stat;
