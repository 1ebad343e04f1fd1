//! How external rules recognise the pods of a network.

use std::fs;

use e2e::{Lab, Settings, scenarios::labels};

#[test]
fn link_group_covers_exactly_its_networks_pods() {
    labels::link_group_covers_exactly_its_networks_pods(&Settings::default());
}

#[test]
fn changed_link_group_is_restored() {
    labels::changed_link_group_is_restored(&Settings::default());
}

/// The virtual card recognises its representors by their aliases.
#[test]
fn alias_needed_by_card_is_refused() {
    let lab = Lab::start(&Settings::default());
    let path = lab.path().join("red.yaml");
    let file = path.to_str().unwrap();
    fs::write(&path, "name: red\nlink_alias: tenant a\n").unwrap();
    let complaint = lab.operator().is_refused(&["apply", "-f", file]);
    for reported in ["UNSUPPORTED", "link_alias = \"tenant a\" ", "link_group"] {
        assert!(complaint.contains(reported), "{complaint}");
    }
    fs::write(&path, "name: red\nlink_group: 8\n").unwrap();
    assert!(lab.operator().output(&["apply", "-f", file]).contains("created"));
    let described = lab.operator().output(&["describe", "network", "red"]);
    let is_reported = |line: &str| line.split_whitespace().eq(["Link", "group:", "8"]);
    assert!(described.lines().any(is_reported), "{described}");
}

/// As a service leaves it that is killed while it unprograms a port.
#[test]
fn leftovers_on_free_representor_are_removed() {
    let lab = Lab::start(&Settings::default());
    let _ = lab.card.dpu.ip(&["link", "set", "pf0vf1", "mtu", "1400"]);
    let _ = lab.card.dpu.ip(&["link", "set", "pf0vf2", "group", "9"]);
    lab.assert_clean_slate();
}
