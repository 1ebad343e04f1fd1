//! A network's `allow` rules as flows. Open vSwitch goes through these tables:
//!
//! | table | handles | passes to |
//! | --- | --- | --- |
//! | `SENT` | frames from the pod, after its guard: looks their connection up | `OPENED` |
//! | `OPENED` | frames from the pod: commits a new connection | `RECEIVED` |
//! | 0 | frames to the pod from ports that are not pods' | `RECEIVED` |
//! | `RECEIVED` | frames to the pod: passes link protocols, looks up the connection of the rest | the end, or `RULES` |
//! | `RULES` | frames to the pod: passes known connections, commits new ones that a rule allows | the end, or `LET_IN` |
//! | `LET_IN` | frames to the pod whose connection was committed | the end |
//!
//! Guards of all ports lead through these tables, because another port may have rules. Flows of the bridge contain
//! what is the same for all ports, so a port without rules has no flow here. The end is `NORMAL`. The pod's MAC
//! address is matched in any VLAN, because another program's bridge may remove tags first. Each port has a
//! conntrack zone of its own, the port's number; the zone is flushed with the port's flows. The first packet of a
//! connection goes through two lookups: later packets are not committed again, which cards can't do.

use std::{collections::BTreeSet, net::IpAddr};

use ipnetwork::IpNetwork;
use netlink::MacAddress;
use openflow::{Action, Connection, Flow, Match, Ports};

use super::{
    flow_set::{ALLOWED, FlowSet, OTHERWISE, REFUSED, REST},
    guard::{icmpv6, udp, with},
    protocols::{
        DHCP_CLIENT, DHCP_SERVER, DHCPV6_CLIENT, ICMP, ICMPV6, IGMP, NEIGHBOUR_ADVERTISEMENT,
        NEIGHBOUR_SOLICITATION, REDIRECT, ROUTER_ADVERTISEMENT, TYPE_ARP, TYPE_IPV4, TYPE_IPV6,
        UDP,
    },
    tables::{FIRST, LET_IN, OPENED, RECEIVED, RULES, SENT},
};
use crate::driver::Unsupported;
use model::{AllowedProtocol, IngressRule, PortSettings, allow::MOST_COMBINATIONS};

/// The priority in table 0: below flows for frames from pods' ports, above other programs' flows.
pub(super) const TO_PODS: u16 = FIRST - 1;

/// The priority of frames to pods without rules: below flows about pods with rules.
const NO_RULES: u16 = 0;

/// The multicast bit of MAC addresses.
const GROUP: MacAddress = MacAddress([1, 0, 0, 0, 0, 0]);

const DHCPV6_SERVER: u16 = 547;
const LISTENER_QUERY: u8 = 130;
/// Messages that routers and neighbours send to a pod unasked.
const UNASKED: [u8; 5] = [
    LISTENER_QUERY,
    ROUTER_ADVERTISEMENT,
    NEIGHBOUR_SOLICITATION,
    NEIGHBOUR_ADVERTISEMENT,
    REDIRECT,
];

/// The flows that are the same for all ports, with or without rules.
pub(super) fn common_flows(cookie: u64) -> BTreeSet<Flow> {
    let mut flows = FlowSet::of_bridge(cookie);
    for table in [SENT, OPENED] {
        flows.add(table, REST, [], Action::Table(RECEIVED));
    }
    let of_links = [
        vec![Match::EthernetType(TYPE_ARP)],
        vec![Match::EthernetType(TYPE_IPV4), Match::IpProtocol(IGMP)],
        // Replies of a DHCP server have no connection: the request was broadcast.
        dhcp(TYPE_IPV4, DHCP_SERVER, DHCP_CLIENT),
        dhcp(TYPE_IPV6, DHCPV6_SERVER, DHCPV6_CLIENT),
    ];
    let unasked = UNASKED.map(|kind| icmpv6(kind).to_vec());
    for needed in of_links.into_iter().chain(unasked) {
        flows.add(RECEIVED, ALLOWED, needed, Action::Normal);
    }
    flows.add(RECEIVED, NO_RULES, [], Action::Normal);
    for kind in [TYPE_IPV4, TYPE_IPV6] {
        for known in [Connection::Established, Connection::Related] {
            let known = [Match::EthernetType(kind), Match::Connection(known)];
            flows.add(RULES, ALLOWED, known, Action::Normal);
        }
    }
    flows.add(LET_IN, REST, [], Action::Normal);
    flows.all()
}

/// The flows of a port's rules, all with that cookie. Empty without rules.
pub(super) fn flows(port: u32, cookie: u64, settings: &PortSettings) -> BTreeSet<Flow> {
    let mut flows = FlowSet::of_bridge(cookie);
    if let Some(ingress_rules) = &settings.ingress_rules {
        // The switch numbers ports by 16 bits.
        let zone = u16::try_from(port).unwrap_or(u16::MAX);
        let to = Match::EthernetDestination(settings.mac, MacAddress::BROADCAST);
        of_sent(&mut flows, Match::InPort(port), zone);
        of_groups(&mut flows, settings);
        of_received(&mut flows, to, zone);
        of_rules(&mut flows, to, zone, ingress_rules);
    }
    flows.all()
}

fn of_sent(flows: &mut FlowSet, from: Match, zone: u16) {
    for kind in [TYPE_IPV4, TYPE_IPV6] {
        let kind = Match::EthernetType(kind);
        let looked_up = Action::Track { zone, table: OPENED };
        flows.add(SENT, ALLOWED, [from, kind], looked_up);
        let opens = [from, kind, Match::Connection(Connection::New)];
        flows.add(OPENED, ALLOWED, opens, Action::Remember { zone, table: RECEIVED });
    }
}

