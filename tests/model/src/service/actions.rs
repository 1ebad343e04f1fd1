//! The actions of the service. In the program: dpu-service/src.

use super::{
    attach::Asked,
    memory::{Entry, Flow, Service, Verdict, Work},
    session::{notices_end, replies_to_hello},
    side::ServiceSide,
};
use crate::{
    names::{AttachmentId, HostId, Key, SessionId, Vf},
    protection::Protection,
    system::{Dpu, Port, System},
    wire::{Call, Request, Wire},
};

/// An action of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// `attachments/attach.rs::admit`, or `attachments/detach.rs::detach_now` up to
    /// `attachments/detach.rs::mark_releasing`: a call gets its key's lock.
    TakesUp(Request),
    /// `attachments/attach.rs::write`.
    Commits(Key),
    /// `attachments/ports.rs::program`, or `attachments/ports.rs::program_rest` for a repeated call.
    Programs(Key),
    /// `attachments/engine.rs::unprogram`.
    Unprograms(Key),
    /// The commit of `attachments/detach.rs::unprogram_and_write`.
    CommitsRelease(Key),
    /// `attachments/hello.rs::hello`, `attachments/hello.rs::inventory` or
    /// `attachments/hello.rs::attached`: the next message of a session.
    Reads(HostId, SessionId),
    /// `attachments/hello.rs::end`: a verdict gets the key's lock.
    CarriesOut(HostId, AttachmentId),
    /// `api/session.rs::serve`: everything that follows from the hello is done.
    RepliesToHello(HostId, SessionId),
    /// `api/session.rs::send_offers`.
    Offers(HostId, SessionId),
    /// `attachments/hosts.rs::goodbye`.
    NoticesEnd(HostId, SessionId),
    /// `attachments/reconcile.rs::repair`.
    Repairs(Vf),
    /// `attachments/reconcile.rs::clear_if_unused`.
    ClearsUnused(Vf),
    /// `attachments/reconcile.rs::finish_returned`.
    FinishesReturned(Key),
}

impl ServiceAction {
    /// The host of the message or attachment.
    #[must_use]
    pub fn host(self) -> HostId {
        match self {
            Self::TakesUp(Request { key, .. })
            | Self::Commits(key)
            | Self::Programs(key)
            | Self::Unprograms(key)
            | Self::CommitsRelease(key)
            | Self::FinishesReturned(key) => key.host,
            Self::Reads(host, _)
            | Self::CarriesOut(host, _)
            | Self::RepliesToHello(host, _)
            | Self::Offers(host, _)
            | Self::NoticesEnd(host, _) => host,
            Self::Repairs(vf) | Self::ClearsUnused(vf) => vf.host,
        }
    }
}

