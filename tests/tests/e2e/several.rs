//! Several networks for a pod by one ADD.

use e2e::{Settings, scenarios::several};

#[test]
fn a_pod_gets_all_its_networks_by_one_add_and_gives_all_back_by_one_del() {
    several::a_pod_gets_all_its_networks_by_one_add_and_gives_all_back_by_one_del(
        &Settings::default(),
    );
}

#[test]
fn a_network_that_fails_leaves_nothing_of_the_others() {
    several::a_network_that_fails_leaves_nothing_of_the_others(&Settings::default());
}

#[test]
fn a_default_route_is_moved_and_other_networks_are_another_attachment() {
    several::a_default_route_is_moved_and_other_networks_are_another_attachment(
        &Settings::default(),
    );
}

#[test]
fn check_and_gc_see_all_interfaces() {
    several::check_and_gc_see_all_interfaces(&Settings::default());
}

#[test]
fn all_interfaces_outlive_deaths_and_resets() {
    several::all_interfaces_outlive_deaths_and_resets(&Settings::default());
}

#[test]
fn a_del_without_records_gives_all_back() {
    several::a_del_without_records_gives_all_back(&Settings::default());
}

#[test]
fn an_operator_releases_what_leads_with_all_that_it_leads() {
    several::an_operator_releases_what_leads_with_all_that_it_leads(&Settings::default());
}

#[test]
fn networks_say_how_the_names_of_their_interfaces_begin() {
    several::networks_say_how_the_names_of_their_interfaces_begin(&Settings::default());
}
