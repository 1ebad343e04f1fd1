//! Making VFs anew that are not as they were, which ends all that a pod has set or stacked on one.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::{Link, Rtnl};
use offload_proto::Failure;
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

use super::{
    Agent, detach::Homecoming, milestones::Milestone, originals::is_named, records::Record,
};
use crate::{
    mover::make_clean,
    vf_source::{self, OtherVf, VfIdentity, Whereabouts},
};

/// How long a VF may take to come back.
const PATIENCE: Duration = Duration::from_secs(15);
/// Nobody tells that udev is done with a link.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

impl Agent {
    /// Makes the VF of a record anew, which is at home, and brings it into order. The caller holds the
    /// key's lock. Not again before the pause after the last attempt is over: then nothing is done.
    pub(super) async fn renew_of_record(
        self: &Arc<Self>,
        record: &Arc<Record>,
        what: &str,
    ) -> Result<Homecoming, Failure> {
        let vf = identity_of(record);
        if !self.pauses.is_over(&vf.pci_address) {
            return Ok(Homecoming::Different(what.to_owned()));
        }
        if let Err(why) = self.make_anew(&vf, what).await {
            self.pauses.failed(&vf.pci_address);
            return Ok(Homecoming::Different(format!("{what}; it can't be made anew: {why}")));
        }
        let home = self.try_bring_home(record, true).await;
        Milestone::RenewalProven.pass();
        self.note_renewed(&vf, matches!(home, Ok(Homecoming::Clean)), what);
        home
    }

    /// Makes a VF anew that nobody has, and brings it into order.
    ///
    /// # Errors
    /// Why it is not as it was still.
    pub(super) async fn renew_free(
        self: &Arc<Self>,
        vf: &VfIdentity,
        what: &str,
    ) -> Result<(), String> {
        let _not_taken = self.free_vfs.lock(&vf.pci_address).await;
        if self.records.by_pci_address(&vf.pci_address).is_some() {
            return Ok(());
        }
        if !self.pauses.is_over(&vf.pci_address) {
            return Err(format!("{what}; it is made anew later once more"));
        }
        let outcome = match self.make_anew(vf, what).await {
            Ok(()) => self.prove_renewed(vf).await,
            Err(why) => Err(format!("{what}; it can't be made anew: {why}")),
        };
        Milestone::RenewalProven.pass();
        self.note_renewed(vf, outcome.is_ok(), what);
        outcome
    }

    fn note_renewed(&self, vf: &VfIdentity, is_clean: bool, what: &str) {
        if is_clean {
            self.pauses.succeeded(&vf.pci_address);
            self.repairs.note(&self.subject_of(vf), format!("made anew, for {what}"));
        } else {
            self.pauses.failed(&vf.pci_address);
            tracing::warn!(vf = vf.pci_address, "made anew, and still not as it was: {what}");
        }
    }

    /// Makes a VF anew and waits until it is home.
    async fn make_anew(self: &Arc<Self>, vf: &VfIdentity, what: &str) -> Result<(), String> {
        let _one_at_a_time = self.renewing.lock().await;
        tracing::info!(vf = vf.pci_address, "to be made anew, for {what}");
        let mut arrivals = self.vf_events.subscribe();
        self.originals.note_renewal(&vf.pci_address, true);
        Milestone::RenewalBegun.pass();
        let made = {
            let (agent, vf) = (Arc::clone(self), vf.clone());
            spawn_blocking(move || agent.make_anew_now(&vf)).await
        };
        // What fails may leave it without a driver.
        made.map_err(|error| error.to_string())??;
        Milestone::RenewalMade.pass();
        self.originals.note_renewal(&vf.pci_address, false);
        let deadline = Instant::now() + PATIENCE;
        while !self.is_home_again(vf).await? {
            if Instant::now() >= deadline {
                return Err(format!("it did not come back within {} s", PATIENCE.as_secs()));
            }
            let _event = timeout(LONGEST_WAIT, arrivals.changed()).await;
        }
        Ok(())
    }

    fn make_anew_now(&self, vf: &VfIdentity) -> Result<(), String> {
        let mut host = Rtnl::open_in(&self.host).map_err(|error| error.to_string())?;
        let link = self.at_home(vf, &mut host).map_err(|error| error.to_string())?;
        let link = link.ok_or("it is not in the host's network namespace")?;
        self.source
            .make_anew(&vf.pci_address, &link, &mut host)
            .map_err(|error| Chain(&error).to_string())
    }

