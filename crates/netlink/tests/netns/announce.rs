//! Announcements as a neighbour receives them.

use std::{
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use netlink::{MacAddress, announce};
use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
        sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike},
};

use crate::support::TestNetns;

/// A socket that receives all frames of the namespace.
pub(crate) fn capture(netns: &TestNetns) -> OwnedFd {
    let open = || {
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
    };
    let socket = netns.netns.run(open).unwrap().unwrap();
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(10)).unwrap();
    socket
}

/// Receives until a frame starts with these bytes.
fn frame(socket: &OwnedFd, beginning: &[u8]) -> Vec<u8> {
    loop {
        let mut frame = vec![0; 2048];
        let length = recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()).unwrap();
        frame.truncate(length);
        if frame.starts_with(beginning) {
            return frame;
        }
    }
}

#[test]
fn announcement_updates_neighbours() {
    let (pod, neighbour) = (TestNetns::new(), TestNetns::new());
    pod.run("ip link add name net1 index 50 address 02:00:00:00:00:07 type veth peer name wire");
    let wire = pod.rtnl().link_by_name("wire").unwrap().unwrap().index;
    let away = netlink::LinkChange::new().netns(&neighbour.netns).up();
    pod.rtnl().change_link(wire, &away).unwrap();
    pod.run("ip link set dev net1 up");
    neighbour.run("ip addr add 192.0.2.1/24 dev wire");
    test_clock::wait_until("there is a carrier", || {
        neighbour.rtnl().link_by_name("wire").unwrap().unwrap().is_running
    });
    for address in ["192.0.2.7", "2001:db8::7"] {
        // The neighbour has cached these addresses with another MAC address.
        neighbour.run(&format!(
            "ip neigh replace {address} lladdr 02:00:00:00:00:99 dev wire nud stale"
        ));
    }
    let socket = capture(&neighbour);

    let mac: MacAddress = "02:00:00:00:00:07".parse().unwrap();
    let addresses: [IpAddr; 2] = ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    pod.netns.run(|| announce(50, mac, &addresses)).unwrap().unwrap();

    let arp = frame(&socket, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 8, 6]);
    assert_eq!(arp[20..22], [0, 1], "a request");
    assert_eq!(arp[22..28], mac.0);
    assert_eq!((&arp[28..32], &arp[38..42]), (&[192, 0, 2, 7][..], &[192, 0, 2, 7][..]));

    let advertisement = frame(&socket, &[0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7, 0x86, 0xdd]);
    assert_eq!((advertisement[20], advertisement[21]), (58, 255), "ICMPv6, hop limit 255");
    assert_eq!((advertisement[54], advertisement[58]), (136, 0x20), "an override");
    assert_eq!(advertisement[80..86], mac.0);

    // The kernel verifies the checksum before it accepts the advertisement.
    let known = || neighbour.run("ip neigh show dev wire");
    test_clock::wait_until("the neighbour knows the new MAC address", || {
        known().matches("02:00:00:00:00:07").count() == 2
    });
}

#[test]
fn announcing_on_down_interface_fails() {
    let pod = TestNetns::new();
    pod.run("ip link add name net1 index 50 type veth peer name wire");
    let addresses: [IpAddr; 1] = ["192.0.2.7".parse().unwrap()];
    let error =
        pod.netns.run(|| announce(50, MacAddress([2; 6]), &addresses)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "cannot announce 192.0.2.7 by link 50: Network is down");
}
