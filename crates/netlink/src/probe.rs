//! Asking whether somebody else has an address already.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, bind, recvfrom, sendto,
            setsockopt, socket, sockopt::ReceiveTimeout,
        },
        time::TimeVal,
    },
};

use crate::{
    Error, MacAddress,
    announce::{
        BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV6, ICMPV6, frame_address, icmpv6_checksum,
        ipv6_packet,
    },
};

/// How often an address is asked for: a question may be lost.
const TIMES: u32 = 3;

/// How long one look for answers lasts at most.
const LOOK: TimeVal = TimeVal::new(0, 20_000);

/// The longest answer that is read, in bytes.
const LONGEST: usize = 128;

/// An address that is asked for by a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The link's index.
    pub link: u32,
    /// The link's Ethernet address.
    pub mac: MacAddress,
    /// The address.
    pub address: IpAddr,
}

/// Asks for addresses in the calling thread's namespace, without claiming them, and returns those that
/// somebody else answers within `patience`, with his Ethernet address. All of it takes as long.
///
/// # Errors
/// When the process may not open such sockets.
pub fn who_else_has(
    probes: &[Probe],
    patience: Duration,
) -> Result<Vec<(Probe, MacAddress)>, Error> {
    let told = |errno| Error::errno_of("ask whether somebody has an address", errno);
    let sockets = [ETHERTYPE_ARP, ETHERTYPE_IPV6].map(listen);
    let [arp, ipv6] = sockets;
    let (arp, ipv6) = (arp.map_err(told)?, ipv6.map_err(told)?);
    let mut found = Vec::new();
    for _ in 0..TIMES {
        for probe in probes {
            // One that can't be sent asks nobody: its link is down or gone.
            let _ = ask(if probe.address.is_ipv4() { &arp } else { &ipv6 }, probe);
        }
        let until = Instant::now() + patience / TIMES;
        while Instant::now() < until {
            for socket in [&arp, &ipv6] {
                found.extend(answer(socket).and_then(|told| asked_for(probes, &told)));
            }
        }
    }
    found.sort_by_key(|(probe, mac): &(Probe, MacAddress)| (probe.link, probe.address, *mac));
    found.dedup();
    Ok(found)
}

/// Somebody on a link says that he has an address.
struct Told {
    link: u32,
    address: IpAddr,
    mac: MacAddress,
}

fn asked_for(probes: &[Probe], told: &Told) -> Option<(Probe, MacAddress)> {
    let is_answered = |probe: &&Probe| {
        (probe.link, probe.address) == (told.link, told.address) && probe.mac != told.mac
    };
    probes.iter().find(is_answered).map(|probe| (*probe, told.mac))
}

/// Hears what comes in by any link.
fn listen(ethertype: u16) -> Result<OwnedFd, Errno> {
    let socket = socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, ReceiveTimeout, &LOOK)?;
    bind(socket.as_raw_fd(), &frame_address(0, ethertype, MacAddress([0; 6]))?)?;
    Ok(socket)
}

fn ask(socket: &OwnedFd, probe: &Probe) -> Result<(), Errno> {
    let (ethertype, destination, packet) = match probe.address {
        IpAddr::V4(v4) => (ETHERTYPE_ARP, BROADCAST, arp_probe(probe.mac, v4)),
        IpAddr::V6(v6) => {
            let [.., a, b, c] = v6.octets();
            (ETHERTYPE_IPV6, MacAddress([0x33, 0x33, 0xff, a, b, c]), solicitation(v6))
        }
    };
    let to = frame_address(probe.link, ethertype, destination)?;
    sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty()).map(drop)
}

/// A question from nobody's address (RFC 5227).
fn arp_probe(mac: MacAddress, address: Ipv4Addr) -> Vec<u8> {
    // Ethernet, IPv4, their lengths, a request.
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(mac.0);
    packet.extend([0; 4 + 6]);
    packet.extend(address.octets());
    packet
}

/// Likewise (RFC 4862).
fn solicitation(address: Ipv6Addr) -> Vec<u8> {
    const SOLICITATION: u8 = 135;
    let [.., a, b, c] = address.octets().map(u16::from);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a, b << 8 | c);
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(address.octets());
    let checksum = icmpv6_checksum(Ipv6Addr::UNSPECIFIED, group, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ipv6_packet(Ipv6Addr::UNSPECIFIED, group, &message)
}

fn answer(socket: &OwnedFd) -> Option<Told> {
    let mut buffer = [0; LONGEST];
    let (length, from) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer).ok()?;
    let from = from?;
    let packet = buffer.get(..length)?;
    let link = u32::try_from(from.ifindex()).ok()?;
    if from.protocol() == ETHERTYPE_ARP.to_be() {
        let (address, mac) = arp_sender(packet)?;
        return Some(Told { link, address: address.into(), mac });
    }
    let address = advertised(packet)?.into();
    Some(Told { link, address, mac: MacAddress(from.addr()?) })
}

fn arp_sender(packet: &[u8]) -> Option<(Ipv4Addr, MacAddress)> {
    let mac: [u8; 6] = packet.get(8..14)?.try_into().ok()?;
    let address: [u8; 4] = packet.get(14..18)?.try_into().ok()?;
    Some((address.into(), MacAddress(mac)))
}

fn advertised(packet: &[u8]) -> Option<Ipv6Addr> {
    const ADVERTISEMENT: u8 = 136;
    let is_one = *packet.get(6)? == ICMPV6 && *packet.get(40)? == ADVERTISEMENT;
    let target: [u8; 16] = packet.get(48..64)?.try_into().ok()?;
    is_one.then(|| target.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_solicitation_goes_to_the_group_of_its_address() {
        let packet = solicitation("2001:db8::aa:bbcc".parse().unwrap());
        assert_eq!(packet.len(), 40 + usize::from(packet[5]));
        assert_eq!(packet[24..40], "ff02::1:ffaa:bbcc".parse::<Ipv6Addr>().unwrap().octets());
    }

    #[test]
    fn an_arp_probe_claims_nothing() {
        let packet = arp_probe(MacAddress([2, 0, 0, 0, 0, 7]), Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!((packet.len(), &packet[14..18]), (28, &[0; 4][..]));
        assert_eq!(arp_sender(&packet).unwrap().0, Ipv4Addr::UNSPECIFIED);
        assert!(arp_sender(&packet[..17]).is_none() && advertised(&packet).is_none());
    }
}
