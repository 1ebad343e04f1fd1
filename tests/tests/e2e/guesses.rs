//! The VF that an ADD begins to move before the DPU has said which one is the pod's.

use std::time::Duration;

use e2e::{Call, Fault, Lab, Netns, Settings, openmetrics, wait_for};
use serde_json::Value;

const AGENT: &str = "host-shim-agent";
const LIMIT: Duration = Duration::from_secs(60);

fn lab() -> Lab {
    let settings =
        Settings { has_metrics: true, cool_down: 0, proxied: true, ..Settings::default() };
    Lab::start(&settings)
}

fn add(lab: &Lab, pod: &Netns) -> Call {
    Call::new("ADD", &lab.configuration("blue")).of(pod.name(), Some(&pod.path()), "eth0")
}

/// How many of the agent's guesses were right, and how many were wrong.
fn guesses(lab: &Lab) -> (f64, f64) {
    let page = openmetrics::scrape(&lab.card.host).unwrap();
    let number = |outcome| {
        let labels = [("outcome", outcome)];
        openmetrics::value(&page, "dpu_offload_agent_guesses", "_total", &labels).unwrap()
    };
    (number("right"), number("wrong"))
}

/// The VFs that are in a pod's namespace, by their links.
fn vfs_in(pod: &Netns) -> Vec<Value> {
    let links = pod.json("ip", &["-d", "link", "show"]).into_iter();
    let is_vf = |link: &Value| {
        link["ifalias"].as_str().is_some_and(|alias| alias.starts_with("virtual-nic"))
    };
    links.filter(is_vf).collect()
}

/// Begins an ADD while the DPU answers nothing, and waits until its VF has moved.
fn add_unanswered(lab: &Lab, pod: &Netns) -> std::process::Child {
    lab.proxy().strike(Fault::HoldDown);
    let plugin = add(lab, pod).begin(&lab.card.host);
    wait_for("the VF in the pod", LIMIT, || (!vfs_in(pod).is_empty()).then_some(()));
    plugin
}

#[test]
fn a_pod_gets_the_vf_that_was_guessed_and_no_other_is_moved() {
    let lab = lab();
    for _ in 0..8 {
        let pod = Netns::new("pod");
        let _ = lab.add("blue", &pod, "eth0").result();
        lab.assert_invariants();
        lab.del("blue", &pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
    assert_eq!(guesses(&lab), (8.0, 0.0));
}

#[test]
fn until_the_dpu_has_answered_the_pod_has_a_link_that_is_down_and_nothing_else() {
    let lab = lab();
    let pod = Netns::new("pod");
    let plugin = add_unanswered(&lab, &pod);
    let link = vfs_in(&pod).remove(0);
    assert_eq!(link["operstate"], "DOWN", "{link}");
    assert_ne!(link["ifname"], "eth0", "{link}");
    let shown = pod.json("ip", &["address", "show"]);
    let addresses = shown.iter().filter(|shown| shown["ifname"] == link["ifname"]);
    let held: Vec<_> = addresses.flat_map(|shown| shown["addr_info"].as_array().unwrap()).collect();
    assert!(held.is_empty(), "{held:?}");
    lab.proxy().heal();
    let output = plugin.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lab.assert_invariants();
    assert_eq!(guesses(&lab), (1.0, 0.0));
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn a_guess_whose_caller_died_goes_home_whatever_the_dpu_has_made_of_it() {
    let lab = lab();
    let pod = Netns::new("pod");
    let mut plugin = add_unanswered(&lab, &pod);
    plugin.kill().unwrap();
    let _ = plugin.wait().unwrap();
    lab.proxy().heal();
    wait_for("the VF to leave the pod", LIMIT, || vfs_in(&pod).is_empty().then_some(()));
    lab.assert_clean_slate();
}

#[test]
fn a_guess_of_an_agent_that_died_while_the_dpu_was_asked_goes_home() {
    let mut lab = lab();
    let pod = Netns::new("pod");
    let mut plugin = add_unanswered(&lab, &pod);
    lab.agent.crash();
    plugin.kill().unwrap();
    let _ = plugin.wait().unwrap();
    lab.proxy().heal();
    assert_eq!(vfs_in(&pod).len(), 1);
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_clean_slate();
    assert!(vfs_in(&pod).is_empty());
}

#[test]
fn a_pod_whose_namespace_ends_while_the_dpu_is_asked_loses_no_vf() {
    let lab = lab();
    let pod = Netns::new("pod");
    let plugin = add_unanswered(&lab, &pod);
    drop(pod);
    lab.proxy().heal();
    let output = plugin.wait_with_output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    lab.assert_clean_slate();
}

/// A network that refuses is tried again and again by a runtime: no VF travels for that.
#[test]
fn no_vf_moves_for_a_network_that_refuses() {
    let lab = lab();
    let pod = Netns::new("pod");
    let refused = |step| {
        lab.arm("dpu-service", "fail", step);
        lab.add("blue", &pod, "eth0").fails(115, &[step]);
    };
    refused("fabric-join");
    let trace = lab.trace(AGENT);
    refused("fabric-join");
    let passed = std::fs::read_to_string(&trace).unwrap();
    assert!(!passed.contains("move-ahead"), "{passed}");
    lab.assert_clean_slate();
    let _ = lab.add("blue", &pod, "eth0").result();
    let other = Netns::new("other");
    let _ = lab.add("blue", &other, "eth0").result();
    assert_eq!(guesses(&lab), (1.0, 0.0), "it is guessed for again once it gives");
    lab.assert_invariants();
}

#[test]
fn a_name_of_the_vf_that_the_pod_has_already_is_no_hindrance() {
    let lab = lab();
    let pod = Netns::new("pod");
    for vf in 0..4 {
        let (name, peer) = (format!("p0v{vf}"), format!("peer{vf}"));
        pod.ip(&["link", "add", &name, "type", "veth", "peer", "name", &peer]);
    }
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_eq!(guesses(&lab), (0.0, 0.0));
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
