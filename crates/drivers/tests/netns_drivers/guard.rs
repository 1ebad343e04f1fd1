//! What a pod can send, and which ports receive it.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    time::Duration,
};

use bootstrap::Chain;
use model::AntiSpoofing;
use netlink::{Request, VethEnd};
use serde_json::Value;

use crate::{
    frames::{Frame, LLC_ARP, LLC_IP, SNAP},
    support::TestNetns,
    traffic::with_two_pods,
    veth_dpu::{BRIDGE, Capture, Dpu, On, Pod, addresses_of, mark},
};

#[test]
fn frames_from_another_mac_are_dropped_unless_allowed() {
    On::EVERY.into_iter().for_each(drops_frames_from_another_mac);
}

fn drops_frames_from_another_mac(on: On) {
    let dpu = Dpu::on(on, &[]);
    dpu.prepare().unwrap();
    let (mut one, two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    one.netns.run("ip link set eth0 address 02:00:00:00:01:99");
    two.netns.run("ip neigh flush dev eth0");
    assert!(!one.pings("10.9.0.2"), "a spoofed MAC address got through");

    one.settings.anti_spoofing = AntiSpoofing::Off;
    dpu.program(&one);
    one.reaches("10.9.0.2");
    if on == On::Bridge {
        assert_eq!(dpu.fdb_macs("pf0vf0"), [""; 0]);
    }
}

#[test]
fn port_with_static_entry_drops_learned_ones() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (mut one, two) = (dpu.plug(0), dpu.plug(1));
    one.settings.anti_spoofing = AntiSpoofing::Off;
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

    one.settings.anti_spoofing = AntiSpoofing::Full;
    dpu.program(&one);
    assert!(!learnt());
    assert!(!one.pings("10.9.0.2"), "a MAC address that was learnt before still passes");

    // A learned entry that came in between is detected, and removed as well.
    let port = dpu.representor(&one);
    assert!(dpu.fabric.guard(&port, &one.settings).unwrap().in_place);
    dpu.netns.run("bridge fdb add 02:00:00:00:01:99 dev pf0vf0 master dynamic");
    let reading = dpu.fabric.guard(&port, &one.settings).unwrap();
    assert_eq!((reading.in_place, reading.detail.contains("02:00:00:00:01:99")), (false, true));
    dpu.program(&one);
    assert!(dpu.fabric.guard(&port, &one.settings).unwrap().in_place);
}

#[test]
fn a_pod_cannot_take_its_neighbours_frames() {
    On::EVERY.into_iter().for_each(keeps_neighbours_frames);
}

