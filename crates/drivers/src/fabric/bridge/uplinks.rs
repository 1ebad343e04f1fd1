//! The uplinks: netdevs that lead outside and carry every VLAN of the pods.

use netlink::{Error, Rtnl};
use parking_lot::Mutex;

use super::{link::BridgeLink, vlans::uplink_changes};
use crate::{
    driver::Refused,
    fabric::{repairs::Repairs, settings::Role},
};

/// The uplinks of a bridge.
#[derive(Debug)]
pub(super) struct Uplinks {
    names: Vec<String>,
    /// Held from the listing of all ports' VLANs to the change that follows from it. If two ports join or leave at
    /// once, the later listing sees both.
    following: Mutex<()>,
    /// The smallest MTU of the uplinks that could be joined, in bytes.
    mtu: Mutex<Option<u32>>,
}

impl Uplinks {
    pub(super) fn new(names: &[String]) -> Self {
        Self { names: names.to_vec(), following: Mutex::default(), mtu: Mutex::default() }
    }

    /// Joins all uplinks that can join, then returns the first failure.
    pub(super) fn join(
        &self,
        rtnl: &mut Rtnl,
        bridge: (u32, &str),
        repairs: &Repairs,
    ) -> Result<(), Refused> {
        let join =
            |name: &String| BridgeLink::ensure_joined(rtnl, bridge, Role::Uplink, name, repairs);
        let joined: Vec<_> = self.names.iter().map(join).collect();
        *self.mtu.lock() = joined.iter().filter_map(|link| Some(link.as_ref().ok()?.mtu)).min();
        joined.into_iter().try_for_each(|joined| joined.map(drop))
    }

    /// The largest packet in bytes that all uplinks carry. `None`: no uplink has joined yet.
    pub(super) fn mtu(&self) -> Option<u32> {
        *self.mtu.lock()
    }

    /// Gives the uplinks the VLANs of all ports, and no other.
    pub(super) fn follow(&self, rtnl: &mut Rtnl, bridge: u32) -> Result<(), Error> {
        if self.names.is_empty() {
            return Ok(());
        }
        let _following = self.following.lock();
        let mut uplinks = Vec::new();
        for name in &self.names {
            let link = rtnl.link_by_name(name)?.filter(|link| link.master == Some(bridge));
            uplinks.extend(link.map(|link| link.index));
        }
        let vlans = rtnl.bridge_vlans(bridge)?;
        rtnl.batch(&uplink_changes(bridge, &uplinks, &vlans))
    }
}
