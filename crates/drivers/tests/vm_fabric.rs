//! Fabrics on a kernel with VLAN filtering and bonds, checked with `bridge`, `ip` and `ping`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../netlink/tests/support/mod.rs"]
mod support;
mod veth_dpu;

use drivers::{
    counters::Offloaded,
    eswitch::Eswitch,
    fabric::{Fabric, Membership},
};
use netlink::{LinkChange, Request, VethEnd};
use serde_json::{Value, json};
use support::TestNetns;
use test_clock::wait_until;
use veth_dpu::{BRIDGE, Dpu, On, Pod, at_once, can, open_fabric};

/// A DPU whose uplink `p0` leads to the link `wire` in another namespace.
fn with_uplink() -> (Dpu, TestNetns) {
    let (dpu, outside) = (Dpu::with_uplinks(&["p0"]), TestNetns::new());
    assert!(can(&*dpu.fabric, "vlan-filtering"), "run this by hack/vm");
    let wire = VethEnd::new("wire").netns(&outside.netns);
    dpu.netns.rtnl().change(Request::add_veth(&VethEnd::new("p0"), &wire)).unwrap();
    outside.run("ip link set wire up");
    dpu.prepare().unwrap();
    (dpu, outside)
}

fn plug(dpu: &Dpu, number: u16, vlan: Option<u16>) -> Pod {
    let mut pod = dpu.plug(number);
    pod.settings.vlan = vlan;
    pod
}

/// VLANs of a port, as `bridge` shows them; null for none.
fn vlans(dpu: &Dpu, name: &str) -> Value {
    dpu.netns.json(&format!("bridge -j vlan show dev {name}"))[0]["vlans"].clone()
}

fn access(vlan: u16) -> Value {
    json!({"vlan": vlan, "flags": ["PVID", "Egress Untagged"]})
}

fn tagged(vlan: u16) -> Value {
    json!({"vlan": vlan})
}

#[test]
fn pods_of_two_vlans_do_not_meet() {
    let (dpu, _outside) = with_uplink();
    let pods = [plug(&dpu, 0, Some(100)), plug(&dpu, 1, Some(100)), plug(&dpu, 2, None)];
    pods.iter().for_each(|pod| dpu.program(pod));
    for address in ["10.9.0.2", "fd09::2"] {
        pods[0].reaches(address);
    }
    assert!(!pods[0].pings("10.9.0.3"));
    assert!(!pods[2].pings("10.9.0.1"));
    assert_eq!(vlans(&dpu, "pf0vf0"), json!([access(100)]), "without the default VLAN");
    assert_eq!(vlans(&dpu, "pf0vf2"), json!([access(1)]));
    assert_eq!(vlans(&dpu, BRIDGE), Value::Null, "the bridge itself is in none");
    assert_eq!(dpu.netns.link(BRIDGE)["linkinfo"]["info_data"]["vlan_default_pvid"], 0);
    assert_eq!(dpu.netns.link(BRIDGE)["linkinfo"]["info_data"]["vlan_filtering"], 1);
}

#[test]
fn uplink_carries_vlans_of_its_pods() {
    let (dpu, outside) = with_uplink();
    assert_eq!(vlans(&dpu, "p0"), json!([access(1)]));
    let pods = [plug(&dpu, 0, Some(100)), plug(&dpu, 1, Some(100)), plug(&dpu, 2, None)];
    pods.iter().for_each(|pod| dpu.program(pod));
    assert_eq!(vlans(&dpu, "p0"), json!([access(1), tagged(100)]));

    // The outside peer is in the pods' VLAN, or untagged.
    outside.run("ip link add link wire name wire.100 type vlan id 100");
    outside.run("ip link set wire.100 up");
    outside.run("ip addr add 10.9.0.100/24 dev wire.100");
    pods[0].reaches("10.9.0.100");
    assert!(!pods[2].pings("10.9.0.100"));
    outside.run("ip addr add 10.9.0.200/24 dev wire");
    outside.run("ip addr del 10.9.0.100/24 dev wire.100");
    pods[2].reaches("10.9.0.200");
    assert!(!pods[0].pings("10.9.0.200"));

    dpu.netns.run("ip link set p0 nomaster");
    dpu.prepare().unwrap();
    assert_eq!(vlans(&dpu, "p0"), json!([access(1), tagged(100)]), "what returns carries all");
    for pod in &pods[..2] {
        assert_eq!(vlans(&dpu, "p0"), json!([access(1), tagged(100)]));
        dpu.fabric.leave(&dpu.representor(pod)).unwrap();
    }
    assert_eq!(vlans(&dpu, "p0"), json!([access(1)]));
}

