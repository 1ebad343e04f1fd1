//! Moves in and out: once, repeated, and after an interruption.

use std::time::Duration;

use host_shim::mover::{INWARD_STEPS, MoveError, OUTWARD_STEPS, inspect};
use netlink::LinkChange;

use crate::stage::{
    OWN_NAME, POD_MAC, Space, Stage, assert_clean, assert_in_pod, settled, settled_during, spec,
};

#[test]
fn vf_moves_in_and_out() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    let durations = settled(stage.move_in(&spec));
    assert!(!durations.without_carrier);
    assert_in_pod(&stage, &spec);
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn neighbours_learn_the_pods_addresses() {
    let stage = Stage::new();
    let spec = spec(&stage);
    stage.dpu.ip("address add 10.1.0.1/16 dev pf0vf3");
    let arrival = stage.move_in(&spec);
    for address in ["10.1.0.5", "fd00::5"] {
        let known = "lladdr 02:00:00:00:00:99 dev pf0vf3 nud stale";
        stage.dpu.ip(&format!("neigh replace {address} {known}"));
    }
    settled(arrival);
    let is_told = || {
        let neighbours = stage.dpu.ip("neigh show dev pf0vf3");
        let neighbours = neighbours.as_array().unwrap().iter();
        neighbours.filter(|neighbour| neighbour["lladdr"] == POD_MAC).count() == 2
    };
    assert!((0..1000).any(|_| is_told()), "{}", stage.dpu.ip("neigh show"));
}

#[test]
fn late_carrier_is_awaited_last() {
    let stage = Stage::new();
    let mut spec = spec(&stage);
    stage.dpu.ip("link set pf0vf3 down");
    let arrival = stage.move_in(&spec);
    assert_in_pod(&stage, &spec);
    let durations = settled_during(arrival, || drop(stage.dpu.ip("link set pf0vf3 up")));
    assert!(!durations.without_carrier);

    stage.dpu.ip("link set pf0vf3 down");
    spec.plan.carrier_limit = Duration::from_millis(1);
    assert!(settled(stage.move_in(&spec)).without_carrier);
    assert_in_pod(&stage, &spec);
}

#[test]
fn repeated_move_changes_nothing() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    for _ in 0..3 {
        drop(stage.move_in(&spec));
        assert_in_pod(&stage, &spec);
    }
    for _ in 0..3 {
        stage.vf_move(&spec).move_out().unwrap();
        assert_clean(&stage, &before);
    }
}

#[test]
fn lost_settings_in_pod_are_restored() {
    let stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    let lost = |change: &str| {
        stage.pod.ip(change);
        assert!(inspect(&spec, &stage.pod.netns(), None).unwrap().is_some(), "{change}");
        drop(stage.move_in(&spec));
        assert_in_pod(&stage, &spec);
    };
    lost("addr del 10.1.0.5/16 dev eth0");
    lost("route del default");
    lost("rule del priority 100");
    lost("route del blackhole 10.66.0.0/16");
    lost("-6 route del unreachable fd66::/16 table 77");
    lost("route del 203.0.113.0/24");
    lost("link set eth0 down");
}

#[test]
fn interrupted_move_is_finished() {
    let stage = Stage::new();
    let spec = spec(&stage);
    let mut host = stage.host.rtnl();
    let index = host.link_by_name(OWN_NAME).unwrap().unwrap().index;
    host.change_link(index, &LinkChange::new().netns(&stage.pod.netns())).unwrap();
    assert_eq!(stage.pod.link_names(), [OWN_NAME]);
    drop(stage.move_in(&spec));
    assert_in_pod(&stage, &spec);
}

#[test]
fn mover_keeps_no_pod_namespace_open() {
    let mut stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    assert!(!stage.dpu.links().is_empty());
    stage.pod = Space::new();
    // The first pod's namespace ends with its last reference, and the veth pair with it.
    test_clock::wait_until("the pod's namespace to end", || stage.dpu.links().is_empty());
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert!(matches!(failed.source, Some(MoveError::Missing(_))), "{failed}");
    stage.plug();
    stage.vf_move(&spec).move_out().unwrap();
}

#[test]
fn mover_step_names_are_unique() {
    let names: Vec<_> = INWARD_STEPS.iter().chain(OUTWARD_STEPS).map(|step| step.name()).collect();
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
}
