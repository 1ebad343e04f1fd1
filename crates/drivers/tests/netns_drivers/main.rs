//! The veth eswitch and the bridge fabric against the kernel, looked at with `ip`, `bridge`, `tc` and
//! `ping`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../../netlink/tests/support/mod.rs"]
mod support;
#[path = "../veth_dpu/mod.rs"]
mod veth_dpu;

mod allow_rules;
mod bridge;
mod bridges;
mod frames;
mod guard;
mod ingress_bypass;
mod kept;
mod limits;
mod ovs;
mod ovs_failures;
mod rates;
mod relay;
mod representors;
mod traffic;
