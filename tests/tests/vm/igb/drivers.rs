//! VFs whose driver is unbound, bound again or replaced.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use e2e::{Netns, eventually, wait_for};
use serde_json::{Value, json};

use super::{
    assert_comes_to_ping,
    card::{Card, run_ok},
    lab::{Attached, LIMIT, Lab, Vf},
};

/// A new bind creates the netdev again on the host. The pod gets it back unchanged, whether the attach had finished or
/// not.
#[test]
fn driver_rebind_during_attach_is_harmless() {
    let mut lab = Lab::start(2);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    let (pod, peer) = (Netns::new("pod"), Netns::new("peer"));
    let its_address = lab.add("blue", &peer).address;
    fs::write(lab.folder.path().join("faults/kill-configure"), "").unwrap();
    let cut_short = lab.call("ADD", "blue", &pod);
    assert!(!cut_short.status.success(), "{cut_short:?}");
    wait_for("the agent's end", LIMIT, || lab.agent.ended());
    let vf = (0..2).find(|vf| lab.vf_in(&pod, *vf).is_some()).expect("the VF is in the pod");
    lab.card.rebind(vf);
    assert!(lab.vf_in(&pod, vf).is_none(), "its netdev is another one now");
    lab.restart_agent();
    let Attached { vf: again, mac, .. } = again(&lab, &pod);
    assert_eq!(again, vf);
    let expected = Vf { name: "net1".into(), mac, mtu: 1400, is_up: true };
    assert_eq!(lab.vf_in(&pod, vf).as_ref(), Some(&expected));
    lab.assert_invariants(&clean);
    assert_comes_to_ping(&pod, &its_address);

    lab.card.rebind(vf);
    let back =
        eventually(LIMIT, || (lab.vf_in(&pod, vf).as_ref() == Some(&expected)).then_some(()));
    assert!(back.is_some(), "{:?}", lab.vf_in(&pod, vf));
    lab.assert_invariants(&clean);
    assert_comes_to_ping(&pod, &its_address);
    for pod in [&pod, &peer] {
        lab.call("DEL", "blue", pod).nothing();
    }
    lab.assert_becomes(&before);
    lab.wait_for_free(2);
    lab.assert_invariants(&clean);
}

/// `dpuctl doctor` names a VF without a driver, and `--fix` binds one. The VF is unchanged, on the host or in its pod.
#[test]
fn vf_without_driver_is_named_and_fixed() {
    let lab = Lab::start(2);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    lab.card.keep_for(1, "nonesuch");
    lab.card.unbind(1);
    let unrepaired = lab.doctor(&["--fix"], "VF_UNBOUND");
    assert_eq!(unrepaired["state"], "FINDING_STATE_NOT_REPAIRED");
    let why = unrepaired["why"].as_str().unwrap();
    assert!(why.starts_with("driver nonesuch, "), "{why}");
    assert!(!unrepaired["advice"].as_str().unwrap().contains("--fix"), "{unrepaired}");
    lab.card.keep_for(1, "\n");
    assert_eq!(lab.doctor(&[], "VF_UNBOUND")["state"], "FINDING_STATE_FOUND");
    assert_eq!(lab.doctor(&["--fix"], "VF_UNBOUND")["state"], "FINDING_STATE_REPAIRED");
    lab.assert_becomes(&before);
    lab.wait_for_free(2);

    let pod = Netns::new("pod");
    let Attached { vf, mac, .. } = lab.add("blue", &pod);
    lab.card.unbind(vf);
    assert_eq!(lab.doctor(&["--fix"], "POD_VF_MISSING")["state"], "FINDING_STATE_REPAIRED");
    let expected = Vf { name: "net1".into(), mac, mtu: 1400, is_up: true };
    assert_eq!(lab.vf_in(&pod, vf), Some(expected));
    lab.assert_invariants(&clean);
    lab.call("DEL", "blue", &pod).nothing();
    lab.assert_becomes(&before);
}

/// A VF that a program drives has no link to move. The pod gets its address, and the PF enforces the network's rights.
#[test]
fn vfio_vf_is_attached_as_device() {
    let lab = Lab::start(2);
    run_ok("modprobe", &["vfio-pci"]);
    let address = lab.card.vf_address(1);
    lab.card.bind(1, "vfio-pci");
    wait_for("a VF without a netdev that is free", LIMIT, || {
        (lab.is_free(&address) && lab.vf_in(&lab.host, 1).is_none()).then_some(())
    });
    let before = lab.card.port(1);
    let pod = Netns::new("pod");
    let machine = VirtualMachine::with(&lab.card, 1);
    let pinned = json!({ "runtimeConfig": { "deviceID": address } });
    drop(lab.call_with("ADD", "blue", &pod, &pinned).error());
    wait_for("a VF that is in use", LIMIT, || (!lab.is_free(&address)).then_some(()));
    drop(machine);
    wait_for("a VF that is free again", LIMIT, || lab.is_free(&address).then_some(()));
    let file = lab.folder.path().join("device.json");
    let options = json!({ "runtimeConfig": { "deviceID": address, "CNIDeviceInfoFile": file } });
    let result = lab.call_with("ADD", "blue", &pod, &options).result();
    let interface = &result["interfaces"][0];
    assert_eq!(interface["pciID"], address.as_str(), "{result}");
    assert!(lab.vf_in(&pod, 1).is_none() && lab.vf_in(&lab.host, 1).is_none());
    let device: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(device["pci"]["pci-address"], address.as_str(), "{device}");
    let port = lab.card.port(1);
    assert_eq!((&port["address"], &port["vlan_list"][0]["vlan"]), (&interface["mac"], &json!(100)));
    lab.check("blue", &pod, &result);
    lab.call_with("DEL", "blue", &pod, &options).nothing();
    assert!(!file.exists());
    assert_eq!(lab.card.port(1)["vlan_list"], before["vlan_list"]);
    lab.wait_for_free(2);
}

/// A program that has a VF open, like a virtual machine.
struct VirtualMachine(Child);

impl VirtualMachine {
    /// Waits until the program has opened the VF.
    fn with(card: &Card, vf: usize) -> Self {
        let address = card.vf_address(vf);
        let group = fs::read_link(card.pf.join(format!("virtfn{vf}/iommu_group"))).unwrap();
        let group = format!("/dev/vfio/{}", group.file_name().unwrap().to_str().unwrap());
        let mut command = Command::new("perl");
        command.args(["-e", OPEN_DEVICE, &group, &address]).stdin(Stdio::piped());
        let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self(program)
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// VFIO_GROUP_SET_CONTAINER, VFIO_SET_IOMMU of type 1, VFIO_GROUP_GET_DEVICE_FD.
pub(super) const OPEN_DEVICE: &str = r#"
my ($path, $address) = @ARGV;
open(my $container, '+<', '/dev/vfio/vfio') or die "container: $!";
open(my $group, '+<', $path) or die "group: $!";
my $number = pack('i', fileno($container));
ioctl($group, 0x3b68, $number) or die "set container: $!";
ioctl($container, 0x3b66, 1) or die "set IOMMU: $!";
my $device = "$address\0";
ioctl($group, 0x3b6a, $device) or die "get device: $!";
$| = 1;
print "open\n";
<STDIN>;
"#;

/// Repeats ADD until it succeeds, like a runtime: the agent has just started.
fn again(lab: &Lab, pod: &Netns) -> Attached {
    let is_ready = || lab.call("ADD", "blue", pod).status.success().then_some(());
    wait_for("the attach", LIMIT, is_ready);
    lab.add("blue", pod)
}
