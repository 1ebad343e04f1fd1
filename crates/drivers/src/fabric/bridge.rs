//! The fabric driver `bridge`: a Linux bridge.
//!
//! With VLAN filtering, every port is in the VLANs of its network and in no other; VLAN 1 stands for untagged
//! traffic. Without it the bridge is one broadcast domain, and networks with a VLAN are refused. The bridge stays
//! when the service stops, because it carries the traffic of running pods.
//!
//! Calls for several ports overlap, and each has a socket of its own. The kernel serialises changes of links under
//! RTNL. Ports share two things: the uplinks' VLANs, which follow from those of all ports, and the bridge's index.
//! Each has a lock, in [`uplinks`] and [`link`]. No call holds two locks of this driver at once.

mod abilities;
mod fdb;
mod gateways;
mod guard;
mod held_back;
mod ingress_bypass;
mod kept;
mod limit;
mod link;
mod uplinks;
mod vlans;

use std::collections::{BTreeMap, BTreeSet};

use netlink::{BridgeVlan, Error, Link, LinkChange, LinkEvent, MacAddress, Rtnl, gone_is_done};
use parking_lot::Mutex;

pub use abilities::BridgeAbilities;
use gateways::GatewayPairs;
use ingress_bypass::IngressBypass;
use link::{ALIAS, BridgeLink};
use uplinks::Uplinks;
use vlans::{UNTAGGED, Vlans, membership, port_changes, port_vlans, surplus};

use super::{
    BridgeSettings, EgressLimit, Fabric, GatewayLinks, GatewayPort, Membership, guard::only_mac,
    offload, repairs::Repairs, sockets::Sockets,
};
use crate::{
    counters::{Drops, Offloaded},
    driver::{
        ALLOW_RULES, Ability, Capability, Fault, Reading, Refused, Unsupported, capability,
        limited_capability,
    },
    eswitch::Representor,
    probe::KernelAbilities,
};
use model::{AntiSpoofing, PortSettings};

/// The kernel's `BR_MAX_PORTS` without the port number 0, which it does not give.
const MOST_PORTS: u32 = 1023;

const NO_RULES: &str =
    "a Linux bridge does not track connections; use fabric.driver = \"ovs\", or leave it out";

/// The driver.
#[derive(Debug)]
pub struct BridgeFabric {
    settings: BridgeSettings,
    bridge: BridgeLink,
    uplinks: Uplinks,
    /// The MAC addresses of the bridge and of its links that are not pods' ports, as the latest look found.
    own_macs: Mutex<Vec<MacAddress>>,
    sockets: Sockets,
    abilities: BridgeAbilities,
    guard: Ability,
    police: Ability,
    refusals: guard::Refusals,
    bypass: IngressBypass,
    repairs: Repairs,
}

impl BridgeFabric {
    /// A driver for this bridge, in the calling thread's network namespace. [`Fabric::prepare`] creates the bridge.
    ///
    /// # Errors
    /// When the kernel can't be asked, or another link has the bridge's name.
    pub fn open(
        settings: &BridgeSettings,
        abilities: BridgeAbilities,
        of_kernel: &KernelAbilities,
    ) -> Result<Self, Refused> {
        let name = &settings.name;
        let sockets = Sockets::open()?;
        let refused = |error| Refused::new(format!("open bridge {name}"), error);
        let found = sockets.with(|rtnl| rtnl.link_by_name(name).map_err(refused))?;
        Ok(Self {
            settings: settings.clone(),
            bridge: BridgeLink::new(name),
            uplinks: Uplinks::new(&settings.uplinks),
            own_macs: Mutex::default(),
            sockets,
            abilities: abilities.of(found.as_ref()),
            guard: of_kernel.guard.clone(),
            police: of_kernel.police.clone(),
            refusals: guard::Refusals::default(),
            bypass: IngressBypass::open(of_kernel.ingress_bypass.clone())?,
            repairs: Repairs::default(),
        })
    }

    fn filters_vlans(&self) -> bool {
        self.abilities.vlan_filtering.is_ok()
    }

