//! This DPU as the gateway of networks that say `gateway_mode = "dpu"`.
//!
//! [`Gateways`] is the one door: a pass makes the kernel agree with the networks there are, and the
//! rest of the room is what it does so with.
//!
//! | files | what they are |
//! | --- | --- |
//! | `plan` | what follows from the networks: links, addresses, the table of nftables; pure |
//! | `links` | a gateway's addresses and settings on the link that the fabric gave it |
//! | `routes` | its routes, known by a protocol number of ours |
//! | `table` | the one table of nftables that is ours, and whether a stranger has changed it |
//! | `watch` | the notice of every change of nftables |
//! | `others` | whether somebody else answers a gateway's address |
//! | `redirections` | the maps and rules that have mapped ports lead to pods; pure |
//! | `connections` | the connections by ports that lead elsewhere now |
//! | `settings` | the section of the configuration |
//!
//! Who may race, and what orders them: passes, which the reconciler makes, every change of networks and
//! every change of nftables by anybody. A pass is made under one lock, which it takes before it asks
//! for the networks: so the last pass has the latest of them. Whoever changes networks holds their lock
//! meanwhile; the registry is asked within a pass, and never the other way round. What is shown has a
//! lock of its own, never held across an await nor while another is taken. Attach and detach take
//! neither, but those of an attachment with mapped ports: they have the rules put into force under the first,
//! with a key held, and ask the registry within.
//!
//! All of it stays when the service stops: pods go on. Nothing is recorded: what is there is known by
//! the names and aliases of the links, and by the name of the table.

mod connections;
mod links;
mod others;
mod plan;
mod redirections;
mod routes;
mod settings;
mod table;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bootstrap::Chain;
use ipnetwork::IpNetwork;
use netlink::{LinkEvent, MacAddress, Probe};
use tokio::{sync::Notify, task::spawn_blocking};

pub(crate) use others::watch_for_others;
pub(crate) use redirections::Redirection;
pub(crate) use settings::GatewaySettings;
pub(crate) use watch::follow;

use crate::{driver::Refused, fabric::GatewayLink, model::Network, programmer::Programmer};
use links::{Links, Settled};
use others::Asked;
use plan::Plan;
use table::OurTable;

/// This DPU as the gateway of a network, as operators see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayView {
    /// The name of its link. Empty: it could not be made.
    pub link: String,
    /// The addresses that it answers.
    pub addresses: Vec<IpNetwork>,
    /// What is not as it should be, one sentence each.
    pub problems: Vec<String>,
}

/// What passes have to see to.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// All networks.
    pub(crate) networks: Vec<Arc<Network>>,
    /// Where mapped ports lead.
    pub(crate) redirections: Vec<Redirection>,
}

/// What becomes of mapped ports as an attachment comes or goes.
#[derive(Debug, Default)]
pub(crate) struct Remapping {
    /// These lead to a pod from now on.
    pub(crate) begun: Vec<Redirection>,
    /// These do no more.
    pub(crate) ended: Vec<Redirection>,
}

/// What a pass has put right that nobody had asked for, one sentence each.
pub(crate) type Mended = Vec<String>;

/// The gateways of this DPU.
#[derive(Debug)]
pub(crate) struct Gateways {
    settings: GatewaySettings,
    /// Held for a pass.
    work: Arc<tokio::sync::Mutex<Work>>,
    shown: Mutex<Shown>,
    /// There are gateways that were not there before.
    news: Notify,
}

/// What passes work with, and what the latest of them left.
#[derive(Debug)]
struct Work {
    programmer: Programmer,
    settings: GatewaySettings,
    links: Links,
    table: OurTable,
    /// Whose connections are forgotten once the rules are as wanted.
    stale: Remapping,
    /// There was no gateway at the latest pass, and nothing is left of any.
    is_clear: bool,
}

/// How the latest pass found all.
#[derive(Debug, Default)]
struct Shown {
    gateways: BTreeMap<String, GatewayView>,
    /// What concerns all of them.
    problems: Vec<String>,
    /// The rules could not be set, so that there is no gateway.
    is_closed: bool,
    /// The addresses that they answer, each with its network.
    answered: Vec<(String, Probe)>,
    asked: Asked,
}

impl Shown {
    fn due(&mut self, is_about_all: bool) -> Vec<Probe> {
        self.asked.due(&self.answered, is_about_all)
    }

    /// Returns what was put right.
    fn take_over(&mut self, settled: Settled) -> Mended {
        self.problems.extend(settled.problems);
        for (network, problem) in settled.problems_of {
            self.gateways.entry(network).or_default().problems.push(problem);
        }
        settled.mended
    }

    fn all_problems(&self) -> Vec<String> {
        let of_gateways = self.gateways.values().flat_map(|gateway| &gateway.problems).cloned();
        let others = self.answered.iter();
        let others = others.filter_map(|(network, probe)| self.asked.problem_of(network, probe));
        self.problems.iter().cloned().chain(of_gateways).chain(others).collect()
    }
}

impl Gateways {
    pub(crate) fn new(programmer: Programmer, settings: GatewaySettings) -> Self {
        let work = Work {
            programmer,
            settings: settings.clone(),
            links: Links::default(),
            table: OurTable::default(),
            stale: Remapping::default(),
            is_clear: false,
        };
        Self { settings, work: Arc::new(work.into()), shown: Mutex::default(), news: Notify::new() }
    }

