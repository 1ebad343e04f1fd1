//! A port's guard as flows. Open vSwitch goes through these tables:
//!
//! | table | checks | passes to |
//! | --- | --- | --- |
//! | 0 | the input port | `TAGS` |
//! | `TAGS` | the destination group may be forwarded; the VLAN tag is allowed, or there is none | `MACS` |
//! | `MACS` | the source MAC address is one of the port's | the end, or `NEIGHBOUR_LINKS` |
//! | `NEIGHBOUR_LINKS` | the link addresses in ARP and neighbour discovery; no router, no DHCP server | `SOURCES` |
//! | `SOURCES` | the source address is one of the pod's, or unspecified where the protocol has none | the end, or `NEIGHBOURS` |
//! | `NEIGHBOURS` | the source of a neighbour advertisement whose target was checked | the end |
//!
//! The end is the first table of `allow_rules.rs`; after its tables the bridge forwards as for ports that are not
//! ours. Frames that no flow of a table lets pass go to `DROPS`, where one flow per port drops and counts them.
//! Flows of the bridge contain everything that is the same for all ports. A port has only the few flows about
//! itself, because the daemon takes some 20 µs for each.
//!
//! Open vSwitch skips IPv6 extension headers. With `nx-match` (ovs-fields(7)) it reads the headers of first
//! fragments; of later fragments it knows the addresses. It reads the options of neighbour messages, but not those
//! of router solicitations.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use netlink::{Guard, MacAddress, Senders};
use openflow::{Action, Flow, Match, Ports, VlanMatch};

use super::{
    flow_set::{ALLOWED, FlowSet, OTHERWISE, REFUSED, REST},
    protocols::{
        DHCP_CLIENT, DHCP_SERVER, DHCPV6_CLIENT, ICMP, ICMP_REDIRECT, ICMP_ROUTER_ADVERTISEMENT,
        ICMPV6, IGMP, LISTENER_MESSAGES, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT,
        ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION, TAG_TYPES, TYPE_802_2, TYPE_ARP, TYPE_IPV4,
        TYPE_IPV6, UDP,
    },
    tables::{DROPS, FIRST, MACS, NEIGHBOUR_LINKS, NEIGHBOURS, SENT, SOURCES, TAGS},
};

/// Drops and counts.
const DROPPED: Action = Action::Table(DROPS);
/// Lets pass.
const END: Action = Action::Table(SENT);

/// Groups that no bridge forwards, each with its mask: those of IEEE 802.1 and of Cisco.
const LINK_LOCAL: [(MacAddress, MacAddress); 2] = [
    (MacAddress([0x01, 0x80, 0xc2, 0, 0, 0]), MacAddress([0xff, 0xff, 0xff, 0xff, 0xff, 0xf0])),
    (
        MacAddress([0x01, 0, 0x0c, 0xcc, 0xcc, 0xcc]),
        MacAddress([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]),
    ),
];

/// The flows that are the same for all ports with any guard. Each port's flow in table 0 leads here.
pub(super) fn common_flows(cookie: u64) -> BTreeSet<Flow> {
    let mut flows = FlowSet::of_bridge(cookie);
    common_tags(&mut flows);
    common_claims(&mut flows);
    common_sources(&mut flows);
    for table in [TAGS, MACS, SOURCES, NEIGHBOURS] {
        flows.add(table, REST, [], DROPPED);
    }
    flows.add(NEIGHBOUR_LINKS, REST, [], END);
    flows.all()
}

fn common_tags(flows: &mut FlowSet) {
    for (group, mask) in LINK_LOCAL {
        flows.add(TAGS, REFUSED, [Match::EthernetDestination(group, mask)], DROPPED);
    }
    for kind in TAG_TYPES {
        flows.add(TAGS, REFUSED, [Match::EthernetType(kind)], DROPPED);
    }
    // A priority tag (VLAN ID 0) counts as untagged.
    for tag in [VlanMatch::Id(0), VlanMatch::Untagged] {
        flows.add(TAGS, ALLOWED, [Match::Vlan(tag)], Action::Table(MACS));
    }
}

