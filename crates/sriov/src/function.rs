//! Physical and virtual functions.

use crate::{
    Error, PciAddress, Sysfs,
    sysfs::{entries, link_target, linked_device, number, text},
};

/// A physical function: a port of a card that can have VFs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhysicalFunction {
    /// PCI address.
    pub address: PciAddress,
    /// Vendor ID: four hexadecimal digits, such as `15b3`.
    pub vendor: String,
    /// Device ID: four hexadecimal digits, such as `101d`.
    pub device: String,
    /// Bound driver, if any.
    pub driver: Option<String>,
    /// Nearest NUMA node. `None`: the machine has only one, or does not report it.
    pub numa_node: Option<u32>,
    /// Largest number of VFs.
    pub total_vfs: u32,
    /// Current number of VFs.
    pub num_vfs: u32,
    /// Device ID of its VFs, four hexadecimal digits. `None` on kernels before 4.15.
    pub vf_device: Option<String>,
    /// Its netdevs in the network namespace of the sysfs mount.
    pub netdevs: Vec<String>,
}

/// A virtual function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VirtualFunction {
    /// PCI address.
    pub address: PciAddress,
    /// PCI address of its PF.
    pub pf: PciAddress,
    /// Number within its PF, from 0.
    pub number: u32,
    /// Vendor ID: four hexadecimal digits.
    pub vendor: String,
    /// Device ID: four hexadecimal digits.
    pub device: String,
    /// Bound driver, if any.
    pub driver: Option<String>,
    /// Nearest NUMA node. `None`: the machine has only one, or does not report it.
    pub numa_node: Option<u32>,
    /// Its netdevs in the network namespace of the sysfs mount. Empty without a driver, and while its netdev is in
    /// another namespace.
    pub netdevs: Vec<String>,
}

impl Sysfs {
    /// Lists all PFs by address.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn physical_functions(&self) -> Result<Vec<PhysicalFunction>, Error> {
        let mut functions = Vec::new();
        for address in self.addresses()? {
            functions.extend(self.find_physical(address)?);
        }
        Ok(functions)
    }

    /// Reads the PF at an address.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::NotPhysical`], or sysfs cannot be read.
    pub fn physical_function(&self, address: PciAddress) -> Result<PhysicalFunction, Error> {
        if let Some(function) = self.find_physical(address)? {
            return Ok(function);
        }
        Err(if self.exists(address) {
            Error::NotPhysical(address)
        } else {
            Error::NoDevice(address)
        })
    }

    fn find_physical(&self, address: PciAddress) -> Result<Option<PhysicalFunction>, Error> {
        let folder = self.device(address);
        let Some(total_vfs) = number(&folder.join("sriov_totalvfs"))? else { return Ok(None) };
        Ok(Some(PhysicalFunction {
            address,
            vendor: self.id(address, "vendor")?,
            device: self.id(address, "device")?,
            driver: self.driver_of(address)?,
            numa_node: self.numa_node(address)?,
            total_vfs,
            num_vfs: number(&folder.join("sriov_numvfs"))?.unwrap_or(0),
            vf_device: text(&folder.join("sriov_vf_device"))?,
            netdevs: self.netdevs(address)?,
        }))
    }

    /// Whether a device exists at an address.
    #[must_use]
    pub fn exists(&self, address: PciAddress) -> bool {
        self.device(address).exists()
    }

    /// Lists the VFs of a PF by number.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn virtual_functions(&self, pf: PciAddress) -> Result<Vec<VirtualFunction>, Error> {
        let mut functions = Vec::new();
        for (number, address) in self.vf_addresses(pf)? {
            functions.push(self.describe_virtual(address, pf, number)?);
        }
        Ok(functions)
    }

    /// Reads the VF at an address. `None`: the device is not a VF, or does not exist.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn virtual_function(&self, address: PciAddress) -> Result<Option<VirtualFunction>, Error> {
        let Some(pf) = linked_device(&self.device(address).join("physfn"))? else {
            return Ok(None);
        };
        let numbered = self.vf_addresses(pf)?;
        let Some((number, _)) = numbered.into_iter().find(|(_, vf)| *vf == address) else {
            return Ok(None);
        };
        self.describe_virtual(address, pf, number).map(Some)
    }

    fn describe_virtual(
        &self,
        address: PciAddress,
        pf: PciAddress,
        number: u32,
    ) -> Result<VirtualFunction, Error> {
        Ok(VirtualFunction {
            address,
            pf,
            number,
            vendor: self.id(address, "vendor")?,
            device: self.id(address, "device")?,
            driver: self.driver_of(address)?,
            numa_node: self.numa_node(address)?,
            netdevs: self.netdevs(address)?,
        })
    }

    /// Lists the addresses of a PF's VFs by number. VFs that vanish during the call are left out.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn vf_addresses(&self, pf: PciAddress) -> Result<Vec<(u32, PciAddress)>, Error> {
        let folder = self.device(pf);
        let mut numbered = Vec::new();
        for name in entries(&folder)? {
            let number = name.strip_prefix("virtfn").and_then(|digits| digits.parse().ok());
            let Some(number) = number else { continue };
            let vf = linked_device(&folder.join(&name))?;
            numbered.extend(vf.map(|vf| (number, vf)));
        }
        numbered.sort_unstable();
        Ok(numbered)
    }

    /// The driver of a device. `None`: it has no driver, or does not exist.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn driver_of(&self, address: PciAddress) -> Result<Option<String>, Error> {
        link_target(&self.device(address).join("driver"))
    }

    /// The netdevs of a device in the network namespace of the sysfs mount.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn netdevs(&self, address: PciAddress) -> Result<Vec<String>, Error> {
        let mut names = entries(&self.device(address).join("net"))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Reads an ID such as `0x15b3`, without the prefix.
    fn id(&self, address: PciAddress, file: &str) -> Result<String, Error> {
        let path = self.device(address).join(file);
        let text = text(&path)?.ok_or(Error::NoDevice(address))?;
        match text.strip_prefix("0x") {
            Some(id) if id.len() == 4 => Ok(id.to_ascii_lowercase()),
            _ => Err(Error::Content { path, text, expected: "PCI id" }),
        }
    }

    /// The nearest NUMA node of a device. `None`: the machine has only one, or does not report it (-1 in sysfs).
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn numa_node(&self, address: PciAddress) -> Result<Option<u32>, Error> {
        let node: Option<i64> = number(&self.device(address).join("numa_node"))?;
        Ok(node.and_then(|node| u32::try_from(node).ok()))
    }
}