fn keeps_neighbours_frames(on: On) {
    let dpu = Dpu::on(on, &[]);
    dpu.prepare().unwrap();
    let (one, two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    let thief = dpu.plug(2);
    dpu.program(&thief);
    thief.netns.run("ip link set eth0 address 02:00:00:00:01:01");
    thief.pings("10.9.0.1");
    if on == On::Bridge {
        assert_eq!(dpu.fdb_macs("pf0vf2"), ["02:00:00:00:01:02"]);
    }
    one.reaches("10.9.0.2");
}

/// A DPU with an uplink to `outside`, and two pods that reach each other.
pub(crate) struct Ports {
    pub(crate) dpu: Dpu,
    pub(crate) outside: TestNetns,
    pub(crate) pods: [Pod; 2],
}

impl Ports {
    fn new() -> Self {
        Self::on(On::Bridge)
    }

    pub(crate) fn on(on: On) -> Self {
        let (dpu, outside) = (Dpu::on(on, &["p0"]), TestNetns::new());
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

    /// Programs the first pod's port again.
    fn program(&mut self) {
        self.dpu.program(&self.pods[0]);
        self.dpu.forget_decisions();
    }

    /// The indices of the first pod's frames to groups that arrive. Each frame has its tags.
    fn arriving(&self, frames: &[([u8; 6], &[[u8; 4]])]) -> Vec<usize> {
        let send = |number: usize| {
            let (group, tags) = frames[number];
            self.pods[0].sends(group, tags, mark(number));
        };
        self.arriving_of(frames.len(), send)
    }

    /// The indices of the first pod's frames that arrive.
    fn arriving_frames(&self, frames: &[Frame]) -> Vec<usize> {
        let send = |number: usize| self.pods[0].sends_frame(&frames[number].marked(mark(number)));
        self.arriving_of(frames.len(), send)
    }

    /// The indices of the first pod's frames that arrive. `send` sends each frame with its number as the mark. The
    /// second pod and the outside must receive the same ones.
    fn arriving_of(&self, count: usize, send: impl Fn(usize)) -> Vec<usize> {
        let captures = [&self.pods[1].netns, &self.outside].map(Capture::of);
        (0..count).for_each(send);
        let last = mark(count);
        self.pods[0].sends(BROADCAST, &[], last);
        let [inside, outside] = captures.map(|capture| capture.marks_until(last));
        assert_eq!(inside.last(), Some(&last), "nothing arrives at all");
        assert_eq!(inside, outside);
        (0..count).filter(|number| inside.contains(&mark(*number))).collect()
    }
}

pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

#[test]
fn frames_to_link_local_groups_are_dropped() {
    On::EVERY.into_iter().for_each(leaves_no_port_to_link_local_groups);
}

fn leaves_no_port_to_link_local_groups(on: On) {
    let mut ports = Ports::on(on);
    // Administrators set this for LLDP: the bridge then forwards these frames.
    match on {
        On::Bridge => {
            let set = format!("ip link set {BRIDGE} type bridge group_fwd_mask 0xfff8");
            ports.dpu.netns.run(&set);
        }
        On::OpenVswitch => {
            let set = format!("set bridge {BRIDGE} other_config:forward-bpdu=true");
            ports.dpu.vswitch().vsctl(&set);
        }
    }
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

    // A network that trusts its pods' MAC addresses does not let them speak as a switch either.
    ports.pods[0].settings.anti_spoofing = AntiSpoofing::Off;
    ports.program();
    assert_eq!(ports.arriving(&frames), rest);
}

#[test]
fn tagged_frames_need_a_trunk() {
    let frames: [(_, &[[u8; 4]]); 8] = [
        (BROADCAST, &[]),
        (BROADCAST, &[[0x81, 0, 0, 100]]),
        (BROADCAST, &[[0x81, 0, 0, 1]]),
        (BROADCAST, &[[0x88, 0xa8, 0, 100]]),
        (BROADCAST, &[[0x81, 0, 0, 0], [0x81, 0, 0, 100]]),
        (BROADCAST, &[[0x81, 0, 0, 0], [0x88, 0xa8, 0, 100]]),
        (BROADCAST, &[[0x91, 0, 0, 100]]),
        // A priority tag without a VLAN.
        (BROADCAST, &[[0x81, 0, 0xa0, 0]]),
    ];
    for on in On::EVERY {
        assert_eq!(Ports::on(on).arriving(&frames), [0, 7]);
    }
}

#[test]
fn removed_guard_is_detected() {
    let Ports { dpu, pods: [mut pod, _], .. } = Ports::new();
    let is_in_place = |pod: &Pod| {
        let reading = dpu.fabric.guard(&dpu.representor(pod), &pod.settings).unwrap();
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
    let others = "tc filter add dev pf0vf0 ingress pref 1 protocol all handle 2 bpf da bytecode";
    let mut tc = Command::new("tc");
    tc.args(others.split(' ').skip(1)).arg("1,6 0 0 0");
    assert!(dpu.netns.netns.run(|| tc.status().unwrap().success()).unwrap());
    assert!(!is_in_place(&pod), "another program's filter runs before the service's");
    dpu.program(&pod);
    assert!(is_in_place(&pod));
    assert!(filters().to_string().contains("\"handle\":\"0x2\""), "{}", filters());
    dpu.netns.run("tc filter del dev pf0vf0 ingress pref 1 protocol all handle 2 bpf");
    let other_kind =
        "tc filter add dev pf0vf0 ingress pref 1 protocol all u32 match u32 0 0 flowid 1:1";
    dpu.netns.run("tc filter del dev pf0vf0 ingress");
    dpu.netns.run(other_kind);
    let port = dpu.representor(&pod);
    let refused = Chain(&dpu.fabric.set_guard(&port, &pod.settings).unwrap_err()).to_string();
    assert!(refused.contains("pf0vf0: "), "{refused}");
    assert!(refused.contains("does not match existing one"), "{refused}");
    assert!(!is_in_place(&pod));
    dpu.netns.run("tc filter del dev pf0vf0 ingress");
    dpu.program(&pod);
    pod.settings.trunk = [200].into();
    assert!(!is_in_place(&pod), "a trunk takes tags");

    for _ in 0..2 {
        dpu.fabric.leave(&dpu.representor(&pod)).unwrap();
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

/// The first pod's MAC address, the second pod's, a router's, and an address that the network's pods share.
const OWN: &str = "02:00:00:00:01:00";
const OTHERS: &str = "02:00:00:00:01:01";
const SHARED_MAC: &str = "00:00:5e:00:01:07";
const SHARED: &str = "10.9.0.7";

/// A UDP socket in a pod's or the DPU's namespace.
fn udp_socket(netns: &TestNetns, address: SocketAddr) -> UdpSocket {
    let socket = netns.netns.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[test]
fn a_server_of_dhcp_is_found_in_fragments() {
    On::EVERY.into_iter().for_each(finds_dhcp_in_fragments);
}

fn finds_dhcp_in_fragments(on: On) {
    let (_dpu, pods) = with_two_pods(on);
    pods[0].reaches("fd09::2");
    // Open vSwitch's userspace datapath passes on what a card would have summed up.
    pods[0].netns.run("ethtool -K eth0 tx off");
    let [from, to] = [addresses_of(0), addresses_of(1)];
    for (family, server, client) in [(0, 67, 68), (1, 547, 546)] {
        let socket =
            |pod: &Pod, address: IpAddr, port| udp_socket(&pod.netns, (address, port).into());
        let (server, client) =
            (socket(&pods[0], from[family], server), socket(&pods[1], to[family], client));
        let (honest, hears) =
            (socket(&pods[0], from[family], 9000), socket(&pods[1], to[family], 9000));
        for length in [100, 4000] {
            server.send_to(&vec![1; length], client.local_addr().unwrap()).unwrap();
            honest.send_to(&vec![2; length], hears.local_addr().unwrap()).unwrap();
            let heard = hears.recv(&mut [0; 8000]).map_err(|error| error.kind());
            assert_eq!(heard, Ok(length), "{on:?}");
            client.set_nonblocking(true).unwrap();
            let heard = client.recv(&mut [0; 8000]).map_err(|error| error.kind());
            assert_eq!(heard, Err(ErrorKind::WouldBlock), "{on:?}: {length} bytes of a server");
        }
    }
}

#[test]
fn pods_reach_no_program_of_the_dpu() {
    On::EVERY.into_iter().for_each(hides_the_dpu_from_pods);
}

fn hides_the_dpu_from_pods(on: On) {
    let (dpu, pods) = with_two_pods(on);
    dpu.netns.run("ip addr add 192.0.2.1/32 dev lo");
    let program = udp_socket(&dpu.netns, ([192, 0, 2, 1], 9000).into());
    let pod = udp_socket(&pods[0].netns, (addresses_of(0)[0], 9000).into());
    pods[0].netns.run("ip route add 192.0.2.1 dev eth0");
    let bridge = dpu.netns.link(BRIDGE)["address"].as_str().unwrap().to_owned();
    let representor = dpu.netns.link("pf0vf0")["address"].as_str().unwrap().to_owned();
    for mac in [&*bridge, &representor, "ff:ff:ff:ff:ff:ff"] {
        let neighbour = format!("192.0.2.1 lladdr {mac} nud permanent dev eth0");
        pods[0].netns.run(&format!("ip neigh replace {neighbour}"));
        pod.send_to(&[1], program.local_addr().unwrap()).unwrap();
        pods[0].reaches("10.9.0.2");
        program.set_nonblocking(true).unwrap();
        let heard = program.recv(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(heard, Err(ErrorKind::WouldBlock), "{on:?}: a frame to {mac}");
    }
    pods[0].netns.run("ip neigh del 192.0.2.1 dev eth0");
    assert!(!pods[0].pings("192.0.2.1"));
    let found = pods[0].netns.json("ip -j neigh show to 192.0.2.1 dev eth0");
    assert!(found[0]["lladdr"].is_null(), "{on:?}: a reply came in the DPU's name: {found}");
}

/// Frames that a pod needs to send and that pass the guard.
fn honest_frames() -> Vec<Frame> {
    let own = Frame::from(OWN);
    let link_local = "fe80::ff:fe00:100";
    vec![
        own.udp("10.9.0.1", (5000, 53)),
        own.udp("10.9.0.1", (5000, 53)).with_ipv4_options(),
        own.udp("fd09::1", (5000, 53)),
        own.udp(link_local, (5353, 5353)),
        own.arp((OWN, "10.9.0.1"), "10.9.0.2"),
        own.arp((OWN, "10.9.0.1"), "10.9.0.1"),
        own.arp((OWN, "0.0.0.0"), "10.9.0.1"),
        own.icmpv6("fd09::1", 128, "::"),
        own.icmpv6("fd09::1", 135, "fd09::2"),
        own.icmpv6("fd09::1", 136, "fd09::1"),
        own.icmpv6("fd09::1", 136, "fd09::1").with_option(2, OWN),
        own.icmpv6("fd09::1", 135, "fd09::2").with_option(1, OWN),
        own.icmpv6("::", 135, "fd09::1").with_option(14, OTHERS),
        own.icmpv6("fd09::1", 128, "::").sent_as_neighbours_do().behind(44),
        own.of_ipv4("0.0.0.0", 2, &[0x22; 8]),
        own.of_ipv4("10.9.0.1", 1, &[8; 8]),
        own.icmpv6(link_local, 136, link_local),
        own.icmpv6("::", 135, "fd09::1"),
        own.icmpv6("::", 133, "::"),
        own.icmpv6("::", 143, "::").behind(0),
        own.icmpv6(link_local, 143, "::").behind(0),
        own.udp("0.0.0.0", (68, 67)),
        own.udp("10.9.0.1", (68, 67)),
        own.udp("fd09::1", (547, 547)).behind(44),
        own.icmpv6("fd09::1", 128, "::").behind(60),
        own.of_type(0x88b5),
    ]
}

/// A router solicitation with a link address, which Open vSwitch does not read.
fn question_for_routers() -> Frame {
    Frame::from(OWN).icmpv6("fe80::ff:fe00:100", 133, "::").with_option(1, OWN)
}

/// Frames by which a pod claims another device's address or role.
pub(crate) fn dishonest_frames() -> Vec<Frame> {
    let own = Frame::from(OWN);
    vec![
        own.udp("10.9.0.2", (5000, 53)),
        own.udp("10.9.0.2", (5000, 53)).with_ipv4_options(),
        own.udp("0.0.0.0", (5000, 53)),
        own.udp("fd09::2", (5000, 53)),
        own.udp("fd09::1:0:0:1", (5000, 53)),
        own.udp("fe80::1", (5000, 53)),
        own.udp("::", (5000, 53)),
        // To a pod's other address or an unused one, and to the pod's own MAC address.
        own.arp((OWN, "10.9.0.2"), "10.9.0.1"),
        own.arp((OTHERS, "10.9.0.1"), "10.9.0.2"),
        own.arp((OWN, "10.9.0.99"), "10.9.0.99"),
        own.arp((OWN, "0.0.0.0"), "10.9.0.2"),
        own.icmpv6("fd09::1", 136, "fd09::2"),
        own.icmpv6("fd09::2", 136, "fd09::2"),
        own.icmpv6("::", 135, "fd09::2"),
        own.icmpv6("fe80::1", 134, "::"),
        own.icmpv6("fe80::ff:fe00:100", 134, "::"),
        own.icmpv6("fe80::ff:fe00:100", 137, "::"),
        own.icmpv6("::", 128, "::"),
        own.icmpv6("fe80::ff:fe00:100", 134, "::").behind(0),
        own.icmpv6("fe80::ff:fe00:100", 134, "::").behind(60),
        own.icmpv6("fd09::1", 136, "fd09::2").with_code(1),
        own.icmpv6("fd09::1", 136, "fd09::2").behind(43),
        own.icmpv6("fd09::1", 136, "fd09::2").behind(44),
        own.icmpv6("fd09::1", 136, "fd09::2").behind(60).behind(60),
        own.icmpv6("fd09::1", 136, "fd09::1").with_option(2, OTHERS),
        own.icmpv6("fd09::1", 135, "fd09::2").with_option(1, OTHERS),
        own.icmpv6("fd09::1", 135, "fd09::2").with_option(1, OWN).with_option(1, OTHERS),
        own.icmpv6("fe80::ff:fe00:100", 133, "::").with_option(1, OTHERS),
        own.icmpv6("fd09::1", 136, "fd09::1").with_option(2, OWN).with_option(2, OTHERS),
        own.icmpv6("fd09::1", 136, "fd09::1").with_option(14, OWN).with_option(2, OTHERS),
        own.of_ipv4("10.9.0.1", 1, &[5; 8]),
        own.of_ipv4("10.9.0.1", 1, &[9; 8]),
        own.of_ipv4("10.9.0.1", 1, &[5; 8]).with_ipv4_options(),
        own.udp("10.9.0.1", (67, 68)),
        own.udp("10.9.0.1", (67, 68)).with_ipv4_options(),
        own.udp("10.9.0.1", (67, 68)).with_trailer(),
        own.udp("fd09::1", (547, 546)),
        own.udp("fd09::1", (547, 546)).behind(44),
        own.udp("fd09::1", (547, 546)).behind(60),
    ]
}

/// Packets in 802.2 frames that the pod must not send.
fn dishonest_802_2_frames() -> Vec<Frame> {
    let own = Frame::from(OWN);
    let [ip, arp, router] = [
        own.udp("10.9.0.2", (5000, 53)),
        own.arp((OWN, "10.9.0.2"), "10.9.0.1"),
        own.icmpv6("fe80::1", 134, "::"),
    ];
    let by_snap = SNAP
        .into_iter()
        .flat_map(|header| [ip.in_802_2(header), arp.in_802_2(header), router.in_802_2(header)]);
    by_snap.chain([ip.in_802_2(LLC_IP), arp.in_802_2(LLC_ARP)]).collect()
}

#[test]
fn spoofed_packets_in_llc_frames_are_dropped() {
    On::EVERY.into_iter().for_each(drops_802_2_frames);
}

fn drops_802_2_frames(on: On) {
    let mut ports = Ports::on(on);
    let frames = dishonest_802_2_frames();
    assert_eq!(ports.arriving_frames(&frames), [0; 0], "{on:?}");
    // Without address checks they pass as all other frames do.
    ports.pods[0].settings.anti_spoofing = AntiSpoofing::Mac;
    ports.program();
    assert_eq!(ports.arriving_frames(&frames).len(), frames.len(), "{on:?}");
}

/// Frames from another MAC address.
fn foreign_frames() -> Vec<Frame> {
    let others = Frame::from(OTHERS);
    vec![
        others.udp("10.9.0.1", (5000, 53)),
        others.arp((OWN, "10.9.0.1"), "10.9.0.2"),
        others.of_type(0x88b5),
    ]
}

/// Which kinds of the first pod's frames arrive; either all or none of a kind must.
fn kinds_arriving(ports: &Ports, on: On) -> [bool; 3] {
    let mut honest = honest_frames();
    honest.extend((on == On::Bridge).then(question_for_routers));
    [honest, dishonest_frames(), foreign_frames()].map(|frames| {
        let arriving = ports.arriving_frames(&frames);
        let is_of_one_kind = arriving.is_empty() || arriving.len() == frames.len();
        assert!(is_of_one_kind, "{arriving:?} of {}", frames.len());
        !arriving.is_empty()
    })
}

#[test]
fn what_a_pod_says_of_others_arrives_nowhere() {
    On::EVERY.into_iter().for_each(drops_claims_about_others);
}

fn drops_claims_about_others(on: On) {
    let mut ports = Ports::on(on);
    assert_eq!(kinds_arriving(&ports, on), [true, false, false]);
    for (level, expected) in
        [(AntiSpoofing::Mac, [true, true, false]), (AntiSpoofing::Off, [true, true, true])]
    {
        ports.pods[0].settings.anti_spoofing = level;
        ports.program();
        assert_eq!(kinds_arriving(&ports, on), expected, "{level:?}");
    }
}

#[test]
fn what_a_port_has_dropped_is_counted() {
    let ports = Ports::new();
    let dropped = || {
        let shown = ports.dpu.netns.json("tc -s -j qdisc show dev pf0vf0 clsact");
        shown[0]["drops"].as_u64().unwrap()
    };
    let (before, frames) = (dropped(), foreign_frames());
    assert_eq!(ports.arriving_frames(&frames), [0; 0]);
    assert_eq!(dropped(), before + 3);
}

#[test]
fn pod_sends_from_allowed_sources() {
    On::EVERY.into_iter().for_each(passes_allowed_sources);
}

fn passes_allowed_sources(on: On) {
    let mut ports = Ports::on(on);
    let shared = Frame::from(SHARED_MAC);
    let frames = [
        shared.udp(SHARED, (5000, 53)),
        shared.arp((SHARED_MAC, SHARED), SHARED),
        Frame::from(OWN).udp(SHARED, (5000, 53)),
        Frame::from(OWN).udp("fd10::5", (5000, 53)),
        Frame::from(OWN).icmpv6("fd09::1", 136, "fd10::5"),
        Frame::from(OWN).udp("fd11::5", (5000, 53)),
    ];
    assert_eq!(ports.arriving_frames(&frames), [0; 0]);
    let sources = [SHARED_MAC, SHARED, "fd10::/64"].map(|text| text.parse().unwrap());
    ports.pods[0].settings.allowed_sources = sources.into();
    ports.program();
    assert_eq!(ports.arriving_frames(&frames), [0, 1, 2, 3, 4]);
    if on == On::Bridge {
        // The bridge learns the address's new port when the pod sends.
        assert_eq!(ports.dpu.fdb_macs("pf0vf0"), [""; 0]);
    }
}

#[test]
fn pod_without_known_addresses_is_no_router() {
    On::EVERY.into_iter().for_each(passes_unknown_addresses);
}

fn passes_unknown_addresses(on: On) {
    let mut ports = Ports::on(on);
    ports.pods[0].settings.addresses.clear();
    ports.program();
    let own = Frame::from(OWN);
    let frames = [
        own.udp("10.9.0.2", (5000, 53)),
        own.arp((OWN, "10.9.0.2"), "10.9.0.1"),
        own.arp((OTHERS, "10.9.0.2"), "10.9.0.1"),
        own.icmpv6("fe80::1", 134, "::"),
        own.icmpv6("fe80::1", 134, "::").with_trailer(),
        own.udp("10.9.0.2", (67, 68)),
        own.udp("10.9.0.2", (67, 68)).with_trailer(),
    ];
    assert_eq!(ports.arriving_frames(&frames), [0, 1]);
}
