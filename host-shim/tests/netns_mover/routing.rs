//! A pod's routes, rules and sysctls after its interface was switched off, and after it left.

use std::sync::Arc;

use host_shim::mover::{MoveError, MoveSpec, PodState, Sysctl, VfMove, inspect, state_in_pod};
use netlink::{Family, Netns};

use crate::stage::{OWN_NAME, Space, Stage, assert_clean, assert_in_pod, plan, spec};

/// The first thing that the pod's interface has lost.
fn lost(spec: &MoveSpec, pod: &Netns) -> Result<Option<String>, MoveError> {
    Ok(match state_in_pod(spec, pod)? {
        PodState::Lost(lost) => Some(lost),
        PodState::Complete | PodState::Differs(_) => None,
    })
}

#[test]
fn routes_return_after_interface_was_down() {
    let stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    assert_eq!(lost(&spec, &stage.pod.netns()).unwrap(), None);
    stage.pod.ip("link set eth0 down");
    stage.pod.ip("link set eth0 up");
    let addresses = stage.pod.ip("addr show dev eth0 scope global").to_string();
    assert!(addresses.contains("10.1.0.5") && addresses.contains("fd00::5"), "{addresses}");
    assert_eq!(stage.pod.ip("route show default").as_array().map(Vec::len), Some(0));
    let told = lost(&spec, &stage.pod.netns()).unwrap();
    assert!(told.unwrap().ends_with(" route 0.0.0.0/0 via 10.1.0.1"));
    drop(stage.move_in(&spec));
    assert_in_pod(&stage, &spec);
    assert_eq!(lost(&spec, &stage.pod.netns()).unwrap(), None);
}

/// CHECK still reports it.
#[test]
fn replaced_route_does_not_count_as_lost() {
    let stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    for change in [
        "route replace default via 10.1.0.9",
        "route replace unreachable 10.66.0.0/16",
        "route change 203.0.113.0/24 dev eth0 scope link",
        "-6 route replace default via fd00::9",
    ] {
        stage.pod.ip(change);
        assert_eq!(lost(&spec, &stage.pod.netns()).unwrap(), None, "{change}");
        assert!(inspect(&spec, &stage.pod.netns(), None).unwrap().is_some(), "{change}");
    }
    stage.pod.ip("route flush 10.66.0.0/16");
    let told = lost(&spec, &stage.pod.netns()).unwrap();
    assert!(told.unwrap().ends_with(" route blackhole 10.66.0.0/16"));
}

#[test]
fn pods_mtu_and_sysctls_are_kept() {
    let stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    let set = || netlink::set_sysctl(Family::V4, "eth0", "rp_filter", "0");
    stage.pod.netns().run(set).unwrap().unwrap();
    stage.pod.ip("link set eth0 mtu 1400");
    let found = || {
        let pod = stage.pod.netns();
        [lost(&spec, &pod).unwrap(), inspect(&spec, &pod, None).unwrap()]
    };
    assert_eq!(found(), [None, None]);
    stage.pod.ip("route del default");
    assert!(found().iter().all(Option::is_some));
    drop(stage.move_in(&spec));
    assert_eq!(found(), [None, None]);
    assert_eq!(stage.pod.sysctl("eth0", "ipv4.rp_filter"), "0");
    assert_eq!(stage.pod.ip("link show dev eth0")[0]["mtu"], 1400);
    stage.pod.ip("link set eth0 down");
    drop(stage.move_in(&spec));
    assert_in_pod(&stage, &spec);
}

#[test]
fn moved_routes_stay_and_deleted_ones_return() {
    let stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    stage.pod.ip("route add default via 10.1.0.1 table 100");
    stage.pod.ip("route del default");
    let found = || {
        let pod = stage.pod.netns();
        [lost(&spec, &pod).unwrap(), inspect(&spec, &pod, None).unwrap()]
    };
    assert_eq!(found(), [None, None]);
    stage.pod.ip("route del 203.0.113.0/24");
    drop(stage.move_in(&spec));
    assert_eq!(stage.pod.ip("route show default").as_array().map(Vec::len), Some(0));
    stage.pod.ip("route flush table 100");
    assert!(found().iter().all(Option::is_some));
    drop(stage.move_in(&spec));
    assert_in_pod(&stage, &spec);
}

/// The kernel resets an interface's sysctls in each namespace that it enters.
#[test]
fn sysctls_end_with_the_move_out() {
    const KEYS: [&str; 3] = ["ipv4.rp_filter", "ipv4.arp_ignore", "ipv6.accept_ra"];
    let stage = Stage::new();
    let before = stage.host.links();
    let settings = || KEYS.map(|key| stage.host.sysctl(OWN_NAME, key));
    let of_host = settings();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
    assert_eq!(settings(), of_host);

    let next = Space::new();
    let usual = KEYS.map(|key| next.sysctl("default", key));
    let mut plain = spec;
    plain.plan = plan();
    plain.plan.routing.sysctls.clear();
    let namespaces = stage.namespaces(Some(Arc::<Netns>::new(next.netns())));
    drop(VfMove::new(plain, namespaces).move_in().unwrap());
    let of_next = KEYS.map(|key| next.sysctl("eth0", key));
    assert_eq!(of_next[..2], usual[..2]);
    assert_eq!(of_next[2], "0", "the usual value of a pod");
}

#[test]
fn refused_sysctl_undoes_the_move() {
    let stage = Stage::new();
    let before = stage.host.links();
    let mut spec = spec(&stage);
    let value = "x".to_owned();
    spec.plan.routing.sysctls.push(Sysctl { family: Family::V4, key: "rp_filter", value });
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert_eq!(failed.step, "set-sysctls");
    assert!(failed.left.is_empty(), "{failed}");
    assert_clean(&stage, &before);
}

#[test]
fn shared_rejecting_routes_stay() {
    let stage = Stage::new();
    let mut spec = spec(&stage);
    drop(stage.move_in(&spec));
    spec.plan.routing.shared_by_others = spec.plan.routing.shared.clone();
    stage.vf_move(&spec).move_out().unwrap();
    let left = stage.pod.ip("route show type blackhole");
    assert_eq!(left[0]["dst"], "10.66.0.0/16");
    let rules = stage.pod.ip("rule show");
    assert!(rules.as_array().unwrap().iter().any(|rule| rule["priority"] == 100), "{rules}");
}
