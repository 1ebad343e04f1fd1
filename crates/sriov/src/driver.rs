//! Drivers of PCI devices.

use crate::{
    Error, PciAddress, Sysfs,
    sysfs::{number, text, write},
};

/// The generic driver that hands a device to a program, such as a virtual machine or DPDK. Some cards have a vfio
/// driver of their own: see [`is_vfio`].
pub const VFIO: &str = "vfio-pci";

/// Whether a driver hands devices to programs: `vfio-pci` or a card's own, such as `mlx5_vfio_pci`.
#[must_use]
pub fn is_vfio(driver: &str) -> bool {
    driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci")
}

/// State of a device that is bound to a vfio driver and therefore has no netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// No program has the device open.
    Idle,
    /// A program has the device open, such as a virtual machine.
    Open,
}

impl Sysfs {
    /// Whether a program uses a device. `None`: its driver is not a vfio driver.
    ///
    /// The kernel counts an open device as enabled. Opening the device to find out would block other programs.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn handover(&self, address: PciAddress) -> Result<Option<Handover>, Error> {
        if !self.driver_of(address)?.as_deref().is_some_and(is_vfio) {
            return Ok(None);
        }
        let openers: Option<u32> = number(&self.device(address).join("enable"))?;
        Ok(Some(if openers.unwrap_or(0) == 0 { Handover::Idle } else { Handover::Open }))
    }

    /// Binds a device without a driver. The kernel chooses the driver in `driver_override`, or any that supports the
    /// device.
    ///
    /// # Errors
    /// [`Error::Unclaimed`] if no driver binds to it; otherwise the kernel's refusal.
    pub fn find_driver(&self, address: PciAddress) -> Result<(), Error> {
        write(&self.bus().join("drivers_probe"), &address.to_string())?;
        match self.driver_of(address)? {
            Some(_) => Ok(()),
            None => Err(Error::Unclaimed { address, kept_for: self.kept_for(address)? }),
        }
    }

    /// Unbinds a device's driver and binds it again, which creates a new netdev.
    ///
    /// # Errors
    /// [`Error::Handed`] for a vfio driver, whose device a program may use. [`Error::Unclaimed`] if the device has no
    /// driver or none binds again. Otherwise the kernel's refusal.
    pub fn rebind(&self, address: PciAddress) -> Result<(), Error> {
        let driver = self.driver_of(address)?;
        let Some(driver) = driver else {
            return Err(Error::Unclaimed { address, kept_for: self.kept_for(address)? });
        };
        if is_vfio(&driver) {
            return Err(Error::Handed { address, driver });
        }
        let folder = self.bus().join("drivers").join(&driver);
        write(&folder.join("unbind"), &address.to_string())?;
        self.find_driver(address)
    }

    /// The driver in `driver_override`. The kernel shows `(null)` for none.
    fn kept_for(&self, address: PciAddress) -> Result<Option<String>, Error> {
        let chosen = text(&self.device(address).join("driver_override"))?;
        Ok(chosen.filter(|driver| !driver.is_empty() && driver != "(null)"))
    }
}
