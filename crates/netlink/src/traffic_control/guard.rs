//! What may come in at a link: frames of the stations behind it, and packets of their addresses.
//!
//! It is one question about each frame, asked by a program in software: what a card forwards by itself, it
//! does not see. So a card is told which frames it may forward by itself ([`super::by_card`]). What is compared is
//! where Linux, and others, read the same: at fixed places of Ethernet, ARP (RFC 826), IPv4 (RFC 791) and IPv6
//! (RFC 8200).

use std::{collections::BTreeSet, net::Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use super::program::{Field, Program, Question};
use crate::MacAddress;

/// What may come in at a link. Never what bridges and switches tell each other (link-local groups:
/// 01:80:c2:00:00:00 to 0f, and Cisco's), for these are not to be forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// The VLANs whose tags frames may have. A tag that tells a priority and no VLAN is none.
    pub trunk: BTreeSet<u16>,
    /// Who may be the sender.
    pub senders: Senders,
}

/// Who may be the sender of what comes in at a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Senders {
    /// Anybody.
    #[default]
    Any,
    /// These stations.
    Stations(BTreeSet<MacAddress>),
    /// These stations, with these addresses, and with the link-local ones of IPv6 that follow from the stations'.
    /// That goes for the source of IP, for the sender that ARP and neighbour discovery speak of, and for
    /// what is asked for while nobody has it yet. They are no routers and no servers of DHCP: nothing like
    /// router advertisements, redirects, or DHCP's answers comes in. Frames of 802.2 do not come in: packets in
    /// them are not looked at. In a VLAN of the trunk they have whatever addresses they like.
    Hosts {
        /// The stations.
        stations: BTreeSet<MacAddress>,
        /// Their addresses. `None`: not known, so that they have any.
        addresses: Option<BTreeSet<IpNetwork>>,
    },
}

/// What a link has of a guard, and its card of the filters that go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// What is dropped of the frames that the kernel sees.
    pub by_kernel: Guarding,
    /// What the card forwards by itself.
    pub by_card: CardGuarding,
}

/// What a card forwards by itself of what comes in at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardGuarding {
    /// Whatever it knows a way for.
    Missing,
    /// Something else, or more or less.
    Otherwise,
    /// Nothing: the kernel sees all.
    Closed,
    /// Nothing either, and that is wanted: what comes in is limited.
    Limited,
    /// Only what is wanted. If nothing was asked for, that is whatever it knows a way for.
    AsWanted,
}

/// What a link has of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarding {
    /// There is none: anything comes in.
    Missing,
    /// Something else is dropped, or somebody else's filter decides first.
    Otherwise,
    /// Exactly what the guard does not let in is dropped.
    AsWanted,
}

const ETHERNET_TYPE: Field = Field::half(12);
const FIRST_OF_TYPE: Field = Field::byte(12);
const TYPE_IPV4: u32 = 0x0800;
const TYPE_ARP: u32 = 0x0806;
const TYPE_IPV6: u32 = 0x86dd;
const TYPE_VLAN: u32 = 0x8100;
/// The types of tags: 802.1Q, 802.1ad, and what switches had before that.
const TAG_TYPES: [u32; 5] = [TYPE_VLAN, 0x88a8, 0x9100, 0x9200, 0x9300];

/// The first byte of the type where an 802.3 frame has its length instead. Such a frame holds an 802.2 one, which
/// may hold a packet of any protocol: by SNAP (RFC 1042), or by the access points of IP and ARP.
const FIRST_OF_LENGTHS: std::ops::RangeInclusive<u8> = 0..=5;

const ETHERNET_AND_IPV6_LEN: u32 = 54;

/// Where an Ethernet frame has its sender.
const SENDER: u32 = 6;

// An ARP packet: the kinds and lengths of addresses, then the sender's and the target's.
const ARP_KINDS: Field = Field::word(14);
const ETHERNET_AND_IPV4: u32 = 0x0001_0800;
const ARP_LENGTHS: Field = Field::half(18);
const SIX_AND_FOUR: u32 = 0x0604;
const ARP_SENDER_MAC: u32 = 22;
const ARP_SENDER: u32 = 28;
const ARP_TARGET: u32 = 38;

