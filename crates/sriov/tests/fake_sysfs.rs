//! Tests with a folder in the form of /sys.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use sriov::{Error, Handover, PciAddress, Provisioning, Sysfs, VFIO};
use tempfile::TempDir;

const PF: &str = "0000:03:00.0";

/// A card with one PF and VFs, whose netdevs are `v0`, `v1` and so on.
struct Card {
    root: TempDir,
}

impl Card {
    fn new(total: u32, vfs: u8) -> Self {
        let card = Self { root: tempfile::tempdir().unwrap() };
        card.add_device(PF, "0x101d");
        card.set(PF, "sriov_totalvfs", &total.to_string());
        card.set(PF, "sriov_numvfs", &vfs.to_string());
        card.set(PF, "sriov_drivers_autoprobe", "1");
        card.set(PF, "numa_node", "1");
        card.bind(PF, "mlx5_core");
        card.add_netdev(PF, "p0");
        for number in 0..vfs {
            let vf = address_of(number);
            card.add_device(&vf, "0x101e");
            card.set(&vf, "numa_node", "-1");
            card.bind(&vf, "mlx5_core");
            card.add_netdev(&vf, &format!("v{number}"));
            symlink(format!("../{PF}"), card.device(&vf).join("physfn")).unwrap();
            symlink(format!("../{vf}"), card.device(PF).join(format!("virtfn{number}"))).unwrap();
        }
        // A device that is not a network card.
        card.add_device("0000:00:02.0", "0x1234");
        card
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.root.path())
    }

    fn device(&self, address: &str) -> PathBuf {
        self.root.path().join("bus/pci/devices").join(address)
    }

    fn add_device(&self, address: &str, device: &str) {
        fs::create_dir_all(self.device(address)).unwrap();
        self.set(address, "vendor", "0x15b3");
        self.set(address, "device", device);
        self.set(address, "driver_override", "(null)");
    }

    fn set(&self, address: &str, file: &str, value: &str) {
        fs::write(self.device(address).join(file), format!("{value}\n")).unwrap();
    }

    fn get(&self, address: &str, file: &str) -> String {
        fs::read_to_string(self.device(address).join(file)).unwrap().trim_end().to_owned()
    }

    fn bind(&self, address: &str, driver: &str) {
        let folder = self.root.path().join("bus/pci/drivers").join(driver);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("unbind"), "").unwrap();
        let link = self.device(address).join("driver");
        if link.is_symlink() {
            fs::remove_file(&link).unwrap();
        }
        symlink(Path::new("../../../../bus/pci/drivers").join(driver), link).unwrap();
    }

    /// Puts a device into an IOMMU group.
    fn add_to_group(&self, number: u32, address: &str) {
        let devices = self.root.path().join(format!("kernel/iommu_groups/{number}/devices"));
        fs::create_dir_all(&devices).unwrap();
        symlink(self.device(address), devices.join(address)).unwrap();
        let group = format!("../../../../kernel/iommu_groups/{number}");
        symlink(group, self.device(address).join("iommu_group")).unwrap();
    }

    fn add_netdev(&self, address: &str, name: &str) {
        fs::create_dir_all(self.device(address).join("net").join(name)).unwrap();
    }
}

/// VFs follow their PF in the bus.
fn address_of(vf: u8) -> String {
    let function = vf + 1;
    format!("0000:03:{:02x}.{}", function >> 3, function & 7)
}

fn pci(text: &str) -> PciAddress {
    text.parse().unwrap()
}

#[test]
fn pfs_are_distinguished_from_other_devices() {
    let card = Card::new(16, 2);
    let pfs = card.sysfs().physical_functions().unwrap();
    assert_eq!(pfs.len(), 1);
    let pf = &pfs[0];
    assert_eq!((pf.vendor.as_str(), pf.device.as_str()), ("15b3", "101d"));
    assert_eq!((pf.total_vfs, pf.num_vfs, pf.numa_node), (16, 2, Some(1)));
    assert_eq!(pf.driver.as_deref(), Some("mlx5_core"));
    assert_eq!(pf.netdevs, ["p0"]);
}

