//! The whole product on the kernel's simulated switchdev card: real devlink ports and representors, a bridge with VLAN
//! filtering, rates set in the card's driver, and its refusals.

use std::{fs, path::Path, time::Duration};

use e2e::{
    Card, Lab, Netns, Settings,
    scenarios::{delegates, labels, load, pods, pods::addresses},
    wait_for,
};
use serde_json::Value;

use crate::card::{Device, WithoutTrap};

const LIMIT: Duration = Duration::from_secs(120);

/// Networks of VLANs 100 and 200 with rates. The card's driver refuses one of them: its maximum is 5 Gbit/s.
const NETWORKS: &str = r#"
[[network]]
name = "red"
vlan = 100
[[network.subnets]]
cidr = "10.7.0.0/24"
gateway = "10.7.0.1"
[[network.subnets]]
cidr = "fd00:10:7::/64"
gateway = "fd00:10:7::1"

[[network]]
name = "wire-100"
vlan = 100

[[network]]
name = "wire-200"
vlan = 200

[[network]]
name = "unguarded"
vlan = 100
anti_spoofing = "off"

[[network]]
name = "limited"
bandwidth = { egress_rate = 100000000, ingress_rate = 50000000 }

[[network]]
name = "too-fast"
bandwidth = { egress_rate = 6000000000 }
"#;

/// Emulated processors may delay heartbeats by seconds.
pub(crate) const SLOW_HEARTBEAT: &str = "[limits]\nheartbeat_ms = 20000\n";

pub(crate) fn settings() -> Settings {
    let mut settings = Settings { service: SLOW_HEARTBEAT.into(), ..Settings::netdevsim() };
    settings.networks.push_str(NETWORKS);
    settings
}

#[test]
fn link_group_covers_exactly_its_networks_pods() {
    labels::link_group_covers_exactly_its_networks_pods(&settings());
}

#[test]
fn two_pods_ping_in_both_families() {
    pods::two_pods_ping_in_both_families(&settings());
}

#[test]
fn sixteen_pods_on_switchdev_come_and_go() {
    let settings = Settings { vfs: 16, pool: 16, ..settings() };
    load::pods_for_all_vfs_come_and_go(&settings);
}

/// The machine's kernel has the modules.
#[test]
fn upper_device_and_rate_plugins_work() {
    delegates::upper_device_and_rate_plugins_work(&settings());
}

#[test]
fn one_network_serves_macvlan_and_ipvlan() {
    delegates::one_network_serves_macvlan_and_ipvlan(&settings());
}

