//! Tests against `ovs-vswitchd` with a dummy datapath, and against peers that are no switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[allow(dead_code, unreachable_pub, reason = "each user uses its part")]
#[path = "../../ovsdb/tests/support/open_vswitch.rs"]
mod open_vswitch;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::UnixListener,
    thread,
    time::Duration,
};

use netlink::MacAddress;
use open_vswitch::OpenVswitch;
use openflow::{
    Action, Change, Connection, Cookies, Error, Flow, LOCAL, Match, Meter, PortSwitch, Ports,
    Switch, VlanMatch,
};
use test_clock::wait_until;

const DEADLINE: Duration = Duration::from_secs(2);
const COOKIE: u64 = 0x0ff1_0ad0_0000_03e8;

/// An Open vSwitch whose bridge has one unconnected port.
fn start() -> OpenVswitch {
    let vswitch = OpenVswitch::start_dummy();
    vswitch.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy fail_mode=secure");
    vswitch.vsctl("add-port br0 p1 -- set interface p1 type=dummy ofport_request=1");
    vswitch
}

fn connect(vswitch: &OpenVswitch) -> Switch {
    Switch::connect(&vswitch.management("br0"), DEADLINE).unwrap()
}

fn flow(priority: u16, matches: impl IntoIterator<Item = Match>, action: Action) -> Flow {
    let matches = matches.into_iter().collect();
    Flow { table: 0, priority, cookie: COOKIE, matches, action }
}

fn found(switch: &mut Switch, cookies: Cookies) -> BTreeSet<Flow> {
    switch.flows(cookies).unwrap().into_iter().map(|counted| counted.flow).collect()
}

