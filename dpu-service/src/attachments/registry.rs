//! All attachments and what they draw from, in memory, under one lock that is never held across
//! an await. The journal is its durable image; what is only here, the kernel and the hosts tell
//! again after a restart.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    ptr,
    sync::Arc,
};

use ipnetwork::IpNetwork;
use netlink::MacAddress;
use offload_proto::{Failure, Reason};
use tokio::time::Instant;
use vf_alloc::{Allocator, HostId, PfId, RestoredState, VfId};

use super::{
    networks::{Claim, Networks, Suspended},
    settings::{Configuration, Settings},
    views::Origin,
};
use crate::{
    host::{HostTime, SessionId},
    model::{
        AttachmentId, AttachmentKey, AttachmentState, AttachmentView, FormerOwner, HostName,
        Network, Phase, Record,
    },
    records::{Cooling, Loaded, OpenError},
};

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) settings: Settings,
    pub(super) vfs: Allocator<AttachmentId>,
    pub(super) networks: Networks,
    /// Networks of the API that are not in force.
    pub(super) suspended: BTreeMap<String, Suspended>,
    /// The PFs of each host that is served.
    pub(super) hosts: BTreeMap<HostName, BTreeSet<PfId>>,
    /// How many VFs PFs shall have.
    pub(super) wanted_vfs: BTreeMap<PfId, u32>,
    by_mac: HashMap<MacAddress, AttachmentId>,
    /// Addresses that rest, or have rested, as the journal has them.
    pub(super) cooling: Vec<Cooling>,
    /// As of when the latest Detach of each VF spoke, and the boot that this time belongs to.
    detaches: HashMap<VfId, (String, HostTime)>,
    /// VFs in quarantine because their host holds them for nobody that the journal knows.
    pub(super) unaccounted: BTreeSet<VfId>,
    /// VFs whose representors kept some of their programming when it was taken back. They may have left
    /// the fabric.
    pub(super) unclean: BTreeSet<VfId>,
    /// VFs whose representors serve nobody and can't be unprogrammed; that was told.
    pub(super) stuck: BTreeSet<VfId>,
    /// Why no new attachments are taken. `None`: they are.
    pub(super) draining: Option<String>,
    entries: HashMap<AttachmentId, Entry>,
    by_key: HashMap<AttachmentKey, AttachmentId>,
    /// Numbers for the allocator. A host that is served no more keeps its number.
    host_numbers: HashMap<HostName, HostId>,
}

/// One attachment.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: Arc<Record>,
    /// Whether the journal has it.
    pub(super) durable: bool,
    /// The index of its representor, once programmed.
    pub(super) programmed: Option<u32>,
    /// The host said that the pod has the VF.
    pub(super) attached: bool,
    /// It said so at some time, whatever happened since.
    pub(super) was_attached: bool,
    /// The session of its latest Attach. `None`: that was before the service started, or the host
    /// has detached it since.
    pub(super) session: Option<SessionId>,
    /// Being given back, and the VF is known to be back and clean: all that is missing is the
    /// journal.
    pub(super) returned: bool,
    /// The latest repair failed, and that was told: with the index of the representor that it failed
    /// on, if one was there.
    pub(super) repair_failed: Option<Option<u32>>,
    /// The host's hello did not know it, nor had the host its VF back.
    pub(super) unclaimed: bool,
    /// Since when every look at the kernel has found no representor of its VF. `None`: the latest
    /// found one.
    pub(super) missing_since: Option<Instant>,
}

impl Entry {
    pub(super) fn new(record: Arc<Record>, session: Option<SessionId>, durable: bool) -> Self {
        Self {
            record,
            durable,
            programmed: None,
            attached: false,
            was_attached: false,
            session,
            returned: false,
            repair_failed: None,
            unclaimed: false,
            missing_since: None,
        }
    }

    /// Whether the host may still be about to move the VF into the pod, in an Attach of this very
    /// session: an inventory or a list of what is valid may be older than the move.
    pub(super) fn is_under_way(&self, session: Option<SessionId>) -> bool {
        session.is_some() && self.session == session && !self.was_attached
    }

