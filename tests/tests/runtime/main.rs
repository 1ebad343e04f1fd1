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
    two_pods_reach_each_other_in_both_families_and_give_everything_back,
    twenty_pods_at_once_have_an_address_each,
    a_pod_too_many_is_refused_in_one_sentence_and_runs_once_there_is_room,
    a_runtime_killed_amid_an_add_leaves_nothing_once_the_pod_is_removed,
    a_runtime_killed_at_any_moment_of_a_start_leaves_nothing_once_the_pod_is_removed,
    pods_outlive_agent_service_and_runtime,
    a_pod_that_starts_while_the_dpu_is_away_fails_with_our_sentence,
    a_pod_that_goes_while_the_dpu_is_away_is_given_back_later,
    a_pod_that_goes_while_the_agent_is_away_is_given_back_later,
    a_mapped_port_leads_to_the_pod_from_the_outside_and_from_the_host,
    a_pod_whose_netns_is_gone_first_is_removed_and_gives_all_back,
];
