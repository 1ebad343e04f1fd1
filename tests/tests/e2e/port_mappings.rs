//! Port mappings: DPU ports that lead to pods, from outside, from other pods and from the pod itself.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use e2e::{Answer, Call, Lab, Netns, Settings, Timeouts, scenarios::pods::addresses, wait_for};
use serde_json::{Value, json};

use crate::gateway::{DPU_OUTSIDE, OUTSIDE, lab, lab_of, nft, pod, settings};

const LIMIT: Duration = Duration::from_secs(30);
/// Long enough for a repeated neighbour solicitation.
const SHORTLY: Duration = Duration::from_secs(4);

fn mapping(host_port: u16, protocol: &str) -> Value {
    json!({"hostPort": host_port, "containerPort": 80, "protocol": protocol})
}

fn call(lab: &Lab, verb: &str, network: &str, pod: &Netns, mappings: &Value) -> Answer {
    let mut configuration = lab.configuration(network);
    configuration["runtimeConfig"] = json!({ "portMappings": mappings });
    lab.execute(&Call::new(verb, &configuration).of(pod.name(), Some(&pod.path()), "eth0"))
}

/// A new pod with these DPU ports.
fn mapped_pod(lab: &Lab, network: &str, mappings: &Value) -> Netns {
    let pod = Netns::new("mapped");
    let _ = call(lab, "ADD", network, &pod, mappings).result();
    pod
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    (address.parse::<IpAddr>().unwrap(), port).into()
}

/// Source address that the server's port 80 sees for a client that connects to `target`. `None`: no connection.
pub(crate) fn seen_by_tcp(client: &Netns, server: &Netns, target: SocketAddr) -> Option<IpAddr> {
    let listener = server.run(|| TcpListener::bind("[::]:80").unwrap());
    let connection = client.run(|| TcpStream::connect_timeout(&target, SHORTLY));
    let _connection = connection.ok()?;
    Some(listener.accept().unwrap().1.ip().to_canonical())
}