    fn not_joined(&self, port: &Representor, error: Error) -> Refused {
        let doing = format!("join {} to bridge {}", port.name, self.bridge.name());
        let full =
            format!("can't {doing}: it has {MOST_PORTS} ports, the most that the kernel allows");
        let refused = Refused::new(doing, error);
        match refused.fault() {
            Fault::FabricFull => Refused::because(full).blamed_on(Fault::FabricFull),
            Fault::Port | Fault::Elsewhere | Fault::FabricAway => refused,
        }
    }

    /// Puts the port into these VLANs and no other.
    fn set_vlans(
        rtnl: &mut Rtnl,
        bridge: u32,
        port: u32,
        wanted: &[BridgeVlan],
    ) -> Result<(), Error> {
        let vlans = rtnl.bridge_vlans(bridge)?;
        let has = vlans.get(&port).map_or(&[][..], Vec::as_slice);
        // Entries go before their VLAN: the kernel refuses to delete them once the port has left it.
        let mut requests = fdb::removals(rtnl, port, &Vec::from_iter(surplus(has, wanted)))?;
        requests.extend(port_changes(port, has, wanted));
        rtnl.batch(&requests)
    }

    fn guard_limits(&self) -> String {
        let lack = self.bypass.lack().map(|lack| format!("; {lack}")).unwrap_or_default();
        format!("{}{lack}", guard::WHERE)
    }

    /// Skips links that do not exist.
    fn find_own_macs(&self, rtnl: &mut Rtnl) -> Vec<MacAddress> {
        let names = self.settings.links().map(|(_, name)| name).chain([self.bridge.name()]);
        names.filter_map(|name| rtnl.link_by_name(name).ok()??.mac).collect()
    }

    fn sync_uplinks(&self, rtnl: &mut Rtnl, bridge: u32) -> Result<(), Error> {
        if self.filters_vlans() { self.uplinks.follow(rtnl, bridge) } else { Ok(()) }
    }

    fn enslave(
        &self,
        rtnl: &mut Rtnl,
        bridge: u32,
        port: u32,
        settings: &PortSettings,
    ) -> Result<(), Error> {
        // Another program's bridge may put each new port into its default VLAN. The caller switches the port on
        // last, so nothing passes until the port is in its own VLAN only.
        rtnl.change_link(port, &LinkChange::new().master(Some(bridge)))?;
        if !self.filters_vlans() {
            return Ok(());
        }
        Self::set_vlans(rtnl, bridge, port, &port_vlans(settings))?;
        // Last, since the uplinks' VLANs are computed from those of all ports.
        self.sync_uplinks(rtnl, bridge)
    }

    /// Resets settings that keep frames from passing a port of this bridge. A port that has just joined has the
    /// kernel's defaults.
    fn open_port(&self, rtnl: &mut Rtnl, bridge: u32, port: &Representor) -> Result<(), Error> {
        if port.master != Some(bridge) {
            return Ok(());
        }
        match rtnl.link_by_index(port.index)? {
            Some(link) => held_back::open(rtnl, &link, self.bridge.runs_stp()),
            None => Ok(()),
        }
    }

    /// The membership of a port of the bridge.
    fn membership_of(&self, port: &Link, vlans: &Vlans) -> Membership {
        let held_back_by = held_back::held_back_by(port, self.bridge.runs_stp());
        Membership { held_back_by, ..membership(vlans, port.index) }
    }

    /// Refuses a port of another program's bridge or bond. Bridges that this service made under another name and
    /// the fabric's other bridges are its own.
    fn check_free(&self, rtnl: &mut Rtnl, bridge: u32, port: &Representor) -> Result<(), Refused> {
        let occupant = self.foreign_master(rtnl, Some(bridge), port)?;
        occupant.map_or(Ok(()), |occupant| {
            Err(Refused::because(format!(
                "representor {name} is a port of {occupant}: take it out first, with `ip link set {name} nomaster`",
                name = port.name
            )))
        })
    }

