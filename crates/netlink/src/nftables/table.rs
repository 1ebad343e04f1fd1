//! Tables: sets, chains and rules.

use std::{
    ffi::{CStr, CString},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::sysctl::Family;

/// `IFNAMSIZ`
const LINK_NAME_LEN: usize = 16;

/// The name of a link, in the form of set elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkName([u8; LINK_NAME_LEN]);

impl LinkName {
    /// Takes a name of at most 15 bytes. A longer one is cut off and matches no link.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; LINK_NAME_LEN];
        let room = bytes.iter_mut().take(LINK_NAME_LEN - 1);
        room.zip(name.as_bytes()).for_each(|(to, from)| *to = *from);
        Self(bytes)
    }
}

/// A table of the family `inet`. It includes a table of the same name in the family `arp` if one of its sets or chains
/// belongs to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(super) name: CString,
    pub(super) sets: Vec<Set>,
    pub(super) chains: Vec<Chain>,
}

impl Table {
    /// A table with these sets and chains.
    #[must_use]
    pub fn new(table: &str, sets: Vec<Set>, chains: Vec<Chain>) -> Self {
        Self { name: name(table), sets, chains }
    }
}

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub(super) name: &'static CStr,
    pub(super) key: &'static [Part],
    /// Parts of a map's values. Empty for a set.
    pub(super) value: &'static [Part],
    /// Sorted and without duplicates.
    pub(super) elements: Vec<Element>,
    /// Whether packets add elements. Each expires [`AGE`] after its latest packet.
    pub(super) is_of_packets: bool,
    /// Whether the set is in the family `arp`.
    pub(super) is_of_arp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

/// Lifetime of an element that packets added.
pub(super) const AGE: Duration = Duration::from_secs(15);

/// Largest number of elements in a set that packets fill.
pub(super) const MOST_OF_PACKETS: u32 = 65_535;

/// Length of the longest key: two names of links.
const ROOM: usize = 2 * LINK_NAME_LEN;

/// A key or a value. Stored inline, because each change creates thousands of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes {
    bytes: [u8; ROOM],
    length: usize,
}

impl Bytes {
    /// Appends as much of `more` as fits.
    fn with(mut self, more: &[u8]) -> Self {
        let room = self.bytes.iter_mut().skip(self.length);
        self.length += room.zip(more).map(|(to, from)| *to = *from).count();
        self
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The parts of keys and values, which are concatenated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Link,
    Ipv4,
    Ipv6,
    Protocol,
    Port,
    LinkIndex,
    Mac,
}

impl Part {
    /// Length including padding to 4 bytes.
    pub(super) const fn length(self) -> u32 {
        match self {
            Self::Link | Self::Ipv6 => 16,
            Self::Ipv4 | Self::Protocol | Self::Port | Self::LinkIndex => 4,
            Self::Mac => 8,
        }
    }
}

/// A port of a protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProtocolPort {
    /// Protocol number.
    pub protocol: u8,
    /// Port number.
    pub port: u16,
}

impl ProtocolPort {
    fn append_to(self, bytes: Bytes) -> Bytes {
        bytes.with(&[self.protocol, 0, 0, 0]).with(&port_word(self.port))
    }
}

const PROTOCOL_PORT: &[Part] = &[Part::Protocol, Part::Port];

impl Set {
    /// Creates a set of links.
    pub fn of_links(name: &'static CStr, links: impl IntoIterator<Item = LinkName>) -> Self {
        let keys = links.into_iter().map(|link| Bytes::default().with(&link.0));
        Self::of_keys(name, &[Part::Link], keys)
    }

    /// Creates a set of pairs of input link and output link.
    pub fn of_pairs(
        name: &'static CStr,
        pairs: impl IntoIterator<Item = (LinkName, LinkName)>,
    ) -> Self {
        let keys = pairs.into_iter();
        let keys = keys.map(|(from, to)| Bytes::default().with(&from.0).with(&to.0));
        Self::of_keys(name, &[Part::Link, Part::Link], keys)
    }

    /// Creates a set of address and port. All addresses are of this family.
    pub fn of_ports(
        name: &'static CStr,
        family: Family,
        ports: impl IntoIterator<Item = (IpAddr, ProtocolPort)>,
    ) -> Self {
        let keys = ports.into_iter().map(|(address, port)| port_at(address, port));
        Self::of_keys(name, ports_at(family), keys)
    }