/// Source address that the server sees by UDP, with an answer to the client.
fn seen_by_udp(client: &Netns, server: &Netns, target: SocketAddr) -> Option<IpAddr> {
    let socket = |netns: &Netns, address: &str| {
        let socket = netns.run(|| UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(SHORTLY)).unwrap();
        socket
    };
    let server = socket(server, "[::]:80");
    let client = socket(client, if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
    client.connect(target).unwrap();
    client.send(b"question").unwrap();
    let mut buffer = [0; 16];
    let (_, seen) = server.recv_from(&mut buffer).ok()?;
    server.send_to(b"answer", seen).unwrap();
    client.recv(&mut buffer).ok()?;
    Some(seen.ip().to_canonical())
}

/// For all mapped protocols and families.
#[track_caller]
fn assert_seen_as(client: &Netns, server: &Netns, expected: [&str; 2]) {
    for (own, expected) in DPU_OUTSIDE.iter().zip(expected) {
        let expected: Option<IpAddr> = Some(expected.parse().unwrap());
        assert_eq!(seen_by_tcp(client, server, at(own, 8080)), expected, "TCP to {own}");
        assert_eq!(seen_by_udp(client, server, at(own, 8080)), expected, "UDP to {own}");
    }
}

#[test]
fn mapped_ports_lead_to_pod_from_everywhere() {
    let (lab, outside) = lab();
    let both = json!([mapping(8080, "TCP"), mapping(8080, "udp")]);
    let server = mapped_pod(&lab, "blue", &both);
    assert_seen_as(&outside, &server, OUTSIDE);
    let gateway = ["10.1.0.1", "fd00:10:1::1"];
    assert_seen_as(&server, &server, gateway);
    let (neighbour, _) = pod(&lab, "blue");
    assert_seen_as(&neighbour, &server, gateway);
    // Otherwise its network does not reach the server's.
    let (green, [v4, v6]) = pod(&lab, "green");
    assert_seen_as(&green, &server, [&v4, &v6]);
    assert_eq!(seen_by_tcp(&outside, &server, at(DPU_OUTSIDE[0], 8081)), None);
    lab.assert_invariants();

    call(&lab, "DEL", "blue", &server, &both).nothing();
    let table = nft(&lab.card.dpu, &["list", "table", "inet", "dpu-offload"]);
    assert!(!table.contains("8080"), "{table}");
    let _again = mapped_pod(&lab, "blue", &both);
}

#[test]
fn host_reaches_mapped_port() {
    let others = "reconcile_s = 1\n[[host_port]]\nnetwork = \"blue\"\n".to_owned();
    let timeouts = Timeouts { others, ..Timeouts::default() };
    let (lab, _outside) = lab_of(&Settings { timeouts, ..settings() });
    let host = &lab.card.host;
    wait_for("the host port", LIMIT, || host.pings("10.1.0.1").then_some(()));
    for (network, seen) in [("blue", Some("10.1.0.1")), ("green", None)] {
        let mappings = json!([mapping(8080, "tcp"), mapping(8080, "udp")]);
        let server = mapped_pod(&lab, network, &mappings);
        let target = at("10.1.0.1", 8080);
        for found in [seen_by_tcp(host, &server, target), seen_by_udp(host, &server, target)] {
            let found = found.expect("the pod is reached");
            assert!(seen.is_none_or(|seen| found.to_string() == seen), "{found}");
        }
        call(&lab, "DEL", network, &server, &mappings).nothing();
    }
}

#[test]
fn mapped_port_is_bound_to_its_address() {
    let (lab, outside) = lab();
    let one = json!([{
        "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": DPU_OUTSIDE[0],
    }]);
    let server = mapped_pod(&lab, "nated", &one);
    let seen = |target: &str| seen_by_tcp(&outside, &server, at(target, 8080));
    assert_eq!(seen(DPU_OUTSIDE[0]), Some(OUTSIDE[0].parse().unwrap()));
    assert_eq!(seen(DPU_OUTSIDE[1]), None);
    // No pod receives traffic for another's address, whatever it asks for.
    let stranger = json!([{
        "hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": OUTSIDE[0],
    }]);
    let thief = mapped_pod(&lab, "blue", &stranger);
    assert_eq!(seen_by_tcp(&server, &thief, at(OUTSIDE[0], 8081)), None);
}

fn apply_violet(lab: &Lab, further: &str) {
    let file = lab.path().join("violet.yaml");
    let subnets = "subnets: [{ cidr: 10.5.0.0/24, gateway: 10.5.0.1 }]";
    let text = format!("name: violet\ngateway_mode: dpu\n{further}\n{subnets}\n");
    fs::write(&file, text).unwrap();
    let _ = lab.operator().output(&["apply", "-f", file.to_str().unwrap()]);
}

/// The network's gateway is then in the new bridge, where another pod may have the address.
#[test]
fn changed_bridge_leaves_mapped_ports_behind() {
    let fabric = "bridges = [{ name = 'br-violet' }]".into();
    let (lab, outside) = lab_of(&Settings { fabric, ..settings() });
    apply_violet(&lab, "");
    let mapped = json!([mapping(8080, "tcp")]);
    let old = mapped_pod(&lab, "violet", &mapped);
    let target = at(DPU_OUTSIDE[0], 8080);
    assert_eq!(seen_by_tcp(&outside, &old, target), Some(OUTSIDE[0].parse().unwrap()));

    apply_violet(&lab, "bridge: br-violet");
    let new = Netns::new("new");
    let mut configuration = lab.configuration("violet");
    configuration["runtimeConfig"] = json!({ "ips": ["10.5.0.2"] });
    let add = Call::new("ADD", &configuration).of(new.name(), Some(&new.path()), "eth0");
    let _ = lab.execute(&add).result();
    assert!(new.pings("10.5.0.1"), "the new pod has no gateway");
    assert_eq!(seen_by_tcp(&outside, &new, target), None);
    call(&lab, "DEL", "violet", &old, &mapped).nothing();
    lab.await_settled();
    // Entries of the old pod are removed, and those of the new one stay.
    let neighbours =
        lab.card.dpu.json("ip", &["neighbour", "show", "10.5.0.2", "dev", "gw-violet"]);
    let link = new.json("ip", &["link", "show", "dev", "eth0"]).remove(0);
    assert_eq!(neighbours[0]["lladdr"], link["address"]);
    assert_eq!(neighbours[0]["state"], json!(["PERMANENT"]));
    lab.del("violet", &new, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn sctp_ports_are_mapped() {
    let (lab, _outside) = lab();
    let _server = mapped_pod(&lab, "blue", &json!([mapping(9000, "SCTP")]));
    let shown = nft(&lab.card.dpu, &["list", "map", "inet", "dpu-offload", "ports-v4"]);
    assert!(shown.contains("sctp . 9000 : 10.1.0."), "{shown}");
    let shown = nft(&lab.card.dpu, &["list", "map", "inet", "dpu-offload", "ports-v6"]);
    assert!(shown.contains("sctp . 9000 : fd00:10:1::"), "{shown}");
}

#[test]
fn unavailable_mapped_port_is_refused() {
    let (lab, _outside) = lab();
    let holder = mapped_pod(&lab, "blue", &json!([mapping(8080, "tcp")]));
    let other = Netns::new("other");
    let refused = |network: &str, mappings: &Value, code, words: &[&str]| {
        call(&lab, "ADD", network, &other, mappings).fails(code, words);
    };
    let taken = ["PORT_IN_USE", "8080/tcp", holder.name()];
    refused("blue", &json!([mapping(8080, "tcp")]), 135, &taken);
    let mut particular = mapping(8080, "tcp");
    particular["hostIP"] = json!(DPU_OUTSIDE[0]);
    refused("green", &json!([particular]), 135, &taken);
    refused("blue", &json!([mapping(7443, "tcp")]), 135, &["7443", "this DPU's own"]);
    refused("blue", &json!([mapping(0, "tcp")]), 7, &["hostPort 0"]);
    refused("blue", &json!([mapping(1, "icmp")]), 7, &["icmp"]);
    refused("blue", &json!([mapping(1, "tcp"), mapping(1, "TCP")]), 7, &["1/tcp twice"]);
    let differing = call(&lab, "ADD", "blue", &holder, &json!([mapping(8081, "tcp")]));
    differing.fails(110, &["mapped ports"]);

    call(&lab, "DEL", "blue", &holder, &json!([])).nothing();
    let _ = call(&lab, "ADD", "blue", &other, &json!([mapping(8080, "tcp")])).result();
    lab.assert_invariants();
}

#[test]
fn mapped_ports_survive_restarts_and_foreign_changes() {
    let (mut lab, outside) = lab();
    let server = mapped_pod(&lab, "blue", &json!([mapping(8080, "tcp")]));
    let target = at(DPU_OUTSIDE[0], 8080);
    let is_mapped = || seen_by_tcp(&outside, &server, target).map(drop);
    lab.service.crash();
    assert_eq!(is_mapped(), Some(()));
    nft(&lab.card.dpu, &["delete", "table", "inet", "dpu-offload"]);
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(is_mapped(), Some(()));
    nft(&lab.card.dpu, &["flush", "ruleset"]);
    wait_for("the mapped port after a flush", LIMIT, is_mapped);
    nft(&lab.card.dpu, &["flush", "map", "inet", "dpu-offload", "ports-v4"]);
    wait_for("the mapped port after its map was emptied", LIMIT, is_mapped);
    lab.assert_invariants();
    let other = Netns::new("other");
    let taken = call(&lab, "ADD", "blue", &other, &json!([mapping(8080, "tcp")]));
    taken.fails(135, &[server.name()]);
}

/// Targets of all mapped ports in the kernel's rules: port and address.
fn led(lab: &Lab) -> BTreeSet<(u64, String)> {
    let of = |map| {
        let listed = nft(&lab.card.dpu, &["-j", "list", "map", "inet", "dpu-offload", map]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["nftables"][1]["map"]["elem"].as_array().cloned().unwrap_or_default()
    };
    let part = |of: &Value, place: usize| of["concat"][place].clone();
    let one = |element: Value| {
        let (port, target) = (part(&element[0], 1), part(&element[1], 0));
        (port.as_u64().unwrap(), target.as_str().unwrap().to_owned())
    };
    ["ports-v4", "ports-v6"].into_iter().flat_map(of).map(one).collect()
}

/// Pods with this port, one after the other. The last one stays; returns it with its addresses.
fn come_and_go(lab: &Lab, port: u16) -> (Netns, Vec<String>) {
    let mapped = json!([mapping(port, "tcp")]);
    for _ in 0..3 {
        let pod = mapped_pod(lab, "blue", &mapped);
        call(lab, "DEL", "blue", &pod, &mapped).nothing();
    }
    let last = Netns::new("last");
    let result = call(lab, "ADD", "blue", &last, &mapped).result();
    (last, addresses(&result))
}

fn change_rules(lab: &Lab) {
    nft(&lab.card.dpu, &["add", "table", "inet", "other"]);
    nft(&lab.card.dpu, &["flush", "map", "inet", "dpu-offload", "ports-v6"]);
    nft(&lab.card.dpu, &["delete", "table", "inet", "other"]);
}

#[test]
fn concurrent_mapped_ports_survive_foreign_changes() {
    let (lab, _outside) = lab_of(&Settings { vfs: 12, pool: 12, ..settings() });
    let (lab, is_over) = (&lab, AtomicBool::new(false));
    let come_and_go = |port| move || (port, come_and_go(lab, port));
    let pods = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                change_rules(lab);
            }
        });
        let callers: Vec<_> = (9000..9008).map(|port| scope.spawn(come_and_go(port))).collect();
        let pods: Vec<_> = callers.into_iter().map(ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        pods
    });
    let pods: Vec<_> = pods.into_iter().map(Result::unwrap).collect();
    let of = |(port, (_, addresses)): &(u16, (Netns, Vec<String>))| {
        addresses.iter().map(|address| (u64::from(*port), address.clone())).collect::<Vec<_>>()
    };
    let wanted: BTreeSet<_> = pods.iter().flat_map(of).collect();
    assert_eq!(wanted.len(), 16);
    wait_for("the rules as wanted", LIMIT, || (led(lab) == wanted).then_some(()));
    lab.assert_invariants();
}

