//! Several bridges as one fabric: a network's pods are in the one that it names. Each is a fabric by itself, which
//! sees to its own ports; here it is only decided whose a port is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bootstrap::Chain;
use netlink::{LinkEvent, MacAddress};
use tokio::sync::watch;

use super::{EgressLimit, Fabric, GatewayLinks, GatewayPort, Membership};
use crate::{
    counters::{Drops, Offloaded},
    driver::{Capability, Reading, Refused, Unsupported},
    eswitch::Representor,
    model::PortSettings,
};

/// One of several bridges.
#[derive(Debug)]
struct Named {
    name: String,
    fabric: Arc<dyn Fabric>,
}

/// Several bridges of one driver.
#[derive(Debug)]
pub struct Bridges {
    /// That of networks which name none.
    first: Named,
    further: Vec<Named>,
}

impl Bridges {
    /// The fabric of these bridges, by name: of one alone, that one itself. Ports of networks that name none are
    /// in the first. `None`: there is no bridge.
    #[must_use]
    pub fn joined(bridges: Vec<(String, Arc<dyn Fabric>)>) -> Option<Arc<dyn Fabric>> {
        let mut bridges = bridges.into_iter().map(|(name, fabric)| Named { name, fabric });
        let first = bridges.next()?;
        let further: Vec<_> = bridges.collect();
        Some(if further.is_empty() { first.fabric } else { Arc::new(Self { first, further }) })
    }

    fn all(&self) -> impl Iterator<Item = &Named> {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// The bridge of that name, or that of networks which name none.
    fn find(&self, bridge: Option<&str>) -> Option<&Named> {
        bridge.map_or(Some(&self.first), |name| self.all().find(|bridge| bridge.name == name))
    }

    fn wanted(&self, settings: &PortSettings) -> Result<&Named, Refused> {
        let bridge = settings.bridge.as_deref();
        self.find(bridge).ok_or_else(|| Refused::because(no_bridge(bridge)))
    }

    /// The bridge that the representor has joined, and how.
    fn of_member(&self, port: &Representor) -> Result<Option<(&Named, Membership)>, Refused> {
        for bridge in self.all() {
            if let Some(membership) = bridge.fabric.member(port)? {
                return Ok(Some((bridge, bridge.own(membership))));
            }
        }
        Ok(None)
    }

    /// The bridge that has the port, or the first, which says that it has not.
    fn its(&self, port: &Representor) -> Result<&dyn Fabric, Refused> {
        let found = self.of_member(port)?;
        Ok(found.map_or(&*self.first.fabric, |(bridge, _)| &*bridge.fabric))
    }

    /// Has each do it, then tells the first that could not.
    fn each(&self, work: impl Fn(&dyn Fabric) -> Result<(), Refused>) -> Result<(), Refused> {
        let done: Vec<_> = self.all().map(|bridge| work(&*bridge.fabric)).collect();
        done.into_iter().collect()
    }

    /// What one of them can't do stands for all, with its name.
    fn least_able(&self, first: Capability) -> Capability {
        let lacks = |bridge: &Named| {
            let mut all = bridge.fabric.capabilities().into_iter();
            let found = all.find(|found| found.name == first.name && !found.available)?;
            Some(Capability { detail: format!("{}: {}", bridge.name, found.detail), ..found })
        };
        self.all().find_map(lacks).unwrap_or(first)
    }
}

impl Named {
    fn own(&self, membership: Membership) -> Membership {
        Membership { bridge: Some(self.name.clone()), ..membership }
    }
}

fn no_bridge(name: Option<&str>) -> String {
    format!("the fabric has no bridge {}: name it in fabric.bridges", name.unwrap_or_default())
}

/// The same once more.
fn told(refused: &Refused) -> Refused {
    Refused::because(Chain(refused).to_string()).blamed_on(refused.fault())
}

impl Fabric for Bridges {
    fn name(&self) -> &'static str {
        self.first.fabric.name()
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        self.all().any(|bridge| bridge.fabric.concerns(event))
    }

    fn changes(&self) -> Vec<watch::Receiver<u64>> {
        self.all().flat_map(|bridge| bridge.fabric.changes()).collect()
    }

    fn capabilities(&self) -> Vec<Capability> {
        let all = self.first.fabric.capabilities().into_iter();
        all.map(|capability| self.least_able(capability)).collect()
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        let bridge = settings.bridge.as_deref();
        match self.find(bridge) {
            Some(bridge) => bridge.fabric.check(settings),
            None => Err(Unsupported {
                setting: format!("bridge = {:?}", bridge.unwrap_or_default()),
                why: no_bridge(bridge),
            }),
        }
    }

    /// Networks that name none are served without the further ones.
    fn prepare(&self) -> Result<(), Refused> {
        let first = self.first.fabric.prepare();
        let further = self.further.iter();
        let further = further.map(|bridge| bridge.fabric.prepare().map_err(Refused::partial));
        let further: Vec<_> = further.collect();
        first.and(further.into_iter().collect())
    }

    fn take_repairs(&self) -> Vec<String> {
        self.all().flat_map(|bridge| bridge.fabric.take_repairs()).collect()
    }

