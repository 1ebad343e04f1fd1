//! The uplinks: netdevs that lead outside, and carry each VLAN that a pod is in.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netlink::{Error, Rtnl};

use super::{link::BridgeLink, vlans::uplink_changes};
use crate::{
    driver::Refused,
    fabric::{repairs::Repairs, settings::Role},
};

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

    /// Joins all that can be, then tells the first that could not.
    pub(super) fn join(
        &self,
        rtnl: &mut Rtnl,
        bridge: (u32, &str),
        repairs: &Repairs,
    ) -> Result<(), Refused> {
        let join = |name: &String| BridgeLink::take_in(rtnl, bridge, Role::Uplink, name, repairs);
        let joined: Vec<_> = self.names.iter().map(join).collect();
        *self.lock_mtu() = joined.iter().filter_map(|link| Some(link.as_ref().ok()?.mtu)).min();
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
