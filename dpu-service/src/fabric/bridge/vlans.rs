//! Which VLANs the bridge's ports are in.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{BridgeVlan, Request};

/// The bridge's own number for what is untagged on the wire.
pub(super) const UNTAGGED: u16 = 1;

/// The VLANs of ports, by index.
type Vlans = BTreeMap<u32, Vec<BridgeVlan>>;

/// A VLAN whose port neither sends nor takes tags.
pub(super) const fn access(vlan: u16) -> BridgeVlan {
    BridgeVlan { id: vlan, pvid: true, untagged: true }
}

/// The port's access VLAN, as networks name it.
pub(super) fn access_vlan(vlans: &Vlans, port: u32) -> Option<u16> {
    let access = vlans.get(&port)?.iter().find(|vlan| vlan.pvid)?;
    (access.id != UNTAGGED).then_some(access.id)
}

/// What makes the uplinks carry each VLAN that another port of the bridge is in, tagged, what is
/// untagged, and nothing else.
pub(super) fn uplink_changes(bridge: u32, uplinks: &[u32], vlans: &Vlans) -> Vec<Request<'static>> {
    let wanted = wanted(bridge, uplinks, vlans);
    let changes = uplinks.iter().flat_map(|uplink| {
        let has = vlans.get(uplink).map_or(&[][..], Vec::as_slice);
        let surplus = surplus(has, &wanted).map(|vlan| Request::delete_bridge_vlan(*uplink, vlan));
        let missing = wanted.iter().filter(|vlan| !has.contains(vlan));
        let missing = missing.map(|vlan| Request::add_bridge_vlan(*uplink, *vlan));
        surplus.chain(missing).collect::<Vec<_>>()
    });
    changes.collect()
}

fn wanted(bridge: u32, uplinks: &[u32], vlans: &Vlans) -> Vec<BridgeVlan> {
    let is_pods = |index: &u32| *index != bridge && !uplinks.contains(index);
    let of_pods = vlans.iter().filter(|(index, _)| is_pods(index)).flat_map(|(_, vlans)| vlans);
    let tagged: BTreeSet<u16> = of_pods.map(|vlan| vlan.id).filter(|id| *id != UNTAGGED).collect();
    let tagged = tagged.into_iter().map(|id| BridgeVlan { id, ..BridgeVlan::default() });
    std::iter::once(access(UNTAGGED)).chain(tagged).collect()
}

fn surplus(has: &[BridgeVlan], wanted: &[BridgeVlan]) -> impl Iterator<Item = u16> {
    let is_wanted = |id: u16| wanted.iter().any(|vlan| vlan.id == id);
    has.iter().map(|vlan| vlan.id).filter(move |id| !is_wanted(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: u32 = 1;
    const UPLINK: u32 = 2;

    fn tagged(id: u16) -> BridgeVlan {
        BridgeVlan { id, ..BridgeVlan::default() }
    }

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
    fn ports_are_in_the_vlan_of_what_they_send_untagged() {
        let vlans = vlans(&[access(UNTAGGED), tagged(100)]);
        assert_eq!(
            [3, 5, UPLINK, 6].map(|port| access_vlan(&vlans, port)),
            [Some(100), None, None, None]
        );
    }
}
