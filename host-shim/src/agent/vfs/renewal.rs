//! Resets VFs that differ from their baseline. A reset ends everything that a pod set or stacked on a VF.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::{Link, Rtnl};
use offload_proto::log_event;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use vf_alloc::Device;

use super::{
    cleanliness::Cleanliness, host::Host, originals::is_named, pauses::Pauses, proofs::Seen,
};
use crate::{
    agent::{
        kill_points::KillPoint,
        repairs::{Obstacles, Repairs},
        signals::Signals,
    },
    mover::make_clean,
    vf_source::{self, OtherVf, VfIdentity, Whereabouts},
};
use tokio_util::task::TaskTracker;

/// How long a VF may take to come back.
const TIMEOUT: Duration = Duration::from_secs(15);
/// No event reports that udev has finished with a link.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// How long an operator's call waits for all running resets.
const OPERATORS_PATIENCE: Duration = Duration::from_secs(20);

/// The VFs whose reset runs or waits for its turn. Comparisons with the kernel do not wait for them.
#[derive(Debug, Default)]
struct Renewals {
    under_way: watch::Sender<Announced>,
    /// Why the last resets of free VFs failed.
    obstacles: Mutex<Obstacles>,
}

/// By device, with the mark of who has said so last.
type Announced = HashMap<Device, Arc<()>>;

/// Marks a VF's reset as running until dropped, unless another task takes it over.
#[derive(Debug)]
#[must_use = "the VF is under way only as long as this is kept"]
pub(in crate::agent) struct UnderWay {
    device: Device,
    mark: Arc<()>,
    under_way: watch::Sender<Announced>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.under_way.send_if_modified(|under_way| {
            let is_ours =
                under_way.get(&self.device).is_some_and(|mark| Arc::ptr_eq(mark, &self.mark));
            is_ours && under_way.remove(&self.device).is_some()
        });
    }
}

impl Renewals {
    /// Announces a VF's reset. `None`: it is announced already.
    fn begin(&self, device: &Device) -> Option<UnderWay> {
        let mark = Arc::default();
        let is_first = self.under_way.send_if_modified(|under_way| {
            let is_first = !under_way.contains_key(device);
            if is_first {
                under_way.insert(device.clone(), Arc::clone(&mark));
            }
            is_first
        });
        is_first.then(|| self.marked(device, mark))
    }

    /// Announces a VF's reset in place of an earlier announcement; it counts as running until this one ends.
    fn take_over(&self, device: &Device) -> UnderWay {
        let mark = Arc::default();
        self.under_way.send_modify(|under_way| {
            under_way.insert(device.clone(), Arc::clone(&mark));
        });
        self.marked(device, mark)
    }

    fn marked(&self, device: &Device, mark: Arc<()>) -> UnderWay {
        UnderWay { device: device.clone(), mark, under_way: self.under_way.clone() }
    }

    fn is_under_way(&self, device: &Device) -> bool {
        self.under_way.borrow().contains_key(device)
    }

    /// Waits until a VF's reset is announced.
    async fn begun(&self, device: &Device) {
        self.until(|under_way| under_way.contains_key(device)).await;
    }

    async fn until(&self, is_so: impl FnMut(&Announced) -> bool) {
        // There is a sender for as long as there is this.
        let _ = self.under_way.subscribe().wait_for(is_so).await;
    }

    fn note(&self, subject: String, outcome: Result<(), String>) {
        let mut obstacles = self.obstacles.lock();
        match outcome {
            Ok(()) => drop(obstacles.remove(&subject)),
            Err(why) => drop(obstacles.insert(subject, why)),
        }
    }
}

/// Resets VFs, one at a time.
#[derive(Debug)]
pub(in crate::agent) struct Renewer {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewals: Renewals,
    /// Held during a VF's reset, and while VFs are bound to drivers.
    renewing: tokio::sync::Mutex<()>,
    /// The backoff of each VF's next reset, by device.
    pauses: Pauses,
    signals: Arc<Signals>,
    repairs: Arc<Repairs>,
    tasks: TaskTracker,
}

