//! The Go package adapters/go-cni with a real agent. Its example is a runtime without memory: each call is a new
//! process.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use e2e::{Lab, Netns, Settings, Stopwatch, Timeouts, run, run_with, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    gateway::{self, DPU_OUTSIDE},
    netavark::inside,
    port_mappings::{at, seen_by_tcp},
};

const LIMIT: Duration = Duration::from_secs(30);

/// The output of a hack/go-cni command.
fn hack(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/go-cni");
    let output = run(Command::new(script).args(arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Path of the example, built if necessary.
fn example() -> PathBuf {
    PathBuf::from(hack(&["example"]).trim())
}

fn command(lab: &Lab, verb: &str, pod: &Netns, path: &Path) -> Command {
    let mut command = lab.card.host.command(example());
    command.args([verb, pod.name()]).arg(path).env("DPU_OFFLOAD_SOCKET", lab.socket());
    command
}

fn call(lab: &Lab, verb: &str, pod: &Netns, options: &Value) -> Output {
    run_with(&mut command(lab, verb, pod, &pod.path()), &options.to_string())
}

/// The answer of a successful call.
#[track_caller]
fn answer(lab: &Lab, verb: &str, pod: &Netns, options: &Value) -> Value {
    let output = call(lab, verb, pod, options);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error sentence of a failed call.
#[track_caller]
fn complaint(lab: &Lab, verb: &str, pod: &Netns, options: &Value) -> String {
    let output = call(lab, verb, pod, options);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Addresses of an interface in a result.
fn addresses<'a>(result: &'a Value, interface: &str) -> Vec<&'a str> {
    let held = result["Interfaces"][interface]["IPConfigs"].as_array().into_iter().flatten();
    held.map(|held| held["IP"].as_str().unwrap()).collect()
}

/// Starts a call and waits until the agent has it, while the DPU does not answer.
fn begin(lab: &Lab, pod: &Netns) -> std::process::Child {
    let mut command = command(lab, "setup", pod, &pod.path());
    let before = lab.calls();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"{}").unwrap();
    lab.wait_for_call(&before);
    child
}

/// Its tests check that the package has the names and types of go-cni, that a fake satisfies its interface, and that
/// one line in `go.mod` is enough.
#[test]
fn go_package_passes_its_tests_and_cross_compiles() {
    let _ = hack(&["test"]);
}

#[test]
fn go_package_matches_containerd_2_go_cni() {
    let _ = hack(&["--next", "test"]);
}

#[test]
fn go_cni_pod_is_attached_checked_removed() {
    let mut lab = Lab::start(&Settings::default());
    let pods = ["a", "b"].map(Netns::new);
    let options = json!({
        "Labels": {"K8S_POD_NAMESPACE": "shop", "K8S_POD_NAME": "cart-0", "K8S_POD_UID": "u", "IgnoreUnknown": "1"},
        "DNS": {"Servers": ["10.9.0.53"], "Searches": ["shop.example"]},
        "BandWidth": {"IngressRate": 8_000_000, "IngressBurst": 4_294_967_295_u32},
        "CgroupPath": "/pods/cart-0",
    });
    let reported = answer(&lab, "setup", &pods[0], &options);
    let other = answer(&lab, "setup", &pods[1], &json!({}));
    let eth0 = &reported["Interfaces"]["eth0"];
    let held = inside(&pods[0]);
    assert_eq!(eth0["Mac"], held[0]);
    assert_eq!(reported["Raw"][0]["ips"][0]["address"], held[1][0]);
    assert_eq!(reported["DNS"][0]["nameservers"], json!(["10.9.0.53"]));
    assert!(eth0["PciID"].as_str().is_some_and(|id| !id.is_empty()), "{reported}");
    for address in addresses(&other, "eth0") {
        assert!(pods[0].pings(address), "{address}");
    }
    let queues = lab.card.dpu.json("tc", &["qdisc", "show"]);
    let limited: Vec<_> = queues.iter().filter(|queue| queue["kind"] == "tbf").collect();
    assert!(limited.len() == 1 && limited[0]["options"]["rate"] == 1_000_000, "{limited:?}");
    let attachments = lab.operator().get("attachments");
    let pod = attachments.iter().find(|it| it["key"]["containerId"] == pods[0].name()).unwrap();
    assert_eq!(pod["pod"], json!({"namespace": "shop", "name": "cart-0", "uid": "u"}));
    assert_eq!(answer(&lab, "setup", &pods[0], &options), reported, "a repeat is the same");

    assert_eq!(answer(&lab, "check", &pods[0], &json!({})), Value::Null);
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    assert_eq!(answer(&lab, "check", &pods[0], &json!({})), Value::Null);
    pods[0].ip(&["address", "flush", "dev", "eth0"]);
    let broken = complaint(&lab, "check", &pods[0], &json!({}));
    assert!(broken.contains("is not in order"), "{broken}");

    for _ in 0..2 {
        assert_eq!(answer(&lab, "remove", &pods[0], &json!({})), Value::Null);
    }
    let unknown = complaint(&lab, "check", &pods[0], &json!({}));
    assert!(unknown.contains("has no attachment"), "{unknown}");
    // The netns of a pod that has ended is closed and has no path.
    let output = run_with(&mut command(&lab, "remove", &pods[1], Path::new("")), "{}");
    assert!(output.status.success(), "{output:?}");
    lab.assert_clean_slate();
}

#[test]
fn annotated_networks_come_by_one_call() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let options = json!({"Annotations": {"k8s.v1.cni.cncf.io/networks": "green,wire@data"}});
    let reported = answer(&lab, "setup", &pod, &options);
    let counts = ["eth0", "net1", "data"].map(|name| addresses(&reported, name).len());
    assert_eq!(counts, [2, 2, 0], "{reported}");
    lab.assert_invariants();
    assert_eq!(answer(&lab, "check", &pod, &json!({})), Value::Null);
    pod.ip(&["address", "flush", "dev", "net1"]);
    let broken = complaint(&lab, "check", &pod, &json!({}));
    assert!(broken.contains("/net1 is not in order"), "{broken}");
    assert_eq!(answer(&lab, "remove", &pod, &json!({})), Value::Null);
    lab.assert_clean_slate();
}

#[test]
fn go_cni_attaches_all_networks_or_none() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let of = |names: &[&str]| {
        let configuration = |name| json!({"name": name, "type": "host-shim", "network": name});
        json!({"Networks": names.iter().map(configuration).collect::<Vec<_>>()})
    };
    let options = of(&["blue", "green"]);
    for verb in ["setup", "setup-serially"] {
        let reported = answer(&lab, verb, &pod, &options);
        let first = ["eth0", "eth1"].map(|name| addresses(&reported, name)[0].to_owned());
        assert!(first[0].starts_with("10.1.") && first[1].starts_with("10.2."), "{reported}");
        assert_eq!(reported["DNS"][1]["nameservers"], json!(["10.2.0.53"]));
        lab.assert_invariants();
        assert_eq!(answer(&lab, "remove", &pod, &options), Value::Null);
        lab.assert_clean_slate();
        let failed = complaint(&lab, verb, &pod, &of(&["blue", "nowhere"]));
        assert!(failed.contains("network \"nowhere\""), "{failed}");
        lab.assert_clean_slate();
    }
    let config = answer(&lab, "config", &pod, &options);
    assert_eq!(config["Networks"][2]["Config"]["Name"], "green");
}

