//! The bridge's own link: finds it by name, creates and repairs it, and joins links that are not pods' ports.

use std::sync::atomic::{AtomicBool, Ordering};

use netlink::{Bridge, Error, Family, Link, LinkChange, Request, Rtnl, set_sysctl};
use parking_lot::Mutex;

use crate::{
    driver::{Fault, Refused},
    fabric::{repairs::Repairs, settings::Role},
};

/// Marks a bridge that this service made.
pub(super) const ALIAS: &str = "dpu-offload fabric";

/// A bridge with this name.
#[derive(Debug)]
pub(super) struct BridgeLink {
    name: String,
    /// The bridge's index from the latest lookup, so that not every port has to look it up. `None`: look it up
    /// again. The lock is held during the lookup: no call can store an index that another call has just found to be
    /// wrong.
    index: Mutex<Option<u32>>,
    /// Whether a spanning tree decides which ports forward, as the latest [`Self::ensure`] found.
    runs_stp: AtomicBool,
}

impl BridgeLink {
    pub(super) fn new(name: &str) -> Self {
        let runs_stp = AtomicBool::default();
        Self { name: name.to_owned(), index: Mutex::default(), runs_stp }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn refused(&self, doing: &str, error: Error) -> Refused {
        Refused::new(format!("{doing} bridge {}", self.name), error)
    }

    /// Looks the bridge up. Fails if it does not exist.
    pub(super) fn find(&self, rtnl: &mut Rtnl) -> Result<Link, Refused> {
        let mut index = self.index.lock();
        // First: a lookup that fails leaves no index.
        *index = None;
        let found = rtnl.link_by_name(&self.name);
        let found = found.map_err(|error| self.refused("find", error))?;
        let missing = || {
            Refused::because(format!("there is no bridge {}", self.name))
                .blamed_on(Fault::FabricAway)
        };
        let link = found.ok_or_else(missing)?;
        if link.bridge.is_some() {
            *index = Some(link.index);
            return Ok(link);
        }
        Err(Refused::because(format!(
            "link {} is no bridge: name another in fabric.bridge, or delete it",
            self.name
        ))
        .blamed_on(Fault::Elsewhere))
    }

    /// The bridge's index in this list of links.
    pub(super) fn among(&self, links: &[Link]) -> Option<u32> {
        let bridge = links.iter().find(|link| link.name == self.name && link.bridge.is_some());
        bridge.map(|link| link.index)
    }

    /// The cached index, or a lookup. The bridge may have been deleted since the index was cached.
    pub(super) fn index(&self, rtnl: &mut Rtnl) -> Result<u32, Refused> {
        let known = *self.index.lock();
        known.map_or_else(|| Ok(self.find(rtnl)?.index), Ok)
    }

    /// Whether the cached index is `index`. Does not ask the kernel.
    pub(super) fn is_known_as(&self, index: u32) -> bool {
        *self.index.lock() == Some(index)
    }

    /// Drops the cached index.
    pub(super) fn forget_index(&self) {
        *self.index.lock() = None;
    }

    /// Whether a spanning tree decides which ports forward. Does not ask the kernel.
    pub(super) fn runs_stp(&self) -> bool {
        self.runs_stp.load(Ordering::Relaxed)
    }

    /// Refuses another program's bridge that runs STP: it drops all frames of a port that has just joined.
    pub(super) fn check_stp(&self) -> Result<(), Refused> {
        if !self.runs_stp() {
            return Ok(());
        }
        let name = &self.name;
        Err(Refused::because(format!(
            "bridge {name} runs STP, by which the port of each new pod drops all frames for twice its forward delay, \
             30 s by default: switch it off, with `ip link set dev {name} type bridge stp_state 0`"
        ))
        .blamed_on(Fault::Elsewhere))
    }

    /// Creates the bridge unless it exists, switches it on, and returns its index. Does not change settings of a
    /// bridge that another program created.
    pub(super) fn ensure(
        &self,
        rtnl: &mut Rtnl,
        vlan_filtering: bool,
        repairs: &Repairs,
    ) -> Result<u32, Refused> {
        let found = rtnl.link_by_name(&self.name);
        let mut change = None;
        if found.map_err(|error| self.refused("find", error))?.is_none() {
            self.make(rtnl, vlan_filtering).map_err(|error| self.refused("make", error))?;
            change = Some(format!("bridge {} was missing: created it again", self.name));
        }
        let bridge = self.find(rtnl)?;
        if !bridge.is_up {
            let up = rtnl.change_link(bridge.index, &LinkChange::new().up());
            up.map_err(|error| self.refused("switch on", error))?;
            let switched_on = || format!("bridge {} was switched off: switched it on", self.name);
            change.get_or_insert_with(switched_on);
        }
        let changed = self.put_back(rtnl, &bridge, vlan_filtering)?;
        repairs.note_in_place(&self.name, change.or(changed));
        Ok(bridge.index)
    }

    /// Repairs settings that another program has changed on a bridge of this service. Returns the repair as a
    /// sentence, if there was one.
    fn put_back(
        &self,
        rtnl: &mut Rtnl,
        bridge: &Link,
        vlan_filtering: bool,
    ) -> Result<Option<String>, Refused> {
        let found = bridge.bridge.unwrap_or_default();
        let runs_stp = found.spanning_tree == Some(true);
        let is_changed = runs_stp
            || found.multicast_snooping == Some(true)
            || (vlan_filtering && !found.vlan_filtering);
        if bridge.alias.as_deref() != Some(ALIAS) || !is_changed {
            self.runs_stp.store(runs_stp, Ordering::Relaxed);
            return Ok(None);
        }
        let wanted = Bridge { default_pvid: None, ..settings(vlan_filtering) };
        rtnl.change(Request::set_bridge(bridge.index, &wanted))
            .map_err(|error| self.refused("set up", error))?;
        self.runs_stp.store(false, Ordering::Relaxed);
        Ok(Some(format!("settings of bridge {} were changed: put them back", self.name)))
    }

    fn make(&self, rtnl: &mut Rtnl, vlan_filtering: bool) -> Result<(), Error> {
        rtnl.change(Request::add_bridge(&self.name, &settings(vlan_filtering)))?;
        let made = rtnl.link_by_name(&self.name)?.unwrap_or_default();
        self.hide_from_pods();
        rtnl.change_link(made.index, &LinkChange::new().alias(ALIAS))
    }

    /// Joins the link of that name to the bridge and switches it on. A port of another bridge or bond stays there.
    pub(super) fn ensure_joined(
        rtnl: &mut Rtnl,
        bridge: (u32, &str),
        role: Role,
        name: &str,
        repairs: &Repairs,
    ) -> Result<Link, Refused> {
        match Self::join(rtnl, bridge, role, name) {
            Ok((link, change)) => {
                repairs.note_in_place(name, change);
                Ok(link)
            }
            Err(refused) => {
                repairs.note_missing(name);
                Err(refused)
            }
        }
    }

    /// Joins the link and switches it on. Returns the change as a sentence, if there was one.
    fn join(
        rtnl: &mut Rtnl,
        (bridge, bridge_name): (u32, &str),
        role: Role,
        name: &str,
    ) -> Result<(Link, Option<String>), Refused> {
        let what = role.name();
        let refused =
            |error| Refused::new(format!("join {what} {name} to bridge {bridge_name}"), error);
        let missing = || role.missing(name, bridge_name);
        let link = rtnl.link_by_name(name).map_err(refused)?.ok_or_else(missing)?;
        let mut change = None;
        match link.master {
            Some(master) if master == bridge => {}
            Some(_) => {
                return Err(Refused::because(format!(
                    "{what} {name} is a port of another bridge or bond: take it out \
                     first, with `ip link set {name} nomaster`"
                )));
            }
            None => {
                let join = LinkChange::new().master(Some(bridge));
                rtnl.change_link(link.index, &join).map_err(refused)?;
                change = Some(role.joined(name, bridge_name));
            }
        }
        if !link.is_up {
            rtnl.change_link(link.index, &LinkChange::new().up()).map_err(refused)?;
            change.get_or_insert_with(|| role.switched_on(name));
        }
        Ok((link, change))
    }

    /// Takes the bridge's own IP stack out of the pods' network: the bridge forwards between pods and is no
    /// neighbour of theirs. The kernel accepts a packet for an address of the DPU on any link. With `rp_filter`, it
    /// drops such packets from pods, because it has no route back to the pod through the bridge.
    fn hide_from_pods(&self) {
        let settings = [
            (Family::V6, "disable_ipv6", "1"),
            (Family::V4, "arp_ignore", "1"),
            (Family::V4, "rp_filter", "1"),
        ];
        for (family, key, value) in settings {
            if let Err(error) = set_sysctl(family, &self.name, key, value) {
                tracing::warn!(
                    bridge = self.name,
                    key,
                    %error,
                    "cannot set the bridge's sysctl; pods may see the DPU's own addresses"
                );
            }
        }
    }
}

/// The settings of a bridge that this service creates.
///
/// - No multicast snooping: without a querier, IPv6 neighbours would stop finding each other after some minutes.
/// - No default VLAN: the kernel would put each joining port into it before the port's own VLAN can be set.
/// - No spanning tree: each joining port would drop all frames at first.
fn settings(vlan_filtering: bool) -> Bridge {
    Bridge {
        vlan_filtering,
        default_pvid: vlan_filtering.then_some(0),
        multicast_snooping: Some(false),
        spanning_tree: Some(false),
    }
}
