//! What tests have the cluster make.

use serde_json::{Value, json};

/// How long a container sleeps unless it does something else, and what its process is known by.
pub(super) const SLEEP: &str = "1000000";

/// A pod that sleeps, with these keys of its container besides. Its label `app` is its name.
#[must_use]
pub fn pod(name: &str, container: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": spec(container),
    })
}

/// As many such pods.
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

/// Port 80 of the pods with the label `app` of that name, which serve it at 8080.
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
