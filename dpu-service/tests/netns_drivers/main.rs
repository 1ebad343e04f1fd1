//! The veth eswitch and the bridge fabric against the kernel, looked at with `ip`, `bridge`, `tc` and
//! `ping`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../crates/netlink/tests/support/mod.rs"]
mod support;
mod veth_dpu;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use dpu_service::{
    driver::Fault,
    eswitch::Eswitch,
    fabric::{Fabric, Membership},
    model::{Bandwidth, PortSettings},
};
use netlink::{LinkChange, MacAddress, Request, VethEnd};
use serde_json::Value;
use support::TestNetns;
use veth_dpu::{BRIDGE, Capture, Dpu, Pod, at_once, can, mark, open_fabric};

#[test]
fn pods_reach_each_other_in_both_families() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    one.reaches("fd09::2");
    assert_eq!(dpu.stations("pf0vf0"), ["02:00:00:00:01:00"]);
    let port = dpu.bridge_port("pf0vf0");
    assert_eq!(
        (&port["learning"], &port["locked"], &port["flood"]),
        (&false.into(), &true.into(), &false.into())
    );
    assert_eq!(port["state"], "forwarding");
}

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
fn what_was_probed_is_told_with_its_limits() {
    let capabilities = Dpu::new().fabric.capabilities();
    let told = capabilities.iter().find(|told| told.name == "anti-spoofing").unwrap();
    assert!(told.available);
    for word in ["MAC addresses only", "veth pair", "card that offloads the bridge may refuse"] {
        assert!(told.detail.contains(word), "{told:?}");
    }
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

#[test]
fn the_readings_follow_the_kernel() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    assert!(!dpu.fabric.anti_spoofing(&port, &pod.settings).unwrap().in_place);
    assert_eq!(dpu.fabric.member(&port).unwrap(), None);

    dpu.program(&pod);
    assert!(dpu.fabric.anti_spoofing(&port, &pod.settings).unwrap().in_place);
    let free = PortSettings { anti_spoofing: false, ..pod.settings.clone() };
    assert!(!dpu.fabric.anti_spoofing(&port, &free).unwrap().in_place);
    let mac: MacAddress = "02:00:00:00:01:77".parse().unwrap();
    let other = PortSettings { mac, ..pod.settings.clone() };
    assert!(!dpu.fabric.anti_spoofing(&port, &other).unwrap().in_place);
    assert_eq!(dpu.fabric.member(&port).unwrap(), Some(Membership::default()));
    assert_eq!(Vec::from_iter(dpu.fabric.members().unwrap().into_keys()), [port.index]);

    dpu.netns.run("bridge link set dev pf0vf0 locked off");
    assert!(!dpu.fabric.anti_spoofing(&port, &pod.settings).unwrap().in_place);
    dpu.program(&pod);
    dpu.netns.run("bridge fdb add 02:00:00:00:01:77 dev pf0vf0 master static");
    assert!(!dpu.fabric.anti_spoofing(&port, &pod.settings).unwrap().in_place);
    dpu.program(&pod);
    assert_eq!(dpu.stations("pf0vf0"), [pod.settings.mac.to_string()]);

    dpu.fabric.clear_anti_spoofing(&port).unwrap();
    assert!(dpu.fabric.anti_spoofing(&port, &free).unwrap().in_place);
    dpu.fabric.leave(&port).unwrap();
    assert_eq!(dpu.netns.link("pf0vf0")["master"], Value::Null);
    assert_eq!(dpu.fabric.member(&port).unwrap(), None);
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
fn rates_towards_the_pod_are_limited() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    let limited = Bandwidth { ingress_rate: 10_000_000, ..Bandwidth::default() };
    for _ in 0..2 {
        dpu.eswitch.set_rate(&port, &limited).unwrap();
        let queue = dpu.netns.json("tc -j qdisc show dev pf0vf0")[0].clone();
        assert_eq!((&queue["kind"], &queue["options"]["rate"]), (&"tbf".into(), &1_250_000.into()));
    }
    assert!(dpu.eswitch.rate(&port, &limited).unwrap().in_place);
    assert!(!dpu.eswitch.rate(&port, &Bandwidth::default()).unwrap().in_place);
    let fast = Bandwidth { ingress_rate: 100_000_000_000, ..Bandwidth::default() };
    dpu.eswitch.set_rate(&port, &fast).unwrap();
    assert!(dpu.eswitch.rate(&port, &fast).unwrap().in_place);

    for _ in 0..2 {
        dpu.eswitch.clear_rate(&port).unwrap();
        let queue = dpu.netns.json("tc -j qdisc show dev pf0vf0")[0].clone();
        assert_ne!(queue["kind"], "tbf");
    }
    assert!(dpu.eswitch.rate(&port, &Bandwidth::default()).unwrap().in_place);
}

