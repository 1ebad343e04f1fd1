//! Further networks from other CNI plugins.

use e2e::{Settings, scenarios::delegates};

#[test]
fn other_plugins_create_further_interfaces() {
    delegates::other_plugins_create_further_interfaces(&Settings::default());
}

#[test]
fn routes_and_rules_are_added_to_foreign_interfaces() {
    delegates::routes_and_rules_are_added_to_foreign_interfaces(&Settings::default());
}

#[test]
fn foreign_interfaces_get_dpu_addresses() {
    delegates::foreign_interfaces_get_dpu_addresses(&Settings::default());
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
fn failing_plugin_leaves_nothing() {
    delegates::failing_plugin_leaves_nothing(&Settings::default());
}

#[test]
fn foreign_interfaces_are_deleted_without_their_files() {
    delegates::foreign_interfaces_are_deleted_without_their_files(&Settings::default());
}

#[test]
fn ended_pod_leaves_no_foreign_interfaces() {
    delegates::ended_pod_leaves_no_foreign_interfaces(&Settings::default());
}

#[test]
fn plugin_that_outlives_the_agent_finishes_first() {
    delegates::plugin_that_outlives_the_agent_finishes_first(&Settings::default());
}

#[test]
fn plugin_changes_affect_only_its_pod() {
    delegates::plugin_changes_affect_only_its_pod(&Settings::default());
}

#[test]
fn address_is_held_while_interface_has_it() {
    delegates::address_is_held_while_interface_has_it(&Settings::default());
}
