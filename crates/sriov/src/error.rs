//! Errors of sysfs and of cards.

use std::{io, path::PathBuf};

use crate::PciAddress;

/// A request that sysfs or the state of a card does not allow.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as sriov::Error")]
pub enum Error {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {value:?} to {}", path.display())]
    Write { path: PathBuf, value: String, source: io::Error },
    #[error("{} holds {text:?}, which is no {expected}", path.display())]
    Content { path: PathBuf, text: String, expected: &'static str },
    #[error("there is no PCI device {0}")]
    NoDevice(PciAddress),
    #[error("PCI device {0} has no SR-IOV, or its driver does not offer it")]
    NotPhysical(PciAddress),
    #[error("PF {pf} cannot have {wanted} VFs: its card has {total} at most")]
    TooMany { pf: PciAddress, wanted: u32, total: u32 },
    #[error(
        "PF {pf} keeps its {present} VFs instead of {wanted}: a change takes all of them away, and \
         {in_use} is in use"
    )]
    InUse { pf: PciAddress, present: u32, wanted: u32, in_use: PciAddress },
    #[error("VF {vf} of PF {pf} has no netdev yet: its driver is {}", driver.as_deref().unwrap_or("missing"))]
    NoNetdev { pf: PciAddress, vf: PciAddress, driver: Option<String> },
    #[error("PCI device {address} is handed over to programs by its driver {driver}")]
    Handed { address: PciAddress, driver: String },
    #[error("{} PCI device {address}", no_driver(kept_for.as_deref()))]
    Unclaimed {
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
