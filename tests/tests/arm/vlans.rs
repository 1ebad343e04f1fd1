//! Networks in VLANs, on a kernel with VLAN filtering.

use e2e::{ArmLab, Netns};
use serde_json::{Value, json};

use crate::{
    pair::{Pair, answers},
    settings,
};

/// VLANs of each used representor in `bridge vlan`.
fn vlans(lab: &ArmLab) -> Vec<(String, Value)> {
    let ports = lab.dpu.json("bridge -j vlan show");
    let representors = ports.iter().filter(|port| port["ifname"] != "br-offload");
    representors
        .map(|port| (port["ifname"].as_str().unwrap().into(), port["vlans"].clone()))
        .collect()
}

fn received(pod: &Netns) -> u64 {
    let link = &pod.json("ip", &["-s", "link", "show", "eth0"])[0];
    link["stats64"]["rx"]["packets"].as_u64().unwrap()
}

#[test]
fn vlans_separate_pods() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    let other = Netns::new("other");
    let _ = lab.add("green", &other, "eth0").result();
    lab.assert_invariants();
    let tags: Vec<_> = vlans(&lab).into_iter().map(|(_, vlans)| vlans).collect();
    let access = |id: u16| json!([{ "vlan": id, "flags": ["PVID", "Egress Untagged"] }]);
    assert_eq!(tags.iter().filter(|tag| **tag == access(100)).count(), 2, "{tags:?}");
    assert_eq!(tags.iter().filter(|tag| **tag == access(200)).count(), 1, "{tags:?}");

    // One subnet for all three networks, so that only the VLAN separates them.
    for (pod, address) in [(&pair.a, 1), (&pair.b, 2), (&other, 3)] {
        pod.ip(&["addr", "add", &format!("192.0.2.{address}/24"), "dev", "eth0"]);
    }
    let heard = received(&other);
    assert!(answers(&pair.a, "192.0.2.2"));
    assert!(!answers(&pair.a, "192.0.2.3"));
    assert!(!answers(&other, "192.0.2.1"));
    assert_eq!(received(&other), heard);

    lab.del("green", &other, "eth0").nothing();
    pair.detach(&lab);
    assert_eq!(vlans(&lab), []);
}

#[test]
fn vlans_separate_layer_2_networks() {
    let lab = ArmLab::start(&settings());
    let pods = [("wire", 1), ("wire", 2), ("cable", 3)].map(|(network, address)| {
        let pod = Netns::new(network);
        let _ = lab.add(network, &pod, "eth0").result();
        pod.ip(&["addr", "add", &format!("192.0.2.{address}/24"), "dev", "eth0"]);
        pod
    });
    assert!(pods[0].pings("192.0.2.2"));
    assert!(!answers(&pods[0], "192.0.2.3"));
    for pod in &pods {
        pod.ip(&["addr", "flush", "dev", "eth0", "scope", "global"]);
    }
    lab.assert_invariants();
    for (pod, network) in pods.iter().zip(["wire", "wire", "cable"]) {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn limited_pod_has_limit_on_representor() {
    let lab = ArmLab::start(&settings());
    let pod = Netns::new("pod");
    let _ = lab.add("green", &pod, "eth0").result();
    let queues = lab.dpu.json("tc -j qdisc show");
    let limits: Vec<_> = queues.iter().filter(|queue| queue["kind"] == "tbf").collect();
    assert_eq!(limits.len(), 1, "{queues:?}");
    // tc prints bytes per second.
    assert_eq!(limits[0]["options"]["rate"], 50_000_000 / 8, "{limits:?}");
    lab.del("green", &pod, "eth0").nothing();
    lab.assert_clean_slate();
    assert!(!lab.dpu.output("tc -j qdisc show").contains("tbf"));
}
