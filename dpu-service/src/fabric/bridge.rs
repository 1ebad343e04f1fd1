//! A Linux bridge as the fabric.
//!
//! Where the kernel can keep VLANs apart, every port is in the VLANs that it is told and in no
//! other, and VLAN 1 stands for untagged traffic. Where it can't, there is one broadcast domain, and
//! networks with a VLAN are refused. The bridge stays when the service stops: it carries the traffic
//! of running pods.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::{
    Bridge, BridgePort, BridgeVlan, Error, Family, FdbEntry, Link, LinkChange, MacAddress, Request,
    Rtnl, set_sysctl,
};

use super::{Fabric, Membership};
use crate::{
    eswitch::{Capability, Finding, Refused, Representor, Unsupported},
    model::PortSettings,
    probe::{Ability, KernelAbilities, capability},
};

/// Marks a bridge that this service made.
const ALIAS: &str = "dpu-offload fabric";

/// The bridge's own number for what is untagged on the wire.
const UNTAGGED: u16 = 1;

/// The driver.
#[derive(Debug)]
pub struct BridgeFabric {
    rtnl: Mutex<Rtnl>,
    name: String,
    uplinks: Vec<String>,
    vlan_filtering: Ability,
    locked_ports: Ability,
}

impl BridgeFabric {
    /// The driver for the bridge `name` with these uplinks, in the calling thread's network
    /// namespace. [`Fabric::prepare`] makes it.
    ///
    /// # Errors
    /// When the kernel can't be talked to, or there is a link of that name which can't serve.
    pub fn open(
        name: &str,
        uplinks: &[String],
        abilities: &KernelAbilities,
    ) -> Result<Self, Refused> {
        let refused = |error| Refused::new(format!("open bridge {name}"), error);
        let mut rtnl = Rtnl::open().map_err(refused)?;
        let vlan_filtering = match rtnl.link_by_name(name).map_err(refused)? {
            None => abilities.vlan_filtering.clone(),
            Some(link) => abilities.vlan_filtering.clone().and(has_vlan_filtering(&link)),
        };
        Ok(Self {
            rtnl: Mutex::new(rtnl),
            name: name.to_owned(),
            uplinks: uplinks.to_vec(),
            vlan_filtering,
            locked_ports: abilities.locked_ports.clone(),
        })
    }

    fn rtnl(&self) -> MutexGuard<'_, Rtnl> {
        self.rtnl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn filters_vlans(&self) -> bool {
        self.vlan_filtering.is_ok()
    }

    fn refused(&self, doing: &str, error: Error) -> Refused {
        Refused::new(format!("{doing} bridge {}", self.name), error)
    }

    /// The bridge, which must be there.
    fn bridge(&self, rtnl: &mut Rtnl) -> Result<Link, Refused> {
        let found = rtnl.link_by_name(&self.name);
        let found = found.map_err(|error| self.refused("find", error))?;
        let missing = || Refused::because(format!("there is no bridge {}", self.name));
        let link = found.ok_or_else(missing)?;
        if link.bridge.is_some() {
            return Ok(link);
        }
        Err(Refused::because(format!(
            "link {} is no bridge: name another in fabric.bridge, or delete it",
            self.name
        )))
    }

    /// Makes the bridge unless there is one. One that somebody else made is used as it is.
    fn ensure_bridge(&self, rtnl: &mut Rtnl) -> Result<Link, Refused> {
        let found = rtnl.link_by_name(&self.name);
        if found.map_err(|error| self.refused("find", error))?.is_none() {
            self.make_bridge(rtnl).map_err(|error| self.refused("make", error))?;
        }
        let bridge = self.bridge(rtnl)?;
        if !bridge.is_up {
            let up = rtnl.change_link(bridge.index, &LinkChange::new().up());
            up.map_err(|error| self.refused("switch on", error))?;
        }
        Ok(bridge)
    }