const IPV4_SOURCE: u32 = 26;
const IPV4_PROTOCOL: Field = Field::byte(23);
const IPV4_FRAGMENT_OFFSET: Field = Field::half(20).masked(0x1fff);
const IPV4_SOURCE_PORT: Field = Field::half_behind_ipv4(0);
const IPV4_PORT: Field = Field::half_behind_ipv4(2);
const ICMP_TYPE: Field = Field::byte_behind_ipv4(0);

/// How long all is that follows the header.
const IPV6_LENGTH: Field = Field::half(18);
const IPV6_NEXT: Field = Field::byte(20);
const IPV6_HOP_LIMIT: Field = Field::byte(21);
const IPV6_SOURCE: u32 = 22;
/// What stands behind the header: an extension's own next header, or the type of an ICMPv6 message.
const BEHIND_IPV6: Field = Field::byte(54);
const ICMPV6_TYPE: Field = BEHIND_IPV6;
const ND_TARGET: u32 = 62;
/// Where the options of a solicitation of routers begin, and of a message that has a target. Each begins with its
/// kind and its length, in units of eight bytes.
const RS_OPTION: u32 = 62;
const ND_OPTION: u32 = 78;
const UDP_PORT_BEHIND_IPV6: Field = Field::half(56);
const EXTENSION_LENGTH: Field = Field::byte(55);
/// Behind the shortest extension, of eight bytes.
const TYPE_BEHIND_EXTENSION: Field = Field::byte(62);
const UDP_PORT_BEHIND_FRAGMENT: Field = Field::half(64);
const IPV6_FRAGMENT_OFFSET: Field = Field::half(56).masked(0xfff8);

const ICMP: u8 = 1;
const IGMP: u8 = 2;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
/// The extensions that Linux looks behind by itself: hop by hop, routing, fragment, destination.
const EXTENSIONS: [u8; 4] = [HOP_BY_HOP, 43, FRAGMENT, 60];

const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// The messages of neighbour discovery.
const DISCOVERY: [u8; 5] = [
    ROUTER_SOLICITATION,
    ROUTER_ADVERTISEMENT,
    NEIGHBOUR_SOLICITATION,
    NEIGHBOUR_ADVERTISEMENT,
    REDIRECT,
];
/// Options that tell a link's address: the sender's, the target's.
const LINK_ADDRESSES: [u8; 2] = [1, 2];
/// By which a link knows its own question for an address (RFC 7527).
const NONCE: u8 = 14;
/// Who listens to which groups: reports of both versions, and the end of one.
const LISTENER_MESSAGES: [u8; 3] = [131, 132, 143];

/// What neighbour discovery demands (RFC 4861, section 6.1), so that nobody sends it from afar.
const HOP_LIMIT_OF_NEIGHBOURS: u8 = 255;

const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;

impl Guard {
    pub(super) fn program(&self) -> Program {
        Question::All(vec![is_link_local().not(), has_right_tag(&self.trunk), self.senders.are()])
            .program()
    }
}

/// Whether it goes to a group that no bridge forwards.
fn is_link_local() -> Question {
    let ieee = [
        Question::is(Field::word(0), 0x0180_c200_u32),
        Question::is(Field::half(4).masked(0xfff0), 0_u32),
    ];
    let cisco = [
        Question::is(Field::word(0), 0x0100_0ccc_u32),
        Question::is(Field::half(4).masked(0xfffe), 0xcccc_u32),
    ];
    Question::Any(vec![Question::All(ieee.into()), Question::All(cisco.into())])
}

fn has_tag() -> Question {
    Question::is(Field::has_tag(), 0_u32).not()
}

