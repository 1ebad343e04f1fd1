//! Ports of cards.

use std::fmt;

use netlink_bindings::devlink::PortFlavour;

use super::device::{Attributes, DevlinkDevice, device_of};
use crate::mac::MacAddress;

/// A port of a card. Displayed as `pci/0000:03:00.0/3`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevlinkPort {
    /// The card of the port.
    pub device: DevlinkDevice,
    /// Index on the card. A port that vanishes and returns may get another index.
    pub index: u32,
    /// The VF behind the port. `None`: the port is not a VF's.
    pub vf: Option<PortVf>,
    /// Index of the port's link in the card's network namespace, once it exists.
    pub link: Option<u32>,
    /// MAC address of the function behind the port; all zeros until it is set. `None`: the card does not manage the
    /// address.
    pub mac: Option<MacAddress>,
}

/// Numbers of a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortVf {
    /// Controller number: 0 for the machine that runs the card's driver. On a DPU the hosts have controllers from 1 on.
    pub controller: u32,
    /// PF number.
    pub pf: u16,
    /// VF number within the PF, from 0.
    pub vf: u16,
}

impl fmt::Display for DevlinkPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.device, self.index)
    }
}

/// `None`: the attributes do not describe a port.
pub(super) fn described_by(attributes: &Attributes<'_>) -> Option<DevlinkPort> {
    let function = attributes.get_port_function().ok();
    let mac = function.and_then(|function| function.get_hw_addr().ok()?.try_into().ok());
    Some(DevlinkPort {
        device: device_of(attributes)?,
        index: attributes.get_port_index().ok()?,
        vf: vf_behind(attributes),
        link: attributes.get_port_netdev_ifindex().ok().filter(|index| *index != 0),
        mac: mac.map(MacAddress),
    })
}

fn vf_behind(attributes: &Attributes<'_>) -> Option<PortVf> {
    let is_vf = attributes.get_port_flavour().ok()? == PortFlavour::PciVf as u16;
    is_vf.then_some(PortVf {
        controller: attributes.get_port_controller_number().unwrap_or_default(),
        pf: attributes.get_port_pci_pf_number().ok()?,
        vf: attributes.get_port_pci_vf_number().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use netlink_bindings::devlink::{Devlink as Codec, PushDevlink};

    use super::*;

    /// Encodes a port of the card `pci/0000:03:00.0` with `describe` and reads it back.
    fn port(
        describe: impl FnOnce(PushDevlink<Vec<u8>>) -> PushDevlink<Vec<u8>>,
    ) -> Option<DevlinkPort> {
        let attributes = PushDevlink::new(Vec::new())
            .push_bus_name_bytes(b"pci")
            .push_dev_name_bytes(b"0000:03:00.0");
        let bytes = describe(attributes).end_nested();
        described_by(&Codec::new(&bytes))
    }

    /// A VF of the host as a BlueField's Arm cores see it.
    #[test]
    fn host_vf_port_has_its_function() {
        let found = port(|attributes| {
            attributes
                .push_port_index(196_609)
                .push_port_flavour(PortFlavour::PciVf as u16)
                .push_port_controller_number(1)
                .push_port_pci_pf_number(0)
                .push_port_pci_vf_number(3)
                .push_port_netdev_ifindex(17)
                .nested_port_function()
                .push_hw_addr(&[0, 0, 0, 0, 0, 0])
                .end_nested()
        });
        let found = found.unwrap();
        assert_eq!(found.to_string(), "pci/0000:03:00.0/196609");
        assert_eq!(found.vf, Some(PortVf { controller: 1, pf: 0, vf: 3 }));
        assert_eq!((found.link, found.mac), (Some(17), Some(MacAddress([0; 6]))));
    }

    #[test]
    fn only_vfs_with_numbers_are_behind_ports() {
        for flavour in [PortFlavour::Physical, PortFlavour::PciPf, PortFlavour::PciVf] {
            let found = port(|attributes| {
                attributes
                    .push_port_index(1)
                    .push_port_flavour(flavour as u16)
                    .push_port_pci_pf_number(2)
            });
            assert_eq!(found.unwrap().vf, None, "{flavour:?}");
        }
    }

    #[test]
    fn port_without_link_or_number_is_read() {
        let found = port(|attributes| attributes.push_port_index(1).push_port_netdev_ifindex(0));
        assert_eq!(found.unwrap().link, None);
        assert_eq!(port(|attributes| attributes), None);
    }

    /// InfiniBand functions have addresses of 20 bytes.
    #[test]
    fn infiniband_address_is_no_mac() {
        let found = port(|attributes| {
            attributes.push_port_index(1).nested_port_function().push_hw_addr(&[7; 20]).end_nested()
        });
        assert_eq!(found.unwrap().mac, None);
    }

    #[test]
    fn garbled_messages_cause_no_panic() {
        let whole = PushDevlink::new(Vec::new())
            .push_bus_name_bytes(b"pci")
            .push_dev_name_bytes(b"0000:03:00.0")
            .push_port_index(1)
            .push_port_flavour(4)
            .nested_port_function()
            .push_hw_addr(&[1; 6])
            .end_nested()
            .end_nested();
        for end in 0..whole.len() {
            for position in 0..end {
                let mut bytes = whole[..end].to_vec();
                bytes[position] ^= 0xff;
                let _port = described_by(&Codec::new(&bytes));
            }
        }
    }
}
