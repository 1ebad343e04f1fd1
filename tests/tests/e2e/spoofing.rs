//! Spoofing: what a pod sends with other addresses, seen from the pod.

use e2e::{Answer, Lab, Netns, Settings, scenarios::capabilities};
use serde_json::json;

const SOURCE_NOT_ALLOWED: u64 = 143;

/// The default network, whose pods may request one more source address.
const NETWORKS: &str = r#"
[[network]]
name = "blue"
default = true
optional_sources = ["10.1.0.240/28", "00:00:5e:00:01:07"]
subnets = [{ cidr = "10.1.0.0/24", ranges = [{ start = "10.1.0.1", end = "10.1.0.99" }] }]
"#;

fn lab() -> Lab {
    Lab::start(&Settings { networks: NETWORKS.into(), ..Settings::default() })
}

/// ADD of a pod that requests these additional sources.
fn add_asking(lab: &Lab, pod: &Netns, sources: &str) -> Answer {
    let annotations = json!({ "dpu-offload.io/allowed-sources": sources });
    capabilities::add(
        lab,
        "blue",
        pod,
        &json!({ "io.kubernetes.cri.pod-annotations": annotations }),
    )
}

/// Whether `pod` reaches `other` with this address, which it has only during the check.
fn reaches_from(pod: &Netns, address: &str, other: &str) -> bool {
    let whole = format!("{address}/24");
    pod.ip(&["address", "add", &whole, "dev", "eth0"]);
    let mut ping = pod.command("ping");
    ping.args(["-n", "-q", "-c", "3", "-i", "0.02", "-W", "1", "-I", address, other]);
    let reaches = ping.output().unwrap().status.success();
    pod.ip(&["address", "delete", &whole, "dev", "eth0"]);
    reaches
}

fn address_of(result: &serde_json::Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

#[test]
fn pod_sends_only_from_allowed_addresses() {
    let mut lab = lab();
    let (router, plain, third) = (Netns::new("router"), Netns::new("plain"), Netns::new("third"));
    let result = add_asking(&lab, &router, "10.1.0.240, 00:00:5E:00:01:07").result();
    let of_router = address_of(&result);
    let of_third = address_of(&lab.add("blue", &third, "eth0").result());
    let _ = lab.add("blue", &plain, "eth0").result();
    assert!(router.pings(&of_third) && plain.pings(&of_third));
    assert!(reaches_from(&router, "10.1.0.240", &of_third));
    assert!(!reaches_from(&router, "10.1.0.241", &of_third), "nobody has asked for it");
    assert!(!reaches_from(&plain, "10.1.0.240", &of_third), "only the router has asked for it");
    assert!(!reaches_from(&plain, &of_router, &of_third), "it is the router's own");

    // The repeated ADD contains the same request, and the pod has the source also after a restart.
    let _ = add_asking(&lab, &router, "00:00:5e:00:01:07,10.1.0.240/32").result();
    lab.service.stop();
    lab.start_service();
    lab.wait_until_good();
    assert!(reaches_from(&router, "10.1.0.240", &of_third));
    assert!(!reaches_from(&plain, "10.1.0.240", &of_third));
    lab.assert_invariants();
}

#[test]
fn forbidden_sources_are_refused() {
    let lab = lab();
    let pod = Netns::new("pod");
    for (sources, code, words) in [
        ("10.1.0.1", SOURCE_NOT_ALLOWED, ["network blue", "optional"]),
        ("10.1.0.0/24", SOURCE_NOT_ALLOWED, ["from 10.1.0.0/24", "optional"]),
        ("00:00:5e:00:01:08", SOURCE_NOT_ALLOWED, ["from 00:00:5e:00:01:08", "optional"]),
        ("10.1.0.300", 7, ["annotation dpu-offload.io/allowed-sources", "10.1.0.300"]),
        ("10.1.0.240/8", 100, ["host bits", "10.0.0.0/8"]),
    ] {
        add_asking(&lab, &pod, sources).fails(code, &words);
    }
    lab.assert_clean_slate();
}
