//! Bridges, ports and FDB entries, checked with `bridge`.

use netlink::{Bridge, BridgePort, BridgeVlan, LinkChange, MacAddress, Request, Rtnl, VethEnd};
use serde_json::json;
use test_clock::wait_until;

use crate::support::TestNetns;

const PORT: u32 = 51;

/// A namespace in which `rep` is a port of the bridge `br`.
fn with_port() -> (TestNetns, Rtnl, u32) {
    let netns = TestNetns::new();
    let mut rtnl = netns.rtnl();
    rtnl.change(Request::add_bridge("br", &Bridge::default())).unwrap();
    rtnl.change(Request::add_veth(&VethEnd::new("vf").index(50), &VethEnd::new("rep").index(PORT)))
        .unwrap();
    let bridge = rtnl.link_by_name("br").unwrap().unwrap().index;
    rtnl.change_link(PORT, &LinkChange::new().master(Some(bridge))).unwrap();
    (netns, rtnl, bridge)
}

#[test]
fn port_joins_and_leaves_bridge() {
    let (netns, mut rtnl, bridge) = with_port();
    assert_eq!(netns.link("rep")["master"], "br");
    assert_eq!(rtnl.link_by_index(PORT).unwrap().unwrap().master, Some(bridge));
    rtnl.change_link(PORT, &LinkChange::new().master(None)).unwrap();
    assert_eq!(netns.link("rep")["master"], json!(null));
    let link = rtnl.link_by_index(PORT).unwrap().unwrap();
    assert_eq!((link.master, link.bridge_port), (None, None));
}

#[test]
fn bridge_port_settings_read_back() {
    let (netns, mut rtnl, _) = with_port();
    let wanted = BridgePort {
        learning: Some(false),
        locked: Some(true),
        isolated: Some(true),
        unicast_flood: Some(false),
        multicast_flood: Some(false),
        broadcast_flood: Some(false),
        hairpin: Some(true),
        proxy_arp: Some(true),
    };
    rtnl.change(Request::set_bridge_port(PORT, &wanted)).unwrap();
    let shown = &netns.link("rep")["linkinfo"]["info_slave_data"];
    for off in ["learning", "flood", "mcast_flood", "bcast_flood"] {
        assert_eq!(shown[off], false, "{off}");
    }
    for on in ["locked", "isolated", "hairpin", "proxy_arp"] {
        assert_eq!(shown[on], true, "{on}");
    }
    assert_eq!(rtnl.link_by_index(PORT).unwrap().unwrap().bridge_port, Some(wanted));

    rtnl.change(Request::set_bridge_port(
        PORT,
        &BridgePort { locked: Some(false), ..BridgePort::default() },
    ))
    .unwrap();
    let read = rtnl.link_by_index(PORT).unwrap().unwrap().bridge_port.unwrap();
    assert_eq!(read, BridgePort { locked: Some(false), ..wanted });
}

#[test]
fn port_that_was_disabled_forwards_again() {
    let (netns, mut rtnl, bridge) = with_port();
    for link in [bridge, 50, PORT] {
        rtnl.change_link(link, &LinkChange::new().up()).unwrap();
    }
    let state = || netns.json("bridge -j link show dev rep")[0]["state"].clone();
    // The kernel notes a carrier some time after the link is up, and enables a disabled port then
    // (`br_port_carrier_check` in net/bridge/br_if.c).
    wait_until("the carrier is noted", || netns.link("rep")["operstate"] == "UP");
    wait_until("the port forwards", || state() == "forwarding");
    netns.run("bridge link set dev rep state 0");
    assert_eq!(state(), "disabled");
    assert!(!rtnl.link_by_index(PORT).unwrap().unwrap().is_forwarding);
    rtnl.change(Request::set_and_forward_bridge_port(PORT, &BridgePort::default())).unwrap();
    assert_eq!(state(), "forwarding");
}

#[test]
fn bridge_settings_read_back() {
    let (netns, mut rtnl, bridge) = with_port();
    let found = |rtnl: &mut Rtnl| rtnl.link_by_name("br").unwrap().unwrap().bridge.unwrap();
    for on in [true, false] {
        let wanted = Bridge { spanning_tree: Some(on), ..Bridge::default() };
        rtnl.change(Request::set_bridge(bridge, &wanted)).unwrap();
        let shown = &netns.link("br")["linkinfo"]["info_data"];
        assert_eq!(shown["stp_state"], u8::from(on));
        assert_eq!(found(&mut rtnl).spanning_tree, Some(on));
    }
}

#[test]
fn fdb_entries_are_added_and_deleted() {
    let (netns, mut rtnl, _) = with_port();
    let mac: MacAddress = "02:00:00:00:00:01".parse().unwrap();
    let count = || {
        let shown = netns.json("bridge -j fdb show dev rep");
        let is_it = |entry: &&serde_json::Value| {
            entry["mac"] == "02:00:00:00:00:01"
                && entry["state"] == "static"
                && entry["master"] == "br"
        };
        shown.as_array().unwrap().iter().filter(is_it).count()
    };
    for _ in 0..2 {
        rtnl.change(Request::add_fdb(PORT, mac, None)).unwrap();
        assert_eq!(count(), 1);
    }
    let entries = rtnl.fdb().unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!((entries[0].port, entries[0].mac, entries[0].vlan), (PORT, mac, None));
    assert!(entries[0].is_static);
    rtnl.change(Request::delete_fdb(PORT, mac, None)).unwrap();
    assert_eq!(count(), 0);
    assert!(rtnl.change(Request::delete_fdb(PORT, mac, None)).unwrap_err().is_not_found());
}

/// VLANs work if the kernel has VLAN filtering; otherwise the error says that they are unsupported.
#[test]
fn vlans_work_or_are_unsupported() {
    let (netns, mut rtnl, bridge) = with_port();
    let vlan = BridgeVlan { id: 42, pvid: true, untagged: true };
    match rtnl.change(Request::add_bridge_vlan(PORT, vlan)) {
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            assert!(error.to_string().contains("VLAN 42 to link rep (51): "), "{error}");
            assert!(rtnl.bridge_vlans(bridge).unwrap().is_empty());
            let filtering = Bridge { vlan_filtering: true, ..Bridge::default() };
            let refused = rtnl.change(Request::add_bridge("filtering", &filtering)).unwrap_err();
            assert!(refused.is_unsupported(), "{refused}");
        }
        Ok(()) => {
            let shown = netns.json("bridge -j vlan show dev rep");
            assert!(shown.to_string().contains("42"), "{shown}");
            assert!(rtnl.bridge_vlans(bridge).unwrap()[&PORT].contains(&vlan));
            rtnl.change(Request::delete_bridge_vlan(PORT, 42)).unwrap();
            assert!(!rtnl.bridge_vlans(bridge).unwrap()[&PORT].contains(&vlan));
        }
    }
    rtnl.change_link(bridge, &LinkChange::new().up()).unwrap();
}
