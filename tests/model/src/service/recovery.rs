//! What the service does unasked: its reconciler, which compares the journal with the kernel.
//! In the program: dpu-service/src/attachments/mend.rs.

use super::{Service, actions::ServiceAction};
use crate::system::System;

pub(super) fn reconciler_actions(
    system: &System,
    service: &Service,
    add: &mut impl FnMut(ServiceAction),
) {
    for vf in system.vfs().filter(|vf| !service.is_worked_at(*vf)) {
        let port = system.dpu.ports.get(&vf);
        match service.by_vf(vf).filter(|entry| entry.is_held()) {
            Some(entry) if entry.durable && port != Some(&entry.record.id) => {
                add(ServiceAction::Mends(vf));
            }
            None if port.is_some() => add(ServiceAction::ClearsUnused(vf)),
            _ => {}
        }
    }
    for entry in service.entries.iter().filter(|entry| entry.returned) {
        let waits = service.verdicts.iter().any(|verdict| verdict.id == entry.record.id);
        if !waits && !service.is_locked(entry.record.key) {
            add(ServiceAction::FinishesReturned(entry.record.key));
        }
    }
}
