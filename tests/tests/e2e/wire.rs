//! Two DPUs whose uplinks lead to one switch.

use e2e::{Settings, scenarios::wire};

#[test]
fn pods_of_two_dpus_ping_each_other_over_the_wire() {
    wire::pods_of_two_dpus_ping_each_other_over_the_wire(&Settings::default());
}

#[test]
fn an_uplink_that_somebody_takes_out_is_put_back() {
    wire::an_uplink_that_somebody_takes_out_is_put_back(&Settings::default());
}

#[test]
fn a_vlan_goes_over_the_wire_or_is_refused() {
    // Both results are correct; the virtual machine's kernel always gives the former.
    let _ = wire::a_vlan_goes_over_the_wire_or_is_refused(&Settings::default());
}

#[test]
fn a_network_larger_than_an_uplink_is_refused_and_one_that_became_so_is_told() {
    wire::a_network_larger_than_an_uplink_is_refused_and_one_that_became_so_is_told(
        &Settings::default(),
    );
}
