//! Tests of the two methods.

mod counter;
mod log;
