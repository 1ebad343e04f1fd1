//! All attachments and what they draw from, in memory, under one lock that is never held across
//! an await. The journal is its durable image; what is only here, the kernel and the hosts tell
//! again after a restart.
//!
//! This is the one room that changes where an attachment stands. Its doors: [`Registry::reserve`];
//! the transitions, most of them of one [`Entry`] behind [`Registry::change`], and those that the
//! pools of VFs have to know, too, of the registry itself; [`Registry::free`] and
//! [`Registry::forget`]; and views that change nothing. Networks come and go by
//! [`Registry::change_networks`].
//!
//! Nothing in here waits, locks or asks the kernel. Whoever holds an entry for longer than one hold
//! of the lock looks again: in between, flows of other keys, inventories and hellos go on.

mod changes;
mod conflicts;
mod detaches;
mod doubts;
mod entries;
mod entry;
#[cfg(test)]
mod examples;
mod hosts;
mod inventory;
mod leaving;
mod mapped_ports;
mod networks;
mod pod_addresses;
mod reserve;
mod stage;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::time::Instant;
use vf_alloc::{Allocator, ClearError, FunctionId, PoolSpec, Promised, RestoredState, VfPromise};

pub(crate) use conflicts::{Conflicts, Users};
pub(crate) use doubts::Doubts;
pub(crate) use entries::Entries;
pub(crate) use entry::Entry;
pub(crate) use hosts::ServedHosts;
pub(crate) use inventory::{Conditions, Heard};
pub(crate) use mapped_ports::{redirections, redirections_beside, redirections_of};
pub(crate) use networks::{PooledNetwork, PooledNetworks};
pub(crate) use pod_addresses::{pod_addresses, pod_addresses_among, pod_addresses_of};
pub(crate) use reserve::tighter;
pub(crate) use stage::VfReturn;

use super::{
    promises::{OpenPool, PromisedVf},
    settings::{Configuration, Settings},
};
use crate::{
    config::check_bridge,
    host::HostTime,
    model::{
        AttachmentId, AttachmentState, AttachmentView, HostName, Layer2Domains, Phase, Record,
    },
    records::{Cooling, Loaded, OpenError},
};
use detaches::Detaches;

/// All attachments, and the VFs, networks and hosts that they are of.
#[derive(Debug)]
pub(crate) struct Registry {
    settings: Settings,
    entries: Entries,
    vfs: Allocator<AttachmentId>,
    networks: PooledNetworks,
    hosts: ServedHosts,
    detaches: Detaches,
    doubts: Doubts,
    /// VFs whose representors have gone, and when.
    lost_representors: HashMap<FunctionId, Instant>,
    /// Why no new attachments are taken. `None`: they are.
    draining: Option<String>,
}

impl Registry {
    /// What the journal holds, under a configuration that may have changed since. Promises are numbered from
    /// `promised_before` on: no earlier registry's may have been so high.
    pub(crate) fn restore(
        loaded: Loaded,
        configuration: Configuration,
        settings: Settings,
        promised_before: u64,
    ) -> Result<Self, OpenError> {
        let Configuration { hosts, rights, vfs: wanted_vfs, pools, networks } = configuration;
        let domains = Layer2Domains::of_bridges(&settings.bridges);
        entries::check_unshared(&loaded.attachments, &domains)?;
        let allocation =
            vf_alloc::Settings { quarantine_after: settings.quarantine_after, promised_before };
        let mut registry = Self {
            entries: Entries::new(domains.clone()),
            vfs: Allocator::new(pools, allocation)
                .map_err(|error| OpenError::Configuration(error.to_string()))?,
            networks: PooledNetworks::new(settings.address_cool_down.as_secs(), domains),
            hosts: ServedHosts::new(hosts, wanted_vfs),
            detaches: Detaches::default(),
            doubts: Doubts::default(),
            lost_representors: HashMap::new(),
            draining: None,
            settings,
        };
        registry.hosts.set_rights(rights);
        registry.change_networks().restore(networks, loaded.networks)?;
        for record in loaded.attachments {
            registry.check_bridge_of(&record)?;
            registry.restore_attachment(record)?;
        }
        registry.networks.withhold_used(&registry.entries);
        registry.networks.restore_rests(loaded.cooling);
        Ok(registry)
    }

    /// A port stays in its bridge until its attachment has ended: nobody else could take it out.
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

    /// Why no new attachments are taken. `None`: they are.
    pub(crate) fn draining(&self) -> Option<&str> {
        self.draining.as_deref()
    }

    /// An attachment as operators see it.
    pub(crate) fn shown(&self, entry: &Entry) -> AttachmentView {
        let view = entry.view();
        match entry.is_held() && !self.hosts.serves(&view.record.key.host) {
            true => AttachmentView { state: AttachmentState::HostRemoved, ..view },
            false => view,
        }
    }

    /// Whether an attachment holds the VF and is not being given back.
    pub(crate) fn serves(&self, vf: FunctionId) -> bool {
        self.by_vf(vf).is_some_and(Entry::is_held)
    }

    /// Who holds the VF, if only until it is back.
    pub(crate) fn by_vf(&self, vf: FunctionId) -> Option<&Entry> {
        self.entries.get(*self.vfs.holder(vf)?)
    }

    pub(crate) fn set_draining(&mut self, reason: Option<String>) {
        self.draining = reason;
    }

    /// An attachment, for transitions that concern nothing else.
    pub(crate) fn change(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.entries.get_mut(id)
    }

    /// The host said that the pod has the VF. Tells whether that is news.
    pub(crate) fn note_attached(&mut self, id: AttachmentId) -> bool {
        let is_news = self.entries.get_mut(id).is_some_and(Entry::note_attached);
        if is_news {
            self.vfs.attached(&id);
        }
        is_news
    }

