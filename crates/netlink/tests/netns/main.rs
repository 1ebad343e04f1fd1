//! Tests against the kernel in private namespaces, checked with other tools.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/xdp.rs"]
mod xdp;

mod addresses;
mod announce;
mod bridges;
mod link_states;
mod links;
mod monitor;
mod moves;
mod namespaces;
mod neighbours;
mod nftables;
mod probes;
mod programs;
mod redirects;
mod statistics;
