//! The main job, across two machines.

use e2e::{ArmLab, wait_for};

use crate::{
    LIMIT,
    pair::{Pair, ids},
    settings,
};

#[test]
fn arm_dpu_serves_two_pods() {
    let lab = ArmLab::start(&settings());
    assert!(lab.dpu.output("uname -m").contains("aarch64"));
    let pair = Pair::attach(&lab);
    let ports = lab.dpu.json("bridge -j link show master br-offload");
    assert_eq!(ports.len(), 2, "{ports:?}");
    // Each machine has its own kernel: the host's has no such bridge.
    assert!(lab.netns().json("ip", &["link", "show", "type", "bridge"]).is_empty());
    pair.detach(&lab);
    let left = lab.dpu.output("bridge link show master br-offload");
    assert_eq!(left, "");
}

#[test]
fn arm_dpu_reports_kernel_abilities() {
    let lab = ArmLab::start(&settings());
    let described = lab.operator().output(&["describe", "dpu"]);
    for capability in ["vlan-filtering", "guard", "ingress-rate"] {
        let line = described.lines().find(|line| line.contains(capability));
        assert!(line.is_some_and(|line| line.contains("in software")), "{capability}: {described}");
    }
}

#[test]
fn killed_arm_service_restarts_and_pings_continue() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    let (before, session) = (ids(&lab), lab.session().unwrap());
    let _ = lab.dpu.output("killall -9 dpu-service");
    pair.assert_reach();
    wait_for("another session", LIMIT, || lab.session().filter(|other| *other != session));
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.detach(&lab);
}