#[test]
fn numa_node_of_minus_one_is_none() {
    let card = Card::new(16, 1);
    let sysfs = card.sysfs();
    assert_eq!(sysfs.numa_node(pci(PF)).unwrap(), Some(1));
    assert_eq!(sysfs.numa_node(pci(&address_of(0))).unwrap(), None);
}

#[test]
fn iommu_group_has_its_devices_without_bridges() {
    let card = Card::new(16, 2);
    let [first, second] = [0, 1].map(address_of);
    let group = |vf: &str| card.sysfs().iommu_group(pci(vf)).unwrap();
    assert_eq!(group(&first), None);
    card.set("0000:00:02.0", "class", "0x060400");
    for device in ["0000:00:02.0", &second, &first] {
        card.add_to_group(7, device);
    }
    let found = group(&first).unwrap();
    assert_eq!((found.number, found.devices), (7, vec![first.clone(), second]));
    // The name of vfio's no-IOMMU groups.
    fs::write(card.root.path().join("kernel/iommu_groups/7/name"), "vfio-noiommu\n").unwrap();
    assert_eq!(group(&first), None);
}

#[test]
fn vfs_are_ordered_by_number() {
    let card = Card::new(16, 12);
    let vfs = card.sysfs().virtual_functions(pci(PF)).unwrap();
    let numbers: Vec<_> = vfs.iter().map(|vf| vf.number).collect();
    assert_eq!(numbers, (0..12).collect::<Vec<_>>());
    assert_eq!(vfs[10].address, pci("0000:03:01.3"));
    assert_eq!((vfs[10].pf, vfs[10].numa_node), (pci(PF), None));
    assert_eq!(vfs[10].netdevs, ["v10"]);
    let one = card.sysfs().virtual_function(vfs[10].address).unwrap();
    assert_eq!(one.as_ref(), Some(&vfs[10]));
    assert_eq!(card.sysfs().virtual_function(pci(PF)).unwrap(), None);
    assert_eq!(card.sysfs().virtual_function(pci("0000:09:00.0")).unwrap(), None);
}

#[test]
fn machine_without_pci_has_no_pfs() {
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(Sysfs::at(nothing.path()).physical_functions().unwrap(), []);
}

#[test]
fn other_devices_are_no_pfs() {
    let card = Card::new(4, 0);
    let reported = |address| card.sysfs().physical_function(pci(address)).unwrap_err().to_string();
    assert!(reported("0000:09:00.0").ends_with("no PCI device 0000:09:00.0"));
    assert!(reported("0000:00:02.0").contains("0000:00:02.0 has no SR-IOV"));
}

#[test]
fn malformed_sysfs_file_is_named() {
    let card = Card::new(4, 0);
    card.set(PF, "sriov_numvfs", "many");
    let error = card.sysfs().physical_functions().unwrap_err().to_string();
    assert!(error.contains("sriov_numvfs holds \"many\""), "{error}");
}

#[test]
fn unchanged_vf_number_keeps_vfs() {
    let card = Card::new(4, 2);
    let vf = pci(&address_of(0));
    let how = Provisioning { in_use: &[vf], ..Provisioning::default() };
    assert_eq!(card.sysfs().set_num_vfs(pci(PF), 2, &how).unwrap().len(), 2);
}

#[test]
fn vf_number_stays_while_in_use() {
    let card = Card::new(4, 2);
    let vf = pci(&address_of(1));
    let how = Provisioning { in_use: &[vf], ..Provisioning::default() };
    let error = card.sysfs().set_num_vfs(pci(PF), 4, &how).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }));
    assert!(error.to_string().contains("keeps its 2 VFs instead of 4"), "{error}");
    assert_eq!(card.get(PF, "sriov_numvfs"), "2");
}

#[test]
fn too_many_vfs_change_nothing() {
    let card = Card::new(4, 2);
    let error = card.sysfs().set_num_vfs(pci(PF), 5, &Provisioning::default()).unwrap_err();
    assert_eq!(error.to_string(), "PF 0000:03:00.0 cannot have 5 VFs: its card has 4 at most");
    assert_eq!(card.get(PF, "sriov_numvfs"), "2");
}

