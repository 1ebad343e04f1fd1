//! Two DPUs whose uplinks lead to one switch, on a kernel whose bridges keep VLANs apart.

use e2e::{Settings, scenarios::wire};

use crate::netdevsim::PATIENCE;

#[test]
fn a_vlan_goes_over_the_wire_between_two_dpus() {
    // Of veth, because cards of netdevsim are controller 0 of their DPU, each of them.
    let settings = Settings { service: PATIENCE.into(), ..Settings::with_vfs(2) };
    assert!(wire::a_vlan_goes_over_the_wire_or_is_refused(&settings), "VLANs are not kept apart");
}
