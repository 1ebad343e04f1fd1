//! The real service over mutual TLS: rights, invalid peers, limits and errors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests"
)]

#[path = "../service_support/mod.rs"]
mod service_support;
#[path = "../../../crates/netlink/tests/support/mod.rs"]
mod support;

mod access;
mod clocks;
mod configuration;
mod examinations;
mod idle;
mod limits;
mod session;
mod sessions;
mod windows;
