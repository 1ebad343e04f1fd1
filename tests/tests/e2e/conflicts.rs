//! Conflicts: a machine beyond the uplink uses a pod's address. Reported while it lasts.

use std::{collections::BTreeSet, fs, time::Duration};

use e2e::{Lab, Netns, OpenVswitch, Settings, openmetrics, scenarios::pods::addresses, wait_for};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(90);

/// The only addresses of the network `taken`.
const TAKEN: [&str; 2] = ["10.7.0.2", "fd00:10:7::2"];

const NETWORKS: &str = r#"
[[network]]
name = "taken"
default = true
subnets = [
    { cidr = "10.7.0.0/24", ranges = [{ start = "10.7.0.2", end = "10.7.0.2" }] },
    { cidr = "fd00:10:7::/64", ranges = [{ start = "fd00:10:7::2", end = "fd00:10:7::2" }] },
]

[[network]]
name = "free"
subnets = [{ cidr = "10.8.0.0/24" }, { cidr = "fd00:10:8::/64" }]
"#;

/// The only address of the network `tagged`.
const TAGGED: &str = "10.9.0.2";

fn tagged() -> Value {
    let range = json!({ "start": TAGGED, "end": TAGGED });
    json!({ "name": "tagged", "vlan": 100, "subnets": [{ "cidr": "10.9.0.0/24", "ranges": [range] }] })
}

fn lab() -> Lab {
    let (networks, fabric) = (NETWORKS.to_owned(), "uplinks = [\"uplink\"]".to_owned());
    Lab::start(&Settings { networks, fabric, has_metrics: true, ..Settings::default() })
}

/// A machine at the other end of the lab's uplink.
fn machine(lab: &Lab) -> Netns {
    let machine = Netns::new("machine");
    let peer = ["peer", "name", "eth0", "netns", machine.name()];
    lab.card.dpu.ip(&[&["link", "add", "uplink", "type", "veth"][..], &peer].concat());
    take_addresses(&machine);
    await_uplink(lab);
    machine
}

/// Waits until only conflicts remain as problems. They are found once the uplink forwards.
#[track_caller]
fn await_uplink(lab: &Lab) {
    let is_conflict = |fault: &Value| fault["reason"] == "ADDRESS_CONFLICT";
    let is_joined = || lab.operator().faults().iter().all(is_conflict).then_some(());
    wait_for("the uplink to be joined", LIMIT, is_joined);
}

fn take_addresses(machine: &Netns) {
    machine.ip(&["link", "set", "eth0", "up"]);
    machine.ip(&["addr", "add", "10.7.0.2/24", "dev", "eth0"]);
    machine.ip(&["addr", "add", "fd00:10:7::2/64", "dev", "eth0", "nodad"]);
}

fn problems(lab: &Lab) -> Vec<Value> {
    lab.operator().faults().into_iter().map(|mut condition| condition["message"].take()).collect()
}

/// Conflicts found by the doctor.
fn found(lab: &Lab) -> Vec<Value> {
    let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
    // A service that is starting does not answer yet.
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let all = diagnosis["findings"].as_array().into_iter().flatten();
    all.filter(|found| found["code"] == "ADDRESS_CONFLICT").cloned().collect()
}

