//! Tests against real servers that they start themselves: one binary, a file beside each file of `store/`, and the doors above it.

mod check;
mod cli;
mod connect;
mod dead;
mod due;
mod durability;
mod executor;
mod fencing;
mod foreign;
mod freeze;
mod intake;
mod journal;
mod model;
mod pair;
mod pod;
mod queue;
mod read;
mod run;
mod short;
mod timeouts;