fn common_claims(flows: &mut FlowSet) {
    for refused in [
        udp(TYPE_IPV4, Match::UdpDestination(Ports::exactly(DHCP_CLIENT))).to_vec(),
        udp(TYPE_IPV6, Match::UdpDestination(Ports::exactly(DHCPV6_CLIENT))).to_vec(),
        icmpv4(ICMP_REDIRECT).to_vec(),
        icmpv4(ICMP_ROUTER_ADVERTISEMENT).to_vec(),
        icmpv6(ROUTER_ADVERTISEMENT).to_vec(),
        icmpv6(REDIRECT).to_vec(),
        // Open vSwitch does not look into the payload of 802.2 frames, so the guard could not check ARP in them.
        vec![Match::EthernetType(TYPE_802_2)],
        // Open vSwitch reports an unspecified target if options contradict each other: it has parsed nothing then.
        with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdTarget(Ipv6Addr::UNSPECIFIED.into())),
        with(neighbours(NEIGHBOUR_ADVERTISEMENT), Match::NdTarget(Ipv6Addr::UNSPECIFIED.into())),
    ] {
        flows.add(NEIGHBOUR_LINKS, REFUSED, refused, DROPPED);
    }
    allow_neighbour_links(flows, MacAddress([0; 6]));
    for refused in [
        vec![Match::EthernetType(TYPE_ARP)],
        icmpv6(NEIGHBOUR_SOLICITATION).to_vec(),
        icmpv6(NEIGHBOUR_ADVERTISEMENT).to_vec(),
    ] {
        flows.add(NEIGHBOUR_LINKS, ALLOWED - 1, refused, DROPPED);
    }
    for kind in [TYPE_IPV4, TYPE_IPV6] {
        flows.add(NEIGHBOUR_LINKS, OTHERWISE, [Match::EthernetType(kind)], Action::Table(SOURCES));
    }
}

/// Lets neighbour messages through whose link address option is this one.
fn allow_neighbour_links(flows: &mut FlowSet, mac: MacAddress) {
    let asks = with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdSourceLink(mac));
    flows.add(NEIGHBOUR_LINKS, ALLOWED, asks, Action::Table(SOURCES));
    let tells = with(neighbours(NEIGHBOUR_ADVERTISEMENT), Match::NdTargetLink(mac));
    flows.add(NEIGHBOUR_LINKS, ALLOWED, tells, Action::Table(SOURCES));
}

fn common_sources(flows: &mut FlowSet) {
    let unspecified_v4 = Match::Ipv4Source(Ipv4Addr::UNSPECIFIED.into());
    let asks = udp(TYPE_IPV4, Match::UdpDestination(Ports::exactly(DHCP_SERVER)));
    let asks = with(with(asks, Match::UdpSource(DHCP_CLIENT)), unspecified_v4);
    flows.add(SOURCES, ALLOWED, asks, END);
    let listens = [Match::EthernetType(TYPE_IPV4), Match::IpProtocol(IGMP), unspecified_v4];
    flows.add(SOURCES, ALLOWED, listens, END);
    // Open vSwitch also reports an unspecified source for packets that it could not parse. In older releases these
    // include packets with much padding, which hosts cut off: such a packet may come from a DHCP server.
    let unread = [Match::EthernetType(TYPE_IPV4), unspecified_v4];
    flows.add(SOURCES, OTHERWISE + 1, unread, DROPPED);

    for kind in LISTENER_MESSAGES.into_iter().chain([ROUTER_SOLICITATION]) {
        flows.add(SOURCES, ALLOWED, with(icmpv6(kind), unspecified_v6()), END);
    }
    // A router solicitation may carry a link address that Open vSwitch does not read, so it is dropped. Every
    // kernel sends them repeatedly without a fault of the pod, so they are not counted.
    flows.add(SOURCES, ALLOWED - 1, icmpv6(ROUTER_SOLICITATION), Action::Drop);
    flows.add(SOURCES, REFUSED - 1, icmpv6(NEIGHBOUR_ADVERTISEMENT), DROPPED);
    // The unspecified address belongs to no host, even if a prefix of the port covers it.
    let unspecified = [Match::EthernetType(TYPE_IPV6), unspecified_v6()];
    flows.add(SOURCES, OTHERWISE + 1, unspecified, DROPPED);
    flows.add(NEIGHBOURS, OTHERWISE + 1, unspecified, DROPPED);
}

/// The flows of one port's guard, all with that cookie.
pub(super) fn flows(port: u32, cookie: u64, guard: &Guard) -> BTreeSet<Flow> {
    let mut flows = FlowSet::of_port(cookie, port);
    flows.add(0, FIRST, [], Action::Table(TAGS));
    flows.add(DROPS, REST, [], Action::Drop);
    for vlan in &guard.trunk {
        let tag = Match::Vlan(VlanMatch::Id(*vlan));
        flows.add(TAGS, ALLOWED, [tag], Action::Table(MACS));
    }
    match &guard.senders {
        Senders::Any => flows.add(MACS, ALLOWED, [], END),
        Senders::MacAddresses(macs) => {
            for mac in macs {
                flows.add(MACS, ALLOWED, [Match::EthernetSource(*mac)], END);
            }
        }
        Senders::Hosts { macs, addresses } => {
            for mac in macs {
                allow_link_addresses_of(&mut flows, *mac, &guard.trunk);
            }
            allow_addresses(&mut flows, &Addresses::of(macs, addresses.as_ref()));
        }
    }
    flows.all()
}

