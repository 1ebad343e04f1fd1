//! Probes for addresses of other machines, answered by kernels.

use std::{net::IpAddr, os::fd::AsRawFd, thread, time::Duration};

use netlink::{LinkChange, MacAddress, Probe, who_else_has, who_has_beyond};
use nix::sys::socket::{LinkAddr, MsgFlags, recvfrom, sendto};

use crate::{announce::capture, support::TestNetns};

const TIMEOUT: Duration = Duration::from_secs(3);
const USED: [&str; 2] = ["192.0.2.7", "2001:db8::7"];

/// A namespace whose link `p0`, a bridge port, is connected to the link `wire` of a second one that has both addresses.
fn beyond_a_bridge() -> (TestNetns, TestNetns) {
    let (dpu, machine) = (TestNetns::new(), TestNetns::new());
    dpu.run("ip link add br0 type bridge");
    dpu.run("ip link set br0 up");
    connect(&dpu, "p0", &machine, "wire");
    dpu.run("ip link set p0 master br0 up");
    machine.run("ip link set wire up");
    for address in USED {
        machine.run(&format!("ip addr add {address}/24 dev wire nodad"));
    }
    wait_for_carrier(&dpu, "p0");
    (dpu, machine)
}

fn connect(one: &TestNetns, link: &str, other: &TestNetns, peer: &str) {
    one.run(&format!("ip link add {link} type veth peer name {peer}"));
    let index = one.rtnl().link_by_name(peer).unwrap().unwrap().index;
    one.rtnl().change_link(index, &LinkChange::new().netns(&other.netns)).unwrap();
}

fn wait_for_carrier(netns: &TestNetns, link: &str) {
    test_clock::wait_until("there is a carrier", || {
        netns.rtnl().link_by_name(link).unwrap().unwrap().is_running
    });
}

fn probe(netns: &TestNetns, link: &str, vlan: Option<u16>, address: &str) -> Probe {
    let link = netns.rtnl().link_by_name(link).unwrap().unwrap();
    let (index, mac) = (link.index, link.mac.unwrap());
    Probe { link: index, mac, vlan, address: address.parse().unwrap() }
}

fn mac_of(netns: &TestNetns, link: &str) -> MacAddress {
    netns.link(link)["address"].as_str().unwrap().parse().unwrap()
}

/// The addresses that were found, each with its machine.
fn found(
    netns: &TestNetns,
    ask: impl FnOnce() -> Result<Vec<(Probe, MacAddress)>, netlink::Error>,
) -> Vec<(IpAddr, MacAddress)> {
    let found = netns.netns.run(ask).unwrap().unwrap();
    found.into_iter().map(|(probe, mac)| (probe.address, mac)).collect()
}

fn at(mac: MacAddress) -> Vec<(IpAddr, MacAddress)> {
    USED.iter().map(|address| (address.parse().unwrap(), mac)).collect()
}

#[test]
fn machines_behind_bridge_port_answer() {
    let (dpu, machine) = beyond_a_bridge();
    let addresses = ["192.0.2.7", "192.0.2.8", "2001:db8::7", "2001:db8::8"];
    let probes = addresses.map(|address| probe(&dpu, "p0", None, address));
    let used = found(&dpu, || who_has_beyond(&probes, TIMEOUT));
    assert_eq!(used, at(mac_of(&machine, "wire")));
    let in_vlan = USED.map(|address| probe(&dpu, "p0", Some(100), address));
    assert_eq!(found(&dpu, || who_has_beyond(&in_vlan, TIMEOUT)), []);
    let gone = Probe { link: 1_000_000, ..probes[0] };
    assert_eq!(found(&dpu, || who_has_beyond(&[gone], TIMEOUT)), []);
}

#[test]
fn machines_on_own_link_answer() {
    let (dpu, machine) = (TestNetns::new(), TestNetns::new());
    connect(&dpu, "own", &machine, "wire");
    dpu.run("ip link set own up");
    machine.run("ip link set wire up");
    for address in USED {
        machine.run(&format!("ip addr add {address}/24 dev wire nodad"));
    }
    wait_for_carrier(&dpu, "own");
    let probes = USED.map(|address| probe(&dpu, "own", None, address));
    assert_eq!(found(&dpu, || who_else_has(&probes, TIMEOUT)), at(mac_of(&machine, "wire")));
}

#[test]
fn probes_leave_neighbour_caches_unchanged() {
    const KNOWN: &str = "02:00:00:00:00:99";
    let (dpu, machine) = beyond_a_bridge();
    let neighbour = TestNetns::new();
    connect(&dpu, "port", &neighbour, "eth0");
    dpu.run("ip link set port master br0 up");
    neighbour.run("ip link set eth0 up");
    wait_for_carrier(&dpu, "port");
    neighbour.run("ip addr add 192.0.2.1/24 dev eth0");
    for address in USED {
        neighbour.run(&format!("ip neigh replace {address} lladdr {KNOWN} dev eth0 nud stale"));
    }
    let probes = USED.map(|address| probe(&dpu, "p0", None, address));
    let used = found(&dpu, || who_has_beyond(&probes, TIMEOUT));
    assert_eq!(used, at(mac_of(&machine, "wire")));
    let cache = neighbour.run("ip neigh show dev eth0");
    assert_eq!(cache.matches(KNOWN).count(), USED.len(), "{cache}");
}

/// An ARP reply to a question, from this machine.
fn reply(question: &[u8], mac: MacAddress, vlan: Option<u16>) -> Vec<u8> {
    let (asker, address) = (&question[6..12], &question[38..42]);
    let mut frame = [asker, &mac.0].concat();
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend([&mac.0[..], address, asker, &[0; 4]].concat());
    frame
}

#[test]
fn answers_count_only_in_their_vlan() {
    let (dpu, machine) = beyond_a_bridge();
    let socket = capture(&machine);
    let answering = thread::spawn(move || {
        let mut frame = [0; 128];
        let wire = loop {
            let (_, from) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut frame).unwrap();
            // The kernel strips the tag.
            if frame[..6] == [0xff; 6] && frame[12..14] == [8, 6] {
                break from.unwrap();
            }
        };
        for (last, vlan) in [(1, None), (2, Some(100)), (3, Some(101))] {
            let reply = reply(&frame, MacAddress([2, 0, 0, 0, 9, last]), vlan);
            let sent = sendto(socket.as_raw_fd(), &reply, &wire, MsgFlags::empty());
            assert_eq!(sent, Ok(reply.len()));
        }
    });
    let probes = [probe(&dpu, "p0", Some(100), "192.0.2.9")];
    let used = found(&dpu, || who_has_beyond(&probes, TIMEOUT));
    answering.join().unwrap();
    assert_eq!(used, [("192.0.2.9".parse().unwrap(), MacAddress([2, 0, 0, 0, 9, 2]))]);
}