    /// Without multicast snooping: with it, and no querier, IPv6 neighbours would stop to find each
    /// other some minutes after they last spoke.
    fn make_bridge(&self, rtnl: &mut Rtnl) -> Result<(), Error> {
        let settings = Bridge {
            vlan_filtering: self.filters_vlans(),
            default_pvid: self.filters_vlans().then_some(0),
            multicast_snooping: Some(false),
        };
        rtnl.add_bridge(&self.name, &settings)?;
        let made = rtnl.link_by_name(&self.name)?.unwrap_or_default();
        self.hide_from_pods();
        rtnl.change_link(made.index, &LinkChange::new().alias(ALIAS))
    }

    /// The bridge forwards between pods; it is no neighbour of theirs.
    fn hide_from_pods(&self) {
        let settings = [(Family::V6, "disable_ipv6", "1"), (Family::V4, "arp_ignore", "1")];
        for (family, key, value) in settings {
            if let Err(error) = set_sysctl(family, &self.name, key, value) {
                tracing::warn!(bridge = self.name, %error, "pods may see the DPU's own addresses");
            }
        }
    }

    fn join_uplink(&self, rtnl: &mut Rtnl, bridge: &Link, name: &str) -> Result<(), Refused> {
        let refused = |error| Refused::new(format!("join uplink {name}"), error);
        let missing = || Refused::because(format!("there is no uplink {name}"));
        let uplink = rtnl.link_by_name(name).map_err(refused)?.ok_or_else(missing)?;
        match uplink.master {
            Some(master) if master == bridge.index => {}
            Some(_) => {
                return Err(Refused::because(format!(
                    "uplink {name} is a port of another bridge or bond: take it out first"
                )));
            }
            None => rtnl.set_master(uplink.index, Some(bridge.index)).map_err(refused)?,
        }
        if self.filters_vlans() {
            rtnl.add_bridge_vlan(uplink.index, access(UNTAGGED)).map_err(refused)?;
        }
        rtnl.change_link(uplink.index, &LinkChange::new().up()).map_err(refused)
    }

    /// Puts the port into its VLAN and no other, and the VLAN onto the uplinks.
    fn set_vlan(&self, rtnl: &mut Rtnl, port: u32, vlan: u16) -> Result<(), Error> {
        let vlans = rtnl.bridge_vlans()?;
        let others = vlans.get(&port).into_iter().flatten().filter(|other| other.id != vlan);
        let mut requests: Vec<Request<'_>> =
            others.map(|other| Request::delete_bridge_vlan(port, other.id)).collect();
        requests.push(Request::add_bridge_vlan(port, access(vlan)));
        rtnl.batch(&requests)?;
        if vlan == UNTAGGED { Ok(()) } else { self.add_to_uplinks(rtnl, &vlans, vlan) }
    }

    fn add_to_uplinks(
        &self,
        rtnl: &mut Rtnl,
        vlans: &BTreeMap<u32, Vec<BridgeVlan>>,
        vlan: u16,
    ) -> Result<(), Error> {
        let tagged = BridgeVlan { id: vlan, ..BridgeVlan::default() };
        for uplink in self.uplink_indices(rtnl)? {
            if !vlans.get(&uplink).is_some_and(|has| has.contains(&tagged)) {
                rtnl.add_bridge_vlan(uplink, tagged)?;
            }
        }
        Ok(())
    }

    /// Takes a VLAN that no pod is in any more off the uplinks.
    fn prune_uplinks(&self, rtnl: &mut Rtnl, vlan: u16) -> Result<(), Error> {
        let vlans = rtnl.bridge_vlans()?;
        let uplinks = self.uplink_indices(rtnl)?;
        let has =
            |index: &u32| vlans.get(index).is_some_and(|all| all.iter().any(|v| v.id == vlan));
        if vlans.keys().any(|index| !uplinks.contains(index) && has(index)) {
            return Ok(());
        }
        for uplink in uplinks.iter().filter(|uplink| has(uplink)) {
            rtnl.delete_bridge_vlan(*uplink, vlan)?;
        }
        Ok(())
    }

    fn uplink_indices(&self, rtnl: &mut Rtnl) -> Result<Vec<u32>, Error> {
        let mut indices = Vec::new();
        for name in &self.uplinks {
            indices.extend(rtnl.link_by_name(name)?.map(|link| link.index));
        }
        Ok(indices)
    }

