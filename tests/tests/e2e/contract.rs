//! The CNI contract: versions, verbs, and hostile or broken input.

use std::{cell::Cell, fs, os::unix::fs::symlink, path::PathBuf};

use e2e::{Call, Lab, Netns, Settings, scenarios::figure};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};

const VERSIONS: [&str; 5] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0", "0.3.0"];

/// A lab and a pod, to show that refused calls change nothing.
struct Refusals {
    lab: Lab,
    pod: Netns,
    count: Cell<usize>,
}

impl Refusals {
    fn new() -> Self {
        let lab = Lab::start(&Settings::default());
        Self { lab, pod: Netns::new("pod"), count: Cell::new(0) }
    }

    fn add(&self) -> Call {
        self.add_with(&self.lab.configuration("blue"))
    }

    fn add_with(&self, configuration: &Value) -> Call {
        let path = self.pod.path();
        Call::new("ADD", configuration).of(self.pod.name(), Some(&path), "eth0")
    }

    fn refused(&self, call: &Call, code: u64, words: &[&str]) {
        self.lab.execute(call).fails(code, words);
        self.count.set(self.count.get() + 1);
    }

    /// Checks that nothing leaked and that the next valid call works.
    fn end(self) {
        self.lab.assert_clean_slate();
        let _ = self.lab.execute(&self.add()).result();
        self.lab.assert_invariants();
        figure(self.count.get(), "broken or hostile CNI calls refused");
    }
}

