//! Real container runtimes, each scenario on each of them. Run by `hack/test runtime`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests too: a failure is a panic at its place"
)]

mod containerd;
/// A copy of this machine, shared with the tests of packages.
#[path = "../e2e/packages/copy.rs"]
mod copy;
mod go_cni;
/// Packages of the tested programs.
#[path = "../e2e/packages/making.rs"]
#[allow(dead_code, reason = "the tests of packages need more of it")]
mod making;
mod netavark;
mod newcomer;
mod pages;
mod podman;
mod rebooted;
mod scenarios;

/// Each scenario is a test on each runtime.
macro_rules! on_each_runtime {
    ($($scenario:ident),+ $(,)?) => {
        mod on_containerd {
            $(#[test] fn $scenario() { super::scenarios::$scenario(e2e::runtime::Kind::Containerd); })+
        }
        mod on_containerd_with_go_cni {
            $(#[test] fn $scenario() {
                super::scenarios::$scenario(e2e::runtime::Kind::ContainerdWithGoCni);
            })+
        }
        mod on_podman {
            $(#[test] fn $scenario() { super::scenarios::$scenario(e2e::runtime::Kind::Podman); })+
        }
    };
}

on_each_runtime![
    two_pods_communicate_in_both_families,
    twenty_concurrent_pods_have_addresses,
    excess_pod_is_refused_until_room,
    runtime_killed_during_add_leaves_nothing,
    runtime_killed_at_start_leaves_nothing,
    pods_survive_agent_service_and_runtime,
    pod_start_reports_absent_dpu,
    pod_removed_without_dpu_is_released_later,
    pod_removed_without_agent_is_released_later,
    published_port_is_reachable,
    pod_without_netns_is_removed,
];
