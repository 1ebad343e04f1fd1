//! Recorded calls of container runtimes, and the requests that the plugin derives from them.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use super::{
    environment::{Environment, Verb},
    error::CniError,
    request::{Document, Prepared, prepare},
};

/// The calls by their file names.
fn calls() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/runtimes");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let calls = paths.filter(|path| path.extension().is_none_or(|extension| extension != "md"));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    calls.map(|path| (name(&path), fs::read_to_string(path).unwrap())).collect()
}

/// The plugin's reading of a call. `None`: the plugin answers VERSION itself.
fn prepared(call: &str) -> Result<Option<Prepared>, CniError> {
    let (variables, stdin) = call.split_once("\n\n").unwrap();
    let variables: BTreeMap<_, _> =
        variables.lines().map(|line| line.split_once('=').unwrap()).collect();
    let of = |name: &str| variables[name].to_owned();
    let environment = Environment {
        command: of("CNI_COMMAND"),
        container_id: of("CNI_CONTAINERID"),
        netns: of("CNI_NETNS"),
        interface_name: of("CNI_IFNAME"),
        args: of("CNI_ARGS"),
        ..Environment::default()
    };
    match environment.verb()? {
        Verb::Version => Ok(None),
        verb => prepare(verb, &environment, Document::read(stdin.as_bytes())?).map(Some),
    }
}

/// The request to the agent without key and namespace, which are the environment's, plus the result's resolver
/// settings.
fn asked(call: &str) -> Value {
    let Some(prepared) = prepared(call).unwrap() else { return Value::Null };
    let mut request = serde_json::to_value(&prepared.request).unwrap();
    let fields = request.as_object_mut().unwrap();
    let key = fields.remove("key");
    assert!(key.is_none_or(|key| key["container_id"].as_str().unwrap().len() == 64));
    if let Some(netns) = fields.remove("netns") {
        let path = call.lines().find_map(|line| line.strip_prefix("CNI_NETNS="));
        assert_eq!(netns.as_str(), path);
    }
    if let Some(dns) = prepared.base.dns {
        fields.insert("dns".into(), serde_json::to_value(dns).unwrap());
    }
    request
}

/// An ADD of the pod p1 to the default network with further requests.
fn add_of_p1(more: &Value) -> Value {
    let pod = json!({"namespace": "default", "name": "p1", "uid": "uid-p1"});
    add(&pod, "dpu-offload", "", more)
}

fn add_of_web(more: &Value) -> Value {
    add(&json!({"namespace": "", "name": "web", "uid": ""}), "dpu-offload", "", more)
}

/// `more` has fields of the ADD, and those of what the pod requests for its interface.
fn add(pod: &Value, configuration: &str, network: &str, more: &Value) -> Value {
    let mut request = json!({
        "verb": "add", "configuration": configuration, "pod": pod, "device_info_file": null,
        "interface": {"network": network, "bandwidth": limits([0; 4])},
    });
    for (key, value) in more.as_object().unwrap() {
        match key.as_str() {
            "dns" | "device_info_file" => request[key] = value.clone(),
            _ => request["interface"][key] = value.clone(),
        }
    }
    request
}

fn limits([ingress_rate, ingress_burst, egress_rate, egress_burst]: [u64; 4]) -> Value {
    json!({
        "ingress_rate": ingress_rate, "ingress_burst": ingress_burst,
        "egress_rate": egress_rate, "egress_burst": egress_burst,
    })
}

/// Each recorded call, and what is read from it.
fn expected() -> BTreeMap<&'static str, Value> {
    const GO_CNI_BURST: u64 = 4_294_967_295;
    const OCICNI_BURST: u64 = 34_359_738_359;
    let both = |burst| limits([10_000_000, burst, 20_000_000, burst]);
    let of_cluster = json!({"nameservers": ["10.96.0.10"]});
    let cri_o_id = "9d3b7a6f5e4c3b2a19087f6e5d4c3b2a19087f6e5d4c3b2a19087f6e5d4c3b2a";
    let gc = |valid| json!({"verb": "gc", "configuration": "dpu-offload", "network": "", "valid": valid});
    let check = json!({
        "verb": "check", "mac": "02:00:00:5e:00:01",
        "addresses": ["10.1.0.2/16", "fd00:10:1::2/64"],
    });
    let multus = json!({
        "device": "0000:03:00.4", "mac": "02:00:00:00:02:09", "addresses": ["10.2.0.9/24"],
        "bandwidth": limits([10_000_000, 1_000_000, 0, 0]),
        "device_info_file": "/var/run/k8s.cni.cncf.io/devinfo/cni/green-uid-p1-net1",
    });
    let p1 = json!({"namespace": "default", "name": "p1", "uid": "uid-p1"});
    let ports = json!({"port_mappings": [
        {"host_port": 8080, "protocol": "tcp", "host_ip": null, "container_port": 80},
    ]});
    let limited = json!({"bandwidth": both(GO_CNI_BURST), "dns": of_cluster});
    BTreeMap::from([
        ("containerd-1.6.20-add", add_of_p1(&limited)),
        ("containerd-2.1.9-add-with-limits", add_of_p1(&limited)),
        (
            "containerd-2.1.9-add-with-one-limit",
            add_of_p1(&json!({
                "bandwidth": limits([10_000_000, GO_CNI_BURST, 0, 0]), "dns": of_cluster,
            })),
        ),
        ("containerd-2.1.9-add-bare", add_of_p1(&json!({}))),
        ("cri-o-1.37-version", Value::Null),
        ("cri-o-1.37-gc-of-an-empty-node", gc(json!([]))),
        ("cri-o-1.37-gc", gc(json!([{"container_id": cri_o_id, "interface_name": "eth0"}]))),
        ("cri-o-1.37-add", add_of_p1(&json!({"bandwidth": both(OCICNI_BURST)}))),
        ("cri-o-1.37-check", check),
        ("podman-4.3.1-add", add_of_web(&json!({}))),
        ("podman-4.3.1-add-with-host-port", add_of_web(&ports)),
        (
            "containerd-2.1.9-add-with-host-port",
            add_of_p1(&json!({
                "bandwidth": both(GO_CNI_BURST), "dns": of_cluster, "port_mappings": ports["port_mappings"],
            })),
        ),
        (
            "podman-4.3.1-add-with-address-and-mac",
            add_of_web(&json!({"mac": "02:00:00:00:09:10", "addresses": ["10.1.9.10"]})),
        ),
        (
            "podman-4.3.1-add-with-addresses",
            add_of_web(&json!({"addresses": ["10.1.9.10", "fd00:10:1::9:10"]})),
        ),
        (
            "podman-4.3.1-add-at-reload",
            add_of_web(&json!({
                "mac": "02:00:00:00:09:10",
                "addresses": ["10.1.9.10", "10.1.9.10", "fd00:10:1::2"],
            })),
        ),
        ("multus-4-add", add(&p1, "green", "green", &multus)),
    ])
}

#[test]
fn recorded_calls_are_read() {
    let expected = expected();
    for (name, call) in calls() {
        match name.rsplit_once('-').unwrap() {
            _ if name.contains("-del") => {
                assert_eq!(asked(&call), json!({"verb": "del"}), "{name}");
            }
            (_, "status") => assert_eq!(asked(&call), json!({"verb": "status"}), "{name}"),
            _ => assert_eq!(Some(&asked(&call)), expected.get(name.as_str()), "{name}"),
        }
    }
    let calls = calls();
    assert!(expected.keys().all(|name| calls.contains_key(*name)), "a call is missing");
}
