//! A port's guard as flows, which Open vSwitch asks one table after the other:
//!
//! | table | asks | lets pass to |
//! | --- | --- | --- |
//! | 0 | from which port | `TAGS` |
//! | `TAGS` | to a group that may be forwarded, with the right tag or none | `STATIONS` |
//! | `STATIONS` | from a station of the port's | the end, or `CLAIMS` |
//! | `CLAIMS` | what ARP and neighbour discovery tell of links; no router, no DHCP server | `SOURCES` |
//! | `SOURCES` | from an address of the pod's, or from none where that is meant | the end, or `NEIGHBOURS` |
//! | `NEIGHBOURS` | for advertisements, whose target was asked for, likewise the source | the end |
//!
//! The end is the first table of `openings.rs`: after those the bridge forwards, as it does for ports that are not
//! ours. What no flow of a table lets pass goes to `DROPS`, where one flow for each port drops it, and counts. What is
//! refused to all ports, or let pass to all, flows of the bridge tell; a port has the few that are about itself, as the
//! daemon takes some 20 µs for each.
//!
//! Open vSwitch looks behind extensions of IPv6 by itself, and of fragments it knows the source of all and the rest of
//! the first, once it was told to read that (ovs-fields(7), `nx-match`). Options it reads of neighbours' messages, not of hosts' questions for routers.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use netlink::{Guard, MacAddress, Senders};
use openflow::{Action, Flow, Match, Ports, VlanMatch};

use super::{
    flow_set::{ALLOWED, FlowSet, OTHERWISE, REFUSED, REST},
    openings::SENT,
};

/// The tables are not among the first, which others use, should the bridge be theirs.
pub(super) const TAGS: u8 = 240;
const STATIONS: u8 = 241;
const CLAIMS: u8 = 242;
const SOURCES: u8 = 243;
const NEIGHBOURS: u8 = 244;
pub(super) const DROPS: u8 = 249;

/// Above what others have in the first table: they must not let pass what is not looked at.
pub(super) const FIRST: u16 = 65_000;

/// Dropped, and counted.
const DROPPED: Action = Action::Table(DROPS);
/// Let pass.
const END: Action = Action::Table(SENT);

pub(super) const TYPE_IPV4: u16 = 0x0800;
pub(super) const TYPE_ARP: u16 = 0x0806;
pub(super) const TYPE_IPV6: u16 = 0x86dd;
/// What Open vSwitch takes for the type of frames of 802.2. Those of SNAP that have the type of an Ethernet frame it
/// takes for such a frame (ovs-fields(7), `eth_type`).
const TYPE_802_2: u16 = 0x05ff;
/// The types of tags behind the one that was looked at, or that is none for Open vSwitch.
const TAG_TYPES: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];

pub(super) const ICMP: u8 = 1;
pub(super) const IGMP: u8 = 2;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;

const ROUTER_SOLICITATION: u8 = 133;
pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(super) const REDIRECT: u8 = 137;
/// Who listens to which groups: reports of both versions, and the end of one.
const LISTENER_MESSAGES: [u8; 3] = [131, 132, 143];

pub(super) const DHCP_SERVER: u16 = 67;
pub(super) const DHCP_CLIENT: u16 = 68;
pub(super) const DHCPV6_CLIENT: u16 = 546;

/// Groups that no bridge forwards, each with the bits that make it one: IEEE's, and Cisco's.
const LINK_LOCAL: [(MacAddress, MacAddress); 2] = [
    (MacAddress([0x01, 0x80, 0xc2, 0, 0, 0]), MacAddress([0xff, 0xff, 0xff, 0xff, 0xff, 0xf0])),
    (
        MacAddress([0x01, 0, 0x0c, 0xcc, 0xcc, 0xcc]),
        MacAddress([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]),
    ),
];

/// What is the same for all ports, whatever their guards: each has a flow in the first table that leads here.
pub(super) fn common_flows(cookie: u64) -> BTreeSet<Flow> {
    let mut flows = FlowSet::of_bridge(cookie);
    common_tags(&mut flows);
    common_claims(&mut flows);
    common_sources(&mut flows);
    for table in [TAGS, STATIONS, SOURCES, NEIGHBOURS] {
        flows.add(table, REST, [], DROPPED);
    }
    flows.add(CLAIMS, REST, [], END);
    flows.all()
}

