//! The service's handling of hellos, inventories and reports that a pod has its VF. In the program:
//! dpu-service/src/{api/session,sessions,attachments/hello}.rs.

use super::{
    detach::send_release,
    memory::{Entry, Service, Verdict},
    side::ServiceSide,
};
use crate::{
    names::{AttachmentId, BootId, HostId, Record, SessionId, Vf},
    protection::Protection,
    system::System,
    wire::{DpuMessage, Hello, HostMessage, Inventory, Stream, VfCondition},
};

impl ServiceSide<'_> {
    pub(super) fn reads(&self, system: &mut System, host: HostId, session: SessionId) {
        let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session) else { return };
        match stream.up.remove(0) {
            HostMessage::Hello(hello) => self.evaluates(system, host, session, &hello),
            HostMessage::Inventory(inventory) => self.takes_note(system, host, session, &inventory),
            HostMessage::Attached(id) => note_attached(system, host, session, id),
            HostMessage::Declined(offer) => self.notes_declined(system, offer),
        }
    }

    /// `attachments/hello.rs::process_hello`.
    pub(super) fn evaluates(
        &self,
        system: &mut System,
        host: HostId,
        session: SessionId,
        hello: &Hello,
    ) {
        let Some(service) = system.service_mut() else { return };
        let newest = service.newest.entry(host).or_default();
        if session < *newest && self.has(Protection::NewestHello) {
            return ends(system, host, session);
        }
        *newest = session;
        self.opens(system, host, session, hello.boot_id);
        let Some(service) = system.service_mut() else { return };
        if self.has(Protection::OffersEnd) {
            service.offers.retain(|vf, _| vf.host != host);
        }
        let conditions = self.take_inventory(service, hello.boot_id, &hello.inventory);
        quarantine_unaccounted(service, hello, &conditions);
        service.evaluating.push((host, session));
        service.evaluating.sort_unstable();
        let is_own = |entry: &&Entry| {
            entry.record.key.host == host || !self.has(Protection::HelloJudgesItsOwn)
        };
        let own: Vec<_> = service.entries.iter().filter(is_own).copied().collect();
        for entry in own {
            self.judges(system, (host, session), hello, &conditions, entry);
        }
    }

    /// `attachments/hello.rs::judge`, `attachments/hello.rs::note_unclaimed` and what
    /// `attachments/hello.rs::carry_out` does without a lock.
    pub(super) fn judges(
        &self,
        system: &mut System,
        (host, session): (HostId, SessionId),
        hello: &Hello,
        conditions: &[(Vf, VfCondition)],
        entry: Entry,
    ) {
        let Record { id, key, vf, boot_id, .. } = entry.record;
        let live = hello.live.iter().find(|(live, _)| *live == id).map(|(_, in_pod)| *in_pod);
        let returned = conditions.contains(&(vf, VfCondition::Clean));
        let mut is_unclaimed = false;
        let mut is_over = false;
        if boot_id != hello.boot_id && self.has(Protection::BootId) {
            is_over = true;
        } else if !entry.is_held() {
            let is_pending =
                hello.pending.contains(&key) && self.has(Protection::PendingGetsRelease);
            match live.is_some() || is_pending {
                true => send_release(system, key, id),
                false => is_over = returned,
            }
        } else {
            match live {
                Some(true) => note_attached(system, host, session, id),
                Some(false) => {}
                None if hello.pending.contains(&key) => {}
                None if returned => is_over = true,
                None if self.has(Protection::UnclaimedKept) => is_unclaimed = true,
                None => is_over = true,
            }
        }
        let Some(service) = system.service_mut() else { return };
        if let Some(entry) = service.get_mut(id) {
            entry.unclaimed = is_unclaimed;
        }
        if is_over {
            let informs_host = live.is_some();
            service.verdicts.push(Verdict { host, session, id, returned, informs_host });
            service.verdicts.sort_unstable();
        }
    }

    /// `attachments/hello.rs::note_inventory`.
    pub(super) fn takes_note(
        &self,
        system: &mut System,
        host: HostId,
        session: SessionId,
        said: &Inventory,
    ) {
        let Some(service) = system.service_mut() else { return };
        let boot_id = match service.sessions.get(&host).copied() {
            Some((current, boot_id)) if current == session => boot_id,
            Some((_, boot_id)) if !self.has(Protection::InventoryOfCurrentSession) => boot_id,
            _ => return,
        };
        let conditions = self.take_inventory(service, boot_id, said);
        let is_back = |entry: &&mut Entry| {
            entry.record.key.host == host
                && (!entry.is_held() || entry.unclaimed)
                && !entry.returned
                && !(entry.is_under_way(session) && self.has(Protection::UnderWay))
                && conditions.contains(&(entry.record.vf, VfCondition::Clean))
        };
        let back: Vec<_> =
            service.entries.iter_mut().filter(is_back).map(|entry| entry.record.id).collect();
        for id in back {
            service.release(id, true);
            let verdict = Verdict { host, session, id, returned: true, informs_host: false };
            service.verdicts.push(verdict);
        }
        service.verdicts.sort_unstable();
    }

    /// `attachments/registry/inventory.rs::take_inventory`: ignores what is said about a VF that a later Detach has
    /// reported.
    pub(super) fn take_inventory(
        &self,
        service: &mut Service,
        boot_id: BootId,
        inventory: &Inventory,
    ) -> Vec<(Vf, VfCondition)> {
        let is_outdated = |(vf, _): &&(Vf, VfCondition)| {
            service.detached_after(*vf, boot_id, inventory.as_of) && self.has(Protection::AsOf)
        };
        let (_, valid): (Vec<_>, Vec<_>) = inventory.conditions.iter().partition(is_outdated);
        for (vf, condition) in &valid {
            let is_learned = match condition {
                VfCondition::Clean => true,
                VfCondition::InUse => self.has(Protection::KnownWhileInUse),
                VfCondition::Missing => false,
            };
            if is_learned {
                service.known.insert(*vf);
            }
            if *condition == VfCondition::Clean {
                service.reported_free.insert(*vf);
                service.unaccounted.remove(vf);
            } else {
                service.reported_free.remove(vf);
            }
        }
        valid
    }
}

