//! Rights: who may use which network, and what a pod may choose, by file, API and annotations.

use std::{fs, time::Duration};

use e2e::{Answer, Call, Lab, Netns, Settings, scenarios::capabilities, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);
const NETWORK_NOT_ALLOWED: u64 = 141;
const MAC_NOT_ALLOWED: u64 = 142;

/// Rewrites the host's section with these additional keys, and waits until it is loaded.
fn reload_host(lab: &Lab, keys: &str) {
    let path = lab.path().join("dpu-service.toml");
    let head = "[[host]]\nname = \"node-1\"\n";
    let text = fs::read_to_string(&path).unwrap();
    let (before, after) = text.split_once(head).unwrap();
    let (_, after) = after.split_once("pfs = ").unwrap();
    let in_force = || lab.service.log().matches("configuration in force").count();
    let earlier = in_force();
    fs::write(&path, format!("{before}{head}{keys}pfs = {after}")).unwrap();
    lab.service.signal(Signal::SIGHUP);
    wait_for("the file in force", LIMIT, || (in_force() > earlier).then_some(()));
}

/// ADD of a pod's `eth0`, in a Kubernetes namespace unless that is empty.
fn add_of(lab: &Lab, network: &str, pod: &Netns, namespace: &str) -> Answer {
    let call = Call::new("ADD", &lab.configuration(network));
    let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace}");
    lab.execute(&call.of(pod.name(), Some(&pod.path()), "eth0").with("CNI_ARGS", arguments))
}

fn add_with_mac(lab: &Lab, pod: &Netns, mac: &str) -> Answer {
    capabilities::add(lab, "blue", pod, &json!({ "mac": mac }))
}

/// ADD by the shipped conflist, of a pod with these annotations of the product.
fn add_annotated(lab: &Lab, pod: &Netns, annotations: &Value) -> Answer {
    let ours = annotations.as_object().unwrap().iter();
    let named =
        |(name, value): (&String, &Value)| (format!("dpu-offload.io/{name}"), value.clone());
    let passed: Value = ours.map(named).collect();
    capabilities::add(lab, "blue", pod, &json!({ "io.kubernetes.cri.pod-annotations": passed }))
}

#[test]
fn host_gets_only_its_networks() {
    let lab = Lab::start(&Settings::default());
    let (running, other) = (Netns::new("running"), Netns::new("other"));
    let had = lab.add("green", &running, "eth0").result();
    reload_host(&lab, "networks = [\"blue\", \"later\"]\n");
    let words = ["host node-1 ", "network green", "NETWORK_NOT_ALLOWED"];
    lab.add("green", &other, "eth0").fails(NETWORK_NOT_ALLOWED, &words);
    let _ = lab.add("blue", &other, "eth0").result();
    // A runtime may repeat an ADD after it lost the answer.
    assert_eq!(lab.add("green", &running, "eth0").result()["ips"], had["ips"]);
    lab.assert_invariants();
    lab.del("green", &running, "eth0").nothing();
    lab.del("blue", &other, "eth0").nothing();
    reload_host(&lab, "");
    let _ = lab.add("green", &other, "eth0").result();
    lab.del("green", &other, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn mac_address_choice_is_restricted() {
    let lab = Lab::start(&Settings::default());
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let bridge = lab.card.dpu.json("ip", &["link", "show", "type", "bridge"]);
    let of_bridge = bridge[0]["address"].as_str().unwrap();
    add_with_mac(&lab, &pod, of_bridge).fails(106, &["fabric"]);
    reload_host(&lab, "any_mac = false\n");
    let words = ["06:11:22:33:44:55", "begin with 02", "MAC_NOT_ALLOWED"];
    add_with_mac(&lab, &pod, "06:11:22:33:44:55").fails(MAC_NOT_ALLOWED, &words);
    let _ = add_with_mac(&lab, &pod, "02:11:22:33:44:55").result();
    reload_host(&lab, "any_mac = true\n");
    add_with_mac(&lab, &other, "02:11:22:33:44:55")
        .fails(106, &["02:11:22:33:44:55", "attachment"]);
    // The MAC address that blue's gateway would have.
    add_with_mac(&lab, &other, "0e:c5:cc:d2:9b:c2").fails(106, &["0e:c5:cc:d2:9b:c2"]);
    let _ = add_with_mac(&lab, &other, "06:11:22:33:44:55").result();
    lab.assert_invariants();
}

#[test]
fn router_addresses_are_refused_to_pods() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    for address in ["10.2.0.1", "10.2.0.254", "fd00:10:2::1"] {
        capabilities::add(&lab, "green", &pod, &json!({ "ips": [address] })).fails(105, &[address]);
    }
    lab.assert_clean_slate();
}

#[test]
fn network_serves_only_its_namespaces() {
    let mut settings = Settings::default();
    settings
        .networks
        .push_str("[[network]]\nname = \"shop\"\nnamespaces = [\"prod\", \"stage\"]\n");
    let lab = Lab::start(&settings);
    let (running, other) = (Netns::new("running"), Netns::new("other"));
    let _ = add_of(&lab, "shop", &running, "prod").result();
    let dev = add_of(&lab, "shop", &other, "dev");
    dev.fails(NETWORK_NOT_ALLOWED, &["namespace \"dev\"", "network shop"]);
    let nobodys = add_of(&lab, "shop", &other, "");
    nobodys.fails(NETWORK_NOT_ALLOWED, &["network shop", "no namespace"]);
    lab.add("shop", &other, "eth0").fails(NETWORK_NOT_ALLOWED, &["no namespace"]);

    settings.networks = settings.networks.replace("\"prod\", \"stage\"", "\"dev\"");
    lab.configure_service(&settings);
    lab.service.signal(Signal::SIGHUP);
    wait_for("dev on shop", LIMIT, || {
        add_of(&lab, "shop", &other, "dev").status.success().then_some(())
    });
    let again = add_of(&lab, "shop", &running, "prod").result();
    assert_eq!(again["interfaces"][0]["name"], "eth0", "{again}");
    lab.del("shop", &other, "eth0").nothing();

    let applied = |text: &str| {
        let file = lab.path().join("network.yaml");
        fs::write(&file, text).unwrap();
        lab.operator().output(&["apply", "-f", file.to_str().unwrap()])
    };
    let _ = applied("name: red\nnamespaces: [prod]\n");
    add_of(&lab, "red", &other, "dev").fails(NETWORK_NOT_ALLOWED, &["network red"]);
    assert!(lab.operator().output(&["describe", "network", "red"]).contains("prod"));
    let shown = lab.operator().get("networks");
    let red = shown.iter().find(|network| network["network"]["name"] == "red").unwrap();
    assert!(applied(&red["network"].to_string()).contains("unchanged"));
    let _ = applied("name: red\nnamespaces: [prod, dev]\n");
    let _ = add_of(&lab, "red", &other, "dev").result();
    let file = lab.path().join("network.yaml");
    fs::write(&file, "name: red\nnamespaces: [\"team-*\"]\n").unwrap();
    let refused = lab.operator().is_refused(&["apply", "-f", file.to_str().unwrap()]);
    assert!(refused.contains("namespaces holds \"team-*\""), "{refused}");
    lab.assert_invariants();
}

#[test]
fn host_port_gets_namespaced_network() {
    let mut settings = Settings::default();
    settings.networks = settings
        .networks
        .replace("name = \"green\"\n", "name = \"green\"\nnamespaces = [\"prod\"]\n");
    let lab = Lab::start(&settings);
    let path = lab.path().join("host-shim.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}\n[[host_port]]\nnetwork = \"green\"\n")).unwrap();
    lab.agent.signal(Signal::SIGHUP);
    wait_for("a port on green", LIMIT, || {
        let attachments = lab.operator().get("attachments");
        attachments.iter().any(|attachment| attachment["network"] == "green").then_some(())
    });
    lab.assert_invariants();
}

