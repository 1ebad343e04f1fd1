//! The admission policy of `configs/kubernetes`: which pods it changes, and how. A CEL library evaluates its
//! expressions; the API server uses the Go library.

use std::{collections::BTreeMap, sync::Arc};

use cel::{Context, Env};
use serde_json::{Value, json};

use crate::manifests::{base, documents};

fn policy() -> Value {
    documents(&base("admission/policy.yaml")).remove(0)
}

/// Evaluates an expression for the pod. The library lacks the type `JSONPatch`, so an operation is a map here.
fn evaluate(expression: &Value, pod: &Value, variables: &BTreeMap<String, Value>) -> Value {
    let mut expression = expression.as_str().unwrap().replace("jsonpatch.escapeKey", "escapeKey");
    for (of_the_type, of_a_map) in
        [("JSONPatch{op:", "{\"op\":"), (", path:", ", \"path\":"), (", value:", ", \"value\":")]
    {
        expression = expression.replace(of_the_type, of_a_map);
    }
    let env = Arc::new(Env::stdlib());
    let program = env.compile(&expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
    let mut context = Context::with_env(env);
    context.add_variable("object", pod).unwrap();
    context.add_variable("variables", variables).unwrap();
    let escape = |key: Arc<String>| key.replace('~', "~0").replace('/', "~1");
    context.add_function("escapeKey", escape).unwrap();
    let value = program.execute(&context).unwrap_or_else(|e| panic!("{expression}: {e}"));
    value.json().unwrap()
}

/// Conditions that do not hold for the pod, by name. The policy changes pods for which all hold.
fn failed_conditions(pod: &Value) -> Vec<String> {
    let policy = policy();
    let conditions = policy["spec"]["matchConditions"].as_array().unwrap();
    let failed = conditions.iter().filter(|condition| {
        evaluate(&condition["expression"], pod, &BTreeMap::new()) != json!(true)
    });
    failed.map(|condition| condition["name"].as_str().unwrap().to_owned()).collect()
}

/// The pod after the policy's changes.
fn mutated(pod: &Value) -> Value {
    let spec = &policy()["spec"];
    let mut variables = BTreeMap::new();
    for variable in spec["variables"].as_array().unwrap() {
        let value = evaluate(&variable["expression"], pod, &variables);
        variables.insert(variable["name"].as_str().unwrap().to_owned(), value);
    }
    let mut pod = pod.clone();
    let patch = evaluate(&spec["mutations"][0]["jsonPatch"]["expression"], &pod, &variables);
    for operation in patch.as_array().unwrap() {
        assert_eq!(operation["op"], "add");
        let (parent, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let parent = pod.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.insert(key.replace("~1", "/"), operation["value"].clone());
    }
    pod
}

fn asks_for(resource: &str) -> Value {
    json!({"limits": {resource: "1"}, "requests": {resource: "1"}})
}

fn pod(spec: &Value) -> Value {
    json!({"metadata": {}, "spec": spec})
}

fn of_network(name: &str) -> Value {
    let annotations = json!({"dpu-offload.io/network": name});
    json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{}]}})
}

#[test]
fn policy_changes_pods_without_own_choice() {
    let cpu = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
    for pod in [
        pod(&json!({"containers": [{}]})),
        pod(
            &json!({"containers": [{"resources": {}}], "hostNetwork": false, "resourceClaims": []}),
        ),
        pod(&json!({"containers": [{"resources": cpu}]})),
        // The kubelet does not report the devices of an init container that has ended.
        pod(&json!({"containers": [{}],
            "initContainers": [{"resources": asks_for("dpu-offload.io/gold")}]})),
        of_network("gold"),
    ] {
        assert_eq!(failed_conditions(&pod), [""; 0], "{pod}");
    }
}

#[test]
fn policy_leaves_pods_with_own_choice() {
    let gold = || asks_for("dpu-offload.io/gold");
    for (condition, pod) in [
        ("is-not-of-the-hosts-network", pod(&json!({"containers": [{}], "hostNetwork": true}))),
        ("asks-for-none-itself", pod(&json!({"containers": [{"resources": gold()}]}))),
        ("asks-for-none-itself", pod(&json!({"containers": [{}, {"resources": gold()}]}))),
        (
            "asks-for-none-itself",
            pod(&json!({"containers": [{"resources": asks_for("dpu-offload.io/silver")}]})),
        ),
        (
            "asks-for-none-itself",
            pod(&json!({"containers": [{}],
                "initContainers": [{"restartPolicy": "Always", "resources": gold()}]})),
        ),
        ("has-no-claim", pod(&json!({"containers": [{}], "resourceClaims": [{"name": "vf"}]}))),
        ("names-no-other-network", of_network("silver")),
    ] {
        assert_eq!(failed_conditions(&pod), [condition], "{pod}");
    }
}

#[test]
fn policy_adds_network_and_vf() {
    let gold = asks_for("dpu-offload.io/gold");
    let of_gold = json!({"dpu-offload.io/network": "gold"});
    assert_eq!(
        mutated(&pod(&json!({"containers": [{"name": "web"}, {}]}))),
        json!({"metadata": {"annotations": of_gold},
            "spec": {"containers": [{"name": "web", "resources": gold}, {}]}})
    );
    let own = json!({"metadata": {"annotations": {"team": "a"}},
        "spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}});
    assert_eq!(
        mutated(&own),
        json!({"metadata": {"annotations": {"team": "a", "dpu-offload.io/network": "gold"}},
            "spec": {"containers": [{"resources": {
                "limits": {"cpu": "1", "dpu-offload.io/gold": "1"},
                "requests": {"dpu-offload.io/gold": "1"}}}]}})
    );
    assert_eq!(mutated(&of_network("gold"))["metadata"]["annotations"], of_gold);
}

#[test]
fn policy_is_bound_and_names_documented_resource() {
    let documents = documents(&base("admission/policy.yaml"));
    let [policy, binding] = &documents[..] else { panic!("{documents:?}") };
    assert_eq!(policy["kind"], "MutatingAdmissionPolicy");
    assert_eq!(binding["kind"], "MutatingAdmissionPolicyBinding");
    assert_eq!(policy["apiVersion"], binding["apiVersion"]);
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    let expression = &policy["spec"]["mutations"][0]["jsonPatch"]["expression"];
    let page = include_str!("../../../docs/KUBERNETES.md");
    assert!(expression.as_str().unwrap().contains("\"dpu-offload.io/gold\""));
    assert!(page.contains("dpu-offload.io/gold: 1"), "the resource that the page offers");
}
