//! Ethernet frames of questions for an address, and their answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Probe;
use crate::{
    announce::{
        ARP_OF_IPV4, BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV6, ICMPV6, arp_request,
        icmpv6_checksum, ipv6_packet,
    },
    mac::MacAddress,
};

const ETHERTYPE_VLAN: u16 = 0x8100;

/// Length of an untagged Ethernet header.
pub(super) const ETHERNET_LEN: usize = 14;

pub(super) fn question(probe: &Probe) -> Vec<u8> {
    match probe.address {
        IpAddr::V4(v4) => {
            // Sender 0.0.0.0: a probe that changes no neighbour cache (RFC 5227).
            let request = arp_request(probe.mac, Ipv4Addr::UNSPECIFIED, v4);
            frame(probe, BROADCAST, ETHERTYPE_ARP, &request)
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c] = v6.octets();
            let group = MacAddress([0x33, 0x33, 0xff, a, b, c]);
            frame(probe, group, ETHERTYPE_IPV6, &solicitation(probe.mac, v6))
        }
    }
}

fn frame(probe: &Probe, destination: MacAddress, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [destination.0, probe.mac.0].concat();
    if let Some(vlan) = probe.vlan {
        frame.extend(ETHERTYPE_VLAN.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    frame
}

/// A neighbour solicitation (RFC 4861, section 4.3).
fn solicitation(mac: MacAddress, address: Ipv6Addr) -> Vec<u8> {
    const SOLICITATION: u8 = 135;
    const SOURCE_LINK_LAYER_ADDRESS: u8 = 1;
    const IN_EIGHT_BYTES: u8 = 1;
    let [.., a, b, c] = address.octets().map(u16::from);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a, b << 8 | c);
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(address.octets());
    message.extend([SOURCE_LINK_LAYER_ADDRESS, IN_EIGHT_BYTES]);
    message.extend(mac.0);
    let checksum = icmpv6_checksum(mac.link_local(), group, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ipv6_packet(mac.link_local(), group, &message)
}

/// Reads the IP address that an untagged frame claims, and the MAC address that claims it.
pub(super) fn claimed(frame: &[u8]) -> Option<(IpAddr, MacAddress)> {
    let (header, packet) = frame.split_at_checked(ETHERNET_LEN)?;
    let claimed = match u16::from_be_bytes([header[12], header[13]]) {
        ETHERTYPE_ARP => arp_sender(packet),
        ETHERTYPE_IPV6 => {
            let source = header[6..12].try_into().ok()?;
            Some((advertised(packet)?.into(), MacAddress(source)))
        }
        _ => None,
    };
    claimed.filter(|(_, mac)| mac.is_unicast())
}

fn arp_sender(packet: &[u8]) -> Option<(IpAddr, MacAddress)> {
    let mac: [u8; 6] = packet.get(8..14)?.try_into().ok()?;
    let address: [u8; 4] = packet.get(14..18)?.try_into().ok()?;
    packet.starts_with(&ARP_OF_IPV4).then(|| (address.into(), MacAddress(mac)))
}

/// The target of a neighbour advertisement from this link: a router would have lowered the hop limit (RFC 4861, section
/// 7.1.2).
fn advertised(packet: &[u8]) -> Option<Ipv6Addr> {
    const ADVERTISEMENT: u8 = 136;
    const HOP_LIMIT: u8 = 255;
    let is_one = packet.get(6..8)? == [ICMPV6, HOP_LIMIT] && *packet.get(40)? == ADVERTISEMENT;
    let target: [u8; 16] = packet.get(48..64)?.try_into().ok()?;
    is_one.then(|| target.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 7]);

    fn question_for(address: &str, vlan: Option<u16>) -> Vec<u8> {
        question(&Probe { link: 1, mac: MAC, vlan, address: address.parse().unwrap() })
    }

    /// An answer from that machine.
    fn advertisement(address: &str) -> Vec<u8> {
        let mut frame = question_for(address, None);
        frame[ETHERNET_LEN + 40] = 136;
        frame
    }

    #[test]
    fn solicitation_goes_to_solicited_node_group() {
        let frame = question_for("2001:db8::aa:bbcc", None);
        let packet = &frame[ETHERNET_LEN..];
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0xaa, 0xbb, 0xcc]);
        assert_eq!(packet.len(), 40 + usize::from(packet[5]));
        let group: Ipv6Addr = "ff02::1:ffaa:bbcc".parse().unwrap();
        assert_eq!(packet[8..24], MAC.link_local().octets());
        assert_eq!(packet[24..40], group.octets());
        assert_eq!(icmpv6_checksum(MAC.link_local(), group, &packet[40..]), 0);
    }

    #[test]
    fn arp_probe_claims_no_address() {
        let frame = question_for("192.0.2.7", None);
        assert_eq!((frame.len(), &frame[28..32]), (ETHERNET_LEN + 28, &[0; 4][..]));
        assert_eq!(claimed(&frame), Some((Ipv4Addr::UNSPECIFIED.into(), MAC)));
    }

    #[test]
    fn probe_has_its_vlan_tag() {
        for address in ["192.0.2.7", "2001:db8::7"] {
            let (tagged, untagged) =
                (question_for(address, Some(100)), question_for(address, None));
            assert_eq!(tagged[12..16], [0x81, 0, 0, 100]);
            assert_eq!([&tagged[..12], &tagged[16..]].concat(), untagged);
        }
    }

    #[test]
    fn truncated_answers_are_ignored() {
        let target: IpAddr = "2001:db8::7".parse().unwrap();
        let whole = advertisement("2001:db8::7");
        assert_eq!(claimed(&whole), Some((target, MAC)));
        let end = ETHERNET_LEN + 64;
        assert!((0..end).all(|length| claimed(&whole[..length]).is_none()));
        let arp = question_for("192.0.2.7", None);
        assert!((0..ETHERNET_LEN + 18).all(|length| claimed(&arp[..length]).is_none()));
    }

    #[test]
    fn answers_from_afar_are_ignored() {
        let changed = |place: usize, byte: u8| {
            let mut frame = advertisement("2001:db8::7");
            frame[place] = byte;
            claimed(&frame)
        };
        assert_eq!(changed(6, 0x33), None, "from a group");
        assert_eq!(changed(12, 0x08), None, "of another protocol");
        assert_eq!(changed(ETHERNET_LEN + 7, 64), None, "through a router");
        assert_eq!(changed(ETHERNET_LEN + 40, 135), None, "a question");
        let mut arp = question_for("192.0.2.7", None);
        arp[ETHERNET_LEN + 4] = 8;
        assert_eq!(claimed(&arp), None, "of other addresses");
    }
}
