//! Cards of kind netdevsim as a process. Needs root and netdevsim.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod scene;

use std::{collections::BTreeMap, fs};

use nix::sys::signal::Signal;
use scene::{Card, Scene, support::TestNetns};
use serde_json::{Value, json};
use test_clock::wait_until;

/// The netdevsim devices of this machine.
fn devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/bus/netdevsim/devices").unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn scene() -> Scene {
    Scene::of_kind("netdevsim")
}

/// The card's representors in the DPU's namespace, by VF. The kernel chooses their names.
fn representors(scene: &Scene) -> BTreeMap<String, Value> {
    let links = scene.dpu.json("ip -j -d link show");
    let representors = links.as_array().unwrap().iter().filter(|link| {
        link["parentbus"] == "netdevsim" && link["phys_port_name"].to_string().contains("vf")
    });
    representors
        .map(|link| (link["phys_port_name"].as_str().unwrap().to_owned(), link.clone()))
        .collect()
}

/// A bridge with all representors, in the VLANs given by VF.
fn switch(scene: &Scene, vlans: &[(&str, u16)]) {
    let name = "br";
    scene
        .dpu
        .run(&format!("ip link add name {name} type bridge vlan_filtering 1 vlan_default_pvid 0"));
    scene.dpu.run(&format!("ip link set dev {name} up"));
    let representors = representors(scene);
    for (vf, vlan) in vlans {
        let port = representors[*vf]["ifname"].as_str().unwrap();
        scene.dpu.run(&format!("ip link set dev {port} master {name} up"));
        scene.dpu.run(&format!("bridge vlan add dev {port} vid {vlan} pvid untagged"));
    }
}

/// A pod with a VF.
struct Pod {
    netns: TestNetns,
    address: String,
}

impl Pod {
    fn with(scene: &Scene, card: &Card, number: usize) -> Self {
        let (netns, address) = (TestNetns::new(), format!("192.0.2.{}", number + 1));
        scene.give(card, &format!("p0v{number}"), &netns, "eth0");
        netns.run("ip link set dev eth0 up");
        netns.run(&format!("ip addr add {address}/24 dev eth0"));
        Self { netns, address }
    }

    fn reaches(&self, other: &Self) -> bool {
        let ping = format!("ping -n -q -c 3 -i 0.1 -w 4 {} || true", other.address);
        let mut shell = std::process::Command::new("sh");
        let output = self.netns.netns.run(|| shell.args(["-c", &ping]).output().unwrap()).unwrap();
        !String::from_utf8(output.stdout).unwrap().contains(" 0 received")
    }
}

