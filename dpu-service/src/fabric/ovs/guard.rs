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
//! The end is what the port's settings say, in `openings.rs`: after it the bridge forwards, as it does for ports that
//! are not ours. What no flow of a table lets pass goes to `DROPS`, where one flow for each port drops it, and counts.
//! Open vSwitch looks behind extensions of IPv6 by itself, and
//! of fragments it knows the source of all and the rest of the first (ovs-fields(7)). Options it reads of neighbours'
//! messages, not of hosts' questions for routers.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use netlink::{Guard, MacAddress, Senders};
use openflow::{Action, Flow, Match, Ports, VlanMatch};

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

// Within our tables: what is refused before it is let pass, what is let pass, what of the rest, and the rest.
pub(super) const REFUSED: u16 = 40;
pub(super) const ALLOWED: u16 = 30;
pub(super) const OTHERWISE: u16 = 20;
pub(super) const REST: u16 = 10;

pub(super) const TYPE_IPV4: u16 = 0x0800;
pub(super) const TYPE_ARP: u16 = 0x0806;
pub(super) const TYPE_IPV6: u16 = 0x86dd;
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

/// The flows of a port's guard, all with that cookie, and what becomes of what they let pass.
pub(super) fn flows(port: u32, cookie: u64, guard: &Guard, end: Action) -> BTreeSet<Flow> {
    let mut flows = Flows { port, cookie, end, all: BTreeSet::new() };
    flows.add(0, FIRST, [], Action::Table(TAGS));
    flows.add(DROPS, REST, [], Action::Drop);
    flows.of_tags(&guard.trunk);
    match &guard.senders {
        Senders::Any => flows.add(STATIONS, ALLOWED, [], end),
        Senders::Stations(stations) => flows.of_stations(stations, end),
        Senders::Hosts { stations, addresses } => {
            flows.of_trunk(stations, &guard.trunk);
            flows.of_stations(stations, Action::Table(CLAIMS));
            flows.of_claims(stations);
            flows.of_sources(&Addresses::of(stations, addresses.as_ref()));
        }
    }
    flows.all
}

struct Flows {
    port: u32,
    cookie: u64,
    end: Action,
    all: BTreeSet<Flow>,
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

impl Flows {
    fn add(
        &mut self,
        table: u8,
        priority: u16,
        matches: impl IntoIterator<Item = Match>,
        action: Action,
    ) {
        let own = Match::InPort(self.port);
        let matches = matches.into_iter().filter(|it| !is_about_anything(it));
        let matches = matches.chain([own]).collect();
        self.all.insert(Flow { table, priority, cookie: self.cookie, matches, action });
    }

    fn of_tags(&mut self, trunk: &BTreeSet<u16>) {
        for (group, mask) in LINK_LOCAL {
            let to_group = Match::EthernetDestination(group, mask);
            self.add(TAGS, REFUSED, [to_group], DROPPED);
        }
        for kind in TAG_TYPES {
            self.add(TAGS, REFUSED, [Match::EthernetType(kind)], DROPPED);
        }
        // A tag that tells a priority and no VLAN is none.
        let tags = trunk.iter().chain([&0]).map(|vlan| VlanMatch::Id(*vlan));
        for tag in tags.chain([VlanMatch::Untagged]) {
            self.add(TAGS, ALLOWED, [Match::Vlan(tag)], Action::Table(STATIONS));
        }
        self.add(TAGS, REST, [], DROPPED);
    }

    fn of_stations(&mut self, stations: &BTreeSet<MacAddress>, then: Action) {
        for station in stations {
            self.add(STATIONS, ALLOWED, [Match::EthernetSource(*station)], then);
        }
        self.add(STATIONS, REST, [], DROPPED);
    }

    /// In a VLAN of the trunk they have whatever addresses they like.
    fn of_trunk(&mut self, stations: &BTreeSet<MacAddress>, trunk: &BTreeSet<u16>) {
        for (station, vlan) in
            stations.iter().flat_map(|station| trunk.iter().map(move |vlan| (*station, *vlan)))
        {
            let matches = [Match::EthernetSource(station), Match::Vlan(VlanMatch::Id(vlan))];
            self.add(STATIONS, REFUSED, matches, self.end);
        }
    }

    fn of_claims(&mut self, stations: &BTreeSet<MacAddress>) {
        for refused in [
            udp(TYPE_IPV4, Match::UdpDestination(Ports::exactly(DHCP_CLIENT))).to_vec(),
            udp(TYPE_IPV6, Match::UdpDestination(Ports::exactly(DHCPV6_CLIENT))).to_vec(),
            icmpv4(ICMP_REDIRECT).to_vec(),
            icmpv4(ICMP_ROUTER_ADVERTISEMENT).to_vec(),
            icmpv6(ROUTER_ADVERTISEMENT).to_vec(),
            icmpv6(REDIRECT).to_vec(),
            // Open vSwitch makes nothing of options that contradict each other, nor of the target then.
            with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdTarget(Ipv6Addr::UNSPECIFIED.into())),
            with(
                neighbours(NEIGHBOUR_ADVERTISEMENT),
                Match::NdTarget(Ipv6Addr::UNSPECIFIED.into()),
            ),
        ] {
            self.add(CLAIMS, REFUSED, refused, DROPPED);
        }
        self.of_links(stations);
        for kind in [TYPE_IPV4, TYPE_IPV6] {
            self.add(CLAIMS, OTHERWISE, [Match::EthernetType(kind)], Action::Table(SOURCES));
        }
        self.add(CLAIMS, REST, [], self.end);
    }