fn common_tags(flows: &mut FlowSet) {
    for (group, mask) in LINK_LOCAL {
        flows.add(TAGS, REFUSED, [Match::EthernetDestination(group, mask)], DROPPED);
    }
    for kind in TAG_TYPES {
        flows.add(TAGS, REFUSED, [Match::EthernetType(kind)], DROPPED);
    }
    // A tag that tells a priority and no VLAN is none.
    for tag in [VlanMatch::Id(0), VlanMatch::Untagged] {
        flows.add(TAGS, ALLOWED, [Match::Vlan(tag)], Action::Table(STATIONS));
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
        // A packet in one is not looked at.
        vec![Match::EthernetType(TYPE_802_2)],
        // Open vSwitch makes nothing of options that contradict each other, nor of the target then.
        with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdTarget(Ipv6Addr::UNSPECIFIED.into())),
        with(neighbours(NEIGHBOUR_ADVERTISEMENT), Match::NdTarget(Ipv6Addr::UNSPECIFIED.into())),
    ] {
        flows.add(CLAIMS, REFUSED, refused, DROPPED);
    }
    claim_links(flows, MacAddress([0; 6]));
    for refused in [
        vec![Match::EthernetType(TYPE_ARP)],
        icmpv6(NEIGHBOUR_SOLICITATION).to_vec(),
        icmpv6(NEIGHBOUR_ADVERTISEMENT).to_vec(),
    ] {
        flows.add(CLAIMS, ALLOWED - 1, refused, DROPPED);
    }
    for kind in [TYPE_IPV4, TYPE_IPV6] {
        flows.add(CLAIMS, OTHERWISE, [Match::EthernetType(kind)], Action::Table(SOURCES));
    }
}

/// A neighbour may tell that its link has this address.
fn claim_links(flows: &mut FlowSet, mac: MacAddress) {
    let asks = with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdSourceLink(mac));
    flows.add(CLAIMS, ALLOWED, asks, Action::Table(SOURCES));
    let tells = with(neighbours(NEIGHBOUR_ADVERTISEMENT), Match::NdTargetLink(mac));
    flows.add(CLAIMS, ALLOWED, tells, Action::Table(SOURCES));
}

fn common_sources(flows: &mut FlowSet) {
    let nobody_v4 = Match::Ipv4Source(Ipv4Addr::UNSPECIFIED.into());
    let asks = udp(TYPE_IPV4, Match::UdpDestination(Ports::exactly(DHCP_SERVER)));
    let asks = with(with(asks, Match::UdpSource(DHCP_CLIENT)), nobody_v4);
    flows.add(SOURCES, ALLOWED, asks, END);
    let listens = [Match::EthernetType(TYPE_IPV4), Match::IpProtocol(IGMP), nobody_v4];
    flows.add(SOURCES, ALLOWED, listens, END);
    // From nobody is also what Open vSwitch could not read, in its older releases a packet with much behind its end,
    // which hosts cut off: it may be of a DHCP server.
    let unread = [Match::EthernetType(TYPE_IPV4), nobody_v4];
    flows.add(SOURCES, OTHERWISE + 1, unread, DROPPED);

    for kind in LISTENER_MESSAGES.into_iter().chain([ROUTER_SOLICITATION]) {
        flows.add(SOURCES, ALLOWED, with(icmpv6(kind), nobody_v6()), END);
    }
    // Nobody here can see whose link it tells. Every kernel asks, and goes on asking, without meaning any harm: that is
    // not counted.
    flows.add(SOURCES, ALLOWED - 1, icmpv6(ROUTER_SOLICITATION), Action::Drop);
    flows.add(SOURCES, REFUSED - 1, icmpv6(NEIGHBOUR_ADVERTISEMENT), DROPPED);
    // Nobody is no host, whatever addresses these may have.
    let unspecified = [Match::EthernetType(TYPE_IPV6), nobody_v6()];
    flows.add(SOURCES, OTHERWISE + 1, unspecified, DROPPED);
    flows.add(NEIGHBOURS, OTHERWISE + 1, unspecified, DROPPED);
}

