//! Links that keep their own traffic when they join the bridge, such as a host's PF.

use netlink::{Error, Request, Rtnl};

use super::{link::BridgeLink, vlans::access_vlan};
use crate::{
    driver::Refused,
    fabric::{
        repairs::Repairs,
        settings::{BridgeSettings, Role},
    },
};

/// Joins all kept links that can join, then returns the first failure.
pub(super) fn join(
    rtnl: &mut Rtnl,
    bridge: u32,
    settings: &BridgeSettings,
    filters_vlans: bool,
    repairs: &Repairs,
) -> Result<(), Refused> {
    let mut join_one = |name: &String| {
        let link =
            BridgeLink::ensure_joined(rtnl, (bridge, &settings.name), Role::Kept, name, repairs)?;
        if !filters_vlans {
            return Ok(());
        }
        let refused = |error| Refused::new(format!("set the VLAN of kept link {name}"), error);
        be_untagged(rtnl, bridge, link.index).map_err(refused)
    };
    let joined: Vec<_> = settings.kept.iter().map(&mut join_one).collect();
    joined.into_iter().collect()
}

/// Puts the link into the untagged VLAN, unless an administrator has put it into VLANs already.
fn be_untagged(rtnl: &mut Rtnl, bridge: u32, link: u32) -> Result<(), Error> {
    let vlans = rtnl.bridge_vlans(bridge)?;
    if vlans.get(&link).is_some_and(|vlans| !vlans.is_empty()) {
        return Ok(());
    }
    rtnl.batch(&[Request::add_bridge_vlan(link, access_vlan(None))])
}
