//! Errors of sysfs and of cards.

use std::{io, path::PathBuf};

use crate::PciAddress;

/// A request that sysfs or the state of a card does not allow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as sriov::Error")]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refuses a value.
    #[error("cannot write {value:?} to {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file has unexpected content.
    #[error("{} holds {text:?}, which is no {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
        /// What was expected, such as `number`.
        expected: &'static str,
    },
    /// The device does not exist.
    #[error("there is no PCI device {0}")]
    NoDevice(PciAddress),
    /// The device cannot have VFs.
    #[error("PCI device {0} has no SR-IOV, or its driver does not offer it")]
    NotPhysical(PciAddress),
    /// More VFs than the card supports.
    #[error("PF {pf} cannot have {wanted} VFs: its card has {total} at most")]
    TooMany {
        /// The PF.
        pf: PciAddress,
        /// Requested number of VFs.
        wanted: u32,
        /// Largest number of VFs.
        total: u32,
    },
    /// A change of the number of VFs would remove VFs in use.
    #[error(
        "PF {pf} keeps its {present} VFs instead of {wanted}: a change takes all of them away, and \
         {in_use} is in use"
    )]
    InUse {
        /// The PF.
        pf: PciAddress,
        /// Current number of VFs.
        present: u32,
        /// Requested number of VFs.
        wanted: u32,
        /// A VF in use.
        in_use: PciAddress,
    },
    /// The VFs exist, but their drivers did not create netdevs in time.
    #[error("VF {vf} of PF {pf} has no netdev yet: its driver is {}", driver.as_deref().unwrap_or("missing"))]
    NoNetdev {
        /// The PF.
        pf: PciAddress,
        /// The first VF without a netdev.
        vf: PciAddress,
        /// The VF's driver.
        driver: Option<String>,
    },
    /// The device is bound to a vfio driver, which is not unbound.
    #[error("PCI device {address} is handed over to programs by its driver {driver}")]
    Handed {
        /// The device.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// No driver binds to a device.
    #[error("{} PCI device {address}", no_driver(kept_for.as_deref()))]
    Unclaimed {
        /// The device.
        address: PciAddress,
        /// Its `driver_override`. `None`: any driver may bind.
        kept_for: Option<String>,
    },
}

fn no_driver(kept_for: Option<&str>) -> String {
    match kept_for {
        Some(driver) => format!("driver {driver}, which alone may have it, does not take"),
        None => "no driver takes".into(),
    }
}
