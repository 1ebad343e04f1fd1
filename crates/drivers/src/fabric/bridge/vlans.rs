//! Computes the VLANs of the bridge's ports.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{BridgeVlan, Request};

use crate::fabric::Membership;
use model::PortSettings;

/// The bridge's VLAN ID for frames that are untagged on the wire.
pub(super) const UNTAGGED: u16 = 1;

/// The VLANs of ports, by index.
pub(super) type Vlans = BTreeMap<u32, Vec<BridgeVlan>>;

/// A VLAN whose frames have no tag at the port.
const fn access(vlan: u16) -> BridgeVlan {
    BridgeVlan { id: vlan, pvid: true, untagged: true }
}

/// A VLAN whose frames have a tag at the port.
const fn tagged(vlan: u16) -> BridgeVlan {
    BridgeVlan { id: vlan, pvid: false, untagged: false }
}

/// The VLAN of a port that is in only one.
pub(super) const fn access_vlan(vlan: Option<u16>) -> BridgeVlan {
    match vlan {
        Some(vlan) => access(vlan),
        None => access(UNTAGGED),
    }
}

/// The VLANs of a pod's port.
pub(super) fn port_vlans(settings: &PortSettings) -> Vec<BridgeVlan> {
    let own = access_vlan(settings.vlan);
    std::iter::once(own).chain(settings.trunk.iter().copied().map(tagged)).collect()
}

/// The membership that these VLANs mean for a port.
pub(super) fn membership(vlans: &Vlans, port: u32) -> Membership {
    let vlans = vlans.get(&port).map_or(&[][..], Vec::as_slice);
    let access = vlans.iter().find(|vlan| vlan.pvid).map(|vlan| vlan.id);
    Membership {
        vlan: access.filter(|id| *id != UNTAGGED),
        trunk: vlans.iter().map(|vlan| vlan.id).filter(|id| Some(*id) != access).collect(),
        ..Membership::default()
    }
}

/// The requests that move a port from the VLANs that it `has` to the `wanted` ones.
pub(super) fn port_changes(
    port: u32,
    has: &[BridgeVlan],
    wanted: &[BridgeVlan],
) -> Vec<Request<'static>> {
    let surplus = surplus(has, wanted).map(|vlan| Request::delete_bridge_vlan(port, vlan));
    let missing = wanted.iter().filter(|vlan| !has.contains(vlan));
    let missing = missing.map(|vlan| Request::add_bridge_vlan(port, *vlan));
    surplus.chain(missing).collect()
}

/// The requests that make the uplinks carry each VLAN of another port tagged, untagged frames, and nothing else.
pub(super) fn uplink_changes(bridge: u32, uplinks: &[u32], vlans: &Vlans) -> Vec<Request<'static>> {
    let wanted = wanted(bridge, uplinks, vlans);
    let has = |uplink| vlans.get(uplink).map_or(&[][..], Vec::as_slice);
    uplinks.iter().flat_map(|uplink| port_changes(*uplink, has(uplink), &wanted)).collect()
}

fn wanted(bridge: u32, uplinks: &[u32], vlans: &Vlans) -> Vec<BridgeVlan> {
    let is_pods = |index: &u32| *index != bridge && !uplinks.contains(index);
    let of_pods = vlans.iter().filter(|(index, _)| is_pods(index)).flat_map(|(_, vlans)| vlans);
    let ids: BTreeSet<u16> = of_pods.map(|vlan| vlan.id).filter(|id| *id != UNTAGGED).collect();
    std::iter::once(access(UNTAGGED)).chain(ids.into_iter().map(tagged)).collect()
}

/// The VLANs in `has` that are not in `wanted`.
pub(super) fn surplus(has: &[BridgeVlan], wanted: &[BridgeVlan]) -> impl Iterator<Item = u16> {
    let is_wanted = |id: u16| wanted.iter().any(|vlan| vlan.id == id);
    has.iter().map(|vlan| vlan.id).filter(move |id| !is_wanted(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: u32 = 1;
    const UPLINK: u32 = 2;

    fn vlans(uplink: &[BridgeVlan]) -> Vlans {
        Vlans::from([
            (BRIDGE, vec![tagged(9)]),
            (UPLINK, uplink.to_vec()),
            (3, vec![access(100)]),
            (4, vec![access(100)]),
            (5, vec![access(UNTAGGED)]),
        ])
    }

    #[test]
    fn an_uplink_carries_what_pods_are_in() {
        let wanted = [access(UNTAGGED), tagged(100)];
        assert_eq!(super::wanted(BRIDGE, &[UPLINK], &vlans(&[])), wanted);
        let count = |uplink: &[BridgeVlan]| uplink_changes(BRIDGE, &[UPLINK], &vlans(uplink)).len();
        assert_eq!(count(&[]), 2, "one that returns gets all");
        assert_eq!(count(&wanted), 0);
        assert_eq!(count(&[access(UNTAGGED), tagged(100), tagged(200)]), 1);
        assert_eq!(count(&[access(UNTAGGED), access(100)]), 1, "tagged, not untagged");
        let surplus: Vec<_> = surplus(&[tagged(100), tagged(200)], &wanted).collect();
        assert_eq!(surplus, [200]);
    }

    #[test]
    fn ports_are_in_their_untagged_vlan() {
        let vlans = vlans(&[access(UNTAGGED), tagged(100)]);
        let vlan_of = |port| membership(&vlans, port).vlan;
        assert_eq!([3, 5, UPLINK, 6].map(vlan_of), [Some(100), None, None, None]);
        assert_eq!(membership(&vlans, UPLINK).trunk, [100].into());
        assert_eq!(membership(&vlans, 3).trunk, [].into());
    }

    #[test]
    fn port_changes_are_minimal() {
        let count = |has: &[BridgeVlan], wanted: &[BridgeVlan]| port_changes(3, has, wanted).len();
        assert_eq!(count(&[access(1)], &[access(100), tagged(200)]), 3);
        assert_eq!(count(&[access(100), tagged(200)], &[access(100), tagged(200)]), 0);
        assert_eq!(count(&[access(100), tagged(200)], &[access(200)]), 2);
    }
}
