//! The service's memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{AttachmentId, BootId, HostId, HostTime, Key, Phase, Record, SessionId, Vf};

/// The service's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Service {
    /// The attachments.
    pub entries: Vec<Entry>,
    /// The VFs whose hosts have reported facts since the service started.
    pub known: BTreeSet<Vf>,
    /// The VFs that their hosts report as free.
    pub reported_free: BTreeSet<Vf>,
    /// The VFs that are offered to their hosts, with the number of the offer. `None`: not sent yet.
    pub offers: BTreeMap<Vf, Option<u8>>,
    /// The number of each VF's latest offer.
    pub last_number: BTreeMap<Vf, u8>,
    /// VFs in quarantine: their host holds them for attachments that the journal does not know.
    pub unaccounted: BTreeSet<Vf>,
    /// Tombstones: released keys, each with the time of its Detach.
    pub tombstones: Vec<(Key, BootId, HostTime)>,
    /// The time of the latest Detach of each VF.
    pub reported: BTreeMap<Vf, (BootId, HostTime)>,
    /// The current sessions by host.
    pub sessions: BTreeMap<HostId, (SessionId, BootId)>,
    /// The newest hello of each host, which is that of the newest connection. Each session has its own connection.
    pub newest: BTreeMap<HostId, SessionId>,
    /// The flows in progress. Each holds the lock of its key.
    pub flows: Vec<Flow>,
    /// Decisions from hosts' messages that wait for the key's lock.
    pub verdicts: Vec<Verdict>,
    /// The sessions whose hello is being evaluated.
    pub evaluating: Vec<(HostId, SessionId)>,
}

/// An attachment in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The record that the journal should have.
    pub record: Record,
    /// Whether the journal has it.
    pub durable: bool,
    /// Whether the host has reported the VF in the pod.
    pub attached: bool,
    /// Whether the host has ever reported that.
    pub was_attached: bool,
    /// The session of its latest Attach.
    pub session: Option<SessionId>,
    /// Released, and the VF is back and clean.
    pub returned: bool,
    /// The host's hello did not list it, and the host does not have the VF back.
    pub unclaimed: bool,
}

/// A flow that changes an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The attachment's key.
    pub key: Key,
    /// The attachment.
    pub id: AttachmentId,
    /// The work of the flow.
    pub work: Work,
    /// Whether a caller waits for the answer.
    pub is_awaited: bool,
    /// The session whose message caused it.
    pub follows: Option<SessionId>,
    /// Whether to inform the host at the end.
    pub informs_host: bool,
}

/// The work of a flow on the disk and in the kernel, in either order. The answer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// `attachments/attach.rs::establish`: creates an attachment.
    Establish {
        /// The record is written.
        recorded: bool,
        /// The representor is programmed.
        programmed: bool,
    },
    /// `attachments/detach.rs::release_attachment`: ends an attachment.
    GiveBack {
        /// The VF is back and clean.
        returned: bool,
        /// The record is deleted or, if the VF is not back, marked as releasing.
        recorded: bool,
        /// The representor is unprogrammed.
        unprogrammed: bool,
    },
}

/// The decision that an attachment is over. `attachments/hello.rs::end` carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Verdict {
    /// The host whose message decided it.
    pub host: HostId,
    /// The session of that message.
    pub session: SessionId,
    /// The attachment.
    pub id: AttachmentId,
    /// Whether its VF is back.
    pub returned: bool,
    /// Whether the host has a record of it.
    pub informs_host: bool,
}

impl Service {
    /// A new process with this journal.
    #[must_use]
    pub fn restore(journal: &[Record]) -> Self {
        let entry = |record: &Record| Entry::new(*record, None, true);
        Self { entries: journal.iter().map(entry).collect(), ..Self::default() }
    }

    /// Whether a hello is being evaluated.
    #[must_use]
    pub fn is_evaluating(&self, host: HostId, session: SessionId) -> bool {
        self.evaluating.contains(&(host, session))
    }

