//! Both programs are killed at every point of each of their flows, under load.

use e2e::scenarios::kills::{
    OF_THE_AGENT, OF_THE_SERVICE, every_point_after_a_card_reset_kills,
    every_point_of_the_flow_kills, points_of_no_flow,
};

/// Points for repairs of another eswitch, another fabric, or limited pods. These labs lack them, because not every
/// kernel supports them.
const OF_OTHERS: [&str; 2] = ["repair-egress-limit", "repair-port-mac"];

#[test]
fn no_kill_point_of_the_service_is_in_no_flow() {
    let left = points_of_no_flow(&OF_THE_SERVICE);
    assert!(left.iter().all(|point| OF_OTHERS.contains(&&**point)), "{left:?}");
}

#[test]
fn no_kill_point_of_the_agent_is_in_no_flow() {
    let left = points_of_no_flow(&OF_THE_AGENT);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_service_killed_while_it_attaches_and_detaches_recovers() {
    every_point_of_the_flow_kills(OF_THE_SERVICE[0]);
}

#[test]
fn the_service_killed_while_it_reconciles_recovers() {
    every_point_of_the_flow_kills(OF_THE_SERVICE[1]);
}

#[test]
fn the_service_killed_while_it_starts_recovers() {
    every_point_of_the_flow_kills(OF_THE_SERVICE[2]);
}

#[test]
fn the_service_killed_while_it_welcomes_a_host_recovers() {
    every_point_of_the_flow_kills(OF_THE_SERVICE[3]);
}

#[test]
fn the_service_killed_while_it_collects_recovers() {
    every_point_of_the_flow_kills(OF_THE_SERVICE[4]);
}

#[test]
fn the_service_killed_while_it_takes_an_attachment_away_recovers() {
    every_point_of_the_flow_kills(OF_THE_SERVICE[5]);
}

#[test]
fn the_agent_killed_while_it_attaches_and_detaches_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[0]);
}

#[test]
fn the_agent_killed_while_it_undoes_an_attach_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[1]);
}

#[test]
fn the_agent_killed_while_it_puts_a_vf_back_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[2]);
}

#[test]
fn the_agent_killed_while_it_restores_a_dead_pods_vf_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[3]);
}

#[test]
fn the_agent_killed_while_it_starts_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[4]);
}

#[test]
fn the_agent_killed_while_it_opens_a_session_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[5]);
}

#[test]
fn the_agent_killed_while_it_makes_a_vf_anew_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[6]);
}

#[test]
fn the_agent_killed_while_it_serves_a_workload_recovers() {
    every_point_of_the_flow_kills(OF_THE_AGENT[7]);
}

#[test]
fn the_service_killed_while_it_programs_a_card_that_was_reset_recovers() {
    every_point_after_a_card_reset_kills("dpu-service", &["repair-"]);
}

#[test]
fn the_agent_killed_while_it_puts_vfs_back_after_a_card_reset_recovers() {
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
    every_point_after_a_card_reset_kills("host-shim-agent", &own);
}
