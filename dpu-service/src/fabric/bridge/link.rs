//! The bridge itself: found by its name, made unless somebody else has made it, and joined by links that are no pods'.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use netlink::{Bridge, Error, Family, Link, LinkChange, Request, Rtnl, set_sysctl};

use crate::{
    driver::{Fault, Refused},
    fabric::{repairs::Repairs, settings::Role},
};

/// Marks a bridge that this service made.
pub(super) const ALIAS: &str = "dpu-offload fabric";

/// A bridge, known by its name.
#[derive(Debug)]
pub(super) struct BridgeLink {
    name: String,
    /// Its index when it was last looked up, so that not every port has to; `None`: it is to be looked up
    /// again. Held while it is, so that nobody keeps what he read before another found it wrong.
    index: Mutex<Option<u32>>,
    /// Whether a spanning tree decides which of its ports forward, as the latest [`Self::ensure`] found.
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

    /// The bridge as it is now, which must be there.
    pub(super) fn find(&self, rtnl: &mut Rtnl) -> Result<Link, Refused> {
        let mut index = self.known_index();
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

    /// Its index among these links, if it is there.
    pub(super) fn among(&self, links: &[Link]) -> Option<u32> {
        let bridge = links.iter().find(|link| link.name == self.name && link.bridge.is_some());
        bridge.map(|link| link.index)
    }

    /// Its index, as it was last known: somebody may have deleted the bridge since.
    pub(super) fn index(&self, rtnl: &mut Rtnl) -> Result<u32, Refused> {
        let known = *self.known_index();
        known.map_or_else(|| Ok(self.find(rtnl)?.index), Ok)
    }

    /// Whether its index is that one, as it was last known. Does not ask the kernel.
    pub(super) fn is_known_as(&self, index: u32) -> bool {
        *self.known_index() == Some(index)
    }

    /// The next who wants to know its index looks it up.
    pub(super) fn forget_index(&self) {
        *self.known_index() = None;
    }

    fn known_index(&self) -> MutexGuard<'_, Option<u32>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a spanning tree decides which of its ports forward. Does not ask the kernel.
    pub(super) fn runs_stp(&self) -> bool {
        self.runs_stp.load(Ordering::Relaxed)
    }

    /// Refuses another program's bridge with a spanning tree: of a port that joins, it drops all frames at first.
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

    /// Makes the bridge unless there is one, and returns its index. One that somebody else made is used
    /// as it is.
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

    /// Gives a bridge that this service made the settings back that another program has changed. Also returns that, if
    /// so: one sentence.
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

    /// Has the link of that name join the bridge of that index and name, and be up. One that is a port of another
    /// is left there.
    pub(super) fn take_in(
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

    /// Joins the link and switches it on. Also returns what had to be changed, if anything: one sentence.
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

    /// The bridge forwards between pods; it is no neighbour of theirs. What pods send to an address that the DPU has
    /// elsewhere comes from where it has no way to them, and is dropped: the kernel takes it in at whatever link.
    fn hide_from_pods(&self) {
        let settings = [
            (Family::V6, "disable_ipv6", "1"),
            (Family::V4, "arp_ignore", "1"),
            (Family::V4, "rp_filter", "1"),
        ];
        for (family, key, value) in settings {
            if let Err(error) = set_sysctl(family, &self.name, key, value) {
                tracing::warn!(bridge = self.name, %error, "pods may see the DPU's own addresses");
            }
        }
    }
}

/// Those of a bridge that this service makes. Without multicast snooping: with it, and no querier, IPv6 neighbours would
/// stop to find each other some minutes after they last spoke. Without a default VLAN: the kernel would put each port
/// that joins into it, before it can be told the port's own. Without a spanning tree: each port that joins would drop
/// all frames at first.
fn settings(vlan_filtering: bool) -> Bridge {
    Bridge {
        vlan_filtering,
        default_pvid: vlan_filtering.then_some(0),
        multicast_snooping: Some(false),
        spanning_tree: Some(false),
    }
}
