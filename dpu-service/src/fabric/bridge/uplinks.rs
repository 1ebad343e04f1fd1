//! The uplinks: netdevs that lead outside, and carry each VLAN that a pod is in.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netlink::{Error, LinkChange, Rtnl};

use super::vlans::uplink_changes;
use crate::driver::Refused;

/// The uplinks of a bridge.
#[derive(Debug)]
pub(super) struct Uplinks {
    names: Vec<String>,
    /// Held from the look at what all ports are in to the change that follows from it: of two ports
    /// that join or leave at once, the one that looks later sees the other.
    following: Mutex<()>,
    /// The smallest MTU of those that could be joined.
    mtu: Mutex<Option<u32>>,
}

impl Uplinks {
    pub(super) fn new(names: &[String]) -> Self {
        Self { names: names.to_vec(), following: Mutex::default(), mtu: Mutex::default() }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|uplink| uplink == name)
    }

    /// Joins all that can be, then tells the first that could not.
    pub(super) fn join(&self, rtnl: &mut Rtnl, bridge: u32) -> Result<(), Refused> {
        let joined: Vec<_> = self.names.iter().map(|name| join(rtnl, bridge, name)).collect();
        *self.lock_mtu() = joined.iter().filter_map(|mtu| mtu.as_ref().ok()).min().copied();
        joined.into_iter().try_for_each(|joined| joined.map(drop))
    }

    /// The largest packet that all of them carry. `None`: none could be joined yet.
    pub(super) fn mtu(&self) -> Option<u32> {
        *self.lock_mtu()
    }

    fn lock_mtu(&self) -> MutexGuard<'_, Option<u32>> {
        self.mtu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the uplinks the VLANs that pods are in, and no other.
    pub(super) fn follow(&self, rtnl: &mut Rtnl, bridge: u32) -> Result<(), Error> {
        if self.names.is_empty() {
            return Ok(());
        }
        let _following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        let mut uplinks = Vec::new();
        for name in &self.names {
            let link = rtnl.link_by_name(name)?.filter(|link| link.master == Some(bridge));
            uplinks.extend(link.map(|link| link.index));
        }
        let vlans = rtnl.bridge_vlans(bridge)?;
        rtnl.batch(&uplink_changes(bridge, &uplinks, &vlans))
    }
}

/// Joins an uplink, and returns its MTU.
fn join(rtnl: &mut Rtnl, bridge: u32, name: &str) -> Result<u32, Refused> {
    let refused = |error| Refused::new(format!("join uplink {name}"), error);
    let missing = || Refused::because(format!("there is no uplink {name}"));
    let uplink = rtnl.link_by_name(name).map_err(refused)?.ok_or_else(missing)?;
    match uplink.master {
        Some(master) if master == bridge => {}
        Some(_) => {
            return Err(Refused::because(format!(
                "uplink {name} is a port of another bridge or bond: take it out first"
            )));
        }
        None => rtnl
            .change_link(uplink.index, &LinkChange::new().master(Some(bridge)))
            .map_err(refused)?,
    }
    if !uplink.is_up {
        rtnl.change_link(uplink.index, &LinkChange::new().up()).map_err(refused)?;
    }
    Ok(uplink.mtu)
}
