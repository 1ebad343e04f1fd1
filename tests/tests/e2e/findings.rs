//! `dpuctl doctor` and `dpuctl status`: codes for damage on the DPU, on its wires and in pods.

use std::{fs, time::Duration};

use e2e::{FabricKind, Lab, Netns, Settings, wait_for};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// A network of the API with this gateway address.
fn red(gateway: &str) -> String {
    format!("name: red\nsubnets:\n- cidr: 10.9.0.0/24\n  gateway: {gateway}\n")
}

fn apply(lab: &Lab, text: &str) -> (String, String) {
    let path = lab.path().join("red.yaml");
    fs::write(&path, text).unwrap();
    let output = lab.operator().dpuctl(&["apply", "-f", path.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// Code and subject of the doctor's findings.
fn findings(lab: &Lab) -> Vec<(String, String)> {
    let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |found: &Value, key: &str| found[key].as_str().unwrap_or_default().to_owned();
    let all = diagnosis["findings"].as_array().into_iter().flatten();
    all.map(|found| (text(found, "code"), text(found, "subject"))).collect()
}

#[track_caller]
fn wait_for_finding(lab: &Lab, code: &str, subject: &str) {
    let expected = (code.to_owned(), subject.to_owned());
    wait_for(code, LIMIT, || findings(lab).contains(&expected).then_some(()));
}

#[track_caller]
fn wait_until_without(lab: &Lab, code: &str) {
    let is_without = || findings(lab).iter().all(|(found, _)| found != code).then_some(());
    wait_for(&format!("no {code}"), LIMIT, is_without);
}

fn first_attachment(lab: &Lab) -> String {
    lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn doctor_names_free_representors_in_foreign_bridges() {
    let lab = Lab::start(&Settings::default());
    let dpu = &lab.card.dpu;
    dpu.ip(&["link", "add", "br-foreign", "type", "bridge"]);
    dpu.ip(&["link", "set", "pf0vf3", "master", "br-foreign"]);
    wait_for_finding(&lab, "REPRESENTOR_TAKEN", "pf0vf3");
    let text = lab.operator().dpuctl(&["doctor"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("br-foreign") && text.contains("nomaster"), "{text}");
    dpu.ip(&["link", "set", "pf0vf3", "nomaster"]);
    wait_until_without(&lab, "REPRESENTOR_TAKEN");
    lab.assert_invariants();
}

#[test]
fn doctor_names_free_representors_of_other_ovs_bridges() {
    let settings = Settings { kind_of_fabric: FabricKind::OpenVswitch, ..Settings::with_vfs(2) };
    let lab = Lab::start(&settings);
    let vswitch = lab.vswitch.as_ref().unwrap();
    let _ = vswitch.vsctl("add-br br-foreign -- set bridge br-foreign datapath_type=netdev");
    let _ = vswitch.vsctl("add-port br-foreign pf0vf1");
    wait_for_finding(&lab, "REPRESENTOR_TAKEN", "pf0vf1");
    let _ = vswitch.vsctl("del-br br-foreign");
    wait_until_without(&lab, "REPRESENTOR_TAKEN");
}

#[test]
fn doctor_names_what_an_uplink_lacks() {
    let lab =
        Lab::start(&Settings { fabric: "uplinks = [\"uplink\"]".into(), ..Settings::default() });
    let dpu = &lab.card.dpu;
    wait_for_finding(&lab, "UPLINK_MISSING", "uplink");
    let far = Netns::new("far");
    let peer = ["peer", "name", "eth0", "netns", far.name()];
    dpu.ip(&[&["link", "add", "uplink", "type", "veth"][..], &peer].concat());
    wait_for_finding(&lab, "UPLINK_WITHOUT_CARRIER", "uplink");
    far.ip(&["link", "set", "eth0", "up"]);
    wait_until_without(&lab, "UPLINK_WITHOUT_CARRIER");
    dpu.ip(&["link", "add", "br-foreign", "type", "bridge"]);
    dpu.ip(&["link", "set", "uplink", "master", "br-foreign"]);
    wait_for_finding(&lab, "UPLINK_NOT_JOINED", "uplink");
    dpu.ip(&["link", "del", "br-foreign"]);
    wait_until_without(&lab, "UPLINK_NOT_JOINED");
}

/// The agent restores a missing route. It leaves the pod's replacement alone and reports it.
#[test]
fn status_names_pods_without_their_subnets_route() {
    let settings = Settings { timeouts: "reconcile_s = 1".into(), ..Settings::default() };
    let lab = Lab::start(&settings);
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let id = first_attachment(&lab);
    let status = || lab.operator().output(&["status"]);
    assert!(!status().contains(&id));
    pod.ip(&["route", "del", "10.1.0.0/16", "dev", "eth0"]);
    pod.ip(&["route", "add", "unreachable", "10.1.0.0/16"]);
    wait_for("the pod in status", LIMIT, || status().contains(&id).then_some(()));
    let reported = status();
    assert!(reported.contains("10.1.0.0/16") && reported.contains("node-1"), "{reported}");
    wait_for_finding(&lab, "POD_DIFFERS", &id);
    let described = lab.operator().output(&["describe", "host", "node-1"]);
    assert!(described.contains("10.1.0.0/16"), "{described}");
    let events = lab.operator().output(&["describe", "attachment", &id]);
    assert!(events.contains("PodDiffers"), "{events}");
    pod.ip(&["route", "del", "unreachable", "10.1.0.0/16"]);
    wait_for("a pod that is as wanted", LIMIT, || (!status().contains(&id)).then_some(()));
}

#[test]
fn doctor_names_pods_with_a_former_gateway() {
    let lab = Lab::start(&Settings::default());
    let _ = apply(&lab, &red("10.9.0.1"));
    let pod = Netns::new("pod");
    let _ = lab.add("red", &pod, "eth0").result();
    let id = first_attachment(&lab);
    assert!(findings(&lab).is_empty());
    let _ = apply(&lab, &red("10.9.0.254"));
    wait_for_finding(&lab, "GATEWAY_GONE", &id);
    lab.del("red", &pod, "eth0").nothing();
    wait_until_without(&lab, "GATEWAY_GONE");
}

#[test]
fn apply_and_describe_name_pods_with_older_settings() {
    let lab = Lab::start(&Settings::default());
    let _ = apply(&lab, &red("10.9.0.1"));
    let pod = Netns::new("pod");
    let _ = lab.add("red", &pod, "eth0").result();
    let id = first_attachment(&lab);
    let describe = || lab.operator().output(&["describe", "network", "red"]);
    assert!(!describe().contains("Outdated"), "{}", describe());
    let (outcome, note) = apply(&lab, &(red("10.9.0.1") + "mtu: 1400\n"));
    let short = &id[..13];
    assert!(outcome.contains("changed") && note.contains(short), "{outcome}: {note}");
    let line = describe();
    let line = line.lines().find(|line| line.starts_with("Outdated:")).unwrap();
    assert!(line.contains("1 attachment: ") && line.contains(short), "{line}");
    let (_, note) = apply(&lab, &red("10.9.0.1"));
    assert_eq!(note, "", "they are the settings of the attach again");
    lab.del("red", &pod, "eth0").nothing();
}
