//! Several bridges as one fabric, each with an uplink of its own.

use drivers::fabric::{BridgeSettings, GatewayPort, Membership};
use model::PortSettings;
use netlink::MacAddress;

use crate::veth_dpu::{BRIDGE, Dpu, On, Pod, at_once};

const STORAGE: &str = "br-storage";

/// A DPU with two bridges for networks.
fn with_two(on: On) -> Dpu {
    let bridge = |name: &str, uplink: &str, sibling: &str| BridgeSettings {
        name: name.into(),
        uplinks: vec![uplink.into()],
        siblings: vec![sibling.into()],
        ..BridgeSettings::default()
    };
    let bridges = vec![bridge(BRIDGE, "p0", STORAGE), bridge(STORAGE, "p1", BRIDGE)];
    let dpu = Dpu::with_bridges(on, bridges);
    dpu.netns.run("ip link add p0 type veth peer name wire0");
    dpu.netns.run("ip link add p1 mtu 9000 type veth peer name wire1 mtu 9000");
    dpu
}

/// A pod of a network in that bridge.
fn plug(dpu: &Dpu, number: u16, bridge: Option<&str>) -> Pod {
    let mut pod = dpu.plug(number);
    pod.settings.bridge = bridge.map(Into::into);
    pod
}

/// The link's bridge, as other tools report it.
fn bridge_of(dpu: &mut Dpu, on: On, link: &str) -> String {
    match on {
        On::Bridge => dpu.netns.link(link)["master"].as_str().unwrap_or_default().to_owned(),
        On::OpenVswitch => dpu.vswitch().vsctl(&format!("port-to-br {link}")).trim().to_owned(),
    }
}

/// Moves the port into another program's bridge, as that program would.
fn take_away(dpu: &mut Dpu, on: On, port: &str, bridge: &str) {
    match on {
        On::Bridge => drop(dpu.netns.run(&format!("ip link set {port} master {bridge}"))),
        On::OpenVswitch => {
            let other = format!("del-port {port} -- add-port {bridge} {port}");
            let marks = format!("-- set port {port} external_ids:owner=dpu-offload");
            drop(dpu.vswitch().vsctl(&format!("{other} {marks}")));
        }
    }
}

fn membership(dpu: &Dpu, pod: &Pod) -> Option<Membership> {
    let port = dpu.representor(pod);
    let found = dpu.fabric.member(&port).unwrap();
    assert_eq!(found, dpu.fabric.members().unwrap().remove(&port.index));
    found
}

fn is_as_wanted(dpu: &Dpu, pod: &Pod) -> bool {
    let guard = dpu.fabric.guard(&dpu.representor(pod), &pod.settings).unwrap();
    membership(dpu, pod) == Some(dpu.fabric.membership(&pod.settings)) && guard.in_place
}

#[test]
fn pods_of_two_bridges_are_separate() {
    for on in On::EVERY {
        let mut dpu = with_two(on);
        dpu.prepare().unwrap();
        assert_eq!(bridge_of(&mut dpu, on, "p0"), BRIDGE);
        assert_eq!(bridge_of(&mut dpu, on, "p1"), STORAGE);
        let pods = [None, Some(BRIDGE), Some(STORAGE), Some(STORAGE)];
        let pods = [0, 1, 2, 3].map(|number| plug(&dpu, number, pods[usize::from(number)]));
        pods.iter().for_each(|pod| dpu.program(pod));
        let reported = membership(&dpu, &pods[2]).unwrap().to_string();
        assert_eq!(reported, "joined to br-storage, untagged", "{on:?}");
        assert!(pods.iter().all(|pod| is_as_wanted(&dpu, pod)), "{on:?}");
        for (pod, bridge) in pods.iter().zip([BRIDGE, BRIDGE, STORAGE, STORAGE]) {
            assert_eq!(bridge_of(&mut dpu, on, &pod.settings.vf.to_string()), bridge);
        }
        pods[0].reaches("10.9.0.2");
        pods[2].reaches("10.9.0.4");
        assert!(!pods[0].pings("10.9.0.3") && !pods[3].pings("10.9.0.2"), "{on:?}");
        for pod in &pods {
            dpu.fabric.leave(&dpu.representor(pod)).unwrap();
            assert_eq!(membership(&dpu, pod), None, "{on:?}");
        }
    }
}

#[test]
fn each_bridge_has_its_own_uplinks() {
    for on in On::EVERY {
        let dpu = with_two(on);
        dpu.prepare().unwrap();
        assert_eq!(dpu.fabric.uplink_mtu(None), Some(1500), "{on:?}");
        assert_eq!(dpu.fabric.uplink_mtu(Some(STORAGE)), Some(9000), "{on:?}");
        assert_eq!(dpu.fabric.uplinks(None), ["p0"], "{on:?}");
        assert_eq!(dpu.fabric.uplinks(Some(STORAGE)), ["p1"], "{on:?}");
        assert!(dpu.fabric.uplinks(Some("gone")).is_empty(), "{on:?}");
        let macs = dpu.fabric.own_macs();
        for link in [BRIDGE, STORAGE, "p0", "p1"] {
            let mac: MacAddress =
                dpu.netns.link(link)["address"].as_str().unwrap().parse().unwrap();
            assert!(macs.contains(&mac), "{on:?}: {link}");
        }
    }
}

