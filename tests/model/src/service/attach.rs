//! Attach: reserve in memory, then record and program in either order, then answer. In the program:
//! dpu-service/src/attachments/{attach,ports}.rs.

use super::{
    memory::{Entry, Flow, Service, Work},
    side::ServiceSide,
};
use crate::{
    names::{Address, AttachmentId, HostId, HostTime, Key, Offer, Phase, Record, SessionId, Vf},
    protection::Protection,
    system::{Port, System, put},
    wire::Answer,
};

/// The fields of an Attach.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) session: SessionId,
    pub(super) as_of: HostTime,
    pub(super) offered: Option<Offer>,
}

impl ServiceSide<'_> {
    /// `attachments/attach.rs::admit`.
    pub(super) fn admits(&self, system: &mut System, key: Key, asked: Asked, is_awaited: bool) {
        let Asked { session, as_of, offered } = asked;
        let answer = |system: &mut System, answer| {
            if is_awaited {
                system.host_mut(key).wire.answer(key, answer);
            }
        };
        let Some(service) = &system.dpu.service else { return };
        let boot_id = match service.sessions.get(&key.host) {
            Some((current, boot_id)) if *current == session => *boot_id,
            _ if !self.has(Protection::SessionCheck) => system.host(key).boot_id,
            _ => return answer(system, Answer::Stale),
        };
        let is_overtaken = service.has_tombstone(key, boot_id, as_of);
        if is_overtaken && self.has(Protection::TombstoneReservesNothing) {
            return answer(system, Answer::Refused);
        }
        if let Some(entry) = self.finds(service, key) {
            if !entry.is_held() {
                return answer(system, Answer::Releasing);
            }
            let is_another = offered.is_some_and(|offer| offer.vf != entry.record.vf);
            if is_another && self.has(Protection::NamedOrNone) {
                return answer(system, Answer::NotFree);
            }
            let is_programmed = system.dpu.programmed(entry.record.vf) == Some(entry.record.id);
            let Some(service) = system.service_mut() else { return };
            if let Some(entry) = service.get_mut(entry.record.id) {
                (entry.session, entry.unclaimed) = (Some(session), false);
            }
            if is_programmed {
                return answer(system, Answer::Attached(entry.record));
            }
            return service.begin(attach_flow(entry.record, true, is_awaited));
        }
        let named = offered.and_then(|offer| self.offered_vf(service, key.host, offer));
        if named.is_none() && offered.is_some() && self.has(Protection::NamedOrNone) {
            return answer(system, Answer::NotFree);
        }
        let Some(vf) = named.or_else(|| self.free_vf(service, key.host)) else {
            let is_any_offered = service.offered_and_free(key.host).next().is_some();
            let refusal = if is_any_offered { Answer::Offered } else { Answer::Refused };
            return answer(system, refusal);
        };
        let Some(address) = self.free_address(service) else {
            return answer(system, Answer::Refused);
        };
        let number = &mut system.host_mut(key).latest_attachment;
        *number += 1;
        let id = AttachmentId { host: key.host, number: *number };
        let record = Record { id, key, vf, address, boot_id, phase: Phase::Held };
        let Some(service) = system.service_mut() else { return };
        service.insert(Entry::new(record, Some(session), false));
        service.begin(attach_flow(record, false, is_awaited));
    }

    /// `vf-alloc/src/allocator.rs::choose_offered`.
    fn offered_vf(&self, service: &Service, host: HostId, offer: Offer) -> Option<Vf> {
        let Offer { vf, number } = offer;
        let is_own = vf.host == host || !self.has(Protection::OwnVfsOnly);
        let reported = service.offers.get(&vf).copied().flatten();
        let is_it =
            reported == Some(number) || reported.is_some() && !self.has(Protection::OfferNumbers);
        (is_own && is_it && service.is_idle(vf)).then_some(vf)
    }

    /// `vf-alloc/src/allocator.rs::choose`: the first free VF of the host.
    pub(super) fn free_vf(&self, service: &Service, host: HostId) -> Option<Vf> {
        let is_own = |vf: &&Vf| vf.host == host || !self.has(Protection::OwnVfsOnly);
        let is_offered =
            |vf: &Vf| service.offers.contains_key(vf) && self.has(Protection::OfferedNeedsName);
        let mut reported_free = service.reported_free.iter().filter(is_own);
        reported_free.find(|vf| service.is_idle(**vf) && !is_offered(vf)).copied()
    }

    /// `ipam/src/pool.rs::allocate`: the first free address. There is no cool-down, which is the hardest case.
    fn free_address(&self, service: &Service) -> Option<Address> {
        let is_held = |address| {
            service.entries.iter().any(|entry| {
                entry.record.address == address
                    && (entry.is_held() || self.has(Protection::AddressFreedLast))
            })
        };
        self.addresses().find(|address| !is_held(*address))
    }

    pub(super) fn commits(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow_mut(key) else { return };
        let Work::Establish { recorded, .. } = &mut flow.work else { return };
        *recorded = true;
        let id = flow.id;
        if let Some(entry) = service.get_mut(id) {
            entry.durable = true;
            put(&mut system.dpu.journal, entry.record);
        }
        self.answers_attach(system, key);
    }

    pub(super) fn programs(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow_mut(key) else { return };
        let Work::Establish { programmed, .. } = &mut flow.work else { return };
        *programmed = true;
        let id = flow.id;
        if let Some(entry) = service.get(id) {
            system.dpu.ports.insert(entry.record.vf, Port::from(&entry.record));
        }
        self.answers_attach(system, key);
    }

    /// Answers once disk and kernel are done.
    fn answers_attach(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow_mut(key) else { return };
        let Work::Establish { recorded, programmed } = flow.work else { return };
        let may_answer = (recorded || !self.has(Protection::JournalBeforeAnswer))
            && (programmed || !self.has(Protection::ProgramBeforeAnswer));
        let is_answered = may_answer && std::mem::take(&mut flow.is_awaited);
        let id = flow.id;
        if recorded && programmed {
            service.flows.retain(|flow| flow.key != key);
        }
        let record = service.get(id).map(|entry| entry.record);
        if let Some(record) = record.filter(|_| is_answered) {
            system.host_mut(key).wire.answer(key, Answer::Attached(record));
        }
    }
}

pub(super) fn attach_flow(record: Record, recorded: bool, is_awaited: bool) -> Flow {
    let Record { id, key, .. } = record;
    let work = Work::Establish { recorded, programmed: false };
    Flow { key, id, work, is_awaited, follows: None, informs_host: false }
}
