//! What a pod may send, and who hears it.

use dpu_service::fabric::Fabric;
use netlink::{Request, VethEnd};
use serde_json::Value;

use crate::{
    support::TestNetns,
    veth_dpu::{BRIDGE, Capture, Dpu, Pod, mark},
};

#[test]
fn frames_from_another_mac_are_dropped_unless_allowed() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (mut one, two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    one.netns.run("ip link set eth0 address 02:00:00:00:01:99");
    two.netns.run("ip neigh flush dev eth0");
    assert!(!one.pings("10.9.0.2"), "a spoofed MAC address got through");

    one.settings.anti_spoofing = false;
    dpu.program(&one);
    one.reaches("10.9.0.2");
    assert_eq!(dpu.stations("pf0vf0"), [""; 0]);
}

#[test]
fn a_port_that_is_confined_forgets_the_stations_it_has_learnt() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (mut one, two) = (dpu.plug(0), dpu.plug(1));
    one.settings.anti_spoofing = false;
    dpu.program(&one);
    dpu.program(&two);
    one.netns.run("ip link set eth0 address 02:00:00:00:01:99");
    one.reaches("10.9.0.2");
    let learnt = || {
        let entries = dpu.netns.json("bridge -j fdb show dev pf0vf0");
        let is_it = |entry: &Value| entry["mac"] == "02:00:00:00:01:99";
        entries.as_array().unwrap().iter().any(is_it)
    };
    assert!(learnt());

    one.settings.anti_spoofing = true;
    dpu.program(&one);
    assert!(!learnt());
    assert!(!one.pings("10.9.0.2"), "a station that was learnt before still passes");

    // Somebody else's station that came in between is found, and goes likewise.
    let port = dpu.representor(&one);
    assert!(dpu.fabric.anti_spoofing(&port, &one.settings).unwrap().in_place);
    dpu.netns.run("bridge fdb add 02:00:00:00:01:99 dev pf0vf0 master dynamic");
    let reading = dpu.fabric.anti_spoofing(&port, &one.settings).unwrap();
    assert_eq!((reading.in_place, reading.detail.contains("02:00:00:00:01:99")), (false, true));
    dpu.program(&one);
    assert!(dpu.fabric.anti_spoofing(&port, &one.settings).unwrap().in_place);
}

#[test]
fn a_pod_cannot_take_its_neighbours_frames() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    let thief = dpu.plug(2);
    dpu.program(&thief);
    thief.netns.run("ip link set eth0 address 02:00:00:00:01:01");
    thief.pings("10.9.0.1");
    assert_eq!(dpu.stations("pf0vf2"), ["02:00:00:00:01:02"]);
    one.reaches("10.9.0.2");
}

/// A DPU whose uplink leads to `outside`, with two pods that reach each other.
struct Ports {
    dpu: Dpu,
    outside: TestNetns,
    pods: [Pod; 2],
}

impl Ports {
    fn new() -> Self {
        let (dpu, outside) = (Dpu::with_uplinks(&["p0"]), TestNetns::new());
        let wire = VethEnd::new("wire").netns(&outside.netns);
        dpu.netns.rtnl().change(Request::add_veth(&VethEnd::new("p0"), &wire)).unwrap();
        outside.run("ip link set wire up");
        outside.run("ip addr add 10.9.0.99/24 dev wire");
        dpu.prepare().unwrap();
        let pods = [dpu.plug(0), dpu.plug(1)];
        pods.iter().for_each(|pod| dpu.program(pod));
        pods[0].reaches("10.9.0.2");
        pods[0].reaches("10.9.0.99");
        Self { dpu, outside, pods }
    }

    /// Which of these frames to groups, each with its tags, of the first pod's arrive. They do so at the
    /// second pod and outside alike.
    fn arriving(&self, frames: &[([u8; 6], &[[u8; 4]])]) -> Vec<usize> {
        let captures = [&self.pods[1].netns, &self.outside].map(Capture::of);
        for (number, (group, tags)) in frames.iter().enumerate() {
            self.pods[0].sends(*group, tags, mark(number));
        }
        let last = mark(frames.len());
        self.pods[0].sends(BROADCAST, &[], last);
        let [inside, outside] = captures.map(|capture| capture.marks_until(last));
        assert_eq!(inside.last(), Some(&last), "nothing arrives at all");
        assert_eq!(inside, outside);
        (0..frames.len()).filter(|number| inside.contains(&mark(*number))).collect()
    }
}

