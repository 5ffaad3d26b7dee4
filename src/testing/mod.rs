//! What tests and benches stand on: real servers, fresh namespaces, and a network that fails on demand.

pub mod bed;
pub mod clock;
pub mod day;
pub mod fault;
pub mod fixtures;
pub mod fuzz;
pub mod invariants;
pub mod process;
pub mod snapshot;
pub mod stalls;