/// Whether it has the tag of a VLAN of the trunk, or none. One that is still in the frame, behind one that was
/// taken off, would be taken for the first by whoever gets the frame without that.
fn has_right_tag(trunk: &BTreeSet<u16>) -> Question {
    let is_ordinary = || Question::is(Field::tag_protocol(), TYPE_VLAN);
    let has_no_vlan = Question::Any(vec![
        has_tag().not(),
        Question::All(vec![is_ordinary(), Question::is(Field::tag_vlan(), 0_u32)]),
    ]);
    let has_more = Question::is_one_of(ETHERNET_TYPE, TAG_TYPES);
    let is_of_trunk = Question::is_one_of(Field::tag_vlan(), trunk.iter().copied());
    let is_in_trunk = Question::All(vec![has_tag(), is_ordinary(), is_of_trunk]);
    Question::All(vec![has_more.not(), Question::Any(vec![has_no_vlan, is_in_trunk])])
}

impl Senders {
    /// Whether it is from one of them.
    fn are(&self) -> Question {
        match self {
            Self::Any => Question::All(Vec::new()),
            Self::Stations(stations) => is_mac(SENDER, stations),
            Self::Hosts { stations, addresses } => {
                let hosts = Hosts { stations, addresses: addresses.as_ref() };
                Question::All(vec![is_mac(SENDER, stations), hosts.are_meant()])
            }
        }
    }
}

/// Whether at that offset is one of these addresses.
fn is_mac(offset: u32, macs: &BTreeSet<MacAddress>) -> Question {
    let is = |MacAddress([a, b, c, d, e, f]): &MacAddress| {
        Question::All(vec![
            Question::is(Field::word(offset), u32::from_be_bytes([*a, *b, *c, *d])),
            Question::is(Field::half(offset + 4), u16::from_be_bytes([*e, *f])),
        ])
    };
    Question::Any(macs.iter().map(is).collect())
}

/// Stations with the addresses that they have.
#[derive(Clone, Copy)]
struct Hosts<'a> {
    stations: &'a BTreeSet<MacAddress>,
    addresses: Option<&'a BTreeSet<IpNetwork>>,
}

