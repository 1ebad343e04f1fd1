//! A Linux bridge as the fabric.
//!
//! Where the kernel can keep VLANs apart, every port is in the VLANs that it is told and in no
//! other, and VLAN 1 stands for untagged traffic. Where it can't, there is one broadcast domain, and
//! networks with a VLAN are refused. The bridge stays when the service stops: it carries the traffic
//! of running pods.

mod filter;
mod vlans;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::{
    Bridge, BridgePort, Error, Family, FdbEntry, Link, LinkChange, MacAddress, Request, Rtnl,
    set_sysctl,
};
use vlans::{UNTAGGED, membership, port_changes, port_vlans, surplus, uplink_changes};

use super::{Fabric, Membership};
use crate::{
    driver::{
        Ability, Capability, Fault, Reading, Refused, Unsupported, capability, limited_capability,
    },
    eswitch::{Representor, gone_is_done},
    model::PortSettings,
    probe::KernelAbilities,
};

/// The kernel's `BR_MAX_PORTS` without the port number 0, which it does not give.
const MOST_PORTS: u32 = 1023;

/// Marks a bridge that this service made.
const ALIAS: &str = "dpu-offload fabric";

/// What was probed of confined ports, and what not.
const OF_THE_KERNEL: &str = "MAC addresses only; tried on a veth pair of this kernel, while a card \
                             that offloads the bridge may refuse it";

/// The driver.
#[derive(Debug)]
pub struct BridgeFabric {
    kernel: Mutex<Kernel>,
    name: String,
    uplinks: Vec<String>,
    vlan_filtering: Ability,
    locked_ports: Ability,
    frame_filter: Ability,
}

