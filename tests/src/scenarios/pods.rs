//! Pods get their network from the DPU and release it.

use serde_json::Value;

use crate::{Lab, Netns, Settings};

/// Addresses of a result, without prefix length.
///
/// # Panics
/// If one is no text.
#[must_use]
pub fn addresses(result: &Value) -> Vec<String> {
    let bare = |address: String| address.split('/').next().unwrap().to_owned();
    addresses_with_prefix(result).into_iter().map(bare).collect()
}

/// Addresses with prefix of one of a result's interfaces.
pub(crate) fn addresses_with_prefix_of(result: &Value, place: usize) -> Vec<String> {
    let mut result = result.clone();
    if let Some(ips) = result["ips"].as_array_mut() {
        ips.retain(|ip| ip["interface"] == place);
    }
    addresses_with_prefix(&result)
}

/// Addresses with prefix of a result.
pub(crate) fn addresses_with_prefix(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

/// Two pods ping each other in both families and release everything.
///
/// # Panics
/// If an expectation is not met.
pub fn two_pods_ping_in_both_families(settings: &Settings) {
    let lab = Lab::start(settings);
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let (of_a, of_b) = (lab.add("blue", &a, "eth0").result(), lab.add("blue", &b, "eth0").result());
    lab.assert_invariants();
    for (from, to) in [(&a, &of_b), (&b, &of_a)] {
        let addresses = addresses(to);
        assert_eq!(addresses.len(), 2, "{to}");
        for address in addresses {
            assert!(from.pings(&address), "{} does not reach {address}", from.name());
        }
    }
    lab.del("blue", &a, "eth0").nothing();
    lab.del("blue", &b, "eth0").nothing();
    lab.assert_clean_slate();
}

/// A pod has several interfaces in several networks.
///
/// # Panics
/// If an expectation is not met.
pub fn pod_has_interfaces_in_several_networks(settings: &Settings) {
    let lab = Lab::start(settings);
    let pod = Netns::new("pod");
    for (network, interface) in [("blue", "eth0"), ("green", "net1"), ("wire", "net2")] {
        let result = lab.add(network, &pod, interface).result();
        assert_eq!(addresses(&result).len(), if network == "wire" { 0 } else { 2 });
    }
    lab.assert_invariants();
    for outside in ["198.51.100.1", "2001:db8::1"] {
        assert_eq!(pod.json("ip", &["route", "get", outside])[0]["dev"], "eth0", "{outside}");
    }
    lab.del("green", &pod, "net1").nothing();
    lab.assert_invariants();
    assert_eq!(lab.operator().get("attachments").len(), 2);
    for interface in ["eth0", "net2"] {
        lab.del("blue", &pod, interface).nothing();
    }
    lab.assert_clean_slate();
}

/// An interface of a layer-2 network has no address and carries frames.
///
/// # Panics
/// If an expectation is not met.
pub fn layer_2_interface_carries_frames_without_address(settings: &Settings) {
    let lab = Lab::start(settings);
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    for pod in [&a, &b] {
        let result = lab.add("wire", pod, "eth0").result();
        assert!(addresses(&result).is_empty(), "{result}");
        lab.assert_invariants();
    }
    for (pod, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
        pod.ip(&["addr", "add", address, "dev", "eth0"]);
    }
    assert!(a.pings("192.0.2.2"));
}
