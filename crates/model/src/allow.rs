//! The `allow` rules of networks: who may open connections to their pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use ipnetwork::IpNetwork;
use netlink::UnknownName;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Visitor},
};

/// The most combinations of a prefix and a block of ports in a network's rules. Each is a flow of every port.
pub const MOST_COMBINATIONS: usize = 256;

/// A rule of a network's `allow`, as configuration files give it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AllowRule {
    /// Allows pods of these networks.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub from_networks: BTreeSet<String>,
    /// Allows these prefixes. If both lists are empty, the rule allows every source.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub from: BTreeSet<IpNetwork>,
    /// The protocol. `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<AllowedProtocol>,
    /// The destination ports. Empty: all.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ports: BTreeSet<PortRange>,
    /// Allows nothing. The rule must be the only one and have no other key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deny_all: bool,
}

/// A protocol of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllowedProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP or ICMPv6, by the address's family.
    Icmp,
}

impl AllowedProtocol {
    /// All protocols.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Sctp, Self::Icmp];

    /// The protocol's name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::Icmp => "icmp",
        }
    }

    /// Whether the protocol has ports.
    #[must_use]
    pub(crate) const fn has_ports(self) -> bool {
        !matches!(self, Self::Icmp)
    }
}

impl FromStr for AllowedProtocol {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|protocol| protocol.name() == text);
        found.ok_or(UnknownName("\"tcp\", \"udp\", \"sctp\" or \"icmp\""))
    }
}

/// One port, or a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// The text names no ports.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} names no ports: write one from 1 to 65535, or a range such as \"8000-8100\"")]
pub struct ParsePortRangeError(String);

impl PortRange {
    /// Splits the range into values with masks. A port is in a block if its bits under the mask equal the value.
    pub fn blocks(self) -> impl Iterator<Item = (u16, u16)> {
        let mut next = u32::from(self.first);
        std::iter::from_fn(move || {
            let left = (u32::from(self.last) + 1).checked_sub(next).filter(|left| *left > 0)?;
            let size = 1_u32 << next.trailing_zeros().min(left.ilog2());
            let block = (u16::try_from(next).ok()?, !u16::try_from(size - 1).ok()?);
            next += size;
            Some(block)
        })
    }
}

impl FromStr for PortRange {
    type Err = ParsePortRangeError;

    fn from_str(text: &str) -> Result<Self, ParsePortRangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let range = port(first).zip(port(last)).filter(|(first, last)| first <= last);
        let (first, last) =
            range.ok_or_else(|| ParsePortRangeError(text.chars().take(64).collect()))?;
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(out, "{first}") } else { write!(out, "{first}-{last}") }
    }
}

/// Also accepts a number for a single port.
impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = PortRange;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a port from 1 to 65535, or a range such as \"8000-8100\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PortRange, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, port: u64) -> Result<PortRange, E> {
                self.visit_str(&port.to_string())
            }

            fn visit_i64<E: Error>(self, port: i64) -> Result<PortRange, E> {
                self.visit_str(&port.to_string())
            }
        }

        deserializer.deserialize_any(Written)
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

/// The prefixes of networks, by the networks' names.
pub type Prefixes = BTreeMap<String, BTreeSet<IpNetwork>>;

/// A resolved rule: the networks that it names are replaced by their prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressRule {
    /// The allowed sources. `None`: any.
    pub from: Option<BTreeSet<IpNetwork>>,
    /// The allowed protocol. `None`: any.
    pub protocol: Option<AllowedProtocol>,
    /// The allowed destination ports. Empty: all.
    pub ports: BTreeSet<PortRange>,
}

impl IngressRule {
    /// The number of combinations of a prefix (or family, if any source is allowed) and a block of ports.
    #[must_use]
    pub fn combinations(&self) -> usize {
        const FAMILIES: usize = 2;
        let sources = self.from.as_ref().map_or(FAMILIES, BTreeSet::len);
        let blocks = self.ports.iter().map(|range| range.blocks().count()).sum::<usize>();
        sources * blocks.max(1)
    }
}

/// A phrase for people.
impl fmt::Display for IngressRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            None => out.write_str("any")?,
            Some(from) if from.is_empty() => out.write_str("none")?,
            Some(from) => out.write_str(&list(from))?,
        }
        write!(out, " may open {}", self.protocol.map_or("anything", AllowedProtocol::name))?;
        if self.ports.is_empty() { Ok(()) } else { write!(out, " {}", list(&self.ports)) }
    }
}

fn list(all: &BTreeSet<impl ToString>) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

