//! The VFs of PCI cards, identified by the device behind a link: its PCI address stays, whatever the link's name and
//! namespace.
//!
//! Two mutexes, never held together or across a read of sysfs. Any thread may call.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use netlink::{Link, Rtnl};
use parking_lot::Mutex;
use sriov::{Handover, IommuGroup, PciAddress, Provisioning, Sysfs};
use vf_alloc::{Device, PfId};

use super::{
    OtherVf, PfFacts, PfPort, ProvideError, ResetError, VfIdentity, VfPlacement, VfSource,
    Whereabouts,
};

/// Which cards' VFs the agent uses, and their numbers on the DPU.
#[derive(Clone, Debug, Default)]
pub struct PciSettings {
    /// The mount point of sysfs.
    pub sysfs: PathBuf,
    /// The PFs whose VFs are used. Empty: all of the host.
    pub pfs: Vec<PciPf>,
    /// The DPU's number of this host's controller.
    pub controller: u32,
    /// Whether the kernel probes drivers for new VFs. `None`: leave the card's setting.
    pub probe_drivers: Option<bool>,
    /// Whether the PF enforces pods' MAC addresses and VLANs because there is no DPU.
    pub is_legacy: bool,
}

/// A PF of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciPf {
    /// The PCI address.
    pub address: PciAddress,
    /// The PF's number on the DPU.
    pub number: u16,
}

/// Why the VFs of PCI cards cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// Sysfs cannot be read.
    #[error("cannot list SR-IOV cards")]
    Sysfs(#[from] sriov::Error),
    /// Two PFs would have the same number.
    #[error(
        "PFs {0} and {1} would both be PF {2} of the DPU: name those that belong to it in \
         vf_source.pfs"
    )]
    SameNumber(PciAddress, PciAddress, u16),
}

/// The VFs of the host's PCI cards.
#[derive(Debug)]
pub struct PciCards {
    sysfs: Sysfs,
    controller: u32,
    probe_drivers: Option<bool>,
    is_legacy: bool,
    /// Whether the configuration lists the PFs.
    is_listed: bool,
    /// The PFs by their number on the DPU.
    pfs: Mutex<BTreeMap<u16, PciAddress>>,
    /// A cache of identified VFs: reading sysfs for every link would be slow.
    seen: Mutex<HashMap<PciAddress, VfIdentity>>,
}

impl PciCards {
    /// Lists the cards. A listed card that is absent may appear later.
    ///
    /// # Errors
    /// See [`PciError`].
    pub fn open(settings: PciSettings) -> Result<Self, PciError> {
        let sysfs = Sysfs::at(settings.sysfs);
        let present = sysfs.physical_functions()?;
        let is_listed = !settings.pfs.is_empty();
        let wanted = if is_listed {
            settings.pfs
        } else {
            present.iter().map(|pf| PciPf::by_function(pf.address)).collect()
        };
        let mut pfs = BTreeMap::new();
        for PciPf { address, number } in wanted {
            if let Some(other) = pfs.insert(number, address) {
                return Err(PciError::SameNumber(other, address, number));
            }
        }
        for pf in present.iter().filter(|pf| pfs.values().any(|address| *address == pf.address)) {
            log_card(pf);
        }
        Ok(Self {
            sysfs,
            controller: settings.controller,
            probe_drivers: settings.probe_drivers,
            is_legacy: settings.is_legacy,
            is_listed,
            pfs: Mutex::new(pfs),
            seen: Mutex::default(),
        })
    }

    fn identity(&self, address: PciAddress) -> Option<VfIdentity> {
        if let Some(identity) = self.seen.lock().get(&address) {
            return Some(identity.clone());
        }
        let vf = logged(self.sysfs.virtual_function(address)).flatten()?;
        let identity = self.identity_of(address, self.number_of(vf.pf)?, vf.number)?;
        self.seen.lock().insert(address, identity.clone());
        Some(identity)
    }

    /// `None`: no VF can have this number.
    fn identity_of(&self, address: PciAddress, pf: u16, vf: u32) -> Option<VfIdentity> {
        let id = PfId { controller: self.controller, pf }.function(vf).ok()?;
        Some(VfIdentity { id, device: device_at(address) })
    }

    /// The PF's number. `None`: the PF is not used.
    fn number_of(&self, address: PciAddress) -> Option<u16> {
        let mut pfs = self.pfs.lock();
        if let Some((number, _)) = pfs.iter().find(|(_, pf)| **pf == address) {
            return Some(*number);
        }
        let PciPf { number, .. } = PciPf::by_function(address);
        if self.is_listed || pfs.contains_key(&number) {
            return None;
        }
        // A card that appeared after the start.
        pfs.insert(number, address);
        Some(number)
    }

