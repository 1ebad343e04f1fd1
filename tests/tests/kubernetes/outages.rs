//! Outages of what pods need: the API server, the DPU's service.

use e2e::{
    cluster::{Cluster, LIMIT, addresses, deployment, name, pod, restarts},
    wait_for,
};
use serde_json::{Value, json};

/// Kills the container of a pod and waits until it runs again.
fn crash_a_container(cluster: &Cluster, pod: &Value) {
    let before = cluster.process_of(pod).expect("a container");
    cluster.crash(pod);
    wait_for(&format!("the container of {} to run again", name(pod)), LIMIT, || {
        cluster.process_of(pod).filter(|process| *process != before)
    });
    for address in addresses(pod) {
        assert!(cluster.host.pings(&address), "the host does not reach {address}");
    }
}

fn wait_for_restart(cluster: &Cluster, pod: &Value) {
    let object = format!("pod/{}", name(pod));
    wait_for("a container's restart to be told", LIMIT, || {
        (restarts(&cluster.get(&object)) == 1).then_some(())
    });
}

#[test]
fn pods_run_without_api_server() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 2, json!({}))]);
    let pods = cluster.wait_for_ready(2);
    cluster.stop("apiserver");
    crash_a_container(&cluster, &pods[0]);
    cluster.assert_invariants();
    cluster.start("apiserver");
    wait_for_restart(&cluster, &pods[0]);
    let now = cluster.wait_for_ready(2);
    assert_eq!(addresses(&now[0]), addresses(&pods[0]));
    cluster.assert_gives_everything_back();
}

#[test]
fn new_pods_wait_for_dpu_service() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 2, json!({}))]);
    let pods = cluster.wait_for_ready(2);
    cluster.stop_service();
    cluster.apply(&[pod("late", json!({}))]);
    crash_a_container(&cluster, &pods[0]);
    wait_for_restart(&cluster, &pods[0]);
    let reported = cluster.wait_for_event("late", "cannot connect to the DPU at");
    assert_eq!(reported.lines().count(), 1, "{reported}");
    let node = cluster.wait_for_ready(2);
    assert_eq!(addresses(&node[0]), addresses(&pods[0]));
    assert!(cluster.node_is_ready());
    cluster.restart("service");
    cluster.wait_for_ready(3);
    cluster.assert_invariants();
    cluster.assert_gives_everything_back();
}

#[test]
fn pods_removed_without_service_are_released_later() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 4, json!({}))]);
    cluster.wait_for_ready(4);
    cluster.stop_service();
    cluster.kubectl(&["delete", "deployment", "web", "--wait=false"]);
    wait_for("the pods' end", LIMIT, || cluster.pods().is_empty().then_some(()));
    cluster.restart("service");
    cluster.assert_gives_everything_back();
}