#[test]
fn switchdev_vlans_separate_pods() {
    let lab = Lab::start(&settings());
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let (same, other) = (Netns::new("same"), Netns::new("other"));
    let _ = lab.add("red", &a, "eth0").result();
    for address in addresses(&lab.add("red", &b, "eth0").result()) {
        assert!(a.pings(&address), "{address} is in the same VLAN");
    }
    for (pod, network, address) in
        [(&same, "wire-100", "10.7.0.250/24"), (&other, "wire-200", "10.7.0.251/24")]
    {
        let _ = lab.add(network, pod, "eth0").result();
        pod.ip(&["addr", "add", address, "dev", "eth0"]);
    }
    assert!(a.pings("10.7.0.250"));
    assert!(!a.pings("10.7.0.251"), "VLANs 100 and 200 are one");
    let vlans = lab.card.dpu.json("bridge", &["vlan", "show"]);
    let in_vlan = |vlan: u64| {
        let ports = vlans.iter().filter(|port| port["ifname"] != "br-offload");
        let vlans = ports.flat_map(|port| port["vlans"].as_array().into_iter().flatten());
        vlans.filter(|found| found["vlan"] == vlan).count()
    };
    assert_eq!((in_vlan(100), in_vlan(200), in_vlan(1)), (3, 1, 0), "{vlans:?}");
    for (pod, network) in [(&a, "red"), (&b, "red"), (&same, "wire-100"), (&other, "wire-200")] {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn card_has_rates_while_attached() {
    let lab = Lab::start(&settings());
    let device = Device::of(&lab);
    let pod = Netns::new("pod");
    assert!(device.rates().is_empty());
    let _ = lab.add("limited", &pod, "eth0").result();
    let rates = device.rates();
    assert_eq!(rates.len(), 1, "{rates:?}");
    assert_eq!(rates[0]["tx_max"], 100_000_000 / 8, "bytes a second: {rates:?}");
    lab.assert_invariants();
    lab.del("limited", &pod, "eth0").nothing();
    assert!(device.rates().is_empty());
    lab.assert_clean_slate();
}

#[test]
fn operators_see_card_abilities() {
    let lab = Lab::start(&settings());
    let described = lab.operator().output(&["describe", "dpu"]);
    let row = |begin: &str| {
        let line = described.lines().find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("{described}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("Eswitch:")[1], "devlink");
    let vfs = settings().vfs.to_string();
    assert_eq!(row(&Device::of(&lab).handle())[1..], ["switchdev", &vfs]);
    let of_card = |name: &str| of_card(&lab, &described, name);
    let reported = |name: &str| described.lines().filter(|line| line.contains(name)).count();
    assert!(["egress-rate", "vlan-filtering"].map(reported) == [1, 1], "{described}");
    assert!(described.lines().any(|line| line.starts_with("- ") && line.contains("vlan-filt")));
    assert_eq!(of_card("port-mac").split_whitespace().nth(2), Some("no"), "{described}");
    assert!(of_card("filters").contains("in hardware"), "{described}");
    assert!(of_card("egress-rate").contains("in hardware"), "{described}");
    let ingress_rate = of_card("ingress-rate");
    assert!(ingress_rate.contains("in software"), "{described}");
    // The page of limits quotes the card's row.
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONFIGURATION.md");
    let (_, detail) = ingress_rate.split_once("in software").unwrap();
    assert!(fs::read_to_string(page).unwrap().contains(detail.trim()), "{ingress_rate}");
}

/// Description of one ability of the card.
fn of_card<'a>(lab: &Lab, described: &'a str, name: &str) -> &'a str {
    let begin = format!("{} ", Device::of(lab).handle());
    let mut lines = described.lines().filter(|line| line.starts_with(&begin));
    let found = lines.find(|line| line.split_whitespace().nth(1) == Some(name));
    found.unwrap_or_else(|| panic!("{name}: {described}"))
}

#[test]
fn card_without_trap_guards_in_software() {
    let _without_trap = WithoutTrap::new();
    let lab = Lab::start(&settings());
    let described = lab.operator().output(&["describe", "dpu"]);
    let filters = of_card(&lab, &described, "filters");
    assert_eq!(filters.split_whitespace().nth(2), Some("no"), "{filters}");
    assert!(filters.ends_with("Not implemented offload action"), "{filters}");
    let pod = Netns::new("pod");
    let _ = lab.add("red", &pod, "eth0").result();
    let port = &lab.card.representors().into_iter().find(|port| port["master"].is_string());
    let port = port.as_ref().unwrap()["ifname"].as_str().unwrap();
    let filters = lab.card.dpu.json("tc", &["filter", "show", "dev", port, "ingress"]);
    assert!(filters.iter().all(|filter| filter["kind"] == "bpf"), "{filters:?}");
    assert!(!filters.is_empty());
    lab.assert_invariants();
    lab.del("red", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The card accepts the service's filters and FDB entries. It does not accept entries that the bridge has learnt, the
/// only ones of an unguarded port.
#[test]
fn software_forwarding_makes_offloaded_false() {
    let lab = Lab::start(&settings());
    let (guarded, unguarded) = (Netns::new("guarded"), Netns::new("unguarded"));
    let _ = lab.add("red", &guarded, "eth0").result();
    let _ = lab.add("unguarded", &unguarded, "eth0").result();
    unguarded.ip(&["addr", "add", "10.7.0.250/24", "dev", "eth0"]);
    assert!(guarded.pings("10.7.0.250"));
    let fault = wait_for("the condition", LIMIT, || lab.operator().fault("RULES_IN_SOFTWARE"));
    assert_eq!(fault["type"], "CONDITION_TYPE_OFFLOADED");
    assert_eq!(fault["object"], format!("card/{}", Device::of(&lab).handle()));
    assert_eq!(fault["affectsPods"], false);
    assert!(fault["message"].as_str().unwrap().contains(" 1 of 2 "), "{fault}");
    let entries = lab.card.dpu.json("bridge", &["fdb", "show", "br", "br-offload"]);
    let is_pods = |entry: &&Value| entry["vlan"] == 100 && entry["state"] != "permanent";
    let is_offloaded = |entry: &&Value| entry["flags"].to_string().contains("offload");
    let (by_card, by_kernel): (Vec<_>, Vec<_>) =
        entries.iter().filter(is_pods).partition(is_offloaded);
    assert_eq!((by_card.len(), by_kernel.len()), (1, 1), "{entries:?}");

    lab.del("unguarded", &unguarded, "eth0").nothing();
    wait_for("all conditions", LIMIT, || lab.operator().faults().is_empty().then_some(()));
    lab.del("red", &guarded, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn refused_rate_is_reported_and_undone() {
    let lab = Lab::start(&settings());
    let pod = Netns::new("pod");
    for _ in 0..2 {
        lab.add("too-fast", &pod, "eth0").fails(115, &["exceed link maximum speed 5000Mbps"]);
        lab.assert_clean_slate();
    }
    assert!(Device::of(&lab).rates().is_empty());
    let _ = lab.add("limited", &pod, "eth0").result();
    lab.assert_invariants();
}

/// The driver fails to start again: all representors are gone and stay away until an operator repairs the card.
#[test]
fn missing_representors_refuse_attaches_only() {
    let lab = Lab::start(&settings());
    let device = Device::of(&lab);
    let pod = Netns::new("pod");
    device.turn("fail_reload", "Y");
    assert!(!device.reload());
    assert!(lab.card.representors().is_empty());
    let refused = lab.add("red", &pod, "eth0");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(lab.operator().get("attachments").is_empty());
    assert_eq!(&Card::ends_in(&lab.card.host), lab.card.clean());

    device.turn("fail_reload", "N");
    assert!(device.reload());
    device.make_vfs(4);
    device.set_mode("switchdev");
    wait_for("an attach", LIMIT, || lab.add("red", &pod, "eth0").status.success().then_some(()));
    lab.assert_invariants();
    lab.del("red", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
