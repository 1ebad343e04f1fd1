//! Two DPUs whose uplinks lead to one switch, on a kernel whose bridges keep VLANs apart.

use e2e::{Settings, scenarios::wire};

use crate::netdevsim::PATIENCE;

#[test]
fn a_vlan_goes_over_the_wire_between_two_dpus() {
    // netdevsim has but one controller, and one host knows one card of it.
    let settings = Settings { service: PATIENCE.into(), ..Settings::default() };
    assert!(wire::a_vlan_goes_over_the_wire_or_is_refused(&settings), "VLANs are not kept apart");
}
