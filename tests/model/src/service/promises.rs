//! VFs that are promised to their hosts: who names one is given it, and nobody else is. A promise stays while its VF is
//! held, and is told again, with a higher number, once its host has the VF back.
//! In the program: dpu-service/src/{attachments/offers,api/session}.rs.

use super::{memory::Service, side::ServiceSide};
use crate::{
    names::{HostId, Promise, SessionId, Vf},
    protection::Protection,
    system::System,
    wire::{DpuMessage, Stream},
};

impl ServiceSide<'_> {
    /// The session in which offers have to be sent to the host, if there are any.
    pub(super) fn has_promises(&self, system: &System, host: HostId) -> Option<SessionId> {
        let service = system.dpu.service.as_ref().filter(|_| self.may_promise())?;
        let session = service.current(host).filter(|it| !service.is_greeting(host, *it))?;
        let is_it = |stream: &Stream| stream.session == session && stream.agent_listens;
        let is_heard = system.hosts[usize::from(host)].wire.streams.iter().any(is_it);
        let mut to_be_told = free(service, host).chain(untold(service, host));
        (is_heard && to_be_told.next().is_some()).then_some(session)
    }

    /// `vf-alloc/src/allocator.rs::promise`.
    pub(super) fn promises(&self, system: &mut System, host: HostId, session: SessionId) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let free: Vec<_> = free(service, host).collect();
        service.promises.extend(free.into_iter().map(|vf| (vf, None)));
        let untold: Vec<_> = untold(service, host).collect();
        for vf in untold {
            let last = service.last_told.entry(vf).or_default();
            *last += 1;
            let number = *last;
            service.promises.insert(vf, Some(number));
            if let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session) {
                stream.down.push(DpuMessage::Promises(Promise { vf, number }));
            }
        }
    }

    /// `vf-alloc/src/slot.rs::note_untaken`: the host has declined the offer and has the VF at home. A later offer
    /// of the VF is not affected.
    pub(super) fn notes_untaken(&self, system: &mut System, promise: Promise) {
        let Promise { vf, number } = promise;
        let Some(service) = system.service_mut() else { return };
        let is_meant = service.promises.get(&vf) == Some(&Some(number));
        if is_meant && self.has(Protection::UntakenIsTold) {
            service.renew_promise(vf);
        }
    }
}

/// The free VFs of a host without an offer.
fn free(service: &Service, host: HostId) -> impl Iterator<Item = Vf> + '_ {
    let free = service.offered.iter().copied().filter(|vf| service.is_idle(*vf));
    free.filter(move |vf| vf.host == host && !service.promises.contains_key(vf))
}

/// The VFs of a host whose offers have to be sent.
fn untold(service: &Service, host: HostId) -> impl Iterator<Item = Vf> + '_ {
    service.promised_and_free(host).filter(|vf| service.promises.get(vf) == Some(&None))
}
