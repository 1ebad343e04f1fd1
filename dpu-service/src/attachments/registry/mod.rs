//! All attachments with their VFs, networks and hosts, in memory. The journal is the durable copy; the rest is reported
//! by kernel and hosts after a restart.
//!
//! Owns: the stage of each attachment; no other module changes it. It changes by [`Registry::reserve`], by transitions
//! of one [`Entry`] behind [`Registry::change`], by transitions of the registry that also update the VF pools, and by
//! [`Registry::free`] and [`Registry::forget`]. Networks change by [`Registry::change_networks`].
//!
//! Locks: one lock around the registry, never held across an await. Nothing in here waits, locks or asks the kernel. A
//! flow that needs an entry again after it released the lock looks it up again: flows of other keys, inventories and
//! hellos run in between.

mod changes;
mod conflicts;
mod detaches;
mod entries;
mod entry;
#[cfg(test)]
mod examples;
mod hosts;
mod inventory;
mod macs;
mod mapped_ports;
mod networks;
mod pod_addresses;
mod reserve;
mod stage;
mod transient;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::time::Instant;
use vf_alloc::{Allocator, ClearError, FunctionId, Offered, PoolSpec, RestoredState, VfOffer};

pub(crate) use conflicts::{Conflicts, Users};
pub(crate) use entries::Entries;
pub(crate) use entry::Entry;
pub(crate) use hosts::ServedHosts;
pub(crate) use inventory::{Conditions, InventoryResult};
pub(crate) use mapped_ports::{redirections, redirections_beside, redirections_of};
pub(crate) use networks::{PooledNetwork, PooledNetworks};
pub(crate) use pod_addresses::{pod_addresses, pod_addresses_among, pod_addresses_of};
pub(crate) use reserve::tighter;
pub(crate) use stage::VfReturn;

use super::{
    settings::{Configuration, Settings},
    views::{OfferedVf, OpenPool},
};
use crate::{
    host::HostTime,
    records::{Cooling, Loaded, OpenError},
};
use detaches::Detaches;
use model::{
    AttachmentId, AttachmentState, AttachmentView, HostName, Layer2Domains, Phase, Record,
    check::check_bridge,
};

/// VFs that are unavailable because records and kernel disagree, by kind.
#[derive(Debug, Default)]
pub(crate) struct Anomalies {
    /// Quarantined because their host holds them for attachments that the journal does not have.
    pub(crate) unaccounted: BTreeSet<FunctionId>,
    /// Unprogramming their representors failed in part. They may have left the fabric, so a survey of its ports may not
    /// show them.
    pub(crate) unclean: BTreeSet<FunctionId>,
    /// Their representors have no attachment and cannot be unprogrammed; already reported.
    pub(crate) undo_failed: BTreeSet<FunctionId>,
}

#[derive(Debug)]
pub(crate) struct Registry {
    settings: Settings,
    entries: Entries,
    vfs: Allocator<AttachmentId>,
    networks: PooledNetworks,
    hosts: ServedHosts,
    detaches: Detaches,
    anomalies: Anomalies,
    /// VFs whose representors vanished, and when.
    lost_representors: HashMap<FunctionId, Instant>,
    /// Why new attachments are refused. `None`: they are not.
    draining: Option<String>,
}

impl Registry {
    /// Restores the journal under a configuration that may have changed. Numbers of VF offers start after
    /// `offered_before`: an agent must not mistake an offer for one of an earlier service.
    pub(crate) fn restore(
        loaded: Loaded,
        configuration: Configuration,
        settings: Settings,
        offered_before: u64,
    ) -> Result<Self, OpenError> {
        let Configuration { hosts, rights, vfs: wanted_vfs, pools, networks } = configuration;
        let domains = Layer2Domains::of_bridges(&settings.bridges);
        // Before anything is restored: the indexes would silently keep one of two holders.
        entries::check_unshared(&loaded.attachments, &domains)?;
        let allocation =
            vf_alloc::Settings { quarantine_after: settings.quarantine_after, offered_before };
        let mut registry = Self {
            entries: Entries::new(domains.clone()),
            vfs: Allocator::new(pools, allocation)
                .map_err(|error| OpenError::Configuration(error.to_string()))?,
            networks: PooledNetworks::new(settings.address_cool_down.as_secs(), domains),
            hosts: ServedHosts::new(hosts, wanted_vfs),
            detaches: Detaches::default(),
            anomalies: Anomalies::default(),
            lost_representors: HashMap::new(),
            draining: None,
            settings,
        };
        registry.hosts.set_rights(rights);
        // Networks first: leases are restored into their pools.
        registry.change_networks().restore(networks, loaded.networks)?;
        for record in loaded.attachments {
            registry.check_bridge_of(&record)?;
            registry.restore_attachment(record)?;
        }
        registry.networks.exclude_used(&registry.entries);
        // After the leases: an address that is held again is not in cool-down.
        registry.networks.restore_cool_downs(loaded.cooling);
        Ok(registry)
    }