/// Every match with its prerequisites, and its form in Open vSwitch's output.
fn every_match() -> Vec<(Vec<Match>, &'static str)> {
    let mac: MacAddress = "02:00:00:00:01:07".parse().unwrap();
    let mask = MacAddress([0xff, 0xff, 0xff, 0xff, 0xff, 0xf0]);
    let kind = Match::EthernetType;
    let udp = [kind(0x0800), Match::IpProtocol(17)];
    let tcp = [kind(0x0800), Match::IpProtocol(6)];
    let sctp = [kind(0x86dd), Match::IpProtocol(132)];
    let icmp = [kind(0x0800), Match::IpProtocol(1)];
    let icmpv6 = [kind(0x86dd), Match::IpProtocol(58)];
    let solicits = [&icmpv6[..], &[Match::Icmpv6Type(135)]].concat();
    let advertises = [&icmpv6[..], &[Match::Icmpv6Type(136)]].concat();
    let with = |first: &[Match], last: Match| [first, &[last]].concat();
    vec![
        (vec![Match::InPort(1)], "in_port=1"),
        (vec![Match::InPort(LOCAL)], "in_port=LOCAL"),
        (vec![Match::EthernetDestination(mac, mask)], "dl_dst=02:00:00:00:01:00/ff:ff:ff:ff:ff:f0"),
        (vec![Match::EthernetSource(mac)], "dl_src=02:00:00:00:01:07"),
        (vec![kind(0x8100)], "dl_type=0x8100"),
        (vec![Match::Vlan(VlanMatch::Untagged)], "vlan_tci=0x0000/0x1fff"),
        (vec![Match::Vlan(VlanMatch::Id(0))], "dl_vlan=0"),
        (vec![Match::Vlan(VlanMatch::Id(100))], "dl_vlan=100"),
        (with(&[kind(0x0800)], Match::IpProtocol(2)), "ip,nw_proto=2"),
        (
            with(&[kind(0x0800)], Match::Ipv4Source("10.9.0.7/32".parse().unwrap())),
            "nw_src=10.9.0.7 ",
        ),
        (
            with(&[kind(0x0800)], Match::Ipv4Source("10.9.0.0/24".parse().unwrap())),
            "nw_src=10.9.0.0/24",
        ),
        (with(&udp, Match::UdpSource(68)), "tp_src=68"),
        (with(&udp, Match::UdpDestination(Ports::exactly(67))), "tp_dst=67"),
        (
            with(&udp, Match::UdpDestination(Ports { value: 0x1f40, mask: 0xffe0 })),
            "tp_dst=0x1f40/0xffe0",
        ),
        (with(&tcp, Match::TcpDestination(Ports::exactly(80))), "tcp,tp_dst=80"),
        (
            with(&sctp, Match::SctpDestination(Ports { value: 0x8000, mask: 0x8000 })),
            "sctp6,tp_dst=0x8000/0x8000",
        ),
        (
            with(&[kind(0x0800)], Match::Ipv4Destination("10.9.0.7/32".parse().unwrap())),
            "nw_dst=10.9.0.7 ",
        ),
        (
            with(&[kind(0x86dd)], Match::Ipv6Destination("fd09::7/128".parse().unwrap())),
            "ipv6_dst=fd09::7 ",
        ),
        (vec![Match::Connection(Connection::New)], "ct_state=+new+trk"),
        (vec![Match::Connection(Connection::Established)], "ct_state=+est+trk"),
        (vec![Match::Connection(Connection::Related)], "ct_state=+rel+trk"),
        (with(&icmp, Match::Icmpv4Type(5)), "icmp,icmp_type=5"),
        (
            with(&[kind(0x0806)], Match::ArpSenderAddress("10.9.0.7/32".parse().unwrap())),
            "arp_spa=10.9.0.7 ",
        ),
        (
            with(&[kind(0x0806)], Match::ArpTargetAddress("10.8.0.0/16".parse().unwrap())),
            "arp_tpa=10.8.0.0/16",
        ),
        (with(&[kind(0x0806)], Match::ArpSenderMac(mac)), "arp_sha=02:00:00:00:01:07"),
        (
            with(&[kind(0x86dd)], Match::Ipv6Source("fd09::7/128".parse().unwrap())),
            "ipv6_src=fd09::7 ",
        ),
        (
            with(&[kind(0x86dd)], Match::Ipv6Source("fd09::/64".parse().unwrap())),
            "ipv6_src=fd09::/64",
        ),
        (with(&icmpv6, Match::Icmpv6Type(134)), "icmp6,icmp_type=134"),
        (with(&solicits, Match::NdTarget("fd09::7/128".parse().unwrap())), "nd_target=fd09::7 "),
        (with(&solicits, Match::NdTarget("fd08::/16".parse().unwrap())), "nd_target=fd08::/16"),
        (with(&solicits, Match::NdSourceLink(mac)), "nd_sll=02:00:00:00:01:07"),
        (with(&advertises, Match::NdTargetLink(MacAddress([0; 6]))), "nd_tll=00:00:00:00:00:00"),
    ]
}

#[test]
fn every_match_and_action_reads_back() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    for (matches, shown) in every_match() {
        // Open vSwitch clears the masked bits of a destination.
        let matches = matches.into_iter().map(|it| match it {
            Match::EthernetDestination(MacAddress([a, b, c, d, e, f]), mask) => {
                Match::EthernetDestination(MacAddress([a, b, c, d, e, f & 0xf0]), mask)
            }
            other => other,
        });
        let flow = flow(7, matches, Action::Drop);
        switch.change(&[Change::Add(flow.clone())]).unwrap();
        assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)), [flow.clone()].into());
        let text = vswitch.flows("br0");
        assert!(text.contains(shown), "{shown:?} in {text}");
        switch.change(&[Change::Remove(flow)]).unwrap();
    }
    for (action, shown) in [
        (Action::Drop, "actions=drop"),
        (Action::Normal, "actions=NORMAL"),
        (Action::Table(240), "actions=goto_table:240"),
        (Action::Track { zone: 1000, table: 248 }, "actions=ct(table=248,zone=1000)"),
        (Action::Remember { zone: 1000, table: 249 }, "actions=ct(commit,table=249,zone=1000)"),
    ] {
        // IPv4 only: other packets have no connections.
        let flow = flow(7, [Match::EthernetType(0x0800)], action);
        switch.change(&[Change::Add(flow.clone())]).unwrap();
        assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)), [flow].into());
        assert!(vswitch.flows("br0").contains(shown), "{shown}");
    }
}

