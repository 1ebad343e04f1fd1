//! Programming and unprogramming of a representor.

use drivers::eswitch::Representor;
use model::{Bandwidth, Label, PortSettings};
use serde_json::json;

use crate::dpu::{BRIDGE, Dpu, VF, failure, settings};

#[test]
fn a_representor_is_programmed_and_taken_back() {
    let dpu = Dpu::new();
    dpu.assert_idle();
    for _ in 0..2 {
        dpu.programmer.program(&settings()).unwrap();
        assert_eq!(dpu.rate(), json!({"type": "leaf", "tx_max": 1_250_000}));
        let Representor { name, is_limited, .. } = dpu.representor();
        assert!(is_limited);
        let link = dpu.netns.link(&name);
        assert_eq!((&link["mtu"], &link["master"]), (&json!(9000), &json!(BRIDGE)));
        assert_eq!((&link["group"], &link["ifalias"]), (&json!("8"), &json!("tenant a")));
        assert!(link["flags"].as_array().unwrap().contains(&"UP".into()));
        let queue = dpu.netns.json(&format!("tc -j qdisc show dev {name}"))[0].clone();
        assert_eq!((&queue["kind"], &queue["options"]["rate"]), (&json!("tbf"), &json!(625_000)));
        let vlans = dpu.netns.json(&format!("bridge -j vlan show dev {name}"))[0]["vlans"].clone();
        let access = json!({"vlan": 100, "flags": ["PVID", "Egress Untagged"]});
        assert_eq!(vlans, json!([access, {"vlan": 200}]));
        let macs = dpu.netns.json(&format!("bridge -j fdb show dev {name} state static"));
        let mut known: Vec<_> =
            macs.as_array().unwrap().iter().map(|entry| &entry["vlan"]).collect();
        known.sort_by_key(|vlan| vlan.as_u64());
        assert_eq!(
            (&macs[0]["mac"], known),
            (&json!("02:00:00:00:01:01"), vec![&json!(100), &json!(200)])
        );
        let found = dpu.programmer.inspect(&settings()).unwrap();
        assert!(found.steps.iter().all(|step| step.in_place), "{:#?}", found.steps);
        let detail = |name| {
            let step = found.steps.iter().find(|step| step.name == name);
            step.unwrap().detail.as_str()
        };
        assert!(detail("port-mac").contains("host"));
        let (towards, from) = detail("port-rate").split_once(", ").unwrap();
        assert!(towards.ends_with(" 5000000 bit/s") && from.ends_with(" 10000000 bit/s"));
    }
    for _ in 0..2 {
        dpu.programmer.unprogram(VF).unwrap();
        dpu.assert_idle();
    }
}

#[test]
fn changed_representor_label_is_repaired() {
    let dpu = Dpu::new();
    dpu.programmer.program(&settings()).unwrap();
    let Representor { name, label, .. } = dpu.representor();
    assert_eq!(label, settings().label);
    for meddled in ["group 9", "alias other", "group default alias ''"] {
        dpu.netns.run(&format!("ip link set {name} {meddled}"));
        assert_eq!(dpu.programmer.repair(&settings()).unwrap().steps, ["representor-label"]);
        assert_eq!(dpu.representor().label, settings().label);
    }
    let plain = PortSettings { label: Label::default(), ..settings() };
    assert_eq!(dpu.programmer.repair(&plain).unwrap().steps, ["representor-label"]);
    assert_eq!(dpu.netns.link(&name)["ifalias"], json!(null));
}

#[test]
fn one_direction_can_be_limited_alone() {
    let dpu = Dpu::new();
    let only = |bandwidth| PortSettings { bandwidth, ..settings() };
    let egress = Bandwidth { egress_rate: 3_000_000, ..Bandwidth::default() };
    dpu.programmer.program(&only(egress)).unwrap();
    assert_eq!(dpu.rate()["tx_max"], 375_000);
    assert_ne!(dpu.netns.link(&dpu.representor().name)["qdisc"], "tbf");
    let ingress = Bandwidth { ingress_rate: 3_000_000, ..Bandwidth::default() };
    let repaired = dpu.programmer.repair(&only(ingress)).unwrap();
    assert_eq!(repaired.steps, ["port-rate"]);
    assert_eq!(dpu.rate(), json!({"type": "leaf"}));
    assert_eq!(dpu.netns.link(&dpu.representor().name)["qdisc"], "tbf");
}

#[test]
fn refused_step_undoes_all_earlier_steps() {
    let dpu = Dpu::new();
    let refused = |settings| failure(&dpu.programmer.program(&settings).unwrap_err());

    let bandwidth = Bandwidth { egress_rate: 6_000_000_000, ..settings().bandwidth };
    let (step, shown) = refused(PortSettings { bandwidth, ..settings() });
    assert_eq!(step, "port-rate");
    assert!(shown.ends_with("TX rate value exceed link maximum speed 5000Mbps."), "{shown}");
    dpu.assert_idle();

    let (step, shown) = refused(PortSettings { mtu: 70_000, ..settings() });
    assert_eq!(step, "representor-mtu");
    assert!(shown.ends_with("mtu greater than device maximum"), "{shown}");
    dpu.assert_idle();

    let (step, shown) = refused(PortSettings { vlan: Some(4095), ..settings() });
    assert_eq!(step, "fabric-join");
    assert!(shown.contains(" VLAN 4095"), "{shown}");
    dpu.assert_idle();

    dpu.netns.run(&format!("ip link delete {BRIDGE}"));
    let (step, shown) = refused(settings());
    assert_eq!(step, "fabric-join");
    assert!(shown.contains("join"), "{shown}");
    dpu.assert_idle();

    dpu.prepare().unwrap();
    dpu.programmer.program(&settings()).unwrap();
}

/// A pod's `10Mi` is 10,485,760 bit/s.
#[test]
fn fine_rates_are_rounded_down() {
    let dpu = Dpu::new();
    for (asked, kept) in [(10_485_760, 1_250_000), (64_000, 125_000)] {
        let bandwidth = Bandwidth { egress_rate: asked, ..Bandwidth::default() };
        let finer = PortSettings { bandwidth, ..settings() };
        assert_eq!(dpu.programmer.check(&finer), Ok(()));
        dpu.programmer.program(&finer).unwrap();
        assert_eq!(dpu.rate()["tx_max"], kept);
        let found = dpu.programmer.inspect(&finer).unwrap();
        assert!(found.steps.iter().all(|step| step.in_place), "{:#?}", found.steps);
    }
}