    /// The port's access VLAN inside the bridge.
    fn access_vlan(&self, rtnl: &mut Rtnl, port: u32) -> Result<Option<u16>, Error> {
        if !self.filters_vlans() {
            return Ok(None);
        }
        let vlans = rtnl.bridge_vlans()?;
        Ok(vlans.get(&port).and_then(|all| all.iter().find(|vlan| vlan.pvid)).map(|vlan| vlan.id))
    }

    /// The port as a member of this bridge. `None`: it is not, or not any more.
    fn member_link(&self, rtnl: &mut Rtnl, port: &Representor) -> Result<Option<Link>, Refused> {
        let refused = |error| Refused::new(format!("look at {}", port.name), error);
        let Some(bridge) = rtnl.link_by_name(&self.name).map_err(refused)? else { return Ok(None) };
        let link = rtnl.link_by_index(port.index).map_err(refused)?;
        Ok(link.filter(|link| link.master == Some(bridge.index)))
    }

    fn confine(&self, rtnl: &mut Rtnl, port: u32, mac: MacAddress) -> Result<(), Error> {
        let vlan = self.access_vlan(rtnl, port)?;
        let stations = stations(rtnl, port)?;
        let others = stations.iter().filter(|entry| entry.mac != mac || entry.vlan != vlan);
        let mut requests: Vec<Request<'_>> =
            others.map(|other| Request::delete_fdb(port, other.mac, other.vlan)).collect();
        requests.push(Request::add_fdb(port, mac, vlan));
        requests.push(Request::set_bridge_port(port, &CONFINED));
        rtnl.batch(&requests)
    }

    fn release(rtnl: &mut Rtnl, port: u32) -> Result<(), Error> {
        let stations = stations(rtnl, port)?;
        let mut requests: Vec<Request<'_>> = stations
            .iter()
            .map(|station| Request::delete_fdb(port, station.mac, station.vlan))
            .collect();
        requests.push(Request::set_bridge_port(port, &FREE));
        rtnl.batch(&requests)
    }
}

/// A port whose one station is known: nothing is learnt, nobody else may send, and no frame for
/// somebody unknown is sent there.
const CONFINED: BridgePort = port_settings(true);

/// A port as the kernel makes it.
const FREE: BridgePort = port_settings(false);