    pub(super) fn is_held(&self) -> bool {
        self.record.phase == Phase::Held
    }

    pub(super) fn state(&self) -> AttachmentState {
        match self.record.phase {
            Phase::Releasing => AttachmentState::Releasing,
            Phase::Held if self.attached => AttachmentState::Attached,
            Phase::Held if self.programmed.is_some() => AttachmentState::Programmed,
            Phase::Held => AttachmentState::Reserved,
        }
    }

    pub(super) fn view(&self) -> AttachmentView {
        AttachmentView { record: Arc::clone(&self.record), state: self.state() }
    }
}

impl Registry {
    /// What the journal holds, under a configuration that may have changed since.
    pub(super) fn restore(
        loaded: Loaded,
        configuration: Configuration,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        let allocation = vf_alloc::Settings { quarantine_after: settings.quarantine_after };
        let vfs = Allocator::new(configuration.pools, allocation)
            .map_err(|error| OpenError::Configuration(error.to_string()))?;
        let mut registry = Self {
            vfs,
            networks: Networks::new(settings.address_cool_down.as_secs()),
            suspended: BTreeMap::new(),
            hosts: BTreeMap::new(),
            wanted_vfs: configuration.vfs,
            by_mac: HashMap::new(),
            cooling: loaded.cooling,
            detaches: HashMap::new(),
            unaccounted: BTreeSet::new(),
            unclean: BTreeSet::new(),
            stuck: BTreeSet::new(),
            draining: None,
            entries: HashMap::new(),
            by_key: HashMap::new(),
            host_numbers: HashMap::new(),
            settings,
        };
        registry.set_hosts(configuration.hosts);
        check_unshared(&loaded.attachments)?;
        for record in loaded.attachments {
            registry.restore_attachment(record)?;
        }
        registry.restore_networks(configuration.networks, loaded.networks)?;
        Ok(registry)
    }

    fn restore_attachment(&mut self, record: Record) -> Result<(), OpenError> {
        let state = match record.phase {
            Phase::Held => RestoredState::Held,
            Phase::Releasing => RestoredState::Releasing,
        };
        self.vfs
            .restore(record.vf, record.id, state)
            .map_err(|error| OpenError::Contradiction(error.to_string()))?;
        self.insert(Entry::new(Arc::new(record), None, true));
        Ok(())
    }

    fn restore_networks(
        &mut self,
        configured: Vec<Network>,
        made: Vec<Network>,
    ) -> Result<(), OpenError> {
        for network in configured {
            self.put_network(network, Origin::Configuration)
                .map_err(|failure| OpenError::Configuration(failure.message))?;
        }
        for network in made {
            self.put_or_suspend(network);
        }
        Ok(())
    }

