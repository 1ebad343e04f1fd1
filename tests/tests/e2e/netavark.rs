//! The plugin as netavark calls it: podman 5 has no CNI.

use std::process::Output;

use e2e::{Lab, Netns, Settings, program, run_with};
use serde_json::{Value, json};

/// podman's network that refers to the DPU's `green`.
fn network(lab: &Lab) -> Value {
    json!({
        "name": "pods",
        "id": "2f259bab93aa",
        "driver": "dpu-offload",
        "subnets": [],
        "ipv6_enabled": false,
        "internal": false,
        "dns_enabled": true,
        "ipam_options": { "driver": "host-local" },
        "options": { "network": "green", "agent_socket": lab.socket() },
    })
}

/// The document of a container whose ID is the name of its namespace.
fn container(lab: &Lab, pod: &Netns) -> Value {
    json!({
        "container_id": pod.name(),
        "container_name": "web",
        "port_mappings": null,
        "network": network(lab),
        "network_options": {
            "aliases": [pod.name()],
            "interface_name": "eth0",
            "static_ips": null,
            "static_mac": null,
        },
    })
}

fn execute(lab: &Lab, arguments: &[&str], document: &Value) -> Output {
    let mut command = lab.card.host.command(program("host-shim"));
    run_with(command.args(arguments), &document.to_string())
}

fn stdout(output: &Output) -> Value {
    match &output.stdout[..] {
        [] => Value::Null,
        text => serde_json::from_slice(text).unwrap(),
    }
}

/// The answer to a verb that succeeds.
#[track_caller]
fn answer(lab: &Lab, verb: &str, pod: &Netns, document: &Value) -> Value {
    let output = execute(lab, &[verb, pod.path().to_str().unwrap()], document);
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

/// The error sentence of a failed verb.
#[track_caller]
fn complaint(lab: &Lab, verb: &str, pod: &Netns, document: &Value) -> String {
    let output = execute(lab, &[verb, pod.path().to_str().unwrap()], document);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    stdout(&output)["error"].as_str().unwrap().to_owned()
}

/// MAC address and addresses of `eth0` in a namespace, as in `ip`.
pub(crate) fn inside(pod: &Netns) -> Value {
    let link = pod.json("ip", &["address", "show", "dev", "eth0"]).remove(0);
    let held = link["addr_info"].as_array().unwrap().iter();
    let held = held.filter(|held| held["scope"] == "global");
    let held = held.map(|held| {
        let (address, prefix) = (held["local"].as_str().unwrap(), &held["prefixlen"]);
        format!("{address}/{prefix}")
    });
    json!([link["address"], held.collect::<Vec<_>>()])
}

#[test]
fn netavark_attaches_and_detaches_containers() {
    let lab = Lab::start(&Settings::default());
    let version = stdout(&execute(&lab, &["info"], &Value::Null));
    assert_eq!(version["api_version"], "1.0.0");
    let kept = stdout(&execute(&lab, &["create"], &network(&lab)));
    assert_eq!((&kept["name"], &kept["dns_enabled"]), (&json!("pods"), &json!(false)));

    let pods = ["a", "b"].map(Netns::new);
    let mut reached = Vec::new();
    for pod in &pods {
        let status = answer(&lab, "setup", pod, &container(&lab, pod));
        let reported = &status["interfaces"]["eth0"];
        let subnets = reported["subnets"].as_array().unwrap();
        let addresses: Vec<_> = subnets.iter().map(|subnet| subnet["ipnet"].clone()).collect();
        assert_eq!(json!([reported["mac_address"], addresses]), inside(pod));
        let first = addresses[0].as_str().unwrap();
        reached.push(first.split('/').next().unwrap().to_owned());
    }
    assert!(pods[0].pings(&reached[1]) && pods[1].pings(&reached[0]));
    lab.assert_invariants();

    let (first, second) = (container(&lab, &pods[0]), container(&lab, &pods[1]));
    for _ in 0..2 {
        assert_eq!(answer(&lab, "teardown", &pods[0], &first), Value::Null);
    }
    let [_, gone] = pods;
    lab.card.host.ip(&["netns", "delete", gone.name()]);
    assert_eq!(answer(&lab, "teardown", &gone, &second), Value::Null);
    lab.assert_clean_slate();
}

#[test]
fn podman_options_are_honoured_or_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let mut options = container(&lab, &pod);
    options["network_options"]["static_ips"] = json!(["10.2.0.99"]);
    options["network_options"]["static_mac"] = json!("02:00:00:00:00:99");
    let _ = answer(&lab, "setup", &pod, &options);
    let has = inside(&pod);
    assert_eq!(has[0], "02:00:00:00:00:99");
    assert!(has[1].to_string().contains("10.2.0.99/"), "{has}");
    let _ = answer(&lab, "teardown", &pod, &options);

    let mut unknown = container(&lab, &pod);
    unknown["network"]["options"]["vlan"] = json!("7");
    assert!(complaint(&lab, "setup", &pod, &unknown).contains("\"vlan\" with the value \"7\""));
    let mut mapped = container(&lab, &pod);
    mapped["port_mappings"] = json!([{ "container_port": 80, "host_port": 8080, "protocol": "tcp", "range": 1, "host_ip": "" }]);
    assert!(complaint(&lab, "setup", &pod, &mapped).contains("8080"));
    let mut missing = container(&lab, &pod);
    missing["network"]["options"]["network"] = json!("mauve");
    assert!(complaint(&lab, "setup", &pod, &missing).contains("mauve"));
    lab.assert_clean_slate();
}

#[test]
fn podman_removal_without_agent_is_released_later() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let document = container(&lab, &pod);
    let _ = answer(&lab, "setup", &pod, &document);
    lab.agent.stop();
    let reported = complaint(&lab, "teardown", &pod, &document);
    assert!(
        reported.contains("the agent on") && reported.contains("AGENT_UNREACHABLE"),
        "{reported}"
    );
    // podman continues and deletes the namespace.
    drop(pod);
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_clean_slate();
}