    /// Refuses a configuration without the bridge of a recorded attachment: no driver could remove the port from it.
    fn check_bridge_of(&self, record: &Record) -> Result<(), OpenError> {
        let Some(problem) = check_bridge(&record.network, &self.settings.bridges) else {
            return Ok(());
        };
        Err(OpenError::Configuration(format!(
            "attachment {} ({}) is in a bridge that is gone from the file: {problem}",
            record.id, record.key
        )))
    }

    fn restore_attachment(&mut self, record: Record) -> Result<(), OpenError> {
        let state = match record.phase {
            Phase::Held => RestoredState::Held,
            Phase::Releasing => RestoredState::Releasing,
        };
        self.vfs
            .restore(record.vf, record.id, state)
            .map_err(|error| OpenError::Contradiction(error.to_string()))?;
        let entry = Entry::restored(record);
        self.networks.restore_leases(&entry);
        self.entries.insert(entry);
        Ok(())
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) const fn entries(&self) -> &Entries {
        &self.entries
    }

    pub(crate) const fn vfs(&self) -> &Allocator<AttachmentId> {
        &self.vfs
    }

    pub(crate) const fn networks(&self) -> &PooledNetworks {
        &self.networks
    }

    pub(crate) const fn hosts(&self) -> &ServedHosts {
        &self.hosts
    }

    /// Why new attachments are refused. `None`: they are not.
    pub(crate) fn draining(&self) -> Option<&str> {
        self.draining.as_deref()
    }

    pub(crate) fn shown(&self, entry: &Entry) -> AttachmentView {
        let view = entry.view();
        match entry.is_held() && !self.hosts.serves(&view.record.key.host) {
            true => AttachmentView { state: AttachmentState::HostRemoved, ..view },
            false => view,
        }
    }

    /// Whether an attachment holds the VF and is not being released.
    pub(crate) fn serves(&self, vf: FunctionId) -> bool {
        self.by_vf(vf).is_some_and(Entry::is_held)
    }

    /// The attachment that holds the VF, also while it is being released.
    pub(crate) fn by_vf(&self, vf: FunctionId) -> Option<&Entry> {
        self.entries.get(*self.vfs.holder(vf)?)
    }

    pub(crate) fn set_draining(&mut self, reason: Option<String>) {
        self.draining = reason;
    }

    /// The attachment, for transitions that do not concern the pools.
    pub(crate) fn change(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.entries.get_mut(id)
    }

    /// The host reported that the pod has the VF. Returns whether that is new.
    pub(crate) fn note_attached(&mut self, id: AttachmentId) -> bool {
        let is_news = self.entries.get_mut(id).is_some_and(Entry::note_attached);
        if is_news {
            self.vfs.attached(&id);
        }
        is_news
    }

    /// Marks an attachment as releasing. `vf` states where its VF is.
    pub(crate) fn release(&mut self, id: AttachmentId, vf: VfReturn) {
        self.vfs.releasing(&id);
        if let Some(entry) = self.entries.get_mut(id) {
            entry.release(vf);
        }
    }

    /// Frees all that an attachment holds. The addresses in `cooling` are in cool-down first.
    pub(crate) fn free(&mut self, id: AttachmentId, cooling: Vec<Cooling>, now: u64) {
        if let Some(entry) = self.entries.remove(id) {
            match entry.vf_return() {
                VfReturn::Gone => {
                    // Unavailable until a host advertises it again.
                    self.vfs.withdraw(entry.record().vf, "its host does not report it as free");
                    self.vfs.forget(&id);
                }
                VfReturn::Clean | VfReturn::Awaited => drop(self.vfs.release(&id)),
            }
            self.networks.release(entry.record(), cooling, now);
            self.networks.note_end(entry.record(), &self.entries);
        }
    }

    /// Removes a reservation that was never used. `failed`: why its VF could not be programmed, if the VF itself is at
    /// fault.
    pub(crate) fn forget(&mut self, id: AttachmentId, failed: Option<&str>, now: u64) {
        match failed {
            // Counts towards the quarantine of the VF.
            Some(reason) => self.vfs.fail(&id, reason),
            None => self.vfs.forget(&id),
        };
        if let Some(entry) = self.entries.remove(id) {
            self.networks.forget(entry.record(), now);
            self.networks.note_end(entry.record(), &self.entries);
        }
    }