#[derive(Debug)]
struct Kernel {
    rtnl: Rtnl,
    /// The bridge's index when it was last looked up, so that not every port has to.
    bridge: Option<u32>,
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
            kernel: Mutex::new(Kernel { rtnl, bridge: None }),
            name: name.to_owned(),
            uplinks: uplinks.to_vec(),
            vlan_filtering,
            locked_ports: abilities.locked_ports.clone(),
            frame_filter: abilities.frame_filter.clone(),
        })
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn filters_vlans(&self) -> bool {
        self.vlan_filtering.is_ok()
    }

    fn not_joined(&self, port: &Representor, error: Error) -> Refused {
        let refused = Refused::new(format!("join {} to bridge {}", port.name, self.name), error);
        match refused.fault() {
            Fault::FabricFull => Refused::because(format!(
                "bridge {} takes no more ports than the {MOST_PORTS} that it has, {} not among them: \
                 that is as many as the kernel gives a bridge",
                self.name, port.name
            ))
            .blamed_on(Fault::FabricFull),
            Fault::Port | Fault::Elsewhere => refused,
        }
    }

    fn refused(&self, doing: &str, error: Error) -> Refused {
        Refused::new(format!("{doing} bridge {}", self.name), error)
    }

    /// The bridge, which must be there.
    fn bridge(&self, kernel: &mut Kernel) -> Result<Link, Refused> {
        kernel.bridge = None;
        let found = kernel.rtnl.link_by_name(&self.name);
        let found = found.map_err(|error| self.refused("find", error))?;
        let missing = || {
            Refused::because(format!("there is no bridge {}", self.name))
                .blamed_on(Fault::Elsewhere)
        };
        let link = found.ok_or_else(missing)?;
        if link.bridge.is_some() {
            kernel.bridge = Some(link.index);
            return Ok(link);
        }
        Err(Refused::because(format!(
            "link {} is no bridge: name another in fabric.bridge, or delete it",
            self.name
        ))
        .blamed_on(Fault::Elsewhere))
    }

    fn bridge_index(&self, kernel: &mut Kernel) -> Result<u32, Refused> {
        match kernel.bridge {
            Some(index) => Ok(index),
            None => Ok(self.bridge(kernel)?.index),
        }
    }

    /// Makes the bridge unless there is one. One that somebody else made is used as it is.
    fn ensure_bridge(&self, kernel: &mut Kernel) -> Result<u32, Refused> {
        let found = kernel.rtnl.link_by_name(&self.name);
        if found.map_err(|error| self.refused("find", error))?.is_none() {
            self.make_bridge(&mut kernel.rtnl).map_err(|error| self.refused("make", error))?;
        }
        let bridge = self.bridge(kernel)?;
        if !bridge.is_up {
            let up = kernel.rtnl.change_link(bridge.index, &LinkChange::new().up());
            up.map_err(|error| self.refused("switch on", error))?;
        }
        Ok(bridge.index)
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

    fn join_uplink(&self, rtnl: &mut Rtnl, bridge: u32, name: &str) -> Result<(), Refused> {
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
            None => rtnl.set_master(uplink.index, Some(bridge)).map_err(refused)?,
        }
        if uplink.is_up {
            return Ok(());
        }
        rtnl.change_link(uplink.index, &LinkChange::new().up()).map_err(refused)
    }

    /// Puts the port into its VLANs and no other.
    fn set_vlans(
        rtnl: &mut Rtnl,
        bridge: u32,
        port: u32,
        settings: &PortSettings,
    ) -> Result<(), Error> {
        let vlans = rtnl.bridge_vlans(bridge)?;
        let has = vlans.get(&port).map_or(&[][..], Vec::as_slice);
        let wanted = port_vlans(settings);
        let mut requests =
            Self::forget_stations(rtnl, port, &Vec::from_iter(surplus(has, &wanted)))?;
        requests.extend(port_changes(port, has, &wanted));
        rtnl.batch(&requests)
    }

    /// What takes the stations away that are known in VLANs which the port is to leave. The kernel
    /// would keep them, and refuse to delete them once the port has left.
    fn forget_stations(
        rtnl: &mut Rtnl,
        port: u32,
        vlans: &[u16],
    ) -> Result<Vec<Request<'static>>, Error> {
        if vlans.is_empty() {
            return Ok(Vec::new());
        }
        let is_left = |entry: &FdbEntry| entry.vlan.is_some_and(|vlan| vlans.contains(&vlan));
        let stations = stations(rtnl, port)?.into_iter().filter(is_left);
        Ok(stations.map(|entry| Request::delete_fdb(port, entry.mac, entry.vlan)).collect())
    }

    /// Gives the uplinks the VLANs that pods are in, and no other.
    fn sync_uplinks(&self, rtnl: &mut Rtnl, bridge: u32) -> Result<(), Error> {
        if self.uplinks.is_empty() || !self.filters_vlans() {
            return Ok(());
        }
        let mut uplinks = Vec::new();
        for name in &self.uplinks {
            let link = rtnl.link_by_name(name)?.filter(|link| link.master == Some(bridge));
            uplinks.extend(link.map(|link| link.index));
        }
        let vlans = rtnl.bridge_vlans(bridge)?;
        rtnl.batch(&uplink_changes(bridge, &uplinks, &vlans))
    }

    fn enslave(
        &self,
        rtnl: &mut Rtnl,
        bridge: u32,
        port: u32,
        settings: &PortSettings,
    ) -> Result<(), Error> {
        rtnl.set_master(port, Some(bridge))?;
        if !self.filters_vlans() {
            return Ok(());
        }
        Self::set_vlans(rtnl, bridge, port, settings)?;
        self.sync_uplinks(rtnl, bridge)
    }

    /// Refuses a port that somebody else's bridge or bond has. A bridge that this service made under
    /// another name is its own.
    fn check_free(rtnl: &mut Rtnl, bridge: u32, port: &Representor) -> Result<(), Refused> {
        let Some(master) = port.master.filter(|master| *master != bridge) else { return Ok(()) };
        let master = rtnl.link_by_index(master);
        let master =
            master.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
        match master {
            Some(master) if master.alias.as_deref() != Some(ALIAS) => {
                Err(Refused::because(format!(
                    "representor {} is a port of {}: take it out first",
                    port.name, master.name
                )))
            }
            _ => Ok(()),
        }
    }

    /// The VLANs that a port is in, as the forwarding table names them.
    fn vlans_of(&self, rtnl: &mut Rtnl, port: &Link) -> Result<Vec<Option<u16>>, Error> {
        if !self.filters_vlans() {
            return Ok(vec![None]);
        }
        let vlans = rtnl.bridge_vlans(port.master.unwrap_or_default())?;
        Ok(vlans.get(&port.index).into_iter().flatten().map(|vlan| Some(vlan.id)).collect())
    }

    /// The VLANs that a port's station is to be known in.
    fn station_vlans(&self, settings: &PortSettings) -> Vec<Option<u16>> {
        match self.filters_vlans() {
            true => port_vlans(settings).iter().map(|vlan| Some(vlan.id)).collect(),
            false => vec![None],
        }
    }

    /// The port as a member of this bridge. `None`: it is not, or not any more.
    fn member_link(
        &self,
        kernel: &mut Kernel,
        port: &Representor,
    ) -> Result<Option<Link>, Refused> {
        let Ok(bridge) = self.bridge_index(kernel) else { return Ok(None) };
        let link = kernel.rtnl.link_by_index(port.index);
        let link = link.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
        Ok(link.filter(|link| link.master == Some(bridge)))
    }

    fn confine(
        rtnl: &mut Rtnl,
        port: &Representor,
        mac: MacAddress,
        vlans: &[Option<u16>],
    ) -> Result<(), Error> {
        // Nobody has put a station behind a port that has just joined.
        let stations = match port.master {
            None => Vec::new(),
            Some(_) => stations(rtnl, port.index)?,
        };
        let others =
            stations.iter().filter(|entry| entry.mac != mac || !vlans.contains(&entry.vlan));
        let mut requests: Vec<Request<'_>> =
            others.map(|other| Request::delete_fdb(port.index, other.mac, other.vlan)).collect();
        requests.extend(vlans.iter().map(|vlan| Request::add_fdb(port.index, mac, *vlan)));
        // A locked port passes whoever was learnt there before.
        requests.push(Request::set_and_flush_bridge_port(port.index, &CONFINED));
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

/// The stations that were put behind a port.
fn stations(rtnl: &mut Rtnl, port: u32) -> Result<Vec<FdbEntry>, Error> {
    Ok(rtnl.fdb_of(port)?.into_iter().filter(|entry| entry.is_static).collect())
}

/// The stations that a port passes, or sends frames to: a port that learns may have learnt any.
fn passing(rtnl: &mut Rtnl, port: u32, confined: bool) -> Result<Vec<FdbEntry>, Error> {
    if confined { rtnl.fdb_of(port) } else { stations(rtnl, port) }
}

fn is_settled(port: Option<BridgePort>, wanted: &BridgePort) -> bool {
    port.is_some_and(|port| {
        port.learning == wanted.learning
            && port.locked == wanted.locked
            && port.unicast_flood == wanted.unicast_flood
    })
}

impl Fabric for BridgeFabric {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![
            capability("vlan-filtering", &self.vlan_filtering),
            limited_capability("frame-filter", &self.frame_filter, filter::WHAT),
            limited_capability("anti-spoofing", &self.locked_ports, OF_THE_KERNEL),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        let refuse = |setting: String, why: &str| Err(Unsupported { setting, why: why.into() });
        for vlan in settings.vlan.iter().chain(&settings.trunk) {
            match &self.vlan_filtering {
                Err(why) => return refuse(format!("VLAN {vlan}"), why),
                Ok(()) if *vlan == UNTAGGED => {
                    return refuse(
                        format!("VLAN {UNTAGGED}"),
                        "the bridge uses that number for untagged traffic; leave it out, or take \
                         another",
                    );
                }
                Ok(()) => {}
            }
        }
        let protections =
            [("anti-spoofing", &self.locked_ports), ("frame-filter", &self.frame_filter)];
        for (name, ability) in protections {
            match ability {
                Err(why) if settings.anti_spoofing => {
                    let why = format!("{why}; the network can allow_mac_spoofing");
                    return refuse(name.into(), &why);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Does all that can be done, then tells the first thing that could not.
    fn prepare(&self) -> Result<(), Refused> {
        let mut kernel = self.kernel();
        let bridge = self.ensure_bridge(&mut kernel)?;
        let rtnl = &mut kernel.rtnl;
        let joined: Vec<_> =
            self.uplinks.iter().map(|uplink| self.join_uplink(rtnl, bridge, uplink)).collect();
        let synced = self.sync_uplinks(rtnl, bridge);
        let synced = synced.map_err(|error| self.refused("set the VLANs of the uplinks of", error));
        joined.into_iter().chain([synced]).collect()
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        let mut kernel = self.kernel();
        let bridge = self.bridge_index(&mut kernel)?;
        Self::check_free(&mut kernel.rtnl, bridge, port)?;
        self.enslave(&mut kernel.rtnl, bridge, port.index, settings).map_err(|error| {
            // Perhaps the bridge is another one now.
            kernel.bridge = None;
            self.not_joined(port, error)
        })
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        let mut kernel = self.kernel();
        let Some(member) = self.member_link(&mut kernel, port)? else { return Ok(()) };
        let rtnl = &mut kernel.rtnl;
        let left = gone_is_done(rtnl.set_master(port.index, None));
        let bridge = member.master.unwrap_or_default();
        left.and_then(|()| self.sync_uplinks(rtnl, bridge)).map_err(|error| {
            Refused::new(format!("take {} out of bridge {}", port.name, self.name), error)
        })
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        let mut kernel = self.kernel();
        let Some(member) = self.member_link(&mut kernel, port)? else { return Ok(None) };
        if !self.filters_vlans() {
            return Ok(Some(Membership::default()));
        }
        let vlans = kernel.rtnl.bridge_vlans(member.master.unwrap_or_default());
        let vlans = vlans.map_err(|error| Refused::new(format!("look at {}", port.name), error))?;
        Ok(Some(membership(&vlans, port.index)))
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        let mut kernel = self.kernel();
        let bridge = self.bridge(&mut kernel)?.index;
        let rtnl = &mut kernel.rtnl;
        let refused = |error| self.refused("list the ports of", error);
        let links = rtnl.links().map_err(refused)?;
        let vlans = match self.filters_vlans() {
            true => rtnl.bridge_vlans(bridge).map_err(refused)?,
            false => BTreeMap::new(),
        };
        let ports = links.iter().filter(|link| link.master == Some(bridge));
        Ok(ports.map(|link| (link.index, membership(&vlans, link.index))).collect())
    }

    /// A kernel that is asked for a link settles first whether it has a carrier, and with that whether
    /// the port forwards; an older one does so in its own time.
    fn forwards(&self, index: u32) -> Result<bool, Refused> {
        let link = self.kernel().rtnl.link_by_index(index);
        let link = link.map_err(|error| Refused::new(format!("look at link {index}"), error))?;
        Ok(link.is_some_and(|link| link.is_forwarding))
    }

    fn set_frame_filter(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        match self.frame_filter {
            Ok(()) => filter::set(&mut self.kernel().rtnl, port, settings),
            // Only pods whose network trusts them come so far.
            Err(_) => Ok(()),
        }
    }

    fn clear_frame_filter(&self, port: &Representor) -> Result<(), Refused> {
        filter::clear(&mut self.kernel().rtnl, port)
    }

    fn frame_filter(
        &self,
        port: &Representor,
        settings: &PortSettings,
    ) -> Result<Reading, Refused> {
        match &self.frame_filter {
            Ok(()) => filter::find(&mut self.kernel().rtnl, port, settings),
            Err(why) => Ok(Reading::in_place(why.clone())),
        }
    }

    fn set_anti_spoofing(
        &self,
        port: &Representor,
        settings: &PortSettings,
    ) -> Result<(), Refused> {
        let mac = settings.mac;
        Self::confine(&mut self.kernel().rtnl, port, mac, &self.station_vlans(settings))
            .map_err(|error| Refused::new(format!("confine {} to {mac}", port.name), error))
    }

    fn clear_anti_spoofing(&self, port: &Representor) -> Result<(), Refused> {
        let mut kernel = self.kernel();
        if self.member_link(&mut kernel, port)?.is_none() {
            return Ok(());
        }
        gone_is_done(Self::release(&mut kernel.rtnl, port.index))
            .map_err(|error| Refused::new(format!("let {} send from any MAC", port.name), error))
    }

    fn anti_spoofing(
        &self,
        port: &Representor,
        mac: Option<MacAddress>,
    ) -> Result<Reading, Refused> {
        let mut kernel = self.kernel();
        let Some(link) = self.member_link(&mut kernel, port)? else {
            return Ok(Reading::missing("the port is not in the bridge"));
        };
        let refused = |error| Refused::new(format!("look at {}", port.name), error);
        let stations = passing(&mut kernel.rtnl, port.index, mac.is_some()).map_err(refused)?;
        let vlans = self.vlans_of(&mut kernel.rtnl, &link).map_err(refused)?;
        let known: BTreeSet<_> = stations.iter().map(|entry| (entry.mac, entry.vlan)).collect();
        let expected = mac.iter().flat_map(|mac| vlans.iter().map(|vlan| (*mac, *vlan))).collect();
        let wanted = if mac.is_some() { &CONFINED } else { &FREE };
        let detail = if is_settled(link.bridge_port, &CONFINED) {
            let known: BTreeSet<_> = known.iter().map(|(mac, _)| mac.to_string()).collect();
            format!("only {} may send", Vec::from_iter(known).join(" "))
        } else {
            "any MAC address may send".to_owned()
        };
        let in_place = is_settled(link.bridge_port, wanted) && known == expected;
        Ok(Reading { in_place, detail })
    }
}