impl AllowRule {
    /// Resolves the rule. A network that does not exist has no prefixes.
    fn ingress_rule(&self, networks: &Prefixes) -> IngressRule {
        let is_of_anyone = self.from_networks.is_empty() && self.from.is_empty();
        let named = self.from_networks.iter().filter_map(|name| networks.get(name)).flatten();
        let from = || named.chain(&self.from).copied().collect();
        IngressRule {
            from: (!is_of_anyone).then(from),
            protocol: self.protocol,
            ports: self.ports.clone(),
        }
    }
}

/// Resolves rules. `None`: there are none, so everything is allowed.
#[must_use]
pub fn ingress_rules(rules: &[AllowRule], networks: &Prefixes) -> Option<Vec<IngressRule>> {
    let allowing = rules.iter().filter(|rule| !rule.deny_all);
    (!rules.is_empty()).then(|| allowing.map(|rule| rule.ingress_rule(networks)).collect())
}

/// The names of the networks in the rules.
pub fn named_networks(rules: &[AllowRule]) -> impl Iterator<Item = &String> {
    rules.iter().flat_map(|rule| &rule.from_networks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(text: &str) -> Vec<(u16, u16)> {
        text.parse::<PortRange>().unwrap().blocks().collect()
    }

    #[test]
    fn ranges_are_few_blocks() {
        assert_eq!(blocks("80"), [(80, 0xffff)]);
        assert_eq!(blocks("8000-8031"), [(8000, 0xffe0)]);
        assert_eq!(blocks("1-3"), [(1, 0xffff), (2, 0xfffe)]);
        assert_eq!(blocks("32768-65535"), [(0x8000, 0x8000)]);
        assert_eq!(blocks("1-65535").len(), 16);
        assert_eq!(blocks("1-65534").len(), 30);
    }

    #[test]
    fn ports_are_shown_as_they_are_read() {
        for text in ["1", "80", "8000-8100", "1-65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        assert_eq!("80-80".parse::<PortRange>().unwrap().to_string(), "80");
        for text in ["", "0", "0-7", "65536", "81-80", "80-", "-80", "http", "1-2-3", "+80 "] {
            assert!(text.parse::<PortRange>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn blocks_cover_exactly_the_range(one in 1_u16.., other in 1_u16..) {
            let range = PortRange { first: one.min(other), last: one.max(other) };
            let blocks: Vec<_> = range.blocks().collect();
            prop_assert!(blocks.len() <= 30);
            for port in [range.first, range.last, one / 2, other | 1, 0, u16::MAX] {
                let found = blocks.iter().filter(|(value, mask)| port & mask == *value).count();
                let is_within = (range.first..=range.last).contains(&port);
                prop_assert_eq!(found, usize::from(is_within), "{}", port);
            }
        }
    }

    #[test]
    fn rules_resolve_to_the_networks_prefixes() {
        let network = |text: &str| toml::from_str::<crate::Network>(text).unwrap();
        let rules = network(
            "name = 'a'\n[[allow]]\nfrom_networks = ['green', 'gone']\nfrom = ['10.7.0.0/16']\n\
             protocol = 'tcp'\nports = ['80', '8000-8031']\n[[allow]]\nprotocol = 'icmp'\n\
             [[allow]]\nfrom_networks = ['gone']",
        )
        .allow;
        let green = ["10.2.0.0/16", "fd00:2::/64"].map(|prefix| prefix.parse().unwrap());
        let known = [("green".to_owned(), green.into())].into();
        let ingress_rules_of = |rules: &[AllowRule]| ingress_rules(rules, &known);
        let found = ingress_rules_of(&rules).unwrap();
        let reported: Vec<_> = found.iter().map(ToString::to_string).collect();
        let [to_ports, to_all, to_none] = &reported[..] else { panic!("{reported:?}") };
        assert!(to_ports.starts_with("10.2.0.0/16 10.7.0.0/16 fd00:2::/64 "), "{to_ports}");
        assert!(to_ports.ends_with(" tcp 80 8000-8031"), "{to_ports}");
        assert!(to_all.starts_with("any") && to_all.ends_with("icmp"), "{to_all}");
        assert!(to_none.starts_with("none"), "{to_none}");
        assert_eq!(found.iter().map(IngressRule::combinations).collect::<Vec<_>>(), [6, 2, 0]);
        assert_eq!(ingress_rules_of(&[]), None);
        let deny_all = network("name = 'a'\nallow = [{ deny_all = true }]").allow;
        assert_eq!(ingress_rules_of(&deny_all), Some(Vec::new()));
    }
}