/// The flows of a port's guard, all with that cookie.
pub(super) fn flows(port: u32, cookie: u64, guard: &Guard) -> BTreeSet<Flow> {
    let mut flows = FlowSet::of_port(cookie, port);
    flows.add(0, FIRST, [], Action::Table(TAGS));
    flows.add(DROPS, REST, [], Action::Drop);
    for vlan in &guard.trunk {
        let tag = Match::Vlan(VlanMatch::Id(*vlan));
        flows.add(TAGS, ALLOWED, [tag], Action::Table(STATIONS));
    }
    match &guard.senders {
        Senders::Any => flows.add(STATIONS, ALLOWED, [], END),
        Senders::Stations(stations) => {
            for station in stations {
                flows.add(STATIONS, ALLOWED, [Match::EthernetSource(*station)], END);
            }
        }
        Senders::Hosts { stations, addresses } => {
            for station in stations {
                let_station_claim(&mut flows, *station, &guard.trunk);
            }
            let_claim_addresses(&mut flows, &Addresses::of(stations, addresses.as_ref()));
        }
    }
    flows.all()
}

fn let_station_claim(flows: &mut FlowSet, station: MacAddress, trunk: &BTreeSet<u16>) {
    let is_from = Match::EthernetSource(station);
    // In a VLAN of the trunk it has whatever addresses it likes.
    for vlan in trunk {
        flows.add(STATIONS, REFUSED, [is_from, Match::Vlan(VlanMatch::Id(*vlan))], END);
    }
    flows.add(STATIONS, ALLOWED, [is_from], Action::Table(CLAIMS));
    let claim = [Match::EthernetType(TYPE_ARP), Match::ArpSenderMac(station)];
    flows.add(CLAIMS, ALLOWED, claim, Action::Table(SOURCES));
    claim_links(flows, station);
}

/// What hosts may call themselves.
struct Addresses {
    are_known: bool,
    v4: Vec<Ipv4Network>,
    v6: Vec<Ipv6Network>,
}

impl Addresses {
    /// With the link-local ones of IPv6. `None`: any.
    fn of(stations: &BTreeSet<MacAddress>, addresses: Option<&BTreeSet<IpNetwork>>) -> Self {
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
        v6.extend(stations.iter().map(|station| Ipv6Network::from(station.link_local())));
        Self { are_known: true, v4, v6 }
    }
}

fn let_claim_addresses(flows: &mut FlowSet, addresses: &Addresses) {
    for address in &addresses.v4 {
        let_claim_ipv4(flows, *address);
    }
    for address in &addresses.v6 {
        let_claim_ipv6(flows, *address);
    }
    // A host whose addresses are known has been given its routes, too.
    if !addresses.are_known {
        flows.add(SOURCES, ALLOWED, icmpv6(ROUTER_SOLICITATION), END);
    }
}

/// A probe of ARP, which has no sender, tells everybody that somebody is about to take the target.
fn let_claim_ipv4(flows: &mut FlowSet, address: Ipv4Network) {
    let is_from = [Match::EthernetType(TYPE_IPV4), Match::Ipv4Source(address)];
    flows.add(SOURCES, OTHERWISE, is_from, END);
    let arp = Match::EthernetType(TYPE_ARP);
    flows.add(SOURCES, OTHERWISE, [arp, Match::ArpSenderAddress(address)], END);
    let nobody = Match::ArpSenderAddress(Ipv4Addr::UNSPECIFIED.into());
    let probes = [arp, nobody, Match::ArpTargetAddress(address)];
    flows.add(SOURCES, OTHERWISE, probes, END);
}

fn let_claim_ipv6(flows: &mut FlowSet, address: Ipv6Network) {
    let takes = with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdTarget(address));
    flows.add(SOURCES, ALLOWED, with(takes, nobody_v6()), END);
    let tells = with(neighbours(NEIGHBOUR_ADVERTISEMENT), Match::NdTarget(address));
    flows.add(SOURCES, REFUSED, tells, Action::Table(NEIGHBOURS));
    let is_from = [Match::EthernetType(TYPE_IPV6), Match::Ipv6Source(address)];
    flows.add(SOURCES, OTHERWISE, is_from, END);
    flows.add(NEIGHBOURS, OTHERWISE, is_from, END);
}

/// The source of a host that has no address yet.
fn nobody_v6() -> Match {
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

/// What is in messages to neighbours counts in the kernel's datapath only if their code was asked for, and no host
/// reads one with another code (RFC 4861, sections 7.1.1 and 7.1.2).
fn neighbours(kind: u8) -> Vec<Match> {
    with(icmpv6(kind), Match::Icmpv6Code(0))
}