    /// Creates a set of addresses of this family.
    pub fn of_addresses(
        name: &'static CStr,
        family: Family,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        Self::of_keys(name, address_part(family), addresses.into_iter().map(address_bytes))
    }

    /// Creates a set that packets fill with recent address resolutions: input link, source MAC address and next hop of
    /// this family.
    #[must_use]
    pub fn of_resolutions(name: &'static CStr, family: Family) -> Self {
        let key: &[Part] = match family {
            Family::V4 => &[Part::LinkIndex, Part::Mac, Part::Ipv4],
            Family::V6 => &[Part::LinkIndex, Part::Mac, Part::Ipv6],
        };
        Self { is_of_packets: true, ..Self::of_keys(name, key, std::iter::empty()) }
    }

    /// Creates a set that packets fill with rate counters of senders: input link and source MAC address.
    #[must_use]
    pub fn of_senders(name: &'static CStr) -> Self {
        let key = &[Part::LinkIndex, Part::Mac];
        Self { is_of_packets: true, ..Self::of_keys(name, key, std::iter::empty()) }
    }

    /// Creates a set that packets fill with rate counters of input links.
    #[must_use]
    pub fn of_ingress_links(name: &'static CStr) -> Self {
        let key = &[Part::LinkIndex];
        Self { is_of_packets: true, ..Self::of_keys(name, key, std::iter::empty()) }
    }

    /// Creates a set that packets fill with recently used sources: input link, source MAC address and source address of
    /// this family.
    #[must_use]
    pub fn of_sources(name: &'static CStr, family: Family) -> Self {
        Self::of_resolutions(name, family)
    }

    /// Moves the set to the family `arp`.
    #[must_use]
    pub fn for_arp(self) -> Self {
        Self { is_of_arp: true, ..self }
    }

    /// Creates a map from ports, at any address, to translation targets. All targets are of this family, and each port
    /// occurs once.
    pub fn from_ports(
        name: &'static CStr,
        family: Family,
        targets: impl IntoIterator<Item = (ProtocolPort, SocketAddr)>,
    ) -> Self {
        let elements = targets.into_iter().map(|(port, target)| Element {
            key: port.append_to(Bytes::default()),
            value: target_bytes(target),
        });
        Self::of_elements(name, PROTOCOL_PORT, target(family), elements.collect())
    }

    /// Creates a map from address and port to translation targets. All addresses are of this family, and each key
    /// occurs once.
    pub fn from_ports_at(
        name: &'static CStr,
        family: Family,
        targets: impl IntoIterator<Item = ((IpAddr, ProtocolPort), SocketAddr)>,
    ) -> Self {
        let elements = targets.into_iter().map(|((address, port), target)| Element {
            key: port_at(address, port),
            value: target_bytes(target),
        });
        Self::of_elements(name, ports_at(family), target(family), elements.collect())
    }

    fn of_keys(
        name: &'static CStr,
        key: &'static [Part],
        keys: impl Iterator<Item = Bytes>,
    ) -> Self {
        let elements = keys.map(|key| Element { key, value: Bytes::default() });
        Self::of_elements(name, key, &[], elements.collect())
    }

    fn of_elements(
        name: &'static CStr,
        key: &'static [Part],
        value: &'static [Part],
        mut elements: Vec<Element>,
    ) -> Self {
        elements.sort_unstable();
        elements.dedup();
        Self { name, key, value, elements, is_of_packets: false, is_of_arp: false }
    }
}

const fn address_part(family: Family) -> &'static [Part] {
    match family {
        Family::V4 => &[Part::Ipv4],
        Family::V6 => &[Part::Ipv6],
    }
}

const fn ports_at(family: Family) -> &'static [Part] {
    match family {
        Family::V4 => &[Part::Ipv4, Part::Protocol, Part::Port],
        Family::V6 => &[Part::Ipv6, Part::Protocol, Part::Port],
    }
}

const fn target(family: Family) -> &'static [Part] {
    match family {
        Family::V4 => &[Part::Ipv4, Part::Port],
        Family::V6 => &[Part::Ipv6, Part::Port],
    }
}

