//! Packet sockets that receive only ARP and neighbour advertisements.

use std::{
    collections::BTreeSet,
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use nix::{
    cmsg_space,
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    setsockopt_impl,
    sys::socket::{
        AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockType, bind, recvmsg,
        sendto, setsockopt, socket,
        sockopt::{SetBool, SetStruct},
    },
};

use super::{Claim, packets::claimed};
use crate::{
    announce::{ETHERTYPE_ARP, ETHERTYPE_IPV6, ICMPV6, frame_address},
    mac::MacAddress,
};

/// `ETH_P_ALL`: every frame of a link, before a bridge takes it.
const EVERYTHING: u16 = 0x0003;

/// Longest answer that is read, in bytes.
const LONGEST: usize = 128;

const VLAN_ID: u16 = 0x0fff;

/// `PACKET_AUXDATA`: the kernel reports the VLAN tag that it stripped from a frame.
#[derive(Clone, Copy)]
struct ReportsTags;
setsockopt_impl!(ReportsTags, libc::SOL_PACKET, libc::PACKET_AUXDATA, bool, SetBool);

/// `PACKET_IGNORE_OUTGOING`: the socket does not receive this machine's own frames.
#[derive(Clone, Copy)]
struct IgnoresOutgoing;
setsockopt_impl!(IgnoresOutgoing, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, bool, SetBool);

/// `SO_ATTACH_FILTER`: the socket receives only frames that a BPF program accepts.
#[derive(Clone, Copy)]
struct Filters;
setsockopt_impl!(
    Filters,
    libc::SOL_SOCKET,
    libc::SO_ATTACH_FILTER,
    libc::sock_fprog,
    SetStruct<libc::sock_fprog>
);

/// Opens sockets that receive frames for this machine from any link.
pub(super) fn of_all_links() -> Result<Vec<OwnedFd>, Errno> {
    [ETHERTYPE_ARP, ETHERTYPE_IPV6].into_iter().map(|kind| open(0, kind)).collect()
}

/// Opens sockets that receive the frames of these links, including those that a bridge takes. Links that no longer
/// exist are left out.
pub(super) fn of_ports(links: impl Iterator<Item = u32>) -> Result<Vec<OwnedFd>, Errno> {
    let links: BTreeSet<_> = links.collect();
    let opened = links.into_iter().map(|link| open(link, EVERYTHING));
    opened.filter(|opened| !matches!(opened, Err(Errno::ENODEV))).collect()
}

/// Link 0 means any link.
fn open(link: u32, protocol: u16) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // With protocol 0 the socket receives nothing until bind, so no frame arrives before the filter is attached.
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    let mut filter = filter();
    let length = u16::try_from(filter.len()).map_err(|_| Errno::EINVAL)?;
    setsockopt(&socket, Filters, &libc::sock_fprog { len: length, filter: filter.as_mut_ptr() })?;
    setsockopt(&socket, ReportsTags, &true)?;
    setsockopt(&socket, IgnoresOutgoing, &true)?;
    bind(socket.as_raw_fd(), &frame_address(link, protocol, MacAddress([0; 6]))?)?;
    Ok(socket)
}

/// Accepts ARP and neighbour advertisements. Without the filter the kernel would copy all traffic of an uplink.
fn filter() -> [libc::sock_filter; 9] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ETHERTYPE_AT: u32 = 12;
    const NEXT_HEADER_AT: u32 = 14 + 6;
    const MESSAGE_AT: u32 = 14 + 40;
    const ADVERTISEMENT: u32 = 136;
    const ALL: u32 = 0xffff;
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // Number of steps to skip if equal, and if not.
    let jump = |k, jt, jf| libc::sock_filter { code: JUMP_IF_EQUAL, jt, jf, k };
    [
        step(LOAD_HALF, ETHERTYPE_AT),
        jump(ETHERTYPE_ARP.into(), 5, 0),
        jump(ETHERTYPE_IPV6.into(), 0, 5),
        step(LOAD_BYTE, NEXT_HEADER_AT),
        jump(ICMPV6.into(), 0, 3),
        step(LOAD_BYTE, MESSAGE_AT),
        jump(ADVERTISEMENT, 0, 1),
        step(RETURN, ALL),
        step(RETURN, 0),
    ]
}

pub(super) fn send(socket: &OwnedFd, link: u32, frame: &[u8]) -> Result<(), Errno> {
    let to = frame_address(link, 0, MacAddress([0; 6]))?;
    sendto(socket.as_raw_fd(), frame, &to, MsgFlags::empty()).map(drop)
}

/// Waits for at most `left`. Returns one claim of each socket that has one.
pub(super) fn wait_for_claims(sockets: &[OwnedFd], left: Duration) -> Vec<Claim> {
    let receives = |socket| PollFd::new(socket, PollFlags::POLLIN);
    let mut waiting: Vec<_> = sockets.iter().map(|socket| receives(socket.as_fd())).collect();
    // A signal ends the wait early; the caller waits again.
    let _ = poll(&mut waiting, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
    sockets.iter().filter_map(receive).collect()
}

fn receive(socket: &OwnedFd) -> Option<Claim> {
    let mut frame = [0; LONGEST];
    let mut control = cmsg_space!(libc::tpacket_auxdata);
    let (length, link, vlan) = {
        let mut parts = [IoSliceMut::new(&mut frame)];
        let flags = MsgFlags::empty();
        let message =
            recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
        let vlan = message.cmsgs().ok()?.find_map(|control| vlan_of(&control));
        (message.bytes, message.address?.ifindex(), vlan)
    };
    let (address, mac) = claimed(frame.get(..length)?)?;
    Some(Claim { link: u32::try_from(link).ok()?, vlan, address, mac })
}

/// The VLAN of a frame whose tag the kernel stripped. VLAN 0 is a priority tag and counts as untagged.
fn vlan_of(control: &ControlMessageOwned) -> Option<u16> {
    const STATUS: std::ops::Range<usize> = 0..4;
    const TAG: std::ops::Range<usize> = 16..18;
    let ControlMessageOwned::Unknown(control) = control else { return None };
    let (level, kind) = (control.cmsg_header.cmsg_level, control.cmsg_header.cmsg_type);
    if (level, kind) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    let status = u32::from_ne_bytes(control.data_bytes.get(STATUS)?.try_into().ok()?);
    let tag = u16::from_ne_bytes(control.data_bytes.get(TAG)?.try_into().ok()?);
    let vlan = Some(tag & VLAN_ID).filter(|vlan| *vlan != 0);
    vlan.filter(|_| status & libc::TP_STATUS_VLAN_VALID != 0)
}
