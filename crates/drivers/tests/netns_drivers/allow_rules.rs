//! Networks' `allow` rules on Open vSwitch, tried by pods and from outside.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use model::{AllowedProtocol, IngressRule, PortSettings};
use netlink::{Request, VethEnd};
use test_clock::wait_until;

use crate::{
    frames::Frame,
    ovs::{is_guarded, own_flows, with_pods},
    support::TestNetns,
    veth_dpu::{Capture, Dpu, On, OpenVswitch, Pod, addresses_of, mark},
};

/// The timeout of a connection that must fail.
const DENIED: Duration = Duration::from_millis(400);
const ANSWER: Duration = Duration::from_secs(3);

fn ingress_rule(from: &[&str], protocol: Option<AllowedProtocol>, ports: &[&str]) -> IngressRule {
    let from: Vec<_> = from.iter().map(|prefix| prefix.parse().unwrap()).collect();
    IngressRule {
        from: (!from.is_empty()).then(|| from.into_iter().collect()),
        protocol,
        ports: ports.iter().map(|ports| ports.parse().unwrap()).collect(),
    }
}

/// A DPU with that many pods. The first one has these rules.
fn with_rules(count: u16, ingress_rules: Vec<IngressRule>) -> (Dpu, Vec<Pod>) {
    let (dpu, mut pods) = with_pods(count);
    pods[0].settings.ingress_rules = Some(ingress_rules);
    dpu.program(&pods[0]);
    // The userspace datapath does not complete checksums, and does not track packets with a wrong one.
    pods.iter().for_each(|pod| finish_checksums(&pod.netns, "eth0"));
    (dpu, pods)
}

fn finish_checksums(netns: &TestNetns, link: &str) {
    netns.run(&format!("ethtool -K {link} tx off"));
}

fn address(pod: &Pod, family: usize) -> IpAddr {
    addresses_of(pod.settings.vf.vf)[family]
}

/// Whether a connection from the namespace to a port of the pod opens and carries data both ways.
fn connects(from: &TestNetns, to: &Pod, family: usize, port: u16) -> bool {
    let there = SocketAddr::new(address(to, family), port);
    let listener = to.netns.netns.run(|| TcpListener::bind(there)).unwrap().unwrap();
    let limit = || from.netns.run(|| TcpStream::connect_timeout(&there, DENIED)).unwrap();
    let Ok(mut near) = limit() else { return false };
    let mut far = listener.accept().unwrap().0;
    for side in [&near, &far] {
        side.set_read_timeout(Some(ANSWER)).unwrap();
    }
    near.write_all(b"ask").unwrap();
    far.read_exact(&mut [0; 3]).unwrap();
    far.write_all(b"tell").unwrap();
    near.read_exact(&mut [0; 4]).unwrap();
    true
}

/// Sends a datagram that contains the mark.
fn send(from: &TestNetns, to: (IpAddr, u16), mark: [u8; 8]) {
    let any = if to.0.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.netns.run(|| UdpSocket::bind(any)).unwrap().unwrap();
    socket.set_broadcast(true).unwrap();
    socket.send_to(&mark, to).unwrap();
}

#[test]
fn only_allowed_connections_open() {
    let tcp =
        ingress_rule(&["10.9.0.2", "fd09::2"], Some(AllowedProtocol::Tcp), &["80", "8000-8010"]);
    let udp = ingress_rule(&[], Some(AllowedProtocol::Udp), &["5000"]);
    let (dpu, pods) = with_rules(3, vec![tcp, udp]);
    let [server, client, other] = &pods[..] else { unreachable!() };
    assert!(is_guarded(&dpu, server));
    let reported = dpu.fabric.guard(&dpu.representor(server), &server.settings).unwrap().detail;
    let (_, ingress_rules) = reported.split_once("; ").unwrap();
    let (from_client, from_all) = ingress_rules.split_once(", any ").unwrap();
    assert!(from_client.contains("10.9.0.2/32 fd09::2/128"), "{reported}");
    assert!(
        from_client.ends_with("tcp 80 8000-8010") && from_all.ends_with("udp 5000"),
        "{reported}"
    );
    for family in [0, 1] {
        for port in [80, 8000, 8007, 8010] {
            assert!(connects(&client.netns, server, family, port), "{family} {port}");
        }
        for port in [81, 7999, 8011] {
            assert!(!connects(&client.netns, server, family, port), "{family} {port}");
        }
        assert!(!connects(&other.netns, server, family, 80), "not of that prefix");
        assert!(connects(&client.netns, other, family, 81), "no rule of theirs");
        // The pod may open connections to any destination.
        assert!(connects(&server.netns, other, family, 81));
        let own = address(server, family).to_string();
        assert!(!client.pings(&own) && !other.pings(&own));
        let there = address(other, family).to_string();
        server.reaches(&there);
        server.netns.run(&format!("ping -c 1 -W 3 -s 4000 {there}"));

        let capture = Capture::of(&server.netns);
        let there = address(server, family);
        for (number, (from, port)) in
            [(client, 5001), (other, 5001), (other, 80), (client, 5000)].into_iter().enumerate()
        {
            send(&from.netns, (there, port), mark(number));
        }
        assert_eq!(capture.marks_until(mark(3)), [mark(3)], "that which is allowed alone");
    }
}

