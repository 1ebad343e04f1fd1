//! VFs that are offered to their hosts. Only a request that names the offer gets the VF. An offer stays while its
//! VF is held, and is sent again with a higher number once the host has the VF back. In the program:
//! dpu-service/src/{attachments/offers,api/session}.rs.

use super::{memory::Service, side::ServiceSide};
use crate::{
    names::{HostId, Offer, SessionId, Vf},
    protection::Protection,
    system::System,
    wire::{DpuMessage, Stream},
};

impl ServiceSide<'_> {
    /// The session in which offers have to be sent to the host, if there are any.
    pub(super) fn has_offers(&self, system: &System, host: HostId) -> Option<SessionId> {
        let service = system.dpu.service.as_ref().filter(|_| self.may_offer())?;
        let session = service.current(host).filter(|it| !service.is_evaluating(host, *it))?;
        let is_it = |stream: &Stream| stream.session == session && stream.agent_listens;
        let is_heard = system.hosts[usize::from(host)].wire.streams.iter().any(is_it);
        let mut to_be_sent = free(service, host).chain(unsent(service, host));
        (is_heard && to_be_sent.next().is_some()).then_some(session)
    }

    /// `vf-alloc/src/allocator.rs::offer`.
    pub(super) fn offers(&self, system: &mut System, host: HostId, session: SessionId) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let free: Vec<_> = free(service, host).collect();
        service.offers.extend(free.into_iter().map(|vf| (vf, None)));
        let unsent: Vec<_> = unsent(service, host).collect();
        for vf in unsent {
            let last = service.last_number.entry(vf).or_default();
            *last += 1;
            let number = *last;
            service.offers.insert(vf, Some(number));
            if let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session) {
                stream.down.push(DpuMessage::Offers(Offer { vf, number }));
            }
        }
    }

    /// `vf-alloc/src/slot.rs::note_declined`: the host has declined the offer and has the VF at home. A later offer
    /// of the VF is not affected.
    pub(super) fn notes_declined(&self, system: &mut System, offer: Offer) {
        let Offer { vf, number } = offer;
        let Some(service) = system.service_mut() else { return };
        let is_meant = service.offers.get(&vf) == Some(&Some(number));
        if is_meant && self.has(Protection::DeclinedIsReported) {
            service.reset_offer(vf);
        }
    }
}

/// The free VFs of a host without an offer.
fn free(service: &Service, host: HostId) -> impl Iterator<Item = Vf> + '_ {
    let free = service.reported_free.iter().copied().filter(|vf| service.is_idle(*vf));
    free.filter(move |vf| vf.host == host && !service.offers.contains_key(vf))
}

/// The VFs of a host whose offers have to be sent.
fn unsent(service: &Service, host: HostId) -> impl Iterator<Item = Vf> + '_ {
    service.offered_and_free(host).filter(|vf| service.offers.get(vf) == Some(&None))
}