/// Drops frames to an address of the pod and a multicast MAC address: legitimate senders never send these, and the
/// rules, which match the pod's MAC address, would not see them.
fn of_groups(flows: &mut FlowSet, settings: &PortSettings) {
    let link_local = IpAddr::V6(settings.mac.link_local());
    for address in settings.addresses.iter().chain([&link_local]) {
        let to = match address {
            IpAddr::V4(address) => Match::Ipv4Destination((*address).into()),
            IpAddr::V6(address) => Match::Ipv6Destination((*address).into()),
        };
        let kind = Match::EthernetType(if address.is_ipv4() { TYPE_IPV4 } else { TYPE_IPV6 });
        let matches = [Match::EthernetDestination(GROUP, GROUP), kind, to];
        flows.add(0, TO_PODS, matches, Action::Drop);
        flows.add(RECEIVED, REFUSED, matches, Action::Drop);
    }
}

fn of_received(flows: &mut FlowSet, to: Match, zone: u16) {
    flows.add(0, TO_PODS, [to], Action::Table(RECEIVED));
    for kind in [TYPE_IPV4, TYPE_IPV6] {
        let looked_up = Action::Track { zone, table: RULES };
        flows.add(RECEIVED, OTHERWISE, [to, Match::EthernetType(kind)], looked_up);
    }
    flows.add(RECEIVED, REST, [to], Action::Drop);
}

fn of_rules(flows: &mut FlowSet, to: Match, zone: u16, ingress_rules: &[IngressRule]) {
    for rule in ingress_rules.iter().flat_map(matches) {
        let opens = rule.into_iter().chain([to, Match::Connection(Connection::New)]);
        flows.add(RULES, OTHERWISE, opens, Action::Remember { zone, table: LET_IN });
    }
    // One flow per port, so that its packet counter is the port's.
    flows.add(RULES, REST, [to], Action::Drop);
}

fn dhcp(kind: u16, from: u16, to: u16) -> Vec<Match> {
    with(udp(kind, Match::UdpDestination(Ports::exactly(to))), Match::UdpSource(from))
}

/// The matches for packets that the rule allows: one list for each combination of prefix and block of ports.
fn matches(rule: &IngressRule) -> Vec<Vec<Match>> {
    let blocks = || rule.ports.iter().flat_map(|range| range.blocks());
    let ports: Vec<_> = blocks().map(|(value, mask)| Some(Ports { value, mask })).collect();
    let ports = if ports.is_empty() { vec![None] } else { ports };
    let of_source = |(kind, source): (u16, Option<Match>)| {
        let protocol = rule.protocol;
        let of_ports = move |ports: &Option<Ports>| {
            let number = protocol.map(|protocol| Match::IpProtocol(number(protocol, kind)));
            let ports =
                protocol.zip(*ports).and_then(|(protocol, ports)| to_ports(protocol, ports));
            [Some(Match::EthernetType(kind)), source, number, ports].into_iter().flatten().collect()
        };
        ports.iter().map(of_ports).collect::<Vec<Vec<Match>>>()
    };
    sources(rule).into_iter().flat_map(of_source).collect()
}

/// The IP families with one prefix each. `None`: all of the family.
fn sources(rule: &IngressRule) -> Vec<(u16, Option<Match>)> {
    let Some(from) = &rule.from else { return vec![(TYPE_IPV4, None), (TYPE_IPV6, None)] };
    let source = |prefix: &IpNetwork| match prefix {
        IpNetwork::V4(prefix) => (TYPE_IPV4, Some(Match::Ipv4Source(*prefix))),
        IpNetwork::V6(prefix) => (TYPE_IPV6, Some(Match::Ipv6Source(*prefix))),
    };
    from.iter().map(source).collect()
}

const fn number(protocol: AllowedProtocol, kind: u16) -> u8 {
    match protocol {
        AllowedProtocol::Tcp => 6,
        AllowedProtocol::Udp => UDP,
        AllowedProtocol::Sctp => 132,
        AllowedProtocol::Icmp if kind == TYPE_IPV4 => ICMP,
        AllowedProtocol::Icmp => ICMPV6,
    }
}

const fn to_ports(protocol: AllowedProtocol, ports: Ports) -> Option<Match> {
    match protocol {
        AllowedProtocol::Tcp => Some(Match::TcpDestination(ports)),
        AllowedProtocol::Udp => Some(Match::UdpDestination(ports)),
        AllowedProtocol::Sctp => Some(Match::SctpDestination(ports)),
        AllowedProtocol::Icmp => None,
    }
}

/// Refuses rules that need more flows than a port may have. The prefixes of other networks in the rules can grow
/// after the rules were applied.
pub(super) fn check(settings: &PortSettings) -> Result<(), Unsupported> {
    let combinations =
        settings.ingress_rules.iter().flatten().map(IngressRule::combinations).sum::<usize>();
    if combinations <= MOST_COMBINATIONS {
        return Ok(());
    }
    let why = format!(
        "it comes to {combinations} combinations of a prefix and a block of ports, and {MOST_COMBINATIONS} are the \
         most; name fewer networks, or wider prefixes"
    );
    Err(Unsupported::new("allow", why))
}

/// A sentence for people. `None`: the network has no rules.
pub(super) fn describe(settings: &PortSettings) -> Option<String> {
    let ingress_rules = settings.ingress_rules.as_ref()?;
    if ingress_rules.is_empty() {
        return Some("no connection to it is allowed".into());
    }
    let all: Vec<_> = ingress_rules.iter().map(ToString::to_string).collect();
    Some(format!("connections to it: {}", all.join(", ")))
}
