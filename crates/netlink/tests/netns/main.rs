//! Against the kernel in private namespaces, looked at with the tools of others.
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
mod links;
mod monitor;
mod moves;
mod namespaces;
mod neighbours;
mod nftables;
mod link_states;
mod probes;
mod programs;
mod redirects;
mod statistics;