    /// The name of the port's master, unless it is `bridge` or another bridge of this service.
    fn foreign_master(
        &self,
        rtnl: &mut Rtnl,
        bridge: Option<u32>,
        port: &Representor,
    ) -> Result<Option<String>, Refused> {
        let Some(master) = port.master.filter(|master| Some(*master) != bridge) else {
            return Ok(None);
        };
        let refused = |error| Refused::new(format!("look at {}", port.name), error);
        let master = rtnl.link_by_index(master).map_err(refused)?;
        let is_foreign = |master: &Link| {
            master.alias.as_deref() != Some(ALIAS) && !self.settings.siblings.contains(&master.name)
        };
        Ok(master.filter(is_foreign).map(|master| master.name))
    }

    /// The VLANs of all ports. Empty without VLAN filtering.
    fn vlans_of_ports(&self, rtnl: &mut Rtnl, bridge: u32) -> Result<Vlans, Error> {
        if self.filters_vlans() { rtnl.bridge_vlans(bridge) } else { Ok(Vlans::new()) }
    }

    /// The port's VLANs as the forwarding table has them.
    fn vlans_of(&self, rtnl: &mut Rtnl, port: &Link) -> Result<Vec<Option<u16>>, Error> {
        if !self.filters_vlans() {
            return Ok(vec![None]);
        }
        let vlans = rtnl.bridge_vlans(port.master.unwrap_or_default())?;
        Ok(vlans.get(&port.index).into_iter().flatten().map(|vlan| Some(vlan.id)).collect())
    }

    /// The VLANs in which the port's MAC address has a forwarding entry.
    fn fdb_vlans(&self, settings: &PortSettings) -> Vec<Option<u16>> {
        match self.filters_vlans() {
            true => port_vlans(settings).iter().map(|vlan| Some(vlan.id)).collect(),
            false => vec![None],
        }
    }

    fn set_fdb(
        &self,
        rtnl: &mut Rtnl,
        port: &Representor,
        settings: &PortSettings,
    ) -> Result<(), Refused> {
        let refused =
            |error| Refused::new(format!("set the forwarding entries of {}", port.name), error);
        let set = match only_mac(settings) {
            Some(mac) => fdb::set_static(rtnl, port, mac, &self.fdb_vlans(settings)),
            None => fdb::set_learning(rtnl, port.index),
        };
        set.map_err(refused)
    }

    /// Compares the port's forwarding entries with the wanted ones.
    fn find_fdb(
        &self,
        rtnl: &mut Rtnl,
        port: &Representor,
        settings: &PortSettings,
    ) -> Result<Reading, Refused> {
        let refused = |error| Refused::new(format!("look at {}", port.name), error);
        let Some(link) = self.member_link(rtnl, port)? else {
            return Ok(Reading::missing("the port is not in the bridge"));
        };
        let vlans = self.vlans_of(rtnl, &link).map_err(refused)?;
        let mac = only_mac(settings);
        fdb::find(rtnl, port.index, link.bridge_port, &vlans, mac).map_err(refused)
    }

    /// The port's link, if the port is a member of this bridge.
    fn member_link(&self, rtnl: &mut Rtnl, port: &Representor) -> Result<Option<Link>, Refused> {
        let Ok(bridge) = self.bridge.index(rtnl) else { return Ok(None) };
        let link = rtnl.link_by_index(port.index);
        let link = link.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
        Ok(link.filter(|link| link.master == Some(bridge)))
    }
}

