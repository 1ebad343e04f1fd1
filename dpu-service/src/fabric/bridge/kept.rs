//! Links that stay what they were before the bridge was theirs: a host's PF, whose network is outside.

use netlink::{Error, Request, Rtnl};

use super::{link::BridgeLink, vlans::access_vlan};
use crate::{
    driver::Refused,
    fabric::{
        repairs::Repairs,
        settings::{BridgeSettings, Role},
    },
};

/// Joins all that can be, then tells the first that could not.
pub(super) fn join(
    rtnl: &mut Rtnl,
    bridge: u32,
    settings: &BridgeSettings,
    filters_vlans: bool,
    repairs: &Repairs,
) -> Result<(), Refused> {
    let mut join_one = |name: &String| {
        let link = BridgeLink::take_in(rtnl, (bridge, &settings.name), Role::Kept, name, repairs)?;
        if !filters_vlans {
            return Ok(());
        }
        let refused = |error| Refused::new(format!("set the VLAN of kept link {name}"), error);
        be_untagged(rtnl, bridge, link.index).map_err(refused)
    };
    let joined: Vec<_> = settings.kept.iter().map(&mut join_one).collect();
    joined.into_iter().collect()
}

/// One that is in a VLAN is in those that somebody has put it into.
fn be_untagged(rtnl: &mut Rtnl, bridge: u32, link: u32) -> Result<(), Error> {
    let vlans = rtnl.bridge_vlans(bridge)?;
    if vlans.get(&link).is_some_and(|vlans| !vlans.is_empty()) {
        return Ok(());
    }
    rtnl.batch(&[Request::add_bridge_vlan(link, access_vlan(None))])
}
