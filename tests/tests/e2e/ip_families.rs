//! One IP family or no address for an interface.

use std::collections::BTreeSet;

use e2e::{Answer, Call, Lab, Netns, Settings, scenarios::several};
use serde_json::{Value, json};

/// A call for `eth0` of a pod that asks for these families.
fn call(lab: &Lab, verb: &str, network: &str, pod: &Netns, keys: &Value) -> Answer {
    let mut configuration = lab.configuration(network);
    configuration.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    lab.execute(&Call::new(verb, &configuration).of(pod.name(), Some(&pod.path()), "eth0"))
}

/// Families of an interface's addresses without link-local ones.
fn families(pod: &Netns, interface: &str) -> BTreeSet<String> {
    let link = pod.json("ip", &["addr", "show", "dev", interface]).remove(0);
    let held = link["addr_info"].as_array().unwrap().iter();
    let global = held.filter(|it| it["scope"] == "global");
    global.map(|it| it["family"].as_str().unwrap().to_owned()).collect()
}

fn has_default_route(pod: &Netns, family: &str) -> bool {
    !pod.json("ip", &[family, "route", "show", "default"]).is_empty()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn address_of<'a>(result: &'a Value, family: &str) -> &'a str {
    let is_it = |it: &&Value| it["address"].as_str().unwrap().contains(family);
    let found = result["ips"].as_array().unwrap().iter().find(is_it).unwrap();
    found["address"].as_str().unwrap().split('/').next().unwrap()
}

#[test]
fn interface_has_only_the_asked_families() {
    let mut lab = Lab::start(&Settings::default());
    let other = Netns::new("other");
    let reached = lab.add("blue", &other, "eth0").result();
    let asked = [("IPv4", "inet", "-4", "."), ("IPv6", "inet6", "-6", ":")];
    let pods = asked.map(|(family, kernel, option, mark)| {
        let (pod, keys) = (Netns::new("pod"), json!({ "ipFamilies": [family] }));
        let mut result = call(&lab, "ADD", "blue", &pod, &keys).result();
        assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{result}");
        assert_eq!(families(&pod, "eth0"), set([kernel]), "{family}");
        assert_eq!(
            ["-4", "-6"].map(|it| has_default_route(&pod, it)),
            ["-4", "-6"].map(|it| it == option)
        );
        assert!(pod.pings(address_of(&reached, mark)), "{family}");
        assert_eq!(call(&lab, "ADD", "blue", &pod, &keys).result(), result, "a repeat is the same");
        call(&lab, "ADD", "blue", &pod, &json!({})).fails(110, &["IP families"]);
        result["cniVersion"] = json!("1.1.0");
        call(&lab, "CHECK", "blue", &pod, &json!({ "prevResult": result })).nothing();
        (pod, kernel, result)
    });
    lab.service.crash();
    lab.start_service();
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_invariants();
    for (pod, kernel, result) in &pods {
        assert_eq!(families(pod, "eth0"), set([kernel]));
        call(&lab, "CHECK", "blue", pod, &json!({ "prevResult": result })).nothing();
        lab.del("blue", pod, "eth0").nothing();
    }
    lab.del("blue", &other, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn interface_without_address_cannot_take_one() {
    let lab = Lab::start(&Settings::default());
    let (other, pod) = (Netns::new("other"), Netns::new("pod"));
    let reached = lab.add("blue", &other, "eth0").result();
    let result = call(&lab, "ADD", "blue", &pod, &json!({ "ipFamilies": [] })).result();
    assert!(result["ips"].as_array().is_none_or(Vec::is_empty), "{result}");
    assert_eq!(families(&pod, "eth0"), set([]));
    assert!(!["-4", "-6"].iter().any(|family| has_default_route(&pod, family)));
    call(&lab, "CHECK", "blue", &pod, &json!({ "prevResult": result })).nothing();
    lab.assert_invariants();
    pod.ip(&["addr", "add", "10.1.77.7/16", "dev", "eth0"]);
    assert!(
        !pod.pings(address_of(&reached, ".")),
        "the guard drops an address that it was not given"
    );
    for pod in [&pod, &other] {
        lab.del("blue", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn each_further_interface_has_its_own_families() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let asked = json!([
        { "name": "green", "cni-args": { "ipFamilies": ["IPv4"] } },
        { "name": "tiny", "cni-args": { "ipFamilies": [] } },
    ]);
    let _ = several::add(&lab, &pod, &asked.to_string()).result();
    assert_eq!(families(&pod, "eth0"), set(["inet", "inet6"]));
    assert_eq!(families(&pod, "net1"), set(["inet"]));
    assert_eq!(families(&pod, "net2"), set([]));
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn unavailable_families_are_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let refused = |network: &str, keys: &Value, code: u64, word: &str| {
        call(&lab, "ADD", network, &pod, keys).fails(code, &[word]);
    };
    refused("blue", &json!({ "ipFamilies": ["inet"] }), 7, "\"inet\"");
    refused("tiny", &json!({ "ipFamilies": ["IPv6"] }), 105, "IPv6");
    let contradicting = json!({ "ipFamilies": ["IPv4"], "ips": ["fd00:10:1::77"] });
    refused("blue", &contradicting, 100, "fd00:10:1::77");
    let annotation = json!({ "dpu-offload.io/ip-families": "none" });
    let asked = json!({ "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotation } });
    let mut configuration = lab.configuration("blue");
    configuration.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
    let of_kubernetes = Call::new("ADD", &configuration)
        .of(pod.name(), Some(&pod.path()), "eth0")
        .with("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0");
    lab.execute(&of_kubernetes).fails(109, &["IP family"]);
    lab.assert_clean_slate();
}
