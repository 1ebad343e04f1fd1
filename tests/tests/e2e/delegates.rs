//! Further networks from other CNI plugins.

use e2e::{Settings, scenarios::delegates};

#[test]
fn other_plugins_make_further_interfaces() {
    delegates::other_plugins_make_further_interfaces(&Settings::default());
}

#[test]
fn routes_rules_and_settings_are_set_beside_what_plugins_make() {
    delegates::routes_rules_and_settings_are_set_beside_what_plugins_make(&Settings::default());
}

#[test]
fn what_plugins_make_has_addresses_of_the_dpu() {
    delegates::what_plugins_make_has_addresses_of_the_dpu(&Settings::default());
}

#[test]
fn callers_folders_are_honoured() {
    delegates::callers_folders_are_honoured(&Settings::default());
}

#[test]
fn one_network_serves_macvlan_and_ipvlan() {
    delegates::one_network_serves_macvlan_and_ipvlan(&Settings::default());
}

#[test]
fn status_asks_further_networks() {
    delegates::status_asks_further_networks(&Settings::default());
}

#[test]
fn a_plugin_that_fails_leaves_nothing() {
    delegates::a_plugin_that_fails_leaves_nothing(&Settings::default());
}

#[test]
fn what_was_made_is_taken_back_whatever_has_gone() {
    delegates::what_was_made_is_taken_back_whatever_has_gone(&Settings::default());
}

#[test]
fn a_pod_that_ends_leaves_nothing_of_other_plugins() {
    delegates::a_pod_that_ends_leaves_nothing_of_other_plugins(&Settings::default());
}

#[test]
fn a_plugin_that_outlives_the_agent_is_waited_for() {
    delegates::a_plugin_that_outlives_the_agent_is_waited_for(&Settings::default());
}

#[test]
fn a_plugin_that_changes_our_interface_harms_its_pod_alone() {
    delegates::a_plugin_that_changes_our_interface_harms_its_pod_alone(&Settings::default());
}

#[test]
fn an_address_is_held_while_an_interface_has_it() {
    delegates::an_address_is_held_while_an_interface_has_it(&Settings::default());
}
