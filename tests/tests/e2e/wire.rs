//! Two DPUs whose uplinks lead to one switch.

use e2e::{Settings, scenarios::wire};

#[test]
fn two_dpus_pods_ping_over_uplinks() {
    wire::two_dpus_pods_ping_over_uplinks(&Settings::default());
}

#[test]
fn removed_uplink_is_restored() {
    wire::removed_uplink_is_restored(&Settings::default());
}

#[test]
fn vlan_crosses_uplink_or_is_refused() {
    // Both results are correct; the virtual machine's kernel always gives the former.
    let _ = wire::vlan_crosses_uplink_or_is_refused(&Settings::default());
}

#[test]
fn mtu_beyond_uplink_is_refused() {
    wire::mtu_beyond_uplink_is_refused(&Settings::default());
}