impl ServiceSide<'_> {
    /// `sessions.rs::open`: ends the host's earlier session.
    fn opens(&self, system: &mut System, host: HostId, session: SessionId, boot_id: BootId) {
        let is_earlier = |of: HostId| of == host || !self.has(Protection::SessionOfEachHost);
        for (_, of_host) in (0..).zip(&mut system.hosts).filter(|(of, _)| is_earlier(*of)) {
            ends_others(&mut of_host.wire.streams, session);
        }
        if let Some(service) = system.service_mut() {
            service.sessions.retain(|of, _| !is_earlier(*of));
            service.sessions.insert(host, (session, boot_id));
        }
    }
}

fn ends_others(streams: &mut [Stream], session: SessionId) {
    for stream in streams.iter_mut().filter(|stream| stream.session != session) {
        // A stream whose hello was not read yet is no session.
        if !matches!(stream.up.first(), Some(HostMessage::Hello(_))) {
            stream.is_ended = true;
            stream.up.clear();
        }
    }
}

/// The service ends the stream of a session.
pub(super) fn ends(system: &mut System, host: HostId, session: SessionId) {
    if let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session) {
        stream.is_ended = true;
        stream.up.clear();
    }
}

/// `attachments/registry/inventory.rs::quarantine_unaccounted`.
pub(super) fn quarantine_unaccounted(
    service: &mut Service,
    hello: &Hello,
    conditions: &[(Vf, VfCondition)],
) {
    if hello.live.iter().all(|(id, _)| service.get(*id).is_some()) {
        return;
    }
    for (vf, condition) in conditions {
        if *condition == VfCondition::InUse && service.by_vf(*vf).is_none() {
            service.unaccounted.insert(*vf);
        }
    }
}

/// `attachments/hello.rs::note_attached`.
pub(super) fn note_attached(
    system: &mut System,
    host: HostId,
    session: SessionId,
    id: AttachmentId,
) {
    let Some(service) = system.service_mut() else { return };
    if service.current(host) != Some(session) {
        return;
    }
    let Some(entry) = service.get_mut(id).filter(|entry| entry.is_held()) else { return };
    (entry.unclaimed, entry.attached, entry.was_attached) = (false, true, true);
}

/// The hello reply precedes all messages that have accumulated for the host.
pub(super) fn replies_to_hello(system: &mut System, host: HostId, session: SessionId) {
    let Some(service) = system.service_mut() else { return };
    service.evaluating.retain(|other| *other != (host, session));
    if let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session)
        && stream.agent_listens
    {
        stream.down.insert(0, DpuMessage::HelloReply);
    }
}

/// `attachments/hosts.rs::goodbye`.
pub(super) fn notices_end(system: &mut System, host: HostId, session: SessionId) {
    system.hosts[usize::from(host)].wire.streams.retain(|stream| stream.session != session);
    let Some(service) = system.service_mut() else { return };
    if service.current(host) == Some(session) {
        service.sessions.remove(&host);
    }
}