#[test]
fn uplink_vlans_follow_concurrent_joins() {
    let (dpu, _outside) = with_uplink();
    let pods: Vec<_> = (0..8).map(|number| plug(&dpu, number, Some(100 + number))).collect();
    at_once(&pods, |pod| {
        let port = dpu.representor(pod);
        for _ in 0..10 {
            dpu.fabric.join(&port, &pod.settings).unwrap();
            dpu.fabric.leave(&port).unwrap();
        }
        if pod.settings.vf.vf < 4 {
            dpu.fabric.join(&port, &pod.settings).unwrap();
        }
    });
    let carried = [access(1), tagged(100), tagged(101), tagged(102), tagged(103)];
    assert_eq!(vlans(&dpu, "p0"), Value::from(carried.to_vec()));
}

#[test]
fn trunk_passes_only_its_tagged_vlans() {
    let (dpu, _outside) = with_uplink();
    let mut router = plug(&dpu, 0, Some(100));
    router.settings.trunk = [200, 300].into();
    let pods = [plug(&dpu, 1, Some(200)), plug(&dpu, 2, Some(400))];
    [&router].into_iter().chain(&pods).for_each(|pod| dpu.program(pod));
    assert_eq!(vlans(&dpu, "pf0vf0"), json!([access(100), tagged(200), tagged(300)]));
    let carried = json!([access(1), tagged(100), tagged(200), tagged(300), tagged(400)]);
    assert_eq!(vlans(&dpu, "p0"), carried);
    let membership = dpu.fabric.member(&dpu.representor(&router)).unwrap();
    assert_eq!(membership, Some(Membership::of(&router.settings)));

    for vlan in [200, 400] {
        router.netns.run(&format!("ip link add link eth0 name eth0.{vlan} type vlan id {vlan}"));
        router.netns.run(&format!("ip link set eth0.{vlan} up"));
    }
    router.netns.run("ip addr flush dev eth0");
    router.netns.run("ip addr add 10.9.0.1/24 dev eth0.200");
    router.reaches("10.9.0.2");
    router.netns.run("ip addr flush dev eth0.200");
    router.netns.run("ip addr add 10.9.0.1/24 dev eth0.400");
    assert!(!router.pings("10.9.0.3"), "VLAN 400 is not in the trunk");
}

#[test]
fn trunk_pod_sends_only_from_its_mac() {
    let (dpu, _outside) = with_uplink();
    let mut router = plug(&dpu, 0, Some(100));
    router.settings.trunk = [200].into();
    let pod = plug(&dpu, 1, Some(200));
    dpu.program(&router);
    dpu.program(&pod);
    let port = dpu.representor(&router);
    let mac = router.settings.mac;
    assert_eq!(dpu.fdb_macs("pf0vf0"), [mac.to_string(), mac.to_string()]);
    assert!(dpu.fabric.guard(&port, &router.settings).unwrap().in_place);

    router.netns.run("ip link add link eth0 name eth0.200 type vlan id 200");
    router.netns.run("ip link set eth0.200 up");
    router.netns.run("ip addr flush dev eth0");
    router.netns.run("ip addr add 10.9.0.1/24 dev eth0.200");
    router.reaches("10.9.0.2");
    router.netns.run("ip link set eth0.200 address 02:00:00:00:01:99");
    pod.netns.run("ip neigh flush dev eth0");
    assert!(!router.pings("10.9.0.2"), "a spoofed MAC address got through");

    dpu.netns.run(&format!("bridge fdb del {mac} dev pf0vf0 vlan 200 master static"));
    assert!(!dpu.fabric.guard(&port, &router.settings).unwrap().in_place);
}

