//! Several networks for a pod by one ADD.

use e2e::{Settings, scenarios::several};

#[test]
fn one_add_attaches_all_networks() {
    several::one_add_attaches_all_networks(&Settings::default());
}

#[test]
fn failing_network_leaves_nothing_of_others() {
    several::failing_network_leaves_nothing_of_others(&Settings::default());
}

#[test]
fn default_route_follows_chosen_network() {
    several::default_route_follows_chosen_network(&Settings::default());
}

#[test]
fn check_and_gc_see_all_interfaces() {
    several::check_and_gc_see_all_interfaces(&Settings::default());
}

#[test]
fn all_interfaces_survive_deaths_and_resets() {
    several::all_interfaces_survive_deaths_and_resets(&Settings::default());
}

#[test]
fn del_without_records_releases_the_group() {
    several::del_without_records_releases_the_group(&Settings::default());
}

#[test]
fn operator_releases_a_whole_group() {
    several::operator_releases_a_whole_group(&Settings::default());
}

#[test]
fn network_prefixes_name_interfaces() {
    several::network_prefixes_name_interfaces(&Settings::default());
}