const BROADCAST: [u8; 6] = [0xff; 6];

#[test]
fn what_a_pod_sends_to_link_local_groups_leaves_no_port() {
    let mut ports = Ports::new();
    // As somebody may have it, for LLDP and the like: the kernel alone drops them no more.
    ports.dpu.netns.run(&format!("ip link set {BRIDGE} type bridge group_fwd_mask 0xfff8"));
    let ieee = (0..16).map(|last| [0x01, 0x80, 0xc2, 0, 0, last]);
    let cisco = [0xcc, 0xcd].map(|last| [0x01, 0, 0x0c, 0xcc, 0xcc, last]);
    let dropped: Vec<_> = ieee.chain(cisco).collect();
    let neighbours = [
        [0x01, 0x80, 0xc2, 0, 0, 0x10],
        [0x01, 0x80, 0xc2, 0, 1, 0],
        [0x01, 0, 0x0c, 0xcc, 0xcc, 0xce],
        [0x01, 0, 0x5e, 0, 0, 0x05],
        [0x33, 0x33, 0, 0, 0, 0x05],
    ];
    let frames: Vec<_> = dropped.iter().chain(&neighbours).map(|to| (*to, &[][..])).collect();
    let rest: Vec<_> = (dropped.len()..frames.len()).collect();
    assert_eq!(ports.arriving(&frames), rest);

    // Neither does a network that trusts its pods' MAC addresses let them speak as a switch.
    ports.pods[0].settings.anti_spoofing = false;
    ports.dpu.program(&ports.pods[0]);
    assert_eq!(ports.arriving(&frames), rest);
}

#[test]
fn tagged_frames_of_a_pod_without_a_trunk_leave_no_port() {
    let ports = Ports::new();
    let frames: [(_, &[[u8; 4]]); 7] = [
        (BROADCAST, &[]),
        (BROADCAST, &[[0x81, 0, 0, 100]]),
        (BROADCAST, &[[0x81, 0, 0, 1]]),
        (BROADCAST, &[[0x88, 0xa8, 0, 100]]),
        (BROADCAST, &[[0x81, 0, 0, 0], [0x81, 0, 0, 100]]),
        (BROADCAST, &[[0x81, 0, 0, 0], [0x88, 0xa8, 0, 100]]),
        // A priority, and no VLAN.
        (BROADCAST, &[[0x81, 0, 0xa0, 0]]),
    ];
    assert_eq!(ports.arriving(&frames), [0, 6]);
}

#[test]
fn a_frame_filter_that_somebody_takes_away_is_missed() {
    let Ports { dpu, pods: [mut pod, _], .. } = Ports::new();
    let is_in_place = |pod: &Pod| {
        let reading = dpu.fabric.frame_filter(&dpu.representor(pod), &pod.settings).unwrap();
        reading.in_place
    };
    assert!(is_in_place(&pod));
    let filters = || dpu.netns.json("tc -j filter show dev pf0vf0 ingress");
    let shown = filters().to_string();
    assert!(shown.contains("\"bpf\"") && shown.contains("direct-action"), "{shown}");
    for damage in ["tc qdisc del dev pf0vf0 clsact", "tc filter del dev pf0vf0 ingress"] {
        dpu.netns.run(damage);
        assert!(!is_in_place(&pod), "{damage}");
        dpu.program(&pod);
        assert!(is_in_place(&pod), "{damage}");
    }
    pod.settings.trunk = [200].into();
    assert!(!is_in_place(&pod), "a trunk takes tags");

    for _ in 0..2 {
        dpu.fabric.clear_frame_filter(&dpu.representor(&pod)).unwrap();
        assert!(!filters().to_string().contains("bpf"));
    }
}

#[test]
fn pods_hear_nothing_of_the_dpus_own() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    dpu.program(&pod);
    let addresses = dpu.netns.json("ip -j -6 addr show dev pf0vf0");
    let is_silent = |link: &Value| link["addr_info"].as_array().is_none_or(Vec::is_empty);
    assert!(addresses.as_array().unwrap().iter().all(is_silent), "{addresses}");
}
