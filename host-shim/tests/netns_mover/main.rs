//! Tests of the mover with real links, inspected with `ip`. They need root in a user namespace: `unshare -rnm`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "../../../crates/netlink/tests/support/xdp.rs"]
mod xdp;

mod cleaning;
#[cfg(feature = "fault-injection")]
mod faults;
mod moves;
mod names;
mod routing;
mod stage;
mod together;
