//! What sysfs refuses, and how it is told.

use std::{io, path::PathBuf};

use crate::PciAddress;

/// Something that sysfs or the state of a card does not allow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as sriov::Error")]
pub enum Error {
    /// A file or folder can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not take a value.
    #[error("can't write {value:?} to {}", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// What.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} holds {text:?}, which is no {expected}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What it holds.
        text: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// There is no such device.
    #[error("there is no PCI device {0}")]
    NoDevice(PciAddress),
    /// The device has no VFs to give.
    #[error("PCI device {0} has no SR-IOV, or its driver does not offer it")]
    NotPhysical(PciAddress),
    /// More VFs than the card has.
    #[error("PF {pf} can't have {wanted} VFs: its card has {total} at most")]
    TooMany {
        /// Of this PF.
        pf: PciAddress,
        /// So many.
        wanted: u32,
        /// Instead of so many.
        total: u32,
    },
    /// A change of the number of VFs would take VFs away that are in use.
    #[error(
        "PF {pf} keeps its {present} VFs instead of {wanted}: a change takes all of them away, and \
         {in_use} is in use"
    )]
    InUse {
        /// Of this PF.
        pf: PciAddress,
        /// How many it has.
        present: u32,
        /// How many it should have.
        wanted: u32,
        /// One of those in use.
        in_use: PciAddress,
    },
    /// The VFs were made, but their drivers did not make their netdevs in time.
    #[error("VF {vf} of PF {pf} has no netdev yet: its driver is {}", driver.as_deref().unwrap_or("missing"))]
    NoNetdev {
        /// Of this PF.
        pf: PciAddress,
        /// The first VF without one.
        vf: PciAddress,
        /// The VF's driver.
        driver: Option<String>,
    },
    /// A device is handed over to programs, so its driver is not taken away.
    #[error("PCI device {address} is handed over to programs by its driver {driver}")]
    Handed {
        /// Which device.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// No driver takes a device.
    #[error("{} PCI device {address}", no_driver(kept_for.as_deref()))]
    Unclaimed {
        /// Which device.
        address: PciAddress,
        /// The one driver that it is kept for. `None`: any that knows it.
        kept_for: Option<String>,
    },
}

fn no_driver(kept_for: Option<&str>) -> String {
    match kept_for {
        Some(driver) => format!("driver {driver}, which alone may have it, does not take"),
        None => "no driver takes".into(),
    }
}
