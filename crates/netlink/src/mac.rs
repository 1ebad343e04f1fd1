//! MAC addresses.

use std::{fmt, net::Ipv6Addr, str::FromStr};

/// A 48-bit Ethernet address. Shown in lower case, colon separated.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether an interface may have this address: neither multicast nor all zeros.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// The IPv6 link-local address that is derived from it (RFC 4291, appendix A).
    #[must_use]
    pub fn link_local(self) -> Ipv6Addr {
        let Self([a, b, c, d, e, f]) = self;
        let [low, high] = [[a ^ 2, b], [c, 0xff]].map(u16::from_be_bytes);
        let [next, last] = [[0xfe, d], [e, f]].map(u16::from_be_bytes);
        Ipv6Addr::new(0xfe80, 0, 0, 0, low, high, next, last)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// A text is not a MAC address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a MAC address: six hexadecimal bytes with colons, such as 02:00:5e:10:00:01")]
pub struct ParseMacError(String);

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let refuse = || ParseMacError(text.chars().take(40).collect());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let is_hex =
                |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(is_hex).ok_or_else(refuse)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() { Err(refuse()) } else { Ok(Self(bytes)) }
    }
}

crate::serde_as_text!(MacAddress);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_address_follows_from_mac() {
        let mac: MacAddress = "02:00:5e:10:00:01".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::5eff:fe10:1");
    }

    #[test]
    fn mac_parses_and_displays() {
        let mac: MacAddress = "02:AB-00:5e:10:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:ab:00:5e:10:01");
        assert!(mac.is_unicast());
    }

    #[test]
    fn mac_parser_refuses_other_texts() {
        for text in [
            "",
            "02:ab:00:5e:10",
            "02:ab:00:5e:10:01:02",
            "02:ab:00:5e:10:g1",
            "+2:ab:00:5e:10:01",
            "2:ab:00:5e:10:01",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }
}