const fn port_settings(confined: bool) -> BridgePort {
    BridgePort {
        learning: Some(!confined),
        locked: Some(confined),
        isolated: None,
        unicast_flood: Some(!confined),
        multicast_flood: None,
        broadcast_flood: None,
        hairpin: None,
    }
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

const fn access(vlan: u16) -> BridgeVlan {
    BridgeVlan { id: vlan, pvid: true, untagged: true }
}

/// The stations that were put behind a port.
fn stations(rtnl: &mut Rtnl, port: u32) -> Result<Vec<FdbEntry>, Error> {
    let all = rtnl.fdb_of(port)?;
    Ok(all.into_iter().filter(|entry| entry.is_static).collect())
}

fn is_settled(port: Option<BridgePort>, wanted: &BridgePort) -> bool {
    port.is_some_and(|port| {
        port.learning == wanted.learning
            && port.locked == wanted.locked
            && port.unicast_flood == wanted.unicast_flood
    })
}

/// What vanished meanwhile has left the bridge.
fn gone_is_done(outcome: Result<(), Error>) -> Result<(), Error> {
    outcome.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

impl Fabric for BridgeFabric {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![
            capability("vlan-filtering", &self.vlan_filtering),
            capability("anti-spoofing", &self.locked_ports),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        let refuse = |setting: String, why: &str| Err(Unsupported { setting, why: why.into() });
        match (settings.vlan, &self.vlan_filtering) {
            (Some(UNTAGGED), Ok(())) => {
                return refuse(
                    format!("VLAN {UNTAGGED}"),
                    "the bridge uses that number for untagged traffic; leave vlan out, or take another",
                );
            }
            (Some(vlan), Err(why)) => return refuse(format!("VLAN {vlan}"), why),
            _ => {}
        }
        match &self.locked_ports {
            Err(why) if settings.anti_spoofing => refuse(
                "anti-spoofing".into(),
                &format!("{why}; the network can allow_mac_spoofing"),
            ),
            _ => Ok(()),
        }
    }

    /// Does all that can be done, then tells the first thing that could not.
    fn prepare(&self) -> Result<(), Refused> {
        let mut rtnl = self.rtnl();
        let bridge = self.ensure_bridge(&mut rtnl)?;
        let joined: Vec<_> = self
            .uplinks
            .iter()
            .map(|uplink| self.join_uplink(&mut rtnl, &bridge, uplink))
            .collect();
        joined.into_iter().collect()
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        let mut rtnl = self.rtnl();
        let bridge = self.bridge(&mut rtnl)?;
        let refused =
            |error| Refused::new(format!("join {} to bridge {}", port.name, self.name), error);
        rtnl.set_master(port.index, Some(bridge.index)).map_err(refused)?;
        if !self.filters_vlans() {
            return Ok(());
        }
        let vlan = settings.vlan.unwrap_or(UNTAGGED);
        self.set_vlan(&mut rtnl, port.index, vlan).map_err(refused)
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        let mut rtnl = self.rtnl();
        if self.member_link(&mut rtnl, port)?.is_none() {
            return Ok(());
        }
        let refused =
            |error| Refused::new(format!("take {} out of bridge {}", port.name, self.name), error);
        let vlan = self.access_vlan(&mut rtnl, port.index).map_err(refused)?;
        gone_is_done(rtnl.set_master(port.index, None)).map_err(refused)?;
        match vlan {
            Some(vlan) if vlan != UNTAGGED => self.prune_uplinks(&mut rtnl, vlan).map_err(refused),
            _ => Ok(()),
        }
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        let mut rtnl = self.rtnl();
        if self.member_link(&mut rtnl, port)?.is_none() {
            return Ok(None);
        }
        let vlan = self.access_vlan(&mut rtnl, port.index);
        let vlan = vlan.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
        Ok(Some(Membership { vlan: vlan.filter(|vlan| *vlan != UNTAGGED) }))
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        let mut rtnl = self.rtnl();
        let bridge = self.bridge(&mut rtnl)?.index;
        let refused = |error| self.refused("list the ports of", error);
        let links = rtnl.links().map_err(refused)?;
        let vlans = if self.filters_vlans() {
            rtnl.bridge_vlans().map_err(refused)?
        } else {
            BTreeMap::new()
        };
        let access = |index: &u32| {
            let tagged = |vlan: &&BridgeVlan| vlan.pvid && vlan.id != UNTAGGED;
            vlans.get(index)?.iter().find(tagged).map(|vlan| vlan.id)
        };
        let ports = links.iter().filter(|link| link.master == Some(bridge));
        Ok(ports.map(|link| (link.index, Membership { vlan: access(&link.index) })).collect())
    }

    fn set_anti_spoofing(&self, port: &Representor, mac: MacAddress) -> Result<(), Refused> {
        let confined = self.confine(&mut self.rtnl(), port.index, mac);
        confined.map_err(|error| Refused::new(format!("confine {} to {mac}", port.name), error))
    }

    fn clear_anti_spoofing(&self, port: &Representor) -> Result<(), Refused> {
        let mut rtnl = self.rtnl();
        if self.member_link(&mut rtnl, port)?.is_none() {
            return Ok(());
        }
        gone_is_done(Self::release(&mut rtnl, port.index))
            .map_err(|error| Refused::new(format!("let {} send from any MAC", port.name), error))
    }

    fn anti_spoofing(
        &self,
        port: &Representor,
        mac: Option<MacAddress>,
    ) -> Result<Finding, Refused> {
        let mut rtnl = self.rtnl();
        let Some(link) = self.member_link(&mut rtnl, port)? else {
            return Ok(Finding::missing("the port is not in the bridge"));
        };
        let stations = stations(&mut rtnl, port.index);
        let stations =
            stations.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
        let known: Vec<MacAddress> = stations.iter().map(|station| station.mac).collect();
        let wanted = if mac.is_some() { &CONFINED } else { &FREE };
        let detail = if is_settled(link.bridge_port, &CONFINED) {
            format!("only {known:?} may send")
        } else {
            "any MAC address may send".to_owned()
        };
        let in_place = is_settled(link.bridge_port, wanted) && known == Vec::from_iter(mac);
        Ok(Finding { in_place, detail })
    }
}