#[test]
fn vf_number_is_written_after_autoprobe() {
    let card = Card::new(4, 0);
    let how = Provisioning { probe_drivers: Some(false), ..Provisioning::default() };
    card.sysfs().set_num_vfs(pci(PF), 3, &how).unwrap();
    assert_eq!(card.get(PF, "sriov_numvfs"), "3");
    assert_eq!(card.get(PF, "sriov_drivers_autoprobe"), "0");
}

#[test]
fn missing_netdev_is_reported_with_driver() {
    let card = Card::new(4, 1);
    fs::remove_dir_all(card.device(&address_of(0)).join("net")).unwrap();
    let how = Provisioning { timeout: Duration::ZERO, ..Provisioning::default() };
    let error = card.sysfs().set_num_vfs(pci(PF), 3, &how).unwrap_err();
    let reported = error.to_string();
    assert!(reported.starts_with("VF 0000:03:00.1 of PF 0000:03:00.0 has no netdev"), "{reported}");
    assert!(reported.ends_with(" mlx5_core"), "{reported}");
}

#[test]
fn vfio_vf_needs_no_netdev() {
    let card = Card::new(4, 1);
    let vf = address_of(0);
    fs::remove_dir_all(card.device(&vf).join("net")).unwrap();
    let how = Provisioning { timeout: Duration::ZERO, ..Provisioning::default() };
    for driver in [VFIO, "mlx5_vfio_pci"] {
        card.set(PF, "sriov_numvfs", "1");
        card.bind(&vf, driver);
        assert_eq!(card.sysfs().handover(pci(&vf)).unwrap(), Some(Handover::Idle), "{driver}");
        assert!(card.sysfs().set_num_vfs(pci(PF), 3, &how).is_ok(), "{driver}");
    }
}

#[test]
fn unclaimed_device_is_reported() {
    let card = Card::new(4, 1);
    let vf = address_of(0);
    let probe = card.root.path().join("bus/pci/drivers_probe");
    fs::write(&probe, "").unwrap();
    fs::remove_file(card.device(&vf).join("driver")).unwrap();
    let refusal = || card.sysfs().find_driver(pci(&vf)).unwrap_err().to_string();
    assert!(refusal().starts_with("no driver ") && refusal().ends_with(" 0000:03:00.1"));
    assert_eq!(fs::read_to_string(&probe).unwrap(), vf);
    card.set(&vf, "driver_override", VFIO);
    let alone = refusal();
    assert!(alone.starts_with("driver vfio-pci, which alone "), "{alone}");
    assert!(alone.ends_with(" PCI device 0000:03:00.1"), "{alone}");
    card.bind(&vf, VFIO);
    card.sysfs().find_driver(pci(&vf)).unwrap();
}

#[test]
fn rebind_spares_vfio_devices() {
    let card = Card::new(8, 2);
    let drivers = card.root.path().join("bus/pci/drivers");
    let (vf, handed) = (address_of(0), address_of(1));
    card.bind(&vf, "mlx5_core");
    card.bind(&handed, "vfio-pci");
    for file in ["mlx5_core/unbind", "vfio-pci/unbind"] {
        fs::write(drivers.join(file), "").unwrap();
    }
    let probe = card.root.path().join("bus/pci/drivers_probe");
    fs::write(&probe, "").unwrap();
    card.sysfs().rebind(pci(&vf)).unwrap();
    assert_eq!(fs::read_to_string(drivers.join("mlx5_core/unbind")).unwrap(), vf);
    assert_eq!(fs::read_to_string(&probe).unwrap(), vf);
    let error = card.sysfs().rebind(pci(&handed)).unwrap_err();
    assert!(error.to_string().ends_with(" driver vfio-pci"), "{error}");
    assert_eq!(fs::read_to_string(drivers.join("vfio-pci/unbind")).unwrap(), "");
}

#[test]
fn unreadable_sysfs_file_is_named() {
    let card = Card::new(4, 0);
    let path = card.device(PF).join("sriov_numvfs");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = card.sysfs().physical_function(pci(PF)).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read {}", path.display()));
}
