//! Routes and policy rules of networks in pods.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    thread,
    time::Duration,
};

use e2e::{
    Call, Lab, Netns, Settings,
    scenarios::{
        pods::addresses,
        routing::{self, assert_routed, settings_with_routes, switch_off_and_on},
    },
    wait_for,
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
    sys::signal::Signal,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn network_routes_and_rules_are_kept() {
    let settings = Settings::default();
    routing::network_routes_and_rules_are_kept(&settings);
}

#[test]
fn result_describes_routes_completely() {
    let lab = Lab::start(&settings_with_routes(&Settings::default()));
    let result = lab.add("routed", &Netns::new("pod"), "eth0").result();
    let routes = result["routes"].as_array().unwrap();
    for route in [
        json!({ "dst": "172.20.0.0/16", "gw": "10.8.0.254", "mtu": 1300, "advmss": 1200, "priority": 50 }),
        json!({ "dst": "172.21.0.0/16" }),
        json!({ "dst": "172.22.0.0/16", "scope": 254 }),
        json!({ "dst": "172.23.0.0/16", "scope": 0 }),
        json!({ "dst": "198.18.0.0/15", "gw": "169.254.7.1", "table": 110 }),
        json!({ "dst": "0.0.0.0/0", "gw": "10.8.0.2", "table": 100 }),
        json!({ "dst": "2001:db8:20::/48", "gw": "fd00:10:8::fe", "mtu": 1400, "advmss": 1220, "priority": 60 }),
        json!({ "dst": "::/0", "gw": "fd00:10:8::2", "table": 100_000 }),
        json!({ "dst": "::/0", "gw": "fd00:10:8::1" }),
    ] {
        assert!(routes.contains(&route), "{route} is not in {result:#}");
    }
    let leads_nowhere =
        |route: &Value| route["dst"] == "10.66.0.0/16" || route["dst"] == "fd66::/16";
    assert!(
        !routes.iter().any(leads_nowhere),
        "they would be read as leading somewhere: {result:#}"
    );
}

/// The agent gets no events from inside a pod.
#[test]
fn routes_return_after_interface_toggle() {
    let settings = settings_with_routes(&Settings::default());
    let lab = Lab::start(&Settings { timeouts: "reconcile_s = 1".into(), ..settings });
    let pod = Netns::new("pod");
    let _ = lab.add("routed", &pod, "eth0").result();
    for _ in 0..3 {
        assert_routed(&pod);
        switch_off_and_on(&pod);
    }
    assert_routed(&pod);
    lab.assert_invariants();
    lab.del("routed", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// Rules for the pod's own addresses, and routes that its interfaces share.
#[test]
fn interfaces_share_dropping_routes() {
    let networks = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/24"
gateway = "10.8.0.1"
[[network.routes]]
destination = "172.20.0.0/16"
table = 100
[[network.routes]]
destination = "10.66.0.0/16"
kind = "blackhole"
[[network.rules]]
source = "own"
table = 100
"#;
    let lab = lab_left_alone(networks);
    let pod = Netns::new("pod");
    let blackholes = || pod.json("ip", &["route", "show", "type", "blackhole"]).len();
    for (count, interface) in [(1, "eth0"), (2, "net1")] {
        let _ = lab.add("blue", &pod, interface).result();
        assert_eq!((rules_to_table(&pod), blackholes()), (count, 1));
    }
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!((rules_to_table(&pod), blackholes()), (1, 1));
    lab.del("blue", &pod, "net1").nothing();
    assert_eq!((rules_to_table(&pod), blackholes()), (0, 0));
    lab.assert_clean_slate();
}

/// A network that one DPU shows can be applied to another unchanged.
#[test]
fn applied_network_routes_like_file_network() {
    let network = {
        let lab = Lab::start(&settings_with_routes(&Settings::default()));
        let networks = lab.operator().get("networks");
        let of_file = networks.iter().find(|found| found["network"]["name"] == "routed");
        of_file.unwrap()["network"].clone()
    };
    let lab = Lab::start(&Settings::default());
    apply(&lab, &network);
    let pod = Netns::new("pod");
    let _ = lab.add("routed", &pod, "eth0").result();
    assert_routed(&pod);
    lab.assert_invariants();
    lab.del("routed", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

fn apply(lab: &Lab, network: &Value) {
    let file = lab.path().join("network.json");
    fs::write(&file, network.to_string()).unwrap();
    let printed = lab.operator().output(&["apply", "-f", file.to_str().unwrap()]);
    assert!(printed.contains("created"), "{printed}");
}

/// A pod with a router's address would get a route to itself.
#[test]
fn no_pod_gets_a_routers_address() {
    let networks = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/29"
gateway = "10.8.0.1"
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.8.0.2"
[[network.routes]]
destination = "172.21.0.0/16"
gateway = "10.8.0.4"
"#;
    let lab = Lab::start(&Settings { networks: networks.into(), ..Settings::default() });
    let pods: Vec<_> = (0..4).map(|_| Netns::new("pod")).collect();
    let given = pods[..3].iter().flat_map(|pod| addresses(&lab.add("blue", pod, "eth0").result()));
    assert_eq!(
        given.collect::<BTreeSet<_>>(),
        ["10.8.0.3", "10.8.0.5", "10.8.0.6"].map(String::from).into()
    );
    lab.add("blue", &pods[3], "eth0").fails(103, &["10.8.0.0/29"]);
    let mut wish = lab.configuration("blue");
    wish["runtimeConfig"] = json!({ "ips": ["10.8.0.4"] });
    let call = Call::new("ADD", &wish).of(pods[3].name(), Some(&pods[3].path()), "eth0");
    lab.execute(&call).fails(105, &["10.8.0.4", "excluded"]);
    lab.assert_invariants();
}

/// A lab with these networks and without automatic repairs.
fn lab_left_alone(networks: &str) -> Lab {
    let timeouts = "reconcile_s = 3600".into();
    Lab::start(&Settings { networks: networks.into(), timeouts, ..Settings::default() })
}

/// Number of the pod's rules that lead to the table of these tests' networks.
pub(crate) fn rules_to_table(pod: &Netns) -> usize {
    pod.json("ip", &["rule", "show", "table", "100"]).len()
}

/// A network with a rule.
const WITH_A_RULE: &str = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/24"
[[network.rules]]
source = "10.8.0.0/24"
table = 100
priority = 1000
"#;

/// Rules belong to the pod, not to an interface.
#[test]
fn shared_rule_stays_until_last_interface() {
    let lab = lab_left_alone(WITH_A_RULE);
    let pod = Netns::new("pod");
    for interface in ["eth0", "net1"] {
        let _ = lab.add("blue", &pod, interface).result();
        assert_eq!(rules_to_table(&pod), 1);
    }
    lab.del("blue", &pod, "net1").nothing();
    assert_eq!(rules_to_table(&pod), 1);
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(rules_to_table(&pod), 0);
    lab.assert_clean_slate();
}

/// Two calls at the same moment each check what the other has, one after the other.
#[test]
fn rule_survives_concurrent_interface_change() {
    let lab = lab_left_alone(WITH_A_RULE);
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    for (goes, comes) in [("eth0", "net1"), ("net1", "eth0")].repeat(4) {
        thread::scope(|scope| {
            scope.spawn(|| lab.del("blue", &pod, goes).nothing());
            let _ = lab.add("blue", &pod, comes).result();
        });
        assert_eq!(rules_to_table(&pod), 1, "{goes} went, {comes} came");
    }
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(rules_to_table(&pod), 0);
    lab.assert_clean_slate();
}

/// Locks a pod like another agent of this host that works on it.
fn work_at(pod: &Netns) -> File {
    let locks = File::options().write(true).open("/run/dpu-offload/pods.lock").unwrap();
    let position = fs::metadata(pod.path()).unwrap().ino();
    let byte = libc::flock {
        l_type: libc::F_WRLCK.try_into().unwrap(),
        l_whence: libc::SEEK_SET.try_into().unwrap(),
        l_start: position.try_into().unwrap(),
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&locks, FcntlArg::F_OFD_SETLK(&byte)).unwrap();
    locks
}

#[test]
fn locked_pod_rules_are_left_unchanged() {
    let lab = lab_left_alone(WITH_A_RULE);
    let pod = Netns::new("pod");
    let at_work = work_at(&pod);
    lab.add("blue", &pod, "eth0").fails(129, &["another agent"]);
    assert_eq!(rules_to_table(&pod), 0);
    lab.assert_clean_slate();
    drop(at_work);
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_eq!(rules_to_table(&pod), 1);
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(rules_to_table(&pod), 0);
    lab.assert_clean_slate();
}

/// A network whose routes have a priority.
const WITH_PRIORITIES: &str = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/24"
[[network.subnets]]
cidr = "fd00:10:8::/64"
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.8.0.254"
priority = 50
[[network.routes]]
destination = "2001:db8:20::/48"
gateway = "fd00:10:8::fe"
priority = 60
"#;

/// Interfaces of a pod's routes to a destination, by metric.
fn ways_to(pod: &Netns, destination: &str) -> Vec<(String, u64)> {
    let family = if destination.contains(':') { "-6" } else { "-4" };
    let mut ways: Vec<_> = pod
        .json("ip", &[family, "route", "show", destination])
        .iter()
        .map(|route| (route["dev"].as_str().unwrap().to_owned(), route["metric"].as_u64().unwrap()))
        .collect();
    ways.sort_by_key(|(_, metric)| *metric);
    ways
}

/// The kernel accepts one route for each destination and metric.
#[test]
fn second_interface_takes_over_routes() {
    let mut lab = lab_left_alone(WITH_PRIORITIES);
    let pod = Netns::new("pod");
    let routes = [("172.20.0.0/16", 50), ("2001:db8:20::/48", 60)];
    let assert_ways = || {
        for (destination, priority) in routes {
            let expected = [("eth0".to_owned(), priority), ("net1".to_owned(), priority + 1)];
            assert_eq!(ways_to(&pod, destination), expected);
        }
    };
    let _ = lab.add("blue", &pod, "eth0").result();
    let second = lab.add("blue", &pod, "net1").result();
    assert_ways();
    let reported: BTreeSet<_> = second["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["priority"].as_u64())
        .collect();
    assert_eq!(reported, BTreeSet::from([Some(51), Some(61)]));
    assert_eq!(lab.add("blue", &pod, "net1").result(), second);
    lab.reset_card();
    lab.wait_until_good();
    assert_ways();
    lab.assert_invariants();

    lab.del("blue", &pod, "eth0").nothing();
    for (destination, priority) in routes {
        assert_eq!(ways_to(&pod, destination), [("net1".to_owned(), priority + 1)]);
    }
    let check = Call::new("CHECK", &with_previous(&lab, &second));
    lab.execute(&check.of(pod.name(), Some(&pod.path()), "net1")).nothing();
    lab.del("blue", &pod, "net1").nothing();
    lab.assert_clean_slate();
}

/// Configuration of the network `blue` as a runtime passes it after an ADD.
fn with_previous(lab: &Lab, result: &Value) -> Value {
    let mut configuration = lab.configuration("blue");
    configuration["prevResult"] = result.clone();
    configuration
}

/// The second interface cannot be configured if its route cannot have a higher metric than the first one's.
#[test]
fn failed_add_keeps_other_interfaces_rules() {
    let networks = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/24"
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.8.0.254"
priority = 4294967295
[[network.rules]]
source = "10.8.0.0/24"
table = 100
priority = 1000
"#;
    let lab = lab_left_alone(networks);
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.add("blue", &pod, "net1").fails(129, &["the route 172.20.0.0/16 via", "File exists"]);
    assert_eq!(rules_to_table(&pod), 1);
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// Interfaces through which the pod reaches a prefix directly.
fn direct_ways(pod: &Netns, destination: &str) -> Vec<String> {
    let routes = pod.json("ip", &["-4", "route"]);
    let routes = routes.into_iter().chain(pod.json("ip", &["-6", "route"]));
    let direct = routes.filter(|it| it["dst"] == destination && it["gateway"].is_null());
    direct.map(|it| it["dev"].as_str().unwrap().to_owned()).collect()
}

const SUBNETS: [(&str, &str); 2] = [("-4", "10.8.0.0/24"), ("-6", "fd00:10:8::/64")];

fn with_subnets() -> String {
    let subnet = |(_, cidr): (&str, &str)| {
        let gateway = cidr.replace("0/24", "1").replace("::/64", "::1");
        format!("[[network.subnets]]\ncidr = \"{cidr}\"\ngateway = \"{gateway}\"\n")
    };
    format!("[[network]]\nname = \"blue\"\n{}", SUBNETS.map(subnet).concat())
}

#[test]
fn subnet_route_is_compared_and_restored() {
    let lab = lab_left_alone(&with_subnets());
    let pod = Netns::new("pod");
    let result = lab.add("blue", &pod, "eth0").result();
    let check = Call::new("CHECK", &with_previous(&lab, &result));
    let check = check.of(pod.name(), Some(&pod.path()), "eth0");
    lab.execute(&check).nothing();
    for (family, subnet) in SUBNETS {
        pod.ip(&[family, "route", "del", subnet, "dev", "eth0"]);
        let lost = format!("has lost the route {subnet}");
        lab.execute(&check).fails(132, &[&lost]);
        let doctor = String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
        assert!(doctor.contains("POD_DIFFERS") && doctor.contains(&lost), "{doctor}");
        lab.agent.signal(Signal::SIGHUP);
        wait_for("a CHECK that passes", LIMIT, || {
            lab.execute(&check).status.success().then_some(())
        });
        assert_eq!(direct_ways(&pod, subnet), ["eth0"]);
    }
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The kernel refuses the route via the gateway before the route to the gateway's subnet.
#[test]
fn dependent_routes_follow_subnet_route() {
    let lab = lab_left_alone(&with_subnets());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let _ = lab.add("blue", &pod, "net1").result();
    let has_all = || {
        SUBNETS.iter().all(|(family, subnet)| {
            let ways = pod.json("ip", &[family, "route", "show", "default"]);
            direct_ways(&pod, subnet).len() == 2 && ways.len() == 2
        })
    };
    assert!(has_all(), "both interfaces have both");
    for interface in ["net1", "eth0"] {
        for (family, subnet) in SUBNETS {
            pod.ip(&[family, "route", "del", "default", "dev", interface]);
            pod.ip(&[family, "route", "del", subnet, "dev", interface]);
        }
        lab.agent.signal(Signal::SIGHUP);
        wait_for("all routes", LIMIT, || has_all().then_some(()));
    }
    lab.assert_invariants();
    for interface in ["net1", "eth0"] {
        lab.del("blue", &pod, interface).nothing();
    }
    lab.assert_clean_slate();
}
