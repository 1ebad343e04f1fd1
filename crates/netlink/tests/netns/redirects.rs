//! Redirections, checked with `tc` and by traffic.

use netlink::{Hook, Redirect, Request, VethEnd};
use serde_json::Value;
use test_clock::wait_until;

use crate::support::TestNetns;

/// Addresses of the two pods.
const ADDRESSES: [&str; 2] = ["192.0.2.1/24", "192.0.2.2/24"];

/// Two pods and a card between them with a wire to each.
struct Scene {
    card: TestNetns,
    pods: [TestNetns; 2],
}

impl Scene {
    fn new() -> Self {
        let scene = Self { card: TestNetns::new(), pods: [TestNetns::new(), TestNetns::new()] };
        for (number, (pod, address)) in scene.pods.iter().zip(ADDRESSES).enumerate() {
            let wire = VethEnd::new(format!("wire{number}"));
            scene
                .card
                .rtnl()
                .change(Request::add_veth(&wire, &VethEnd::new("eth0").netns(&pod.netns)))
                .unwrap();
            scene.card.run(&format!("ip link set dev wire{number} up"));
            pod.run("ip link set dev eth0 up");
            pod.run(&format!("ip addr add {address} dev eth0"));
        }
        scene
    }

    fn index(&self, name: &str) -> u32 {
        self.card.rtnl().link_by_name(name).unwrap().unwrap().index
    }

    /// Redirects frames from one wire to the other.
    fn across(&self, from: &str, to: &str) -> Redirect {
        Redirect { from: (self.index(from), Hook::Ingress), to: (self.index(to), Hook::Egress) }
    }

    fn ping(&self) {
        self.pods[0].run("ping -c 1 -W 5 192.0.2.2");
    }

    fn filters(&self, link: &str, hook: &str) -> Value {
        self.card.json(&format!("tc -j filter show dev {link} {hook}"))
    }
}

#[test]
fn redirected_frames_reach_their_target() {
    let scene = Scene::new();
    let (there, back) = (scene.across("wire0", "wire1"), scene.across("wire1", "wire0"));
    scene.card.rtnl().traffic_control().add_redirects(&[there, back]).unwrap();
    scene.ping();

    let filters = scene.filters("wire0", "ingress");
    let actions: Vec<_> = filters
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|filter| filter["options"]["actions"].as_array())
        .flatten()
        .collect();
    assert_eq!(actions.len(), 1, "{filters}");
    assert_eq!(actions[0]["mirred_action"], "redirect");
    assert_eq!(
        (&actions[0]["direction"], &actions[0]["to_dev"]),
        (&"egress".into(), &"wire1".into())
    );
    let again = scene.card.rtnl().traffic_control().add_redirects(&[there]);
    assert!(again.is_err(), "one redirection at a hook");
}

#[test]
fn redirection_is_replaced_after_target_is_deleted() {
    let scene = Scene::new();
    let mut rtnl = scene.card.rtnl();
    for (from, to) in [("wire0", "wire1"), ("wire1", "wire0")] {
        for _ in 0..2 {
            rtnl.traffic_control().set_redirect(&scene.across(from, to)).unwrap();
        }
    }
    scene.ping();

    scene.card.run("ip link del dev wire1");
    let [neighbour, pod] = &scene.pods;
    neighbour.run("ip neigh flush dev eth0");
    let eth0 = VethEnd::new("eth0").netns(&pod.netns);
    rtnl.change(Request::add_veth(&VethEnd::new("wire1"), &eth0)).unwrap();
    scene.card.run("ip link set dev wire1 up");
    pod.run("ip link set dev eth0 up");
    pod.run("ip addr add 192.0.2.2/24 dev eth0");
    for (from, to) in [("wire0", "wire1"), ("wire1", "wire0")] {
        rtnl.traffic_control().set_redirect(&scene.across(from, to)).unwrap();
    }
    wait_until("the new wire is up", || scene.card.link("wire1")["operstate"] == "UP");
    scene.ping();
}

/// Joins a representor to its wire: what the representor sends leaves by the wire, and what the wire receives enters at
/// the representor.
#[test]
fn redirections_join_link_and_wire() {
    let scene = Scene::new();
    scene.card.run("ip link add name switch type bridge");
    scene.card.run("ip addr add 192.0.2.9/24 dev switch");
    scene
        .card
        .rtnl()
        .change(Request::add_veth(&VethEnd::new("port"), &VethEnd::new("unused")))
        .unwrap();
    scene.card.run("ip link set dev port master switch");
    for link in ["switch", "port", "unused"] {
        scene.card.run(&format!("ip link set dev {link} up"));
    }
    let (port, wire) = (scene.index("port"), scene.index("wire0"));
    let out = Redirect { from: (port, Hook::Egress), to: (wire, Hook::Egress) };
    let into = Redirect { from: (wire, Hook::Ingress), to: (port, Hook::Ingress) };
    for redirect in [out, into] {
        scene.card.rtnl().traffic_control().set_redirect(&redirect).unwrap();
    }
    scene.card.run("ping -c 1 -W 5 192.0.2.1");
}

#[test]
fn missing_link_is_reported() {
    let scene = Scene::new();
    let mut redirect = scene.across("wire0", "wire1");
    redirect.to.0 = 4711;
    let refused =
        scene.card.rtnl().traffic_control().set_redirect(&redirect).unwrap_err().to_string();
    let reported = format!(" link wire0 ({}) to link 4711: ", redirect.from.0);
    assert!(refused.contains(&reported), "{refused}");
}