impl Fabric for BridgeFabric {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![
            capability("vlan-filtering", &self.abilities.vlan_filtering),
            limited_capability("guard", &self.guard, &self.guard_limits()),
            limited_capability("egress-limit", &self.police, limit::WHERE),
            capability(ALLOW_RULES, &Err(NO_RULES.into())),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        let refuse = |setting: String, why: &str| Err(Unsupported::new(setting, why));
        for vlan in settings.vlan.iter().chain(&settings.trunk) {
            match &self.abilities.vlan_filtering {
                Err(why) => return refuse(format!("VLAN {vlan}"), why),
                Ok(()) if *vlan == UNTAGGED => {
                    return refuse(
                        format!("VLAN {UNTAGGED}"),
                        "the bridge uses that number for untagged traffic; leave it out, or use another",
                    );
                }
                Ok(()) => {}
            }
        }
        if settings.ingress_rules.is_some() {
            return refuse("allow".into(), NO_RULES);
        }
        match &self.guard {
            Err(why) if settings.anti_spoofing != AntiSpoofing::Off => {
                let why = format!("{why}; the network can have anti_spoofing = \"off\"");
                refuse(format!("anti_spoofing = {:?}", settings.anti_spoofing.name()), &why)
            }
            _ => Ok(()),
        }
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        let name = match event {
            LinkEvent::Missed => return true,
            LinkEvent::PortChanged { bridge, .. } => return self.bridge.is_known_as(*bridge),
            LinkEvent::Changed(link) => &link.name,
            LinkEvent::Gone { name, .. } => name,
        };
        self.settings.names(name) || gateways::is_name(name)
    }

    /// Continues after a failure, and returns the first one.
    fn prepare(&self) -> Result<(), Refused> {
        self.sockets.with(|rtnl| {
            let (filters_vlans, repairs) = (self.filters_vlans(), &self.repairs);
            let bridge = self.bridge.ensure(rtnl, filters_vlans, repairs)?;
            let joined = self.uplinks.join(rtnl, (bridge, self.bridge.name()), repairs);
            let kept = kept::join(rtnl, bridge, &self.settings, filters_vlans, repairs);
            let synced = self.sync_uplinks(rtnl, bridge);
            // Without an address of its own, a bridge takes one from its ports: read it after the uplinks have
            // joined.
            let own_macs = self.find_own_macs(rtnl);
            *self.own_macs.lock() = own_macs;
            synced
                .map_err(|error| self.bridge.refused("set the VLANs of the uplinks of", error))
                .and(joined.and(kept).and(self.bridge.check_stp()).map_err(Refused::partial))
        })
    }

    fn take_repairs(&self) -> Vec<String> {
        self.repairs.take()
    }

    /// Relevant with br_netfilter, which other programs may have loaded.
    fn uplink_mtu(&self, _bridge: Option<&str>) -> Option<u32> {
        self.uplinks.mtu()
    }

    fn uplinks(&self, _bridge: Option<&str>) -> &[String] {
        &self.settings.uplinks
    }

    fn occupant(&self, port: &Representor) -> Result<Option<String>, Refused> {
        self.sockets.with(|rtnl| {
            let bridge = self.bridge.index(rtnl).ok();
            self.foreign_master(rtnl, bridge, port)
        })
    }

    fn own_macs(&self) -> Vec<MacAddress> {
        self.own_macs.lock().clone()
    }

    fn ports_seen_as(&self) -> Vec<String> {
        vec![self.bridge.name().to_owned()]
    }

    fn gateway_name(&self, network: &str) -> String {
        gateways::own_name(network)
    }

