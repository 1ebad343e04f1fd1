//! Frames that bypass the filters at a port's ingress through an ifb of the pod. On the virtual card, the kernel
//! skips the filters of the next link for them (`tc_skip_classify`, drivers/net/ifb.c).

use std::process::Command;

use serde_json::Value;
use test_clock::wait_until;

use crate::{
    guard::{BROADCAST, Ports, dishonest_frames},
    support::TestNetns,
    veth_dpu::{Capture, Dpu, On, Pod, mark},
};

/// Sends a random half of the pod's frames through an ifb. Half of those leave without another action, because only
/// for them the kernel skips no further filter (tcf_action_exec, net/sched/act_api.c).
fn send_through_ifb(pod: &Pod) {
    const BY_CHANCE: &str = "4,32 0 0 4294963256,69 0 1 1,6 0 0 4294967295,6 0 0 0";
    pod.netns.run("ip link add around type ifb");
    pod.netns.run("ip link set around up");
    pod.netns.run("tc qdisc add dev eth0 clsact");
    let mut tc = Command::new("tc");
    tc.args("filter add dev eth0 egress protocol all bpf bytecode".split(' ')).arg(BY_CHANCE);
    tc.args("flowid 1:1 action mirred egress redirect dev around".split(' '));
    assert!(pod.netns.netns.run(|| tc.status().unwrap().success()).unwrap());
}

/// Whether all frames that entered the ifb have left it. The ifb drops its own frames.
fn is_drained(netns: &TestNetns) -> bool {
    let links = netns.json("ip -s -j link show dev around");
    let count = |way: &str, what: &str| links[0]["stats64"][way][what].as_u64().unwrap();
    count("tx", "packets") > 0
        && count("rx", "packets") == count("tx", "packets") + count("rx", "dropped")
}

/// How often each dishonest frame is sent, so that some copies take the ifb.
const TIMES: usize = 16;

/// The number of the first pod's dishonest frames that arrive outside.
fn arriving_outside(ports: &Ports) -> usize {
    let [pod, other] = &ports.pods;
    let capture = Capture::of(&ports.outside);
    let frames = dishonest_frames();
    for (number, frame) in frames.iter().enumerate() {
        (0..TIMES).for_each(|_| pod.sends_frame(&frame.marked(mark(number))));
    }
    wait_until("the ifb has sent all", || is_drained(&pod.netns));
    let last = mark(frames.len());
    other.sends(BROADCAST, &[], last);
    let arrived = capture.marks_until(last);
    assert_eq!(arrived.last(), Some(&last), "nothing arrives at all");
    arrived.len() - 1
}

#[test]
fn frames_by_an_ifb_are_dropped() {
    On::EVERY.into_iter().for_each(stops_frames_by_an_ifb);
}

fn stops_frames_by_an_ifb(on: On) {
    let ports = Ports::on(on);
    send_through_ifb(&ports.pods[0]);
    assert_eq!(arriving_outside(&ports), 0, "{on:?}");
    ports.pods[0].netns.run("tc qdisc del dev eth0 clsact");
    ports.pods[0].reaches("10.9.0.2");
}

/// The families of nftables' tables.
fn tables(dpu: &Dpu) -> Vec<String> {
    let listed = dpu.netns.json("nft -j list tables");
    let all = listed["nftables"].as_array().unwrap().clone();
    let family = |object: &Value| Some(object["table"]["family"].as_str()?.to_owned());
    let mut families: Vec<_> = all.iter().filter_map(family).collect();
    families.sort();
    families
}

#[test]
fn rules_against_bypass_are_missed_and_set_again() {
    let ports = Ports::on(On::Bridge);
    let pod = &ports.pods[0];
    let is_in_place = || {
        let port = ports.dpu.representor(pod);
        ports.dpu.fabric.guard(&port, &pod.settings).unwrap().in_place
    };
    assert!(is_in_place());
    assert_eq!(tables(&ports.dpu), ["bridge", "netdev"]);
    for damage in [
        "nft flush ruleset",
        "nft delete table bridge dpu-offload-ports",
        "nft flush table bridge dpu-offload-ports",
        "nft flush set bridge dpu-offload-ports ports",
        "nft delete chain netdev dpu-offload-ports pf0vf0",
        "nft flush chain netdev dpu-offload-ports pf0vf0",
        "nft delete element bridge dpu-offload-ports ports { pf0vf0 }",
        "nft add rule netdev dpu-offload-ports pf0vf0 counter",
        "nft flush chain netdev dpu-offload-ports pf0vf0; add rule netdev dpu-offload-ports pf0vf0 counter",
        "nft flush chain netdev dpu-offload-ports pf0vf0; add rule netdev dpu-offload-ports pf0vf0 meta mark set 1",
        "nft flush chain bridge dpu-offload-ports bypass; add rule bridge dpu-offload-ports bypass counter; \
         add rule bridge dpu-offload-ports bypass counter",
        "nft add chain netdev dpu-offload-ports pf0vf0 { policy drop ; }",
    ] {
        assert!(!ports.dpu.fabric.lost_rules(), "before {damage}");
        ports.dpu.netns.run(damage);
        assert!(ports.dpu.fabric.lost_rules(), "{damage}");
        assert!(!is_in_place(), "{damage}");
        ports.dpu.program(pod);
        assert!(is_in_place(), "{damage}");
        pod.reaches("10.9.0.2");
    }
    send_through_ifb(pod);
    assert_eq!(arriving_outside(&ports), 0);
}

#[test]
fn a_port_that_comes_again_has_its_rules() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (pod, other) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&pod);
    dpu.program(&other);
    pod.reaches("10.9.0.2");
    dpu.netns.run("ip link del pf0vf0");
    dpu.plug_into(&pod);
    dpu.program(&pod);
    pod.reaches("10.9.0.2");
    assert!(dpu.fabric.guard(&dpu.representor(&pod), &pod.settings).unwrap().in_place);
    dpu.fabric.leave(&dpu.representor(&pod)).unwrap();
    dpu.program(&pod);
    pod.reaches("10.9.0.2");
}
