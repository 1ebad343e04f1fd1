//! What vendors call themselves and their cards: for people only. The tables take more than a
//! megabyte of the memory of each program that asks them.

use pci_ids::{Device, FromId, Vendor};

/// The vendor and device ids of the VFs of a card made of software. No vendor of PCI cards has that id.
pub const SOFTWARE_VF: (&str, &str) = ("ffff", "0001");

/// The name of a vendor by its id of four hexadecimal digits.
#[must_use]
pub fn vendor_name(vendor: &str) -> Option<&'static str> {
    // The table calls this id illegal.
    if vendor == SOFTWARE_VF.0 {
        return None;
    }
    Some(Vendor::from_id(id(vendor)?)?.name())
}

/// The name of a device by its vendor's id and its own.
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
    fn ids_have_names() {
        assert_eq!(vendor_name("15b3"), Some("Mellanox Technologies"));
        assert_eq!(device_name("8086", "10ca"), Some("82576 Virtual Function"));
        assert_eq!(device_name("ffff", "ffff"), None);
        let (vendor, device) = SOFTWARE_VF;
        assert_eq!(device_name(vendor, device), Some("software VF (veth)"));
        assert_eq!(vendor_name(vendor), None);
        assert_eq!(vendor_name("no id"), None);
    }
}