    /// The host detaches the attachment; it observed that at `as_of` of its clock, which shows at most `latest` now.
    pub(crate) fn note_detach(&mut self, record: &Record, as_of: HostTime, latest: HostTime) {
        if let Some(entry) = self.entries.get_mut(record.id) {
            entry.note_given_up();
        }
        self.detaches.note(record, as_of, latest);
    }

    /// Offers the host free VFs, up to `most` of each pool. Returns the offers not yet sent.
    pub(crate) fn offer_vfs(&mut self, host: &HostName, most: usize) -> Vec<OfferedVf> {
        let Ok(number) = self.hosts.number(host) else { return Vec::new() };
        let unsent = self.vfs.offer(number, most).into_iter();
        let offers = unsent.filter_map(|Offered { vf, number }| {
            let offer = VfOffer { device: self.vfs.facts(vf)?.device.clone(), number };
            let open = |pool: &PoolSpec| OpenPool { name: pool.name.clone(), policy: pool.policy };
            let pools = self.vfs.open_pools_of(vf).map(open).collect();
            Some(OfferedVf { offer, pools, pf: vf.pf })
        });
        offers.collect()
    }

    pub(crate) fn note_declined(&mut self, host: &HostName, offer: &VfOffer) {
        let Ok(number) = self.hosts.number(host) else { return };
        if let Some(vf) = self.vfs.at_device(number, &offer.device) {
            self.vfs.note_declined(vf, offer.number);
        }
    }

    /// Ends all offers to the host: they are valid for one session.
    pub(crate) fn end_offers(&mut self, host: &HostName) {
        if let Ok(number) = self.hosts.number(host) {
            self.vfs.end_offers(number);
        }
    }

    /// The host's clock shows at most `latest` now.
    pub(crate) fn note_host_clock(&mut self, host: &HostName, latest: HostTime) {
        self.detaches.forget_after(&self.hosts, host, latest);
    }

    /// Stores which VFs have representors, and which of the `held` attachments lack theirs.
    pub(crate) fn note_representors(
        &mut self,
        held: &[Arc<Record>],
        present: BTreeSet<FunctionId>,
    ) {
        for record in held {
            if let Some(entry) = self.entries.get_mut(record.id) {
                entry.note_representor(present.contains(&record.vf));
            }
        }
        // Before `set_ports`, which overwrites the previous state.
        self.note_lost_representors(&present);
        self.vfs.set_ports(present);
    }

    fn note_lost_representors(&mut self, present: &BTreeSet<FunctionId>) {
        self.lost_representors.retain(|vf, _| !present.contains(vf));
        let had_port = self.vfs.vfs().filter(|view| view.has_port).map(|view| view.vf);
        let lost = had_port.filter(|vf| !present.contains(vf));
        self.lost_representors.extend(lost.map(|vf| (vf, Instant::now())));
    }

    /// Forgets addresses whose cool-down has ended. Returns those whose rows can be deleted from the journal.
    pub(crate) fn forget_cooled(&mut self, now: u64) -> Vec<Cooling> {
        if !self.networks.has_cooled(now) {
            return Vec::new();
        }
        self.networks.forget_cooled(&self.entries.held_addresses(), now)
    }

    pub(crate) const fn anomalies(&self) -> &Anomalies {
        &self.anomalies
    }

    pub(crate) fn is_unclean(&self, vf: FunctionId) -> bool {
        self.anomalies.unclean.contains(&vf)
    }

    /// Returns whether to report it: the leftover of an unclean VF was reported before.
    pub(crate) fn note_undo_failed(&mut self, vf: FunctionId) -> bool {
        self.anomalies.undo_failed.insert(vf) && !self.is_unclean(vf)
    }

    /// Quarantines a VF whose representor could not be fully unprogrammed by its own fault.
    pub(crate) fn quarantine_unclean(&mut self, vf: FunctionId, reason: &str) {
        self.anomalies.unclean.insert(vf);
        self.vfs.quarantine(vf, reason);
    }

    /// Makes a VF unavailable until its representor is unprogrammed.
    pub(crate) fn set_unclean_unavailable(&mut self, vf: FunctionId, reason: &str) {
        self.anomalies.unclean.insert(vf);
        self.vfs.make_unavailable(vf, reason);
    }

    /// The VF's representor is unprogrammed: the VF may be used again.
    pub(crate) fn note_unprogrammed(&mut self, vf: FunctionId) {
        self.anomalies.unclean.remove(&vf);
        self.anomalies.undo_failed.remove(&vf);
        self.vfs.make_available(vf);
    }

    pub(crate) fn clear_quarantine(&mut self, vf: FunctionId) -> Result<(), ClearError> {
        self.vfs.clear(vf)
    }
}
