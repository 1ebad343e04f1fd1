//! Recorded calls of container runtimes, replayed: what a pod gets, and what is refused.

use std::{fs, path::Path};

use e2e::{Answer, Call, Lab, Netns, Settings};
use serde_json::{Value, json};

/// A call in tests/fixtures/runtimes.
pub(crate) struct Recorded {
    environment: Vec<(String, String)>,
    configuration: Value,
}

impl Recorded {
    pub(crate) fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/runtimes");
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let (variables, stdin) = text.split_once("\n\n").unwrap();
        let pair = |line: &str| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        Self {
            environment: variables.lines().map(pair).collect(),
            configuration: serde_json::from_str(stdin).unwrap(),
        }
    }

    pub(crate) fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        *self.configuration.pointer_mut(pointer).unwrap() = value.into();
        self
    }

    /// An environment variable, such as the interface's name.
    pub(crate) fn variable(&self, name: &str) -> &str {
        let mut all = self.environment.iter();
        &all.find(|(key, _)| key == name).unwrap().1
    }

    /// CNI version of the call.
    pub(crate) fn version(&self) -> String {
        self.configuration["cniVersion"].as_str().unwrap().to_owned()
    }

    /// Replaces an environment variable.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        let pair = self.environment.iter_mut().find(|(key, _)| key == name).unwrap();
        pair.1 = value.into();
        self
    }

    /// Executes the call in this lab for this pod, with the actual previous result.
    pub(crate) fn execute(mut self, lab: &Lab, pod: &Netns, previous: Option<&Value>) -> Answer {
        self.configuration["agentSocket"] = json!(lab.socket());
        if let (Some(recorded), Some(previous)) =
            (self.configuration.get_mut("prevResult"), previous)
        {
            *recorded = previous.clone();
        }
        let mut call = Call::new("", &self.configuration);
        for (name, value) in self.environment {
            call = match name.as_str() {
                "CNI_CONTAINERID" if !value.is_empty() => call.with(&name, pod.name()),
                "CNI_NETNS" if value.starts_with('/') => call.with(&name, pod.path()),
                _ => call.with(&name, value),
            };
        }
        lab.execute(&call)
    }
}

fn replay(name: &str, lab: &Lab, pod: &Netns) -> Answer {
    Recorded::read(name).execute(lab, pod, None)
}

/// Without cool-down of addresses.
pub(crate) fn lab() -> Lab {
    Lab::start(&Settings { cool_down: 0, ..Settings::default() })
}

/// Rates in byte/s of the queueing disciplines at the pods' representors.
fn limits(lab: &Lab) -> Vec<Value> {
    let queues = lab.card.dpu.json("tc", &["qdisc", "show"]);
    let limited = queues.into_iter().filter(|queue| queue["kind"] == "tbf");
    limited.map(|queue| queue["options"]["rate"].clone()).collect()
}

#[test]
fn containerd_call_sets_limit_and_resolvers() {
    let lab = lab();
    let pod = Netns::new("pod");
    replay("containerd-2.1.9-status", &lab, &pod).nothing();
    let result = replay("containerd-2.1.9-add-with-one-limit", &lab, &pod).result();
    assert_eq!(limits(&lab), [1_250_000]);
    assert_eq!(result["dns"]["nameservers"], json!(["10.96.0.10"]));
    lab.assert_invariants();
    let stop = Recorded::read("containerd-2.1.9-del-at-stop");
    stop.execute(&lab, &pod, Some(&result)).nothing();
    replay("containerd-2.1.9-del-at-removal", &lab, &pod).nothing();
    let _ = replay("containerd-2.1.9-add-bare", &lab, &pod).result();
    assert!(limits(&lab).is_empty());
    replay("containerd-1.6.20-del-at-removal", &lab, &pod).nothing();
    lab.assert_clean_slate();
}

#[test]
fn unsupported_containerd_options_are_refused() {
    let lab = lab();
    let pod = Netns::new("pod");
    let ports = replay("containerd-2.1.9-add-with-host-port", &lab, &pod);
    ports.fails(109, &["8080/tcp", "gateway_mode = \"dpu\""]);
    for name in ["containerd-2.1.9-add-with-limits", "containerd-1.6.20-add"] {
        let added = replay(name, &lab, &pod);
        if lab.operator().has_egress_limits() {
            let _ = added.result();
            replay("containerd-2.1.9-del-at-removal", &lab, &pod).nothing();
        } else {
            added.fails(109, &["an egress rate of 20000000 bit/s"]);
        }
    }
    lab.assert_clean_slate();
}

