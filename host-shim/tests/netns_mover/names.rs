//! Names that are taken.

use host_shim::mover::{INWARD_STEPS, MoveError, VfMove};
use netlink::Request;

use crate::stage::{OWN_NAME, POD_MAC, Stage, assert_clean, spec};

#[test]
fn a_taken_interface_name_is_refused_before_anything_is_moved() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    let refused = || {
        let failed = stage.vf_move(&spec).move_in().unwrap_err();
        assert_eq!(failed.step, "check-names");
        assert!(
            matches!(&failed.source, Some(MoveError::InterfaceExists(name)) if name == "eth0"),
            "{failed}"
        );
        assert_eq!(stage.host.links(), before);
    };
    stage.pod.ip("link add eth0 type veth peer name other");
    refused();
    stage.pod.ip("link set eth0 name first");
    stage.pod.ip("link property add dev first altname eth0");
    refused();
}

#[test]
fn an_interface_name_that_is_taken_at_the_last_moment_is_refused_as_such() {
    let stage = Stage::new();
    let before = stage.host.links();
    let mut vf_move = stage.vf_move(&spec(&stage));
    let (checks, others) = INWARD_STEPS.split_at(2);
    saga::run(checks, &mut vf_move).unwrap();
    stage.pod.ip("link add eth0 type veth peer name other");
    let failed = saga::run(others, &mut vf_move).unwrap_err();
    assert_eq!(failed.step, "move-in");
    assert!(matches!(&failed.source, Some(MoveError::InterfaceExists(_))), "{failed}");
    assert!(saga::undo(checks, &mut vf_move).is_empty());
    assert_eq!(stage.host.links(), before);
}

#[test]
fn a_pod_that_takes_the_vfs_own_name_does_not_keep_it() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    stage.pod.ip(&format!("link add {OWN_NAME} type veth peer name other"));
    stage.vf_move(&spec).move_out().unwrap();
    assert_eq!(stage.host.links(), before);
    assert_eq!(stage.pod.link_names(), ["other", OWN_NAME]);
}

#[test]
fn alternative_names_in_the_way_are_taken_off_and_restored() {
    let stage = Stage::new();
    let mut host = stage.host.rtnl();
    let index = host.link_by_name(OWN_NAME).unwrap().unwrap().index;
    host.change(Request::add_alternative_name(index, "eth0")).unwrap();
    host.change(Request::add_alternative_name(index, "taken")).unwrap();
    stage.pod.ip("link add taken type veth peer name other");
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    assert!(stage.pod.link_names().contains(&"eth0".to_owned()));
    stage.vf_move(&spec).move_out().unwrap();
    assert_eq!(stage.host.links(), before);
}

#[test]
fn a_vf_whose_own_name_was_taken_comes_home_when_the_name_is_free() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    stage.host.ip(&format!("link add {OWN_NAME} type veth peer name usurper"));
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert_eq!(failed.step, "restore");
    assert!(stage.pod.links().is_empty(), "the VF has left the pod all the same");
    stage.host.ip("link del usurper");
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn a_vf_that_fell_back_under_the_pods_name_is_restored() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    stage.host.ip(&format!("link set {OWN_NAME} down"));
    // As a real VF comes back when its pod's namespace ends.
    stage.host.ip(&format!("link set {OWN_NAME} name eth0 mtu 9000 address {POD_MAC}"));
    let vf_move = VfMove::new(spec, stage.namespaces(None));
    vf_move.move_out().unwrap();
    assert_clean(&stage, &before);
}
