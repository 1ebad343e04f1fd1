//! Manifests of the tests.

use serde_json::{Value, json};

/// Seconds that a container sleeps, by which its process is found.
pub(super) const SLEEP: &str = "1000000";

/// A pod that sleeps. `container` adds keys to its container. The label `app` is the pod's name.
#[must_use]
pub fn pod(name: &str, container: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": spec(container),
    })
}

/// A deployment of such pods.
#[must_use]
pub fn deployment(name: &str, replicas: usize, container: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec(container)},
        },
    })
}

/// A service with port 80 for the pods with this label `app`, which serve port 8080.
#[must_use]
pub fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name},
        "spec": {"type": "NodePort", "selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    })
}

fn spec(container: Value) -> Value {
    let mut whole = json!({
        "name": "main", "image": "localhost/pod:1", "imagePullPolicy": "Never", "command": ["sleep", SLEEP],
    });
    let Value::Object(keys) = container else { panic!("no keys: {container}") };
    whole.as_object_mut().unwrap().extend(keys);
    json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [whole],
    })
}