#[test]
fn meter_is_removed_with_its_flows() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    assert!(switch.highest_meter().unwrap() >= 65_535);
    let meters = || vswitch.ofctl(&["dump-meters"], "br0", &[]);
    let metered = flow(7, [Match::InPort(1)], Action::Metered { meter: 1000, table: 240 });
    let refused = switch.change(&[Change::Add(metered.clone())]).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "there is no such meter yet: {refused}");
    let meter = Meter { number: 1000, rate_kbits: 10_000, burst_kbits: 1_000 };
    let wider = Meter { burst_kbits: 2_000, ..meter };
    for (wanted, other) in [(meter, wider), (wider, meter), (wider, meter)] {
        switch.set_meter(wanted).unwrap();
        let shown = meters();
        let burst = format!("type=drop rate=10000 burst_size={}", wanted.burst_kbits);
        assert!(shown.contains("meter=1000 kbps burst") && shown.contains(&burst), "{shown}");
        assert!(switch.has_meter(wanted).unwrap() && !switch.has_meter(other).unwrap());
        switch.change(&[Change::Add(metered.clone())]).unwrap();
        assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)), [metered.clone()].into());
        let text = vswitch.flows("br0");
        assert!(text.contains("actions=meter:1000,goto_table:240"), "{text}");
        assert_eq!(switch.meter_drops().unwrap(), [(1000, 0)].into());
    }
    for _ in 0..2 {
        switch.remove_meter(1000).unwrap();
        assert!(!meters().contains("meter="));
        assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)), [].into());
    }
    // A meter that counts packets, as other programs may set.
    vswitch.ofctl(
        &["add-meter"],
        "br0",
        &["meter=1000,pktps,burst,band=type=drop,rate=10000,burst_size=1000"],
    );
    assert!(!switch.has_meter(meter).unwrap());
    switch.set_meter(meter).unwrap();
    assert!(switch.has_meter(meter).unwrap());
}

#[test]
fn first_fragments_match_ports_once_enabled() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    let reported = || vswitch.ofctl(&["get-frags"], "br0", &[]);
    assert!(
        !switch.reads_first_fragments().unwrap() && reported().contains("normal"),
        "{}",
        reported()
    );
    switch.read_first_fragments().unwrap();
    assert!(
        switch.reads_first_fragments().unwrap() && reported().contains("nx-match"),
        "{}",
        reported()
    );
}

#[test]
fn foreign_flows_equal_no_wanted_flow() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    switch.set_meter(Meter { number: 1, rate_kbits: 1_000, burst_kbits: 1_000 }).unwrap();
    for text in [
        "actions=output:1",
        "actions=meter:1,NORMAL",
        "actions=set_queue:1,NORMAL",
        "reg0=7,actions=NORMAL",
        "ip,nw_src=10.0.0.1/255.0.255.0,actions=drop",
    ] {
        let text = format!("cookie={COOKIE},priority=7,{text}");
        vswitch.ofctl(&["add-flow"], "br0", &[&text]);
        let all = found(&mut switch, Cookies::exactly(COOKIE));
        let [one] = Vec::from_iter(all).try_into().unwrap();
        let Flow { action, matches, .. } = &one;
        let is_other =
            *action == Action::Other || matches.iter().any(|it| matches!(it, Match::Other(_)));
        assert!(is_other, "{text}: {one:?}");
        switch.change(&[Change::RemoveAll(Cookies::exactly(COOKIE))]).unwrap();
    }
}

