//! Names of devlink devices.

use std::{fmt, str::FromStr};

use netlink_bindings::{
    devlink::{IterableDevlink, PushDevlink},
    utils::RequestBuf,
};

use crate::generic;

/// A devlink command under construction.
pub(super) type Command = PushDevlink<RequestBuf<'static>>;

/// The attributes with which the kernel describes an object.
pub(super) type Attributes<'a> = IterableDevlink<'a>;

/// A card as devlink names it: bus and name. Displayed as `pci/0000:03:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevlinkDevice {
    /// The bus, such as `pci`.
    pub bus: String,
    /// The name on the bus, such as `0000:03:00.0`.
    pub name: String,
}

/// A text is not the name of a devlink device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name a devlink device, such as pci/0000:03:00.0")]
pub struct ParseDevlinkError(String);

impl fmt::Display for DevlinkDevice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.bus, self.name)
    }
}

impl FromStr for DevlinkDevice {
    type Err = ParseDevlinkError;

    fn from_str(text: &str) -> Result<Self, ParseDevlinkError> {
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
        };
        match text.split_once('/') {
            Some((bus, name)) if is_word(bus) && is_word(name) => {
                Ok(Self { bus: bus.to_owned(), name: name.to_owned() })
            }
            _ => Err(ParseDevlinkError(text.chars().take(40).collect())),
        }
    }
}

pub(super) fn of_device(command: Command, device: &DevlinkDevice) -> Command {
    command.push_bus_name_bytes(device.bus.as_bytes()).push_dev_name_bytes(device.name.as_bytes())
}

pub(super) fn device_of(attributes: &Attributes<'_>) -> Option<DevlinkDevice> {
    let bus = generic::text(attributes.get_bus_name().ok()?);
    Some(DevlinkDevice { bus, name: generic::text(attributes.get_dev_name().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_displayed_as_bus_and_name() {
        let device: DevlinkDevice = "pci/0000:03:00.0".parse().unwrap();
        assert_eq!((&*device.bus, &*device.name), ("pci", "0000:03:00.0"));
        assert_eq!(device.to_string(), "pci/0000:03:00.0");
        assert_eq!("netdevsim/netdevsim10".parse::<DevlinkDevice>().unwrap().bus, "netdevsim");
        for text in ["", "pci", "pci/", "/x", "pci/0000:03:00.0/1", "p ci/x"] {
            let refused = text.parse::<DevlinkDevice>().unwrap_err().to_string();
            assert!(refused.contains(&format!("{text:?}")), "{refused}");
        }
    }
}
