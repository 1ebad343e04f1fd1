//! The devlink eswitch and the programmer on a netdevsim card, checked with `devlink`, `bridge`, `ip` and `tc`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../../netlink/tests/support/netdevsim.rs"]
mod netdevsim;
#[path = "../../../ovsdb/tests/support/open_vswitch.rs"]
#[allow(dead_code, unreachable_pub, reason = "others use the rest")]
mod open_vswitch;
#[path = "../../../netlink/tests/support/mod.rs"]
mod support;

mod cards;
mod dpu;
mod filters;
mod offload;
mod programming;
mod rate_tree;