#[test]
fn a_port_moves_to_other_vlans() {
    let (dpu, _outside) = with_uplink();
    let mut pod = plug(&dpu, 0, Some(100));
    dpu.program(&pod);
    let moves: [(Option<u16>, &[u16], Value); 4] = [
        (Some(100), &[200], json!([access(100), tagged(200)])),
        (Some(200), &[100], json!([tagged(100), access(200)])),
        (None, &[300], json!([access(1), tagged(300)])),
        (Some(300), &[], json!([access(300)])),
    ];
    for (vlan, trunk, expected) in moves {
        pod.settings.vlan = vlan;
        pod.settings.trunk = trunk.iter().copied().collect();
        dpu.program(&pod);
        assert_eq!(vlans(&dpu, "pf0vf0"), expected);
        let port = dpu.representor(&pod);
        let membership = Some(Membership::of(&pod.settings));
        assert_eq!(dpu.fabric.member(&port).unwrap(), membership);
        assert!(dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
    }
    let members = dpu.fabric.members().unwrap();
    assert_eq!(members[&dpu.representor(&pod).index], Membership::of(&pod.settings));
}

#[test]
fn existing_bridge_is_used() {
    let dpu = Dpu::new();
    // Such a bridge puts each new port into VLAN 1.
    dpu.netns.run(&format!("ip link add {BRIDGE} type bridge vlan_filtering 1"));
    dpu.prepare().unwrap();
    let pod = plug(&dpu, 0, Some(100));
    dpu.program(&pod);
    assert_eq!(vlans(&dpu, "pf0vf0"), json!([access(100)]));

    let dpu = Dpu::new();
    dpu.netns.run(&format!("ip link add {BRIDGE} type bridge"));
    let fabric = open_fabric(&dpu.netns, &[], &dpu.abilities);
    let refused = fabric.check(&pod.settings).unwrap_err().to_string();
    assert!(refused.contains("`ip link set"), "{refused}");
    let mut trunk = plug(&dpu, 1, None).settings;
    assert_eq!(fabric.check(&trunk), Ok(()));
    trunk.trunk = [200].into();
    let refused = fabric.check(&trunk).unwrap_err().to_string();
    assert!(refused.starts_with("VLAN 200 "), "{refused}");
}

#[test]
fn the_bridges_own_number_is_refused() {
    let (dpu, _outside) = with_uplink();
    let mut settings = plug(&dpu, 0, Some(1)).settings;
    let refused = dpu.fabric.check(&settings).unwrap_err().to_string();
    assert!(refused.starts_with("VLAN 1 "), "{refused}");
    (settings.vlan, settings.trunk) = (Some(2), [1].into());
    assert_eq!(dpu.fabric.check(&settings).unwrap_err().to_string(), refused);
}

#[test]
fn frames_pass_as_large_as_both_sides_take() {
    let (dpu, _outside) = with_uplink();
    let mut pods = [plug(&dpu, 0, Some(100)), plug(&dpu, 1, Some(100)), plug(&dpu, 2, Some(100))];
    for pod in &mut pods[..2] {
        pod.settings.mtu = 9000;
        pod.netns.run("ip link set eth0 mtu 9000");
    }
    pods.iter().for_each(|pod| dpu.program(pod));
    let found: Vec<_> = pods.iter().map(|pod| dpu.representor(pod).mtu).collect();
    assert_eq!(found, [9000, 9000, 1500]);
    pods[0].reaches("10.9.0.2");
    pods[0].reaches("10.9.0.3");
    let passes = |to| {
        let mut ping = std::process::Command::new("ping");
        ping.args(["-c", "1", "-W", "1", "-M", "do", "-s", "8972", to]);
        pods[0].netns.netns.run(|| ping.output().unwrap().status.success()).unwrap()
    };
    assert!(passes("10.9.0.2"));
    assert!(!passes("10.9.0.3"), "its representor takes 1500 bytes");
    let port = dpu.representor(&pods[2]);
    dpu.eswitch.set_mtu(&port, 9000).unwrap();
    let mut rtnl = pods[2].netns.rtnl();
    let vf = rtnl.link_by_name("eth0").unwrap().unwrap().index;
    rtnl.change_link(vf, &LinkChange::new().mtu(9000)).unwrap();
    assert!(passes("10.9.0.3"));
}

/// Both ports of a card lead to one switch. The bond decides which of them carries a frame.
#[test]
fn bond_uplink_survives_a_failed_member() {
    for on in On::EVERY {
        for mode in ["active-backup", "802.3ad lacp_rate fast"] {
            leads_outside_by_a_bond(on, mode);
        }
    }
}

const MEMBERS: [(&str, &str); 2] = [("p0", "wire0"), ("p1", "wire1")];

fn leads_outside_by_a_bond(on: On, mode: &str) {
    let (dpu, outside) = (Dpu::on(on, &["bond0"]), TestNetns::new());
    for (member, wire) in MEMBERS {
        let wire = VethEnd::new(wire).netns(&outside.netns);
        dpu.netns.rtnl().change(Request::add_veth(&VethEnd::new(member), &wire)).unwrap();
    }
    bond(&dpu.netns, mode, MEMBERS.map(|(member, _)| member));
    bond(&outside, mode, MEMBERS.map(|(_, wire)| wire));
    outside.run("ip addr add 10.9.0.99/24 dev bond0");
    outside.run("ip link add link bond0 name bond0.100 type vlan id 100");
    outside.run("ip link set bond0.100 up");
    outside.run("ip addr add 10.9.0.100/32 dev bond0.100");
    outside.run("ip route add 10.9.0.2/32 dev bond0.100");
    dpu.prepare().unwrap();
    let pods = [plug(&dpu, 0, None), plug(&dpu, 1, Some(100))];
    pods.iter().for_each(|pod| dpu.program(pod));
    let are_outside = || {
        pods[0].reaches("10.9.0.99");
        pods[1].reaches("10.9.0.100");
    };
    are_outside();
    assert_eq!(dpu.fabric.uplink_mtu(None), Some(1500));
    for (member, wire) in MEMBERS {
        outside.run(&format!("ip link set {wire} down"));
        wait_until("the bond does without", || !has_carrier(&dpu.netns, member));
        are_outside();
        outside.run(&format!("ip link set {wire} up"));
        wait_until("the bond has it again", || has_carrier(&dpu.netns, member));
        are_outside();
    }
}

fn bond(netns: &TestNetns, mode: &str, members: [&str; 2]) {
    netns.run(&format!("ip link add bond0 type bond miimon 20 mode {mode}"));
    for member in members {
        netns.run(&format!("ip link set {member} master bond0"));
    }
    netns.run("ip link set bond0 up");
}

/// The member's state in the bond.
fn has_carrier(netns: &TestNetns, member: &str) -> bool {
    netns.link(member)["linkinfo"]["info_slave_data"]["mii_status"] == "UP"
}

#[test]
fn filters_in_software_are_counted_as_such() {
    let (dpu, _outside) = with_uplink();
    let pod = plug(&dpu, 0, Some(100));
    dpu.program(&pod);
    let port = dpu.representor(&pod).index;
    let offloaded = || dpu.fabric.offloaded(&[port].into()).unwrap()[&port];
    assert_eq!(offloaded(), Offloaded { rules: 1, in_hardware: 0 }, "the pod's MAC address");
    let place = "dev pf0vf0 ingress pref 7 protocol ip";
    dpu.netns.run(&format!("tc filter add {place} flower src_ip 10.9.0.1 action pass"));
    let filters = dpu.netns.json(&format!("tc -j filter show {place}"));
    let is_shown = |filter: &Value| filter["options"]["not_in_hw"] == true;
    assert!(filters.as_array().unwrap().iter().any(is_shown), "{filters}");
    assert_eq!(offloaded(), Offloaded { rules: 2, in_hardware: 0 });
}