#[test]
fn port_moved_to_another_bridge_returns() {
    for on in On::EVERY {
        let mut dpu = with_two(on);
        dpu.prepare().unwrap();
        let pods = [plug(&dpu, 0, Some(STORAGE)), plug(&dpu, 1, Some(STORAGE))];
        pods.iter().for_each(|pod| dpu.program(pod));
        pods[0].reaches("10.9.0.2");
        take_away(&mut dpu, on, "pf0vf0", BRIDGE);
        assert!(!is_as_wanted(&dpu, &pods[0]), "{on:?}");
        dpu.program(&pods[0]);
        dpu.prepare().unwrap();
        assert!(is_as_wanted(&dpu, &pods[0]), "{on:?}");
        assert_eq!(bridge_of(&mut dpu, on, "pf0vf0"), STORAGE);
        pods[0].reaches("10.9.0.2");
    }
}

#[test]
fn failed_further_bridge_spares_the_first() {
    for on in On::EVERY {
        let dpu = with_two(on);
        for link in ["p1", "p0"] {
            dpu.netns.run(&format!("ip link delete {link}"));
            let refused = dpu.prepare().unwrap_err();
            assert!(refused.is_partial(), "{on:?}: {refused}");
        }
        let reported = dpu.prepare().unwrap_err().to_string();
        assert!(reported.contains("no uplink p0 for bridge br-offload"), "{reported}");
        dpu.program(&plug(&dpu, 0, None));
    }
}

#[test]
fn ovs_bridges_share_port_numbers() {
    let mut dpu = with_two(On::OpenVswitch);
    dpu.prepare().unwrap();
    let pods = [0, 1].map(|number| plug(&dpu, number, [None, Some(STORAGE)][usize::from(number)]));
    at_once(&pods, |pod| dpu.fabric.join(&dpu.representor(pod), &pod.settings).unwrap());
    let numbers = ["pf0vf0", "pf0vf1"]
        .map(|name| dpu.vswitch().vsctl(&format!("get interface {name} ofport")));
    assert_ne!(numbers[0], numbers[1], "connections are looked up by them");
}

#[test]
fn missing_bridge_does_not_affect_another() {
    for on in On::EVERY {
        let mut dpu = with_two(on);
        dpu.prepare().unwrap();
        let pod = plug(&dpu, 0, None);
        dpu.program(&pod);
        match on {
            On::Bridge => drop(dpu.netns.run(&format!("ip link del {STORAGE}"))),
            On::OpenVswitch => drop(dpu.vswitch().vsctl(&format!("del-br {STORAGE}"))),
        }
        assert!(is_as_wanted(&dpu, &pod), "{on:?}");
        assert!(dpu.fabric.drops().unwrap().contains_key(&dpu.representor(&pod).index), "{on:?}");
    }
}

#[test]
fn unknown_bridge_is_refused_by_name() {
    let dpu = with_two(On::Bridge);
    dpu.prepare().unwrap();
    let pod = plug(&dpu, 0, Some("br-gone"));
    let reported = dpu.fabric.check(&pod.settings).unwrap_err().to_string();
    assert!(reported.starts_with("bridge = \"br-gone\" "), "{reported}");
    let port = dpu.representor(&pod);
    let reported = dpu.fabric.join(&port, &pod.settings).unwrap_err().to_string();
    assert!(reported.contains("no bridge br-gone"), "{reported}");
    let known = PortSettings { bridge: Some(STORAGE.into()), ..pod.settings };
    assert!(dpu.fabric.check(&known).is_ok());
}

#[test]
fn gateways_stand_in_the_bridges_of_their_networks() {
    let mut dpu = with_two(On::Bridge);
    dpu.prepare().unwrap();
    let port = |network: &str, bridge: Option<&str>| GatewayPort {
        network: network.into(),
        bridge: bridge.map(Into::into),
        vlan: None,
        mtu: 1500,
    };
    let set = |dpu: &Dpu, ports: &[GatewayPort]| {
        let links = dpu.netns.netns.run(|| dpu.fabric.set_gateways(ports)).unwrap().unwrap();
        links.into_iter().map(|link| link.unwrap().index).collect::<Vec<_>>()
    };
    let ports = [port("blue", None), port("storage", Some(STORAGE)), port("red", Some(BRIDGE))];
    let links = set(&dpu, &ports);
    assert_eq!(set(&dpu, &ports), links, "nothing is created again");
    for (end, bridge) in [("gp-blue", BRIDGE), ("gp-storage", STORAGE), ("gp-red", BRIDGE)] {
        assert_eq!(bridge_of(&mut dpu, On::Bridge, end), bridge);
    }
    let _ = set(&dpu, &[port("blue", Some(STORAGE)), port("red", None)]);
    assert_eq!(bridge_of(&mut dpu, On::Bridge, "gp-blue"), STORAGE);
    assert_eq!(bridge_of(&mut dpu, On::Bridge, "gp-red"), BRIDGE);
    let left = dpu.netns.json("ip -j link").to_string();
    assert!(!left.contains("gp-storage") && !left.contains("gw-storage"), "{left}");
}