#[test]
fn errors_about_what_a_pod_sends_come_back() {
    let (_dpu, pods) = with_rules(2, Vec::new());
    let [server, other] = &pods[..] else { unreachable!() };
    for family in [0, 1] {
        let any = if family == 0 { "0.0.0.0:0" } else { "[::]:0" };
        let socket = server.netns.netns.run(|| UdpSocket::bind(any)).unwrap().unwrap();
        socket.set_read_timeout(Some(ANSWER)).unwrap();
        socket.connect((address(other, family), 9)).unwrap();
        socket.send(b"to a closed port").unwrap();
        let refused = socket.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}

/// A pod without VF outside of a DPU whose uplink leads to it, and a pod there that allows no connection.
fn with_outside() -> (Dpu, Pod, Pod) {
    let mut dpu = Dpu::on(On::OpenVswitch, &["p0"]);
    let mut pod = dpu.plug(0);
    let outside = Pod { netns: TestNetns::new(), settings: pod.settings.clone() };
    let wire = VethEnd::new("eth0").netns(&outside.netns.netns);
    dpu.netns.rtnl().change(Request::add_veth(&VethEnd::new("p0"), &wire)).unwrap();
    outside.netns.run("ip link set eth0 up");
    outside.netns.run("ip addr add 10.9.0.99/24 dev eth0");
    dpu.prepare().unwrap();
    pod.settings.ingress_rules = Some(Vec::new());
    dpu.program(&pod);
    for pod in [&outside, &pod] {
        finish_checksums(&pod.netns, "eth0");
    }
    assert!(dpu.vswitch().vsctl("list-ports br-offload").contains("p0"));
    (dpu, pod, outside)
}

#[test]
fn pod_without_allowed_connections_keeps_link_protocols() {
    let (dpu, pod, outside) = with_outside();
    pod.reaches("10.9.0.99");
    assert!(!connects(&outside.netns, &pod, 0, 80));
    // The neighbour resolves it again.
    outside.netns.run("ip neigh flush dev eth0");
    pod.reaches("10.9.0.99");
    let reported = dpu.fabric.guard(&dpu.representor(&pod), &pod.settings).unwrap().detail;
    assert!(reported.contains("; no connection to it "), "{reported}");

    // To the pod's own address, which it must not receive even in a broadcast frame.
    let capture = Capture::of(&pod.netns);
    let neighbour = |mac: &str| {
        outside.netns.run(&format!("ip neigh replace 10.9.0.1 lladdr {mac} dev eth0"));
    };
    neighbour("ff:ff:ff:ff:ff:ff");
    send(&outside.netns, (address(&pod, 0), 80), mark(0));
    neighbour(&pod.settings.mac.to_string());
    send(&outside.netns, (address(&pod, 0), 80), mark(1));
    // A DHCP server's answer.
    let server = outside.netns.netns.run(|| UdpSocket::bind("10.9.0.99:67")).unwrap().unwrap();
    server.send_to(&mark(2), (address(&pod, 0), 68)).unwrap();
    assert_eq!(capture.marks_until(mark(2)), [mark(2)]);
    // Broadcasts open no connection. The pod's ICMP error about a closed port may come first.
    send(&outside.netns, ("10.9.0.255".parse().unwrap(), 80), mark(3));
    assert_eq!(capture.marks_until(mark(3)).last(), Some(&mark(3)));
}

#[test]
fn rules_apply_to_frames_from_uplinks() {
    let (mut dpu, mut pod, outside) = with_outside();
    pod.reaches("10.9.0.99");
    let [from, any] = [ingress_rule(&["10.9.0.99"], None, &[]), ingress_rule(&[], None, &[])];
    for rules in [vec![from], vec![any]] {
        pod.settings.ingress_rules = Some(rules);
        dpu.program(&pod);
        dpu.forget_decisions();
        assert!(connects(&outside.netns, &pod, 0, 80));
    }
    pod.settings.vlan = Some(100);
    let capture = Capture::of(&pod.netns);
    for (number, from) in ["10.9.0.98", "10.9.0.99"].into_iter().enumerate() {
        pod.settings.ingress_rules = Some(vec![ingress_rule(&[from], None, &[])]);
        dpu.program(&pod);
        dpu.forget_decisions();
        let frame = Frame::from("02:00:00:00:01:99").udp("10.9.0.99", (7, 7)).marked(mark(number));
        let to = [&pod.settings.mac.0, &frame[6..12], &[0x81, 0, 0, 100], &frame[12..]];
        outside.sends_frame(&to.concat());
    }
    assert_eq!(capture.marks_until(mark(1)), [mark(1)]);

    assert!(own_flows(&mut dpu).iter().any(|flow| flow.contains("ct(")));
    pod.settings.ingress_rules = None;
    dpu.program(&pod);
    assert!(own_flows(&mut dpu).iter().all(|flow| !flow.contains("ct(")));
}

/// The datapath's tracked connections of the port.
fn connections(dpu: &mut Dpu, zone: &str) -> usize {
    let datapath = format!("{}@ovs-{}", OpenVswitch::datapath(), OpenVswitch::datapath());
    let known = dpu.vswitch().appctl(&["dpctl/dump-conntrack", &datapath]);
    known.lines().filter(|line| line.contains(&format!("zone={zone}"))).count()
}

#[test]
fn rules_return_with_the_daemon() {
    let tcp = ingress_rule(&["10.9.0.2"], Some(AllowedProtocol::Tcp), &["80"]);
    let (mut dpu, pods) = with_rules(3, vec![tcp]);
    let [server, client, other] = &pods[..] else { unreachable!() };
    let flows = own_flows(&mut dpu);
    dpu.vswitch().kill_daemon();
    dpu.vswitch().start_daemon();
    wait_until("the daemon is back", || dpu.prepare().is_ok());
    assert!(!is_guarded(&dpu, server));
    pods.iter().for_each(|pod| dpu.program(pod));
    assert!(own_flows(&mut dpu) == flows);
    assert!(connects(&client.netns, server, 0, 80) && !connects(&other.netns, server, 0, 80));

    assert!(is_guarded(&dpu, server) && is_guarded(&dpu, other));
    for damage in ["table=248", "table=245", "table=0,dl_dst=02:00:00:00:01:00"] {
        dpu.vswitch().ofctl(&["del-flows"], "br-offload", &[damage]);
        assert!(!is_guarded(&dpu, server), "{damage}");
        dpu.prepare().unwrap();
        dpu.program(server);
        assert!(own_flows(&mut dpu) == flows, "{damage}");
    }

    assert!(connections(&mut dpu, "1000") > 0);
    let settings = PortSettings { ingress_rules: None, ..server.settings.clone() };
    dpu.fabric.set_guard(&dpu.representor(server), &settings).unwrap();
    assert_eq!(connections(&mut dpu, "1000"), 0, "rules that come later find none of them");
    dpu.program(server);
    assert!(connects(&client.netns, server, 0, 80) && connections(&mut dpu, "1000") > 0);
    dpu.fabric.leave(&dpu.representor(server)).unwrap();
    assert_eq!(connections(&mut dpu, "1000"), 0, "the next port with the number has none of them");
    assert!(own_flows(&mut dpu).iter().all(|flow| !flow.contains("02:00:00:00:01:00")));

    // The state that a crash between the two halves of a leave leaves.
    dpu.program(server);
    server.reaches("10.9.0.2");
    assert!(connects(&client.netns, server, 0, 80) && connections(&mut dpu, "1000") > 0);
    dpu.vswitch().vsctl("del-port pf0vf0");
    dpu.prepare().unwrap();
    assert_eq!(connections(&mut dpu, "1000"), 0);
}
