//! The guard: which frames a link may receive from the MAC addresses and IP addresses behind it.
//!
//! The guard is one condition, compiled to a BPF program that the kernel runs for each frame. Frames that the card
//! forwards in hardware bypass the program, so the card gets filters of its own ([`super::by_card`]).
//!
//! The condition looks only at fixed places that Linux and other systems read alike: Ethernet, ARP (RFC 826), IPv4 (RFC
//! 791) and IPv6 (RFC 8200).

use std::{collections::BTreeSet, net::Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use super::program::{Field, Program, Question};
use crate::mac::MacAddress;

/// Which ingress frames a link admits. Link-local groups of bridges and switches (01:80:c2:00:00:00 to 0f, and Cisco's)
/// are never admitted, because they must not be forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// VLANs whose tags are admitted. A priority tag (VLAN 0) counts as untagged.
    pub trunk: BTreeSet<u16>,
    /// Admitted senders.
    pub senders: Senders,
}

/// Admitted senders of a link's ingress frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Senders {
    /// Any sender.
    #[default]
    Any,
    /// Any frame from these MAC addresses.
    MacAddresses(BTreeSet<MacAddress>),
    /// These MAC addresses, with these IP addresses and the IPv6 link-local addresses derived from the MAC addresses.
    ///
    /// The addresses are checked in the source of IP packets, in the sender of ARP and neighbour discovery, and in the
    /// target of probes. The senders are neither routers nor DHCP servers: router advertisements, redirects and DHCP
    /// replies are dropped. 802.2 frames are dropped, because their packets are not inspected. In a VLAN of the trunk
    /// any IP address is admitted.
    Hosts {
        /// Source MAC addresses.
        macs: BTreeSet<MacAddress>,
        /// IP addresses. `None`: unknown, any is admitted.
        addresses: Option<BTreeSet<IpNetwork>>,
    },
}

/// State of the guard at a link and of its card's filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardStates {
    /// State of the kernel's filter.
    pub by_kernel: GuardState,
    /// State of the card's filters.
    pub by_card: CardGuardState,
}

/// State of the card's hardware filters at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardGuardState {
    /// There are none: the card decides what it forwards.
    Missing,
    /// The filters differ from the expected ones.
    Otherwise,
    /// The card forwards nothing in hardware: the kernel sees all frames.
    Closed,
    /// The card forwards nothing in hardware, as expected, because the ingress is limited.
    Limited,
    /// The filters are as expected. If none were requested, the card decides.
    AsWanted,
}

/// State of the kernel's filter at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// There is none: all frames are admitted.
    Missing,
    /// The filter differs, or another program's filter decides first.
    Otherwise,
    /// The filter is as expected.
    AsWanted,
}

const ETHERNET_TYPE: Field = Field::half(12);
const FIRST_OF_TYPE: Field = Field::byte(12);
const TYPE_IPV4: u32 = 0x0800;
const TYPE_ARP: u32 = 0x0806;
const TYPE_IPV6: u32 = 0x86dd;
const TYPE_VLAN: u32 = 0x8100;
/// Ethernet types of VLAN tags: 802.1Q, 802.1ad, and earlier proprietary ones.
const TAG_TYPES: [u32; 5] = [TYPE_VLAN, 0x88a8, 0x9100, 0x9200, 0x9300];

/// First byte of the type field in an 802.3 frame, which has its length there. Such a frame contains 802.2, which may
/// carry any protocol: by SNAP (RFC 1042), or by the service access points of IP and ARP.
const FIRST_OF_LENGTHS: std::ops::RangeInclusive<u8> = 0..=5;

const ETHERNET_AND_IPV6_LEN: u32 = 54;

/// Offset of the source MAC address.
const SENDER: u32 = 6;

// ARP packet: address types and lengths, then sender and target.
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

/// Payload length, which excludes the header.
const IPV6_LENGTH: Field = Field::half(18);
const IPV6_NEXT: Field = Field::byte(20);
const IPV6_HOP_LIMIT: Field = Field::byte(21);
const IPV6_SOURCE: u32 = 22;
/// First byte after the header: an extension's next header, or the type of an ICMPv6 message.
const BEHIND_IPV6: Field = Field::byte(54);
const ICMPV6_TYPE: Field = BEHIND_IPV6;
const ND_TARGET: u32 = 62;
/// Offsets of the first option in a router solicitation and in a message with a target. An option starts with its type
/// and its length in units of 8 bytes.
const RS_OPTION: u32 = 62;
const ND_OPTION: u32 = 78;
const UDP_PORT_BEHIND_IPV6: Field = Field::half(56);
const EXTENSION_LENGTH: Field = Field::byte(55);
/// First byte after an extension of the minimum length, 8 bytes.
const TYPE_BEHIND_EXTENSION: Field = Field::byte(62);
const UDP_PORT_BEHIND_FRAGMENT: Field = Field::half(64);
const IPV6_FRAGMENT_OFFSET: Field = Field::half(56).masked(0xfff8);

const ICMP: u8 = 1;
const IGMP: u8 = 2;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
/// Extensions that Linux skips: hop-by-hop, routing, fragment, destination options.
const EXTENSIONS: [u8; 4] = [HOP_BY_HOP, 43, FRAGMENT, 60];

