//! Interface names that are taken.

use host_shim::mover::{INWARD_STEPS, MoveError, VfMove};
use netlink::Request;

use crate::stage::{OWN_NAME, POD_MAC, Stage, assert_clean, spec};

#[test]
fn taken_interface_name_is_refused_before_moving() {
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
fn name_taken_during_move_is_refused() {
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
fn pod_cannot_keep_the_vfs_own_name() {
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
fn clashing_altnames_are_removed_and_restored() {
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
fn vf_regains_its_name_when_free() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    stage.host.ip(&format!("link add {OWN_NAME} type veth peer name usurper"));
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert_eq!(failed.step, "restore");
    assert!(stage.pod.links().is_empty(), "the VF has left the pod anyway");
    stage.host.ip("link del usurper");
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn vf_returned_under_pods_name_is_restored() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    stage.host.ip(&format!("link set {OWN_NAME} down"));
    // A real VF returns like this when its pod's namespace ends.
    stage.host.ip(&format!("link set {OWN_NAME} name eth0 mtu 9000 address {POD_MAC}"));
    let vf_move = VfMove::new(spec, stage.namespaces(None));
    vf_move.move_out().unwrap();
    assert_clean(&stage, &before);
}
