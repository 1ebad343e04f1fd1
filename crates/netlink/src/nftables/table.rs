//! What a table is made of.

use std::{
    ffi::{CStr, CString},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::name;
use crate::Family;

/// The room that the kernel has for the name of a link.
const LINK_NAME_LEN: usize = 16;

/// The name of a link, as sets have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkName([u8; LINK_NAME_LEN]);

impl LinkName {
    /// A name of at most 15 bytes; what is longer is cut off, and names no link.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; LINK_NAME_LEN];
        let room = bytes.iter_mut().take(LINK_NAME_LEN - 1);
        room.zip(name.as_bytes()).for_each(|(to, from)| *to = *from);
        Self(bytes)
    }

    pub(super) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A table of the family `inet`, for both versions of IP, and the one of its name of the family `arp`, if any of its
/// sets or chains is of that.
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

/// A named set, or a map from what would be in one to something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub(super) name: &'static CStr,
    pub(super) key: &'static [Part],
    /// Empty: it is no map.
    pub(super) value: &'static [Part],
    /// In order, none twice.
    pub(super) elements: Vec<Element>,
    /// Whether packets add its elements, each for [`AGE`] since the latest of them.
    pub(super) is_of_packets: bool,
    /// Whether it is of the family `arp`.
    pub(super) is_of_arp: bool,
}

/// A key and, in a map, its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

/// How long what packets have added stays in a set.
pub(super) const AGE: Duration = Duration::from_secs(15);

/// How many elements packets may add to a set.
pub(super) const MOST_OF_PACKETS: u32 = 65_535;

/// The room for the longest key, which is two names of links.
const ROOM: usize = 2 * LINK_NAME_LEN;

/// A key or a value. There are thousands, made anew for each change, so none is on the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes {
    bytes: [u8; ROOM],
    length: usize,
}

impl Bytes {
    /// Appends what there is room for.
    fn with(mut self, more: &[u8]) -> Self {
        let room = self.bytes.iter_mut().skip(self.length);
        self.length += room.zip(more).map(|(to, from)| *to = *from).count();
        self
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// What keys and values are made of, one after the other.
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
    /// With what fills it up to words of four bytes.
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
    /// The protocol's number.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

impl ProtocolPort {
    fn append_to(self, bytes: Bytes) -> Bytes {
        bytes.with(&[self.protocol, 0, 0, 0]).with(&port_word(self.port))
    }
}

const PROTOCOL_PORT: &[Part] = &[Part::Protocol, Part::Port];

impl Set {
    /// A set of links.
    pub fn of_links(name: &'static CStr, links: impl IntoIterator<Item = LinkName>) -> Self {
        let keys = links.into_iter().map(|link| Bytes::default().with(&link.0));
        Self::of_keys(name, &[Part::Link], keys)
    }

    /// A set of pairs: the link that a packet comes in by, and the one that it goes out by.
    pub fn of_pairs(
        name: &'static CStr,
        pairs: impl IntoIterator<Item = (LinkName, LinkName)>,
    ) -> Self {
        let keys = pairs.into_iter();
        let keys = keys.map(|(from, to)| Bytes::default().with(&from.0).with(&to.0));
        Self::of_keys(name, &[Part::Link, Part::Link], keys)
    }

    /// A set of ports at addresses, which are all of that family.
    pub fn of_ports(
        name: &'static CStr,
        family: Family,
        ports: impl IntoIterator<Item = (IpAddr, ProtocolPort)>,
    ) -> Self {
        let keys = ports.into_iter().map(|(address, port)| port_at(address, port));
        Self::of_keys(name, ports_at(family), keys)
    }

    /// A set of addresses, which are all of that family.
    pub fn of_addresses(
        name: &'static CStr,
        family: Family,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        Self::of_keys(name, address_part(family), addresses.into_iter().map(address_bytes))
    }

    /// The set of who has asked lately for which next hop of that family, which packets fill: the link that they came
    /// in by, the Ethernet address of their sender, and the next hop.
    #[must_use]
    pub fn of_resolutions(name: &'static CStr, family: Family) -> Self {
        let key: &[Part] = match family {
            Family::V4 => &[Part::LinkIndex, Part::Mac, Part::Ipv4],
            Family::V6 => &[Part::LinkIndex, Part::Mac, Part::Ipv6],
        };
        Self { is_of_packets: true, ..Self::of_keys(name, key, std::iter::empty()) }
    }

    /// The set of what is counted of senders, by link and Ethernet address, which packets fill.
    #[must_use]
    pub fn of_senders(name: &'static CStr) -> Self {
        let key = &[Part::LinkIndex, Part::Mac];
        Self { is_of_packets: true, ..Self::of_keys(name, key, std::iter::empty()) }
    }

    /// The set of what is counted of links by which packets come in, which fill it.
    #[must_use]
    pub fn of_entrances(name: &'static CStr) -> Self {
        let key = &[Part::LinkIndex];
        Self { is_of_packets: true, ..Self::of_keys(name, key, std::iter::empty()) }
    }

    /// The set of addresses of that family that senders have used lately, which packets fill: the link that they came in
    /// by, the Ethernet address of their sender, and their source.
    #[must_use]
    pub fn of_sources(name: &'static CStr, family: Family) -> Self {
        Self::of_resolutions(name, family)
    }

    /// The set, for chains of ARP.
    #[must_use]
    pub fn for_arp(self) -> Self {
        Self { is_of_arp: true, ..self }
    }

    /// A map from ports, whatever the address, to where packets to them shall go. All addresses are of that
    /// family, and no port is there twice.
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

    /// Likewise from ports at addresses.
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

/// A chain of rules that the kernel calls; a packet that comes to its end is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static CStr,
    /// Where the kernel calls it.
    pub hook: Hook,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// How many packets may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRate {
    /// In each second.
    pub per_second: u32,
    /// At once, before.
    pub burst: u32,
}

/// Where the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// For all packets that come in, before it is looked up to which connection they belong.
    BeforeTracking,
    /// For the first packet of each connection that comes in, to translate where it goes.
    DestinationTranslation,
    /// For packets to the namespace's own addresses, as a filter.
    Input,
    /// For packets of ARP that come in, as a filter.
    Arp,
    /// For packets from link to link, as a filter.
    Forward,
    /// For the first packet of each connection that leaves by a link, to translate its source.
    SourceTranslation,
}

/// A packet that says from which address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A packet of IP of that family.
    Ip(Family),
    /// A request of ARP. Only in chains of ARP.
    ArpRequest,
}

