//! More pods than VFs, at once and one after the other. There are 32 VFs.

use e2e::{
    cluster::{Cluster, LIMIT, deployment, is_ready, name, pod},
    wait_for,
};
use offload_proto::Reason;
use serde_json::json;

#[test]
fn excess_pods_wait_for_room() {
    let cluster = Cluster::take();
    let pods: Vec<_> = (0..36).map(|number| pod(&format!("pod-{number}"), json!({}))).collect();
    cluster.apply(&pods);
    cluster.wait_for_ready(32);
    let all = cluster.pods();
    let (ready, waiting): (Vec<_>, Vec<_>) = all.iter().partition(|pod| is_ready(pod));
    for pod in &waiting {
        let reported = cluster.wait_for_event(name(pod), "VFS_EXHAUSTED");
        assert_eq!(reported.matches("VF pool \"default\" ").count(), 1, "{reported}");
        assert!(
            reported.contains(Reason::VfsExhausted.advice()) && reported.lines().count() == 1,
            "{reported}"
        );
    }
    cluster.assert_invariants();
    let four: Vec<_> = ready[..4].iter().map(|pod| name(pod)).collect();
    cluster.delete(&four);
    for pod in &waiting {
        cluster.wait_for_readiness(name(pod), true);
    }
    cluster.assert_gives_everything_back();
}

#[test]
fn sixty_pods_in_waves_get_vfs() {
    let cluster = Cluster::take();
    for wave in 0..3 {
        let wave = format!("wave-{wave}");
        cluster.apply(&[deployment(&wave, 20, json!({}))]);
        wait_for(&format!("{wave} to be ready"), LIMIT, || {
            let is_of_wave = |pod: &&serde_json::Value| name(pod).starts_with(&wave);
            let pods = cluster.pods();
            (pods.iter().filter(is_of_wave).filter(|pod| is_ready(pod)).count() == 20).then_some(())
        });
        cluster.kubectl(&["delete", "deployment", &wave, "--wait=false"]);
    }
    cluster.assert_gives_everything_back();
}
