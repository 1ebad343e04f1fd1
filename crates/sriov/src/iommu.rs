//! IOMMU groups: devices that the IOMMU cannot isolate from each other.

use crate::{
    Error, PciAddress, Sysfs,
    sysfs::{entries, link_target, text},
};

/// Name of the groups that vfio creates in its no-IOMMU mode.
const WITHOUT_IOMMU: &str = "vfio-noiommu";
/// Prefix of the class of PCI-to-PCI bridges.
const BRIDGE: &str = "0x0604";

/// Devices that reach each other's memory: a program that opens one of them controls all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IommuGroup {
    /// Group number: its file is `/dev/vfio/NUMBER`.
    pub number: u32,
    /// Names of its devices in sysfs, which are PCI addresses except on other buses. PCI bridges are left out: they
    /// keep their driver while a program uses the group.
    pub devices: Vec<String>,
}

impl Sysfs {
    /// The IOMMU group of a device. `None`: no IOMMU confines the device.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn iommu_group(&self, address: PciAddress) -> Result<Option<IommuGroup>, Error> {
        let path = self.device(address).join("iommu_group");
        let Some(name) = link_target(&path)? else { return Ok(None) };
        if text(&path.join("name"))?.as_deref() == Some(WITHOUT_IOMMU) {
            return Ok(None);
        }
        let Ok(number) = name.parse() else {
            return Err(Error::Content { path, text: name, expected: "number" });
        };
        let mut devices = Vec::new();
        for device in entries(&path.join("devices"))? {
            if !self.is_bridge(&device)? {
                devices.push(device);
            }
        }
        devices.sort_unstable();
        Ok(Some(IommuGroup { number, devices }))
    }

    fn is_bridge(&self, device: &str) -> Result<bool, Error> {
        let class = text(&self.bus().join("devices").join(device).join("class"))?;
        Ok(class.is_some_and(|class| class.starts_with(BRIDGE)))
    }
}