/// What a packet has to be, and what becomes of it then.
pub type Rule = Vec<Term>;

/// A part of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// It came in by a link of that set.
    From(&'static CStr),
    /// It goes out by a link of that set.
    To(&'static CStr),
    /// The links that it comes in and goes out by are a pair of that set.
    Between(&'static CStr),
    /// It belongs to a connection that was let pass, or is an error about one.
    OfKnownConnection,
    /// Packets to where it is from do not go out by the link that it came in by. Not after routing.
    FromElsewhere,
    /// It is of that family.
    OfFamily(Family),
    /// It is of that protocol above IP.
    Protocol(u8),
    /// It is for an address of this namespace.
    ToOwnAddress,
    /// It is of that family, and for a port at an address of that set.
    ToPort(Family, &'static CStr),
    /// Where its connection goes was translated, by whomever.
    Redirected,
    /// It is of that family, and the one whom it is handed to next, the router or the destination itself, is not in
    /// that set. Only where it is forwarded.
    NextHopNotIn(Family, &'static CStr),
    /// It is forwarded, came by Ethernet, and its sender has not [asked](Self::NoteResolution) for its next hop lately.
    ResolutionNotIn(Family, &'static CStr),
    /// Notes in that set that its sender has asked for that one.
    NoteResolution(Family, &'static CStr),
    /// It is such a packet, and its source is in that set.
    SourceIn(Source, &'static CStr),
    /// It is such a packet, came by Ethernet, and its sender has not [used](Self::NoteSource) its source lately.
    SourceNotNoted(Source, &'static CStr),
    /// Notes in that set that its sender has used its source.
    NoteSource(Source, &'static CStr),
    /// Those that came here by its link and from its sender, as that set counts them, are more than that.
    TooManyOfSender(&'static CStr, PacketRate),
    /// Those that came here by its link, as that set counts them, are more than that.
    TooManyOfEntrance(&'static CStr, PacketRate),
    /// It does not have that mark.
    NotMarked(u32),
    /// It gets that mark.
    Mark(u32),
    /// It is not looked up to which connection it belongs.
    Untracked,
    /// It is of that family, and goes where that map has it go by its port. One that is not in it goes on.
    RedirectByPort(Family, &'static CStr),
    /// Likewise by the address that it is for and its port.
    RedirectByPortAt(Family, &'static CStr),
    /// It passes this chain.
    Accept,
    /// It is thrown away.
    Drop,
    /// It gets an address of the link that it leaves by for its source.
    Masquerade,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_room_for_its_end() {
        assert_eq!(LinkName::new("p0").0[..3], *b"p0\0");
        assert_eq!(LinkName::new("0123456789abcdefgh").0, *b"0123456789abcde\0");
    }
}
