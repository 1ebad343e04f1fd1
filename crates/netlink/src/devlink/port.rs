//! Ports of cards.

use std::fmt;

use netlink_bindings::devlink::{IterableDlPortFunction, PortFlavour};

use super::device::{Attributes, DevlinkDevice, device_of};
use crate::{generic::text, mac::MacAddress};

/// A port of a card. Displayed as `pci/0000:03:00.0/3`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevlinkPort {
    /// The card of the port.
    pub device: DevlinkDevice,
    /// Index on the card. A port that vanishes and returns may get another index.
    pub index: u32,
    /// Kind of the port.
    pub flavour: Flavour,
    /// The port's link in the card's network namespace, once it exists.
    pub netdev: Option<PortNetdev>,
    /// Settings of the function behind the port. `None`: the driver offers none.
    pub function: Option<PortFunction>,
    /// Whether the function is on another machine. On a DPU this means the host.
    pub external: bool,
}

/// Kind of a port. Controller 0 is the machine that runs the card's driver. On a DPU the hosts have controllers from 1
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// A physical port to the network.
    Physical {
        /// The number that is printed beside the socket, if the driver knows it.
        number: Option<u32>,
    },
    /// A physical function.
    PciPf {
        /// Controller number.
        controller: u32,
        /// PF number.
        pf: u16,
    },
    /// A virtual function.
    PciVf {
        /// Controller number.
        controller: u32,
        /// PF number.
        pf: u16,
        /// VF number within the PF, from 0.
        vf: u16,
    },
    /// A scalable function.
    PciSf {
        /// Controller number.
        controller: u32,
        /// PF number.
        pf: u16,
        /// SF number.
        sf: u32,
    },
    /// Another kind, by the kernel's number.
    Other(u16),
}

/// The network device (link) of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNetdev {
    /// Index of the link.
    pub index: u32,
    /// Name of the link.
    pub name: String,
}

/// Settings of the function behind a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFunction {
    /// MAC address; all zeros until it is set. `None`: the card does not manage the address.
    pub mac: Option<MacAddress>,
    /// Activation state. `None`: the function cannot be activated separately.
    pub state: Option<PortState>,
}

/// Activation state of the function behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The function is inactive.
    Inactive,
    /// The function is active.
    Active,
}

impl PortState {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Inactive => 0,
            Self::Active => 1,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::Inactive, Self::Active].into_iter().find(|state| state.number() == number)
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Inactive => "inactive",
            Self::Active => "active",
        })
    }
}

impl fmt::Display for DevlinkPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.device, self.index)
    }
}

/// `None`: the attributes do not describe a port.
pub(super) fn described_by(attributes: &Attributes<'_>) -> Option<DevlinkPort> {
    Some(DevlinkPort {
        device: device_of(attributes)?,
        index: attributes.get_port_index().ok()?,
        flavour: flavour(attributes),
        netdev: netdev(attributes),
        function: attributes.get_port_function().ok().map(|function| function_of(&function)),
        external: attributes.get_port_external().is_ok_and(|external| external != 0),
    })
}

fn flavour(attributes: &Attributes<'_>) -> Flavour {
    let number = attributes.get_port_flavour().unwrap_or(PortFlavour::Unused as u16);
    let controller = attributes.get_port_controller_number().unwrap_or_default();
    let function = attributes.get_port_pci_pf_number().ok().and_then(|pf| {
        match PortFlavour::from_value(number.into())? {
            PortFlavour::PciPf => Some(Flavour::PciPf { controller, pf }),
            PortFlavour::PciVf => {
                let vf = attributes.get_port_pci_vf_number().ok()?;
                Some(Flavour::PciVf { controller, pf, vf })
            }
            PortFlavour::PciSf => {
                let sf = attributes.get_port_pci_sf_number().ok()?;
                Some(Flavour::PciSf { controller, pf, sf })
            }
            _ => None,
        }
    });
    match function {
        Some(flavour) => flavour,
        None if number == PortFlavour::Physical as u16 => {
            Flavour::Physical { number: attributes.get_port_number().ok() }
        }
        None => Flavour::Other(number),
    }
}

fn netdev(attributes: &Attributes<'_>) -> Option<PortNetdev> {
    let index = attributes.get_port_netdev_ifindex().ok().filter(|index| *index != 0)?;
    Some(PortNetdev { index, name: text(attributes.get_port_netdev_name().ok()?) })
}

fn function_of(function: &IterableDlPortFunction<'_>) -> PortFunction {
    let mac = function.get_hw_addr().ok();
    let state = function.get_state().ok();
    PortFunction {
        mac: mac.and_then(|bytes| bytes.try_into().ok()).map(MacAddress),
        state: state.and_then(PortState::from_number),
    }
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
                .push_port_external(1)
                .push_port_netdev_ifindex(17)
                .push_port_netdev_name_bytes(b"pf0vf3")
                .nested_port_function()
                .push_hw_addr(&[0, 0, 0, 0, 0, 0])
                .end_nested()
        });
        let found = found.unwrap();
        assert_eq!(found.to_string(), "pci/0000:03:00.0/196609");
        assert_eq!(found.flavour, Flavour::PciVf { controller: 1, pf: 0, vf: 3 });
        assert_eq!(found.netdev, Some(PortNetdev { index: 17, name: "pf0vf3".into() }));
        assert_eq!(
            found.function,
            Some(PortFunction { mac: Some(MacAddress([0; 6])), state: None })
        );
        assert!(found.external);
    }

    #[test]
    fn port_flavours_are_distinguished() {
        let flavour = |flavour: PortFlavour| {
            let found = port(|attributes| {
                attributes
                    .push_port_index(1)
                    .push_port_flavour(flavour as u16)
                    .push_port_number(1)
                    .push_port_pci_pf_number(2)
                    .push_port_pci_sf_number(88)
            });
            found.unwrap().flavour
        };
        assert_eq!(flavour(PortFlavour::Physical), Flavour::Physical { number: Some(1) });
        assert_eq!(flavour(PortFlavour::PciPf), Flavour::PciPf { controller: 0, pf: 2 });
        assert_eq!(flavour(PortFlavour::PciSf), Flavour::PciSf { controller: 0, pf: 2, sf: 88 });
        assert_eq!(flavour(PortFlavour::PciVf), Flavour::Other(4), "a VF without a number");
        assert_eq!(flavour(PortFlavour::Virtual), Flavour::Other(5));
    }

    #[test]
    fn port_without_link_or_number_is_read() {
        let found = port(|attributes| attributes.push_port_index(1).push_port_netdev_ifindex(0));
        assert_eq!(found.unwrap().netdev, None);
        assert_eq!(port(|attributes| attributes), None);
    }

    /// InfiniBand functions have addresses of 20 bytes.
    #[test]
    fn infiniband_address_is_no_mac() {
        let found = port(|attributes| {
            attributes
                .push_port_index(1)
                .nested_port_function()
                .push_hw_addr(&[7; 20])
                .push_state(1)
                .end_nested()
        });
        let function = found.unwrap().function;
        let state = Some(PortState::Active);
        assert_eq!(function, Some(PortFunction { mac: None, state }));
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
