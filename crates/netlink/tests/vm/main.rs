//! Tests on the cards of hack/vm's virtual machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "../support/netdevsim.rs"]
mod netdevsim;
#[path = "../support/mod.rs"]
mod support;

mod devlink;
mod vf_settings;