const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const DISCOVERY: [u8; 5] = [
    ROUTER_SOLICITATION,
    ROUTER_ADVERTISEMENT,
    NEIGHBOUR_SOLICITATION,
    NEIGHBOUR_ADVERTISEMENT,
    REDIRECT,
];
/// Options with a link-layer address: the source's, the target's.
const LINK_ADDRESSES: [u8; 2] = [1, 2];
/// Nonce option, by which a sender recognises its own looped-back solicitation (RFC 7527).
const NONCE: u8 = 14;
/// MLD reports of both versions, and MLD done.
const LISTENER_MESSAGES: [u8; 3] = [131, 132, 143];

/// Hop limit that neighbour discovery requires (RFC 4861, section 6.1), so that no remote host can send it.
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

/// The destination is a group that bridges do not forward.
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

/// The frame is untagged, or has one tag of a VLAN of the trunk. A second tag is refused: the receiver of the frame
/// without the outer tag would use it as the VLAN.
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
    /// The frame is from an admitted sender.
    fn are(&self) -> Question {
        match self {
            Self::Any => Question::All(Vec::new()),
            Self::MacAddresses(macs) => is_mac(SENDER, macs),
            Self::Hosts { macs, addresses } => {
                let hosts = Hosts { macs, addresses: addresses.as_ref() };
                Question::All(vec![is_mac(SENDER, macs), hosts.are_meant()])
            }
        }
    }
}

/// One of these MAC addresses is at the offset.
fn is_mac(offset: u32, macs: &BTreeSet<MacAddress>) -> Question {
    let is = |MacAddress([a, b, c, d, e, f]): &MacAddress| {
        Question::All(vec![
            Question::is(Field::word(offset), u32::from_be_bytes([*a, *b, *c, *d])),
            Question::is(Field::half(offset + 4), u16::from_be_bytes([*e, *f])),
        ])
    };
    Question::Any(macs.iter().map(is).collect())
}

/// MAC addresses with their IP addresses.
#[derive(Clone, Copy)]
struct Hosts<'a> {
    macs: &'a BTreeSet<MacAddress>,
    addresses: Option<&'a BTreeSet<IpNetwork>>,
}

impl Hosts<'_> {
    /// The frame claims only addresses of these hosts, or belongs to a VLAN of the trunk.
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
        // A DHCP client without an address sends from 0.0.0.0.
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

    /// A probe has no sender address. It announces that the sender will take the target, so the target is checked.
    fn arp(self) -> Question {
        let probes = Question::All(vec![
            Question::is(Field::word(ARP_SENDER), 0_u32),
            self.has_ipv4(ARP_TARGET),
        ]);
        Question::All(vec![
            Question::is(ARP_KINDS, ETHERNET_AND_IPV4),
            Question::is(ARP_LENGTHS, SIX_AND_FOUR),
            is_mac(ARP_SENDER_MAC, self.macs),
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

    /// If the packet is one of these messages, its only option is the sender's own link address or a nonce. With more options, an address of another host could hide behind the first one.
    fn tells_own_link(self, types: &[u8], option: u32) -> Question {
        let length = option - ETHERNET_AND_IPV6_LEN;
        let is_single = Question::All(vec![
            Question::is(IPV6_LENGTH, length + 8),
            Question::is(Field::byte(option + 1), 1_u32),
        ]);
        let is_own = Question::All(vec![
            Question::is_one_of(Field::byte(option), LINK_ADDRESSES),
            is_mac(option + 2, self.macs),
        ]);
        let is_harmless = Question::Any(vec![is_own, Question::is(Field::byte(option), NONCE)]);
        Question::Any(vec![
            is_icmpv6(types).not(),
            Question::is(IPV6_LENGTH, length),
            Question::All(vec![is_single, is_harmless]),
        ])
    }

    /// One of the hosts' IPv4 addresses is at the offset.
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
        let own = self.macs.iter().map(|mac| mac.link_local().into());
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

/// The packet has this protocol's header: it is whole or the first fragment.
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

/// The packet is one that a host sends before it has an address. MLD messages follow a hop-by-hop extension.
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

/// An extension may hide what the other conditions look for: a further extension, neighbour discovery (no host sends it
/// after an extension), or UDP. Fragments of UDP are admitted, because their port has a fixed place.
fn hides_something() -> Question {
    // Only the first fragment contains the message type.
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

/// The message claims that the sender has an address or is about to take it.
fn claims_ipv6() -> Question {
    let takes = Question::All(vec![is_icmpv6(&[NEIGHBOUR_SOLICITATION]), is_unspecified()]);
    Question::Any(vec![is_icmpv6(&[NEIGHBOUR_ADVERTISEMENT]), takes])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of a pod: 32 sources of its network, 16 requested ones, 16 addresses and one MAC address.
    #[test]
    fn largest_guard_fits_into_bpf_program() {
        let macs = (0..49).map(|last| MacAddress([2, 0, 0, 0, 0, last])).collect();
        let address = |number: u16| Ipv6Addr::new(0xfd00, 0, 0, number, 0, 0, 0, 1);
        let addresses = (0..64).map(|number| IpNetwork::V6(address(number).into()));
        let senders = Senders::Hosts { macs, addresses: Some(addresses.collect()) };
        let guard = Guard { trunk: (2..66).collect(), senders };
        assert!(guard.program().len() <= 4096, "{}", guard.program().len());
    }
}
