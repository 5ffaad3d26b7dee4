//! Tests against real servers that they start themselves: one binary, a file beside each file of `store/`, and the doors above it.

mod acl;
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
mod http;
mod intake;
mod journal;
mod leap;
mod model;
mod namespaces;
mod pair;
mod pod;
mod python;
mod queue;
mod read;
mod run;
mod seal;
mod silence;
mod timeouts;
