//! Drivers: which has a device, and which shall have it.

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

    /// Takes a device away from its driver, if it has one. Its netdev goes, wherever it is.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn unbind(&self, address: PciAddress) -> Result<(), Error> {
        let Some(driver) = self.driver_of(address)? else { return Ok(()) };
        write(&self.bus().join("drivers").join(driver).join("unbind"), &address.to_string())
    }

    /// Gives a device to `driver` and to no other from now on, or, without one, to whichever knows
    /// it. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`Error::NotBound`] if the driver does not take it; else the kernel's refusal.
    pub fn bind(&self, address: PciAddress, driver: Option<&str>) -> Result<(), Error> {
        let present = self.driver_of(address)?;
        if present.is_some() && present.as_deref() == driver {
            return Ok(());
        }
        self.unbind(address)?;
        // An end of line alone takes the choice back.
        let chosen = driver.map_or_else(|| "\n".to_owned(), str::to_owned);
        write(&self.device(address).join("driver_override"), &chosen)?;
        write(&self.bus().join("drivers_probe"), &address.to_string())?;
        let present = self.driver_of(address)?;
        match driver {
            Some(wanted) if present.as_deref() != Some(wanted) => {
                Err(Error::NotBound { address, wanted: wanted.to_owned(), driver: present })
            }
            _ => Ok(()),
        }
    }

    /// The driver that a device is kept for. `None`: any that knows it.
    ///
    /// # Errors
    /// When sysfs can't be read.
    pub fn chosen_driver(&self, address: PciAddress) -> Result<Option<String>, Error> {
        let chosen = text(&self.device(address).join("driver_override"))?;
        Ok(chosen.filter(|driver| !driver.is_empty() && driver != "(null)"))
    }
}
