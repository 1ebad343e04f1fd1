//! Announcements of addresses to neighbours: gratuitous ARP and unsolicited neighbour advertisements.

use std::{
    mem::size_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
};

use nix::{
    errno::Errno,
    libc,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket,
    },
};

use crate::{error::Error, mac::MacAddress};

pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(crate) const BROADCAST: MacAddress = MacAddress([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddress = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
pub(crate) const ICMPV6: u8 = 58;

/// Announces once for each address that it is reachable at `mac`.
///
/// IPv4 uses a gratuitous ARP request, IPv6 an unsolicited neighbour advertisement. `interface` is an index in the
/// calling thread's namespace. The interface must be up and should have a carrier; without one the kernel drops the
/// frames.
///
/// # Errors
/// The first failure. The remaining addresses are announced too.
pub fn announce(interface: u32, mac: MacAddress, addresses: &[IpAddr]) -> Result<(), Error> {
    let mut first_failure = Ok(());
    // Protocol 0: the socket receives nothing. All addresses share one socket, because closing a packet socket takes
    // the kernel about 20 ms.
    let socket = socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|errno| Error::errno_of("open a socket for announcements", errno))?;
    let send = |ethertype, destination, packet: &[u8]| {
        let address = frame_address(interface, ethertype, destination)?;
        sendto(socket.as_raw_fd(), packet, &address, MsgFlags::empty()).map(drop)
    };
    for address in addresses {
        let sent = match address {
            IpAddr::V4(v4) => send(ETHERTYPE_ARP, BROADCAST, &arp_request(mac, *v4, *v4)),
            IpAddr::V6(v6) => {
                send(ETHERTYPE_IPV6, ALL_NODES_MAC, &neighbour_advertisement(mac, *v6))
            }
        };
        let sent = sent.map_err(|errno| {
            Error::errno_of(format!("announce {address} by link {interface}"), errno)
        });
        first_failure = first_failure.and(sent);
    }
    first_failure
}

/// First bytes of every ARP packet for IPv4 over Ethernet: hardware type, protocol type, and both address lengths.
pub(crate) const ARP_OF_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// An ARP request. An announcement is a request for the sender's own address.
pub(crate) fn arp_request(mac: MacAddress, from: Ipv4Addr, wanted: Ipv4Addr) -> Vec<u8> {
    const REQUEST: [u8; 2] = [0, 1];
    let mut packet = [ARP_OF_IPV4.as_slice(), &REQUEST].concat();
    packet.extend(mac.0);
    packet.extend(from.octets());
    packet.extend([0; 6]);
    packet.extend(wanted.octets());
    packet
}

/// An unsolicited neighbour advertisement with the override flag: receivers replace their cached entry.
fn neighbour_advertisement(mac: MacAddress, address: Ipv6Addr) -> Vec<u8> {
    const ADVERTISEMENT: u8 = 136;
    const OVERRIDE: u8 = 0x20;
    const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
    const IN_EIGHT_BYTES: u8 = 1;
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    message.extend([TARGET_LINK_LAYER_ADDRESS, IN_EIGHT_BYTES]);
    message.extend(mac.0);
    let checksum = icmpv6_checksum(address, ALL_NODES, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ipv6_packet(address, ALL_NODES, &message)
}

/// An IPv6 packet with an ICMPv6 message of at most 255 bytes and hop limit 255. Receivers drop neighbour discovery
/// with any other hop limit (RFC 4861).
pub(crate) fn ipv6_packet(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    const HOP_LIMIT: u8 = 255;
    let length = u8::try_from(message.len()).unwrap_or(u8::MAX);
    let mut packet = vec![0x60, 0, 0, 0, 0, length, ICMPV6, HOP_LIMIT];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(message);
    packet
}

/// Computes the internet checksum over the IPv6 pseudo header and a message whose checksum field is zero.
pub(crate) fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0)))
            .sum()
    };
    let mut sum = words(&source.octets()) + words(&destination.octets()) + words(message);
    sum += message.len() as u64 + u64::from(ICMPV6);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits just above")]
    let folded = sum as u16;
    !folded
}

#[expect(unsafe_code, reason = "there is no safe constructor of a packet socket's address")]
pub(crate) fn frame_address(
    interface: u32,
    ethertype: u16,
    destination: MacAddress,
) -> Result<LinkAddr, Errno> {
    let [a, b, c, d, e, f] = destination.0;
    let raw = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(|_| Errno::EINVAL)?,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: i32::try_from(interface).map_err(|_| Errno::ENODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [a, b, c, d, e, f, 0, 0],
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).ok();
    // SAFETY: `raw` is a whole sockaddr_ll with the family of one, and `length` is its size. The
    // address is copied out of it before it goes out of scope.
    let address = unsafe { LinkAddr::from_raw((&raw const raw).cast(), length) };
    address.ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertisement_checksum_is_valid() {
        let address = "2001:db8::7".parse().unwrap();
        let packet = neighbour_advertisement(MacAddress([2, 0, 0, 0, 0, 7]), address);
        assert_eq!(packet.len(), 40 + usize::from(packet[5]));
        assert_eq!(icmpv6_checksum(address, ALL_NODES, &packet[40..]), 0);
    }

    #[test]
    fn announcement_requests_its_own_address() {
        let address = Ipv4Addr::new(192, 0, 2, 7);
        let packet = arp_request(MacAddress([2, 0, 0, 0, 0, 7]), address, address);
        assert_eq!(packet.len(), 28);
        assert_eq!(packet[14..18], packet[24..28]);
    }
}
