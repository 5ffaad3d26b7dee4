//! Tests against real servers that they start themselves: one binary, a file beside each file of `store/`, and the doors above it.

mod check;
mod cli;
mod connect;
mod dead;
mod due;
mod executor;
mod model;
mod pod;
mod queue;
