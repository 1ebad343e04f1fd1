//! A pass, and changes for attachments with mapped ports. Runs under the lock of [`Gateways`](super::Gateways).

use bootstrap::Chain;
use netlink::{Probe, nftables::Set};

use super::{
    connections,
    links::{self, Links},
    plan::{self, Plan},
    settings::GatewaySettings,
    shown::{Repairs, Shown},
    table::OurTable,
    thresholds,
    wanted::Remapping,
};
use drivers::{
    driver::Refused, fabric::GatewayLink, programmer::Programmer, settings::FabricDriver,
};

/// The parts that passes use, and the state that the latest pass left.
#[derive(Debug)]
pub(super) struct Work {
    programmer: Programmer,
    fabric: FabricDriver,
    settings: GatewaySettings,
    links: Links,
    table: OurTable,
    /// Redirections whose connections must be flushed once the rules are in force.
    stale: Remapping,
    /// Whether it is certain that nothing of any gateway is left.
    pub(super) is_clear: bool,
}

impl Work {
    pub(super) fn new(
        programmer: Programmer,
        fabric: FabricDriver,
        settings: GatewaySettings,
    ) -> Self {
        Self {
            programmer,
            fabric,
            settings,
            links: Links::default(),
            table: OurTable::default(),
            stale: Remapping::default(),
            is_clear: false,
        }
    }

    /// Whether our nftables rules are unchanged, as far as known.
    pub(super) fn has_rules(&mut self) -> bool {
        self.is_clear || matches!(self.table.is_in_force(), Ok(true))
    }

    pub(super) fn note(&mut self, remapping: Remapping) {
        self.stale.begun.extend(remapping.begun);
        self.stale.ended.extend(remapping.ended);
    }

    pub(super) fn pass(&mut self, plan: &Plan, is_thorough: bool) -> (Shown, Repairs) {
        if plan.is_empty() {
            return self.clear();
        }
        let mut shown = Shown::default();
        let mut repairs = Repairs::new();
        shown.problems.extend(thresholds::raise());
        self.check(plan, &mut shown);
        // Rules before links: a link without rules is open to all.
        match self.put_table(plan) {
            Ok(is_repaired) => {
                repairs
                    .extend(is_repaired.then(|| "the table of nftables was put back".to_owned()));
            }
            Err(refused) => {
                shown
                    .problems
                    .push(failure("set the rules of the gateways, so it has no gateway", &refused));
                return (self.close(shown), repairs);
            }
        }
        let made = self.make_links(plan, &mut shown);
        match self.links.configure(plan, &made, &self.settings.uplinks, is_thorough) {
            Ok(report) => repairs.extend(shown.include(report)),
            Err(refused) => {
                shown.problems.push(failure("give the gateways their addresses", &refused));
            }
        }
        (shown, repairs)
    }

    /// Reports networks that this configuration does not allow; an earlier configuration did.
    fn check(&self, plan: &Plan, shown: &mut Shown) {
        for network in &plan.networks {
            let problem = self.settings.check_network(network, self.fabric);
            let view = shown.gateways.entry(network.name.clone()).or_default();
            view.problems.extend(problem);
        }
    }

    /// Puts the table into force. Returns whether another program had changed it.
    pub(super) fn put_table(&mut self, plan: &Plan) -> Result<bool, Refused> {
        self.is_clear = false;
        let name_of = |network: &str| self.programmer.gateway_name(network);
        let ports = self.programmer.ports_seen_as();
        let table =
            plan.table(name_of, &self.settings.uplinks, &ports, &links::unrouted_families());
        let is_repaired = self.table.put(table)?;
        if is_repaired {
            self.stale.begun.extend_from_slice(&plan.redirections);
        }
        self.forget_stale();
        Ok(is_repaired)
    }

    /// Replaces the elements of `concerned` by `wanted`. Returns whether the table in force could be amended.
    pub(super) fn amend_table(
        &mut self,
        concerned: &[Set],
        wanted: &[Set],
    ) -> Result<bool, Refused> {
        let is_amended = self.table.amend(concerned, wanted)?;
        if is_amended {
            self.forget_stale();
        }
        Ok(is_amended)
    }

    /// Flushes stale connections. The rules must be in force: the next packet would start another stale connection.
    fn forget_stale(&mut self) {
        let Remapping { begun, ended } = std::mem::take(&mut self.stale);
        connections::flush_former(&ended);
        connections::flush_earlier(begun);
    }

    /// Removes all gateways' links. A link without rules would lead into the DPU.
    fn close(&self, mut shown: Shown) -> Shown {
        shown.is_closed = true;
        if let Err(refused) = self.programmer.set_gateways(&[]) {
            shown.problems.push(failure("take the gateways' links away", &refused));
        }
        shown
    }

    /// Makes the links, and records failures in `shown`.
    fn make_links(&self, plan: &Plan, shown: &mut Shown) -> Vec<GatewayLink> {
        let links = match self.programmer.set_gateways(&plan.ports()) {
            Ok(links) => links,
            Err(refused) => {
                shown.problems.push(failure("make the gateways' links", &refused));
                return Vec::new();
            }
        };
        let mut made = Vec::new();
        for (network, link) in plan.networks.iter().zip(links) {
            let view = shown.gateways.entry(network.name.clone()).or_default();
            match link {
                Ok(link) => {
                    view.link.clone_from(&link.name);
                    view.addresses = plan::addresses(network);
                    shown.links.insert(network.name.clone(), link.index);
                    let answered = view.addresses.iter().map(|address| Probe {
                        link: link.index,
                        mac: link.mac,
                        vlan: None,
                        address: address.ip(),
                    });
                    shown.answered.extend(answered.map(|probe| (network.name.clone(), probe)));
                    made.push(link);
                }
                Err(refused) => view.problems.push(Chain(&refused).to_string()),
            }
        }
        made
    }

    /// Removes everything that an earlier pass, or an earlier run of the service, left.
    fn clear(&mut self) -> (Shown, Repairs) {
        let links = self.programmer.set_gateways(&[]);
        let links = links.map_err(|refused| failure("take the gateways' links away", &refused));
        // Links before rules: a link must not exist without rules.
        let cleared = links.and_then(|_| {
            let rules = self.clear_table();
            rules.map_err(|refused| failure("take the gateways' rules away", &refused))
        });
        self.is_clear = cleared == Ok(true);
        (
            Shown { problems: cleared.err().into_iter().collect(), ..Shown::default() },
            Repairs::new(),
        )
    }

    /// Removes the table. Returns whether it is certain that there is none.
    fn clear_table(&mut self) -> Result<bool, Refused> {
        match self.table.is_there() {
            Ok(true) => {
                self.table.remove()?;
                self.forget_stale();
                self.links.reset_uplinks(&self.settings.uplinks);
                Ok(true)
            }
            Ok(false) => Ok(true),
            // Without permission to list tables this process cannot have created one; the kernel may also lack
            // nftables.
            Err(refused) => {
                tracing::debug!(reason = %Chain(&refused), "cannot ask nftables");
                Ok(false)
            }
        }
    }
}

fn failure(doing: &str, refused: &Refused) -> String {
    format!("this DPU can't {doing}: {}", Chain(refused))
}
