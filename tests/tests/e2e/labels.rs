//! How external rules recognise the pods of a network.

use std::fs;

use e2e::{Lab, Settings, scenarios::labels};

#[test]
fn rules_that_go_by_a_group_see_the_pods_of_its_network_alone() {
    labels::rules_that_go_by_a_group_see_the_pods_of_its_network_alone(&Settings::default());
}

#[test]
fn a_group_that_somebody_changes_is_put_back() {
    labels::a_group_that_somebody_changes_is_put_back(&Settings::default());
}

/// The virtual card recognises its representors by their aliases.
#[test]
fn an_alias_that_the_card_needs_for_itself_is_refused_when_the_network_is_applied() {
    let lab = Lab::start(&Settings::default());
    let path = lab.path().join("red.yaml");
    let file = path.to_str().unwrap();
    fs::write(&path, "name: red\nlink_alias: tenant a\n").unwrap();
    let complaint = lab.operator().is_refused(&["apply", "-f", file]);
    for told in ["UNSUPPORTED", "link_alias = \"tenant a\" ", "link_group"] {
        assert!(complaint.contains(told), "{complaint}");
    }
    fs::write(&path, "name: red\nlink_group: 8\n").unwrap();
    assert!(lab.operator().says(&["apply", "-f", file]).contains("created"));
    let described = lab.operator().says(&["describe", "network", "red"]);
    let is_told = |line: &str| line.split_whitespace().eq(["Link", "group:", "8"]);
    assert!(described.lines().any(is_told), "{described}");
}

/// As a service leaves it that is killed while it unprograms a port.
#[test]
fn what_is_left_on_a_free_representor_is_taken_back() {
    let lab = Lab::start(&Settings::default());
    let _ = lab.card.dpu.ip(&["link", "set", "pf0vf1", "mtu", "1400"]);
    let _ = lab.card.dpu.ip(&["link", "set", "pf0vf2", "group", "9"]);
    lab.assert_clean_slate();
}
