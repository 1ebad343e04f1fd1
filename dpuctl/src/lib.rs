//! The operators' program.
#![forbid(unsafe_code)]