#[test]
fn bundle_changes_all_flows_or_none() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    let many: Vec<_> =
        (1..=1000).map(|number| flow(number, [Match::InPort(1)], Action::Normal)).collect();
    let others = Flow { cookie: 1, ..flow(2000, [], Action::Normal) };
    let add = many.iter().chain([&others]).cloned().map(Change::Add);
    switch.change(&add.collect::<Vec<_>>()).unwrap();
    assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)).len(), 1000);
    assert_eq!(found(&mut switch, Cookies { value: 0, mask: 0 }).len(), 1001);
    assert_eq!(vswitch.flows("br0").lines().count(), 1001);

    // An IPv4 source without the Ethernet type of IPv4 lacks its prerequisite.
    let senseless = flow(7, [Match::UdpSource(7)], Action::Drop);
    let changes = [Change::RemoveAll(Cookies::exactly(COOKIE)), Change::Add(senseless)];
    let refused = switch.change(&changes).unwrap_err();
    assert!(matches!(refused, Error::Refused { kind: 4, .. }), "{refused}");
    assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)).len(), 1000, "nothing of it was done");

    let like_the_first = Flow { cookie: 1, ..many[0].clone() };
    switch.change(&[Change::Remove(like_the_first)]).unwrap();
    assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)).len(), 1000, "that was another's");
    switch.change(&[Change::Remove(many[0].clone())]).unwrap();
    assert_eq!(found(&mut switch, Cookies::exactly(COOKIE)).len(), 999);
    let half = Cookies { value: COOKIE, mask: !u64::from(u32::MAX) };
    switch.change(&[Change::RemoveAll(half)]).unwrap();
    assert_eq!(found(&mut switch, Cookies { value: 0, mask: 0 }), [others].into());
}

#[test]
fn connections_are_deleted_by_zone() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    let udp = [Match::InPort(1), Match::EthernetType(0x0800), Match::IpProtocol(17)];
    let tracked = Action::Remember { zone: 1000, table: 1 };
    let dropped = Flow { table: 1, ..flow(7, udp, Action::Drop) };
    switch.change(&[flow(7, udp, tracked), dropped].map(Change::Add)).unwrap();
    // From port 7 of 10.0.0.1 to port 9 of 10.0.0.2, without a UDP checksum.
    let ip = "4500001c00000000401166cf0a0000010a000002";
    let frame = format!("0200000001080200000001070800{ip}0007000900080000{}", "00".repeat(18));
    vswitch.appctl(&["netdev-dummy/receive", "p1", &frame]);
    let known = || vswitch.appctl(&["dpctl/dump-conntrack", "dummy@ovs-dummy"]);
    wait_until("it is remembered", || known().contains("src=10.0.0.1,dst=10.0.0.2"));
    switch.forget_connections(1001).unwrap();
    assert!(known().contains("zone=1000"), "that was of another zone");
    switch.forget_connections(1000).unwrap();
    assert_eq!(known(), "");
}

#[test]
fn frames_are_counted() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    switch.change(&[Change::Add(flow(7, [Match::InPort(1)], Action::Drop))]).unwrap();
    let frame = format!("ffffffffffff02000000010788b5{}", "00".repeat(46));
    vswitch.appctl(&["netdev-dummy/receive", "p1", &frame]);
    wait_until("the frame is counted", || {
        let flows = switch.flows(Cookies::exactly(COOKIE)).unwrap();
        (flows[0].packets, flows[0].bytes) == (1, 60)
    });
}

