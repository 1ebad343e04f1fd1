//! Usual pods: deployments, and pods in the host's network.

use std::collections::BTreeSet;

use e2e::cluster::{Cluster, addresses, deployment, is_ready, name, pod};
use serde_json::json;

#[test]
fn twenty_deployment_pods_communicate() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 20, json!({}))]);
    let pods = cluster.wait_for_ready(20);
    let all: BTreeSet<_> = pods.iter().flat_map(addresses).collect();
    assert_eq!(all.len(), 40, "{all:?}");
    let all: Vec<_> = all.into_iter().collect();
    let ping = "ping -q -c 1 -W 5 $address >/dev/null || exit 1";
    cluster.in_pod(name(&pods[0]), &format!("for address in {}; do {ping}; done", all.join(" ")));
    cluster.assert_invariants();
    cluster.assert_gives_everything_back();
}

#[test]
fn host_network_pod_has_no_attachment() {
    let cluster = Cluster::take();
    let mut own = pod("own", json!({}));
    own["spec"]["hostNetwork"] = json!(true);
    cluster.apply(&[own]);
    let pods = cluster.wait_for_ready(1);
    assert!(is_ready(&pods[0]));
    assert_eq!(addresses(&pods[0]), ["192.168.100.1"]);
    assert!(cluster.attachments().is_empty());
    cluster.assert_gives_everything_back();
}