fn conflicts(lab: &Lab) -> BTreeSet<String> {
    found(lab).iter().map(|found| found["subject"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn wait_for_conflicts(lab: &Lab, addresses: &[&str]) {
    let expected: BTreeSet<_> = addresses.iter().map(|address| (*address).to_owned()).collect();
    let what = format!("conflicts {expected:?}");
    wait_for(&what, LIMIT, || (conflicts(lab) == expected).then_some(()));
}

fn counted(lab: &Lab, network: &str) -> Option<f64> {
    let page = openmetrics::scrape(&lab.card.dpu)?;
    let labels = [("network", network)];
    openmetrics::value(&page, "dpu_offload_service_address_conflicts", "", &labels)
}

fn mac_of(machine: &Netns) -> String {
    machine.json("ip", &["link", "show", "eth0"])[0]["address"].as_str().unwrap().to_owned()
}

#[test]
fn conflicts_are_reported_while_they_last() {
    let lab = lab();
    let machine = machine(&lab);
    let [pod, other] = ["pod", "other"].map(Netns::new);
    assert_eq!(addresses(&lab.add("taken", &pod, "eth0").result()), TAKEN);
    let _ = lab.add("free", &other, "eth0").result();
    wait_for_conflicts(&lab, &TAKEN);

    let all = lab.operator().get("attachments");
    let attachment = all.iter().find(|one| one["network"] == "taken").unwrap();
    let id = attachment["id"].as_str().unwrap();
    let foreign = mac_of(&machine);
    for (conflict, address) in found(&lab).iter().zip(TAKEN) {
        let message = conflict["message"].as_str().unwrap();
        for value in ["taken", address, &foreign, id] {
            assert!(message.contains(value), "{value} is not in {message}");
        }
    }
    let reported = problems(&lab);
    assert!(
        reported.len() == 1 && reported[0].as_str().unwrap().contains(TAKEN[0]),
        "{reported:?}"
    );
    wait_for("the metrics", LIMIT, || (counted(&lab, "taken") == Some(2.0)).then_some(()));
    assert_eq!(counted(&lab, "free"), Some(0.0));
    let events = lab.operator().output(&["describe", "attachment", id]);
    assert!(events.contains("AddressConflict"), "{events}");
    assert_eq!(lab.service.events("AddressConflict"), TAKEN.len());

    machine.ip(&["addr", "del", "10.7.0.2/24", "dev", "eth0"]);
    wait_for_conflicts(&lab, &TAKEN[1..]);
    let events = lab.operator().output(&["describe", "attachment", id]);
    assert!(events.contains("AddressConflictCleared"), "{events}");
    lab.del("taken", &pod, "eth0").nothing();
    wait_for("the conflict to go with its pod", LIMIT, || conflicts(&lab).is_empty().then_some(()));
    assert!(problems(&lab).is_empty());
    lab.assert_invariants();
}

#[test]
fn conflicts_behind_a_dead_uplink_wait() {
    let lab = lab();
    let machine = machine(&lab);
    machine.ip(&["link", "set", "eth0", "down"]);
    let pod = Netns::new("pod");
    assert_eq!(addresses(&lab.add("taken", &pod, "eth0").result()), TAKEN);
    assert!(conflicts(&lab).is_empty());
    machine.ip(&["addr", "flush", "dev", "eth0"]);
    take_addresses(&machine);
    wait_for_conflicts(&lab, &TAKEN);
}

#[test]
fn conflicts_are_found_again_after_a_restart() {
    let mut lab = lab();
    let pod = Netns::new("pod");
    assert_eq!(addresses(&lab.add("taken", &pod, "eth0").result()), TAKEN);
    let _machine = machine(&lab);
    lab.service.stop();
    lab.start_service();
    wait_for_conflicts(&lab, &TAKEN);
}

/// A machine in VLAN 100 behind the lab's uplink, with the addresses of `tagged` and `taken`.
fn machine_in_vlan(lab: &Lab, vswitch: &OpenVswitch) -> Netns {
    let machine = Netns::new("machine");
    let dpu = &lab.card.dpu;
    dpu.ip(&["link", "add", "far", "type", "veth", "peer", "name", "uplink"]);
    let peer = ["peer", "name", "eth0", "netns", machine.name()];
    dpu.ip(&[&["link", "add", "near", "type", "veth"][..], &peer].concat());
    dpu.ip(&["link", "set", "far", "up"]);
    dpu.ip(&["link", "set", "near", "up"]);
    let datapath = OpenVswitch::datapath();
    for change in [
        &*format!("add-br outside -- set bridge outside datapath_type={datapath}"),
        "add-port outside far",
        "add-port outside near tag=100",
    ] {
        let _ = vswitch.vsctl(change);
    }
    take_addresses(&machine);
    machine.ip(&["addr", "add", &format!("{TAGGED}/24"), "dev", "eth0"]);
    machine
}

/// On Open vSwitch, which separates VLANs on any kernel. The tests of `netlink` cover the same tags on a bridge.
#[test]
fn conflicts_are_of_one_vlan() {
    let lab = lab();
    let Some(vswitch) = &lab.vswitch else { return };
    let _machine = machine_in_vlan(&lab, vswitch);
    await_uplink(&lab);
    let file = lab.path().join("tagged.json");
    fs::write(&file, tagged().to_string()).unwrap();
    let _ = lab.operator().output(&["apply", "-f", file.to_str().unwrap()]);
    let pods = ["untagged", "tagged"].map(Netns::new);
    for (pod, (network, given)) in pods.iter().zip([("taken", &TAKEN[..]), ("tagged", &[TAGGED])]) {
        assert_eq!(addresses(&lab.add(network, pod, "eth0").result()), given);
    }
    wait_for_conflicts(&lab, &[TAGGED]);
}