    fn set_gateways(&self, ports: &[GatewayPort]) -> Result<GatewayLinks, Refused> {
        self.sockets.with(|rtnl| {
            let refused = |error| self.bridge.refused("look at the gateways' links of", error);
            let links = rtnl.links().map_err(refused)?;
            let is_sibling = |link: &&Link| self.settings.siblings.contains(&link.name);
            let siblings: Vec<_> = links.iter().filter(is_sibling).map(|link| link.index).collect();
            let bridge = match self.bridge.find(rtnl) {
                // Without the bridge, gateways' links that no network needs must still be deleted.
                Err(_) if ports.is_empty() => return gateways::remove_all(rtnl, &links, &siblings),
                found => found?.index,
            };
            let vlans = match self.filters_vlans() {
                true => Some(rtnl.bridge_vlans(bridge).map_err(refused)?),
                false => None,
            };
            let gateways =
                GatewayPairs { bridge, siblings: &siblings, links: &links, vlans: vlans.as_ref() };
            let (ensured, has_changed) = gateways.set(rtnl, ports)?;
            if has_changed {
                self.sync_uplinks(rtnl, bridge).map_err(refused)?;
            }
            Ok(ensured)
        })
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.sockets.with(|rtnl| {
            let bridge = self.bridge.index(rtnl)?;
            self.check_free(rtnl, bridge, port)?;
            let joined = self.enslave(rtnl, bridge, port.index, settings);
            joined.and_then(|()| self.open_port(rtnl, bridge, port)).map_err(|error| {
                // The bridge may have been deleted, and created again by the reconciler under another index. The
                // next join looks it up.
                self.bridge.forget_index();
                self.not_joined(port, error)
            })
        })
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        let refused = |error| {
            Refused::new(format!("take {} out of bridge {}", port.name, self.bridge.name()), error)
        };
        self.sockets.with(|rtnl| {
            if let Some(member) = self.member_link(rtnl, port)? {
                // Leaving removes the port's VLANs, FDB entries and settings. The uplinks' VLANs follow from those
                // of all ports, so they are set afterwards.
                gone_is_done(rtnl.change_link(port.index, &LinkChange::new().master(None)))
                    .map_err(refused)?;
                self.sync_uplinks(rtnl, member.master.unwrap_or_default()).map_err(refused)?;
            }
            guard::clear(rtnl, &self.refusals, port)
        })
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        self.sockets.with(|rtnl| {
            let Some(member) = self.member_link(rtnl, port)? else { return Ok(None) };
            let bridge = member.master.unwrap_or_default();
            let vlans = self.vlans_of_ports(rtnl, bridge);
            let vlans =
                vlans.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
            Ok(Some(self.membership_of(&member, &vlans)))
        })
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        self.sockets.with(|rtnl| {
            let refused = |error| self.bridge.refused("list the ports of", error);
            let links = rtnl.links().map_err(refused)?;
            let Some(bridge) = self.bridge.among(&links) else { return Ok(BTreeMap::new()) };
            let vlans = self.vlans_of_ports(rtnl, bridge).map_err(refused)?;
            let ports = links.iter().filter(|link| link.master == Some(bridge));
            Ok(ports.map(|link| (link.index, self.membership_of(link, &vlans))).collect())
        })
    }

    /// Reading a link makes a current kernel settle the carrier, and with it the port's state. An older kernel
    /// does so up to a second later.
    fn forwards(&self, index: u32) -> Result<bool, Refused> {
        let refused = |error| Refused::new(format!("look at link {index}"), error);
        let link = self.sockets.with(|rtnl| rtnl.link_by_index(index).map_err(refused))?;
        Ok(link.is_some_and(|link| link.is_forwarding))
    }

    fn set_guard(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.sockets.with(|rtnl| {
            self.set_fdb(rtnl, port, settings)?;
            match &self.guard {
                Ok(()) => {
                    // The bridge's rule drops frames without the filters' mark, so the filters come first.
                    guard::set(rtnl, &self.refusals, port, settings)?;
                    self.bypass.close(port)
                }
                Err(_) if settings.anti_spoofing == AntiSpoofing::Off => Ok(()),
                // The kernel could guard when this attachment was made, and no longer can.
                Err(why) => {
                    let what = format!("{} can't be guarded: {why}", port.name);
                    Err(Refused::because(what).blamed_on(Fault::Elsewhere))
                }
            }
        })?;
        // The attachment was made with another fabric driver, which had these rules.
        settings.ingress_rules.as_ref().map_or(Ok(()), |_| {
            let what = format!("{} can't have its network's allow: {NO_RULES}", port.name);
            Err(Refused::because(what).blamed_on(Fault::Elsewhere))
        })
    }

    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        let found = self.sockets.with(|rtnl| {
            let fdb = self.find_fdb(rtnl, port, settings)?;
            match &self.guard {
                Ok(()) => {
                    let found = fdb.and(&guard::find(rtnl, &self.refusals, port, settings)?);
                    let bypass = self.bypass.find(port)?;
                    Ok(bypass.iter().fold(found, |found, bypass| found.and(bypass)))
                }
                Err(why) if settings.anti_spoofing == AntiSpoofing::Off => {
                    Ok(fdb.and(&Reading::in_place(why.clone())))
                }
                Err(why) => Ok(fdb.and(&Reading::missing(why.clone()))),
            }
        })?;
        Ok(match settings.ingress_rules {
            None => found,
            Some(_) => found.and(&Reading::missing(NO_RULES)),
        })
    }

    fn lost_rules(&self) -> bool {
        self.bypass.were_lost()
    }

    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        self.sockets.with(guard::drops)
    }

    /// FDB entries count as rules: by them a card forwards frames to pods.
    fn offloaded(&self, ports: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offloaded>, Refused> {
        self.sockets.with(|rtnl| {
            let mut offloaded = offload::of_filters(rtnl, ports)?;
            let refused = |error| self.bridge.refused("list the forwarding entries of", error);
            for entry in rtnl.fdb().map_err(refused)? {
                if let Some(of_port) = offloaded.get_mut(&entry.port) {
                    of_port.rules += 1;
                    of_port.in_hardware += u64::from(entry.is_offloaded);
                }
            }
            Ok(offloaded)
        })
    }

    fn check_egress_limit(&self, limit: &EgressLimit) -> Result<(), Unsupported> {
        limit.check(&self.police)
    }

    fn set_egress_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused> {
        let unable = |error| Refused::new(format!("limit {}", port.name), error);
        limit.check(&self.police).map_err(|error| unable(error).blamed_on(Fault::Elsewhere))?;
        self.sockets.with(|rtnl| limit::set(rtnl, port, limit))
    }

    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused> {
        self.sockets.with(|rtnl| limit::clear(rtnl, port))
    }

    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused> {
        self.sockets.with(|rtnl| limit::find(rtnl, port, wanted))
    }
}