impl Hosts<'_> {
    /// Whether a frame of their stations says nothing of others, unless it is of a VLAN of the trunk.
    fn are_meant(self) -> Question {
        let is_of_trunk =
            Question::All(vec![has_tag(), Question::is(Field::tag_vlan(), 0_u32).not()]);
        let is = |of: u32| Question::is(ETHERNET_TYPE, of);
        Question::Any(vec![
            is_of_trunk,
            Question::All(vec![is(TYPE_IPV4), self.ipv4()]),
            Question::All(vec![is(TYPE_IPV6), self.ipv6()]),
            Question::All(vec![is(TYPE_ARP), self.arp()]),
            Question::All(vec![
                Question::is_one_of(ETHERNET_TYPE, [TYPE_IPV4, TYPE_IPV6, TYPE_ARP]).not(),
                Question::is_one_of(FIRST_OF_TYPE, FIRST_OF_LENGTHS).not(),
            ]),
        ])
    }

    fn ipv4(self) -> Question {
        // By a client that has no address yet.
        let asks_for_address = Question::All(vec![
            Question::is(Field::word(IPV4_SOURCE), 0_u32),
            is_first_of(UDP),
            Question::is(IPV4_SOURCE_PORT, DHCP_CLIENT),
            Question::is(IPV4_PORT, DHCP_SERVER),
        ]);
        let listens = Question::All(vec![
            Question::is(Field::word(IPV4_SOURCE), 0_u32),
            Question::is(IPV4_PROTOCOL, IGMP),
        ]);
        let answers = Question::All(vec![is_first_of(UDP), Question::is(IPV4_PORT, DHCP_CLIENT)]);
        let routes = Question::All(vec![
            is_first_of(ICMP),
            Question::is_one_of(ICMP_TYPE, [ICMP_REDIRECT, ICMP_ROUTER_ADVERTISEMENT]),
        ]);
        Question::All(vec![
            Question::Any(vec![self.has_ipv4(IPV4_SOURCE), asks_for_address, listens]),
            answers.not(),
            routes.not(),
        ])
    }

    /// A probe, which has no sender, tells everybody that somebody is about to take the target.
    fn arp(self) -> Question {
        let probes = Question::All(vec![
            Question::is(Field::word(ARP_SENDER), 0_u32),
            self.has_ipv4(ARP_TARGET),
        ]);
        Question::All(vec![
            Question::is(ARP_KINDS, ETHERNET_AND_IPV4),
            Question::is(ARP_LENGTHS, SIX_AND_FOUR),
            is_mac(ARP_SENDER_MAC, self.stations),
            Question::Any(vec![self.has_ipv4(ARP_SENDER), probes]),
        ])
    }

    fn ipv6(self) -> Question {
        Question::All(vec![
            Question::Any(vec![self.has_ipv6(IPV6_SOURCE), has_no_ipv6_yet()]),
            hides_something().not(),
            serves_dhcpv6().not(),
            routes().not(),
            Question::Any(vec![claims_ipv6().not(), self.has_ipv6(ND_TARGET)]),
            self.tells_own_link(&[ROUTER_SOLICITATION], RS_OPTION),
            self.tells_own_link(&[NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT], ND_OPTION),
        ])
    }

    /// Whether, if it is one of these messages, it has no option, or a single one, which begins there and does
    /// not tell the address of another link.
    fn tells_own_link(self, types: &[u8], option: u32) -> Question {
        let length = option - ETHERNET_AND_IPV6_LEN;
        let is_single = Question::All(vec![
            Question::is(IPV6_LENGTH, length + 8),
            Question::is(Field::byte(option + 1), 1_u32),
        ]);
        let is_own = Question::All(vec![
            Question::is_one_of(Field::byte(option), LINK_ADDRESSES),
            is_mac(option + 2, self.stations),
        ]);
        let is_harmless = Question::Any(vec![is_own, Question::is(Field::byte(option), NONCE)]);
        Question::Any(vec![
            is_icmpv6(types).not(),
            Question::is(IPV6_LENGTH, length),
            Question::All(vec![is_single, is_harmless]),
        ])
    }

    /// Whether at that offset is one of their addresses.
    fn has_ipv4(self, offset: u32) -> Question {
        let Some(addresses) = self.addresses else { return Question::All(Vec::new()) };
        let of_family = addresses.iter().filter_map(|address| match address {
            IpNetwork::V4(address) => Some(*address),
            IpNetwork::V6(_) => None,
        });
        Question::Any(of_family.map(|address| is_in_ipv4(offset, address)).collect())
    }

    fn has_ipv6(self, offset: u32) -> Question {
        let Some(addresses) = self.addresses else { return Question::All(Vec::new()) };
        let of_family = addresses.iter().filter_map(|address| match address {
            IpNetwork::V4(_) => None,
            IpNetwork::V6(address) => Some(*address),
        });
        let own = self.stations.iter().map(|station| station.link_local().into());
        Question::Any(of_family.chain(own).map(|address| is_in_ipv6(offset, address)).collect())
    }
}

fn is_in_ipv4(offset: u32, network: Ipv4Network) -> Question {
    is_under_mask(offset, u32::from(network.ip()), u32::from(network.mask()))
}

fn is_in_ipv6(offset: u32, network: Ipv6Network) -> Question {
    let words = |address: Ipv6Addr| {
        let octets = address.octets();
        octets.as_chunks().0.iter().copied().map(u32::from_be_bytes).collect::<Vec<_>>()
    };
    let words = words(network.ip()).into_iter().zip(words(network.mask()));
    let parts = (offset..).step_by(4).zip(words);
    Question::All(parts.map(|(at, (value, mask))| is_under_mask(at, value, mask)).collect())
}

fn is_under_mask(offset: u32, value: u32, mask: u32) -> Question {
    if mask == 0 {
        return Question::All(Vec::new());
    }
    Question::is(Field::word(offset).masked(mask), value & mask)
}

/// Whether it is of that protocol above IPv4, and has its header: not an earlier fragment.
fn is_first_of(protocol: u8) -> Question {
    Question::All(vec![
        Question::is(IPV4_PROTOCOL, protocol),
        Question::is(IPV4_FRAGMENT_OFFSET, 0_u32),
    ])
}

fn is_unspecified() -> Question {
    is_in_ipv6(IPV6_SOURCE, Ipv6Addr::UNSPECIFIED.into())
}

