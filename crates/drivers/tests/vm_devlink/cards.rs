//! Cards: discovery, abilities, and resets.

use bootstrap::Chain;
use drivers::{
    eswitch::{Card, devlink::DevlinkSettings},
    programmer::ProgramError,
};
use model::PortSettings;
use netlink::EswitchMode;
use serde_json::Value;
use vf_alloc::FunctionId;

use crate::{
    dpu::{BRIDGE, Dpu, NO_FILTERS, VF, settings, sharing},
    netdevsim::Netdevsim,
};

#[test]
fn abilities_of_the_card_are_probed() {
    let dpu = Dpu::new();
    let can = |name| {
        let all = dpu.eswitch().capabilities();
        let found = all.into_iter().find(|capability| capability.name == name).unwrap();
        (found.available, found.detail)
    };
    assert!(can("egress-rate").1.contains("not known"));
    assert_eq!(dpu.eswitch().representors().unwrap().len(), 2);
    let (is_able, detail) = can("egress-rate");
    assert!(is_able && detail.contains("Mbit/s"), "{detail}");
    let (is_able, detail) = can("port-mac");
    assert!(!is_able && detail.contains("MAC addresses"), "{detail}");
    assert!(can("ingress-rate").0);
    let [Card { device, mode, representors, capabilities }] = &dpu.eswitch().cards()[..] else {
        panic!("{:?}", dpu.eswitch().cards())
    };
    assert_eq!((&**device, &**mode, *representors), (&*dpu.card.device(), "switchdev", 2));
    let by_hardware = |name| {
        let found = capabilities.iter().find(|capability| capability.name == name).unwrap();
        found.available.then_some(found.offloaded)
    };
    let found = ["filters", "egress-rate", "ingress-rate", "port-mac"].map(by_hardware);
    assert_eq!(found, [Some(true), Some(true), Some(false), None]);
    assert_eq!(["egress-share", "egress-total"].map(by_hardware), [Some(true); 2]);
    assert_eq!(dpu.programmer.check(&sharing(1, 9_000_000)), Ok(()));

    assert_eq!(dpu.programmer.check(&settings()), Ok(()));
}

#[test]
fn representors_are_identified_by_port_not_name() {
    let dpu = Dpu::new();
    let name = dpu.representor().name;
    dpu.netns.run(&format!("ip link set {name} name wild"));
    dpu.netns.run("ip link add pf0vf1 type veth peer name impostor");
    let found = dpu.representor();
    assert_eq!((found.vf, &*found.name), (VF, "wild"));
    assert_eq!(dpu.netns.link("wild")["phys_port_name"], "pf0vf1");
    let vfs: Vec<_> = dpu.eswitch().representors().unwrap().iter().map(|port| port.vf).collect();
    assert_eq!(vfs, [FunctionId::local(0, 0), VF]);
    assert_eq!(dpu.eswitch().representor(FunctionId::local(0, 9)).unwrap(), None);
}

#[test]
fn a_card_that_was_reset_is_found_again() {
    let dpu = Dpu::new();
    // The abilities are probed again after the reset, and have changed.
    dpu.set_filters("off");
    let (takes_filters, why) = dpu.filters();
    assert!(!takes_filters && why.ends_with(NO_FILTERS), "{why}");
    dpu.programmer.program(&settings()).unwrap();
    let before = dpu.representor();
    assert_eq!(dpu.flowers(&before.name), [Value::Null; 0]);

    // The reload fails: the card's representors stay away.
    dpu.card.set_knob("fail_reload", "Y");
    assert!(!dpu.can_reload());
    assert_eq!(dpu.eswitch().representor(VF).unwrap(), None);
    assert!(matches!(dpu.programmer.program(&settings()), Err(ProgramError::NoRepresentor(VF))));
    assert!(dpu.eswitch().set_rate(&before, &settings()).is_err());
    dpu.eswitch().clear_rate(&before).unwrap();
    dpu.eswitch().clear_port_mac(&before).unwrap();
    dpu.programmer.unprogram(VF).unwrap();

    // The card returns in legacy mode and without VFs, as netdevsim does after each reset.
    dpu.card.set_knob("fail_reload", "N");
    assert!(dpu.can_reload());
    dpu.prepare().unwrap();
    assert_eq!(dpu.eswitch().representors().unwrap(), []);
    dpu.card.set_vfs(2);
    let repaired = dpu.programmer.repair(&settings()).unwrap();
    assert_ne!(repaired.index, before.index);
    let steps = [
        "representor-mtu",
        "fabric-join",
        "representor-label",
        "port-rate",
        "guard",
        "representor-up",
    ];
    assert_eq!(repaired.steps, steps);
    assert_eq!(dpu.rate()["tx_max"], 1_250_000);
    assert!(dpu.filters().0, "{:?}", dpu.filters());
}

#[test]
fn a_cards_mode_is_changed_only_when_configured() {
    let named = |mode| {
        move |card: &Netdevsim| DevlinkSettings {
            devices: vec![card.device().parse().unwrap()],
            mode,
        }
    };
    let dpu = Dpu::with_cards(named(None));
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.contains("legacy mode"), "{refused}");
    assert_eq!(dpu.eswitch().representors().unwrap(), []);
    assert_eq!(dpu.eswitch().cards()[0].mode, "legacy");
    assert_eq!(dpu.netns.link(BRIDGE)["ifname"], BRIDGE, "the fabric is prepared anyway");
    dpu.devlink("dev eswitch set {card} mode switchdev");
    dpu.prepare().unwrap();
    assert_eq!(dpu.eswitch().representors().unwrap().len(), 2);

    let dpu = Dpu::with_cards(|_| DevlinkSettings {
        devices: vec!["pci/0000:ff:1f.7".parse().unwrap()],
        mode: Some(EswitchMode::Switchdev),
    });
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.ends_with("devlink device pci/0000:ff:1f.7"), "{refused}");
    assert_eq!(dpu.eswitch().cards(), []);
}

#[test]
fn cards_in_switchdev_mode_are_found_by_themselves() {
    let dpu = Dpu::with_cards(|_| DevlinkSettings::default());
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.contains("switchdev mode"), "{refused}");
    dpu.devlink("dev eswitch set {card} mode switchdev");
    dpu.prepare().unwrap();
    assert_eq!(dpu.representor().vf, VF);

    let other = Netdevsim::plug(&dpu.netns, 1);
    dpu.netns.run(&format!("devlink dev eswitch set {} mode switchdev", other.device()));
    let seen = || {
        let seen = dpu.eswitch().representors().unwrap();
        seen.iter().map(|found| found.vf).collect::<Vec<_>>()
    };
    assert_eq!(seen(), [VF], "one card's VF 0 is mistaken for the other's, and no other VF is");
    let [problem] = &dpu.eswitch().problems()[..] else { panic!("{:?}", dpu.eswitch().problems()) };
    assert!(problem.starts_with("VF pf0vf0 is on card netdevsim/"), "{problem}");
    assert!(problem.ends_with("eswitch.devices"), "{problem}");
    let of_both = PortSettings { vf: FunctionId::local(0, 0), ..settings() };
    let refused = Chain(&dpu.programmer.program(&of_both).unwrap_err()).to_string();
    assert!(refused.ends_with(problem), "{refused}");
    dpu.programmer.program(&settings()).unwrap();
    dpu.programmer.unprogram(VF).unwrap();

    drop(other);
    assert_eq!(seen(), [FunctionId::local(0, 0), VF]);
    assert!(dpu.eswitch().problems().is_empty());
}
