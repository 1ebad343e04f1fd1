//! Routes and policy rules of networks, in pods.

use std::{collections::BTreeSet, fs};

use e2e::{
    Call, Lab, Netns, Settings,
    scenarios::{
        pods::addresses,
        routing::{self, assert_routed, settings_with_routes},
    },
};
use serde_json::{Value, json};

#[test]
fn routes_and_rules_of_a_network_are_kept_for_as_long_as_the_pod_is_attached() {
    let settings = Settings::default();
    routing::routes_and_rules_of_a_network_are_kept_for_as_long_as_the_pod_is_attached(&settings);
}

#[test]
fn a_result_tells_all_that_routes_have() {
    let lab = Lab::start(&settings_with_routes(&Settings::default()));
    let result = lab.add("routed", &Netns::new("pod"), "eth0").result();
    let routes = result["routes"].as_array().unwrap();
    for route in [
        json!({ "dst": "172.20.0.0/16", "gw": "10.8.0.254", "mtu": 1300, "advmss": 1200, "priority": 50 }),
        json!({ "dst": "172.21.0.0/16" }),
        json!({ "dst": "0.0.0.0/0", "gw": "10.8.0.2", "table": 100 }),
        json!({ "dst": "2001:db8:20::/48", "gw": "fd00:10:8::fe", "mtu": 1400, "advmss": 1220, "priority": 60 }),
        json!({ "dst": "::/0", "gw": "fd00:10:8::2", "table": 100_000 }),
        json!({ "dst": "::/0", "gw": "fd00:10:8::1" }),
    ] {
        assert!(routes.contains(&route), "{route} is not in {result:#}");
    }
}

/// What one DPU shows of a network can be applied to another as it is.
#[test]
fn a_network_that_is_applied_routes_as_one_of_the_file_does() {
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
    let said = lab.operator().says(&["apply", "-f", file.to_str().unwrap()]);
    assert!(said.contains("created"), "{said}");
}

/// A pod that had a router's address would have a route by itself.
#[test]
fn the_routers_of_a_network_are_no_pods_address() {
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

/// A lab with these networks, in which nothing is put right by itself.
fn lab_left_alone(networks: &str) -> Lab {
    let timeouts = "reconcile_s = 3600".into();
    Lab::start(&Settings { networks: networks.into(), timeouts, ..Settings::default() })
}

/// How many rules of the pod lead to the table that the networks of these tests name.
fn rules_to_table(pod: &Netns) -> usize {
    pod.json("ip", &["rule", "show", "table", "100"]).len()
}

/// Rules are the pod's, and not an interface's.
#[test]
fn rules_that_two_interfaces_bring_stay_until_the_last_of_them_goes() {
    let networks = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/24"
[[network.rules]]
source = "10.8.0.0/24"
table = 100
priority = 1000
"#;
    let lab = lab_left_alone(networks);
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

/// The kernel takes no second route at the same cost, so that the second interface can't be configured.
#[test]
fn an_add_that_fails_leaves_the_rules_of_the_pods_other_interface() {
    let networks = r#"
[[network]]
name = "blue"
[[network.subnets]]
cidr = "10.8.0.0/24"
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.8.0.254"
priority = 50
[[network.rules]]
source = "10.8.0.0/24"
table = 100
priority = 1000
"#;
    let lab = lab_left_alone(networks);
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.add("blue", &pod, "net1").fails(129, &["File exists"]);
    assert_eq!(rules_to_table(&pod), 1);
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