fn is_icmpv6(types: &[u8]) -> Question {
    Question::All(vec![
        Question::is(IPV6_NEXT, ICMPV6),
        Question::is_one_of(ICMPV6_TYPE, types.iter().copied()),
    ])
}

/// Whether it is what a link sends that has no address yet. Listeners' messages come behind an extension.
fn has_no_ipv6_yet() -> Question {
    let listens = Question::All(vec![
        Question::is(IPV6_NEXT, HOP_BY_HOP),
        Question::is(BEHIND_IPV6, ICMPV6),
        Question::is(EXTENSION_LENGTH, 0_u32),
        Question::is_one_of(TYPE_BEHIND_EXTENSION, LISTENER_MESSAGES),
    ]);
    let asks = is_icmpv6(&[ROUTER_SOLICITATION, NEIGHBOUR_SOLICITATION]);
    Question::All(vec![is_unspecified(), Question::Any(vec![asks, listens])])
}

/// Whether behind an extension there may be what the other questions look for: one more extension, neighbour
/// discovery, which no host sends so, or UDP, but for fragments of it, whose port has its own place.
fn hides_something() -> Question {
    // Of fragments the first has the type, at its place.
    let is_of_others = Question::Any(vec![
        Question::is(IPV6_FRAGMENT_OFFSET, 0_u32).not(),
        Question::is_one_of(TYPE_BEHIND_EXTENSION, DISCOVERY).not(),
    ]);
    let neighbours = Question::All(vec![
        Question::is(BEHIND_IPV6, ICMPV6),
        Question::is(IPV6_HOP_LIMIT, HOP_LIMIT_OF_NEIGHBOURS),
        Question::All(vec![Question::is(IPV6_NEXT, FRAGMENT), is_of_others]).not(),
    ]);
    let datagram = Question::All(vec![
        Question::is(BEHIND_IPV6, UDP),
        Question::is(IPV6_NEXT, FRAGMENT).not(),
    ]);
    Question::All(vec![
        Question::is_one_of(IPV6_NEXT, EXTENSIONS),
        Question::Any(vec![Question::is_one_of(BEHIND_IPV6, EXTENSIONS), neighbours, datagram]),
    ])
}

fn serves_dhcpv6() -> Question {
    let plainly = Question::All(vec![
        Question::is(IPV6_NEXT, UDP),
        Question::is(UDP_PORT_BEHIND_IPV6, DHCPV6_CLIENT),
    ]);
    let in_fragments = Question::All(vec![
        Question::is(IPV6_NEXT, FRAGMENT),
        Question::is(BEHIND_IPV6, UDP),
        Question::is(IPV6_FRAGMENT_OFFSET, 0_u32),
        Question::is(UDP_PORT_BEHIND_FRAGMENT, DHCPV6_CLIENT),
    ]);
    Question::Any(vec![plainly, in_fragments])
}

fn routes() -> Question {
    is_icmpv6(&[ROUTER_ADVERTISEMENT, REDIRECT])
}

/// Whether it tells that the sender has an address, or is about to take it.
fn claims_ipv6() -> Question {
    let takes = Question::All(vec![is_icmpv6(&[NEIGHBOUR_SOLICITATION]), is_unspecified()]);
    Question::Any(vec![is_icmpv6(&[NEIGHBOUR_ADVERTISEMENT]), takes])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod may have 32 sources of its network's, ask for 16, and have 16 addresses and a MAC address.
    #[test]
    fn the_most_that_a_pod_may_have_fits_into_a_program() {
        let stations = (0..49).map(|last| MacAddress([2, 0, 0, 0, 0, last])).collect();
        let address = |number: u16| Ipv6Addr::new(0xfd00, 0, 0, number, 0, 0, 0, 1);
        let addresses = (0..64).map(|number| IpNetwork::V6(address(number).into()));
        let senders = Senders::Hosts { stations, addresses: Some(addresses.collect()) };
        let guard = Guard { trunk: (2..66).collect(), senders };
        assert!(guard.program().len() <= 4096, "{}", guard.program().len());
    }
}
