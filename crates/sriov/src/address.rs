//! PCI addresses.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The address of a PCI function, such as `0000:03:00.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain. It can exceed 16 bits, because some controllers create domains of their own.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number on the bus, 0 to 31.
    pub device: u8,
    /// Function number of the device, 0 to 7.
    pub function: u8,
}

/// A text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no PCI address: write domain, bus, device and function, such as 0000:03:00.2")]
pub struct ParseAddressError(String);

impl fmt::Display for PciAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(out, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        parse(text).ok_or_else(|| ParseAddressError(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let lengths = (domain.len(), bus.len(), device.len(), function.len());
    if !matches!(lengths, (4..=8, 2, 2, 1)) {
        return None;
    }
    let byte = |part, highest| u8::try_from(hexadecimal(part)?).ok().filter(|n| *n <= highest);
    Some(PciAddress {
        domain: hexadecimal(domain)?,
        bus: byte(bus, u8::MAX)?,
        device: byte(device, 0x1f)?,
        function: byte(function, 7)?,
    })
}

/// Parses digits only: `from_str_radix` alone accepts a sign too.
fn hexadecimal(digits: &str) -> Option<u32> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_survive_display() {
        for text in ["0000:03:00.2", "10000:e1:1f.7", "d000:00:00.1"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert_eq!("0000:E1:00.0".parse::<PciAddress>().unwrap().bus, 0xe1);
    }

    #[test]
    fn pci_parser_refuses_other_texts() {
        for text in [
            "",
            "03:00.2",
            "0000:03:00",
            "0000:03:00.8",
            "0000:03:20.0",
            "+000:03:00.0",
            "0000:3:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
