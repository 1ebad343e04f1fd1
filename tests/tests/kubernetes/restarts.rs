//! Restarts of node programs, agent and service under running pods.

use std::collections::BTreeMap;

use e2e::{
    cluster::{Cluster, LIMIT, addresses, deployment, is_ready, name, restarts},
    run, wait_for,
};
use serde_json::{Value, json};

/// What must stay of each pod and each attachment.
fn what_runs(cluster: &Cluster) -> BTreeMap<String, String> {
    let pods = cluster.pods();
    let pods = pods.iter().map(|pod| {
        let uid = &pod["metadata"]["uid"];
        (name(pod).to_owned(), format!("{uid} {:?} {}", addresses(pod), restarts(pod)))
    });
    let attachments = cluster.attachments();
    let attachments = attachments.iter().map(|it| {
        (it["id"].to_string(), format!("{} {}", it["key"]["containerId"], it["vf"]["device"]))
    });
    pods.chain(attachments).collect()
}

fn assert_reached_from_host(cluster: &Cluster, pods: &[Value]) {
    for address in pods.iter().flat_map(addresses) {
        assert!(cluster.host.pings(&address), "the host does not reach {address}");
    }
}

#[test]
fn kubelet_and_containerd_restarts_keep_pods() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 3, json!({}))]);
    let pods = cluster.wait_for_ready(3);
    let before = what_runs(&cluster);
    for program in ["kubelet", "containerd"] {
        for end in [Cluster::stop, Cluster::kill] {
            end(&cluster, program);
            assert_reached_from_host(&cluster, &pods);
            cluster.start(program);
        }
    }
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=4"]);
    cluster.wait_for_ready(4);
    let after = what_runs(&cluster);
    for (what, how) in &before {
        assert_eq!(after.get(what), Some(how), "{what}");
    }
    cluster.assert_gives_everything_back();
}

#[test]
fn restarts_lose_no_packet() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 2, json!({}))]);
    let pods = cluster.wait_for_ready(2);
    let before = what_runs(&cluster);
    let address = &addresses(&pods[0])[0];
    let mut ping = cluster.host.command("ping");
    ping.args(["-n", "-q", "-i", "0.02", "-c", "400", "-W", "5", address]);
    std::thread::scope(|scope| {
        let ping = scope.spawn(|| run(&mut ping));
        cluster.restart("agent");
        cluster.restart("service");
        let printed = String::from_utf8(ping.join().unwrap().stdout).unwrap();
        assert!(printed.contains("400 received"), "{printed}");
    });
    assert_eq!(what_runs(&cluster), before);
    cluster.assert_invariants();
    cluster.assert_gives_everything_back();
}

#[test]
fn rebooted_node_restores_its_pods() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 12, json!({}))]);
    let before = cluster.wait_for_ready(12);
    cluster.reboot();
    let after = wait_for("all pods to run again", LIMIT, || {
        let pods = cluster.pods();
        let run_again = |pod: &&Value| is_ready(pod) && restarts(pod) > 0;
        (pods.iter().filter(run_again).count() == 12).then_some(pods)
    });
    let names = |pods: &[Value]| -> Vec<_> { pods.iter().map(name).map(str::to_owned).collect() };
    assert_eq!(names(&after), names(&before));
    assert_reached_from_host(&cluster, &after);
    assert_eq!(cluster.attachments().len(), 12);
    cluster.assert_invariants();
    cluster.assert_gives_everything_back();
}
