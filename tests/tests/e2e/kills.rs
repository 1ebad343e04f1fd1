//! Both programs are killed at every point of each of their flows, under load.

use e2e::scenarios::kills::{
    OF_THE_AGENT, OF_THE_SERVICE, kill_at_each_point_after_card_reset, kill_at_each_point_of_flow,
    kill_points_without_flow,
};

/// Points for repairs of another eswitch, another fabric, or limited pods. These labs lack them, because not every
/// kernel supports them.
const OF_OTHERS: [&str; 2] = ["repair-egress-limit", "repair-port-mac"];

#[test]
fn every_service_kill_point_has_a_flow() {
    let left = kill_points_without_flow(&OF_THE_SERVICE);
    assert!(left.iter().all(|point| OF_OTHERS.contains(&&**point)), "{left:?}");
}

#[test]
fn every_agent_kill_point_has_a_flow() {
    let left = kill_points_without_flow(&OF_THE_AGENT);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn service_recovers_from_kill_during_attach() {
    kill_at_each_point_of_flow(OF_THE_SERVICE[0]);
}

#[test]
fn service_recovers_from_kill_during_reconcile() {
    kill_at_each_point_of_flow(OF_THE_SERVICE[1]);
}

#[test]
fn service_recovers_from_kill_during_start() {
    kill_at_each_point_of_flow(OF_THE_SERVICE[2]);
}

#[test]
fn service_recovers_from_kill_during_hello() {
    kill_at_each_point_of_flow(OF_THE_SERVICE[3]);
}

#[test]
fn service_recovers_from_kill_during_gc() {
    kill_at_each_point_of_flow(OF_THE_SERVICE[4]);
}

#[test]
fn service_recovers_from_kill_during_release() {
    kill_at_each_point_of_flow(OF_THE_SERVICE[5]);
}

#[test]
fn agent_recovers_from_kill_during_attach() {
    kill_at_each_point_of_flow(OF_THE_AGENT[0]);
}

#[test]
fn agent_recovers_from_kill_during_undo() {
    kill_at_each_point_of_flow(OF_THE_AGENT[1]);
}

#[test]
fn agent_recovers_from_kill_during_repair() {
    kill_at_each_point_of_flow(OF_THE_AGENT[2]);
}

#[test]
fn agent_recovers_from_kill_during_restore() {
    kill_at_each_point_of_flow(OF_THE_AGENT[3]);
}

#[test]
fn agent_recovers_from_kill_during_start() {
    kill_at_each_point_of_flow(OF_THE_AGENT[4]);
}

#[test]
fn agent_recovers_from_kill_during_session_start() {
    kill_at_each_point_of_flow(OF_THE_AGENT[5]);
}

#[test]
fn agent_recovers_from_kill_during_vf_reset() {
    kill_at_each_point_of_flow(OF_THE_AGENT[6]);
}

#[test]
fn agent_recovers_from_kill_during_workload_attach() {
    kill_at_each_point_of_flow(OF_THE_AGENT[7]);
}

#[test]
fn service_recovers_from_kill_after_card_reset() {
    kill_at_each_point_after_card_reset("dpu-service", &["repair-"]);
}

#[test]
fn agent_recovers_from_kill_after_card_reset() {
    let own = [
        "check-names",
        "set-port",
        "prepare",
        "move-in",
        "set-sysctls",
        "configure",
        "watch-carrier",
        "announce",
        "put-back",
    ];
    kill_at_each_point_after_card_reset("host-shim-agent", &own);
}
