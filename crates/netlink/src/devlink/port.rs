//! The ports of a card.

use std::fmt;

use netlink_bindings::devlink::{IterableDlPortFunction, PortFlavour};

use super::{Attributes, DevlinkDevice, device_of};
use crate::{MacAddress, generic::text};

/// A port of a card. Shown as `pci/0000:03:00.0/3`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevlinkPort {
    /// The card.
    pub device: DevlinkDevice,
    /// Its number on the card. A card may number anew what vanished and returned.
    pub index: u32,
    /// What is behind it.
    pub flavour: Flavour,
    /// Its link, once there is one, in the card's network namespace.
    pub netdev: Option<PortNetdev>,
    /// What can be set of the function behind it. `None`: nothing, or the driver does not say.
    pub function: Option<PortFunction>,
    /// Whether the function behind it is on another machine: on the host, seen from a DPU.
    pub external: bool,
}

/// What is behind a port. A controller is 0 for the machine that the card's driver runs on, and
/// from 1 on for a host, seen from a DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The wire.
    Physical {
        /// The number that is printed beside the socket, if the driver knows.
        number: Option<u32>,
    },
    /// A physical function.
    PciPf {
        /// Its controller.
        controller: u32,
        /// Its number.
        pf: u16,
    },
    /// A virtual function.
    PciVf {
        /// Its controller.
        controller: u32,
        /// The number of its PF.
        pf: u16,
        /// Its number within the PF, from 0.
        vf: u16,
    },
    /// A scalable function.
    PciSf {
        /// Its controller.
        controller: u32,
        /// The number of its PF.
        pf: u16,
        /// Its number.
        sf: u32,
    },
    /// Something else, by the kernel's number.
    Other(u16),
}

/// The link of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNetdev {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// What can be set of the function behind a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFunction {
    /// Its MAC address; all zeros until one was set. `None`: the card has no say in it.
    pub mac: Option<MacAddress>,
    /// Whether it is switched on. `None`: it can't be switched.
    pub state: Option<PortState>,
}

/// Whether the function behind a port is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It is not.
    Inactive,
    /// It is.
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

/// `None`: this is no port.
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