    /// What tells the address of a link tells that of a station of theirs, or of none.
    fn of_links(&mut self, stations: &BTreeSet<MacAddress>) {
        const NONE: MacAddress = MacAddress([0; 6]);
        for station in stations {
            let claim = [Match::EthernetType(TYPE_ARP), Match::ArpSenderMac(*station)];
            self.add(CLAIMS, ALLOWED, claim, Action::Table(SOURCES));
        }
        for station in stations.iter().chain([&NONE]) {
            let own = Match::NdSourceLink(*station);
            let claim = with(neighbours(NEIGHBOUR_SOLICITATION), own);
            self.add(CLAIMS, ALLOWED, claim, Action::Table(SOURCES));
            let own = Match::NdTargetLink(*station);
            let claim = with(neighbours(NEIGHBOUR_ADVERTISEMENT), own);
            self.add(CLAIMS, ALLOWED, claim, Action::Table(SOURCES));
        }
        for refused in [
            vec![Match::EthernetType(TYPE_ARP)],
            icmpv6(NEIGHBOUR_SOLICITATION).to_vec(),
            icmpv6(NEIGHBOUR_ADVERTISEMENT).to_vec(),
        ] {
            self.add(CLAIMS, ALLOWED - 1, refused, DROPPED);
        }
    }

    fn of_sources(&mut self, addresses: &Addresses) {
        for address in &addresses.v4 {
            self.of_ipv4(*address);
        }
        let nobody = Match::Ipv4Source(Ipv4Addr::UNSPECIFIED.into());
        let asks = udp(TYPE_IPV4, Match::UdpDestination(Ports::exactly(DHCP_SERVER)));
        let asks = with(with(asks, Match::UdpSource(DHCP_CLIENT)), nobody);
        self.add(SOURCES, ALLOWED, asks, self.end);
        let listens = [Match::EthernetType(TYPE_IPV4), Match::IpProtocol(IGMP), nobody];
        self.add(SOURCES, ALLOWED, listens, self.end);
        // From nobody is also what Open vSwitch could not read, in its older releases a packet with much behind its
        // end, which hosts cut off: it may be of a DHCP server.
        let unread = [Match::EthernetType(TYPE_IPV4), nobody];
        self.add(SOURCES, OTHERWISE + 1, unread, DROPPED);

        let nobody = Match::Ipv6Source(Ipv6Addr::UNSPECIFIED.into());
        for kind in LISTENER_MESSAGES.into_iter().chain([ROUTER_SOLICITATION]) {
            self.add(SOURCES, ALLOWED, with(icmpv6(kind), nobody), self.end);
        }
        // Nobody here can see whose link it tells. A host whose addresses are known has been given its routes, too.
        if addresses.are_known {
            self.add(SOURCES, ALLOWED - 1, icmpv6(ROUTER_SOLICITATION), DROPPED);
        }
        let advertises = neighbours(NEIGHBOUR_ADVERTISEMENT);
        self.add(SOURCES, REFUSED - 1, icmpv6(NEIGHBOUR_ADVERTISEMENT), DROPPED);
        for address in &addresses.v6 {
            let takes = with(neighbours(NEIGHBOUR_SOLICITATION), Match::NdTarget(*address));
            self.add(SOURCES, ALLOWED, with(takes, nobody), self.end);
            let tells = with(advertises.clone(), Match::NdTarget(*address));
            self.add(SOURCES, REFUSED, tells, Action::Table(NEIGHBOURS));
            let is_from = [Match::EthernetType(TYPE_IPV6), Match::Ipv6Source(*address)];
            self.add(SOURCES, OTHERWISE, is_from, self.end);
            self.add(NEIGHBOURS, OTHERWISE, is_from, self.end);
        }
        // Nobody is no host, whatever addresses these may have.
        let unspecified = [Match::EthernetType(TYPE_IPV6), nobody];
        self.add(SOURCES, OTHERWISE + 1, unspecified, DROPPED);
        self.add(NEIGHBOURS, OTHERWISE + 1, unspecified, DROPPED);
        self.add(SOURCES, REST, [], DROPPED);
        self.add(NEIGHBOURS, REST, [], DROPPED);
    }

    /// A probe of ARP, which has no sender, tells everybody that somebody is about to take the target.
    fn of_ipv4(&mut self, address: Ipv4Network) {
        let is_from = [Match::EthernetType(TYPE_IPV4), Match::Ipv4Source(address)];
        self.add(SOURCES, OTHERWISE, is_from, self.end);
        let arp = Match::EthernetType(TYPE_ARP);
        self.add(SOURCES, OTHERWISE, [arp, Match::ArpSenderAddress(address)], self.end);
        let nobody = Match::ArpSenderAddress(Ipv4Addr::UNSPECIFIED.into());
        let probes = [arp, nobody, Match::ArpTargetAddress(address)];
        self.add(SOURCES, OTHERWISE, probes, self.end);
    }
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

/// Whether every frame of its kind is like that.
pub(super) fn is_about_anything(it: &Match) -> bool {
    match it {
        Match::Ipv4Source(network)
        | Match::ArpSenderAddress(network)
        | Match::ArpTargetAddress(network) => network.prefix() == 0,
        Match::Ipv6Source(network) | Match::NdTarget(network) => network.prefix() == 0,
        _ => false,
    }
}
