//! What a pass does, and what attachments with mapped ports do, under the lock of [`Gateways`](super::Gateways).

use bootstrap::Chain;
use netlink::{Probe, nftables::Set};

use super::{
    Mended, Redirection, Remapping, connections,
    links::{self, Links},
    plan::{self, Plan},
    redirections,
    settings::GatewaySettings,
    shown::Shown,
    table::OurTable,
    thresholds,
};
use crate::{driver::Refused, drivers::FabricDriver, fabric::GatewayLink, programmer::Programmer};

/// What passes work with, and what the latest of them left.
#[derive(Debug)]
pub(super) struct Work {
    programmer: Programmer,
    fabric: FabricDriver,
    settings: GatewaySettings,
    links: Links,
    table: OurTable,
    /// Whose connections are forgotten once the rules are as wanted.
    stale: Remapping,
    /// There was no gateway at the latest pass, and nothing is left of any.
    is_clear: bool,
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

    /// Whether it is known that there is nothing of any gateway.
    pub(super) const fn is_clear(&self) -> bool {
        self.is_clear
    }

    /// Whether nothing of what there should be was changed in nftables, as far as that can be told.
    pub(super) fn has_rules(&mut self) -> bool {
        self.is_clear || matches!(self.table.is_in_force(), Ok(true))
    }

    /// Notes whose connections are to be forgotten.
    pub(super) fn note(&mut self, remapping: Remapping) {
        self.stale.begun.extend(remapping.begun);
        self.stale.ended.extend(remapping.ended);
    }

    /// Makes the kernel agree with the plan.
    pub(super) fn pass(&mut self, plan: &Plan, is_thorough: bool) -> (Shown, Mended) {
        if plan.is_empty() {
            return self.clear();
        }
        let mut shown = Shown::default();
        let mut mended = Mended::new();
        shown.problems.extend(thresholds::raise());
        self.check(plan, &mut shown);
        // The rules come first: a link that they don't know is open to all.
        match self.put_table(plan) {
            Ok(is_mended) => {
                mended.extend(is_mended.then(|| "the table of nftables was put back".to_owned()));
            }
            Err(refused) => {
                shown
                    .problems
                    .push(told("set the rules of the gateways, and so has none", &refused));
                return (self.close(shown), mended);
            }
        }
        let made = self.make_links(plan, &mut shown);
        match self.links.settle(plan, &made, &self.settings.uplinks, is_thorough) {
            Ok(settled) => mended.extend(shown.take_over(settled)),
            Err(refused) => {
                shown.problems.push(told("give the gateways their addresses", &refused));
            }
        }
        (shown, mended)
    }

    /// Networks that were made under another configuration may want what this one has not.
    fn check(&self, plan: &Plan, shown: &mut Shown) {
        for network in plan.networks() {
            let problem = self.settings.check_network(network, self.fabric);
            let view = shown.gateways.entry(network.name.clone()).or_default();
            view.problems.extend(problem);
        }
    }

    /// Says whether a stranger had changed the table.
    pub(super) fn put_table(&mut self, plan: &Plan) -> Result<bool, Refused> {
        self.is_clear = false;
        let name_of = |network: &str| self.programmer.gateway_name(network);
        let ports = self.programmer.ports_seen_as();
        let table =
            plan.table(name_of, &self.settings.uplinks, &ports, &links::unrouted_families());
        let is_mended = self.table.put(table)?;
        if is_mended {
            self.stale.begun.extend_from_slice(plan.redirections());
        }
        self.forget_stale();
        Ok(is_mended)
    }

    /// Says whether the table in force could be amended.
    pub(super) fn amend_table(
        &mut self,
        concerned: &[Redirection],
        wanted: &[Redirection],
    ) -> Result<bool, Refused> {
        self.amend_sets(&redirections::sets(concerned), &redirections::sets(wanted))
    }

    /// Puts `wanted` in the place of the elements of `concerned`. Returns whether the table in force could be amended.
    pub(super) fn amend_sets(
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

    /// Not before the rules are as wanted: the next packet would begin another such connection.
    fn forget_stale(&mut self) {
        let Remapping { begun, ended } = std::mem::take(&mut self.stale);
        connections::forget_former(&ended);
        connections::forget_earlier(begun);
    }

    /// Without rules pods have no way out rather than one into the DPU.
    fn close(&self, mut shown: Shown) -> Shown {
        shown.is_closed = true;
        if let Err(refused) = self.programmer.set_gateways(&[]) {
            shown.problems.push(told("take the gateways' links away", &refused));
        }
        shown
    }

    /// The links that could be made; what could not is shown.
    fn make_links(&self, plan: &Plan, shown: &mut Shown) -> Vec<GatewayLink> {
        let links = match self.programmer.set_gateways(&plan.ports()) {
            Ok(links) => links,
            Err(refused) => {
                shown.problems.push(told("make the gateways' links", &refused));
                return Vec::new();
            }
        };
        let mut made = Vec::new();
        for (network, link) in plan.networks().zip(links) {
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

    /// Takes all away that an earlier pass, or an earlier life of the service, has left.
    fn clear(&mut self) -> (Shown, Mended) {
        let links = self.programmer.set_gateways(&[]);
        let links = links.map_err(|refused| told("take the gateways' links away", &refused));
        // As long as there are links there have to be rules.
        let cleared = links.and_then(|_| {
            let rules = self.clear_table();
            rules.map_err(|refused| told("take the gateways' rules away", &refused))
        });
        self.is_clear = cleared == Ok(true);
        (Shown { problems: cleared.err().into_iter().collect(), ..Shown::default() }, Mended::new())
    }

    /// Says whether it is known that there is no table any more.
    fn clear_table(&mut self) -> Result<bool, Refused> {
        match self.table.is_there() {
            Ok(true) => {
                self.table.remove()?;
                self.forget_stale();
                self.links.forget(&self.settings.uplinks);
                Ok(true)
            }
            Ok(false) => Ok(true),
            // Who may not ask has never made anything, and there may be no nftables at all.
            Err(refused) => {
                tracing::debug!(reason = %Chain(&refused), "nftables can't be asked");
                Ok(false)
            }
        }
    }
}

fn told(doing: &str, refused: &Refused) -> String {
    format!("this DPU can't {doing}: {}", Chain(refused))
}