impl ServiceSide<'_> {
    /// The possible actions of the service.
    pub fn actions(&self, system: &System, add: &mut impl FnMut(ServiceAction)) {
        let Some(service) = &system.dpu.service else { return };
        for (host, of_host) in (0..).zip(&system.hosts) {
            self.calls(service, &of_host.wire, add);
            messages(service, host, &of_host.wire, add);
            if let Some(session) = self.has_offers(system, host) {
                add(ServiceAction::Offers(host, session));
            }
        }
        service.flows.iter().for_each(|flow| steps(*flow, add));
        verdicts(service, add);
        reconciler_actions(system, service, add);
    }

    fn calls(&self, service: &Service, wire: &Wire, add: &mut impl FnMut(ServiceAction)) {
        for request in &wire.requests {
            let waits =
                wire.waits_behind_detach(request) && self.has(Protection::DetachBeforeLaterAttach);
            if !waits && !service.is_locked(request.key) {
                add(ServiceAction::TakesUp(*request));
            }
        }
    }

    /// Carries out an action.
    pub fn does(&self, system: &mut System, action: ServiceAction) {
        match action {
            ServiceAction::TakesUp(request) => self.takes_up(system, request),
            ServiceAction::Commits(key) => self.commits(system, key),
            ServiceAction::Programs(key) => self.programs(system, key),
            ServiceAction::Unprograms(key) => self.unprograms(system, key),
            ServiceAction::CommitsRelease(key) => self.commits_release(system, key),
            ServiceAction::Reads(host, session) => self.reads(system, host, session),
            ServiceAction::CarriesOut(host, id) => self.carries_out(system, host, id),
            ServiceAction::RepliesToHello(host, session) => replies_to_hello(system, host, session),
            ServiceAction::Offers(host, session) => self.offers(system, host, session),
            ServiceAction::NoticesEnd(host, session) => notices_end(system, host, session),
            ServiceAction::Repairs(vf) => {
                let Dpu { ports, service, .. } = &mut system.dpu;
                let entry = service.as_ref().and_then(|service| service.by_vf(vf));
                ports.extend(entry.map(|entry| (vf, Port::from(&entry.record))));
            }
            ServiceAction::ClearsUnused(vf) => {
                system.dpu.ports.remove(&vf);
            }
            ServiceAction::FinishesReturned(key) => {
                let Some(service) = system.service_mut() else { return };
                let Some(id) = service.by_key(key).map(|entry| entry.record.id) else { return };
                self.gives_back(service, (key, id), true, None);
            }
        }
    }

    /// `attachments/reconcile.rs::reconcile`, before any call is served.
    pub fn clears_unused(&self, system: &mut System) {
        if !self.has(Protection::ClearedBeforeServing) {
            return;
        }
        let Dpu { ports, service: Some(service), .. } = &mut system.dpu else { return };
        let serves = |port: &Port| service.get(port.id).is_some_and(Entry::is_held);
        ports.retain(|_, port| serves(port));
    }

    fn takes_up(&self, system: &mut System, request: Request) {
        let Request { key, connection, call, is_awaited } = request;
        let requests = &mut system.host_mut(key).wire.requests;
        let Some(place) = requests.iter().position(|other| *other == request) else { return };
        requests.remove(place);
        match call {
            Call::Attach { session, as_of, offered, .. } => {
                self.admits(system, key, Asked { session, as_of, offered }, is_awaited);
            }
            Call::Detach(detach) => self.detaches(system, detach, connection, is_awaited),
        }
    }
}

fn messages(service: &Service, host: HostId, wire: &Wire, add: &mut impl FnMut(ServiceAction)) {
    // The service reads nothing of a session while it evaluates its hello.
    let streams = wire.streams.iter();
    for stream in streams.filter(|stream| !service.is_evaluating(host, stream.session)) {
        if !stream.up.is_empty() {
            add(ServiceAction::Reads(host, stream.session));
        } else if !stream.agent_listens {
            add(ServiceAction::NoticesEnd(host, stream.session));
        }
    }
}

/// Disk and kernel work in parallel.
fn steps(flow: Flow, add: &mut impl FnMut(ServiceAction)) {
    let Flow { key, work, .. } = flow;
    let (disk, kernel) = match work {
        Work::Establish { recorded, programmed } => {
            ((recorded, ServiceAction::Commits(key)), (programmed, ServiceAction::Programs(key)))
        }
        Work::GiveBack { recorded, unprogrammed, .. } => (
            (recorded, ServiceAction::CommitsRelease(key)),
            (unprogrammed, ServiceAction::Unprograms(key)),
        ),
    };
    let open = [disk, kernel].into_iter().filter(|(is_done, _)| !is_done);
    open.for_each(|(_, action)| add(action));
}

fn verdicts(service: &Service, add: &mut impl FnMut(ServiceAction)) {
    for verdict in &service.verdicts {
        let key = service.get(verdict.id).map(|entry| entry.record.key);
        if key.is_none_or(|key| !service.is_locked(key)) {
            add(ServiceAction::CarriesOut(verdict.host, verdict.id));
        }
    }
    for &(host, session) in &service.evaluating {
        let is_of_it = |flow: &Flow| flow.key.host == host && flow.follows == Some(session);
        let waits = |verdict: &Verdict| (verdict.host, verdict.session) == (host, session);
        if !service.flows.iter().any(is_of_it) && !service.verdicts.iter().any(waits) {
            add(ServiceAction::RepliesToHello(host, session));
        }
    }
}

/// The work of `attachments/reconcile.rs::repair`, which compares the journal with the kernel.
fn reconciler_actions(system: &System, service: &Service, add: &mut impl FnMut(ServiceAction)) {
    for vf in system.vfs().filter(|vf| !service.is_worked_at(*vf)) {
        let port = system.dpu.programmed(vf);
        match service.by_vf(vf).filter(|entry| entry.is_held()) {
            Some(entry) if entry.durable && port != Some(entry.record.id) => {
                add(ServiceAction::Repairs(vf));
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
