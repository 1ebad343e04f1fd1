//! Links: creation, changes, moves and deletion, checked with `ip`.

use netlink::{LinkChange, MacAddress, Request, VethEnd};
use nix::errno::Errno;
use serde_json::json;

use crate::support::TestNetns;

fn mac(text: &str) -> MacAddress {
    text.parse().unwrap()
}

/// A namespace with the veth pair `one` and `two`.
fn with_pair() -> TestNetns {
    let netns = TestNetns::new();
    netns.rtnl().change(Request::add_veth(&VethEnd::new("one"), &VethEnd::new("two"))).unwrap();
    netns
}

#[test]
fn veth_pair_spans_two_namespaces() {
    let (here, there) = (TestNetns::new(), TestNetns::new());
    let end = VethEnd::new("a").mac(mac("02:00:00:00:00:0a")).mtu(9000).index(77);
    let other = VethEnd::new("b").mac(mac("02:00:00:00:00:0b")).mtu(1400).netns(&there.netns);
    here.rtnl().change(Request::add_veth(&end, &other)).unwrap();
    let a = here.link("a");
    assert_eq!(a["address"], "02:00:00:00:00:0a");
    assert_eq!((&a["mtu"], &a["ifindex"]), (&json!(9000), &json!(77)));
    let b = there.link("b");
    assert_eq!((&b["address"], &b["mtu"]), (&json!("02:00:00:00:00:0b"), &json!(1400)));

    let mut rtnl = here.rtnl();
    let link = rtnl.link_by_name("a").unwrap().unwrap();
    let peer = rtnl.peer_of(&link).unwrap().unwrap();
    assert_eq!((peer.name.as_str(), peer.mac), ("b", Some(mac("02:00:00:00:00:0b"))));
}

#[test]
fn settings_made_by_ip_are_read() {
    let netns = with_pair();
    netns.run("ip link set dev one mtu 1300 alias hello address 02:00:00:00:00:01 group 7");
    netns.run("ip link set dev one promisc on allmulticast on txqueuelen 77");
    netns.run("ip link property add dev one altname another-name-of-more-than-15-bytes");
    let mut rtnl = netns.rtnl();
    let link = rtnl.link_by_name("another-name-of-more-than-15-bytes").unwrap().unwrap();
    assert_eq!(link.name, "one");
    assert_eq!((link.mtu, link.group, link.queue_length), (1300, 7, 77));
    assert!(link.is_promiscuous && link.is_all_multicast);
    assert_eq!(link.alias.as_deref(), Some("hello"));
    assert_eq!(link.mac, Some(mac("02:00:00:00:00:01")));
    assert_eq!(link.kind.as_deref(), Some("veth"));
    assert_eq!(link.alternative_names, ["another-name-of-more-than-15-bytes"]);
    assert!(!link.is_up && !link.is_running);
    assert_eq!(rtnl.link_by_index(link.index).unwrap(), Some(link.clone()));
    assert!(rtnl.links().unwrap().contains(&link));
    assert_eq!(rtnl.link_by_name("nobody").unwrap(), None);
    assert_eq!(rtnl.link_by_index(4711).unwrap(), None);
}

#[test]
fn ip_displays_settings() {
    let netns = with_pair();
    let mut rtnl = netns.rtnl();
    let index = rtnl.link_by_name("one").unwrap().unwrap().index;
    let change = LinkChange::new().name("c").mtu(1300).mac(mac("02:00:00:00:00:01")).group(7);
    rtnl.change_link(index, &change.alias("hello").up()).unwrap();
    rtnl.change(Request::add_alternative_name(index, "other")).unwrap();
    let link = netns.link("c");
    assert_eq!((&link["mtu"], &link["address"]), (&json!(1300), &json!("02:00:00:00:00:01")));
    assert_eq!((&link["ifalias"], &link["group"]), (&json!("hello"), &json!("7")));
    assert_eq!(link["altnames"], json!(["other"]));
    assert!(link["flags"].as_array().unwrap().contains(&json!("UP")));

    let change = LinkChange::new().promiscuous(true).all_multicast(true).queue_length(77);
    rtnl.change_link(index, &change).unwrap();
    let link = netns.link("c");
    let flags = link["flags"].as_array().unwrap();
    assert!(["PROMISC", "ALLMULTI", "UP"].iter().all(|flag| flags.contains(&json!(flag))));
    assert_eq!(link["txqlen"], 77);
    rtnl.change_link(index, &LinkChange::new().promiscuous(false).all_multicast(false)).unwrap();
    let link = netns.link("c");
    let flags = link["flags"].as_array().unwrap();
    assert!(!["PROMISC", "ALLMULTI"].iter().any(|flag| flags.contains(&json!(flag))));

    rtnl.change(Request::delete_alternative_name(index, "other")).unwrap();
    rtnl.change_link(index, &LinkChange::new().alias("").down()).unwrap();
    let link = netns.link("c");
    assert_eq!((&link["ifalias"], &link["altnames"]), (&json!(null), &json!(null)));
    assert!(!link["flags"].as_array().unwrap().contains(&json!("UP")));

    rtnl.change(Request::delete_link(index)).unwrap();
    assert!(netns.link_names().is_empty());
    assert!(rtnl.change(Request::delete_link(index)).unwrap_err().is_not_found());
}

/// Its description is longer than 64 KiB.
#[test]
fn link_with_many_names_is_read() {
    let netns = with_pair();
    let mut rtnl = netns.rtnl();
    let index = rtnl.link_by_name("one").unwrap().unwrap().index;
    let names: Vec<_> = (0..496).map(|number| format!("{number:0>127}")).collect();
    for name in &names {
        rtnl.change(Request::add_alternative_name(index, name)).unwrap();
    }
    let listed = rtnl.links().unwrap().into_iter().find(|link| link.index == index).unwrap();
    assert_eq!(listed.alternative_names, names);
    assert_eq!(rtnl.link_by_name(&names[495]).unwrap(), Some(listed));
}

#[test]
fn error_has_sentence_link_and_value() {
    let netns = with_pair();
    let mut rtnl = netns.rtnl();
    let index = rtnl.link_by_name("one").unwrap().unwrap().index;
    let error = rtnl.change_link(index, &LinkChange::new().mtu(5)).unwrap_err();
    let reported = format!("MTU 5 of link one ({index}): mtu less than device minimum");
    assert!(error.to_string().ends_with(&reported), "{error}");
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    let error = rtnl.change_link(index, &LinkChange::new().name("two")).unwrap_err();
    assert!(error.is_exists(), "{error}");
}