    fn whereabouts(&self, device: &Device) -> Whereabouts {
        if let Some(handover) = logged(self.handover(device)).flatten() {
            return Whereabouts::HandedOver(handover);
        }
        let address = address_of(device);
        let driver = address.and_then(|vf| logged(self.sysfs.driver_of(vf))).flatten();
        if driver.is_some() { Whereabouts::Elsewhere } else { Whereabouts::Unbound }
    }

    fn pf_address(&self, number: u16) -> Option<PciAddress> {
        self.pfs.lock().get(&number).copied()
    }

    fn own_pf(&self, pf: PfId) -> Result<PciAddress, ProvideError> {
        let pf = self.pf_address(pf.pf).filter(|_| pf.controller == self.controller);
        pf.ok_or(ProvideError::UnknownPf)
    }

    fn facts(&self, pf: PciAddress) -> Result<PfFacts, sriov::Error> {
        let function = self.sysfs.physical_function(pf)?;
        let first = || {
            let vfs = self.sysfs.virtual_functions(pf)?;
            Ok(vfs.into_iter().next().map(|vf| vf.device).unwrap_or_default())
        };
        let device_id = function.vf_device.map_or_else(first, Ok)?;
        Ok(PfFacts { device: device_at(pf), vendor_id: function.vendor, device_id })
    }
}

impl PciPf {
    /// The ports of a card are its PCI functions, and the DPU uses the same numbers.
    fn by_function(address: PciAddress) -> Self {
        Self { address, number: address.function.into() }
    }
}

impl VfSource for PciCards {
    fn vf_of(&self, link: &Link) -> Option<VfIdentity> {
        if link.parent_bus.as_deref() != Some("pci") {
            return None;
        }
        self.identity(link.parent_device.as_deref()?.parse().ok()?)
    }

    fn pf_of(&self, vf: &VfIdentity) -> PfFacts {
        let pf = self.pf_address(vf.id.pf.pf);
        let facts = pf.and_then(|pf| logged(self.facts(pf)));
        facts.unwrap_or_else(|| PfFacts {
            device: pf.map(device_at).unwrap_or_default(),
            ..PfFacts::default()
        })
    }

    fn exists(&self, device: &Device) -> bool {
        let exists = address_of(device).is_some_and(|address| self.sysfs.exists(address));
        if !exists {
            // After a reset of the card the address may belong to another VF.
            self.seen.lock().retain(|address, _| device_at(*address) != *device);
        }
        exists
    }

    fn vfs_of(&self, pf: PfId) -> Vec<Device> {
        let pf = self.own_pf(pf).ok();
        let vfs = pf.and_then(|pf| logged(self.sysfs.vf_addresses(pf))).unwrap_or_default();
        vfs.into_iter().map(|(_, vf)| device_at(vf)).collect()
    }

    fn reset_vf(&self, device: &Device, _link: &Link, _host: &mut Rtnl) -> Result<(), ResetError> {
        address_of(device).map_or(Ok(()), |address| Ok(self.sysfs.rebind(address)?))
    }

    fn other_vfs(&self, is_known: &dyn Fn(&Device) -> bool) -> Vec<OtherVf> {
        // A copy, because reading sysfs takes long and every identification needs the lock.
        let pfs = self.pfs.lock().clone();
        let mut others = Vec::new();
        for (number, pf) in pfs {
            let vfs = logged(self.sysfs.vf_addresses(pf)).unwrap_or_default();
            let identities =
                vfs.into_iter().filter_map(|(vf, address)| self.identity_of(address, number, vf));
            others.extend(identities.filter(|vf| !is_known(&vf.device)).map(|identity| {
                let whereabouts = self.whereabouts(&identity.device);
                OtherVf { identity, whereabouts }
            }));
        }
        others
    }

    fn find_driver(&self, device: &Device) -> Result<(), sriov::Error> {
        address_of(device).map_or(Ok(()), |address| self.sysfs.find_driver(address))
    }

    fn handover(&self, device: &Device) -> Result<Option<Handover>, sriov::Error> {
        address_of(device).map_or(Ok(None), |address| self.sysfs.handover(address))
    }

    fn iommu_group(&self, device: &Device) -> Result<Option<IommuGroup>, sriov::Error> {
        address_of(device).map_or(Ok(None), |address| self.sysfs.iommu_group(address))
    }