fn allow_link_addresses_of(flows: &mut FlowSet, mac: MacAddress, trunk: &BTreeSet<u16>) {
    let is_from = Match::EthernetSource(mac);
    // Addresses in a VLAN of the trunk are not checked.
    for vlan in trunk {
        flows.add(MACS, REFUSED, [is_from, Match::Vlan(VlanMatch::Id(*vlan))], END);
    }
    flows.add(MACS, ALLOWED, [is_from], Action::Table(NEIGHBOUR_LINKS));
    let arp = [Match::EthernetType(TYPE_ARP), Match::ArpSenderMac(mac)];
    flows.add(NEIGHBOUR_LINKS, ALLOWED, arp, Action::Table(SOURCES));
    allow_neighbour_links(flows, mac);
}

/// The addresses that hosts behind a port may use.
struct Addresses {
    are_known: bool,
    v4: Vec<Ipv4Network>,
    v6: Vec<Ipv6Network>,
}

impl Addresses {
    /// The given addresses and the IPv6 link-local ones of `macs`. `None`: any address.
    fn of(macs: &BTreeSet<MacAddress>, addresses: Option<&BTreeSet<IpNetwork>>) -> Self {
        let Some(addresses) = addresses else {
            return Self {
                are_known: false,
                v4: Ipv4Network::new(Ipv4Addr::UNSPECIFIED, 0).into_iter().collect(),
                v6: Ipv6Network::new(Ipv6Addr::UNSPECIFIED, 0).into_iter().collect(),
            };
        };
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpNetwork::V4(address) => v4.push(*address),
                IpNetwork::V6(address) => v6.push(*address),
            }
        }
        v6.extend(macs.iter().map(|mac| Ipv6Network::from(mac.link_local())));
        Self { are_known: true, v4, v6 }
    }
}

fn allow_addresses(flows: &mut FlowSet, addresses: &Addresses) {
    for address in &addresses.v4 {
        allow_ipv4(flows, *address);
    }
    for address in &addresses.v6 {
        allow_ipv6(flows, *address);
    }
    // A host with known addresses has its routes from the attach. Others may need router advertisements.
    if !addresses.are_known {
        flows.add(SOURCES, ALLOWED, icmpv6(ROUTER_SOLICITATION), END);
    }
}

/// An ARP probe has an unspecified sender and announces that the host is about to use the target.
fn allow_ipv4(flows: &mut FlowSet, address: Ipv4Network) {
    let is_from = [Match::EthernetType(TYPE_IPV4), Match::Ipv4Source(address)];
    flows.add(SOURCES, OTHERWISE, is_from, END);
    let arp = Match::EthernetType(TYPE_ARP);
    flows.add(SOURCES, OTHERWISE, [arp, Match::ArpSenderAddress(address)], END);
    let unspecified = Match::ArpSenderAddress(Ipv4Addr::UNSPECIFIED.into());
    let probes = [arp, unspecified, Match::ArpTargetAddress(address)];
    flows.add(SOURCES, OTHERWISE, probes, END);
}

fn allow_ipv6(flows: &mut FlowSet, address: Ipv6Network) {
    let takes = with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdTarget(address));
    flows.add(SOURCES, ALLOWED, with(takes, unspecified_v6()), END);
    let tells = with(neighbours(NEIGHBOUR_ADVERTISEMENT), Match::NdTarget(address));
    flows.add(SOURCES, REFUSED, tells, Action::Table(NEIGHBOURS));
    let is_from = [Match::EthernetType(TYPE_IPV6), Match::Ipv6Source(address)];
    flows.add(SOURCES, OTHERWISE, is_from, END);
    flows.add(NEIGHBOURS, OTHERWISE, is_from, END);
}

/// Matches the unspecified source, which a host without an address uses.
fn unspecified_v6() -> Match {
    Match::Ipv6Source(Ipv6Addr::UNSPECIFIED.into())
}

pub(super) fn with(matches: impl IntoIterator<Item = Match>, one_more: Match) -> Vec<Match> {
    matches.into_iter().chain([one_more]).collect()
}

pub(super) fn udp(kind: u16, port: Match) -> [Match; 3] {
    [Match::EthernetType(kind), Match::IpProtocol(UDP), port]
}

fn icmpv4(kind: u8) -> [Match; 3] {
    [Match::EthernetType(TYPE_IPV4), Match::IpProtocol(ICMP), Match::Icmpv4Type(kind)]
}

pub(super) fn icmpv6(kind: u8) -> [Match; 3] {
    [Match::EthernetType(TYPE_IPV6), Match::IpProtocol(ICMPV6), Match::Icmpv6Type(kind)]
}

/// The kernel's datapath parses the body of neighbour messages only if their code was matched. Hosts discard
/// messages with another code (RFC 4861, sections 7.1.1 and 7.1.2).
fn neighbours(kind: u8) -> Vec<Match> {
    with(icmpv6(kind), Match::Icmpv6Code(0))
}
