//! Matches on the wire (OpenFlow 1.3.5, section 7.2.3).

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use ipnetwork::{Ipv4Network, Ipv6Network};
use netlink::MacAddress;

use crate::flow::{Connection, Match, Ports, VlanMatch};

/// The class of OpenFlow's own fields.
const BASIC: u16 = 0x8000;
/// The class of Open vSwitch's own fields.
const NICIRA: u16 = 1;

const IN_PORT: u8 = 0;
const ETH_DST: u8 = 3;
const ETH_SRC: u8 = 4;
const ETH_TYPE: u8 = 5;
const VLAN_VID: u8 = 6;
const IP_PROTO: u8 = 10;
const IPV4_SRC: u8 = 11;
const IPV4_DST: u8 = 12;
const TCP_DST: u8 = 14;
const UDP_SRC: u8 = 15;
const UDP_DST: u8 = 16;
const SCTP_DST: u8 = 18;
const ICMPV4_TYPE: u8 = 19;
const ARP_SPA: u8 = 22;
const ARP_TPA: u8 = 23;
const ARP_SHA: u8 = 24;
const IPV6_SRC: u8 = 26;
const IPV6_DST: u8 = 27;
const ICMPV6_TYPE: u8 = 29;
const ICMPV6_CODE: u8 = 30;
const IPV6_ND_TARGET: u8 = 31;
const IPV6_ND_SLL: u8 = 32;
const IPV6_ND_TLL: u8 = 33;
/// A field of the class `NICIRA`.
const CT_STATE: u8 = 105;

// Bits of the connection state (ovs-fields(7), "Connection Tracking Fields").
const NEW: u32 = 1;
const ESTABLISHED: u32 = 1 << 1;
const RELATED: u32 = 1 << 2;
const TRACKED: u32 = 1 << 5;

/// `OFPVID_PRESENT`: the frame has a tag.
const PRESENT: u16 = 0x1000;
/// The VLAN ID and the bit above.
const VLAN_BITS: u16 = 0x1fff;

/// A match field: class, number, value, and mask unless all bits count.
struct Field {
    class: u16,
    number: u8,
    value: Vec<u8>,
    mask: Option<Vec<u8>>,
}

/// Encodes matches in the order of field numbers, so that each field follows its prerequisites.
pub(crate) fn encode(matches: &BTreeSet<Match>) -> Vec<u8> {
    let mut fields: Vec<_> = matches.iter().filter_map(field).collect();
    fields.sort_by_key(|field| field.number);
    fields.iter().flat_map(bytes).collect()
}

fn field(wanted: &Match) -> Option<Field> {
    let exactly = |number, value: &[u8]| {
        Some(Field { class: BASIC, number, value: value.to_vec(), mask: None })
    };
    let ports = |number, ports: &Ports| {
        masked(number, ports.value.to_be_bytes().into(), ports.mask.to_be_bytes().into())
    };
    match wanted {
        Match::InPort(port) => exactly(IN_PORT, &port.to_be_bytes()),
        Match::EthernetDestination(MacAddress(mac), MacAddress(mask)) => {
            let mask = Some(mask.to_vec());
            Some(Field { class: BASIC, number: ETH_DST, value: mac.to_vec(), mask })
        }
        Match::EthernetSource(MacAddress(mac)) => exactly(ETH_SRC, mac),
        Match::EthernetType(kind) => exactly(ETH_TYPE, &kind.to_be_bytes()),
        Match::Vlan(VlanMatch::Untagged) => exactly(VLAN_VID, &[0, 0]),
        Match::Vlan(VlanMatch::Id(vlan)) => exactly(VLAN_VID, &(vlan | PRESENT).to_be_bytes()),
        Match::IpProtocol(protocol) => exactly(IP_PROTO, &[*protocol]),
        Match::Ipv4Source(network) => of_ipv4(IPV4_SRC, *network),
        Match::Ipv4Destination(network) => of_ipv4(IPV4_DST, *network),
        Match::TcpDestination(of) => ports(TCP_DST, of),
        Match::UdpSource(port) => exactly(UDP_SRC, &port.to_be_bytes()),
        Match::UdpDestination(of) => ports(UDP_DST, of),
        Match::SctpDestination(of) => ports(SCTP_DST, of),
        Match::Icmpv4Type(kind) => exactly(ICMPV4_TYPE, &[*kind]),
        Match::ArpSenderAddress(network) => of_ipv4(ARP_SPA, *network),
        Match::ArpTargetAddress(network) => of_ipv4(ARP_TPA, *network),
        Match::ArpSenderMac(MacAddress(mac)) => exactly(ARP_SHA, mac),
        Match::Ipv6Source(network) => of_ipv6(IPV6_SRC, *network),
        Match::Ipv6Destination(network) => of_ipv6(IPV6_DST, *network),
        Match::Icmpv6Type(kind) => exactly(ICMPV6_TYPE, &[*kind]),
        Match::Icmpv6Code(code) => exactly(ICMPV6_CODE, &[*code]),
        Match::NdTarget(network) => of_ipv6(IPV6_ND_TARGET, *network),
        Match::NdSourceLink(MacAddress(mac)) => exactly(IPV6_ND_SLL, mac),
        Match::NdTargetLink(MacAddress(mac)) => exactly(IPV6_ND_TLL, mac),
        Match::Connection(connection) => Some(of_connection(*connection)),
        Match::Other(_) => None,
    }
}

