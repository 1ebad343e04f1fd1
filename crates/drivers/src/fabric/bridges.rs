//! Several bridges as one fabric.
//!
//! Each bridge is a fabric of its own and owns its ports. This module only decides which bridge a port belongs to:
//! the one that the port's network names, or the first.

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
};
use model::PortSettings;

/// One of several bridges.
#[derive(Debug)]
struct Named {
    name: String,
    fabric: Arc<dyn Fabric>,
}

/// Several bridges of one driver.
#[derive(Debug)]
pub struct Bridges {
    /// The bridge of networks that name none.
    first: Named,
    further: Vec<Named>,
}

impl Bridges {
    /// Joins these named bridges into one fabric. A single bridge is returned as it is. `None`: the list is empty.
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

    /// The bridge of that name; `None` asks for the first.
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
                return Ok(Some((bridge, bridge.named(membership))));
            }
        }
        Ok(None)
    }

    /// The bridge that has the port. Without one, the first bridge, which then reports the port as absent.
    fn bridge_of(&self, port: &Representor) -> Result<&dyn Fabric, Refused> {
        let found = self.of_member(port)?;
        Ok(found.map_or(&*self.first.fabric, |(bridge, _)| &*bridge.fabric))
    }

    /// Calls `work` for every bridge, then returns the first failure.
    fn each(&self, work: impl Fn(&dyn Fabric) -> Result<(), Refused>) -> Result<(), Refused> {
        // Collected first, so that a failure of one bridge does not stop the others.
        let done: Vec<_> = self.all().map(|bridge| work(&*bridge.fabric)).collect();
        done.into_iter().collect()
    }

    /// A capability that one bridge lacks counts as unavailable, with the bridge's name.
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
    fn named(&self, membership: Membership) -> Membership {
        Membership { bridge: Some(self.name.clone()), ..membership }
    }
}

fn no_bridge(name: Option<&str>) -> String {
    format!("the fabric has no bridge {}: name it in fabric.bridges", name.unwrap_or_default())
}

/// A second value of the same refusal: `Refused` has no `Clone`.
fn copy(refused: &Refused) -> Refused {
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
            None => {
                let setting = format!("bridge = {:?}", bridge.unwrap_or_default());
                Err(Unsupported::new(setting, no_bridge(bridge)))
            }
        }
    }

    /// A failure of a further bridge is partial: networks that name no bridge work without it.
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

    /// The first bridge knows the names of all others, so it can tell them from another program's bridge.
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
                // Only networks of this bridge get its failure.
                Err(refused) if !places.is_empty() => {
                    places.into_iter().for_each(|place| links[place] = Err(copy(&refused)));
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
            Some(bridge) => bridge.named(membership),
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
            members.extend(own.map(|(index, membership)| (index, bridge.named(membership))));
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
        // Not `any`: each bridge reports a loss only once, so all must be asked.
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
        self.bridge_of(port)?.set_egress_limit(port, limit)
    }

    fn clear_egress_limit(&self, port: &Representor) -> Result<(), Refused> {
        self.bridge_of(port)?.clear_egress_limit(port)
    }

    fn egress_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused> {
        self.bridge_of(port)?.egress_limit(port, wanted)
    }
}
