//! On the cards of the virtual machine of hack/vm.
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