#[test]
fn end_of_vswitchd_is_reported_at_once() {
    let mut vswitch = start();
    let (mut waiting, mut other) = (connect(&vswitch), connect(&vswitch));
    let waiting = thread::spawn(move || waiting.watch(Duration::from_secs(600)));
    vswitch.kill_daemon();
    assert!(matches!(waiting.join().unwrap(), Err(Error::Closed { .. })));
    let closed = other.flows(Cookies::exactly(COOKIE)).unwrap_err();
    assert!(matches!(closed, Error::Closed { .. }), "{closed}");
    assert!(matches!(other.change(&[]), Err(Error::Closed { .. })));
    let nobody = Switch::connect(&vswitch.management("br0"), DEADLINE).unwrap_err();
    assert!(matches!(nobody, Error::Connect { .. }), "{nobody}");
}

#[test]
fn suspended_daemon_does_not_answer() {
    let vswitch = start();
    let mut switch = connect(&vswitch);
    let pause = Duration::from_millis(100);
    switch.watch(pause).unwrap();
    vswitch.signal_daemon("STOP");
    let silent = switch.watch(pause).unwrap_err();
    vswitch.signal_daemon("CONT");
    assert!(matches!(silent, Error::TimedOut { .. }), "{silent}");
}

/// In OpenFlow 1.0, and in 1.3 if the bridge allows no other version.
#[test]
fn blocked_switch_ports_are_opened() {
    let vswitch = start();
    let config = |setting, version: &str| {
        let command = ["-O", version, "mod-port"];
        let _ = vswitch.ofctl(&command, "br0", &["p1", setting]);
    };
    let open = |held_back_by: &[&str]| {
        let (mut switch, ports) =
            PortSwitch::connect(&vswitch.management("br0"), DEADLINE).unwrap();
        let port = ports.iter().find(|port| port.number == 1).unwrap();
        assert_eq!(port.held_back_by().collect::<Vec<_>>(), held_back_by);
        switch.open(port).unwrap();
    };
    for setting in ["no-receive", "no-flood", "no-forward"] {
        config(setting, "OpenFlow10");
        open(&[setting]);
        open(&[]);
    }
    vswitch.vsctl("set bridge br0 protocols=OpenFlow13");
    for setting in ["no-receive", "no-forward"] {
        config(setting, "OpenFlow13");
        open(&[setting]);
        let shown = vswitch.ofctl(&["show"], "br0", &[]);
        assert!(!shown.contains("NO_"), "{shown}");
    }
}

/// The error of a call to a peer that sends a hello and then `answer`.
fn asked(answer: &'static [u8]) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("br0.mgmt");
    let listener = UnixListener::bind(&socket).unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        stream.read_exact(&mut buffer[..8]).unwrap();
        stream.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
        let _ = stream.read(&mut buffer).unwrap();
        stream.write_all(answer).unwrap();
        let _ = stream.read(&mut buffer);
    });
    let mut switch = Switch::connect(&socket, Duration::from_millis(200)).unwrap();
    let error = switch.flows(Cookies::exactly(COOKIE)).unwrap_err();
    drop(switch);
    peer.join().unwrap();
    error
}

#[test]
fn peers_other_than_switches_are_reported() {
    assert!(matches!(asked(&[4, 0, 0, 7, 0, 0, 0, 2]), Error::Garbage { .. }));
    assert!(matches!(asked(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Error::TimedOut { .. }));
    assert!(matches!(
        asked(&[4, 19, 0, 16, 0, 0, 0, 2, 0, 7, 0, 0, 0, 0, 0, 0]),
        Error::Garbage { .. }
    ));
    assert!(matches!(
        asked(&[4, 19, 0, 16, 0, 0, 0, 9, 0, 1, 0, 0, 0, 0, 0, 0]),
        Error::TimedOut { .. }
    ));
    assert!(matches!(asked(&[1, 19, 0, 16, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0]), Error::Version));
    let refused = asked(&[4, 1, 0, 12, 0, 0, 0, 2, 0, 1, 0, 5]);
    assert_eq!(refused.to_string(), "the switch refused: bad request (type 1, code 5)");
    // The peer closes after the client has answered its echo request.
    assert!(matches!(asked(&[4, 2, 0, 8, 0, 0, 0, 7]), Error::Closed { .. }));
}
