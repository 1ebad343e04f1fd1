//! The virtual machine has what the other tests need, seen by external tools. If these tests fail, the machine is
//! broken and not the product.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e::{Netns, run, wait_for};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const NETDEVSIM: &str = "/sys/bus/netdevsim";

/// A netdevsim card, removed on drop.
struct Netdevsim {
    id: u32,
}

impl Netdevsim {
    fn new(id: u32) -> Self {
        write(Path::new(NETDEVSIM).join("new_device"), &format!("{id} 1 4"));
        Self { id }
    }

    fn folder(&self) -> PathBuf {
        Path::new(NETDEVSIM).join(format!("devices/netdevsim{}", self.id))
    }

    fn handle(&self) -> String {
        format!("netdevsim/netdevsim{}", self.id)
    }
}

impl Drop for Netdevsim {
    fn drop(&mut self) {
        let _ = fs::write(Path::new(NETDEVSIM).join("del_device"), self.id.to_string());
    }
}

/// PCI functions that a driver has bound.
fn functions(driver: &str) -> Vec<PathBuf> {
    let folder = Path::new("/sys/bus/pci/drivers").join(driver);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("vendor").exists()).collect()
}

fn write(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    fs::write(path, text).unwrap_or_else(|error| panic!("{text:?} to {path:?}: {error}"));
}

fn succeed(line: &str) -> String {
    let mut words = line.split(' ');
    let output = run(Command::new(words.next().unwrap()).args(words));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(line: &str) -> Value {
    serde_json::from_str(&succeed(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn machine_netdevsim_supports_switchdev() {
    let card = Netdevsim::new(900);
    let handle = card.handle();
    write(card.folder().join("sriov_numvfs"), "3");
    succeed(&format!("devlink dev eswitch set {handle} mode switchdev"));
    let eswitch = json(&format!("devlink -j dev eswitch show {handle}"));
    assert_eq!(eswitch["dev"][&handle]["mode"], "switchdev", "{eswitch}");
    let ports = json("devlink -j port show");
    let ports = ports["port"].as_object().unwrap();
    let mut vfs: Vec<_> = ports
        .iter()
        .filter(|(port, shown)| port.starts_with(&handle) && shown["flavour"] == "pcivf")
        .map(|(_, shown)| (shown["vfnum"].as_u64(), shown["netdev"].is_string()))
        .collect();
    vfs.sort_unstable();
    assert_eq!(vfs, [(Some(0), true), (Some(1), true), (Some(2), true)], "{ports:?}");
}

#[test]
fn machine_igb_cards_have_seven_vfs() {
    let cards = functions("igb");
    assert!(!cards.is_empty(), "no igb card: hack/vm run --igb");
    for card in cards {
        assert_eq!(fs::read_to_string(card.join("sriov_totalvfs")).unwrap().trim(), "7");
        write(card.join("sriov_numvfs"), "7");
        for vf in 0..7 {
            let netdev = card.join(format!("virtfn{vf}/net"));
            wait_for("a VF's netdev", LIMIT, || fs::read_dir(&netdev).ok()?.next()?.ok());
            assert!(card.join(format!("virtfn{vf}/iommu_group")).exists(), "vfio wants one");
        }
        write(card.join("sriov_numvfs"), "0");
        assert!(!card.join("virtfn0").exists());
    }
}

#[test]
fn machine_bridge_filters_vlans() {
    let netns = Netns::new("vlans");
    netns.ip(&["link", "add", "br0", "type", "bridge", "vlan_filtering", "1"]);
    netns.ip(&["link", "add", "port0", "master", "br0", "type", "veth", "peer", "port1"]);
    let add = ["vlan", "add", "dev", "port0", "vid", "5", "pvid", "untagged"];
    assert!(run(netns.command("bridge").args(add)).status.success());
    let shown = netns.json("bridge", &["vlan", "show", "dev", "port0"]);
    let vlans: Vec<_> = shown[0]["vlans"].as_array().unwrap().iter().map(|v| &v["vlan"]).collect();
    assert_eq!(vlans, [1, 5]);
}

#[test]
fn machine_loads_kernel_modules() {
    let netns = Netns::new("modules");
    netns.ip(&["link", "add", "one", "type", "veth", "peer", "two"]);
    netns.ip(&["link", "add", "link", "one", "name", "one.7", "type", "vlan", "id", "7"]);
    let lines = [
        "qdisc add dev one clsact",
        "qdisc add dev two clsact",
        "filter add dev one ingress matchall action mirred egress redirect dev two",
        "filter add dev one egress protocol ip flower dst_ip 10.0.0.1 action drop",
        "filter add dev two ingress matchall action police rate 1mbit burst 10k conform-exceed drop",
        "qdisc add dev two root tbf rate 1mbit burst 10k latency 50ms",
    ];
    for line in lines {
        let output = run(netns.command("tc").args(line.split(' ')));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn machine_shared_folder_is_writable() {
    let folder = std::env::var("OFFLOAD_VM_SHARE").expect("hack/vm sets OFFLOAD_VM_SHARE");
    let file = tempfile::NamedTempFile::new_in(folder).unwrap();
    write(file.path(), "a result");
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "a result");
}
