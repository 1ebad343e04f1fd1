//! VFs that the kubelet assigns: six, in the pool `gold`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use e2e::{
    cluster::{Cluster, LIMIT, NODE, deployment, name, pod},
    wait_for,
};
use serde_json::{Value, json};

const RESOURCE: &str = "dpu-offload.io/gold";
const FOLDER: &str = "/var/lib/kubelet/device-plugins";

/// Puts a pod or a template on the pool's network.
fn on_gold(pod: &mut Value) {
    pod["metadata"]["annotations"] = json!({"dpu-offload.io/network": "gold"});
}

/// Container keys that request a VF.
fn asks() -> Value {
    json!({"resources": {"limits": {RESOURCE: "1"}}})
}

/// A pod that requests a VF.
fn asking(name: &str) -> Value {
    let mut pod = pod(name, asks());
    on_gold(&mut pod);
    pod
}

fn wait_for_resources(cluster: &Cluster, count: &str) {
    wait_for(&format!("{count} VFs to hand out"), LIMIT, || {
        let node = cluster.get(&format!("node/{NODE}"));
        (node["status"]["allocatable"][RESOURCE] == count).then_some(())
    });
}

/// VFs of the attachments by pod name.
fn attached(cluster: &Cluster) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let attachments = cluster.attachments();
    attachments.iter().map(|it| (text(&it["pod"]["name"]), text(&it["vf"]["device"]))).collect()
}

#[test]
fn kubelet_assigns_vfs_and_limits_pods() {
    let cluster = Cluster::take();
    wait_for_resources(&cluster, "6");
    let names: Vec<_> = (0..7).map(|number| format!("gold-{number}")).collect();
    let pods: Vec<_> = names.iter().map(|name| asking(name)).collect();
    cluster.apply(&pods[..6]);
    let ready = cluster.wait_for_ready(6);
    let attached = attached(&cluster);
    for pod in ready.iter().map(name) {
        let reported = cluster.in_pod(pod, "echo $PCIDEVICE_DPU_OFFLOAD_IO_GOLD");
        assert_eq!(reported.trim(), attached[pod], "{attached:?}");
    }
    cluster.apply(&pods[6..]);
    cluster.wait_for_event("gold-6", &format!("Insufficient {RESOURCE}"));
    assert_eq!(cluster.get("pod/gold-6")["status"]["phase"], "Pending");
    cluster.delete(&["gold-0"]);
    cluster.wait_for_readiness("gold-6", true);
    cluster.assert_invariants();
    cluster.assert_gives_everything_back();
}

#[test]
fn pod_without_request_takes_no_kubelet_vf() {
    let cluster = Cluster::take();
    let mut greedy = pod("greedy", json!({}));
    on_gold(&mut greedy);
    cluster.apply(&[greedy]);
    let reported = cluster.wait_for_event("greedy", "POOL_PINNED_ONLY");
    assert_eq!(reported.lines().count(), 1, "{reported}");
    assert!(cluster.attachments().is_empty());
    cluster.assert_gives_everything_back();
}

#[test]
fn restarted_kubelet_gets_vfs_again() {
    let cluster = Cluster::take();
    cluster.apply(&[asking("before")]);
    cluster.wait_for_ready(1);
    let before = attached(&cluster);
    for break_it in
        [|cluster: &Cluster| cluster.stop("kubelet"), |cluster: &Cluster| cluster.kill("kubelet")]
    {
        break_it(&cluster);
        cluster.start("kubelet");
        wait_for_resources(&cluster, "6");
    }
    assert_eq!(attached(&cluster), before);
    // At its start a kubelet removes all sockets, and the node's status is old until its first update.
    fs::remove_file(wait_for("the agent's socket", LIMIT, socket)).unwrap();
    wait_for("the agent's socket", LIMIT, || socket().map(drop));
    wait_for_resources(&cluster, "6");
    // The kubelet permanently refuses a pod that it admits before the next registration; a deployment creates another.
    let mut after = deployment("after", 1, asks());
    on_gold(&mut after["spec"]["template"]);
    cluster.apply(&[after]);
    cluster.wait_for_ready(2);
    assert_eq!(attached(&cluster)["before"], before["before"]);
    cluster.assert_gives_everything_back();
}

fn socket() -> Option<PathBuf> {
    let mut all = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains("gold") && name.ends_with(".sock")
    };
    all.find(is_ours)
}