#[test]
fn each_cni_version_gets_its_result_format() {
    let lab = Lab::start(&Settings::default());
    let versions = Call::new("VERSION", &json!({ "cniVersion": "1.1.0" }));
    let supported = lab.execute(&versions).result()["supportedVersions"].clone();
    let is_known = |version: &Value| VERSIONS.iter().any(|known| version == known);
    assert!(supported.as_array().unwrap().iter().all(is_known), "{supported}");
    for version in VERSIONS {
        if !supported.as_array().unwrap().contains(&json!(version)) {
            assert_eq!(version, "0.3.0", "{supported}");
            continue;
        }
        let pod = Netns::new("pod");
        let mut configuration = lab.configuration("blue");
        configuration["cniVersion"] = json!(version);
        let call = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
        let result = lab.execute(&call).result();
        assert_eq!(result["cniVersion"], version);
        let is_old = version.starts_with("0.");
        assert_eq!(result["ips"][0]["version"].is_string(), is_old, "{result}");
        assert_eq!(result["interfaces"][0]["pciID"].is_string(), !is_old, "{result}");
        let del = Call::new("DEL", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
        lab.execute(&del).nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn broken_json_is_refused() {
    let refusals = Refusals::new();
    let whole = refusals.lab.configuration("blue").to_string();
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let documents = [
        ("", 6),
        ("{", 6),
        ("[]", 6),
        ("\"text\"", 6),
        ("\u{0}", 6),
        (&whole[..whole.len() / 2], 6),
        (nested.as_str(), 6),
        (r#"{"cniVersion":"1.1.0","type":"host-shim"}"#, 7),
        (r#"{"cniVersion":"1.1.0","name":"../blue","type":"host-shim"}"#, 7),
        (r#"{"cniVersion":7,"name":"blue","type":"host-shim"}"#, 6),
    ];
    for (document, code) in documents {
        refusals.refused(&refusals.add().stdin(document), code, &[]);
    }
    refusals.refused(&refusals.add().stdin(vec![0xff, 0xfe, 0x00]), 6, &[]);
    let oversized = format!("{{\"name\":\"{}\"", "x".repeat(32 << 20));
    let (code, _) = refusals.lab.execute(&refusals.add().stdin(oversized)).error();
    assert!([5, 6].contains(&code), "{code}");
    refusals.end();
}

#[test]
fn unsupported_cni_version_is_refused() {
    let refusals = Refusals::new();
    for version in ["0.2.0", "1.2.0", "99.0.0", "x", "1.1.0 "] {
        let mut configuration = refusals.lab.configuration("blue");
        configuration["cniVersion"] = json!(version);
        refusals.refused(&refusals.add_with(&configuration), 1, &[version]);
    }
    let mut old = refusals.lab.configuration("blue");
    old["cniVersion"] = json!("0.4.0");
    for verb in ["GC", "STATUS"] {
        refusals.refused(&Call::new(verb, &old), 1, &["0.4.0"]);
    }
    old["cniVersion"] = json!("0.3.1");
    refusals.refused(&refusals.add_with(&old).with("CNI_COMMAND", "CHECK"), 1, &["0.3.1"]);
    refusals.end();
}

#[test]
fn hostile_environment_is_refused() {
    let refusals = Refusals::new();
    for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
        refusals.refused(&refusals.add().without(name), 4, &[name]);
        refusals.refused(&refusals.add().with(name, ""), 4, &[name]);
    }
    refusals.refused(&refusals.add().with("CNI_COMMAND", "DESTROY"), 4, &["DESTROY", "ADD, DEL"]);
    let check = refusals.add().with("CNI_COMMAND", "CHECK");
    refusals.refused(&check, 7, &["prevResult", "ADD's result"]);
    let long = "a".repeat(1000);
    for id in ["../../etc", "a/b", "a b", "-a", ".", "a\u{7}", "ä", &long] {
        refusals.refused(&refusals.add().with("CNI_CONTAINERID", id), 4, &[]);
    }
    let names = [
        "sixteen-bytes-xx",
        ".",
        "..",
        "a/b",
        "a b",
        "a:b",
        "a\u{1b}[31m",
        "a\n",
        "lo",
        "all",
        "default",
    ];
    for name in names {
        let (code, text) = refusals.lab.execute(&refusals.add().with("CNI_IFNAME", name)).error();
        assert!([4, 128].contains(&code), "{name:?}: {text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    for arguments in ["IP", "IP=not-an-address", "MAC=zz"] {
        let answer = refusals.lab.execute(&refusals.add().with("CNI_ARGS", arguments));
        let _ = answer.error();
    }
    refusals.end();
}

#[test]
fn invalid_netns_path_is_refused() {
    let refusals = Refusals::new();
    let folder = refusals.lab.path();
    let (file, fifo) = (folder.join("file"), folder.join("fifo"));
    let (dangling, to_fifo) = (folder.join("dangling"), folder.join("to-fifo"));
    fs::write(&file, "").unwrap();
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    symlink(folder.join("nowhere"), &dangling).unwrap();
    symlink(&fifo, &to_fifo).unwrap();
    let missing = folder.join("missing");
    let mut paths = vec![&file, &fifo, &dangling, &to_fifo, &missing];
    let (mount, null, own): (PathBuf, PathBuf, PathBuf) =
        ("/proc/self/ns/mnt".into(), "/dev/null".into(), "/proc/self/ns/net".into());
    paths.extend([&mount, &null]);
    for path in paths {
        refusals.refused(&refusals.add().with("CNI_NETNS", path), 4, &[]);
    }
    let (code, text) = refusals.lab.execute(&refusals.add().with("CNI_NETNS", &own)).error();
    assert!([4, 8].contains(&code), "{text}");
    // DEL succeeds for all of them: there is nothing to release.
    for path in [&file, &fifo, &dangling, &to_fifo, &missing] {
        let del = refusals.add().with("CNI_COMMAND", "DEL").with("CNI_NETNS", path);
        refusals.lab.execute(&del).nothing();
    }
    refusals.end();
}

#[test]
fn taken_interface_name_is_refused() {
    let refusals = Refusals::new();
    refusals.pod.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "other"]);
    let before = refusals.pod.json("ip", &["link"]);
    refusals.refused(&refusals.add(), 128, &["eth0"]);
    assert_eq!(refusals.pod.json("ip", &["link"]), before);
    refusals.lab.execute(&refusals.add().with("CNI_COMMAND", "DEL")).nothing();
    assert_eq!(refusals.pod.json("ip", &["link"]), before);
    refusals.pod.ip(&["link", "delete", "eth0"]);
    refusals.end();
}

#[test]
fn interface_of_other_container_is_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let before = lab.add("blue", &pod, "eth0").result();
    let configuration = lab.configuration("blue");
    let second = Call::new("ADD", &configuration).of("second", Some(&pod.path()), "eth0");
    lab.execute(&second).fails(128, &["of attachment", pod.name(), "eth0"]);
    lab.assert_invariants();
    assert_eq!(lab.add("blue", &pod, "eth0").result(), before);
}

#[test]
fn unknown_network_is_refused() {
    let refusals = Refusals::new();
    let mut configuration = refusals.lab.configuration("blue");
    configuration["network"] = json!("bleu");
    refusals.refused(&refusals.add_with(&configuration), 101, &["bleu"]);
    refusals.end();
}

#[test]
fn runtime_options_are_honoured() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let vfs = lab.operator().get("vfs");
    let chosen = vfs[2]["vf"]["device"].as_str().unwrap();
    let info = lab.path().join("devinfo/cni/pod.json");
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({
        "mac": "02:11:22:33:44:55",
        "ips": ["10.1.9.9/16", "fd00:10:1::99"],
        "deviceID": chosen,
        "CNIDeviceInfoFile": info,
        "io.kubernetes.cri.pod-annotations": { "example.com/a": "b" },
    });
    let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart;K8S_POD_UID=1-2";
    let call = Call::new("ADD", &configuration)
        .of(pod.name(), Some(&pod.path()), "eth0")
        .with("CNI_ARGS", arguments);
    let result = lab.execute(&call).result();
    assert_eq!(result["interfaces"][0]["mac"], "02:11:22:33:44:55");
    assert_eq!(result["interfaces"][0]["pciID"], chosen);
    assert_eq!(result["ips"][0]["address"], "10.1.9.9/16");
    assert_eq!(result["ips"][1]["address"], "fd00:10:1::99/64");
    let written: Value = serde_json::from_slice(&fs::read(info).unwrap()).unwrap();
    assert_eq!(written["pci"]["pci-address"], chosen);
    let attachment = &lab.operator().get("attachments")[0];
    assert_eq!(attachment["pod"]["namespace"], "shop");
    assert_eq!(attachment["pod"]["name"], "cart");
    lab.assert_invariants();
}

#[test]
fn unsupported_options_are_refused_by_name() {
    let refusals = Refusals::new();
    let ask = |key: &str, value: Value| {
        let mut configuration = refusals.lab.configuration("blue");
        configuration["runtimeConfig"] = json!({ key: value });
        refusals.add_with(&configuration)
    };
    let guid = json!("00:00:00:00:00:00:00:01");
    let unsupported =
        [("infinibandGUID", guid), ("ipRanges", json!([[{ "subnet": "10.1.0.0/16" }]]))];
    for (key, value) in unsupported {
        refusals.refused(&ask(key, value), 2, &[key]);
    }
    let port = json!([{ "hostPort": 80, "containerPort": 80, "protocol": "tcp" }]);
    refusals.refused(&ask("portMappings", port), 109, &["80/tcp", "gateway_mode = \"dpu\""]);
    refusals.refused(
        &ask("bandwidth", json!({"ingressRate": 1})),
        100,
        &["bandwidth.ingressRate 1"],
    );
    refusals.refused(&ask("mac", json!("01:00:00:00:00:01")), 7, &["01:00:00:00:00:01"]);
    refusals.refused(&ask("deviceID", json!("0000:ff:00.0")), 107, &["0000:ff:00.0"]);
    refusals.refused(&ask("ips", json!(["192.0.2.1"])), 105, &["192.0.2.1"]);
    refusals.refused(&ask("ips", json!(["10.1.0.1"])), 105, &["10.1.0.1"]);
    refusals.refused(&ask("ips", json!(["10.1.0.5/24"])), 105, &["10.1.0.5/24", "10.1.0.5/16"]);
    refusals.end();
}

#[test]
fn used_mac_address_and_vf_are_refused() {
    let lab = Lab::start(&Settings::default());
    let (holder, other) = (Netns::new("holder"), Netns::new("other"));
    let result = lab.add("blue", &holder, "eth0").result();
    let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let held = &result["interfaces"][0];
    let address = &result["ips"][0]["address"];
    let asked = [
        ("mac", held["mac"].clone(), 106, &*id),
        ("ips", json!([address]), 104, &*id),
        ("deviceID", held["pciID"].clone(), 108, held["pciID"].as_str().unwrap()),
    ];
    for (key, value, code, named) in asked {
        let mut configuration = lab.configuration("blue");
        configuration["runtimeConfig"] = json!({ key: value });
        let add = Call::new("ADD", &configuration).of(other.name(), Some(&other.path()), "eth0");
        lab.execute(&add).fails(code, &[named]);
        lab.assert_invariants();
    }
    let _ = lab.add("blue", &other, "eth0").result();
    lab.assert_invariants();
}

/// `podman network reload` and `podman start`: DEL, then ADD with the container's previous address and MAC address.
#[test]
fn cooling_address_serves_only_its_last_owner() {
    let lab = Lab::start(&Settings::default());
    let (container, other) = (Netns::new("container"), Netns::new("other"));
    let before = lab.add("blue", &container, "eth0").result();
    let address = before["ips"][0]["address"].clone();
    let mac = before["interfaces"][0]["mac"].clone();
    let add = |pod: &Netns, capabilities: Value| {
        let mut configuration = lab.configuration("blue");
        configuration["runtimeConfig"] = capabilities;
        lab.execute(&Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0"))
    };
    for _ in 0..3 {
        lab.del("blue", &container, "eth0").nothing();
        lab.await_settled();
        add(&other, json!({ "ips": [address] })).fails(104, &["cool-down", "wait"]);
        lab.assert_invariants();
        let after = add(&container, json!({ "ips": [address], "mac": mac })).result();
        assert_eq!(after["ips"][0]["address"], address);
        assert_eq!(after["interfaces"][0]["mac"], mac);
        lab.assert_invariants();
    }
}

#[test]
fn repeated_add_with_other_options_is_refused() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let before = lab.add("blue", &pod, "eth0").result();
    let file = lab.path().join("device-info.json");
    for (key, value) in [
        ("bandwidth", json!({ "ingressRate": 1_000_000, "ingressBurst": 1_000_000 })),
        ("CNIDeviceInfoFile", json!(file)),
    ] {
        let mut configuration = lab.configuration("blue");
        configuration["runtimeConfig"] = json!({ key: value });
        let add = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
        lab.execute(&add).fails(110, &[]);
        lab.assert_invariants();
    }
    assert!(!file.exists());
    assert_eq!(lab.add("blue", &pod, "eth0").result(), before);
}

#[test]
fn unwritable_device_info_path_is_the_callers_mistake() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({ "CNIDeviceInfoFile": lab.path() });
    let add = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    lab.execute(&add).fails(100, &["device-info file"]);
    lab.assert_clean_slate();
    assert_eq!(lab.operator().fault("MOVE_FAILED"), None);
}

#[test]
fn exhausted_pool_is_named_and_status_succeeds() {
    let lab = Lab::start(&Settings::with_vfs(2));
    let pods: Vec<_> = (0..3).map(|_| Netns::new("pod")).collect();
    let _ = lab.add("blue", &pods[0], "eth0").result();
    let _ = lab.add("blue", &pods[1], "eth0").result();
    lab.add("blue", &pods[2], "eth0").fails(102, &["default"]);
    lab.status().nothing();
    lab.assert_invariants();
    lab.del("blue", &pods[0], "eth0").nothing();
    let _ = lab.add("blue", &pods[2], "eth0").result();
    lab.assert_invariants();
}

#[test]
fn exhausted_subnet_is_named_and_costs_no_vf() {
    let lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    let pods: Vec<_> = (0..3).map(|_| Netns::new("pod")).collect();
    let _ = lab.add("tiny", &pods[0], "eth0").result();
    let _ = lab.add("tiny", &pods[1], "eth0").result();
    lab.add("tiny", &pods[2], "eth0").fails(103, &["10.4.0.0/30"]);
    lab.status().nothing();
    lab.assert_invariants();
    lab.del("tiny", &pods[0], "eth0").nothing();
    let _ = lab.add("tiny", &pods[2], "eth0").result();
    lab.assert_invariants();
}

#[test]
fn plugin_without_command_describes_itself() {
    let lab = Lab::start(&Settings::default());
    let call = Call::new("ADD", &json!({})).without("CNI_COMMAND").stdin("");
    let answer = lab.execute(&call);
    assert!(answer.status.success() && answer.stdout.is_empty(), "{answer:?}");
    assert!(answer.stderr.contains("1.1.0"), "{answer:?}");
}
