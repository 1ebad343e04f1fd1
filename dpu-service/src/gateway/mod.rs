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
//! | `others` | whether somebody else answers a gateway's address |
//! | `neighbours` | pods as neighbours of their gateways, and how often unknown ones are asked for |
//! | `thresholds` | how many neighbours the kernel keeps |
//! | `redirections` | the maps and rules that have mapped ports lead to pods; pure |
//! | `connections` | the connections by ports that lead elsewhere now |
//! | `settings` | the section of the configuration |
//! | `work` | what a pass does, and what attachments with mapped ports do |
//! | `shown` | how a pass found all, for operators |
//!
//! Who may race, and what orders them: passes, which the reconciler makes, every change of networks and
//! every change of nftables by anybody. A pass is made under one lock, which it takes before it asks
//! for the networks: so the last pass has the latest of them. Whoever changes networks holds their lock
//! meanwhile; the registry is asked within a pass, and never the other way round. What is shown has a
//! lock of its own, never held across an await nor while another is taken. Attach and detach take
//! neither, but those of an attachment with mapped ports: they have the rules put into force under the first,
//! with a key held, and ask the registry within. Permanent neighbours have a lock of their own, which attach, detach and
//! a comparison of all take after the key: see `neighbours`.
//!
//! All of it stays when the service stops: pods go on. Nothing is recorded: what is there is known by
//! the names and aliases of the links, and by the name of the table.

mod connections;
mod links;
mod neighbours;
mod others;
mod plan;
mod redirections;
mod routes;
mod settings;
mod shown;
mod table;
mod thresholds;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnetwork::IpNetwork;
use netlink::{LinkEvent, MacAddress, Probe};
use tokio::{sync::Notify, task::spawn_blocking};

pub(crate) use neighbours::PodAddress;
pub(crate) use others::watch_for_others;
pub(crate) use redirections::Redirection;
pub(crate) use settings::GatewaySettings;

use crate::{
    conditions::Fault, driver::Refused, drivers::FabricDriver, model::Network,
    programmer::Programmer,
};
use neighbours::Neighbours;
use plan::Plan;
use shown::Shown;
use work::Work;

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

/// Which redirections are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    All,
    /// Those, at least, that have a port or a pod's address of one of these.
    Beside(&'a [Redirection]),
    /// None, but the pods that have an address of one of these.
    BesidePods(&'a [PodAddress]),
}

/// What passes have to see to.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// All networks.
    pub(crate) networks: Vec<Arc<Network>>,
    /// Where mapped ports lead.
    pub(crate) redirections: Vec<Redirection>,
    /// The pods' addresses.
    pub(crate) pods: Vec<PodAddress>,
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
    fabric: FabricDriver,
    settings: GatewaySettings,
    /// Held for a pass.
    work: Arc<tokio::sync::Mutex<Work>>,
    shown: Mutex<Shown>,
    neighbours: Neighbours,
    /// There are gateways that were not there before.
    news: Notify,
}

impl Gateways {
    /// `fabric`: the driver of the programmer's.
    pub(crate) fn new(
        programmer: Programmer,
        fabric: FabricDriver,
        settings: GatewaySettings,
    ) -> Self {
        let work = Work::new(programmer, fabric, settings.clone());
        Self {
            fabric,
            settings,
            work: Arc::new(work.into()),
            shown: Mutex::default(),
            neighbours: Neighbours::default(),
            news: Notify::new(),
        }
    }

    /// Why this DPU can't be the gateway of the network as it wants, one sentence.
    pub(crate) fn problem_of(&self, network: &Network) -> Option<String> {
        self.settings.check_network(network, self.fabric)
    }

    /// Whether an event is about an uplink, which has to forward whenever it comes.
    pub(crate) fn concerns(&self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Changed(link) => self.settings.uplinks.contains(&link.name),
            LinkEvent::Gone { name, .. } => self.settings.uplinks.contains(name),
            LinkEvent::PortChanged { .. } | LinkEvent::Missed => false,
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
        if plan.is_empty() && work.is_clear() {
            return Mended::new();
        }
        let (shown, mended) = blocking(move || work.pass(&plan, is_thorough)).await;
        self.show(shown);
        mended
    }

    /// Puts the rules into force that are wanted when it begins, for an attachment that comes or goes: those
    /// beside the ones that it begins or ends, which `wanted` is asked for, or all if that is not enough.
    /// Links are left to passes: there are none without rules.
    pub(crate) async fn redirect(
        &self,
        wanted: impl Fn(Scope<'_>) -> Wanted,
        remapping: Remapping,
    ) -> Result<(), Refused> {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        let concerned: Vec<_> = remapping.begun.iter().chain(&remapping.ended).cloned().collect();
        work.note(remapping);
        let beside = Plan::of(wanted(Scope::Beside(&concerned)));
        if beside.is_empty() {
            return Ok(());
        }
        let amend = move || (work.amend_table(&concerned, beside.redirections()), work);
        let (is_amended, mut work) = blocking(amend).await;
        if is_amended? {
            return Ok(());
        }
        let plan = Plan::of(wanted(Scope::All));
        blocking(move || work.put_table(&plan).map(drop)).await
    }

    /// Whether nothing of what there should be was changed in nftables, as far as that can be told.
    pub(crate) async fn has_rules(&self) -> bool {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        blocking(move || work.has_rules()).await
    }

    /// The gateway of a network. `None`: it is somebody else's, or not there yet.
    pub(crate) fn view(&self, network: &str) -> Option<GatewayView> {
        let shown = self.shown();
        let mut view = shown.gateways.get(network).cloned()?;
        let own = shown.answered.iter().filter(|(of, _)| of == network);
        view.problems.extend(own.filter_map(|(_, probe)| shown.asked.problem_of(network, probe)));
        Some(view)
    }

    /// What is wrong, by network.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.shown().faults()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is, or should be, any.
    pub(crate) fn are_any(&self) -> bool {
        !self.shown().gateways.is_empty()
    }

    /// Whether there are none, because their rules could not be set.
    pub(crate) fn are_closed(&self) -> bool {
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

/// What asks the kernel waits for it, apart from those who serve calls.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
