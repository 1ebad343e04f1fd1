//! Two DPUs whose uplinks lead to one switch, on a kernel with VLAN filtering.

use e2e::{Settings, scenarios::wire};

use crate::netdevsim::SLOW_HEARTBEAT;

#[test]
fn vlan_crosses_the_wire_between_dpus() {
    // veth cards, because each netdevsim card is controller 0 of its DPU.
    let settings = Settings { service: SLOW_HEARTBEAT.into(), ..Settings::with_vfs(2) };
    assert!(wire::vlan_crosses_uplink_or_is_refused(&settings), "VLANs are not kept apart");
}