#[test]
fn annotations_choose_network_addresses_and_limits() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let asked = json!({
        "network": "green", "mac": "02:11:22:33:44:55", "ips": "10.2.0.77, fd00:10:2::77",
        "bandwidth": "{\"ingressRate\": 8000000}",
    });
    let result = add_annotated(&lab, &pod, &asked).result();
    assert_eq!(result["interfaces"][0]["mac"], "02:11:22:33:44:55");
    assert_eq!(result["ips"][0]["address"], "10.2.0.77/24");
    assert_eq!(result["ips"][1]["address"], "fd00:10:2::77/64");
    assert_eq!(lab.operator().get("attachments")[0]["network"], "green");
    let rates: Vec<_> = capabilities::limits(&lab).into_iter().map(|(_, rate, _)| rate).collect();
    assert_eq!(rates, [1_000_000]);
    lab.assert_invariants();
    // Like any runtime: with the network of its configuration.
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn unsupported_annotations_are_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    for (name, value, code, word) in [
        ("vlan", "7", 2, "dpu-offload.io/network"),
        ("mac", "03:00:00:00:00:01", 7, "unicast"),
        ("ips", "10.2.0.300", 7, "10.2.0.300"),
        ("bandwidth", "10M", 7, "JSON"),
        ("network", "", 7, "empty"),
    ] {
        let refused = add_annotated(&lab, &pod, &json!({ name: value }));
        refused.fails(code, &[&format!("annotation dpu-offload.io/{name}"), word]);
    }
    add_annotated(&lab, &pod, &json!({ "network": "none" })).fails(101, &["none"]);
    reload_host(&lab, "networks = [\"blue\"]\n");
    let refused = add_annotated(&lab, &pod, &json!({ "network": "green" }));
    refused.fails(NETWORK_NOT_ALLOWED, &["network green"]);
    let both = json!({
        "mac": "02:00:00:00:00:01",
        "io.kubernetes.cri.pod-annotations": { "dpu-offload.io/mac": "02:00:00:00:00:02" },
    });
    let refused = capabilities::add(&lab, "blue", &pod, &both);
    refused.fails(7, &["annotation dpu-offload.io/mac", "contradicts runtimeConfig.mac"]);
    lab.assert_clean_slate();
}
