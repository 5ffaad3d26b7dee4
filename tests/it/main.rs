//! Tests against real servers that they start themselves: one binary, a file beside each file of `store/`, and the doors above it.

mod check;
mod connect;
mod due;
mod model;
mod pod;