const fn bits(connection: Connection) -> u32 {
    match connection {
        Connection::New => TRACKED | NEW,
        Connection::Established => TRACKED | ESTABLISHED,
        Connection::Related => TRACKED | RELATED,
    }
}

fn of_connection(connection: Connection) -> Field {
    let bits = bits(connection).to_be_bytes().to_vec();
    Field { class: NICIRA, number: CT_STATE, value: bits.clone(), mask: Some(bits) }
}

/// `None`: any address matches, so the field is left out.
fn of_ipv4(number: u8, network: Ipv4Network) -> Option<Field> {
    let value = network.network().octets().to_vec();
    masked(number, value, network.mask().octets().to_vec())
}

fn of_ipv6(number: u8, network: Ipv6Network) -> Option<Field> {
    let value = network.network().octets().to_vec();
    masked(number, value, network.mask().octets().to_vec())
}

fn masked(number: u8, value: Vec<u8>, mask: Vec<u8>) -> Option<Field> {
    if mask.iter().all(|byte| *byte == 0) {
        return None;
    }
    let mask = Some(mask).filter(|mask| mask.iter().any(|byte| *byte != 0xff));
    Some(Field { class: BASIC, number, value, mask })
}

impl Field {
    fn body(&self) -> Vec<u8> {
        [&self.value[..], self.mask.as_deref().unwrap_or_default()].concat()
    }
}

fn bytes(field: &Field) -> Vec<u8> {
    let body = field.body();
    let has_mask = u8::from(field.mask.is_some());
    // The longest field is an IPv6 address with its mask.
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let head = [field.class.to_be_bytes(), [field.number << 1 | has_mask, length]].concat();
    [head, body].concat()
}

/// Decodes matches. `None`: the bytes are truncated.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<BTreeSet<Match>> {
    let mut matches = BTreeSet::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at_checked(usize::from(head[3]))?;
        matches.insert(read(*head, body));
        bytes = rest;
    }
    Some(matches)
}

fn read(head: [u8; 4], body: &[u8]) -> Match {
    let (number, has_mask) = (head[2] >> 1, head[2] & 1 == 1);
    let (value, mask) = match body.split_at(body.len() / 2) {
        (value, mask) if has_mask => (value, Some(mask)),
        _ => (body, None),
    };
    let known = match u16::from_be_bytes([head[0], head[1]]) {
        BASIC => basic(number, value, mask),
        NICIRA if number == CT_STATE && has_mask => connection(body),
        _ => None,
    };
    known.unwrap_or(Match::Other(u32::from_be_bytes(head)))
}

fn basic(number: u8, value: &[u8], mask: Option<&[u8]>) -> Option<Match> {
    let byte = || <[u8; 1]>::try_from(value).ok().map(|[byte]| byte);
    let half_of = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_be_bytes);
    let half = || half_of(value);
    let mac_of = |bytes: &[u8]| bytes.try_into().ok().map(MacAddress);
    let mac = || mac_of(value);
    let ports = || {
        let mask = mask.map_or(Some(u16::MAX), half_of)?;
        Some(Ports { value: half()?, mask })
    };
    let is_vlan = mask.is_none_or(|mask| mask == VLAN_BITS.to_be_bytes());
    Some(match number {
        ETH_DST => {
            let mask = mask.map_or(Some(MacAddress::BROADCAST), mac_of)?;
            Match::EthernetDestination(mac()?, mask)
        }
        VLAN_VID if is_vlan => Match::Vlan(vlan(half()?)?),
        TCP_DST => Match::TcpDestination(ports()?),
        UDP_DST => Match::UdpDestination(ports()?),
        SCTP_DST => Match::SctpDestination(ports()?),
        IPV4_SRC | IPV4_DST | ARP_SPA | ARP_TPA => ipv4(number, value, mask.unwrap_or(&[0xff; 4]))?,
        IPV6_SRC | IPV6_DST | IPV6_ND_TARGET => ipv6(number, value, mask.unwrap_or(&[0xff; 16]))?,
        // This crate sets no masks of the others.
        _ if mask.is_some() => return None,
        IN_PORT => Match::InPort(u32::from_be_bytes(value.try_into().ok()?)),
        ETH_SRC => Match::EthernetSource(mac()?),
        ETH_TYPE => Match::EthernetType(half()?),
        IP_PROTO => Match::IpProtocol(byte()?),
        UDP_SRC => Match::UdpSource(half()?),
        ICMPV4_TYPE => Match::Icmpv4Type(byte()?),
        ICMPV6_TYPE => Match::Icmpv6Type(byte()?),
        ICMPV6_CODE => Match::Icmpv6Code(byte()?),
        ARP_SHA => Match::ArpSenderMac(mac()?),
        IPV6_ND_SLL => Match::NdSourceLink(mac()?),
        IPV6_ND_TLL => Match::NdTargetLink(mac()?),
        _ => return None,
    })
}