#[test]
fn go_cni_refuses_unsupported_options() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    for (options, why) in [
        (json!({"IPRanges": [{"Subnet": "10.1.0.0/24"}]}), "runtimeConfig.ipRanges"),
        (json!({"Annotations": {"dpu-offload.io/vlan": "7"}}), "annotation dpu-offload.io/vlan"),
        (
            json!({"PortMappings": [{"HostPort": 1, "ContainerPort": 1, "Protocol": "tcp"}]}),
            "UNSUPPORTED",
        ),
        (json!({"Labels": {"MAC": "no"}}), "CNI_ARGS MAC"),
        (json!({"Networks": [{"name": "n", "type": "bridge"}]}), "no host-shim"),
    ] {
        let reported = complaint(&lab, "setup", &pod, &options);
        assert!(reported.contains(why), "{reported}");
    }
    lab.assert_clean_slate();
}

#[test]
fn go_cni_mapped_port_leads_to_pod() {
    let (lab, outside) = gateway::lab();
    let pod = Netns::new("pod");
    let options =
        json!({"PortMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp"}]});
    let _ = answer(&lab, "setup", &pod, &options);
    for own in DPU_OUTSIDE {
        assert!(seen_by_tcp(&outside, &pod, at(own, 8080)).is_some(), "{own}");
    }
    assert_eq!(answer(&lab, "remove", &pod, &options), Value::Null);
    lab.assert_invariants();
}

#[test]
fn go_cni_status_names_the_reason() {
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    let mut lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let nobody = Netns::new("nobody");
    assert_eq!(answer(&lab, "status", &nobody, &json!({})), Value::Null);
    lab.service.stop();
    // The first status says that the service is stopping.
    wait_for("the word that the DPU is away", LIMIT, || {
        let output = call(&lab, "status", &nobody, &json!({}));
        let reported = String::from_utf8_lossy(&output.stderr);
        (!output.status.success() && reported.contains("DPU_UNREACHABLE")).then_some(())
    });
    lab.agent.signal(Signal::SIGSTOP);
    let begun = Stopwatch::start();
    let reported = complaint(&lab, "status", &nobody, &json!({}));
    assert!(reported.contains(lab.socket().to_str().unwrap()), "{reported}");
    assert!(begun.unstalled() < LIMIT, "{:?}", begun.unstalled());
    lab.agent.signal(Signal::SIGCONT);
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(answer(&lab, "status", &nobody, &json!({})), Value::Null);
}

#[test]
fn dead_go_cni_caller_leaves_nothing() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    lab.service.signal(Signal::SIGSTOP);
    let mut caller = begin(&lab, &pod);
    caller.kill().unwrap();
    caller.wait().unwrap();
    lab.service.signal(Signal::SIGCONT);
    wait_for("the end of the call", LIMIT, || lab.calls().is_empty().then_some(()));
    lab.wait_until_good();
    lab.assert_clean_slate();
    let _ = answer(&lab, "setup", &pod, &json!({}));
    lab.assert_invariants();
}
