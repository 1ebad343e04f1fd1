//! Drivers: which has a device, and how it comes to one.

use crate::{
    Error, PciAddress, Sysfs,
    sysfs::{number, text, write},
};

/// The driver that hands any device over to a program: a virtual machine, or DPDK. Some cards have
/// one of their own besides: see [`is_vfio`].
pub const VFIO: &str = "vfio-pci";

/// Whether a driver hands devices over to programs: the general one, or a card's own, such as
/// `mlx5_vfio_pci`.
#[must_use]
pub fn is_vfio(driver: &str) -> bool {
    driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci")
}

/// What becomes of a device that is handed over to programs, and so has no netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// No program has it open.
    Idle,
    /// A program has it open, such as a virtual machine.
    Open,
}

impl Sysfs {
    /// How a device is handed over. `None`: it is not.
    ///
    /// Of a device that is open the kernel counts that it is enabled. To open it and see would keep
    /// others from opening it meanwhile.
    ///
    /// # Errors
    /// When sysfs can't be read.
    pub fn handover(&self, address: PciAddress) -> Result<Option<Handover>, Error> {
        if !self.driver_of(address)?.as_deref().is_some_and(is_vfio) {
            return Ok(None);
        }
        let openers: Option<u32> = number(&self.device(address).join("enable"))?;
        Ok(Some(if openers.unwrap_or(0) == 0 { Handover::Idle } else { Handover::Open }))
    }

    /// Gives a device without a driver to the one that it is kept for or, if it is kept for none, to
    /// whichever knows it.
    ///
    /// # Errors
    /// [`Error::Unclaimed`] if no driver takes it; else the kernel's refusal.
    pub fn find_driver(&self, address: PciAddress) -> Result<(), Error> {
        write(&self.bus().join("drivers_probe"), &address.to_string())?;
        match self.driver_of(address)? {
            Some(_) => Ok(()),
            None => Err(Error::Unclaimed { address, kept_for: self.kept_for(address)? }),
        }
    }

    /// Takes a device's driver away from it and gives it back, which makes its netdev anew. The driver
    /// is that which has it now. A device that is handed over to programs keeps its own.
    ///
    /// # Errors
    /// [`Error::Handed`] if it is handed over, [`Error::Unclaimed`] if it has no driver or none takes
    /// it again; else the kernel's refusal.
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

    fn kept_for(&self, address: PciAddress) -> Result<Option<String>, Error> {
        let chosen = text(&self.device(address).join("driver_override"))?;
        Ok(chosen.filter(|driver| !driver.is_empty() && driver != "(null)"))
    }
}
