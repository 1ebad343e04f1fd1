//! The operators' program.
#![forbid(unsafe_code)]
fn main() {}