    /// Marks an attachment as being given back, with what is known of its VF.
    pub(crate) fn release(&mut self, id: AttachmentId, vf: VfReturn) {
        self.vfs.releasing(&id);
        if let Some(entry) = self.entries.get_mut(id) {
            entry.release(vf);
        }
    }

    /// Frees all that an attachment holds. Of its addresses, `resting` rest first.
    pub(crate) fn free(&mut self, id: AttachmentId, resting: Vec<Cooling>, now: u64) {
        if let Some(entry) = self.entries.remove(id) {
            match entry.vf_return() {
                VfReturn::Gone => {
                    self.vfs.withdraw(entry.record().vf, "its host has not offered it");
                    self.vfs.forget(&id);
                }
                VfReturn::Clean | VfReturn::Awaited => drop(self.vfs.release(&id)),
            }
            self.networks.release(entry.record(), resting, now);
            self.networks.note_end(entry.record(), &self.entries);
        }
    }

    /// Takes back a reservation that nobody has ever used. With `failed`, its VF could not be
    /// programmed, for that reason, which is the VF's own fault.
    pub(crate) fn forget(&mut self, id: AttachmentId, failed: Option<&str>, now: u64) {
        match failed {
            Some(reason) => self.vfs.fail(&id, reason),
            None => self.vfs.forget(&id),
        };
        if let Some(entry) = self.entries.remove(id) {
            self.networks.forget(entry.record(), now);
            self.networks.note_end(entry.record(), &self.entries);
        }
    }

    /// The host itself gives the attachment back, with its VF or without, and knew that at `as_of` of
    /// its clock, which can show `latest` by now.
    pub(crate) fn note_detach(&mut self, record: &Record, as_of: HostTime, latest: HostTime) {
        if let Some(entry) = self.entries.get_mut(record.id) {
            entry.note_given_up();
        }
        self.detaches.note(record, as_of, latest);
    }

    /// Promises the host free VFs, until it has `most` of each pool. Returns those that it is to be told of.
    pub(crate) fn promise(&mut self, host: &HostName, most: usize) -> Vec<PromisedVf> {
        let Ok(number) = self.hosts.number(host) else { return Vec::new() };
        let untold = self.vfs.promise(number, most).into_iter();
        let told = untold.filter_map(|Promised { vf, number }| {
            let promise = VfPromise { device: self.vfs.facts(vf)?.device.clone(), number };
            let open = |pool: &PoolSpec| OpenPool { name: pool.name.clone(), policy: pool.policy };
            let pools = self.vfs.open_pools_of(vf).map(open).collect();
            Some(PromisedVf { promise, pools, pf: vf.pf })
        });
        told.collect()
    }

    /// The host has taken a VF by the promise of that number, and does not use it.
    pub(crate) fn note_untaken(&mut self, host: &HostName, promise: &VfPromise) {
        let Ok(number) = self.hosts.number(host) else { return };
        if let Some(vf) = self.vfs.at_device(number, &promise.device) {
            self.vfs.note_untaken(vf, promise.number);
        }
    }

    /// Ends what was promised to the host in an earlier session.
    pub(crate) fn end_promises(&mut self, host: &HostName) {
        if let Ok(number) = self.hosts.number(host) {
            self.vfs.end_promises(number);
        }
    }

    /// The host's clock can show `latest` by now.
    pub(crate) fn note_host_clock(&mut self, host: &HostName, latest: HostTime) {
        self.detaches.forget_after(&self.hosts, host, latest);
    }

    /// Notes which VFs have representors now, and which of the attachments of `held` lack theirs.
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
        self.note_lost_representors(&present);
        self.vfs.set_ports(present);
    }

    fn note_lost_representors(&mut self, present: &BTreeSet<FunctionId>) {
        self.lost_representors.retain(|vf, _| !present.contains(vf));
        let had_port = self.vfs.vfs().filter(|view| view.has_port).map(|view| view.vf);
        let lost = had_port.filter(|vf| !present.contains(vf));
        self.lost_representors.extend(lost.map(|vf| (vf, Instant::now())));
    }

    /// Forgets the addresses that have rested and returns those whose rows the journal may lose.
    pub(crate) fn forget_rested(&mut self, now: u64) -> Vec<Cooling> {
        if !self.networks.has_rested(now) {
            return Vec::new();
        }
        self.networks.forget_rested(&self.entries.held_addresses(), now)
    }

    /// The VFs that hosts hold for no attachment that the journal knows.
    pub(crate) fn unaccounted(&self) -> impl Iterator<Item = FunctionId> {
        self.doubts.unaccounted()
    }

    /// VFs with which something is wrong.
    pub(crate) const fn doubts(&mut self) -> &mut Doubts {
        &mut self.doubts
    }

    /// Keeps a VF from being given out whose representor, by its own fault, kept some of its programming.
    pub(crate) fn quarantine_unclean(&mut self, vf: FunctionId, reason: &str) {
        self.doubts.note_unclean(vf);
        self.vfs.quarantine(vf, reason);
    }

    /// Likewise of one whose fault it is not: until it is unprogrammed.
    pub(crate) fn withhold_unclean(&mut self, vf: FunctionId, reason: &str) {
        self.doubts.note_unclean(vf);
        self.vfs.withhold(vf, reason);
    }

    /// The VF's representor is unprogrammed.
    pub(crate) fn note_unprogrammed(&mut self, vf: FunctionId) {
        self.doubts.note_unprogrammed(vf);
        self.vfs.stop_withholding(vf);
    }

    /// Gives a quarantined VF back to its pools.
    pub(crate) fn clear_quarantine(&mut self, vf: FunctionId) -> Result<(), ClearError> {
        self.vfs.clear(vf)
    }
}