    fn placement(&self, device: &Device) -> VfPlacement {
        let Some(address) = address_of(device) else { return VfPlacement::default() };
        let pf = self.identity(address).and_then(|vf| self.pf_address(vf.id.pf.pf));
        VfPlacement {
            pf: pf.map(device_at).unwrap_or_default(),
            numa_node: logged(self.sysfs.numa_node(address)).flatten(),
        }
    }

    fn pf_port(&self, device: &Device) -> Option<PfPort> {
        let identity = self.identity(address_of(device)?).filter(|_| self.is_legacy)?;
        let pf = self.pf_address(identity.id.pf.pf)?;
        Some(PfPort { pf: device_at(pf), vf: identity.id.vf.into() })
    }

    fn is_change_due(&self, pf: PfId, count: u32, in_use: &[Device]) -> Result<bool, ProvideError> {
        let pf = self.own_pf(pf)?;
        Ok(self.sysfs.is_change_due(pf, count, &addresses_of(in_use))?)
    }

    fn provide(&self, pf: PfId, count: u32, in_use: &[Device]) -> Result<bool, ProvideError> {
        let pf = self.own_pf(pf)?;
        let in_use = addresses_of(in_use);
        if !self.sysfs.is_change_due(pf, count, &in_use)? {
            return Ok(false);
        }
        let how = Provisioning {
            in_use: &in_use,
            probe_drivers: self.probe_drivers,
            ..Provisioning::default()
        };
        let outcome = self.sysfs.set_num_vfs(pf, count, &how);
        if !matches!(outcome, Err(sriov::Error::InUse { .. } | sriov::Error::TooMany { .. })) {
            // With another number of VFs a card may place them at other addresses, which makes the cache wrong.
            self.seen.lock().clear();
        }
        outcome?;
        Ok(true)
    }
}

fn addresses_of(devices: &[Device]) -> Vec<PciAddress> {
    devices.iter().filter_map(address_of).collect()
}

fn address_of(device: &Device) -> Option<PciAddress> {
    device.as_str().parse().ok()
}

fn device_at(address: PciAddress) -> Device {
    address.to_string().into()
}

fn log_card(pf: &sriov::PhysicalFunction) {
    tracing::info!(
        pf = %pf.address,
        vendor = pf.vendor,
        device = pf.device,
        driver = pf.driver.as_deref().unwrap_or("none"),
        numa_node = pf.numa_node,
        vfs = pf.num_vfs,
        most_vfs = pf.total_vfs,
        "found an SR-IOV card"
    );
}

