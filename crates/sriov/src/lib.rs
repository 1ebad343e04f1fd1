//! Physical and virtual functions of PCI devices in sysfs: discovery, number of VFs, drivers.
//!
//! [`Sysfs`] is the entry point; tests give it another folder. Sysfs shows PCI devices alike in every network
//! namespace, except for netdevs: it shows only those of the namespace in which it was mounted.
//!
//! The crate holds no state and no locks; the caller serialises changes to one PF.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod address;
mod driver;
mod error;
mod events;
mod function;
mod iommu;
mod names;
mod provision;
mod sysfs;

pub use address::{ParseAddressError, PciAddress};
pub use driver::{Handover, VFIO, is_vfio};
pub use error::Error;
pub use function::{PhysicalFunction, VirtualFunction};
pub use iommu::IommuGroup;
pub use names::{SOFTWARE_VF, device_name, vendor_name};
pub use provision::Provisioning;
pub use sysfs::Sysfs;