fn port_at(address: IpAddr, port: ProtocolPort) -> Bytes {
    port.append_to(address_bytes(address))
}

fn target_bytes(target: SocketAddr) -> Bytes {
    address_bytes(target.ip()).with(&port_word(target.port()))
}

fn address_bytes(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::default().with(&address.octets()),
        IpAddr::V6(address) => Bytes::default().with(&address.octets()),
    }
}

const fn port_word(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// A base chain of rules. Its policy is to accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name of the chain.
    pub name: &'static CStr,
    /// Hook of the chain.
    pub hook: Hook,
    /// Rules, in order.
    pub rules: Vec<Rule>,
}

/// A packet rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRate {
    /// Packets per second.
    pub per_second: u32,
    /// Additional packets in a burst.
    pub burst: u32,
}

/// Netfilter hook of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Prerouting, before connection tracking.
    BeforeTracking,
    /// Prerouting, for the first packet of a connection: destination translation.
    DestinationTranslation,
    /// Input: packets to the namespace's own addresses.
    Input,
    /// Received ARP packets.
    Arp,
    /// Forward: packets from link to link.
    Forward,
    /// Postrouting, for the first packet of a connection: source translation.
    SourceTranslation,
}

/// Kind of packet whose source address a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// IP packets of this family.
    Ip(Family),
    /// ARP requests. Only valid in chains of ARP.
    ArpRequest,
}

/// The terms of a rule: conditions, then the action.
pub type Rule = Vec<Term>;

/// A condition or an action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The input link is in this set.
    From(&'static CStr),
    /// The output link is in this set.
    To(&'static CStr),
    /// The pair of input link and output link is in this set.
    Between(&'static CStr),
    /// The packet belongs to an established connection, or is an error related to one.
    OfKnownConnection,
    /// The route back to the source does not use the input link. Not valid after routing.
    FromElsewhere,
    /// The packet is of this family.
    OfFamily(Family),
    /// The packet is of this protocol above IP.
    Protocol(u8),
    /// The destination is an address of this namespace.
    ToOwnAddress,
    /// The packet is of this family, and its destination address and port are in this set.
    ToPort(Family, &'static CStr),
    /// The connection's destination was translated, by any program.
    Redirected,
    /// The packet is of this family, and its next hop (a router or the destination itself) is not in this set. Only
    /// valid for forwarded packets.
    NextHopNotIn(Family, &'static CStr),
    /// The packet is forwarded Ethernet, and this set has no recent [resolution](Self::RecordResolution) of its next hop
    /// by its sender.
    ResolutionNotIn(Family, &'static CStr),
    /// Records in this set that the sender resolves the next hop.
    RecordResolution(Family, &'static CStr),
    /// The packet is of this kind, and its source is in this set.
    SourceIn(Source, &'static CStr),
    /// The packet is of this kind and Ethernet, and this set has no recent [use](Self::RecordSource) of its source by its
    /// sender.
    SourceNotRecorded(Source, &'static CStr),
    /// Records in this set that the sender uses the source.
    RecordSource(Source, &'static CStr),
    /// The packets of this input link and sender, counted in this set, exceed the rate.
    SenderRateExceeded(&'static CStr, PacketRate),
    /// The packets of this input link, counted in this set, exceed the rate.
    LinkRateExceeded(&'static CStr, PacketRate),
    /// The packet does not have this mark.
    NotMarked(u32),
    /// Sets this mark.
    Mark(u32),
    /// Exempts the packet from connection tracking.
    Untracked,
    /// The packet is of this family. This map translates its destination by its port; other packets continue.
    RedirectByPort(Family, &'static CStr),
    /// The packet is of this family. This map translates its destination by address and port; other packets continue.
    RedirectByPortAt(Family, &'static CStr),
    /// Accepts the packet in this chain.
    Accept,
    /// Drops the packet.
    Drop,
    /// Translates the source to an address of the output link.
    Masquerade,
}

/// A name ends at the first zero byte.
pub(super) fn name(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_link_name_keeps_terminating_zero() {
        assert_eq!(LinkName::new("p0").0[..3], *b"p0\0");
        assert_eq!(LinkName::new("0123456789abcdefgh").0, *b"0123456789abcde\0");
    }
}
