//! The state of a VF that returns from a pod.

use host_shim::{
    mover::{MoveError, make_clean},
    vf_source::{OWN_MTU, OwnState},
};

use crate::{
    stage::{OWN_NAME, Stage, assert_clean, plan, spec},
    xdp,
};

#[test]
fn pods_changes_of_the_vf_are_undone() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    for change in [
        "link set eth0 down",
        "link set eth0 name mine",
        "link set mine address 02:00:00:00:00:ee",
        "link set mine mtu 1300",
        "link property add dev mine altname p0v3",
        "link property add dev mine altname another",
        "link set mine promisc on",
        "link set mine allmulticast on",
        "link set mine txqueuelen 77",
        "link set mine group 7",
        "link set mine up",
    ] {
        stage.pod.ip(change);
    }
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn xdp_program_is_removed_on_return() {
    if !xdp::may_be_attached() {
        return;
    }
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    let (_folder, program) = xdp::dropping_program();
    for mode in ["xdpgeneric", "xdpdrv"] {
        drop(stage.move_in(&spec));
        stage.pod.ip(&format!("link set eth0 {mode} object {} section xdp", program.display()));
        stage.vf_move(&spec).move_out().unwrap();
        assert_clean(&stage, &before);
    }
}

#[test]
fn refused_vf_configuration_is_undone() {
    let stage = Stage::new();
    let before = stage.host.links();
    let mut spec = spec(&stage);
    spec.plan.mtu = 1;
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert_eq!(failed.step, "configure");
    assert!(failed.left.is_empty());
    assert_clean(&stage, &before);
    spec.plan = plan();
    spec.plan.routing.name = "a/b".into();
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert_eq!(failed.step, "move-in");
    assert!(failed.left.is_empty());
    assert_clean(&stage, &before);
}

#[test]
fn absent_vf_is_reported_missing() {
    let stage = Stage::new();
    let spec = spec(&stage);
    stage.host.ip(&format!("link del {OWN_NAME}"));
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert!(matches!(failed.source, Some(MoveError::Missing(_))), "{failed}");
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert!(matches!(failed.source, Some(MoveError::Missing(_))), "{failed}");
}

#[test]
fn unrecorded_vf_is_made_allocatable() {
    let stage = Stage::new();
    stage.host.ip(&format!("link set {OWN_NAME} name eth7 mtu 9000 up"));
    stage.host.ip("link set eth7 promisc on allmulticast on group 7");
    stage.host.ip("address add 10.9.9.9/24 dev eth7");
    let mut host = stage.host.rtnl();
    let stray = host.link_by_name("eth7").unwrap().unwrap();
    let own = OwnState { name: OWN_NAME.into(), mac: None, mtu: OWN_MTU, link_state: None };
    make_clean(&mut host, &stray, &own, None).unwrap();
    let clean = host.link_by_name(OWN_NAME).unwrap().unwrap();
    assert_eq!((clean.index, clean.mtu, clean.is_up), (stray.index, OWN_MTU, false));
    assert!(!clean.is_promiscuous && !clean.is_all_multicast && clean.group == 0);
    assert_eq!(host.addresses(stray.index).unwrap(), []);
}
