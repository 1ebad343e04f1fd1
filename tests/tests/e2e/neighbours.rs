//! The kernel's neighbour table, which all networks of a DPU share: pods that fill it, and pods that need it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{Lab, Netns, OUTSIDE, wait_for};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, bind,
        sendto, setsockopt, socket, sockopt::Ipv6Ttl,
    },
};
use serde_json::Value;

use crate::gateway::{lab, lab_of, nft, pod, settings};

const LIMIT: Duration = Duration::from_secs(30);

/// More entries than the kernel keeps by default (`net.ipv4.neigh.default.gc_thresh3`).
const UNUSED: u16 = 3000;

/// The pod repeatedly sends to unused addresses of its subnets through its gateway during `work`.
fn while_scanning(pod: &Netns, work: impl FnOnce()) {
    pod.ip(&["route", "add", "10.1.128.0/17", "via", "10.1.0.1"]);
    pod.ip(&["route", "add", "fd00:10:1::8000:0/97", "via", "fd00:10:1::1"]);
    let is_done = AtomicBool::new(false);
    let scan = || {
        let unspecified = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        let sockets = unspecified.map(|address| UdpSocket::bind((address, 0)).unwrap());
        for number in (0..UNUSED).cycle().take_while(|_| !is_done.load(Ordering::Relaxed)) {
            let [high, low] = number.to_be_bytes();
            let v4 = Ipv4Addr::new(10, 1, 128 + high, low);
            let v6 = Ipv6Addr::new(0xfd00, 0x10, 1, 0, 0, 0, 0x8000, number);
            for (socket, address) in sockets.iter().zip([IpAddr::from(v4), v6.into()]) {
                // Failures are expected: the gateway reports unreachable addresses.
                let _ = socket.send_to(&[0; 8], (address, 9));
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| netlink::Netns::open(&pod.path()).unwrap().run(scan).unwrap());
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_done.store(true, Ordering::Relaxed);
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Entries of a DPU's link, of both families.
fn neighbours(lab: &Lab, link: &str) -> Vec<Value> {
    let of_family = |family| lab.card.dpu.json("ip", &[family, "neigh", "show", "dev", link]);
    ["-4", "-6"].into_iter().flat_map(of_family).collect()
}

fn is_permanent(entry: &Value) -> bool {
    entry["state"].as_array().is_some_and(|states| states.contains(&"PERMANENT".into()))
}

/// Addresses with permanent entries.
fn permanent(lab: &Lab, link: &str) -> Vec<String> {
    let all = neighbours(lab, link);
    let known = all.iter().filter(|entry| is_permanent(entry));
    known.map(|entry| entry["dst"].as_str().unwrap().to_owned()).collect()
}

/// Deletes all entries of the DPU and the pod except permanent ones.
fn forget_neighbours(lab: &Lab, pod: &Netns) {
    lab.card.dpu.ip(&["neigh", "flush", "dev", "out"]);
    lab.card.dpu.ip(&["neigh", "flush", "dev", "gw-nated"]);
    pod.ip(&["neigh", "flush", "dev", "eth0"]);
}

#[test]
fn scanning_blocks_no_other_pod() {
    let (lab, _outside) = lab();
    let (scanning, _) = pod(&lab, "blue");
    let (running, _) = pod(&lab, "nated");
    while_scanning(&scanning, || {
        let is_busy = || neighbours(&lab, "gw-blue").iter().any(|entry| !is_permanent(entry));
        wait_for("the gateway asks for unused addresses", LIMIT, || is_busy().then_some(()));
        for _ in 0..5 {
            forget_neighbours(&lab, &running);
            let (new, _) = pod(&lab, "nated");
            for (pod, address) in [&running, &new].into_iter().zip(OUTSIDE.into_iter().cycle()) {
                assert!(pod.pings(address), "{} lost the way to {address}", pod.name());
            }
            lab.del("nated", &new, "eth0").nothing();
        }
    });
}

/// A network whose pods may use any address of its subnets, but no other MAC address.
const OPEN: &str = r#"
[[network]]
name = "open"
gateway_mode = "dpu"
anti_spoofing = "mac"
subnets = [{ cidr = "10.4.0.0/16", gateway = "10.4.0.1" }, { cidr = "fd00:10:4::/64", gateway = "fd00:10:4::1" }]
"#;

/// Number of addresses of its subnet that a pod uses.
const USED: u16 = 2000;

/// Runs in the pod's namespace.
fn link_of_pod() -> LinkAddr {
    let mut links = getifaddrs().unwrap().filter(|found| found.interface_name == "eth0");
    links.find_map(|found| Some(*found.address?.as_link_addr()?)).unwrap()
}

/// Sends ARP requests for the gateway from many addresses.
fn asks_from_many_v4() {
    let link = link_of_pod();
    let mac = link.addr().unwrap();
    let (family, flags) = (AddressFamily::Packet, SockFlag::empty());
    let socket = socket(family, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
    for number in 0..USED {
        let [high, low] = number.to_be_bytes();
        let mut frame = [[0xff; 6], mac].concat();
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(mac);
        frame.extend([10, 4, 128 + high, low, 0, 0, 0, 0, 0, 0, 10, 4, 0, 1]);
        frame.resize(60, 0);
        sendto(socket.as_raw_fd(), &frame, &link, MsgFlags::empty()).unwrap();
    }
}

/// Sends neighbour solicitations for the gateway from many addresses.
fn asks_from_many_v6() {
    let gateway: Ipv6Addr = "fd00:10:4::1".parse().unwrap();
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicitation.extend(gateway.octets());
    solicitation.extend([1, 1]);
    solicitation.extend(link_of_pod().addr().unwrap());
    fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
    let to = |address| SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, 0));
    for number in 0..USED {
        let (family, flags) = (AddressFamily::Inet6, SockFlag::empty());
        let socket = socket(family, SockType::Raw, flags, SockProtocol::IcmpV6).unwrap();
        setsockopt(&socket, Ipv6Ttl, &255).unwrap();
        let source = Ipv6Addr::new(0xfd00, 0x10, 4, 0, 0, 0, 0x8000, number);
        bind(socket.as_raw_fd(), &to(source)).unwrap();
        sendto(socket.as_raw_fd(), &solicitation, &to(gateway), MsgFlags::empty()).unwrap();
    }
}

#[test]
fn many_sources_do_not_fill_neighbour_table() {
    let mut settings = settings();
    settings.networks.push_str(OPEN);
    let (lab, _outside) = lab_of(&settings);
    let (asking, _) = pod(&lab, "open");
    let (other, _) = pod(&lab, "open");
    let (running, _) = pod(&lab, "nated");
    let reaches_gateway = || asking.pings("10.4.0.1") && asking.pings("fd00:10:4::1");
    wait_for("the gateway answers", LIMIT, || reaches_gateway().then_some(()));
    asking.run(asks_from_many_v4);
    asking.run(asks_from_many_v6);
    for (family, most) in [("-4", 300), ("-6", 300)] {
        let all = lab.card.dpu.json("ip", &[family, "neigh", "show", "dev", "gw-open"]);
        let made = all.iter().filter(|entry| !is_permanent(entry)).count();
        assert!((8..most).contains(&made), "{made} entries of {family} for {USED} sources");
    }
    // Its own address and other pods are not limited.
    asking.ip(&["neigh", "flush", "dev", "eth0"]);
    assert!(reaches_gateway());
    assert!(other.pings("10.4.0.1") && other.pings("fd00:10:4::1"));
    forget_neighbours(&lab, &running);
    assert!(OUTSIDE.iter().all(|address| running.pings(address)));
}

#[test]
fn pods_are_permanent_neighbours_of_their_gateway() {
    let (mut lab, _outside) = lab();
    let (one, of_one) = pod(&lab, "blue");
    let known = permanent(&lab, "gw-blue");
    assert!(of_one.iter().all(|address| known.contains(address)), "{of_one:?} of {known:?}");
    let listed = || nft(&lab.card.dpu, &["list", "set", "inet", "dpu-offload", "known-v4"]);
    wait_for("the pod is known to the rules", LIMIT, || {
        listed().contains(&of_one[0]).then_some(())
    });

    // A deleted entry returns after the next start, and entries of other programs stay.
    lab.card.dpu.ip(&["neigh", "del", &of_one[0], "dev", "gw-blue"]);
    let others =
        ["10.1.200.1", "lladdr", "02:00:00:00:02:01", "nud", "permanent", "dev", "gw-blue"];
    lab.card.dpu.ip(&[&["neigh", "add"][..], &others].concat());
    lab.service.stop();
    lab.start_service();
    lab.wait_until_good();
    let are_back = || permanent(&lab, "gw-blue").contains(&of_one[0]);
    wait_for("the entry is there again", LIMIT, || are_back().then_some(()));

    lab.del("blue", &one, "eth0").nothing();
    assert_eq!(permanent(&lab, "gw-blue"), ["10.1.200.1"]);
    wait_for("the rules forget the pod", LIMIT, || {
        let listed = nft(&lab.card.dpu, &["list", "set", "inet", "dpu-offload", "known-v4"]);
        (!listed.contains(&of_one[0])).then_some(())
    });
}

/// A server in the network of `green` that the DPU does not know.
fn server(lab: &Lab) -> Netns {
    let server = Netns::new("server");
    let peer = ["peer", "name", "eth0", "netns", server.name()];
    lab.card.dpu.ip(&[&["link", "add", "server", "type", "veth"][..], &peer].concat());
    lab.card.dpu.ip(&["link", "set", "server", "master", "br-offload", "up"]);
    server.ip(&["addr", "add", "10.2.0.250/24", "dev", "eth0"]);
    server.ip(&["addr", "add", "fd00:10:2::250/64", "dev", "eth0", "nodad"]);
    server.ip(&["link", "set", "eth0", "up"]);
    server.ip(&["route", "add", "default", "via", "10.2.0.1"]);
    server.ip(&["-6", "route", "add", "default", "via", "fd00:10:2::1"]);
    server
}

#[test]
fn unknown_servers_are_reached_by_the_gateway() {
    const SERVER: [&str; 2] = ["10.2.0.250", "fd00:10:2::250"];
    let (lab, _outside) = lab();
    let (scanning, _) = pod(&lab, "blue");
    let (other, _) = pod(&lab, "blue");
    let _server = server(&lab);
    let reaches = |pod: &Netns| SERVER.iter().all(|address| pod.pings(address));
    wait_for("a way to the server", LIMIT, || reaches(&other).then_some(()));
    while_scanning(&scanning, || {
        lab.card.dpu.ip(&["neigh", "flush", "dev", "gw-green"]);
        assert!(reaches(&other), "another pod's limit is its own");
    });
    // The budget remains although 6,000 addresses were resolved.
    wait_for("a way from the other pod", LIMIT, || reaches(&scanning).then_some(()));
}