    /// Why this DPU can't be the gateway of the network as it wants, one sentence.
    pub(crate) fn problem_of(&self, network: &Network, has_fabric: bool) -> Option<String> {
        self.settings.check_network(network, has_fabric)
    }

    /// Whether an event is about an uplink, which has to forward whenever it comes.
    pub(crate) fn concerns(&self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Changed(link) => self.settings.uplinks.contains(&link.name),
            LinkEvent::Gone { name, .. } => self.settings.uplinks.contains(name),
            LinkEvent::Missed => false,
        }
    }

    /// Makes the kernel agree with what is wanted, which is asked for when it begins.
    pub(crate) async fn reconcile(
        &self,
        wanted: impl FnOnce() -> Wanted,
        is_thorough: bool,
    ) -> Mended {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        let plan = Plan::of(wanted());
        if plan.is_empty() && work.is_clear {
            return Mended::new();
        }
        let pass = spawn_blocking(move || work.pass(&plan, is_thorough)).await;
        let (shown, mended) = pass.unwrap_or_else(|error| {
            std::panic::resume_unwind(error.into_panic());
        });
        self.show(shown);
        mended
    }

    /// Puts the rules into force that are wanted when it begins, for an attachment that comes or goes. Links
    /// are left to passes: there are none without rules.
    pub(crate) async fn redirect(
        &self,
        wanted: impl FnOnce() -> Wanted,
        remapping: Remapping,
    ) -> Result<(), Refused> {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        work.stale.begun.extend(remapping.begun);
        work.stale.ended.extend(remapping.ended);
        let plan = Plan::of(wanted());
        if plan.is_empty() {
            return Ok(());
        }
        work.is_clear = false;
        let put = spawn_blocking(move || work.put_table(&plan).map(drop)).await;
        put.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// Whether nothing of what there should be was changed in nftables, as far as that can be told.
    pub(crate) async fn has_rules(&self) -> bool {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        let look =
            spawn_blocking(move || work.is_clear || matches!(work.table.is_in_force(), Ok(true)));
        look.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// The gateway of a network. `None`: it is somebody else's, or not there yet.
    pub(crate) fn view(&self, network: &str) -> Option<GatewayView> {
        let shown = self.shown();
        let mut view = shown.gateways.get(network).cloned()?;
        let own = shown.answered.iter().filter(|(of, _)| of == network);
        view.problems.extend(own.filter_map(|(_, probe)| shown.asked.problem_of(network, probe)));
        Some(view)
    }

    /// What is not as it should be, one sentence each.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.shown().all_problems()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is, or should be, any.
    fn are_any(&self) -> bool {
        !self.shown().gateways.is_empty()
    }

    /// Whether there are none, because their rules could not be set.
    fn are_closed(&self) -> bool {
        self.shown().is_closed
    }

    /// Waits until there are gateways that were not there before.
    async fn are_new(&self) {
        self.news.notified().await;
    }

    fn show(&self, next: Shown) {
        let has_news = self.change(|shown| {
            let asked = std::mem::take(&mut shown.asked);
            let has_news = next.answered.iter().any(|one| !shown.answered.contains(one));
            *shown = Shown { asked, ..next };
            has_news
        });
        if has_news {
            self.news.notify_one();
        }
    }

    fn note_others(&self, asked: &[Probe], found: &[(Probe, MacAddress)]) {
        self.change(|shown| shown.asked.note(asked, found));
    }

    /// Problems that are new by it are told, and those that are gone, once.
    fn change<T>(&self, change: impl FnOnce(&mut Shown) -> T) -> T {
        let mut shown = self.shown();
        let before = shown.all_problems();
        let outcome = change(&mut shown);
        let after = shown.all_problems();
        for problem in after.iter().filter(|problem| !before.contains(problem)) {
            tracing::error!("{problem}");
        }
        for problem in before.iter().filter(|problem| !after.contains(problem)) {
            tracing::info!(problem, "a problem of the gateways is gone");
        }
        outcome
    }
}

impl Work {
    fn pass(&mut self, plan: &Plan, is_thorough: bool) -> (Shown, Mended) {
        if plan.is_empty() {
            return self.clear();
        }
        self.is_clear = false;
        let mut shown = Shown::default();
        let mut mended = Mended::new();
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
        let has_fabric = self.programmer.has_representors();
        for network in plan.networks() {
            let problem = self.settings.check_network(network, has_fabric);
            let view = shown.gateways.entry(network.name.clone()).or_default();
            view.problems.extend(problem);
        }
    }

    fn put_table(&mut self, plan: &Plan) -> Result<bool, Refused> {
        let name_of = |network: &str| self.programmer.gateway_name(network);
        let ports = self.programmer.ports_seen_as();
        let table = plan.table(
            name_of,
            &self.settings.uplinks,
            ports.as_deref(),
            &links::unrouted_families(),
        );
        let is_mended = self.table.put(table)?;
        if is_mended {
            self.stale.begun.extend_from_slice(plan.redirections());
        }
        self.forget_stale();
        Ok(is_mended)
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
                    let answered = view.addresses.iter().map(|address| Probe {
                        link: link.index,
                        mac: link.mac,
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
