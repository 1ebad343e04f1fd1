//! Pods' frames, built byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::MacAddress;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// A broadcast frame.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    from: MacAddress,
    kind: u16,
    payload: Vec<u8>,
    /// The bytes between length and type in an 802.2 frame.
    llc: Option<&'static [u8]>,
    trailer: usize,
}

/// 802.2 headers followed by an EtherType: SNAP for Ethernet (RFC 1042), SNAP for bridges (IEEE 802.1H), and one
/// with another control field.
pub(crate) const SNAP: [&[u8]; 3] =
    [&[0xaa, 0xaa, 3, 0, 0, 0], &[0xaa, 0xaa, 3, 0, 0, 0xf8], &[0xaa, 0xaa, 0x13, 0, 0, 0]];

/// 802.2 headers followed by an IP packet, and by an ARP packet.
pub(crate) const LLC_IP: &[u8] = &[6, 6, 3];
pub(crate) const LLC_ARP: &[u8] = &[0x98, 0x98, 3];

impl Frame {
    /// An empty frame from that MAC address.
    pub(crate) fn from(mac: &str) -> Self {
        Self { from: mac.parse().unwrap(), kind: 0, payload: Vec::new(), llc: None, trailer: 0 }
    }

    /// The frame with an unused EtherType.
    pub(crate) fn of_type(&self, kind: u16) -> Self {
        self.with(kind, Vec::new())
    }

    fn with(&self, kind: u16, payload: Vec<u8>) -> Self {
        Self { kind, payload, ..self.clone() }
    }

    /// An ARP request from a sender for a target.
    pub(crate) fn arp(&self, (mac, sender): (&str, &str), target: &str) -> Self {
        let mac: MacAddress = mac.parse().unwrap();
        let [sender, target] =
            [sender, target].map(|address| address.parse::<Ipv4Addr>().unwrap().octets());
        let packet: [&[u8]; 6] =
            [&[0, 1, 8, 0, 6, 4, 0, 1], &mac.0, &sender, &[0; 6], &target, &[]];
        self.with(0x0806, packet.concat())
    }

    /// A UDP datagram from an address and port to another port.
    pub(crate) fn udp(&self, source: &str, (from, to): (u16, u16)) -> Self {
        let [[a, b], [c, d]] = [from, to].map(u16::to_be_bytes);
        let datagram = vec![a, b, c, d, 0, 8, 0, 0];
        match source.parse().unwrap() {
            IpAddr::V4(source) => self.with(IPV4, ipv4(source, UDP, &datagram)),
            IpAddr::V6(source) => self.with(IPV6, ipv6(source, UDP, 64, &datagram)),
        }
    }

    /// An ICMPv6 message of that type about a target, as neighbours send it.
    pub(crate) fn icmpv6(&self, source: &str, kind: u8, target: &str) -> Self {
        let target: Ipv6Addr = target.parse().unwrap();
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        // A router solicitation has no target.
        if kind != 133 {
            message.extend(target.octets());
        }
        // Only neighbour discovery requires hop limit 255.
        let hop_limit = if (133..=137).contains(&kind) { 255 } else { 1 };
        self.with(IPV6, ipv6(source.parse().unwrap(), ICMPV6, hop_limit, &message))
    }

    /// An IPv4 packet of that protocol.
    pub(crate) fn of_ipv4(&self, source: &str, protocol: u8, contents: &[u8]) -> Self {
        self.with(IPV4, ipv4(source.parse().unwrap(), protocol, contents))
    }

    /// The frame with a further option of that kind, which holds a link address.
    pub(crate) fn with_option(&self, kind: u8, link: &str) -> Self {
        let link: MacAddress = link.parse().unwrap();
        let mut payload = self.payload.clone();
        payload.extend([kind, 1]);
        payload.extend(link.0);
        payload[5] += 8;
        self.with(self.kind, payload)
    }

    /// The frame with hop limit 255, which proves that no router has forwarded it.
    pub(crate) fn sent_as_neighbours_do(&self) -> Self {
        let mut payload = self.payload.clone();
        payload[7] = 255;
        self.with(self.kind, payload)
    }

    /// The message with an unusual code.
    pub(crate) fn with_code(&self, code: u8) -> Self {
        let mut payload = self.payload.clone();
        payload[41] = code;
        self.with(self.kind, payload)
    }

    /// The packet behind an extension header of that kind.
    pub(crate) fn behind(&self, extension: u8) -> Self {
        let mut payload = self.payload.clone();
        let next = std::mem::replace(&mut payload[6], extension);
        payload[5] += 8;
        payload.splice(40..40, [next, 0, 0, 0, 0, 0, 0, 0]);
        self.with(self.kind, payload)
    }

    /// The packet with a longer IPv4 header than usual.
    pub(crate) fn with_ipv4_options(&self) -> Self {
        let mut payload = self.payload.clone();
        payload[0] += 2;
        // No-operation options.
        payload.splice(20..20, [1; 8]);
        self.with(self.kind, payload)
    }

    /// The packet with much padding, which the receiver cuts off.
    pub(crate) fn with_trailer(&self) -> Self {
        Self { trailer: 300, ..self.clone() }
    }

    /// The packet in an 802.2 frame with that header.
    pub(crate) fn in_802_2(&self, header: &'static [u8]) -> Self {
        Self { llc: Some(header), ..self.clone() }
    }

    /// The frame with a mark: at the end of the packet, or in the group address of an IPv6 packet. br_netfilter
    /// drops packets with a wrong header or with bytes behind their end.
    pub(crate) fn marked(&self, mark: [u8; 8]) -> Vec<u8> {
        let mut payload = self.payload.clone();
        match self.kind {
            IPV4 => {
                payload.extend(mark);
                finish_ipv4(&mut payload);
            }
            IPV6 => payload[32..40].copy_from_slice(&mark),
            _ => payload.extend(mark),
        }
        let parts: [&[u8]; 4] =
            [&[0xff; 6], &self.from.0, &self.type_or_length(&payload), &payload];
        let mut frame = parts.concat();
        frame.resize(frame.len().max(60) + self.trailer, 0);
        frame
    }

    /// The bytes between addresses and payload.
    fn type_or_length(&self, payload: &[u8]) -> Vec<u8> {
        let kind = self.kind.to_be_bytes();
        let Some(llc) = self.llc else { return kind.to_vec() };
        let header = if llc.len() > 3 { [llc, &kind].concat() } else { llc.to_vec() };
        let length = u16::try_from(header.len() + payload.len()).unwrap();
        [&length.to_be_bytes()[..], &header].concat()
    }
}

fn ipv4(source: Ipv4Addr, protocol: u8, contents: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    header.extend(source.octets());
    header.extend([255; 4]);
    header.extend(contents);
    header
}

/// Writes length and checksum.
fn finish_ipv4(packet: &mut [u8]) {
    packet[3] = u8::try_from(packet.len()).unwrap();
    let header = usize::from(packet[0] & 0xf) * 4;
    let words = packet[..header].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&(!folded).to_be_bytes());
}

fn ipv6(source: Ipv6Addr, next: u8, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    let length = u8::try_from(message.len()).unwrap();
    let mut header = vec![0x60, 0, 0, 0, 0, length, next, hop_limit];
    header.extend(source.octets());
    header.extend("ff02::1".parse::<Ipv6Addr>().unwrap().octets());
    header.extend(message);
    header
}