    async fn is_home_again(self: &Arc<Self>, vf: &VfIdentity) -> Result<bool, String> {
        let (agent, vf) = (Arc::clone(self), vf.clone());
        let look = move || {
            let mut host = Rtnl::open_in(&agent.host)?;
            agent.at_home(&vf, &mut host)
        };
        let link = spawn_blocking(look).await.map_err(|error| error.to_string())?;
        let link = link.map_err(|error| error.to_string())?;
        Ok(link.is_some_and(|link| is_named(link.index)))
    }

    fn at_home(&self, vf: &VfIdentity, host: &mut Rtnl) -> Result<Option<Link>, netlink::Error> {
        let own = self.own_state(vf);
        let name = own.as_ref().map(|own| own.name.as_str());
        vf_source::find(&*self.source, host, &vf.pci_address, name)
    }

    async fn prove_renewed(self: &Arc<Self>, vf: &VfIdentity) -> Result<(), String> {
        let (agent, vf) = (Arc::clone(self), vf.clone());
        let work = move || agent.clean_and_prove(&vf, true);
        let differences = spawn_blocking(work).await.map_err(|error| error.to_string())??;
        if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
    }

    /// Restores what can be restored of a VF that nobody has, and tells what is not as it was. What a
    /// VF is like that `is_new` is learned, if that was not known.
    pub(super) fn clean_and_prove(
        &self,
        vf: &VfIdentity,
        is_new: bool,
    ) -> Result<Vec<String>, String> {
        let told = |error: netlink::Error| error.to_string();
        let mut host = Rtnl::open_in(&self.host).map_err(told)?;
        let link = self.at_home(vf, &mut host).map_err(told)?;
        let link = link.ok_or("it is not in the host's network namespace")?;
        if let Some(own) = self.own_state(vf) {
            let port = self.source.pf_port(&vf.pci_address);
            make_clean(&mut host, &link, &own, port.as_ref()).map_err(|error| error.to_string())?;
        }
        if is_new {
            self.learn_of_new(vf, &link).map_err(told)?;
        }
        let mut found = self.prove(&[(vf.clone(), link.index)]).map_err(told)?;
        Ok(found.remove(&vf.pci_address).unwrap_or_default())
    }

    /// Learns what a VF is like that was made just now, unless that is known.
    pub(super) fn learn_of_new(&self, vf: &VfIdentity, link: &Link) -> Result<(), netlink::Error> {
        if !self.is_original_known(vf) {
            self.originals.learn(self.originals_of(&[&(vf.clone(), link)])?);
        }
        Ok(())
    }

    /// Gives those VFs a driver that have none because to make them anew failed, or the agent died
    /// meanwhile.
    pub(super) async fn finish_renewals(self: &Arc<Self>) {
        let _one_at_a_time = self.renewing.lock().await;
        let agent = Arc::clone(self);
        if let Err(error) = spawn_blocking(move || agent.finish_renewals_now()).await {
            tracing::error!(%error, "giving VFs their drivers back failed");
        }
    }

    fn finish_renewals_now(&self) {
        let unfinished = self.originals.unfinished_renewals();
        if unfinished.is_empty() {
            return;
        }
        let is_other = |address: &str| !unfinished.iter().any(|vf| vf == address);
        let mut unbound = self.source.other_vfs(&is_other);
        unbound.retain(|OtherVf { identity, whereabouts }| {
            *whereabouts == Whereabouts::Unbound
                && self.source.find_driver(&identity.pci_address).is_err()
        });
        for pci_address in &unfinished {
            if unbound.iter().any(|vf| vf.identity.pci_address == *pci_address) {
                tracing::warn!(vf = pci_address, "no driver takes it since it was to be made anew");
            } else {
                self.originals.note_renewal(pci_address, false);
            }
        }
    }
}

/// Which VF a record holds.
pub(super) fn identity_of(record: &Record) -> VfIdentity {
    let vf = record.attachment.vf.clone().unwrap_or_default();
    VfIdentity { controller: vf.controller, pf: vf.pf, vf: vf.vf, pci_address: vf.pci_address }
}