/// Sends from the same socket until the server receives something.
#[track_caller]
fn wait_until_asked(client: &UdpSocket, server: &Netns) {
    let server = server.run(|| UdpSocket::bind("[::]:80").unwrap());
    server.set_nonblocking(true).unwrap();
    wait_for("a packet of a flow that goes on", LIMIT, || {
        // While no pod has the port, the sender gets an error at its next call.
        let _ = client.send(b"question").or_else(|_| client.send(b"question"));
        server.recv(&mut [0; 16]).ok()
    });
}

#[test]
fn continuous_flow_follows_mapped_port() {
    let (lab, outside) = lab();
    let mapped = json!([mapping(8080, "udp")]);
    let clients = DPU_OUTSIDE.map(|own| {
        let any = if at(own, 1).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let client = outside.run(|| UdpSocket::bind(any).unwrap());
        client.connect(at(own, 8080)).unwrap();
        client
    });
    for network in ["blue", "green", "blue"] {
        let server = mapped_pod(&lab, network, &mapped);
        clients.iter().for_each(|client| wait_until_asked(client, &server));
        call(&lab, "DEL", network, &server, &mapped).nothing();
        // Now it is the DPU's own port, without a listener.
        for client in &clients {
            wait_for("a refusal", LIMIT, || client.send(b"question").err());
        }
    }
}

