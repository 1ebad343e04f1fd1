//! What this kernel's bridges can do.

use netlink::{Bridge, Link, Request, Rtnl};

use crate::{
    driver::{Ability, Refused},
    probe::in_hidden_netns,
};

/// What this kernel's bridges can do.
#[derive(Clone, Debug)]
pub struct BridgeAbilities {
    /// Keep VLANs apart.
    pub(super) vlan_filtering: Ability,
}

impl BridgeAbilities {
    /// Tests the kernel with a bridge in a network namespace of its own.
    ///
    /// # Errors
    /// When the process can't create a network namespace.
    pub fn probe() -> Result<Self, Refused> {
        in_hidden_netns(|rtnl, _| Ok(Self { vlan_filtering: probe_vlan_filtering(rtnl) }))
    }

    /// Narrows the abilities to those of the existing bridge `link`: another program may have made it without VLAN
    /// filtering.
    pub(super) fn of(self, link: Option<&Link>) -> Self {
        let vlan_filtering = self.vlan_filtering.and(link.map_or(Ok(()), has_vlan_filtering));
        Self { vlan_filtering }
    }
}

fn probe_vlan_filtering(rtnl: &mut Rtnl) -> Ability {
    let bridge = Bridge { vlan_filtering: true, default_pvid: Some(0), ..Bridge::default() };
    rtnl.change(Request::add_bridge("vlans", &bridge)).map_err(|error| {
        format!("the kernel is built without CONFIG_BRIDGE_VLAN_FILTERING ({error})")
    })
}

fn has_vlan_filtering(link: &Link) -> Ability {
    match &link.bridge {
        Some(bridge) if !bridge.vlan_filtering => Err(format!(
            "bridge {name} was made without VLAN filtering: `ip link set {name} type bridge \
             vlan_filtering 1 vlan_default_pvid 0`",
            name = link.name
        )),
        _ => Ok(()),
    }
}
