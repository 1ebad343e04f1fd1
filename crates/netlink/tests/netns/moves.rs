//! Moves between namespaces: what they keep and lose, and where a failed one leaves the link.

use netlink::{Link, LinkChange, Request, Rtnl, VethEnd};
use nix::errno::Errno;
use serde_json::json;

use crate::support::TestNetns;

/// A host with the link `vf`, and a pod's namespace.
struct Scene {
    host: TestNetns,
    pod: TestNetns,
    rtnl: Rtnl,
    vf: Link,
}

impl Scene {
    fn new() -> Self {
        let (host, pod) = (TestNetns::new(), TestNetns::new());
        let mut rtnl = host.rtnl();
        rtnl.change(Request::add_veth(
            &VethEnd::new("vf").index(50),
            &VethEnd::new("rep").index(51),
        ))
        .unwrap();
        let vf = rtnl.link_by_name("vf").unwrap().unwrap();
        Self { host, pod, rtnl, vf }
    }

    fn change(&mut self, change: impl Fn(LinkChange<'_>) -> LinkChange<'_>) -> Result<(), Errno> {
        let change = change(LinkChange::new().netns(&self.pod.netns));
        let outcome = self.rtnl.change_link(self.vf.index, &change);
        outcome.map_err(|error| error.errno().unwrap())
    }

    fn names(&self) -> (Vec<String>, Vec<String>) {
        (self.host.link_names(), self.pod.link_names())
    }
}

fn names(host: &[&str], pod: &[&str]) -> (Vec<String>, Vec<String>) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    (owned(host), owned(pod))
}

#[test]
fn one_request_moves_renames_and_enables() {
    let mut scene = Scene::new();
    scene.host.run("ip link set dev vf alias who mtu 1400 address 02:00:00:00:00:01");
    scene.host.run("ip link property add dev vf altname other");
    scene.host.run("ip addr add 192.0.2.1/24 dev vf");
    scene.host.run("ip link set dev vf up");
    scene.change(|change| change.name("net1").new_index(4242).up()).unwrap();

    assert_eq!(scene.names(), names(&["rep"], &["net1"]));
    let moved = scene.pod.link("net1");
    assert_eq!((&moved["ifindex"], &moved["mtu"]), (&json!(4242), &json!(1400)));
    assert_eq!((&moved["ifalias"], &moved["altnames"]), (&json!("who"), &json!(["other"])));
    assert_eq!(moved["address"], "02:00:00:00:00:01");
    let addresses = &scene.pod.json("ip -j -4 addr show dev net1")[0]["addr_info"];
    assert!(addresses.as_array().is_none_or(Vec::is_empty), "{addresses}");
}

#[test]
fn moved_link_is_down() {
    let mut scene = Scene::new();
    scene.host.run("ip link set dev vf up");
    scene.change(|change| change).unwrap();
    let mut pod = scene.pod.rtnl();
    assert!(!pod.link_by_name("vf").unwrap().unwrap().is_up);
}

#[test]
fn taken_new_name_leaves_link_in_target() {
    let mut scene = Scene::new();
    scene.pod.run("ip link add name net1 type veth peer name x");
    assert_eq!(scene.change(|change| change.name("net1")), Err(Errno::EEXIST));
    assert_eq!(scene.names(), names(&["rep"], &["net1", "vf", "x"]));
}

#[test]
fn bad_mtu_leaves_link_in_target() {
    let mut scene = Scene::new();
    assert_eq!(scene.change(|change| change.mtu(5)), Err(Errno::EINVAL));
    assert_eq!(scene.names(), names(&["rep"], &["vf"]));

    let mut scene = Scene::new();
    assert_eq!(scene.change(|change| change.name("a/b")), Err(Errno::EINVAL));
    assert_eq!(scene.names(), names(&["rep"], &["vf"]));
}

#[test]
fn taken_old_name_prevents_move() {
    let mut scene = Scene::new();
    scene.pod.run("ip link add name vf type veth peer name x");
    assert_eq!(scene.change(|change| change), Err(Errno::EEXIST));
    assert_eq!(scene.change(|change| change.name("x")), Err(Errno::EEXIST));
    assert_eq!(scene.names(), names(&["rep", "vf"], &["vf", "x"]));
    scene.change(|change| change.name("net1")).unwrap();
    assert_eq!(scene.names(), names(&["rep"], &["net1", "vf", "x"]));
}

#[test]
fn taken_altname_or_index_prevents_move() {
    let mut scene = Scene::new();
    scene.host.run("ip link property add dev vf altname other");
    scene.pod.run("ip link add name other index 60 type veth peer name x");
    let change = LinkChange::new().netns(&scene.pod.netns);
    let error = scene.rtnl.change_link(scene.vf.index, &change).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert!(error.to_string().contains("of link vf (50): "), "{error}");
    scene.host.run("ip link property del dev vf altname other");
    assert_eq!(scene.change(|change| change.new_index(60)), Err(Errno::EBUSY));
    assert_eq!(scene.names(), names(&["rep", "vf"], &["other", "x"]));
}

#[test]
fn link_cannot_take_its_own_altname() {
    let mut scene = Scene::new();
    scene.rtnl.change(Request::add_alternative_name(50, "other")).unwrap();
    let renamed = scene.rtnl.change_link(50, &LinkChange::new().name("other"));
    assert!(renamed.unwrap_err().is_exists());
}

#[test]
fn veth_peer_is_found_across_namespaces() {
    let mut scene = Scene::new();
    let representor = |rtnl: &mut Rtnl| rtnl.link_by_name("rep").unwrap();
    scene.change(|change| change.name("net1")).unwrap();
    let seen = representor(&mut scene.rtnl).unwrap();
    let peer = scene.rtnl.peer_of(&seen).unwrap().unwrap();
    assert_eq!((peer.name.as_str(), peer.index), ("net1", 50));

    drop(scene.pod);
    test_clock::wait_until("the pair dies", || representor(&mut scene.rtnl).is_none());
    assert_eq!(scene.rtnl.peer_of(&seen).unwrap(), None);
}