    /// The attachment of a key.
    #[must_use]
    pub fn by_key(&self, key: Key) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.record.key == key)
    }

    /// The attachment that holds a VF.
    #[must_use]
    pub fn by_vf(&self, vf: Vf) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.record.vf == vf)
    }

    /// `vf-alloc/src/slot.rs::is_idle`.
    #[must_use]
    pub fn is_idle(&self, vf: Vf) -> bool {
        self.by_vf(vf).is_none() && !self.unaccounted.contains(&vf)
    }

    /// The VFs that a host may name as offered.
    pub(super) fn offered_and_free(&self, host: HostId) -> impl Iterator<Item = Vf> + '_ {
        let reported_free = self.reported_free.iter().copied().filter(move |vf| vf.host == host);
        reported_free.filter(|vf| self.is_idle(*vf) && self.offers.contains_key(vf))
    }

    /// `vf-alloc/src/slot.rs::reset_offer`.
    pub(super) fn reset_offer(&mut self, vf: Vf) {
        if let Some(reported) = self.offers.get_mut(&vf) {
            *reported = None;
        }
    }

    /// The attachment of an id.
    #[must_use]
    pub fn get(&self, id: AttachmentId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.record.id == id)
    }

    pub(super) fn get_mut(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.record.id == id)
    }

    /// Whether a flow holds the key's lock.
    #[must_use]
    pub fn is_locked(&self, key: Key) -> bool {
        self.flows.iter().any(|flow| flow.key == key)
    }

    /// Whether a flow works on a VF.
    pub(super) fn is_worked_at(&self, vf: Vf) -> bool {
        let of_flow = |flow: &Flow| self.get(flow.id).is_some_and(|entry| entry.record.vf == vf);
        self.flows.iter().any(of_flow)
    }

    /// The current session of a host.
    pub(super) fn current(&self, host: HostId) -> Option<SessionId> {
        self.sessions.get(&host).map(|(session, _)| *session)
    }

    pub(super) fn begin(&mut self, flow: Flow) {
        self.flows.push(flow);
        self.flows.sort_unstable();
    }

    pub(super) fn flow(&self, key: Key) -> Option<Flow> {
        self.flows.iter().copied().find(|flow| flow.key == key)
    }

    /// The flow that holds a key's lock.
    pub fn flow_mut(&mut self, key: Key) -> Option<&mut Flow> {
        self.flows.iter_mut().find(|flow| flow.key == key)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.entries.sort_unstable();
    }

    /// `attachments/registry/mod.rs::release`. Returns whether the VF is back.
    pub(super) fn release(&mut self, id: AttachmentId, returned: bool) -> bool {
        let Some(entry) = self.get_mut(id) else { return false };
        entry.returned |= returned;
        entry.attached = false;
        entry.unclaimed = false;
        entry.record.phase = Phase::Releasing;
        entry.returned
    }

    /// `attachments/tombstones.rs::note`.
    pub(super) fn add_tombstone(&mut self, key: Key, boot_id: BootId, until: HostTime) {
        let until = self.tombstone_until(key, boot_id).map_or(until, |known| known.max(until));
        self.tombstones.retain(|(of, ..)| *of != key);
        self.tombstones.push((key, boot_id, until));
        self.tombstones.sort_unstable();
    }

    /// `attachments/tombstones.rs::has`.
    pub(super) fn has_tombstone(&self, key: Key, boot_id: BootId, asked: HostTime) -> bool {
        self.tombstone_until(key, boot_id).is_some_and(|until| asked <= until)
    }

    fn tombstone_until(&self, key: Key, boot_id: BootId) -> Option<HostTime> {
        let of_key = self.tombstones.iter().find(|(of, boot, _)| (*of, *boot) == (key, boot_id));
        of_key.map(|(.., until)| *until)
    }

    /// `attachments/registry/detaches.rs::after`.
    pub(super) fn detached_after(&self, vf: Vf, boot_id: BootId, as_of: HostTime) -> bool {
        self.reported.get(&vf).is_some_and(|(boot, at)| *boot == boot_id && *at > as_of)
    }
}

impl Entry {
    pub(super) fn new(record: Record, session: Option<SessionId>, durable: bool) -> Self {
        Self {
            record,
            durable,
            attached: false,
            was_attached: false,
            session,
            returned: false,
            unclaimed: false,
        }
    }

    /// Whether it is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.record.phase == Phase::Held
    }

    /// Whether the host may still move the VF for an Attach of this session.
    pub(super) fn is_under_way(&self, session: SessionId) -> bool {
        self.session == Some(session) && !self.was_attached
    }
}
