//! Names of vendors and devices, for display. The tables take more than 1 MiB of memory in a program that uses them.

use pci_ids::{Device, FromId, Vendor};

/// Vendor and device ID of a software card's VFs. No PCI vendor has this ID.
pub const SOFTWARE_VF: (&str, &str) = ("ffff", "0001");

/// The name of a vendor, by its ID of four hexadecimal digits.
#[must_use]
pub fn vendor_name(vendor: &str) -> Option<&'static str> {
    // The table has a name for the ID ffff: illegal vendor.
    if vendor == SOFTWARE_VF.0 {
        return None;
    }
    Some(Vendor::from_id(id(vendor)?)?.name())
}

/// The name of a device, by vendor ID and device ID.
#[must_use]
pub fn device_name(vendor: &str, device: &str) -> Option<&'static str> {
    if (vendor, device) == SOFTWARE_VF {
        return Some("software VF (veth)");
    }
    Some(Device::from_vid_pid(id(vendor)?, id(device)?)?.name())
}

fn id(digits: &str) -> Option<u16> {
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_and_device_ids_have_names() {
        assert_eq!(vendor_name("15b3"), Some("Mellanox Technologies"));
        assert_eq!(device_name("8086", "10ca"), Some("82576 Virtual Function"));
        assert_eq!(device_name("ffff", "ffff"), None);
        let (vendor, device) = SOFTWARE_VF;
        assert_eq!(device_name(vendor, device), Some("software VF (veth)"));
        assert_eq!(vendor_name(vendor), None);
        assert_eq!(vendor_name("no id"), None);
    }
}
