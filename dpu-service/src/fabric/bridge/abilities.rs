//! What this kernel's bridges can do.

use netlink::{Bridge, BridgePort, Link, LinkChange, Request, Rtnl};

use crate::{
    driver::{Ability, Refused},
    probe::{find, in_hidden_netns},
};

/// What this kernel's bridges can do.
#[derive(Clone, Debug)]
pub struct BridgeAbilities {
    /// Keep VLANs apart.
    pub(super) vlan_filtering: Ability,
    /// Have ports drop frames from other stations than their own.
    pub(super) locked_ports: Ability,
}

impl BridgeAbilities {
    /// Finds out, with a bridge where nobody sees it.
    ///
    /// # Errors
    /// When the process may make no network namespace, or no bridge or veth pair in it.
    pub fn probe() -> Result<Self, Refused> {
        in_hidden_netns(|rtnl, port| {
            rtnl.change(Request::add_bridge("bridge", &Bridge::default()))?;
            let bridge = find(rtnl, "bridge")?;
            rtnl.change_link(port, &LinkChange::new().master(Some(bridge.index)))?;
            Ok(Self {
                vlan_filtering: probe_vlan_filtering(rtnl),
                locked_ports: probe_locked_ports(rtnl, port),
            })
        })
    }

    /// What the bridge `link` can do, if it is there already: somebody may have made it with less.
    pub(super) fn of(self, link: Option<&Link>) -> Self {
        let vlan_filtering = self.vlan_filtering.and(link.map_or(Ok(()), has_vlan_filtering));
        Self { vlan_filtering, ..self }
    }
}

fn probe_vlan_filtering(rtnl: &mut Rtnl) -> Ability {
    let bridge = Bridge { vlan_filtering: true, default_pvid: Some(0), ..Bridge::default() };
    rtnl.change(Request::add_bridge("vlans", &bridge)).map_err(|error| {
        format!("the kernel is built without CONFIG_BRIDGE_VLAN_FILTERING ({error})")
    })
}

/// Kernels that do not know the setting take it and ignore it, so it is read back.
fn probe_locked_ports(rtnl: &mut Rtnl, port: u32) -> Ability {
    let locked = BridgePort { locked: Some(true), ..BridgePort::default() };
    rtnl.change(Request::set_bridge_port(port, &locked)).map_err(|error| error.to_string())?;
    let port = rtnl.link_by_index(port).map_err(|error| error.to_string())?;
    locked_as_read_back(port.and_then(|link| link.bridge_port).and_then(|port| port.locked))
}

fn locked_as_read_back(locked: Option<bool>) -> Ability {
    if locked == Some(true) { Ok(()) } else { Err("the kernel is older than 5.18".into()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_ignores_locked_ports_is_told_by_the_version_that_brought_them() {
        assert_eq!(locked_as_read_back(Some(true)), Ok(()));
        for ignored in [None, Some(false)] {
            let why = locked_as_read_back(ignored).unwrap_err();
            assert_eq!(why, "the kernel is older than 5.18");
        }
    }
}