#[test]
fn cri_o_calls_succeed() {
    let lab = lab();
    let pod = Netns::new("pod");
    let versions = replay("cri-o-1.37-version", &lab, &pod).result();
    assert!(versions["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")));
    replay("cri-o-1.37-status", &lab, &pod).nothing();
    let add = || {
        let add = Recorded::read("cri-o-1.37-add");
        add.set("/runtimeConfig/bandwidth/egressRate", 0)
            .set("/runtimeConfig/bandwidth/egressBurst", 0)
            .execute(&lab, &pod, None)
            .result()
    };
    let _ = add();
    replay("cri-o-1.37-gc-of-an-empty-node", &lab, &pod).nothing();
    lab.assert_clean_slate();
    let result = add();
    for name in ["cri-o-1.37-check", "cri-o-1.37-del"] {
        Recorded::read(name).execute(&lab, &pod, Some(&result)).nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn podman_call_sets_address_and_mac() {
    let lab = lab();
    let container = Netns::new("container");
    let ports = replay("podman-4.3.1-add-with-host-port", &lab, &container);
    ports.fails(109, &["8080/tcp", "gateway_mode = \"dpu\""]);
    let plain = replay("podman-4.3.1-add", &lab, &container).result();
    Recorded::read("podman-4.3.1-del").execute(&lab, &container, Some(&plain)).nothing();
    let one = replay("podman-4.3.1-add-with-address-and-mac", &lab, &container).result();
    assert_eq!(one["interfaces"][0]["mac"], "02:00:00:00:09:10");
    assert_eq!(one["ips"][0]["address"], "10.1.9.10/16");
    Recorded::read("podman-4.3.1-del").execute(&lab, &container, Some(&one)).nothing();
    let two = replay("podman-4.3.1-add-with-addresses", &lab, &container).result();
    assert_eq!(two["ips"][0]["address"], "10.1.9.10/16");
    assert_eq!(two["ips"][1]["address"], "fd00:10:1::9:10/64");
    Recorded::read("podman-4.3.1-del").execute(&lab, &container, Some(&two)).nothing();
    lab.assert_clean_slate();
}

/// `podman network reload` of a container with `--ip`: DEL, then ADD with this address twice and its other options. The
/// addresses are in cool-down then.
#[test]
fn podman_reload_restores_the_network() {
    let lab = Lab::start(&Settings::default());
    let container = Netns::new("container");
    let started = replay("podman-4.3.1-add-with-address-and-mac", &lab, &container).result();
    let of_ipv6 = started["ips"][1]["address"].as_str().unwrap();
    let (of_ipv6, _) = of_ipv6.split_once('/').unwrap();
    for _ in 0..2 {
        let del = Recorded::read("podman-4.3.1-del-at-reload");
        del.execute(&lab, &container, Some(&started)).nothing();
        let add = Recorded::read("podman-4.3.1-add-at-reload").set("/runtimeConfig/ips/2", of_ipv6);
        let reloaded = add.execute(&lab, &container, None).result();
        assert_eq!(reloaded["ips"], started["ips"]);
        assert_eq!(reloaded["interfaces"][0]["mac"], "02:00:00:00:09:10");
        lab.assert_invariants();
    }
    Recorded::read("podman-4.3.1-del").execute(&lab, &container, Some(&started)).nothing();
    lab.assert_clean_slate();
}

#[test]
fn multus_interface_gets_kubelet_device() {
    let lab = lab();
    let pod = Netns::new("pod");
    let device = lab.card.clean().keys().next_back().unwrap();
    let add = ["/deviceID", "/pciBusID", "/runtimeConfig/deviceID"]
        .into_iter()
        .fold(Recorded::read("multus-4-add"), |add, key| add.set(key, device.as_str()));
    let info = lab.path().join("device-info.json");
    let info = info.to_str().unwrap();
    let add = add.set("/runtimeConfig/CNIDeviceInfoFile", info);
    let result = add.execute(&lab, &pod, None).result();
    let interface = &result["interfaces"][0];
    assert_eq!(interface["name"], "net1");
    assert_eq!(interface["pciID"], device.as_str());
    assert_eq!(interface["mac"], "02:00:00:00:02:09");
    assert_eq!(result["ips"][0]["address"], "10.2.0.9/24");
    assert_eq!(limits(&lab), [1_250_000]);
    assert!(fs::read_to_string(info).unwrap().contains(device.as_str()));
    Recorded::read("multus-4-del").execute(&lab, &pod, Some(&result)).nothing();
    lab.assert_clean_slate();
}

/// Debian's containerd and podman know versions up to 1.0.0; containerd 2 calls STATUS from 1.1.0 on.
#[test]
fn conflist_supports_each_runtimes_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let shipped = fs::read_to_string(root.join("configs/10-dpu-offload.conflist")).unwrap();
    let shipped: Value = serde_json::from_str(&shipped).unwrap();
    let versions_of = Call::new("VERSION", &json!({ "cniVersion": "1.1.0" }));
    let supported = versions_of.execute(&Netns::new("host")).result();
    let versions = shipped["cniVersions"].as_array().unwrap();
    assert_eq!(shipped["cniVersion"], "1.0.0");
    assert_eq!(versions, json!(["0.4.0", "1.0.0", "1.1.0"]).as_array().unwrap());
    for version in versions {
        assert!(supported["supportedVersions"].as_array().unwrap().contains(version), "{version}");
    }
}