#[cfg(test)]
mod tests {
    use vf_alloc::FunctionId;

    use super::*;

    const VF: FunctionId = FunctionId::local(0, 1);

    fn fabric(uplinks: &[&str]) -> BridgeFabric {
        let unable = || Err("not probed".to_owned());
        let abilities = BridgeAbilities { vlan_filtering: unable() };
        let of_kernel = KernelAbilities {
            guard: unable(),
            ingress_bypass: unable(),
            token_bucket: unable(),
            police: unable(),
        };
        let uplinks = uplinks.iter().map(ToString::to_string).collect();
        let settings = BridgeSettings {
            name: "br-none".into(),
            uplinks,
            kept: vec!["pf0hpf".into()],
            siblings: vec![],
        };
        BridgeFabric::open(&settings, abilities, &of_kernel).unwrap()
    }

    #[test]
    fn only_bridge_and_its_links_are_concerned() {
        let fabric = fabric(&["p0"]);
        let changed = |name: &str| {
            let mut link = Link::default();
            name.clone_into(&mut link.name);
            fabric.concerns(&LinkEvent::Changed(Box::new(link)))
        };
        let concerned = ["br-none", "p0", "pf0hpf", "p1", "pf0vf0"].map(changed);
        assert_eq!(concerned, [true, true, true, false, false]);
        let gone = |name: &str| {
            let name = name.to_owned();
            fabric.concerns(&LinkEvent::Gone { index: 1, name, alias: None, parent: None })
        };
        assert_eq!(["br-none", "p0", "p1"].map(gone), [true, true, false]);
        assert!(fabric.concerns(&LinkEvent::Missed));
    }

    #[test]
    fn rules_of_a_network_are_refused_by_name() {
        let settings =
            PortSettings { ingress_rules: Some(Vec::new()), ..crate::programmer::idle(VF) };
        let refused = fabric(&[]).check(&settings).unwrap_err().to_string();
        assert!(refused.starts_with("allow "), "{refused}");
        assert!(refused.contains("fabric.driver = \"ovs\""), "{refused}");
        let can = fabric(&[]).capabilities();
        let of_rules = can.iter().find(|can| can.name == ALLOW_RULES).unwrap();
        assert_eq!((of_rules.available, &*of_rules.detail), (false, NO_RULES));
    }

    #[test]
    fn call_in_progress_blocks_no_other() {
        let fabric = fabric(&[]);
        assert_eq!(fabric.sockets.with(|_| fabric.members()).unwrap(), BTreeMap::new());
    }
}