#[test]
fn mapped_port_limits_hold() {
    let settings = Settings { vfs: 17, pool: 17, ..settings() };
    let (lab, outside) = lab_of(&settings);
    let ports = |first: u16, count: u16| -> Value {
        (first..first + count).map(|port| mapping(port, "tcp")).collect()
    };
    let other = Netns::new("other");
    let refused = |mappings: &Value, words: &[&str]| {
        let (_, reported) = call(&lab, "ADD", "blue", &other, mappings).error();
        assert!(words.iter().all(|word| reported.contains(word)), "{reported}");
    };
    refused(&ports(10_000, 257), &["INVALID_REQUEST", "257 mapped ports"]);
    let pod = |number: u16| mapped_pod(&lab, "blue", &ports(10_000 + number * 256, 256));
    let pods: Vec<_> = (0..16).map(pod).collect();
    refused(&ports(20_000, 1), &["OVERLOADED", "4096 mapped ports at most"]);
    let seen = |server: &Netns, port| seen_by_tcp(&outside, server, at(DPU_OUTSIDE[0], port));
    assert_eq!(seen(&pods[0], 10_000), Some(OUTSIDE[0].parse().unwrap()));
    assert_eq!(seen(&pods[15], 14_095), Some(OUTSIDE[0].parse().unwrap()));
    call(&lab, "DEL", "blue", &pods[0], &json!([])).nothing();
    let _ = call(&lab, "ADD", "blue", &other, &ports(20_000, 256)).result();
    assert_eq!(seen(&other, 20_000), Some(OUTSIDE[0].parse().unwrap()));
}

#[test]
fn mapped_port_needs_its_family() {
    let (lab, outside) = lab();
    let red = "name: red\ngateway_mode: dpu\nsubnets:\n- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n";
    let file = lab.path().join("network.yaml");
    fs::write(&file, red).unwrap();
    let _ = lab.operator().output(&["apply", "-f", file.to_str().unwrap()]);
    let mut particular = mapping(8080, "tcp");
    particular["hostIP"] = json!("::");
    let other = Netns::new("other");
    let (_, reported) = call(&lab, "ADD", "red", &other, &json!([particular])).error();
    assert!(reported.contains("8080/tcp of :: has no address"), "{reported}");
    let server = mapped_pod(&lab, "red", &json!([mapping(8080, "tcp")]));
    let seen = |own: &str| seen_by_tcp(&outside, &server, at(own, 8080));
    assert_eq!(seen(DPU_OUTSIDE[0]), Some(OUTSIDE[0].parse().unwrap()));
    assert_eq!(seen(DPU_OUTSIDE[1]), None);
}