impl Renewer {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        signals: Arc<Signals>,
        repairs: Arc<Repairs>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            renewals: Renewals::default(),
            renewing: tokio::sync::Mutex::default(),
            pauses: Pauses::default(),
            signals,
            repairs,
            tasks,
        }
    }

    /// Announces a VF's reset. `None`: it is announced already.
    pub(in crate::agent) fn begin(&self, device: &Device) -> Option<UnderWay> {
        self.renewals.begin(device)
    }

    /// Announces a reset in place of an earlier announcement. The earlier task is not waited for: it may wait for the
    /// caller, for example for a key.
    pub(super) fn take_over(&self, device: &Device) -> UnderWay {
        self.renewals.take_over(device)
    }

    /// Whether a VF's reset runs or is announced.
    pub(super) fn is_under_way(&self, device: &Device) -> bool {
        self.renewals.is_under_way(device)
    }

    /// Waits until a VF's reset is announced.
    pub(in crate::agent) async fn begun(&self, device: &Device) {
        self.renewals.begun(device).await;
    }

    /// Whether the pause after the last attempt at a VF is over, or there was none.
    pub(in crate::agent) fn is_due(&self, device: &Device) -> bool {
        self.pauses.is_over(device.as_str())
    }

    /// Waits for the turn to reset VFs, and holds it until the guard is dropped.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.renewing.lock().await
    }

    /// Waits for running resets within a bound. Returns which free VFs could not be reset, and why.
    pub(in crate::agent) async fn await_all(&self) -> Obstacles {
        let _ = timeout(OPERATORS_PATIENCE, self.renewals.until(HashMap::is_empty)).await;
        self.renewals.obstacles.lock().clone()
    }

    /// Starts the reset of a free VF unless one is announced.
    pub(super) fn begin_of_free(self: &Arc<Self>, vf: VfIdentity, what: String) {
        let Some(under_way) = self.renewals.begin(&vf.device) else { return };
        let renewer = Arc::clone(self);
        self.tasks.spawn(async move {
            let outcome = renewer.renew_free(&vf, &what).await;
            let is_free = outcome.is_ok();
            renewer.renewals.note(renewer.host.subject_of(&vf), outcome);
            drop(under_way);
            renewer.signals.inventory_changed();
            // A pass for one that is not would find it again, at once.
            if is_free {
                renewer.signals.vf_became_free();
            }
        });
    }

    /// Resets a free VF and restores it.
    ///
    /// # Errors
    /// Why it is not as it was still.
    async fn renew_free(self: &Arc<Self>, vf: &VfIdentity, what: &str) -> Result<(), String> {
        if !self.pauses.is_over(vf.device.as_str()) {
            return Err(format!("{what}; it is reset again later"));
        }
        // The turn first: it may take minutes to come, and attaches wait for the VF's lock.
        let turn = self.turn().await;
        let _not_taken = self.host.lock_free_vf(&vf.device).await;
        // An attach may have taken the VF during the wait, and a stopping agent starts no reset.
        if self.tasks.is_closed() || !self.is_still_to_be_renewed(vf).await? {
            return Ok(());
        }
        let outcome = match self.reset_vf(vf, what, turn).await {
            Ok(()) => self.prove_renewed(vf).await,
            Err(why) => Err(format!("{what}; it cannot be reset: {why}")),
        };
        KillPoint::ResetVerified.pass();
        self.note_renewed(vf, outcome.is_ok(), what);
        outcome
    }

    async fn is_still_to_be_renewed(self: &Arc<Self>, vf: &VfIdentity) -> Result<bool, String> {
        let (renewer, vf) = (Arc::clone(self), vf.clone());
        let look = move || {
            let present = renewer.host.links()?;
            let link = vf_source::link_of(renewer.host.source(), &present.links, &vf.device);
            Ok(link.is_some_and(|link| {
                renewer.host.is_free(&vf, link, &present)
                    && !renewer.cleanliness.proofs().is_proven(&vf, link)
            }))
        };
        self.host.listed(look).await.map_err(|failure| failure.to_string())
    }

    /// A VF came home as it was, by whatever way: what failed before is no reason to wait next time.
    pub(super) fn note_clean(&self, device: &Device) {
        self.pauses.succeeded(device.as_str());
    }

    /// Stores the result of a reset.
    pub(super) fn note_renewed(self: &Arc<Self>, vf: &VfIdentity, is_clean: bool, what: &str) {
        if is_clean {
            self.note_clean(&vf.device);
            self.repairs.note(&self.host.subject_of(vf), format!("reset because {what}"));
        } else {
            self.try_again_after_pause(vf);
            tracing::warn!(
                vf = vf.device.as_str(),
                differences = what,
                "the VF still differs after a reset"
            );
        }
    }

    /// No event tells when an attempt might succeed.
    pub(super) fn try_again_after_pause(self: &Arc<Self>, vf: &VfIdentity) {
        self.pauses.failed(vf.device.as_str());
        let (renewer, pause) = (Arc::clone(self), self.pauses.of(vf.device.as_str()));
        // Not among the work that is finished before the agent ends: mostly it waits.
        tokio::spawn(async move {
            sleep(pause).await;
            renewer.signals.ask_for_pass();
        });
    }

    /// Resets a VF and waits until it is back.
    ///
    /// # Errors
    /// Why it is not: one sentence.
    pub(super) async fn reset_vf(
        self: &Arc<Self>,
        vf: &VfIdentity,
        what: &str,
        _turn: tokio::sync::MutexGuard<'_, ()>,
    ) -> Result<(), String> {
        tracing::info!(
            event = log_event::VF_RESET,
            vf = vf.device.as_str(),
            differences = what,
            "resetting a VF that differs from its baseline"
        );
        // Subscribe before the reset: the new link may appear before the first look.
        let mut arrivals = self.signals.vf_events();
        let made = {
            let (renewer, vf) = (Arc::clone(self), vf.clone());
            spawn_blocking(move || renewer.make_anew_now(&vf)).await
        };
        made.map_err(|error| error.to_string())??;
        let deadline = Instant::now() + TIMEOUT;
        while !self.is_home_again(vf).await? {
            if Instant::now() >= deadline {
                return Err(format!("it did not come back within {} s", TIMEOUT.as_secs()));
            }
            let _event = timeout(LONGEST_WAIT, arrivals.changed()).await;
        }
        Ok(())
    }

    fn make_anew_now(&self, vf: &VfIdentity) -> Result<(), String> {
        let mut host = self.host.rtnl().map_err(|error| error.to_string())?;
        let link = self.at_home(vf, &mut host).map_err(|error| error.to_string())?;
        let link = link.ok_or("it is not in the host's network namespace")?;
        // On the disk before the driver is unbound: after a crash only this note distinguishes the VF from one whose
        // driver was unbound on purpose.
        self.cleanliness.originals().note_renewal(&vf.device, true);
        KillPoint::ResetBegun.pass();
        let made = self.host.source().reset_vf(&vf.device, &link, &mut host);
        // What fails may leave it without a driver.
        made.map_err(|error| Chain(&error).to_string())?;
        KillPoint::ResetMade.pass();
        self.cleanliness.originals().note_renewal(&vf.device, false);
        Ok(())
    }

    async fn is_home_again(self: &Arc<Self>, vf: &VfIdentity) -> Result<bool, String> {
        let (renewer, vf) = (Arc::clone(self), vf.clone());
        let look = move || {
            let mut host = renewer.host.rtnl()?;
            renewer.at_home(&vf, &mut host)
        };
        let link = spawn_blocking(look).await.map_err(|error| error.to_string())?;
        let link = link.map_err(|error| error.to_string())?;
        Ok(link.is_some_and(|link| is_named(link.index)))
    }

    fn at_home(&self, vf: &VfIdentity, host: &mut Rtnl) -> Result<Option<Link>, netlink::Error> {
        let own = self.cleanliness.own_state(vf);
        let name = own.as_ref().map(|own| own.name.as_str());
        vf_source::find(self.host.source(), host, &vf.device, name)
    }

    async fn prove_renewed(self: &Arc<Self>, vf: &VfIdentity) -> Result<(), String> {
        let (renewer, vf) = (Arc::clone(self), vf.clone());
        let work = move || renewer.clean_new(&vf);
        let seen = self.host.look(work).await.map_err(|failure| failure.to_string())??;
        let found = self.cleanliness.prove(seen).await.map_err(|failure| failure.to_string())?;
        let differences: Vec<_> = found.into_values().flatten().collect();
        if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
    }

    /// Restores and inspects a free VF after its reset. Learns its baseline if that was unknown.
    fn clean_new(&self, vf: &VfIdentity) -> Result<Vec<Seen>, String> {
        let told = |error: netlink::Error| error.to_string();
        let mut host = self.host.rtnl().map_err(told)?;
        let link = self.at_home(vf, &mut host).map_err(told)?;
        let link = link.ok_or("it is not in the host's network namespace")?;
        if let Some(own) = self.cleanliness.own_state(vf) {
            let port = self.host.source().pf_port(&vf.device);
            make_clean(&mut host, &link, &own, port.as_ref()).map_err(|error| error.to_string())?;
        }
        self.cleanliness.learn_of_new(vf, &link).map_err(told)?;
        let seen = self.cleanliness.see(&[(vf.clone(), link.index)]).map_err(told)?;
        Ok(seen.into_iter().map(Seen::made_just_now).collect())
    }

    /// Starts to bind VFs whose reset failed, or was interrupted by the agent's death, to a driver.
    pub(in crate::agent) fn begin_to_finish(self: &Arc<Self>) {
        let unfinished = self.cleanliness.originals().unfinished_renewals().into_iter();
        let begun: Vec<_> = unfinished.filter_map(|vf| self.renewals.begin(&vf)).collect();
        if begun.is_empty() {
            return;
        }
        let renewer = Arc::clone(self);
        self.tasks.spawn(async move {
            renewer.finish().await;
            drop(begun);
        });
    }

    async fn finish(self: &Arc<Self>) {
        let _one_at_a_time = self.turn().await;
        let renewer = Arc::clone(self);
        if let Err(error) = spawn_blocking(move || renewer.finish_now()).await {
            tracing::error!(%error, "cannot bind reset VFs to their drivers");
        }
    }

    fn finish_now(&self) {
        let unfinished = self.cleanliness.originals().unfinished_renewals();
        if unfinished.is_empty() {
            return;
        }
        let is_other = |device: &Device| !unfinished.contains(device);
        let mut unbound = self.host.source().other_vfs(&is_other);
        unbound.retain(|OtherVf { identity, whereabouts }| {
            *whereabouts == Whereabouts::Unbound
                && self.host.source().find_driver(&identity.device).is_err()
        });
        for device in &unfinished {
            if unbound.iter().any(|vf| vf.identity.device == *device) {
                tracing::warn!(vf = device.as_str(), "no driver binds to the VF after a reset");
            } else {
                self.cleanliness.originals().note_renewal(device, false);
            }
        }
    }
}

