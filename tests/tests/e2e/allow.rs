//! Ingress rules of networks, seen from the pods.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use e2e::{FabricKind, Lab, Netns, Settings, scenarios::pods::addresses, wait_for};

const UNSUPPORTED: &str = "UNSUPPORTED";
const LIMIT: Duration = Duration::from_secs(20);

/// Three networks whose pods are neighbours.
const NETWORKS: &str = r#"
[[network]]
name = "green"
subnets = [{ cidr = "10.2.0.0/24" }]
routes = [{ destination = "10.1.0.0/24" }]

[[network]]
name = "red"
subnets = [{ cidr = "10.3.0.0/24" }]
routes = [{ destination = "10.1.0.0/24" }]
"#;

const BLUE: &str = r#"
name: blue
subnets: [{ cidr: 10.1.0.0/24 }]
routes: [{ destination: 10.2.0.0/24 }, { destination: 10.3.0.0/24 }]
anti_spoofing: full
allow:
  - { from_networks: [green], protocol: tcp, ports: ["80", "8000-8007"] }
  - { from: [10.3.0.0/24], protocol: icmp }
"#;

fn apply(lab: &Lab, network: &str) -> std::process::Output {
    let file = lab.path().join("network.yaml");
    fs::write(&file, network).unwrap();
    lab.operator().dpuctl(&["apply", "-f", file.to_str().unwrap()])
}

/// A pod of a network with its address. The pod completes checksums, because Open vSwitch's userspace datapath does
/// not.
fn pod(lab: &Lab, network: &str) -> (Netns, String) {
    let pod = Netns::new(network);
    let address = addresses(&lab.add(network, &pod, "eth0").result()).remove(0);
    let off = e2e::run(pod.command("ethtool").args(["-K", "eth0", "tx", "off"]));
    assert!(off.status.success(), "{off:?}");
    (pod, address)
}

fn connects(from: &Netns, to: &(Netns, String), port: u16) -> bool {
    let there = SocketAddr::new(to.1.parse().unwrap(), port);
    let _listener = to.0.run(|| TcpListener::bind(there)).unwrap();
    let limit = Duration::from_millis(500);
    from.run(|| TcpStream::connect_timeout(&there, limit)).is_ok()
}

fn pings(from: &Netns, address: &str) -> bool {
    let ping = ["-n", "-q", "-c", "1", "-W", "1", address];
    e2e::run(from.command("ping").args(ping)).status.success()
}

#[track_caller]
fn assert_kept(blue: &(Netns, String), others: &[(Netns, String); 3]) {
    let [second, green, red] = others;
    for (port, may) in [(80, true), (8007, true), (8008, false)] {
        assert_eq!(connects(&green.0, blue, port), may, "green to {port}");
    }
    assert!(!connects(&red.0, blue, 80) && !connects(&second.0, blue, 80));
    assert!(pings(&red.0, &blue.1), "red may");
    assert!(!pings(&green.0, &blue.1) && !pings(&second.0, &blue.1));
    // Replies to the pod's own connections pass.
    for other in [green, red] {
        assert!(pings(&blue.0, &other.1) && connects(&blue.0, other, 80));
    }
}

/// Open vSwitch enforces the rules, also after restarts. A bridge refuses them by name and says what to do.
#[test]
fn ingress_rules_hold_or_are_refused() {
    let settings = Settings { networks: NETWORKS.into(), vfs: 6, pool: 6, ..Settings::default() };
    let on_ovs = settings.kind_of_fabric == FabricKind::OpenVswitch;
    let mut lab = Lab::start(&settings);
    let applied = apply(&lab, BLUE);
    if !on_ovs {
        let printed = String::from_utf8(applied.stderr).unwrap();
        assert!(!applied.status.success(), "{printed}");
        for words in [UNSUPPORTED, "network blue", "allow ", "fabric.driver"] {
            assert!(printed.contains(words), "{words:?} is not in {printed}");
        }
        let plain = BLUE.split("allow:").next().unwrap();
        assert!(apply(&lab, plain).status.success());
        return lab.assert_invariants();
    }
    assert!(applied.status.success(), "{applied:?}");
    let shown = lab.operator().output(&["describe", "network", "blue"]);
    let rules = "Allow:\n  network green: tcp 80 8000-8007\n  10.3.0.0/24: icmp\n";
    assert!(shown.contains(rules), "{shown}");

    let blue = pod(&lab, "blue");
    let others = ["blue", "green", "red"].map(|network| pod(&lab, network));
    let attachment = lab.operator().get("attachments").remove(0);
    let id = attachment["id"].as_str().unwrap().to_owned();
    let shown = lab.operator().output(&["describe", "attachment", &id]);
    assert!(shown.contains("10.2.0.0/24 may open tcp 80 8000-8007"), "{shown}");
    assert_kept(&blue, &others);

    lab.service.stop();
    let vswitch = lab.vswitch.as_mut().unwrap();
    vswitch.kill_daemon();
    vswitch.start_daemon();
    lab.start_service();
    lab.wait_until_good();
    wait_for("the flows", LIMIT, || pings(&blue.0, &others[1].1).then_some(()));
    assert_kept(&blue, &others);
    lab.assert_invariants();

    lab.del("blue", &blue.0, "eth0").nothing();
    for (network, (pod, _)) in ["blue", "green", "red"].iter().zip(&others) {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}
