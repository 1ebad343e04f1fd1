//! Physical and virtual functions of PCI devices, as the kernel shows them in sysfs: which there
//! are, how many, and which driver has them.
//!
//! Everything starts from a [`Sysfs`], whose folder a test can put anywhere. What sysfs shows of a
//! PCI device is the same in every network namespace, except for its netdevs: those are shown in
//! the namespace that sysfs was mounted in, and there only.
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
