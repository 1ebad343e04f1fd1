//! Release: unprogram and record in either order, then free and answer. In the program:
//! dpu-service/src/attachments/{detach,hello}.rs.

use super::{
    memory::{Entry, Flow, Service, Verdict, Work},
    side::ServiceSide,
};
use crate::{
    names::{AttachmentId, HostId, Key, Record, SessionId},
    protection::Protection,
    system::{System, put},
    wire::{Answer, Detach, DpuMessage},
};

impl ServiceSide<'_> {
    /// `attachments/detach.rs::detach_now`, up to `attachments/detach.rs::mark_releasing`.
    pub(super) fn detaches(
        &self,
        system: &mut System,
        detach: Detach,
        session: SessionId,
        is_awaited: bool,
    ) {
        let Detach { key, id, returned, returned_vf, as_of } = detach;
        let Some(service) = system.dpu.service.as_mut() else { return };
        let is_stale = service.current(key.host) != Some(session);
        if is_stale && self.has(Protection::DetachSessionCheck) {
            if is_awaited {
                system.host_mut(key).wire.answer(key, Answer::Stale);
            }
            return;
        }
        // The key is locked from here to the end, so an Attach sees all of it or nothing.
        if let Some((_, boot_id)) = service.sessions.get(&key.host).copied() {
            service.add_tombstone(key, boot_id, as_of);
        }
        let is_meant = |record: &Record| {
            id.is_none_or(|id| id == record.id) || !self.has(Protection::AttachmentIdFence)
        };
        let record = self.finds(service, key).map(|entry| entry.record).filter(is_meant);
        let Some(record) = record else {
            if is_awaited {
                system.host_mut(key).wire.answer(key, Answer::Detached);
            }
            return;
        };
        if let Some(entry) = service.get_mut(record.id)
            && self.has(Protection::DetachEndsCalls)
        {
            entry.session = None;
        }
        let returned = returned || returned_vf == Some(record.vf);
        if returned || self.has(Protection::AsOfAbsent) {
            service.reported.insert(record.vf, (record.boot_id, as_of));
        }
        self.gives_back(service, (record.key, record.id), returned, None);
        if let Some(flow) = service.flow_mut(record.key) {
            flow.is_awaited = is_awaited;
        }
    }

    /// `attachments/registry/entries.rs::by_key`: a key includes its host.
    pub(super) fn finds(&self, service: &Service, key: Key) -> Option<Entry> {
        let is_it = |entry: &&Entry| {
            let of = entry.record.key;
            of == key || of.container == key.container && !self.has(Protection::HostInKey)
        };
        service.entries.iter().find(is_it).copied()
    }

    /// `attachments/detach.rs::release_attachment`.
    pub fn gives_back(
        &self,
        service: &mut Service,
        (key, id): (Key, AttachmentId),
        returned: bool,
        follows: Option<SessionId>,
    ) {
        let is_home = service.release(id, returned);
        let returned = is_home || !self.has(Protection::FreedOnlyWhenHome);
        let work = Work::GiveBack { returned, recorded: false, unprogrammed: false };
        service.begin(Flow { key, id, work, is_awaited: false, follows, informs_host: false });
    }

    pub(super) fn commits_release(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow_mut(key) else { return };
        let Work::GiveBack { returned, recorded, .. } = &mut flow.work else { return };
        *recorded = true;
        let (returned, id) = (*returned, flow.id);
        match service.get(id) {
            Some(entry) if !returned => put(&mut system.dpu.journal, entry.record),
            _ => system.dpu.journal.retain(|record| record.id != id),
        }
        self.answers_detach(system, key);
    }

    pub(super) fn unprograms(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow_mut(key) else { return };
        let Work::GiveBack { unprogrammed, .. } = &mut flow.work else { return };
        *unprogrammed = true;
        let id = flow.id;
        if let Some(entry) = service.get(id) {
            system.dpu.ports.remove(&entry.record.vf);
        }
        self.answers_detach(system, key);
    }

    /// Answers once disk and kernel are done. `attachments/registry/mod.rs::free`, in which
    /// `vf-alloc/src/allocator.rs::release` marks the VF as free.
    fn answers_detach(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow(key) else { return };
        let Work::GiveBack { returned, recorded: true, unprogrammed: true } = flow.work else {
            return;
        };
        service.flows.retain(|flow| flow.key != key);
        if let Some(entry) = service.get(flow.id).copied().filter(|_| returned) {
            let vf = entry.record.vf;
            if service.known.contains(&vf) && self.has(Protection::ReturnMarksFree) {
                service.reported_free.insert(vf);
            }
            if self.has(Protection::ReturnedIsOfferedAgain) {
                service.reset_offer(vf);
            }
            service.entries.retain(|entry| entry.record.id != flow.id);
        }
        if flow.is_awaited {
            system.host_mut(key).wire.answer(key, Answer::Detached);
        }
        if flow.informs_host {
            send_release(system, key, flow.id);
        }
    }

    /// `attachments/hello.rs::end`.
    pub(super) fn carries_out(&self, system: &mut System, host: HostId, id: AttachmentId) {
        let Some(service) = system.service_mut() else { return };
        let is_it = |verdict: &Verdict| verdict.host == host && verdict.id == id;
        let Some(place) = service.verdicts.iter().position(is_it) else { return };
        let verdict = service.verdicts.remove(place);
        let is_current = service.current(host) == Some(verdict.session);
        let Some(entry) = service.get(id).copied() else { return };
        if !is_current && self.has(Protection::VerdictOfCurrentSession) {
            return;
        }
        let key = entry.record.key;
        self.gives_back(service, (key, id), verdict.returned, Some(verdict.session));
        if let Some(flow) = service.flow_mut(key) {
            flow.informs_host = verdict.informs_host;
        }
    }
}

/// `attachments/detach.rs::send_release`.
pub(super) fn send_release(system: &mut System, key: Key, id: AttachmentId) {
    let Some(service) = &system.dpu.service else { return };
    let Some(session) = service.current(key.host) else { return };
    if let Some(stream) = system.host_mut(key).wire.stream_mut(session)
        && stream.agent_listens
    {
        stream.down.push(DpuMessage::Release(key, id));
    }
}
