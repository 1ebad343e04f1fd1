//! Tests with real drivers: QEMU's igb cards in hack/vm's virtual machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sriov::{Error, Handover, PciAddress, Provisioning, Sysfs, VFIO, VirtualFunction};
use test_clock::wait_for;

/// The first igb card. Its VFs are removed on drop.
struct Card {
    sysfs: Sysfs,
    pf: PciAddress,
}

impl Card {
    fn new() -> Self {
        let sysfs = Sysfs::default();
        let pfs = sysfs.physical_functions().unwrap();
        let igb = pfs.iter().find(|pf| pf.driver.as_deref() == Some("igb"));
        let pf = igb.expect("this test needs an igb card: hack/vm").address;
        let card = Self { sysfs, pf };
        card.provide(0);
        card
    }

    fn provide(&self, wanted: u32) -> Vec<VirtualFunction> {
        self.sysfs.set_num_vfs(self.pf, wanted, &Provisioning::default()).unwrap()
    }

    fn unbind(vf: PciAddress) {
        fs::write(device(vf).join("driver/unbind"), vf.to_string()).unwrap();
    }

    /// Sets `driver_override` of a VF. Empty: any driver may bind.
    fn keep_for(vf: PciAddress, driver: &str) {
        fs::write(device(vf).join("driver_override"), format!("{driver}\n")).unwrap();
    }

    /// Waits until the VF has a netdev in this namespace.
    fn await_netdev(&self, vf: PciAddress) -> String {
        wait_for(&format!("the netdev of {vf}"), Duration::from_secs(30), || {
            self.sysfs.netdevs(vf).unwrap().into_iter().next()
        })
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        drop(self.sysfs.set_num_vfs(self.pf, 0, &Provisioning::default()));
    }
}

fn device(vf: PciAddress) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(vf.to_string())
}

fn run(command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn igb_card_is_described() {
    let card = Card::new();
    let pf = card.sysfs.physical_function(card.pf).unwrap();
    assert_eq!((pf.total_vfs, pf.num_vfs), (7, 0));
    assert_eq!((pf.vendor.as_str(), pf.device.as_str()), ("8086", "10c9"));
    assert_eq!(pf.vf_device.as_deref(), Some("10ca"));
    assert_eq!(
        sriov::device_name(&pf.vendor, &pf.device),
        Some("82576 Gigabit Network Connection")
    );
    assert_eq!(pf.netdevs.len(), 1);
}

#[test]
fn vf_number_grows_and_shrinks() {
    let card = Card::new();
    let seven = card.provide(7);
    let numbers: Vec<_> = seven.iter().map(|vf| vf.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    for vf in &seven {
        assert_eq!(vf.driver.as_deref(), Some("igbvf"));
        assert_eq!(vf.netdevs.len(), 1, "{vf:?}");
        assert_eq!(card.sysfs.virtual_function(vf.address).unwrap().as_ref(), Some(vf));
    }
    let three = card.provide(3);
    assert_eq!(three.len(), 3);
    assert_eq!(three[2].address, seven[2].address);
    assert!(!card.sysfs.exists(seven[3].address));
    let pf = card.sysfs.physical_function(card.pf).unwrap();
    assert_eq!(pf.num_vfs, 3);
}

#[test]
fn refused_vf_number_keeps_vfs() {
    let card = Card::new();
    let vfs = card.provide(2);
    let how = Provisioning { in_use: &[vfs[1].address], ..Provisioning::default() };
    let refused = card.sysfs.set_num_vfs(card.pf, 3, &how).unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    let refused = card.sysfs.set_num_vfs(card.pf, 8, &Provisioning::default()).unwrap_err();
    assert!(matches!(refused, Error::TooMany { total: 7, .. }), "{refused}");
    assert_eq!(card.sysfs.virtual_functions(card.pf).unwrap(), vfs);
}

#[test]
fn vfs_can_stay_without_driver() {
    let card = Card::new();
    let without = Provisioning { probe_drivers: Some(false), ..Provisioning::default() };
    let vfs = card.sysfs.set_num_vfs(card.pf, 1, &without).unwrap();
    let vf = vfs[0].address;
    assert_eq!(card.sysfs.driver_of(vf).unwrap(), None);
    Card::keep_for(vf, "igbvf");
    card.sysfs.find_driver(vf).unwrap();
    card.await_netdev(vf);
    card.provide(0);
    let with = Provisioning { probe_drivers: Some(true), ..Provisioning::default() };
    let vfs = card.sysfs.set_num_vfs(card.pf, 1, &with).unwrap();
    assert_eq!(vfs[0].driver.as_deref(), Some("igbvf"));
}

#[test]
fn driver_override_decides_the_driver() {
    let card = Card::new();
    let vf = card.provide(1)[0].address;
    Card::unbind(vf);
    assert_eq!(card.sysfs.driver_of(vf).unwrap(), None);
    assert_eq!(card.sysfs.netdevs(vf).unwrap(), [""; 0]);
    Card::keep_for(vf, "virtio-pci");
    let refused = card.sysfs.find_driver(vf).unwrap_err().to_string();
    assert!(refused.starts_with("driver virtio-pci, which alone "), "{refused}");
    Card::keep_for(vf, "");
    card.sysfs.find_driver(vf).unwrap();
    assert_eq!(card.sysfs.driver_of(vf).unwrap().as_deref(), Some("igbvf"));
    card.await_netdev(vf);
}

#[test]
fn vf_moves_to_vfio_and_back() {
    run("modprobe vfio-pci");
    let card = Card::new();
    let vf = card.provide(1)[0].address;
    Card::unbind(vf);
    Card::keep_for(vf, VFIO);
    card.sysfs.find_driver(vf).unwrap();
    assert_eq!(card.sysfs.handover(vf).unwrap(), Some(Handover::Idle));
    assert_eq!(card.sysfs.netdevs(vf).unwrap(), [""; 0]);
    Card::unbind(vf);
    Card::keep_for(vf, "");
    card.sysfs.find_driver(vf).unwrap();
    assert_eq!(card.sysfs.handover(vf).unwrap(), None);
    card.await_netdev(vf);
}

#[test]
fn netdev_returns_when_its_namespace_ends() {
    let card = Card::new();
    let vf = card.provide(1)[0].address;
    let name = card.await_netdev(vf);
    run("ip netns add pod");
    run(&format!("ip link set {name} netns pod"));
    assert_eq!(card.sysfs.netdevs(vf).unwrap(), [""; 0]);
    assert_eq!(card.sysfs.driver_of(vf).unwrap().as_deref(), Some("igbvf"));
    run("ip netns delete pod");
    assert_eq!(card.await_netdev(vf), name);
}
