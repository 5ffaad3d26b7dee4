//! One test binary: a file beside each file of `src/store`, and the doors above it.

mod check;
mod due;
