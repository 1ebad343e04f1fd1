//! The bridge, its uplinks and its ports.

use drivers::{driver::Fault, fabric::Fabric};
use netlink::{LinkChange, Request, VethEnd};
use serde_json::Value;
use test_clock::wait_until;

use crate::veth_dpu::{BRIDGE, Dpu, Pod, at_once, can, open_fabric};

#[test]
fn pods_reach_each_other_in_both_families() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let (one, two) = (dpu.plug(0), dpu.plug(1));
    dpu.program(&one);
    dpu.program(&two);
    one.reaches("10.9.0.2");
    one.reaches("fd09::2");
    assert_eq!(dpu.fdb_macs("pf0vf0"), ["02:00:00:00:01:00"]);
    let port = dpu.bridge_port("pf0vf0");
    assert_eq!((&port["learning"], &port["flood"]), (&false.into(), &false.into()));
    assert_eq!(port["state"], "forwarding");
}

#[test]
fn bridge_is_created_once_and_stays_silent() {
    let dpu = Dpu::new();
    assert_eq!(dpu.fabric.members().unwrap().len(), 0);
    dpu.prepare().unwrap();
    let made = dpu.netns.link(BRIDGE);
    assert_eq!(made["ifalias"], "dpu-offload fabric");
    assert_eq!(made["linkinfo"]["info_data"]["mcast_snooping"], 0);
    assert_eq!(made["linkinfo"]["info_data"]["stp_state"], 0);
    assert!(made["flags"].as_array().unwrap().contains(&"UP".into()));
    let pod = dpu.plug(0);
    dpu.program(&pod);
    let addresses = dpu.netns.json(&format!("ip -j addr show dev {BRIDGE}"));
    assert_eq!(addresses[0]["addr_info"], Value::Array(Vec::new()));

    dpu.prepare().unwrap();
    let again = open_fabric(&dpu.netns, &[], &dpu.abilities);
    again.prepare().unwrap();
    assert_eq!(dpu.netns.link(BRIDGE)["ifindex"], made["ifindex"]);
    assert_eq!(dpu.netns.link("pf0vf0")["master"], BRIDGE);
}

#[test]
fn link_with_the_bridges_name_is_refused() {
    let dpu = Dpu::new();
    dpu.netns.run(&format!("ip link add {BRIDGE} type veth peer name other"));
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.starts_with("link br-offload is no bridge: "), "{refused}");
    assert!(refused.contains("fabric.bridge"), "{refused}");
}

#[test]
fn repairs_of_bridge_and_uplinks_are_reported() {
    let dpu = Dpu::with_uplinks(&["p0"]);
    assert!(dpu.prepare().is_err(), "there is no uplink");
    dpu.netns.run("ip link add p0 type veth peer name wire0");
    let repairs = || {
        dpu.prepare().unwrap();
        dpu.fabric.take_repairs()
    };
    assert_eq!(repairs(), [""; 0], "they are there for the first time");
    dpu.netns.run("ip link set p0 down");
    assert_eq!(repairs(), ["uplink p0 was switched off: switched it on"]);
    dpu.netns.run(&format!("ip link delete {BRIDGE}"));
    let missing = format!("bridge {BRIDGE} was missing: created it again");
    assert_eq!(repairs(), [missing, format!("uplink p0 was not in bridge {BRIDGE}: joined it")]);
    assert_eq!(repairs(), [""; 0]);
}

#[test]
fn missing_uplinks_are_reported_by_name() {
    let dpu = Dpu::with_uplinks(&["gone", "taken", "p0"]);
    dpu.netns.run("ip link add p0 type veth peer name wire0");
    dpu.netns.run("ip link add taken type veth peer name wire1");
    dpu.netns.run("ip link add foreign type bridge");
    dpu.netns.run("ip link set taken master foreign");
    let refused = dpu.prepare().unwrap_err();
    let reported = refused.to_string();
    assert!(reported.contains("uplink gone "), "{reported}");
    assert!(refused.is_partial(), "pods reach each other without");
    assert_eq!(dpu.netns.link("p0")["master"], BRIDGE);
    assert_eq!(dpu.netns.link("taken")["master"], "foreign");

    dpu.netns.run("ip link add gone type veth peer name wire2");
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.starts_with("uplink taken "), "{refused}");
    assert_eq!(dpu.netns.link("gone")["master"], BRIDGE);
    dpu.netns.run("ip link set taken nomaster");
    dpu.prepare().unwrap();
}

#[test]
fn ports_that_others_hold_back_are_opened() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pods = [dpu.plug(0), dpu.plug(1)];
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[0].reaches("10.9.0.2");
    let before = ["pf0vf0", "pf0vf1"].map(|port| dpu.bridge_port(port));
    for (setting, command, cuts_off) in [
        ("isolated", "bridge link set dev PORT isolated on", true),
        ("bcast_flood", "bridge link set dev PORT bcast_flood off", true),
        ("mcast_flood", "bridge link set dev PORT mcast_flood off", false),
        ("locked", "bridge link set dev PORT locked on", false),
        ("proxy_arp", "ip link set dev PORT type bridge_slave proxy_arp on", true),
        ("state", "bridge link set dev PORT state 0", true),
    ] {
        for port in ["pf0vf0", "pf0vf1"] {
            dpu.netns.run(&command.replace("PORT", port));
        }
        for pod in &pods {
            pod.netns.run("ip neigh flush dev eth0");
        }
        assert!(!cuts_off || !pods[0].pings("10.9.0.2"), "{setting}");
        for pod in &pods {
            let port = dpu.representor(pod);
            let found = dpu.fabric.member(&port).unwrap().unwrap();
            assert_eq!(found.held_back_by, [setting].into());
            assert_eq!(dpu.fabric.members().unwrap()[&port.index], found);
            dpu.program(pod);
        }
        assert_eq!(["pf0vf0", "pf0vf1"].map(|port| dpu.bridge_port(port)), before, "{setting}");
        pods[0].reaches("10.9.0.2");
    }
}