#[test]
fn a_limited_pod_receives_no_faster() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, mut two) = (dpu.plug(0), dpu.plug(1));
    two.settings.bandwidth =
        Bandwidth { ingress_rate: 1_000_000, ingress_burst: 16_000, ..Bandwidth::default() };
    dpu.program(&one);
    dpu.program(&two);
    // 40 frames of 1428 bytes are 457 kbit: nearly half a second at 1 Mbit/s, where an unlimited
    // veth pair takes next to nothing. The queue holds 50 ms, so most of them are dropped.
    let flood = "ping -q -f -c 40 -s 1400 -W 1 10.9.0.2";
    let mut words = flood.split(' ');
    let mut ping = Command::new(words.next().unwrap());
    let output = one.netns.netns.run(|| ping.args(words).output().unwrap()).unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let sent = dpu.netns.json("tc -s -j qdisc show dev pf0vf1")[0].clone();
    let held_up = sent["overlimits"].as_u64().unwrap();
    assert!(held_up > 0, "{sent} {report}");
}

/// The bursts that containerd and CRI-O pass with every limit, in bits.
const BURSTS_OF_RUNTIMES: [u64; 2] = [4_294_967_295, 34_359_738_359];

#[test]
fn a_burst_is_no_queue_and_no_way_around_the_limit() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, mut two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    two.settings.mtu = 9000;
    two.netns.run("ip link set eth0 mtu 9000");
    let rates = [64_000, 1_000_000, 10_000_000, 1_000_000_000, 40_000_000_000];
    for (rate, burst) in rates.iter().flat_map(|rate| BURSTS_OF_RUNTIMES.map(|b| (*rate, b))) {
        let bandwidth =
            Bandwidth { ingress_rate: rate, ingress_burst: burst, ..Bandwidth::default() };
        two.settings.bandwidth = bandwidth;
        dpu.program(&two);
        let queue = &dpu.netns.json("tc -j qdisc show dev pf0vf1")[0]["options"].clone();
        // What the kernel needs, is frames that fit; it tells a burst rounded.
        let few_frames = 2 * 9018;
        let at_most = |ms: u64| (rate / 8 * ms / 1000).max(few_frames) * 101 / 100;
        let burst = queue["burst"].as_u64().unwrap();
        assert!((9018..=at_most(100)).contains(&burst), "{rate}: {queue}");
        // It tells a queue that is larger than the burst by how long the rest of it waits.
        let rest = |latency: &Value| rate / 8 * latency.as_u64().unwrap() / 1_000_000 + burst;
        let waiting = queue["limit"].as_u64().unwrap_or_else(|| rest(&queue["lat"]));
        assert!((9018..=at_most(50)).contains(&waiting), "{rate}: {queue}");
        let port = dpu.representor(&two);
        assert!(dpu.eswitch.rate(&port, &bandwidth).unwrap().in_place);
    }

    // One that somebody changed, or an earlier version made, is not as wanted.
    dpu.netns.run("tc qdisc replace dev pf0vf1 root tbf rate 40gbit burst 1g limit 1g");
    let port = dpu.representor(&two);
    assert!(!dpu.eswitch.rate(&port, &two.settings.bandwidth).unwrap().in_place);
}

#[test]
fn a_limited_pod_answers_under_a_flood() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, mut two) = (dpu.plug(0), dpu.plug(1));
    two.settings.bandwidth = Bandwidth {
        ingress_rate: 10_000_000,
        ingress_burst: BURSTS_OF_RUNTIMES[0],
        ..Bandwidth::default()
    };
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    let listener = two.netns.netns.run(|| TcpListener::bind("10.9.0.2:5001").unwrap()).unwrap();
    let mut sender = one.netns.netns.run(|| TcpStream::connect("10.9.0.2:5001").unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let begun = Instant::now();
    let flood = thread::spawn(move || while sender.write_all(&[0; 65536]).is_ok() {});
    let drain = thread::spawn(move || {
        let (mut buffer, mut received) = (vec![0; 65536], 0);
        while begun.elapsed() < Duration::from_secs(3) {
            received += receiver.read(&mut buffer).unwrap();
        }
        (received, begun.elapsed())
    });
    let (answers, slowest) = ping_times(&one, "10.9.0.2");
    let (received, elapsed) = drain.join().unwrap();
    flood.join().unwrap();
    let allowed = 10_000_000.0 / 8.0 * (elapsed.as_secs_f64() + 0.15);
    assert!((received as f64) < allowed * 1.05, "{received} bytes in {elapsed:?}");
    assert!(answers >= 5, "{answers} of 10 pings were answered");
    assert!(slowest < 200.0, "a ping took {slowest} ms");
}

