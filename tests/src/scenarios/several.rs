//! One ADD attaches a pod to several networks, all or none. One DEL detaches it from all.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};

use super::{life, outages::ids};
use crate::{Answer, Call, Lab, Netns, Settings, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

/// A lab with VFs for two pods of three interfaces each.
fn roomy(settings: &Settings) -> Settings {
    Settings { vfs: 6, pool: 6, ..settings.clone() }
}

/// A call for `pod` with `eth0` in `blue` and these further networks, in the specification's annotation.
#[must_use]
pub fn call(lab: &Lab, verb: &str, pod: &Netns, networks: &str) -> Call {
    Call::new(verb, &configuration(lab, networks)).of(pod.name(), Some(&pod.path()), "eth0")
}

fn configuration(lab: &Lab, networks: &str) -> Value {
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({
        "io.kubernetes.cri.pod-annotations": { "k8s.v1.cni.cncf.io/networks": networks },
    });
    configuration
}

/// ADD of such a pod.
#[must_use]
pub fn add(lab: &Lab, pod: &Netns, networks: &str) -> Answer {
    lab.execute(&call(lab, "ADD", pod, networks))
}

/// Interfaces of a result, in its order.
#[must_use]
pub fn interfaces(result: &Value) -> Vec<&str> {
    let interfaces = result["interfaces"].as_array().into_iter().flatten();
    interfaces.map(|interface| interface["name"].as_str().unwrap()).collect()
}

/// Addresses of one interface of a result, without prefix length.
pub(super) fn addresses_of(result: &Value, interface: &str) -> Vec<String> {
    let number = interfaces(result).iter().position(|name| *name == interface).unwrap();
    let ips = result["ips"].as_array().unwrap().iter().filter(|ip| ip["interface"] == number);
    let bare = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    ips.map(bare).collect()
}

/// Names of all links of a namespace.
pub(super) fn links(netns: &Netns) -> BTreeSet<String> {
    let links = netns.json("ip", &["link"]);
    links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

/// Asserts the interface of the pod's default route in each family.
fn assert_leaves_by(pod: &Netns, [v4, v6]: [&str; 2]) {
    for (outside, interface) in [("198.51.100.1", v4), ("2001:db8::1", v6)] {
        assert_eq!(pod.json("ip", &["route", "get", outside])[0]["dev"], interface, "{outside}");
    }
}

/// One ADD gives a pod all its networks, and one DEL releases them.
///
/// # Panics
/// If an expectation is not met.
pub fn one_add_attaches_all_networks(settings: &Settings) {
    let lab = Lab::start(&roomy(settings));
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let of_a = add(&lab, &a, "green,wire@data").result();
    assert_eq!(interfaces(&of_a), ["eth0", "net1", "data"]);
    let of_b = add(&lab, &b, r#"[{"name": "green", "ips": ["10.2.0.77"]}]"#).result();
    assert_eq!(addresses_of(&of_b, "net1")[0], "10.2.0.77");
    lab.assert_invariants();
    assert_eq!(lab.operator().get("attachments").len(), 5);
    for interface in ["eth0", "net1"] {
        for address in addresses_of(&of_a, interface) {
            assert!(b.pings(&address), "{} does not reach {address}", b.name());
        }
    }
    assert!(addresses_of(&of_a, "data").is_empty());
    assert_leaves_by(&a, ["eth0"; 2]);
    assert_eq!(add(&lab, &a, "green,wire@data").result(), of_a, "a repeat is the same");
    life::check(&lab, "blue", &a, &of_a).nothing();

    lab.del("blue", &a, "eth0").nothing();
    lab.assert_invariants();
    assert_eq!(lab.operator().get("attachments").len(), 2);
    lab.del("blue", &b, "eth0").nothing();
    lab.assert_clean_slate();
}

/// A network's prefix for unnamed interfaces has priority over the configuration's. Existing interfaces keep their
/// names when the prefix changes.
///
/// # Panics
/// If an expectation is not met.
pub fn network_prefixes_name_interfaces(settings: &Settings) {
    let networks = settings
        .networks
        .replace("name = \"green\"\n", "name = \"green\"\ninterface_prefix = \"data\"\n");
    let mut lab = Lab::start(&Settings { networks, vfs: 8, pool: 8, ..settings.clone() });
    let apply = |lab: &Lab, prefix: &str| {
        let file = lab.path().join("red.yaml");
        fs::write(&file, format!("name: red\ninterface_prefix: {prefix}\n")).unwrap();
        let _ = lab.operator().output(&["apply", "-f", file.to_str().unwrap()]);
    };
    let networks = "green,wire@w0,red,tiny";
    let named = |lab: &Lab, network: &str, prefix: &str| {
        wait_for(&format!("a name that begins with {prefix}"), LIMIT, || {
            let pod = Netns::new("pod");
            let result = add(lab, &pod, network).result();
            lab.del("blue", &pod, "eth0").nothing();
            interfaces(&result)[1].starts_with(prefix).then_some(())
        });
    };
    apply(&lab, "store");
    named(&lab, "red", "store");
    let pod = Netns::new("pod");
    let result = add(&lab, &pod, networks).result();
    assert_eq!(interfaces(&result), ["eth0", "data1", "w0", "store3", "net4"]);

    apply(&lab, "fast");
    named(&lab, "red", "fast");
    assert_eq!(add(&lab, &pod, networks).result(), result, "what is there keeps its name");
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    assert_eq!(add(&lab, &pod, networks).result(), result, "a new agent knows it");
    life::check(&lab, "blue", &pod, &result).nothing();

    let other = Netns::new("other");
    let (_, reported) = add(&lab, &other, "green,wire@data1").error();
    assert!(
        reported.contains("two interfaces of") && reported.contains("would be named data1"),
        "{reported}"
    );
    let mut configured = configuration(&lab, "wire,red");
    configured["interfacePrefix"] = "lan".into();
    let call = Call::new("ADD", &configured).of(other.name(), Some(&other.path()), "eth0");
    assert_eq!(interfaces(&lab.execute(&call).result()), ["eth0", "lan1", "fast2"]);
    lab.assert_invariants();
    for pod in [&pod, &other] {
        lab.del("blue", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();

    let _ = lab.operator().output(&["delete", "network", "red"]);
    apply(&lab, "''");
    named(&lab, "red", "net");
    lab.assert_clean_slate();
}

/// A failure of one network leaves nothing of the others.
///
/// # Panics
/// If anything remains.
pub fn failing_network_leaves_nothing_of_others(settings: &Settings) {
    let lab = Lab::start(&Settings { vfs: 3, pool: 3, ..settings.clone() });
    let pod = Netns::new("pod");
    let own = links(&pod);
    let fails = |networks: &str, reported: &str| {
        let (_, text) = add(&lab, &pod, networks).error();
        assert!(text.contains(reported), "{networks}: {text}");
        lab.assert_clean_slate();
        assert_eq!(links(&pod), own, "{networks}");
        text
    };
    fails("green,purple", "NETWORK_UNKNOWN");
    let text = fails("green,wire,tiny", "VFS_EXHAUSTED");
    assert!(text.split_whitespace().any(|word| word == "4"), "its four interfaces: {text}");
    fails(r#"[{"name": "green"}, {"name": "tiny", "ips": ["10.9.0.1"]}]"#, "10.9.0.1");
    fails("green,green", "twice");
    fails("green@eth0", "twice");
    pod.ip(&["link", "add", "net2", "type", "veth", "peer", "name", "other"]);
    let own = links(&pod);
    let (_, text) = add(&lab, &pod, "green,wire").error();
    assert!(text.contains("INTERFACE_EXISTS"), "{text}");
    lab.assert_clean_slate();
    assert_eq!(links(&pod), own);
    pod.ip(&["link", "delete", "net2"]);
    let _ = add(&lab, &pod, "green,wire").result();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The default route uses the network that the pod chooses. An ADD with other networks than the previous one is
/// refused.
///
/// # Panics
/// If an expectation is not met.
pub fn default_route_follows_chosen_network(settings: &Settings) {
    let lab = Lab::start(&roomy(settings));
    let pod = Netns::new("pod");
    let by_green = r#"[{"name": "green", "default-route": ["10.2.0.1"]}]"#;
    let _ = add(&lab, &pod, by_green).result();
    assert_leaves_by(&pod, ["net1", "eth0"]);
    for (networks, reported) in [("green,wire", "without net2"), ("wire@x", "also with net1")] {
        let (_, text) = add(&lab, &pod, networks).error();
        assert!(text.contains("ATTACHMENT_DIFFERS") && text.contains(reported), "{text}");
    }
    lab.assert_invariants();
    assert_leaves_by(&pod, ["net1", "eth0"]);
    lab.del("blue", &pod, "eth0").nothing();
    for (network, gateway) in [("green", "10.9.0.1"), ("wire", "10.2.0.9")] {
        let lost = format!(r#"[{{"name": "{network}", "default-route": ["{gateway}"]}}]"#);
        add(&lab, &pod, &lost).fails(100, &[gateway, network, "net1"]);
    }
    lab.assert_clean_slate();
}

/// CHECK covers all interfaces. GC keeps those whose first interface is valid.
///
/// # Panics
/// If an expectation is not met.
pub fn check_and_gc_see_all_interfaces(settings: &Settings) {
    let lab = Lab::start(&roomy(settings));
    let pod = Netns::new("pod");
    let result = add(&lab, &pod, "green,wire").result();
    let gc = |valid: Value| {
        for network in ["blue", "green", "wire"] {
            let mut configuration = lab.configuration("blue");
            configuration["network"] = network.into();
            configuration["cni.dev/valid-attachments"] = valid.clone();
            lab.execute(&Call::new("GC", &configuration)).nothing();
        }
    };
    gc(json!([{ "containerID": pod.name(), "ifname": "eth0" }]));
    lab.assert_invariants();
    assert_eq!(lab.operator().get("attachments").len(), 3);

    let mut other = result.clone();
    other["interfaces"][2]["mac"] = json!("02:00:00:00:00:99");
    life::check(&lab, "blue", &pod, &other).fails(132, &["net2", "MAC"]);
    pod.ip(&["address", "flush", "dev", "net1"]);
    life::check(&lab, "blue", &pod, &result).fails(132, &["net1"]);
    gc(json!([]));
    lab.assert_clean_slate();
}

/// All interfaces survive deaths of both programs and a card reset, and all end with the pod.
///
/// # Panics
/// If one is lost or remains.
pub fn all_interfaces_survive_deaths_and_resets(settings: &Settings) {
    let mut lab = Lab::start(&roomy(settings));
    let (pod, peer) = (Netns::new("pod"), Netns::new("peer"));
    let result = add(&lab, &pod, "green,wire").result();
    let _ = add(&lab, &peer, "green").result();
    let before = ids(&lab);
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    lab.reset_card();
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    let reaches = || addresses_of(&result, "net1").iter().all(|address| peer.pings(address));
    wait_for("net1 to be reached again", LIMIT, || reaches().then_some(()));
    drop(pod);
    wait_for("the pod's attachments to go", LIMIT, || {
        (lab.operator().get("attachments").len() == 2).then_some(())
    });
    lab.assert_invariants();
    lab.del("blue", &peer, "eth0").nothing();
    lab.assert_clean_slate();
}

/// An operator's release of a group's key releases the whole group, because the runtime has no other key for the rest.
/// A group member is released alone.
///
/// # Panics
/// If anything remains, or too much is released.
pub fn operator_releases_a_whole_group(settings: &Settings) {
    let lab = Lab::start(&roomy(settings));
    let pod = Netns::new("pod");
    let release = |interface: &str| {
        let attachments = lab.operator().get("attachments");
        let named = |one: &&Value| one["key"]["interfaceName"] == interface;
        let id = attachments.iter().find(named).unwrap()["id"].as_str().unwrap().to_owned();
        let _ = lab.operator().output(&["release", &id, "--reason", "a test", "--yes"]);
    };
    let left = |count: usize| {
        wait_for(&format!("{count} attachments"), LIMIT, || {
            (lab.operator().get("attachments").len() == count).then_some(())
        });
        lab.assert_invariants();
    };
    let result = add(&lab, &pod, "green,wire").result();
    life::check(&lab, "blue", &pod, &result).nothing();
    release("net2");
    left(2);
    life::check(&lab, "blue", &pod, &result).fails(132, &["net2", "released alone"]);
    release("eth0");
    left(0);
    lab.assert_clean_slate();
}

/// An agent without records makes the DPU release the whole group of a pod's first interface.
///
/// # Panics
/// If anything remains.
pub fn del_without_records_releases_the_group(settings: &Settings) {
    let mut lab = Lab::start(&roomy(settings));
    let pod = Netns::new("pod");
    let _ = add(&lab, &pod, "green,wire").result();
    lab.agent.crash();
    let records = lab.path().join("agent/records.redb");
    fs::rename(&records, records.with_extension("lost")).unwrap();
    lab.start_agent();
    lab.wait_until_good();
    lab.del("blue", &pod, "eth0").nothing();
    drop(pod);
    lab.assert_clean_slate();
}