#[cfg(test)]
pub(in crate::agent) mod tests {
    use test_clock::within;

    use super::*;
    use crate::agent::vfs::{
        records::tests::record,
        room::{Vfs, tests::vfs},
    };

    /// Holds off resets until the guard is dropped.
    pub(in crate::agent) async fn hold_renewals(vfs: &Vfs) -> tokio::sync::MutexGuard<'_, ()> {
        vfs.renewer().turn().await
    }

    /// Makes a VF look as if the previous agent had died during its reset.
    pub(in crate::agent) fn leave_unfinished(vfs: &Vfs, device: &Device) {
        vfs.cleanliness().originals().note_renewal(device, true);
    }

    /// The VFs that look so.
    pub(in crate::agent) fn unfinished(vfs: &Vfs) -> Vec<Device> {
        vfs.cleanliness().originals().unfinished_renewals()
    }

    #[test]
    fn reset_is_running_until_guard_drops() {
        let (renewals, vf) = (Renewals::default(), Device::from("0000:03:00.2"));
        let under_way = renewals.begin(&vf).unwrap();
        assert!(renewals.is_under_way(&vf) && renewals.begin(&vf).is_none());
        drop(under_way);
        assert!(!renewals.is_under_way(&vf) && renewals.begin(&vf).is_some());
    }

    #[test]
    fn taking_over_a_reset_ends_the_earlier_one() {
        let (renewals, vf) = (Renewals::default(), Device::from("0000:03:00.2"));
        let announced = renewals.begin(&vf).unwrap();
        drop(renewals.take_over(&vf));
        assert!(!renewals.is_under_way(&vf));
        let _later = renewals.begin(&vf).unwrap();
        drop(announced);
        assert!(renewals.is_under_way(&vf), "it was said again since");
    }

    #[tokio::test]
    async fn failed_reset_is_retried_without_event() {
        let (vfs, _folder) = vfs();
        let (renewer, vf) = (Arc::clone(vfs.renewer()), record("a", "c").vf().unwrap());
        renewer.note_renewed(&vf, false, "it differs");
        assert!(!renewer.is_due(&vf.device));
        let wanted = vfs.signals().pass_wanted();
        within(Duration::from_secs(20), wanted).await.expect("no second look");
        assert!(renewer.is_due(&vf.device));
    }
}
