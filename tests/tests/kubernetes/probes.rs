//! The kubelet's probes, which come from the host through its host port.

use e2e::{
    cluster::{Cluster, LIMIT, pod, restarts},
    wait_for,
};
use serde_json::{Value, json};

/// Alive until `/tmp/dead` exists, at 8081; ready once `/tmp/ready` exists, at 8080.
const CONTAINER: &str = "httpd -f -p 8081 -h /etc & alive=$!
until test -e /tmp/ready; do sleep 0.1; done
httpd -p 8080 -h /tmp
until test -e /tmp/dead; do sleep 0.1; done
kill $alive
sleep infinity";

/// A container with these probe actions.
fn probed(ready: &Value, alive: &Value) -> Value {
    let probe = |action: &Value| {
        let mut probe = action.clone();
        probe["periodSeconds"] = json!(1);
        probe["failureThreshold"] = json!(2);
        probe
    };
    json!({
        "command": ["sh", "-c", CONTAINER],
        "readinessProbe": probe(ready),
        "livenessProbe": probe(alive),
    })
}

#[test]
fn kubelet_probes_work() {
    let cluster = Cluster::take();
    let http = |path: &str, port| json!({"httpGet": {"path": path, "port": port}});
    let tcp = |port| json!({"tcpSocket": {"port": port}});
    let exec = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
    cluster.apply(&[
        pod("http", probed(&http("/ready", 8080), &http("/hosts", 8081))),
        pod("tcp", probed(&tcp(8080), &tcp(8081))),
        pod("exec", probed(&exec("test -e /tmp/ready"), &exec("test ! -e /tmp/dead"))),
    ]);
    let pods = ["http", "tcp", "exec"];
    for name in pods {
        cluster.wait_for_event(name, "Readiness probe failed");
        cluster.wait_for_readiness(name, false);
        cluster.in_pod(name, "touch /tmp/ready");
    }
    for name in pods {
        cluster.wait_for_readiness(name, true);
        assert_eq!(restarts(&cluster.get(&format!("pod/{name}"))), 0, "{name} was alive");
        cluster.in_pod(name, "touch /tmp/dead");
    }
    for name in pods {
        wait_for(&format!("{name} to be started again"), LIMIT, || {
            (restarts(&cluster.get(&format!("pod/{name}"))) > 0).then_some(())
        });
    }
    cluster.assert_gives_everything_back();
}
