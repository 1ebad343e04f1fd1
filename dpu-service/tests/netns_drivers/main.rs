//! The veth eswitch and the bridge fabric against the kernel, looked at with `ip`, `bridge`, `tc` and
//! `ping`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../../crates/netlink/tests/support/mod.rs"]
mod support;
#[path = "../veth_dpu/mod.rs"]
mod veth_dpu;

mod bridge;
mod bridges;
mod detours;
mod frames;
mod guard;
mod kept;
mod limits;
mod openings;
mod ovs;
mod ovs_troubles;
mod rates;
mod relay;
mod representors;
mod traffic;
