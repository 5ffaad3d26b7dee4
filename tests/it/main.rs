//! Tests against real servers that they start themselves: one binary, a file beside each file of `store/`.

mod connect;
