//! Tests that need the kernel and the cards of hack/vm: real switchdev and SR-IOV. `hack/test vm` runs them as root of
//! the virtual machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests too: a failure is a panic at its place"
)]

mod card;
mod card_check;
mod igb;
mod machine;
mod netdevsim;
mod other_users;
mod reset;
mod wire;
