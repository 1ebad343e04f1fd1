//! Kept links in the bridge, such as that of the host's PF.

use model::PortSettings;
use netlink::{Request, VethEnd};
use test_clock::wait_until;

use crate::{
    support::TestNetns,
    veth_dpu::{Capture, Dpu, On, Pod, can, mark, pings},
};

const HOST: &str = "10.9.0.50";
/// The MAC address of the host's PF.
const PF: &str = "02:00:00:00:02:01";
const OUTSIDE: &str = "10.9.0.99";

/// Creates a link of the DPU. Its other end, `eth0`, is in that namespace and has an address.
fn wire(dpu: &Dpu, name: &str, other: &TestNetns, address: &str) {
    let end = VethEnd::new("eth0").netns(&other.netns);
    let end = if name == "p0" { end } else { end.mac(PF.parse().unwrap()) };
    dpu.netns.rtnl().change(Request::add_veth(&VethEnd::new(name), &end)).unwrap();
    other.run("ip link set eth0 up");
    other.run(&format!("ip addr add {address}/24 dev eth0"));
}

#[test]
fn host_network_returns_with_its_pf() {
    On::EVERY.into_iter().for_each(keeps_the_hosts_network);
}

fn keeps_the_hosts_network(on: On) {
    let (host, outside) = (TestNetns::new(), TestNetns::new());
    let dpu = Dpu::with_links(on, &["p0"], &["pf0hpf"]);
    wire(&dpu, "p0", &outside, OUTSIDE);
    let refused = dpu.prepare().unwrap_err();
    let reported = refused.to_string();
    assert!(reported.contains("kept link pf0hpf for bridge br-offload"), "{reported}");
    assert!(refused.is_partial(), "pods need it not");
    let pod = dpu.plug(0);
    dpu.program(&pod);
    pod.reaches(OUTSIDE);
    for _ in 0..2 {
        wire(&dpu, "pf0hpf", &host, HOST);
        dpu.netns.run("ip link set pf0hpf mtu 1400");
        dpu.prepare().unwrap();
        wait_until("the host is outside", || pings(&host, OUTSIDE));
        pod.reaches(HOST);
        assert_eq!(dpu.fabric.uplink_mtu(None), Some(1500), "of the uplink");
        let pf: netlink::MacAddress =
            dpu.netns.link("pf0hpf")["address"].as_str().unwrap().parse().unwrap();
        assert!(dpu.fabric.own_macs().contains(&pf));
        dpu.netns.run("ip link delete pf0hpf");
    }
}

#[test]
fn host_is_outside_the_pods_vlans() {
    On::EVERY.into_iter().for_each(keeps_the_host_out_of_vlans);
}

fn keeps_the_host_out_of_vlans(on: On) {
    let host = TestNetns::new();
    let mut dpu = Dpu::with_links(on, &[], &["pf0hpf"]);
    if !can(&*dpu.fabric, "vlan-filtering") {
        // Without VLAN filtering no pod is in a VLAN. The kernel of hack/vm has it.
        assert_eq!(on, On::Bridge);
        return;
    }
    wire(&dpu, "pf0hpf", &host, HOST);
    dpu.prepare().unwrap();
    let mut pods = [dpu.plug(0), dpu.plug(1)];
    pods[0].settings.vlan = Some(100);
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[1].reaches(HOST);
    assert!(!pods[0].pings(HOST));
    let settings = PortSettings { mac: PF.parse().unwrap(), ..pods[1].settings.clone() };
    let host = Pod { netns: host, settings };
    let capture = Capture::of(&pods[0].netns);
    let tag: &[[u8; 4]] = &[[0x81, 0, 0, 100]];
    host.sends([0xff; 6], tag, mark(0));

    match on {
        On::Bridge => drop(dpu.netns.run("bridge vlan add dev pf0hpf vid 100")),
        On::OpenVswitch => drop(dpu.vswitch().vsctl("add port pf0hpf trunks 100")),
    }
    dpu.prepare().unwrap();
    dpu.forget_decisions();
    host.sends([0xff; 6], tag, mark(1));
    assert_eq!(capture.marks_until(mark(1)), [mark(1)], "the one before passed nowhere");
}

#[test]
fn enslaved_kept_link_stays_where_it_is() {
    On::EVERY.into_iter().for_each(leaves_ports_of_others);
}

fn leaves_ports_of_others(on: On) {
    let (host, outside) = (TestNetns::new(), TestNetns::new());
    let dpu = Dpu::with_links(on, &["p0"], &["pf0hpf"]);
    wire(&dpu, "pf0hpf", &host, HOST);
    wire(&dpu, "p0", &outside, OUTSIDE);
    dpu.netns.run("ip link add foreign type bridge");
    for link in ["p0", "pf0hpf"] {
        dpu.netns.run(&format!("ip link set {link} master foreign"));
    }
    for (link, reported) in [("p0", "uplink p0"), ("pf0hpf", "kept link pf0hpf")] {
        let refused = dpu.prepare().unwrap_err().to_string();
        assert!(refused.starts_with(&format!("{reported} is a port of ")), "{refused}");
        assert_eq!(dpu.netns.link(link)["master"], "foreign");
        dpu.netns.run(&format!("ip link set {link} nomaster"));
    }
    dpu.prepare().unwrap();
    wait_until("the host is outside", || pings(&host, OUTSIDE));
}