/// Logs a failed read. Sysfs may be incomplete while a card is reset or its driver changes; the caller reads it again
/// later.
fn logged<T>(read: Result<T, sriov::Error>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::debug!(error = %bootstrap::Chain(&error), "cannot read the card's sysfs");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use tempfile::TempDir;

    use super::*;

    const PF: PfId = PfId { controller: 1, pf: 0 };

    /// Two cards of one PF each; the first has two VFs.
    fn machine() -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for pf in ["0000:03:00.0", "0000:04:00.0"] {
            add_device(root.path(), pf);
            fs::write(device(root.path(), pf).join("sriov_totalvfs"), "8\n").unwrap();
            fs::write(device(root.path(), pf).join("sriov_numvfs"), "2\n").unwrap();
            fs::write(device(root.path(), pf).join("sriov_vf_device"), "101e\n").unwrap();
        }
        for (number, vf) in ["0000:03:00.2", "0000:03:00.3"].iter().enumerate() {
            add_device(root.path(), vf);
            let pf = device(root.path(), "0000:03:00.0");
            symlink(format!("../{vf}"), pf.join(format!("virtfn{number}"))).unwrap();
            symlink("../0000:03:00.0", device(root.path(), vf).join("physfn")).unwrap();
        }
        root
    }

    fn device(root: &Path, address: &str) -> PathBuf {
        root.join("bus/pci/devices").join(address)
    }

    fn add_device(root: &Path, address: &str) {
        fs::create_dir_all(device(root, address)).unwrap();
        fs::write(device(root, address).join("vendor"), "0x15b3\n").unwrap();
        fs::write(device(root, address).join("device"), "0x101d\n").unwrap();
    }

    fn cards(root: &Path, pfs: &[(&str, u16)]) -> Result<PciCards, PciError> {
        let pf = |(address, number): &(&str, u16)| PciPf {
            address: address.parse().unwrap(),
            number: *number,
        };
        PciCards::open(PciSettings {
            sysfs: root.to_owned(),
            pfs: pfs.iter().map(pf).collect(),
            controller: 1,
            ..PciSettings::default()
        })
    }

    fn link(name: &str, device: &str) -> Link {
        let mut link = Link::default();
        (link.name, link.mtu) = (name.into(), 1500);
        (link.parent_bus, link.parent_device) = (Some("pci".into()), Some(device.into()));
        link
    }

    #[test]
    fn pci_address_identifies_vf() {
        let root = machine();
        let cards = cards(root.path(), &[("0000:03:00.0", 5)]).unwrap();
        let vf = cards.vf_of(&link("anything", "0000:03:00.3")).unwrap();
        assert_eq!(vf.id.to_string(), "c1pf5vf1");
        assert_eq!(cards.vf_of(&link("pf", "0000:03:00.0")), None);
        let mut on_another_bus = link("a", "0000:03:00.3");
        on_another_bus.parent_bus = Some("auxiliary".into());
        assert_eq!(cards.vf_of(&on_another_bus), None);
        let facts = cards.pf_of(&vf);
        assert_eq!((facts.vendor_id.as_str(), facts.device_id.as_str()), ("15b3", "101e"));
    }

    #[test]
    fn linkless_vfs_are_listed_with_whereabouts() {
        let root = machine();
        let driver = device(root.path(), "0000:03:00.2").join("driver");
        symlink("../../../../bus/pci/drivers/mlx5_vfio_pci", driver).unwrap();
        let cards = cards(root.path(), &[("0000:03:00.0", 0)]).unwrap();
        let listed = |known: &str| {
            let others = cards.other_vfs(&|device| device.as_str() == known);
            others.iter().map(|vf| (vf.identity.id.vf, vf.whereabouts)).collect::<Vec<_>>()
        };
        let idle = Whereabouts::HandedOver(Handover::Idle);
        assert_eq!(listed(""), [(0, idle), (1, Whereabouts::Unbound)]);
        assert_eq!(listed("0000:03:00.2"), [(1, Whereabouts::Unbound)]);
        fs::write(device(root.path(), "0000:03:00.2").join("enable"), "1\n").unwrap();
        let open = Whereabouts::HandedOver(Handover::Open);
        assert_eq!(listed("0000:03:00.3"), [(0, open)]);
        assert!(open.is_in_use() && !idle.is_in_use());
    }

    #[test]
    fn vf_count_changes_only_without_vfs_in_use() {
        let root = machine();
        let cards = cards(root.path(), &[("0000:03:00.0", 0)]).unwrap();
        let in_use = ["0000:03:00.3".into()];
        assert!(!cards.is_change_due(PF, 2, &in_use).unwrap());
        assert!(cards.is_change_due(PF, 4, &[]).unwrap());
        let refused = cards.is_change_due(PF, 4, &in_use).unwrap_err();
        assert!(matches!(refused, ProvideError::Card(sriov::Error::InUse { .. })));
    }

    #[test]
    fn renumbered_vf_gets_its_current_number() {
        let root = machine();
        let cards = cards(root.path(), &[("0000:03:00.0", 0)]).unwrap();
        let number_of = |address: &str| cards.vf_of(&link("v", address)).map(|vf| vf.id.vf);
        assert_eq!(number_of("0000:03:00.3"), Some(1));
        let pf = device(root.path(), "0000:03:00.0");
        fs::remove_file(pf.join("virtfn1")).unwrap();
        fs::rename(pf.join("virtfn0"), pf.join("virtfn1")).unwrap();
        symlink("../0000:03:00.3", pf.join("virtfn0")).unwrap();
        assert!(cards.provide(PF, 4, &[]).unwrap());
        assert_eq!(number_of("0000:03:00.3"), Some(0), "its number depends on how many there are");

        fs::remove_dir_all(device(root.path(), "0000:03:00.3")).unwrap();
        assert!(!cards.exists(&"0000:03:00.3".into()));
        assert_eq!(number_of("0000:03:00.3"), None, "it is gone");
    }

    #[test]
    fn pfs_with_equal_numbers_are_refused() {
        let root = machine();
        let error = cards(root.path(), &[]).unwrap_err().to_string();
        for named in ["PFs 0000:03:00.0 and 0000:04:00.0", "PF 0 of the DPU", "vf_source.pfs"] {
            assert!(error.contains(named), "{named}: {error}");
        }
    }

    #[test]
    fn unlisted_pf_is_ignored() {
        let root = machine();
        let cards = cards(root.path(), &[("0000:04:00.0", 0)]).unwrap();
        assert_eq!(cards.vf_of(&link("v", "0000:03:00.2")), None);
        assert!(matches!(
            cards.provide(PfId { pf: 3, ..PF }, 4, &[]),
            Err(ProvideError::UnknownPf)
        ));
    }
}