/// Ten pings: how many were answered, and after how many milliseconds the slowest.
fn ping_times(from: &Pod, address: &str) -> (usize, f64) {
    let mut ping = Command::new("ping");
    ping.args(["-c", "10", "-i", "0.2", "-W", "2", address]);
    let output = from.netns.netns.run(|| ping.output().unwrap()).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let time = |line: &str| line.split("time=").nth(1)?.split(' ').next()?.parse::<f64>().ok();
    let times: Vec<_> = report.lines().filter_map(time).collect();
    (times.len(), times.into_iter().fold(0.0, f64::max))
}

#[test]
fn limits_of_what_pods_send_are_refused_by_name() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let bandwidth = Bandwidth { egress_rate: 5_000_000, ..Bandwidth::default() };
    let settings = PortSettings { bandwidth, ..pod.settings };
    let refused = dpu.eswitch.check(&settings).unwrap_err();
    assert!(refused.to_string().contains("an egress rate of 5000000 bit/s"), "{refused}");
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

#[test]
fn mtu_and_state_are_the_representors() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    dpu.eswitch.set_mtu(&port, 9000).unwrap();
    dpu.eswitch.set_up(&port, true).unwrap();
    let found = dpu.representor(&pod);
    assert_eq!((found.mtu, found.up), (9000, true));
    let link = dpu.netns.link("pf0vf0");
    assert_eq!(link["mtu"], 9000);
    assert!(link["flags"].as_array().unwrap().contains(&"UP".into()));
    dpu.eswitch.set_up(&port, false).unwrap();
    assert!(!dpu.representor(&pod).up);
}

#[test]
fn representors_are_known_by_alias_and_return_under_new_indices() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    dpu.program(&pod);
    let port = dpu.representor(&pod);

    dpu.netns.run("ip link set pf0vf0 down");
    dpu.netns.run("ip link set pf0vf0 name elsewhere");
    dpu.netns.run("ip link add pf0vf0 type veth peer name impostor");
    assert_eq!(dpu.representor(&pod).index, port.index);
    dpu.netns.run("ip link delete pf0vf0");

    dpu.netns.run("ip link delete elsewhere");
    assert_eq!(dpu.eswitch.representor(pod.settings.vf).unwrap(), None);
    assert_eq!(dpu.eswitch.representors().unwrap(), []);
    assert!(dpu.eswitch.set_mtu(&port, 1400).is_err());
    assert!(dpu.fabric.join(&port, &pod.settings).is_err());
    dpu.eswitch.clear_rate(&port).unwrap();
    dpu.fabric.clear_anti_spoofing(&port).unwrap();
    dpu.fabric.leave(&port).unwrap();

    dpu.plug_into(&pod);
    assert_ne!(dpu.representor(&pod).index, port.index);
    dpu.program(&pod);
    assert_eq!(dpu.stations("pf0vf0"), [pod.settings.mac.to_string()]);
}

#[test]
fn the_bridge_is_made_once_and_is_no_neighbour_of_the_pods() {
    let dpu = Dpu::new();
    assert!(dpu.fabric.members().is_err());
    dpu.prepare().unwrap();
    let made = dpu.netns.link(BRIDGE);
    assert_eq!(made["ifalias"], "dpu-offload fabric");
    assert_eq!(made["linkinfo"]["info_data"]["mcast_snooping"], 0);
    assert_eq!(made["linkinfo"]["info_data"]["stp_state"], 0);
    assert!(made["flags"].as_array().unwrap().contains(&"UP".into()));
    let pod = dpu.plug(0);
    dpu.program(&pod);
    let addresses = dpu.netns.json(&format!("ip -j addr show dev {BRIDGE}"));
    assert_eq!(addresses[0]["addr_info"], Value::Array(Vec::new()));

    dpu.prepare().unwrap();
    let again = open_fabric(&dpu.netns, &[], &dpu.abilities);
    again.prepare().unwrap();
    assert_eq!(dpu.netns.link(BRIDGE)["ifindex"], made["ifindex"]);
    assert_eq!(dpu.netns.link("pf0vf0")["master"], BRIDGE);
}

#[test]
fn a_link_of_the_bridges_name_that_is_none_is_refused() {
    let dpu = Dpu::new();
    dpu.netns.run(&format!("ip link add {BRIDGE} type veth peer name other"));
    let refused = dpu.prepare().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "link br-offload is no bridge: name another in fabric.bridge, or delete it"
    );
}

