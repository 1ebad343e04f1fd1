//! Tenants with the same subnet, each in its own layer-2 domain.

use std::{fs, time::Duration};

use e2e::{Answer, Call, FabricKind, Lab, Netns, Settings, Timeouts, run, wait_for};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

/// Two tenants, which differ in one line.
fn networks(acme: &str, bolt: &str) -> String {
    let subnets = "subnets = [{ cidr = \"10.7.0.0/24\" }, { cidr = \"fd00:7::/64\" }]";
    format!(
        "[[network]]\nname = \"acme\"\n{acme}\n{subnets}\n[[network]]\nname = \"bolt\"\n{bolt}\n{subnets}\n"
    )
}

fn settings(acme: &str, bolt: &str) -> Settings {
    Settings { networks: networks(acme, bolt), cool_down: 0, ..Settings::with_vfs(6) }
}

/// In two VLANs, which Open vSwitch separates on any kernel.
fn in_two_vlans() -> Settings {
    Settings { kind_of_fabric: FabricKind::OpenVswitch, ..settings("vlan = 20", "vlan = 30") }
}

/// An ADD that asks for 10.7.0.N and fd00:7::N.
fn add(lab: &Lab, network: &str, pod: &Netns, last: u8) -> Answer {
    let mut configuration = lab.configuration(network);
    let ips = [format!("10.7.0.{last}"), format!("fd00:7::{last}")];
    configuration["runtimeConfig"] = json!({ "ips": ips });
    lab.execute(&Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0"))
}

/// A pod with these addresses.
fn pod(lab: &Lab, network: &str, last: u8) -> Netns {
    let pod = Netns::new(network);
    let _ = add(lab, network, &pod, last).result();
    pod
}

/// Pods of a tenant: two with the same addresses as the other tenant's, and one with an address of its own.
struct Tenant {
    network: &'static str,
    pods: [Netns; 3],
    own: u8,
}

impl Tenant {
    fn attach(lab: &Lab, network: &'static str, own: u8) -> Self {
        Self { network, pods: [2, 3, own].map(|last| pod(lab, network, last)), own }
    }

    /// Its pods reach each other and none of the other tenant's.
    fn assert_apart_from(&self, other: &Self) {
        let [first, second, _] = &self.pods;
        for (own, shared, foreign) in [
            (format!("10.7.0.{}", self.own), "10.7.0.3", format!("10.7.0.{}", other.own)),
            (format!("fd00:7::{}", self.own), "fd00:7::3", format!("fd00:7::{}", other.own)),
        ] {
            assert!(
                first.pings(shared) && first.pings(&own),
                "{} has lost its peers",
                self.network
            );
            assert_eq!(neighbour(first, shared), link(second)["address"]);
            assert!(!answers(first, &foreign), "{} reaches {foreign}", self.network);
        }
    }

    fn detach(&self, lab: &Lab) {
        for pod in &self.pods {
            lab.del(self.network, pod, "eth0").nothing();
        }
    }
}

fn link(pod: &Netns) -> Value {
    pod.json("ip", &["address", "show", "dev", "eth0"]).remove(0)
}

/// The MAC address in a pod's neighbour entry.
fn neighbour(pod: &Netns, address: &str) -> Value {
    pod.json("ip", &["neighbour", "show", address, "dev", "eth0"])[0]["lladdr"].clone()
}

fn answers(pod: &Netns, address: &str) -> bool {
    let ping = ["-n", "-q", "-c", "1", "-W", "1", address];
    run(pod.command("ping").args(ping)).status.success()
}

/// Addresses of a pod's interface without the link-local one.
fn global_addresses(pod: &Netns) -> Vec<Value> {
    let link = link(pod);
    let all = link["addr_info"].as_array().unwrap().iter();
    all.filter(|it| it["scope"] == "global").map(|it| it["local"].clone()).collect()
}

/// The tenants have the same addresses and stay separate, also after restarts.
fn assert_tenants_are_apart(mut lab: Lab) {
    let (acme, bolt) = (Tenant::attach(&lab, "acme", 4), Tenant::attach(&lab, "bolt", 5));
    for place in [0, 1] {
        let [one, other] = [&acme, &bolt].map(|tenant| global_addresses(&tenant.pods[place]));
        assert!(one.len() == 2 && one == other, "{one:?} and {other:?}");
    }
    let assert_apart = || {
        acme.assert_apart_from(&bolt);
        bolt.assert_apart_from(&acme);
    };
    assert_apart();
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    assert_apart();
    acme.detach(&lab);
    lab.await_settled();
    assert!(bolt.pods[0].pings("10.7.0.3"), "acme's end has cut bolt off");
    // An address that acme has released is free there, and still used in bolt.
    for (network, is_free) in [("acme", true), ("bolt", false)] {
        let pod = Netns::new("late");
        let added = add(&lab, network, &pod, 2);
        match is_free {
            true => drop(added.result()),
            false => added.fails(104, &["10.7.0.2"]),
        }
        lab.del(network, &pod, "eth0").nothing();
    }
    bolt.detach(&lab);
    lab.assert_clean_slate();
}

#[test]
fn tenants_have_one_subnet_in_two_vlans() {
    assert_tenants_are_apart(Lab::start(&in_two_vlans()));
}

#[test]
fn tenants_have_one_subnet_in_two_bridges() {
    let settings = Settings {
        fabric: "bridges = [{ name = 'br-bolt' }]".into(),
        ..settings("", "bridge = \"br-bolt\"")
    };
    assert_tenants_are_apart(Lab::start(&settings));
}

#[test]
fn invariants_hold_with_shared_addresses() {
    let lab = Lab::start(&in_two_vlans());
    let pods = ["acme", "bolt"].map(|network| (network, pod(&lab, network, 2)));
    lab.assert_invariants();
    for (network, pod) in &pods {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

/// In two VLANs, on a host with a configured host port in bolt.
fn with_host_port(networks: String) -> Settings {
    let agent = "[[host_port]]\nnetwork = \"bolt\"\n".into();
    Settings { networks, agent, timeouts: Timeouts::from("reconcile_s = 1"), ..in_two_vlans() }
}

#[test]
fn network_beside_a_host_port_is_refused() {
    let bolt = "[[network]]\nname = \"bolt\"\nvlan = 30\nsubnets = [{ cidr = \"10.7.0.0/24\" }]\n";
    let lab = Lab::start(&with_host_port(bolt.into()));
    wait_for("the host port", LIMIT, || {
        let attachments = lab.operator().get("attachments");
        attachments.iter().any(|it| it["state"] == "ATTACHMENT_STATE_ATTACHED").then_some(())
    });
    let file = lab.path().join("acme.json");
    let acme = json!({ "name": "acme", "vlan": 20, "subnets": [{ "cidr": "10.7.0.0/16" }] });
    fs::write(&file, acme.to_string()).unwrap();
    let reported = lab.operator().is_refused(&["apply", "-f", file.to_str().unwrap()]);
    for word in ["SUBNET_CONFLICT", "\"acme\" in VLAN 20", "\"bolt\" in VLAN 30", "offload0"] {
        assert!(reported.contains(word), "{word} is not in {reported}");
    }
    lab.assert_invariants();
}

#[test]
fn host_port_in_a_shared_subnet_is_refused() {
    let lab = Lab::start(&with_host_port(in_two_vlans().networks));
    wait_for("the reason", LIMIT, || {
        let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).ok()?;
        let mut differences = found["findings"].as_array()?.iter();
        let missing = differences.find(|it| it["code"] == "HOST_PORT_MISSING")?;
        missing["message"].as_str()?.contains("acme in VLAN 20").then_some(())
    });
    lab.assert_clean_slate();
}