/// `None`: a state that this crate does not use.
fn connection(body: &[u8]) -> Option<Match> {
    let known = [Connection::New, Connection::Established, Connection::Related];
    let found = known.into_iter().find(|it| of_connection(*it).body() == body)?;
    Some(Match::Connection(found))
}

/// `None`: the bits describe neither a tag nor its absence.
fn vlan(bits: u16) -> Option<VlanMatch> {
    match bits {
        0 => Some(VlanMatch::Untagged),
        tag if tag & !VLAN_BITS == 0 && tag & PRESENT != 0 => Some(VlanMatch::Id(tag & !PRESENT)),
        _ => None,
    }
}

/// `None`: the mask is not a prefix.
fn ipv4(number: u8, value: &[u8], mask: &[u8]) -> Option<Match> {
    let address = |bytes: &[u8]| Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?));
    let network = Ipv4Network::with_netmask(address(value)?, address(mask)?).ok()?;
    Some(match number {
        IPV4_SRC => Match::Ipv4Source(network),
        IPV4_DST => Match::Ipv4Destination(network),
        ARP_SPA => Match::ArpSenderAddress(network),
        _ => Match::ArpTargetAddress(network),
    })
}

fn ipv6(number: u8, value: &[u8], mask: &[u8]) -> Option<Match> {
    let address = |bytes: &[u8]| Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?));
    let prefix = ipnetwork::ipv6_mask_to_prefix(address(mask)?).ok()?;
    let network = Ipv6Network::new(address(value)?, prefix).ok()?;
    Some(match number {
        IPV6_SRC => Match::Ipv6Source(network),
        IPV6_DST => Match::Ipv6Destination(network),
        _ => Match::NdTarget(network),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn matches_survive_encoding() {
        let mac: MacAddress = "02:00:00:00:01:07".parse().unwrap();
        let all = [
            Match::InPort(1000),
            Match::EthernetDestination(mac, MacAddress([0xff, 0xff, 0xff, 0xff, 0xff, 0xf0])),
            Match::EthernetSource(mac),
            Match::EthernetType(0x86dd),
            Match::Vlan(VlanMatch::Id(100)),
            Match::IpProtocol(58),
            Match::Ipv4Source("10.0.0.0/24".parse().unwrap()),
            Match::UdpSource(67),
            Match::Ipv4Destination("10.0.0.7/32".parse().unwrap()),
            Match::TcpDestination(Ports { value: 8000, mask: 0xffe0 }),
            Match::UdpDestination(Ports::exactly(68)),
            Match::SctpDestination(Ports { value: 0, mask: 0x8000 }),
            Match::Icmpv4Type(5),
            Match::ArpSenderAddress("10.0.0.7/32".parse().unwrap()),
            Match::ArpTargetAddress("10.0.0.8/31".parse().unwrap()),
            Match::ArpSenderMac(mac),
            Match::Ipv6Source("fd00::/64".parse().unwrap()),
            Match::Ipv6Destination("fd00::7/128".parse().unwrap()),
            Match::Icmpv6Type(136),
            Match::Icmpv6Code(0),
            Match::NdTarget("fd00::1/128".parse().unwrap()),
            Match::NdSourceLink(mac),
            Match::NdTargetLink(MacAddress([0; 6])),
            Match::Connection(Connection::New),
            Match::Connection(Connection::Established),
            Match::Connection(Connection::Related),
        ];
        for it in all {
            assert_eq!(decode(&encode(&[it].into())), Some([it].into()), "{it:?}");
        }
        assert_eq!(decode(&encode(&all.into())), Some(all.into()));
        let vlan = Match::Vlan(VlanMatch::Untagged);
        assert_eq!(decode(&encode(&[vlan].into())), Some([vlan].into()));
    }

    #[test]
    fn host_bits_of_matches_are_ignored() {
        assert_eq!(encode(&[Match::Ipv4Source("0.0.0.0/0".parse().unwrap())].into()), [0; 0]);
        let with_bits = encode(&[Match::Ipv6Source("fd00::7/64".parse().unwrap())].into());
        let without = encode(&[Match::Ipv6Source("fd00::/64".parse().unwrap())].into());
        assert_eq!(with_bits, without);
    }

    #[test]
    fn unknown_matches_are_kept() {
        // A register of Open vSwitch's own, and a mask that is not a prefix.
        for bytes in [
            &[0, 1, 0, 4, 0, 0, 0, 7][..],
            &[0x80, 0, 23, 8, 10, 0, 0, 1, 255, 0, 255, 0],
            &[0x80, 0, 12, 2, 0, 7],
        ] {
            let matches = decode(bytes).unwrap();
            assert!(matches!(matches.first(), Some(Match::Other(_))), "{matches:?}");
        }
        assert_eq!(decode(&[0x80, 0, 0]), None);
        assert_eq!(decode(&[0x80, 0, 0, 4, 1]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
