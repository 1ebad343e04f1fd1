//! The levels of the guard, and the sources that a pod may send from.

use std::{collections::BTreeSet, fmt, str::FromStr};

use ipnetwork::IpNetwork;
use netlink::{MacAddress, UnknownName};
use serde::{Deserialize, Serialize};

/// What the guard checks of a pod's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AntiSpoofing {
    /// The guard checks nothing.
    Off,
    /// The guard checks the source MAC address.
    Mac,
    /// The guard checks all sender addresses in Ethernet, IP, ARP and neighbour discovery, and drops messages of
    /// routers and DHCP servers.
    #[default]
    Full,
}

impl AntiSpoofing {
    /// The level's name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Mac => "mac",
            Self::Full => "full",
        }
    }

    /// Whether the guard drops frames from that source unless it is allowed.
    #[must_use]
    pub(crate) const fn looks_at(self, source: Source) -> bool {
        match (self, source) {
            (Self::Full, _) | (Self::Mac, Source::Mac(_)) => true,
            (Self::Mac, Source::Addresses(_)) | (Self::Off, _) => false,
        }
    }
}

impl FromStr for AntiSpoofing {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let all = [Self::Off, Self::Mac, Self::Full];
        let found = all.into_iter().find(|level| level.name() == text);
        found.ok_or(UnknownName("\"full\", \"mac\" or \"off\""))
    }
}

/// A source that a pod may send from in addition to its own addresses, such as a router that several pods
/// implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A MAC address.
    Mac(MacAddress),
    /// An address or a prefix.
    Addresses(IpNetwork),
}

/// The text names no source.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither a MAC address nor an address or prefix of IP")]
pub struct ParseSourceError(String);

impl Source {
    /// Whether permission for `other` includes it.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        match (self, other) {
            (Self::Mac(mac), Self::Mac(other)) => mac == other,
            (Self::Addresses(part), Self::Addresses(whole)) => {
                whole.contains(part.network()) && whole.prefix() <= part.prefix()
            }
            (Self::Mac(_), Self::Addresses(_)) | (Self::Addresses(_), Self::Mac(_)) => false,
        }
    }
}

impl FromStr for Source {
    type Err = ParseSourceError;

    fn from_str(text: &str) -> Result<Self, ParseSourceError> {
        let mac = text.parse().map(Self::Mac);
        let addresses = |_| text.parse().map(Self::Addresses);
        mac.or_else(addresses).map_err(|_| ParseSourceError(text.chars().take(64).collect()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => fmt::Display::fmt(mac, out),
            Self::Addresses(network) => fmt::Display::fmt(network, out),
        }
    }
}

netlink::serde_as_text!(Source);

/// The MAC addresses among the sources.
pub fn macs(sources: &BTreeSet<Source>) -> impl Iterator<Item = MacAddress> {
    sources.iter().filter_map(|source| match source {
        Source::Mac(mac) => Some(*mac),
        Source::Addresses(_) => None,
    })
}

/// The prefixes among the sources.
pub fn addresses(sources: &BTreeSet<Source>) -> impl Iterator<Item = IpNetwork> {
    sources.iter().filter_map(|source| match source {
        Source::Mac(_) => None,
        Source::Addresses(addresses) => Some(*addresses),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_within_itself_and_wider_prefixes() {
        let is_within = |part: &str, whole: &str| {
            let [part, whole] = [part, whole].map(|text| text.parse::<Source>().unwrap());
            part.is_within(whole)
        };
        for (part, whole) in [
            ("00:00:5e:00:01:07", "00:00:5e:00:01:07"),
            ("10.0.0.9", "10.0.0.9"),
            ("10.0.0.9", "10.0.0.0/24"),
            ("fd00:1::/64", "fd00::/16"),
        ] {
            assert!(is_within(part, whole), "{part} in {whole}");
        }
        for (part, whole) in [
            ("00:00:5e:00:01:07", "00:00:5e:00:01:08"),
            ("10.0.1.9", "10.0.0.0/24"),
            ("10.0.0.0/16", "10.0.0.0/24"),
            ("10.0.0.9", "fd00::/16"),
            ("00:00:5e:00:01:07", "10.0.0.0/8"),
        ] {
            assert!(!is_within(part, whole), "{part} in {whole}");
        }
    }

    #[test]
    fn sources_are_shown_as_they_are_read() {
        for text in ["00:00:5e:00:01:07", "10.0.0.9/32", "10.1.0.0/24", "fd00::/64"] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.9".parse::<Source>().unwrap().to_string(), "10.0.0.9/32");
        let refused = "a.example".parse::<Source>().unwrap_err().to_string();
        assert!(refused.starts_with("\"a.example\" is neither"), "{refused}");
    }
}