#[test]
fn uplinks_join_and_what_cannot_is_told_by_name() {
    let dpu = Dpu::with_uplinks(&["gone", "taken", "p0"]);
    dpu.netns.run("ip link add p0 type veth peer name wire0");
    dpu.netns.run("ip link add taken type veth peer name wire1");
    dpu.netns.run("ip link add foreign type bridge");
    dpu.netns.run("ip link set taken master foreign");
    let refused = dpu.prepare().unwrap_err();
    assert_eq!(refused.to_string(), "there is no uplink gone");
    assert_eq!(dpu.netns.link("p0")["master"], BRIDGE);
    assert_eq!(dpu.netns.link("taken")["master"], "foreign");

    dpu.netns.run("ip link add gone type veth peer name wire2");
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.starts_with("uplink taken is a port of another bridge"), "{refused}");
    assert_eq!(dpu.netns.link("gone")["master"], BRIDGE);
    dpu.netns.run("ip link set taken nomaster");
    dpu.prepare().unwrap();
}

/// tests/vm_fabric.rs has what is done where the kernel keeps VLANs apart.
#[test]
fn vlans_are_refused_by_name_where_the_kernel_cannot_keep_them_apart() {
    let dpu = Dpu::new();
    let mut settings = dpu.plug(0).settings;
    settings.vlan = Some(100);
    match dpu.fabric.check(&settings) {
        Ok(()) => assert!(can(&dpu.fabric, "vlan-filtering")),
        Err(refused) => {
            assert!(!can(&dpu.fabric, "vlan-filtering"));
            let refused = refused.to_string();
            assert!(refused.starts_with("VLAN 100 can't be done here: "), "{refused}");
        }
    }
}

#[test]
fn a_bridge_that_is_full_is_told_by_name_and_blamed_on_no_port() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    let mut rtnl = dpu.netns.rtnl();
    let bridge = rtnl.link_by_name(BRIDGE).unwrap().unwrap().index;
    // As many as fit, both ends of each pair.
    for pair in 0..512 {
        let [one, two] = [10_000, 20_000].map(|first| first + pair);
        let end = |index: u32| VethEnd::new(format!("x{index}")).index(index);
        rtnl.change(Request::add_veth(&end(one), &end(two))).unwrap();
        rtnl.change_link(one, &LinkChange::new().master(Some(bridge))).unwrap();
        if pair < 511 {
            rtnl.change_link(two, &LinkChange::new().master(Some(bridge))).unwrap();
        }
    }
    let refused = dpu.fabric.join(&dpu.representor(&pod), &pod.settings).unwrap_err();
    assert_eq!(refused.fault(), Fault::FabricFull);
    let told = "bridge br-offload takes no more ports than the 1023 that it has, pf0vf0 not among";
    assert!(refused.to_string().starts_with(told), "{refused}");
}

#[test]
fn ports_that_join_and_leave_at_once_end_where_they_were_to() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pods: Vec<_> = (0..8).map(|number| dpu.plug(number)).collect();
    let join = |pod: &Pod| {
        let port = dpu.representor(pod);
        dpu.fabric.join(&port, &pod.settings).unwrap();
        dpu.fabric.set_anti_spoofing(&port, &pod.settings).unwrap();
    };
    let leave = |pod: &Pod| dpu.fabric.leave(&dpu.representor(pod)).unwrap();
    at_once(&pods, |pod| {
        for _ in 0..10 {
            join(pod);
            leave(pod);
        }
        if pod.settings.vf.vf % 2 == 0 {
            join(pod);
        }
    });
    let members = dpu.fabric.members().unwrap();
    for pod in &pods {
        let port = dpu.representor(pod);
        let is_in = pod.settings.vf.vf % 2 == 0;
        assert_eq!(members.contains_key(&port.index), is_in, "{port:?}");
        let is_confined = dpu.fabric.anti_spoofing(&port, &pod.settings).unwrap().in_place;
        assert_eq!(is_confined, is_in, "{port:?}");
    }
}

#[test]
fn a_representor_is_not_taken_from_another_bridge() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    dpu.netns.run("ip link add theirs type bridge");
    dpu.netns.run("ip link set pf0vf0 master theirs");
    let refused = dpu.fabric.join(&dpu.representor(&pod), &pod.settings).unwrap_err();
    let told = "representor pf0vf0 is a port of theirs: take it out first";
    assert_eq!(refused.to_string(), told);
    dpu.fabric.leave(&dpu.representor(&pod)).unwrap();
    assert_eq!(dpu.netns.link("pf0vf0")["master"], "theirs");

    // One that this service made under another name is its own.
    let mut rtnl = dpu.netns.rtnl();
    let theirs = rtnl.link_by_name("theirs").unwrap().unwrap().index;
    rtnl.change_link(theirs, &LinkChange::new().alias("dpu-offload fabric")).unwrap();
    dpu.program(&pod);
    assert_eq!(dpu.netns.link("pf0vf0")["master"], BRIDGE);
}
