//! Real container runtimes, each scenario on each of them. `hack/test runtime` runs them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests too: a failure is a panic at its place"
)]

mod containerd;
mod scenarios;

/// Each scenario is a test on each runtime.
macro_rules! on_each_runtime {
    ($($scenario:ident),+ $(,)?) => {
        mod on_containerd {
            $(#[test] fn $scenario() { super::scenarios::$scenario(e2e::runtime::Kind::Containerd); })+
        }
        mod on_podman {
            $(#[test] fn $scenario() { super::scenarios::$scenario(e2e::runtime::Kind::Podman); })+
        }
    };
}

on_each_runtime![
    two_pods_reach_each_other_in_both_families_and_give_everything_back,
];
