//! The entry to the gateways: passes, redirections and views.

use std::sync::Arc;

use netlink::{LinkEvent, MacAddress, Probe, nftables::Set};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::{
    neighbours::Neighbours,
    plan::Plan,
    redirections,
    settings::GatewaySettings,
    shown::{GatewayView, Repairs, Shown},
    wanted::{Remapping, Scope, Wanted},
    work::Work,
};
use crate::{conditions::Fault, tasks::blocking};
use drivers::{driver::Refused, programmer::Programmer, settings::FabricDriver};
use model::Network;

#[derive(Debug)]
pub(crate) struct Gateways {
    fabric: FabricDriver,
    settings: GatewaySettings,
    /// Held during a pass.
    pub(super) work: Arc<tokio::sync::Mutex<Work>>,
    pub(super) shown: Mutex<Shown>,
    pub(super) neighbours: Neighbours,
    /// Notified when a gateway is new.
    pub(super) news: Notify,
}

impl Gateways {
    /// `fabric`: the driver that the programmer uses.
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

    /// One sentence about why this DPU can't be the gateway of the network.
    pub(crate) fn problem_of(&self, network: &Network) -> Option<String> {
        self.settings.check_network(network, self.fabric)
    }

    /// Whether an event is about an uplink: its forwarding has to be set whenever the link appears.
    pub(crate) fn concerns(&self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Changed(link) => self.settings.uplinks.contains(&link.name),
            LinkEvent::Gone { name, .. } => self.settings.uplinks.contains(name),
            LinkEvent::PortChanged { .. } | LinkEvent::Missed => false,
        }
    }

    /// Runs a pass. `wanted` is called once the pass has the lock.
    pub(crate) async fn reconcile(
        &self,
        wanted: impl FnOnce() -> Wanted,
        is_thorough: bool,
    ) -> Repairs {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        let plan = Plan::of(wanted());
        if plan.is_empty() && work.is_clear {
            return Repairs::new();
        }
        let (shown, repairs) = blocking(move || work.pass(&plan, is_thorough)).await;
        self.show(shown);
        repairs
    }

    /// Changes the rules for an attachment that comes or goes. First amends the table by the redirections beside
    /// those of `remapping`. If that fails, replaces the table by that of all redirections. Passes create the
    /// links; no link exists without rules.
    pub(crate) async fn redirect(
        &self,
        wanted: impl Fn(Scope<'_>) -> Wanted,
        remapping: Remapping,
    ) -> Result<(), Refused> {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        let concerned: Vec<_> = remapping.begun.iter().chain(&remapping.ended).cloned().collect();
        work.note(remapping);
        let beside = Plan::of(wanted(Scope::Beside(&concerned)));
        let sets = (redirections::sets(&concerned), redirections::sets(&beside.redirections));
        amend(work, &beside, sets, wanted).await
    }

    /// Whether our nftables rules are unchanged, as far as known.
    pub(crate) async fn has_rules(&self) -> bool {
        let mut work = Arc::clone(&self.work).lock_owned().await;
        blocking(move || work.has_rules()).await
    }

    /// The gateway of a network. `None`: this DPU is not its gateway, or the gateway is not there yet.
    pub(crate) fn view(&self, network: &str) -> Option<GatewayView> {
        let shown = self.shown.lock();
        let mut view = shown.gateways.get(network).cloned()?;
        let own = shown.answered.iter().filter(|(of, _)| of == network);
        view.problems.extend(own.filter_map(|(_, probe)| shown.asked.problem_of(network, probe)));
        Some(view)
    }

    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.shown.lock().faults()
    }

    /// Whether there is a gateway, or should be one.
    pub(crate) fn are_any(&self) -> bool {
        !self.shown.lock().gateways.is_empty()
    }

    /// Whether there is no gateway because the rules could not be set.
    pub(crate) fn are_closed(&self) -> bool {
        self.shown.lock().is_closed
    }

    fn show(&self, next: Shown) {
        let has_news = self.change(|shown| {
            // A pass does not ask other devices, so their latest answers stay.
            let asked = std::mem::take(&mut shown.asked);
            let has_news = next.answered.iter().any(|one| !shown.answered.contains(one));
            *shown = Shown { asked, ..next };
            has_news
        });
        if has_news {
            self.news.notify_one();
        }
    }

    pub(super) fn note_others(&self, asked: &[Probe], found: &[(Probe, MacAddress)]) {
        self.change(|shown| shown.asked.note(asked, found));
    }

    /// Applies `change`, and logs each problem once when it appears and when it is gone.
    fn change<T>(&self, change: impl FnOnce(&mut Shown) -> T) -> T {
        let mut shown = self.shown.lock();
        let before = shown.all_problems();
        let outcome = change(&mut shown);
        let after = shown.all_problems();
        for problem in after.iter().filter(|problem| !before.contains(problem)) {
            tracing::error!(problem, "a gateway has a new problem");
        }
        for problem in before.iter().filter(|problem| !after.contains(problem)) {
            tracing::info!(problem, "a problem of the gateways is gone");
        }
        outcome
    }
}

/// Replaces the elements of the first sets by those of the second, or the whole table if it cannot be amended. Does
/// nothing without gateways `beside`.
pub(super) async fn amend(
    mut work: OwnedMutexGuard<Work>,
    beside: &Plan,
    (concerned, new): (Vec<Set>, Vec<Set>),
    wanted: impl Fn(Scope<'_>) -> Wanted,
) -> Result<(), Refused> {
    if beside.is_empty() {
        return Ok(());
    }
    let amend = move || (work.amend_table(&concerned, &new), work);
    let (is_amended, mut work) = blocking(amend).await;
    if is_amended? {
        return Ok(());
    }
    let plan = Plan::of(wanted(Scope::All));
    blocking(move || work.put_table(&plan).map(drop)).await
}
