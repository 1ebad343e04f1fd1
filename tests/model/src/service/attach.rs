//! Attach: dpu-service/src/attachments/attach.rs.

use super::{Entry, Flow, FlowStep, put};
use crate::{
    protocol::{Protection, Protocol},
    system::{AttachmentId, Key, Phase, Record, SessionId, System},
    wire::Answer,
};

impl Protocol {
    /// `Engine::admit`.
    pub(super) fn admits(
        &self,
        system: &mut System,
        key: Key,
        session: SessionId,
        is_awaited: bool,
    ) {
        let answer = |system: &mut System, answer| {
            if is_awaited {
                system.host_mut(key).wire.answer(key, answer);
            }
        };
        let Some(service) = &system.dpu.service else { return };
        let in_force = service.sessions[usize::from(key.host)];
        let boot_id = match in_force {
            Some((current, boot_id)) if current == session => boot_id,
            _ if !self.has(Protection::SessionCheck) => system.host(key).boot_id,
            _ => return answer(system, Answer::Stale),
        };
        if let Some(entry) = service.by_key(key).copied() {
            if !entry.is_held() {
                return answer(system, Answer::Refused);
            }
            let is_programmed =
                system.dpu.ports[usize::from(entry.record.vf.0)] == Some(entry.record.id);
            let Some(service) = system.service_mut() else { return };
            if let Some(entry) = service.get_mut(entry.record.id) {
                (entry.session, entry.unclaimed) = (Some(session), false);
            }
            if is_programmed {
                return answer(system, Answer::Attached(entry.record));
            }
            return service.begin(attach_flow(entry.record, FlowStep::Program, is_awaited));
        }
        let vf = service.free_vf(key.host, system);
        let address = service.free_address(self.bounds.addresses);
        let (Some(vf), Some(address)) = (vf, address) else {
            return answer(system, Answer::Refused);
        };
        let number = &mut system.host_mut(key).latest_attachment;
        *number += 1;
        let id = AttachmentId { host: key.host, number: *number };
        let record = Record { id, key, vf, address, boot_id, phase: Phase::Held };
        let first = match self.has(Protection::JournalBeforeAnswer) {
            true => FlowStep::Commit,
            false => FlowStep::Program,
        };
        let Some(service) = system.service_mut() else { return };
        service.insert(Entry::new(record, Some(session), false));
        service.begin(attach_flow(record, first, is_awaited));
    }

    pub(super) fn commits(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow(key) else { return };
        if let Some(entry) = service.get_mut(flow.id) {
            entry.durable = true;
            put(&mut system.dpu.journal, entry.record);
        }
        match self.has(Protection::JournalBeforeAnswer) {
            true => service.go_on(key, FlowStep::Program),
            false => service.flows.retain(|flow| flow.key != key),
        }
    }

    pub(super) fn programs(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow(key) else { return };
        let Some(entry) = service.get(flow.id).copied() else { return };
        system.dpu.ports[usize::from(entry.record.vf.0)] = Some(flow.id);
        match entry.durable {
            true => service.flows.retain(|flow| flow.key != key),
            false => service.go_on(key, FlowStep::Commit),
        }
        if flow.is_awaited {
            system.host_mut(key).wire.answer(key, Answer::Attached(entry.record));
        }
    }
}

pub(super) fn attach_flow(record: Record, step: FlowStep, is_awaited: bool) -> Flow {
    let Record { id, key, .. } = record;
    Flow { key, id, step, is_awaited, follows: None, tells_host: false }
}