    fn together(&self) -> usize {
        self.first.fabric.together()
    }

    fn uplink_mtu(&self, bridge: Option<&str>) -> Option<u32> {
        self.find(bridge)?.fabric.uplink_mtu(None)
    }

    fn uplinks(&self, bridge: Option<&str>) -> &[String] {
        self.find(bridge).map_or(&[], |bridge| bridge.fabric.uplinks(None))
    }

    fn all_uplinks(&self) -> Vec<String> {
        self.all().flat_map(|bridge| bridge.fabric.all_uplinks()).collect()
    }

    /// Each bridge knows its siblings, so that any of them knows which bridges are other programs'.
    fn occupant(&self, port: &Representor) -> Result<Option<String>, Refused> {
        self.first.fabric.occupant(port)
    }

    fn own_macs(&self) -> Vec<MacAddress> {
        self.all().flat_map(|bridge| bridge.fabric.own_macs()).collect()
    }

    fn set_gateways(&self, ports: &[GatewayPort]) -> Result<GatewayLinks, Refused> {
        let missing = |port: &GatewayPort| Err(Refused::because(no_bridge(port.bridge.as_deref())));
        let mut links: GatewayLinks = ports.iter().map(missing).collect();
        let mut failed = Ok(());
        for bridge in self.all() {
            let is_its = |port: &GatewayPort| {
                self.find(port.bridge.as_deref()).is_some_and(|of| of.name == bridge.name)
            };
            let (places, own): (Vec<_>, Vec<_>) =
                ports.iter().cloned().enumerate().filter(|(_, port)| is_its(port)).unzip();
            match bridge.fabric.set_gateways(&own) {
                Ok(own) => {
                    places.into_iter().zip(own).for_each(|(place, link)| links[place] = link);
                }
                // Told to the networks that it is about, and none of another bridge's.
                Err(refused) if !places.is_empty() => {
                    places.into_iter().for_each(|place| links[place] = Err(told(&refused)));
                }
                Err(refused) => failed = failed.and(Err(refused)),
            }
        }
        failed.map(|()| links)
    }

    fn gateway_name(&self, network: &str) -> String {
        self.first.fabric.gateway_name(network)
    }

    fn ports_seen_as(&self) -> Vec<String> {
        self.all().flat_map(|bridge| bridge.fabric.ports_seen_as()).collect()
    }

    fn membership(&self, settings: &PortSettings) -> Membership {
        let membership = Membership::of(settings);
        match self.find(settings.bridge.as_deref()) {
            Some(bridge) => bridge.own(membership),
            None => Membership { bridge: settings.bridge.clone(), ..membership },
        }
    }

    fn join(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.wanted(settings)?.fabric.join(port, settings)
    }

    fn leave(&self, port: &Representor) -> Result<(), Refused> {
        match self.of_member(port)? {
            Some((bridge, _)) => bridge.fabric.leave(port),
            None => self.each(|fabric| fabric.leave(port)),
        }
    }

    fn member(&self, port: &Representor) -> Result<Option<Membership>, Refused> {
        Ok(self.of_member(port)?.map(|(_, membership)| membership))
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        let mut members = BTreeMap::new();
        for bridge in self.all() {
            let own = bridge.fabric.members()?.into_iter();
            members.extend(own.map(|(index, membership)| (index, bridge.own(membership))));
        }
        Ok(members)
    }

    fn forwards(&self, index: u32) -> Result<bool, Refused> {
        self.first.fabric.forwards(index)
    }

    fn set_guard(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.wanted(settings)?.fabric.set_guard(port, settings)
    }

    fn guard(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        self.wanted(settings)?.fabric.guard(port, settings)
    }

    fn lost_rules(&self) -> bool {
        self.all().filter(|bridge| bridge.fabric.lost_rules()).count() > 0
    }

    fn drops(&self) -> Result<BTreeMap<u32, Drops>, Refused> {
        let mut all = BTreeMap::new();
        for bridge in self.all() {
            all.extend(bridge.fabric.drops()?);
        }
        Ok(all)
    }

    fn problems(&self) -> Vec<String> {
        self.all().flat_map(|bridge| bridge.fabric.problems()).collect()
    }

    fn flows(&self) -> Result<Vec<String>, Refused> {
        let listed: Result<Vec<_>, _> = self.all().map(|bridge| bridge.fabric.flows()).collect();
        Ok(listed?.concat())
    }

    fn offloaded(&self, ports: &BTreeSet<u32>) -> Result<BTreeMap<u32, Offloaded>, Refused> {
        self.first.fabric.offloaded(ports)
    }

    fn check_egress_limit(&self, limit: &EgressLimit) -> Result<(), Unsupported> {
        self.all().try_for_each(|bridge| bridge.fabric.check_egress_limit(limit))
    }

    fn set_egress_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused> {
        self.its(port)?.set_egress_limit(port, limit)
    }

    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused> {
        self.its(port)?.clear_egress_limit(port)
    }

    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused> {
        self.its(port)?.egress_limit(port, wanted)
    }
}