    /// Puts `network` in the place of the one of its name. It takes over all leases and rests that
    /// lie in its subnets, also those of networks that have gone or were renamed.
    pub(super) fn put_network(&mut self, network: Network, origin: Origin) -> Result<(), Failure> {
        let Self { networks, entries, cooling, .. } = self;
        let leases = |entry: &'_ Entry| -> Vec<_> {
            let id = entry.record.id;
            let held = |lease: &crate::model::Lease| Claim::Held(id, lease.address.ip());
            entry.record.leases.iter().map(held).collect()
        };
        let held = entries.values().flat_map(leases);
        networks.put(network, origin, held.chain(cooling.iter().map(Claim::Cooling)))
    }

    pub(super) fn set_hosts(&mut self, hosts: Vec<(HostName, Vec<PfId>)>) {
        self.hosts =
            hosts.into_iter().map(|(name, pfs)| (name, pfs.into_iter().collect())).collect();
    }

    /// The allocator's number of a host that is served.
    pub(super) fn host_id(&mut self, host: &HostName) -> Result<HostId, Failure> {
        if !self.hosts.contains_key(host) {
            return Err(Failure::new(
                Reason::HostUnknown,
                format!("host {host} is not one that this DPU serves"),
            ));
        }
        let next = u32::try_from(self.host_numbers.len()).unwrap_or(u32::MAX);
        Ok(*self.host_numbers.entry(host.clone()).or_insert(HostId(next)))
    }

    pub(super) fn owner(&self, pf: PfId) -> Option<&HostName> {
        self.hosts.iter().find(|(_, pfs)| pfs.contains(&pf)).map(|(host, _)| host)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let record = &entry.record;
        self.by_mac.insert(record.mac, record.id);
        self.by_key.insert(record.key.clone(), record.id);
        self.entries.insert(record.id, entry);
    }

    pub(super) fn remove(&mut self, id: AttachmentId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_mac.remove(&entry.record.mac);
            self.by_key.remove(&entry.record.key);
        }
    }

    pub(super) fn get(&self, id: AttachmentId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn by_key(&self, key: &AttachmentKey) -> Option<&Entry> {
        self.get(*self.by_key.get(key)?)
    }

    pub(super) fn by_mac(&self, mac: MacAddress) -> Option<&Entry> {
        self.get(*self.by_mac.get(&mac)?)
    }

    pub(super) fn by_vf(&self, vf: VfId) -> Option<&Entry> {
        self.entries.get(self.vfs.holder(vf)?)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn of_host<'a>(&'a self, host: &'a HostName) -> impl Iterator<Item = &'a Entry> {
        self.entries.values().filter(move |entry| entry.record.key.host == *host)
    }

    pub(super) fn users_of(&self, network: &str) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(move |entry| entry.record.network.name == network)
    }

    /// All addresses that attachments hold, each with its network's name.
    pub(super) fn held_addresses(&self) -> HashSet<(String, IpAddr)> {
        let of_record = |record: &Arc<Record>| {
            let network = record.network.name.clone();
            let leases = record.leases.iter();
            leases.map(move |lease| (network.clone(), lease.address.ip())).collect::<Vec<_>>()
        };
        self.entries.values().flat_map(|entry| of_record(&entry.record)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Notes which VFs have representors now, and which of the attachments of `held` lack theirs.
    pub(super) fn note_representors(&mut self, held: &[Arc<Record>], present: BTreeSet<VfId>) {
        for record in held {
            let Some(entry) = self.entries.get_mut(&record.id) else { continue };
            let is_missing = !present.contains(&record.vf);
            let since = entry.missing_since.unwrap_or_else(Instant::now);
            entry.missing_since = is_missing.then_some(since);
        }
        self.vfs.set_ports(present);
    }

    /// Marks an attachment as being given back. `returned`: its VF is known to be back and clean.
    pub(super) fn set_releasing(&mut self, id: AttachmentId, returned: bool) {
        self.vfs.releasing(&id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.returned |= returned;
            entry.programmed = None;
            entry.attached = false;
            entry.unclaimed = false;
            if entry.record.phase == Phase::Held {
                let releasing = Record { phase: Phase::Releasing, ..(*entry.record).clone() };
                entry.record = Arc::new(releasing);
            }
        }
    }

    /// Notes as of when the host has given the attachment back, with its VF or without. A time that its
    /// clock can't show, being later than `latest`, is as good as none.
    pub(super) fn note_detach(&mut self, record: &Record, as_of: HostTime, latest: HostTime) {
        if as_of <= latest {
            self.detaches.insert(record.vf, (record.boot_id.clone(), as_of));
        } else {
            self.detaches.remove(&record.vf);
        }
    }

    /// Forgets what the host has told at times later than `latest`: its clock was set back since, or was
    /// never so late.
    pub(super) fn forget_detaches_after(&mut self, host: &HostName, latest: HostTime) {
        let Some(pfs) = self.hosts.get(host) else { return };
        self.detaches.retain(|vf, (_, at)| *at <= latest || !pfs.contains(&vf.pf));
    }

    /// The VFs of which a Detach has spoken after `as_of` in this boot, so that what the host saw then
    /// says nothing of them: a Detach overtakes the messages of a session. A VF that was clean before
    /// it was attached may be away now.
    pub(super) fn detached_after(&self, boot_id: &str, as_of: HostTime) -> HashSet<VfId> {
        if as_of == HostTime::default() {
            return HashSet::new();
        }
        let later = self.detaches.iter().filter(|(_, (boot, at))| boot == boot_id && *at > as_of);
        later.map(|(vf, _)| *vf).collect()
    }

    /// Frees all that an attachment holds. Its addresses rest first.
    pub(super) fn free(&mut self, id: AttachmentId, resting: Vec<Cooling>, now: u64) {
        self.give_back_addresses(id, |pool| {
            pool.release(&id, now);
        });
        self.cooling.extend(resting);
        self.vfs.release(&id);
        self.remove(id);
    }

    /// Takes back a reservation that nobody has ever used. With `failed`, its VF could not be
    /// programmed, for that reason, which is the VF's own fault.
    pub(super) fn forget(&mut self, id: AttachmentId, failed: Option<&str>, now: u64) {
        self.give_back_addresses(id, |pool| {
            pool.forget(&id);
        });
        self.rest_on(id, now);
        match failed {
            Some(reason) => self.vfs.fail(&id, reason),
            None => self.vfs.release(&id),
        };
        self.remove(id);
    }

    fn give_back_addresses(
        &mut self,
        id: AttachmentId,
        give_back: impl Fn(&mut ipam::Pool<AttachmentId>),
    ) {
        let Some(entry) = self.entries.get(&id) else { return };
        for lease in &entry.record.leases {
            self.networks.pools_with(lease.address.ip()).for_each(&give_back);
        }
    }

    /// Addresses that their former owner was to have before their rest was over go on resting.
    fn rest_on(&mut self, id: AttachmentId, now: u64) {
        let Some(entry) = self.entries.get(&id) else { return };
        let leases = entry.record.leases.iter();
        let addresses: Vec<_> = leases.map(|lease| lease.address.ip()).collect();
        addresses.into_iter().for_each(|address| self.let_rest_on(address, now));
    }

    /// Likewise, one that nobody holds.
    pub(super) fn let_rest_on(&mut self, address: IpAddr, now: u64) {
        let Some(until) = self.rest_of(address, now).map(|rest| rest.until) else { return };
        self.networks.pools_with(address).for_each(|pool| pool.rest(address, until));
    }

    /// The rest of `address` that ends last, if it is not over.
    pub(super) fn rest_of(&self, address: IpAddr, now: u64) -> Option<&Cooling> {
        let rests = self.cooling.iter().filter(|rest| rest.address == address && rest.until > now);
        rests.max_by_key(|rest| rest.until)
    }

    /// What rests once `record` is freed.
    pub(super) fn resting(&self, record: &Record, now: u64) -> Vec<Cooling> {
        let until = now.saturating_add(self.settings.address_cool_down.as_secs());
        let rest = |address: IpNetwork| Cooling {
            network: record.network.name.clone(),
            address: address.ip(),
            until,
            owner: Some(FormerOwner::of(record)),
        };
        if until == now {
            return Vec::new();
        }
        record.leases.iter().map(|lease| lease.address).map(rest).collect()
    }
}

/// Refuses records of which two hold the same. Only a damaged journal has such, and whichever of the
/// two were believed, the other one's pod would lose what it uses.
fn check_unshared(records: &[Record]) -> Result<(), OpenError> {
    let mut holders = HashMap::<String, &Record>::new();
    for record in records {
        for what in held_alone(record) {
            let other = holders.get(&what).filter(|other| !ptr::eq(**other, record));
            if let Some(other) = other {
                return Err(shared(&what, other, record));
            }
            holders.insert(what, record);
        }
    }
    Ok(())
}

/// What no other attachment may hold, as people call it.
fn held_alone(record: &Record) -> impl Iterator<Item = String> {
    let Record { key, vf, mac, leases, .. } = record;
    let addresses = leases.iter().map(|lease| format!("address {}", lease.address.ip()));
    [format!("key {key}"), format!("VF {vf}"), format!("MAC address {mac}")]
        .into_iter()
        .chain(addresses)
}

fn shared(what: &str, one: &Record, other: &Record) -> OpenError {
    OpenError::Contradiction(format!(
        "attachments {} ({}) and {} ({}) both hold {what}: put back a copy of the journal from \
         before, or empty the hosts of these pods and move the journal away",
        one.id, one.key, other.id, other.key
    ))
}