#[test]
fn netdevsim_card_has_ports_and_leaves_nothing() {
    let (scene, before) = (scene(), devices());
    let card = scene.plug("--vfs 6");
    assert_eq!(scene.host.link_names(), ["mgmt0", "p0v0", "p0v1", "p0v2", "p0v3", "p0v4", "p0v5"]);
    assert_eq!(scene.host.link("p0v2")["ifalias"], "virtual-nic d000:00:00.3 pf0vf2");
    scene.host.run("ping -c 1 -W 5 192.168.100.2");

    let made = devices().into_iter().find(|device| !before.contains(device)).unwrap();
    let ports = scene.dpu.json("devlink -j port show");
    let ports: Vec<_> = ports["port"].as_object().unwrap().values().collect();
    let vfs = |port: &&&Value| port["flavour"] == "pcivf" && port["pfnum"] == 0;
    assert_eq!(ports.iter().filter(vfs).count(), 6, "{ports:?}");
    assert!(ports.iter().any(|port| port["flavour"] == "physical" && port["netdev"] == "p0"));
    let mode = scene.dpu.json(&format!("devlink -j dev eswitch show netdevsim/{made}"));
    assert!(mode.to_string().contains(r#""mode":"switchdev""#), "{mode}");
    assert_eq!(representors(&scene).len(), 6);
    assert_eq!(scene.dpu.link("p0")["ifalias"], "virtual-nic uplink p0");

    card.pull();
    scene.assert_empty();
    assert_eq!(devices(), before);
}

#[test]
fn frames_pass_representors_within_their_vlan() {
    let scene = scene();
    let card = scene.plug("--vfs 3");
    switch(&scene, &[("pf0vf0", 100), ("pf0vf1", 100), ("pf0vf2", 200)]);
    let pods: Vec<_> = (0..3).map(|number| Pod::with(&scene, &card, number)).collect();
    wait_until("pods of one VLAN reach each other", || pods[0].reaches(&pods[1]));
    assert!(pods[1].reaches(&pods[0]));
    assert!(!pods[0].reaches(&pods[2]), "VLANs 100 and 200 are apart");
    let learned = scene.dpu.run("bridge fdb show br br");
    let mac = pods[0].netns.link("eth0")["address"].as_str().unwrap().to_owned();
    let port = representors(&scene)["pf0vf0"]["ifname"].as_str().unwrap().to_owned();
    assert!(learned.contains(&format!("{mac} dev {port} vlan 100")), "{learned}");
    // A representor that is down is a port that is down.
    scene.dpu.run(&format!("ip link set dev {port} down"));
    assert!(!pods[0].reaches(&pods[1]));
}

#[test]
fn vf_returns_and_representor_stays() {
    let scene = scene();
    let card = scene.plug("--vfs 2");
    switch(&scene, &[("pf0vf0", 100), ("pf0vf1", 100)]);
    let before = representors(&scene)["pf0vf1"].clone();
    let (a, b) = (Pod::with(&scene, &card, 0), Pod::with(&scene, &card, 1));
    wait_until("the pods reach each other", || a.reaches(&b));
    b.netns.run("ip link set dev eth0 mtu 1400 address 02:00:00:00:00:07");
    b.netns.run("ip link property add dev eth0 altname other");
    b.netns.run("ip link set dev eth0 txqueuelen 900");
    drop(b);
    let vf = scene.vf("d000:00:00.2");
    assert_eq!((&vf["ifname"], &vf["mtu"]), (&json!("eth0"), &json!(1400)));
    assert_eq!((&vf["address"], &vf["altnames"]), (&json!("02:00:00:00:00:07"), &json!(["other"])));
    assert!(!scene::flags(&vf).contains("UP") && vf["addr_info"] == json!([]), "{vf}");
    let after = &representors(&scene)["pf0vf1"];
    assert_eq!((&after["ifindex"], &after["master"]), (&before["ifindex"], &before["master"]));

    scene.host.run("ip link set dev eth0 name p0v1");
    let again = Pod::with(&scene, &card, 1);
    a.netns.run("ip neigh flush dev eth0");
    wait_until("the next pod is reached", || a.reaches(&again));
    card.pull();
    assert_eq!(scene.dpu.link_names(), ["br"]);
    assert_eq!(scene.host.link_names(), Vec::<String>::new());
}

#[test]
fn reset_recreates_the_device() {
    let scene = scene();
    let before = devices();
    let card = scene.plug("--vfs 2");
    let old = representors(&scene);
    let pod = Pod::with(&scene, &card, 1);
    card.signal(Signal::SIGHUP);
    wait_until("the VF is back", || scene.host.link_names() == ["mgmt0", "p0v0", "p0v1"]);
    let address = || scene.dpu.run("ip addr show").contains("192.168.100.2/30");
    wait_until("the management link has its addresses", address);
    assert_eq!(pod.netns.link_names(), Vec::<String>::new());
    let new = representors(&scene);
    assert_eq!(new.len(), 2);
    assert_ne!(new["pf0vf1"]["ifindex"], old["pf0vf1"]["ifindex"]);
    card.pull();
    scene.assert_empty();
    assert_eq!(devices(), before);
}

#[test]
fn returned_representors_are_joined() {
    let (scene, before) = (scene(), devices());
    let card = scene.plug("--vfs 2");
    let device = devices().into_iter().find(|device| !before.contains(device)).unwrap();
    let (a, b) = (Pod::with(&scene, &card, 0), Pod::with(&scene, &card, 1));
    scene.dpu.run(&format!("devlink dev eswitch set netdevsim/{device} mode legacy"));
    assert_eq!(representors(&scene).len(), 0);
    scene.dpu.run(&format!("devlink dev eswitch set netdevsim/{device} mode switchdev"));
    switch(&scene, &[("pf0vf0", 7), ("pf0vf1", 7)]);
    wait_until("the pods, which kept their VFs, reach each other", || a.reaches(&b));
    card.pull();
}

#[test]
fn netdevsim_uplink_leads_to_the_wire() {
    let (scene, outside) = (scene(), TestNetns::new());
    let path = outside.path();
    let card = scene.plug(&format!("--vfs 1 --uplink --wire-netns {}", path.display()));
    switch(&scene, &[("pf0vf0", 5)]);
    scene.dpu.run("ip link set dev p0 master br up");
    scene.dpu.run("bridge vlan add dev p0 vid 5 pvid untagged");
    outside.run("ip link set dev wire0 up");
    outside.run("ip addr add 192.0.2.9/24 dev wire0");
    let pod = Pod::with(&scene, &card, 0);
    let outside = Pod { netns: outside, address: "192.0.2.9".to_owned() };
    wait_until("the pod reaches the outside", || pod.reaches(&outside));
    card.pull();
    assert_eq!(outside.netns.link_names(), Vec::<String>::new());
}

#[test]
fn card_survives_driver_restart() {
    let (scene, before) = (scene(), devices());
    let card = scene.plug("--vfs 2");
    let device = devices().into_iter().find(|device| !before.contains(device)).unwrap();
    scene.dpu.run(&format!("devlink dev reload netdevsim/{device}"));
    wait_until("the uplink is called p0", || scene.dpu.link_names().contains(&"p0".to_owned()));
    let labelled = || scene.dpu.link("p0")["ifalias"] == "virtual-nic uplink p0";
    wait_until("the uplink is known", labelled);
    card.pull();
    scene.assert_empty();
    assert_eq!(devices(), before);
}

#[test]
fn leftovers_of_killed_card_are_removed() {
    let (scene, before) = (scene(), devices());
    let card = scene.plug("--vfs 2");
    let pod = Pod::with(&scene, &card, 0);
    card.kill();
    let reported = scene.refusal("--vfs 2");
    assert!(reported.contains("plugged in already"), "{reported}");
    assert!(scene.command("unplug").output().unwrap().status.success());
    scene.assert_empty();
    assert_eq!(devices(), before);
    assert_eq!(pod.netns.link_names(), Vec::<String>::new());
    scene.plug("--vfs 2").pull();
}

/// As a card leaves it that dies right after creating the device.
#[test]
fn unlabelled_device_is_removed() {
    let (scene, before) = (scene(), devices());
    let make = || fs::write("/sys/bus/netdevsim/new_device", "4711 1 1").unwrap();
    scene.dpu.netns.run(make).unwrap();
    let reported = scene.refusal("--vfs 2");
    assert!(reported.contains("plugged in already"), "{reported}");
    assert!(scene.command("unplug").output().unwrap().status.success());
    scene.assert_empty();
    assert_eq!(devices(), before);
}

#[test]
fn taken_name_leaves_no_device() {
    let (scene, before) = (scene(), devices());
    scene.dpu.run("ip link add name wire-pf0vf1 type bridge");
    let reported = scene.refusal("--vfs 2");
    assert!(reported.contains(" name wire-pf0vf1, but the DPU's "), "{reported}");
    assert_eq!(devices(), before);
    assert_eq!(scene.dpu.link_names(), ["wire-pf0vf1"]);
    assert_eq!(scene.host.link_names(), Vec::<String>::new());
}
