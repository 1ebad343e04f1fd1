//! The representors and their settings.

use drivers::{eswitch::Eswitch, fabric::Membership};
use model::{AntiSpoofing, Label, PortSettings};
use netlink::MacAddress;
use serde_json::Value;

use crate::veth_dpu::Dpu;

#[test]
fn probed_capabilities_are_reported_with_limits() {
    let capabilities = Dpu::new().fabric.capabilities();
    let reported = capabilities.iter().find(|reported| reported.name == "guard").unwrap();
    assert!(reported.available);
    assert!(reported.detail.starts_with("in software"), "{reported:?}");
}

#[test]
fn the_readings_follow_the_kernel() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    assert!(!dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
    assert_eq!(dpu.fabric.member(&port).unwrap(), None);

    dpu.program(&pod);
    assert!(dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
    let free = PortSettings { anti_spoofing: AntiSpoofing::Off, ..pod.settings.clone() };
    assert!(!dpu.fabric.guard(&port, &free).unwrap().in_place);
    let mac: MacAddress = "02:00:00:00:01:77".parse().unwrap();
    let other = PortSettings { mac, ..pod.settings.clone() };
    assert!(!dpu.fabric.guard(&port, &other).unwrap().in_place);
    assert_eq!(dpu.fabric.member(&port).unwrap(), Some(Membership::default()));
    assert_eq!(Vec::from_iter(dpu.fabric.members().unwrap().into_keys()), [port.index]);

    dpu.netns.run("bridge link set dev pf0vf0 learning on");
    assert!(!dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
    dpu.program(&pod);
    dpu.netns.run("bridge fdb add 02:00:00:00:01:77 dev pf0vf0 master static");
    assert!(!dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
    dpu.program(&pod);
    assert_eq!(dpu.fdb_macs("pf0vf0"), [pod.settings.mac.to_string()]);

    dpu.fabric.set_guard(&port, &free).unwrap();
    assert!(dpu.fabric.guard(&port, &free).unwrap().in_place);
    dpu.fabric.leave(&port).unwrap();
    assert!(!dpu.fabric.guard(&port, &free).unwrap().in_place);
    assert_eq!(dpu.netns.link("pf0vf0")["master"], Value::Null);
    assert_eq!(dpu.fabric.member(&port).unwrap(), None);
}

#[test]
fn mtu_and_state_are_the_representors() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    dpu.eswitch.set_mtu(&port, 9000).unwrap();
    dpu.eswitch.set_up(&port, true).unwrap();
    let found = dpu.representor(&pod);
    assert_eq!((found.mtu, found.up), (9000, true));
    let link = dpu.netns.link("pf0vf0");
    assert_eq!(link["mtu"], 9000);
    assert!(link["flags"].as_array().unwrap().contains(&"UP".into()));
    dpu.eswitch.set_up(&port, false).unwrap();
    assert!(!dpu.representor(&pod).up);
}

/// The virtual card needs the alias, whatever the group is.
#[test]
fn link_group_is_set_and_alias_refused() {
    let dpu = Dpu::new();
    let pod = dpu.plug(0);
    let port = dpu.representor(&pod);
    let alias = dpu.netns.link("pf0vf0")["ifalias"].clone();
    let largest = 2_147_483_647;
    let label = Label { group: largest, alias: String::new() };
    for _ in 0..2 {
        dpu.eswitch.set_label(&port, &label).unwrap();
        let link = dpu.netns.link("pf0vf0");
        assert_eq!((&link["group"], &link["ifalias"]), (&largest.to_string().into(), &alias));
        assert_eq!(dpu.representor(&pod).label, label);
    }
    dpu.eswitch.set_label(&port, &Label::default()).unwrap();
    assert_eq!(dpu.netns.link("pf0vf0")["group"], "default");
    let label = Label { alias: "tenant a".into(), ..label };
    let wanted = PortSettings { label, ..pod.settings.clone() };
    let refused = dpu.eswitch.check(&wanted).unwrap_err().to_string();
    assert!(refused.starts_with("link_alias = \"tenant a\" "), "{refused}");
}

#[test]
fn representors_are_found_by_alias() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    dpu.program(&pod);
    let port = dpu.representor(&pod);

    dpu.netns.run("ip link set pf0vf0 down");
    dpu.netns.run("ip link set pf0vf0 name elsewhere");
    dpu.netns.run("ip link add pf0vf0 type veth peer name impostor");
    assert_eq!(dpu.representor(&pod).index, port.index);
    dpu.netns.run("ip link delete pf0vf0");

    dpu.netns.run("ip link delete elsewhere");
    assert_eq!(dpu.eswitch.representor(pod.settings.vf).unwrap(), None);
    assert_eq!(dpu.eswitch.representors().unwrap(), []);
    assert!(dpu.eswitch.set_mtu(&port, 1400).is_err());
    assert!(dpu.fabric.join(&port, &pod.settings).is_err());
    dpu.eswitch.clear_rate(&port).unwrap();
    dpu.fabric.leave(&port).unwrap();

    dpu.plug_into(&pod);
    assert_ne!(dpu.representor(&pod).index, port.index);
    dpu.program(&pod);
    assert_eq!(dpu.fdb_macs("pf0vf0"), [pod.settings.mac.to_string()]);
}