#[test]
fn own_bridge_gets_its_settings_back() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    dpu.netns.run(&format!("ip link set dev {BRIDGE} type bridge stp_state 1 mcast_snooping 1"));
    dpu.prepare().unwrap();
    assert!(dpu.fabric.take_repairs().concat().contains(BRIDGE));
    let found = dpu.netns.link(BRIDGE)["linkinfo"]["info_data"].clone();
    assert_eq!((&found["stp_state"], &found["mcast_snooping"]), (&0.into(), &0.into()));
    dpu.prepare().unwrap();
    assert_eq!(dpu.fabric.take_repairs(), [""; 0]);
}

#[test]
fn stp_of_foreign_bridge_is_refused_by_name() {
    let dpu = Dpu::new();
    dpu.netns.run(&format!("ip link add {BRIDGE} type bridge stp_state 1"));
    let refused = dpu.prepare().unwrap_err();
    assert!(refused.is_partial(), "the ports of pods are still joined");
    for named in [BRIDGE, "stp_state 0"] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    let pods = [dpu.plug(0), dpu.plug(1)];
    pods.iter().for_each(|pod| dpu.program(pod));
    wait_until("STP begins with the port", || dpu.bridge_port("pf0vf0")["state"] == "listening");
    let found = dpu.fabric.member(&dpu.representor(&pods[0])).unwrap().unwrap();
    assert_eq!(found.held_back_by, [].into(), "that is STP's affair");

    dpu.netns.run(&format!("ip link set dev {BRIDGE} type bridge stp_state 0"));
    dpu.prepare().unwrap();
    pods.iter().for_each(|pod| dpu.program(pod));
    assert_eq!(dpu.bridge_port("pf0vf0")["state"], "forwarding", "before its delay is over");
    pods[0].reaches("10.9.0.2");
}

/// `tests/vm_fabric.rs` covers kernels with VLAN filtering.
#[test]
fn vlans_are_refused_without_vlan_filtering() {
    let dpu = Dpu::new();
    let mut settings = dpu.plug(0).settings;
    settings.vlan = Some(100);
    match dpu.fabric.check(&settings) {
        Ok(()) => assert!(can(&*dpu.fabric, "vlan-filtering")),
        Err(refused) => {
            assert!(!can(&*dpu.fabric, "vlan-filtering"));
            let refused = refused.to_string();
            assert!(refused.starts_with("VLAN 100 "), "{refused}");
        }
    }
}

#[test]
fn full_bridge_is_reported_by_name() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    let mut rtnl = dpu.netns.rtnl();
    let bridge = rtnl.link_by_name(BRIDGE).unwrap().unwrap().index;
    // The most ports that fit: both ends of each pair.
    for pair in 0..512 {
        let [one, two] = [10_000, 20_000].map(|first| first + pair);
        let end = |index: u32| VethEnd::new(format!("x{index}")).index(index);
        rtnl.change(Request::add_veth(&end(one), &end(two))).unwrap();
        rtnl.change_link(one, &LinkChange::new().master(Some(bridge))).unwrap();
        if pair < 511 {
            rtnl.change_link(two, &LinkChange::new().master(Some(bridge))).unwrap();
        }
    }
    let refused = dpu.fabric.join(&dpu.representor(&pod), &pod.settings).unwrap_err();
    assert_eq!(refused.fault(), Fault::FabricFull);
    for named in ["bridge br-offload", "1023", "pf0vf0"] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
}

#[test]
fn concurrent_joins_and_leaves_are_consistent() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pods: Vec<_> = (0..8).map(|number| dpu.plug(number)).collect();
    let join = |pod: &Pod| {
        let port = dpu.representor(pod);
        dpu.fabric.join(&port, &pod.settings).unwrap();
        dpu.fabric.set_guard(&port, &pod.settings).unwrap();
    };
    let leave = |pod: &Pod| dpu.fabric.leave(&dpu.representor(pod)).unwrap();
    at_once(&pods, |pod| {
        for _ in 0..10 {
            join(pod);
            leave(pod);
        }
        if pod.settings.vf.vf % 2 == 0 {
            join(pod);
        }
    });
    let members = dpu.fabric.members().unwrap();
    for pod in &pods {
        let port = dpu.representor(pod);
        let is_in = pod.settings.vf.vf % 2 == 0;
        assert_eq!(members.contains_key(&port.index), is_in, "{port:?}");
        let is_guarded = dpu.fabric.guard(&port, &pod.settings).unwrap().in_place;
        assert_eq!(is_guarded, is_in, "{port:?}");
    }
}

#[test]
fn a_representor_is_not_taken_from_another_bridge() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    dpu.netns.run("ip link add theirs type bridge");
    dpu.netns.run("ip link set pf0vf0 master theirs");
    let refused = dpu.fabric.join(&dpu.representor(&pod), &pod.settings).unwrap_err();
    for named in ["representor pf0vf0", "theirs", "`ip link set pf0vf0 nomaster`"] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    dpu.fabric.leave(&dpu.representor(&pod)).unwrap();
    assert_eq!(dpu.netns.link("pf0vf0")["master"], "theirs");

    // A bridge that this service made under another name is its own.
    let mut rtnl = dpu.netns.rtnl();
    let theirs = rtnl.link_by_name("theirs").unwrap().unwrap().index;
    rtnl.change_link(theirs, &LinkChange::new().alias("dpu-offload fabric")).unwrap();
    dpu.program(&pod);
    assert_eq!(dpu.netns.link("pf0vf0")["master"], BRIDGE);
}
