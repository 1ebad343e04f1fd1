//! The service on the DPU: dpu-service/src/attachments and sessions.rs.

use crate::{
    protocol::{Protection, Protocol},
    system::{
        Address, AttachmentId, BootId, HostId, HostTime, Key, Phase, Record, SessionId, System, Vf,
    },
    wire::{Answer, Call, Detach, DpuMessage, Hello, HostMessage, Inventory, Request, VfCondition},
};

/// What the service has in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// The attachments.
    pub entries: Vec<Entry>,
    /// The VFs whose facts their hosts have told since the service started.
    pub known: Vec<bool>,
    /// The VFs that their hosts offer.
    pub offered: Vec<bool>,
    /// VFs in quarantine, because their host holds them for nobody that the journal knows.
    pub unaccounted: Vec<bool>,
    /// As of when the latest Detach of each VF spoke.
    pub told: Vec<Option<(BootId, HostTime)>>,
    /// The sessions in force, by host.
    pub sessions: Vec<Option<(SessionId, BootId)>>,
    /// The newest hello of each host. A hello tells its time; here its session does.
    pub newest: Vec<SessionId>,
    /// The flows under way: each holds the lock of its key.
    pub flows: Vec<Flow>,
    /// What follows from the hosts' words, and waits for the key's lock.
    pub verdicts: Vec<Verdict>,
    /// The sessions whose hello is being evaluated.
    pub greeting: Vec<(HostId, SessionId)>,
}

/// An attachment in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// As the journal is to have it.
    pub record: Record,
    /// Whether the journal has it.
    pub durable: bool,
    /// The host said that the pod has the VF.
    pub attached: bool,
    /// It said so at some time.
    pub was_attached: bool,
    /// The session of its latest Attach.
    pub session: Option<SessionId>,
    /// Being given back, and the VF is back and clean.
    pub returned: bool,
    /// The host's hello did not know it, nor had the host its VF back.
    pub unclaimed: bool,
}

/// A flow that changes an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The attachment's key.
    pub key: Key,
    /// The attachment.
    pub id: AttachmentId,
    /// The next step.
    pub step: FlowStep,
    /// Somebody waits for the answer.
    pub is_awaited: bool,
    /// The session whose words it follows from.
    pub follows: Option<SessionId>,
    /// The host is to be told at the end.
    pub tells_host: bool,
}

/// A step of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowStep {
    /// Write the record.
    Commit,
    /// Program the representor, and answer.
    Program,
    /// Unprogram it.
    Unprogram {
        /// The VF is back and clean.
        returned: bool,
    },
    /// Delete the record or, where the VF is not back, write that it is being given back.
    Free {
        /// The VF is back and clean.
        returned: bool,
    },
}

/// `Verdict::Release`: an attachment is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Verdict {
    /// The host that said so.
    pub host: HostId,
    /// In this session.
    pub session: SessionId,
    /// The attachment.
    pub id: AttachmentId,
    /// Its VF is back.
    pub returned: bool,
    /// The host keeps a record of it.
    pub tells_host: bool,
}

/// What the service can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// `Engine::admit`, or `Engine::detach` up to `set_releasing`: a call gets its key's lock.
    TakesUp(Key, SessionId),
    /// `Engine::record`.
    Commits(Key),
    /// `Engine::bring_up`.
    Programs(Key),
    /// `Engine::unprogram`.
    Unprograms(Key),
    /// `Engine::free`.
    Frees(Key),
    /// `Engine::hello`, `inventory`, `host_attached`: the next message of a session.
    Reads(HostId, SessionId),
    /// `Engine::carry_out`: a verdict gets the key's lock.
    CarriesOut(HostId, AttachmentId),
    /// `Conversation::hold`: all that the hello's words settle is settled.
    Welcomes(HostId, SessionId),
    /// `Attachments::goodbye`.
    NoticesEnd(HostId, SessionId),
    /// `Engine::mend`.
    Mends(Vf),
    /// `Engine::clear_orphan`.
    ClearsOrphan(Vf),
    /// `Engine::finish_returned`.
    FinishesReturned(Key),
}

impl Service {
    /// A process that has just been started, on this journal.
    #[must_use]
    pub fn restore(journal: &[Record], hosts: usize, vfs: usize) -> Self {
        let entry = |record: &Record| Entry::new(*record, None, true);
        Self {
            entries: journal.iter().map(entry).collect(),
            known: vec![false; vfs],
            offered: vec![false; vfs],
            unaccounted: vec![false; vfs],
            told: vec![None; vfs],
            sessions: vec![None; hosts],
            newest: vec![SessionId::default(); hosts],
            flows: Vec::new(),
            verdicts: Vec::new(),
            greeting: Vec::new(),
        }
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

    /// The attachment of an id.
    #[must_use]
    pub fn get(&self, id: AttachmentId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.record.id == id)
    }

    fn get_mut(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.record.id == id)
    }

    /// Whether a flow holds the key's lock.
    #[must_use]
    pub fn is_locked(&self, key: Key) -> bool {
        self.flows.iter().any(|flow| flow.key == key)
    }

    /// Whether a flow works at a VF.
    fn is_worked_at(&self, vf: Vf) -> bool {
        let of_flow = |flow: &Flow| self.get(flow.id).is_some_and(|entry| entry.record.vf == vf);
        self.flows.iter().any(of_flow)
    }

    /// The session in force.
    fn current(&self, host: HostId) -> Option<SessionId> {
        self.sessions[usize::from(host)].map(|(session, _)| session)
    }

    fn begin(&mut self, flow: Flow) {
        self.flows.push(flow);
        self.flows.sort_unstable();
    }

    fn flow(&self, key: Key) -> Option<Flow> {
        self.flows.iter().copied().find(|flow| flow.key == key)
    }

    fn go_on(&mut self, key: Key, step: FlowStep) {
        if let Some(flow) = self.flows.iter_mut().find(|flow| flow.key == key) {
            flow.step = step;
        }
    }

    fn insert(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.entries.sort_unstable();
    }

    /// `Registry::set_releasing`, and whether the VF is back.
    fn set_releasing(&mut self, id: AttachmentId, returned: bool) -> bool {
        let Some(entry) = self.get_mut(id) else { return false };
        entry.returned |= returned;
        entry.attached = false;
        entry.unclaimed = false;
        entry.record.phase = Phase::Releasing;
        entry.returned
    }

    /// `Allocator::reserve`: the first free VF.
    fn free_vf(&self, host: HostId, system: &System) -> Option<Vf> {
        system.vfs().find(|vf| {
            let number = usize::from(vf.0);
            system.host_of(*vf) == host
                && self.offered[number]
                && !self.unaccounted[number]
                && self.by_vf(*vf).is_none()
        })
    }

    /// `Pool::allocate`: the first free address. None rests, which is the hardest case.
    fn free_address(&self, addresses: u8) -> Option<Address> {
        let is_held = |address| self.entries.iter().any(|entry| entry.record.address == address);
        (0..addresses).map(Address).find(|address| !is_held(*address))
    }

    /// `Registry::returned_after`.
    fn returned_after(&self, vf: Vf, boot_id: BootId, as_of: HostTime) -> bool {
        self.told[usize::from(vf.0)].is_some_and(|(boot, at)| boot == boot_id && at > as_of)
    }
}

impl Entry {
    fn new(record: Record, session: Option<SessionId>, durable: bool) -> Self {
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

    /// Whether the host may still be about to move the VF, in an Attach of this very session.
    fn is_under_way(&self, session: SessionId) -> bool {
        self.session == Some(session) && !self.was_attached
    }
}

impl Protocol {
    /// What the service can do next.
    pub fn service_actions(&self, system: &System, add: &mut impl FnMut(ServiceAction)) {
        let Some(service) = &system.dpu.service else { return };
        for (host, of_host) in (0..).zip(&system.hosts) {
            for (number, request) in of_host.wire.requests.iter().enumerate() {
                if !service.is_locked(request.key) && !of_host.wire.has_earlier(number) {
                    add(ServiceAction::TakesUp(request.key, request.connection));
                }
            }
            for stream in &of_host.wire.streams {
                let session = stream.session;
                if service.greeting.contains(&(host, session)) {
                    continue;
                }
                if !stream.up.is_empty() {
                    add(ServiceAction::Reads(host, session));
                } else if !stream.agent_listens {
                    add(ServiceAction::NoticesEnd(host, session));
                }
            }
        }
        for flow in &service.flows {
            add(match flow.step {
                FlowStep::Commit => ServiceAction::Commits(flow.key),
                FlowStep::Program => ServiceAction::Programs(flow.key),
                FlowStep::Unprogram { .. } => ServiceAction::Unprograms(flow.key),
                FlowStep::Free { .. } => ServiceAction::Frees(flow.key),
            });
        }
        for verdict in &service.verdicts {
            let key = service.get(verdict.id).map(|entry| entry.record.key);
            if key.is_none_or(|key| !service.is_locked(key)) {
                add(ServiceAction::CarriesOut(verdict.host, verdict.id));
            }
        }
        for &(host, session) in &service.greeting {
            let is_of_it = |flow: &Flow| flow.key.host == host && flow.follows == Some(session);
            let waits = |verdict: &Verdict| (verdict.host, verdict.session) == (host, session);
            if !service.flows.iter().any(is_of_it) && !service.verdicts.iter().any(waits) {
                add(ServiceAction::Welcomes(host, session));
            }
        }
        reconciler_actions(system, service, add);
    }

    /// Does what the service can do.
    pub fn service_does(&self, system: &mut System, action: ServiceAction) {
        match action {
            ServiceAction::TakesUp(key, connection) => {
                self.takes_up(system, key, connection);
            }
            ServiceAction::Commits(key) => self.commits(system, key),
            ServiceAction::Programs(key) => self.programs(system, key),
            ServiceAction::Unprograms(key) => unprograms(system, key),
            ServiceAction::Frees(key) => self.frees(system, key),
            ServiceAction::Reads(host, session) => self.reads(system, host, session),
            ServiceAction::CarriesOut(host, id) => self.carries_out(system, host, id),
            ServiceAction::Welcomes(host, session) => welcomes(system, host, session),
            ServiceAction::NoticesEnd(host, session) => notices_end(system, host, session),
            ServiceAction::Mends(vf) => {
                let id = system.dpu.service.as_ref().and_then(|service| service.by_vf(vf));
                system.dpu.ports[usize::from(vf.0)] = id.map(|entry| entry.record.id);
            }
            ServiceAction::ClearsOrphan(vf) => system.dpu.ports[usize::from(vf.0)] = None,
            ServiceAction::FinishesReturned(key) => {
                let Some(service) = system.service_mut() else { return };
                let Some(id) = service.by_key(key).map(|entry| entry.record.id) else { return };
                self.gives_back(service, (key, id), true, None);
            }
        }
    }

    fn takes_up(&self, system: &mut System, key: Key, connection: SessionId) {
        let requests = &mut system.host_mut(key).wire.requests;
        let is_it = |request: &Request| (request.key, request.connection) == (key, connection);
        let Some(place) = requests.iter().position(is_it) else { return };
        let request = requests.remove(place);
        match request.call {
            Call::Attach { key, session } => self.admits(system, key, session, request.is_awaited),
            Call::Detach(detach) => self.detaches(system, detach, connection, request.is_awaited),
        }
    }

    /// `Engine::admit`.
    fn admits(&self, system: &mut System, key: Key, session: SessionId, is_awaited: bool) {
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

    fn commits(&self, system: &mut System, key: Key) {
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

    fn programs(&self, system: &mut System, key: Key) {
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

    /// `Engine::detach`, up to `set_releasing`.
    fn detaches(&self, system: &mut System, detach: Detach, session: SessionId, is_awaited: bool) {
        let Detach { key, id, returned, as_of } = detach;
        let Some(service) = system.dpu.service.as_mut() else { return };
        let is_stale = service.current(key.host) != Some(session);
        if is_stale && self.has(Protection::DetachSessionCheck) {
            if is_awaited {
                system.host_mut(key).wire.answer(key, Answer::Stale);
            }
            return;
        }
        let is_meant = |record: &Record| {
            id.is_none_or(|id| id == record.id) || !self.has(Protection::AttachmentIdFence)
        };
        let record = service.by_key(key).map(|entry| entry.record).filter(is_meant);
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
        let number = usize::from(record.vf.0);
        if returned || self.has(Protection::AsOfAbsent) {
            service.told[number] = Some((record.boot_id, as_of));
        }
        self.gives_back(service, (key, record.id), returned, None);
        if let Some(flow) = service.flows.iter_mut().find(|flow| flow.key == key) {
            flow.is_awaited = is_awaited;
        }
    }

    /// `Engine::give_back`.
    pub fn gives_back(
        &self,
        service: &mut Service,
        (key, id): (Key, AttachmentId),
        returned: bool,
        follows: Option<SessionId>,
    ) {
        let is_home = service.set_releasing(id, returned);
        let returned = is_home || !self.has(Protection::FreedOnlyWhenHome);
        let step = FlowStep::Unprogram { returned };
        service.begin(Flow { key, id, step, is_awaited: false, follows, tells_host: false });
    }

    /// `Engine::free`. `Allocator::release` offers the VF again.
    fn frees(&self, system: &mut System, key: Key) {
        let Some(service) = system.dpu.service.as_mut() else { return };
        let Some(flow) = service.flow(key) else { return };
        let Some(entry) = service.get(flow.id).copied() else { return };
        service.flows.retain(|flow| flow.key != key);
        match flow.step {
            FlowStep::Free { returned: true } => {
                let number = usize::from(entry.record.vf.0);
                let is_offered = service.known[number] && self.has(Protection::ReturnOffers);
                service.offered[number] |= is_offered;
                service.entries.retain(|entry| entry.record.id != flow.id);
                system.dpu.journal.retain(|record| record.id != flow.id);
            }
            _ => put(&mut system.dpu.journal, entry.record),
        }
        if flow.is_awaited {
            system.host_mut(key).wire.answer(key, Answer::Detached);
        }
        if flow.tells_host {
            tell_release(system, key, flow.id);
        }
    }

    fn carries_out(&self, system: &mut System, host: HostId, id: AttachmentId) {
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
        if let Some(flow) = service.flows.iter_mut().find(|flow| flow.key == key) {
            flow.tells_host = verdict.tells_host;
        }
    }

    fn reads(&self, system: &mut System, host: HostId, session: SessionId) {
        let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session) else { return };
        match stream.up.remove(0) {
            HostMessage::Hello(hello) => self.evaluates(system, host, session, &hello),
            HostMessage::Inventory(inventory) => self.takes_note(system, host, session, &inventory),
            HostMessage::Attached(id) => host_attached(system, host, session, id),
        }
    }

    /// `Engine::hello`.
    fn evaluates(&self, system: &mut System, host: HostId, session: SessionId, hello: &Hello) {
        let Some(service) = system.service_mut() else { return };
        let newest = &mut service.newest[usize::from(host)];
        if session < *newest && self.has(Protection::NewestHello) {
            return ends(system, host, session);
        }
        *newest = session;
        opens(system, host, session, hello.boot_id);
        let Some(service) = system.service_mut() else { return };
        let conditions = self.take_inventory(service, hello.boot_id, &hello.inventory);
        quarantine_unaccounted(service, hello, &conditions);
        service.greeting.push((host, session));
        service.greeting.sort_unstable();
        let own: Vec<_> =
            service.entries.iter().filter(|e| e.record.key.host == host).copied().collect();
        for entry in own {
            self.judges(system, (host, session), hello, &conditions, entry);
        }
    }

    /// `Engine::judge`, `note_unclaimed` and the verdicts that need no lock.
    fn judges(
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
                hello.pending.contains(&key) && self.has(Protection::PendingIsToldOfRelease);
            match live.is_some() || is_pending {
                true => tell_release(system, key, id),
                false => is_over = returned,
            }
        } else {
            match live {
                Some(true) => host_attached(system, host, session, id),
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
            let tells_host = live.is_some();
            service.verdicts.push(Verdict { host, session, id, returned, tells_host });
            service.verdicts.sort_unstable();
        }
    }

    /// `Engine::inventory`.
    fn takes_note(&self, system: &mut System, host: HostId, session: SessionId, said: &Inventory) {
        let Some(service) = system.service_mut() else { return };
        let boot_id = match service.sessions[usize::from(host)] {
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
            service.set_releasing(id, true);
            let verdict = Verdict { host, session, id, returned: true, tells_host: false };
            service.verdicts.push(verdict);
        }
        service.verdicts.sort_unstable();
    }

    /// `Engine::take_inventory`: what is told of a VF that has come back since says nothing.
    fn take_inventory(
        &self,
        service: &mut Service,
        boot_id: BootId,
        inventory: &Inventory,
    ) -> Vec<(Vf, VfCondition)> {
        let is_outdated = |(vf, _): &&(Vf, VfCondition)| {
            service.returned_after(*vf, boot_id, inventory.as_of) && self.has(Protection::AsOf)
        };
        let (_, valid): (Vec<_>, Vec<_>) = inventory.conditions.iter().partition(is_outdated);
        for (vf, condition) in &valid {
            let number = usize::from(vf.0);
            service.known[number] |= match condition {
                VfCondition::Clean => true,
                VfCondition::InUse => self.has(Protection::KnownWhileInUse),
                VfCondition::Missing => false,
            };
            service.offered[number] = *condition == VfCondition::Clean;
            service.unaccounted[number] &= *condition != VfCondition::Clean;
        }
        valid
    }
}

fn reconciler_actions(system: &System, service: &Service, add: &mut impl FnMut(ServiceAction)) {
    for vf in system.vfs().filter(|vf| !service.is_worked_at(*vf)) {
        let port = system.dpu.ports[usize::from(vf.0)];
        match service.by_vf(vf).filter(|entry| entry.is_held()) {
            Some(entry) if entry.durable && port != Some(entry.record.id) => {
                add(ServiceAction::Mends(vf));
            }
            None if port.is_some() => add(ServiceAction::ClearsOrphan(vf)),
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

fn attach_flow(record: Record, step: FlowStep, is_awaited: bool) -> Flow {
    let Record { id, key, .. } = record;
    Flow { key, id, step, is_awaited, follows: None, tells_host: false }
}

fn put(journal: &mut Vec<Record>, record: Record) {
    journal.retain(|other| other.id != record.id);
    journal.push(record);
    journal.sort_unstable();
}

fn unprograms(system: &mut System, key: Key) {
    let Some(service) = system.dpu.service.as_mut() else { return };
    let Some(flow) = service.flow(key) else { return };
    let FlowStep::Unprogram { returned } = flow.step else { return };
    let Some(entry) = service.get(flow.id).copied() else { return };
    system.dpu.ports[usize::from(entry.record.vf.0)] = None;
    service.go_on(key, FlowStep::Free { returned });
}

/// `Sessions::open`: ends the session that the host has.
fn opens(system: &mut System, host: HostId, session: SessionId, boot_id: BootId) {
    let streams = &mut system.hosts[usize::from(host)].wire.streams;
    for stream in streams.iter_mut().filter(|stream| stream.session != session) {
        // One whose hello was not read yet is not a session yet.
        if !matches!(stream.up.first(), Some(HostMessage::Hello(_))) {
            stream.is_ended = true;
            stream.up.clear();
        }
    }
    if let Some(service) = system.service_mut() {
        service.sessions[usize::from(host)] = Some((session, boot_id));
    }
}

/// The service ends the stream of a session.
fn ends(system: &mut System, host: HostId, session: SessionId) {
    if let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session) {
        stream.is_ended = true;
        stream.up.clear();
    }
}

fn quarantine_unaccounted(service: &mut Service, hello: &Hello, conditions: &[(Vf, VfCondition)]) {
    if hello.live.iter().all(|(id, _)| service.get(*id).is_some()) {
        return;
    }
    for (vf, condition) in conditions {
        if *condition == VfCondition::InUse && service.by_vf(*vf).is_none() {
            service.unaccounted[usize::from(vf.0)] = true;
        }
    }
}

fn host_attached(system: &mut System, host: HostId, session: SessionId, id: AttachmentId) {
    let Some(service) = system.service_mut() else { return };
    if service.current(host) != Some(session) {
        return;
    }
    let Some(entry) = service.get_mut(id).filter(|entry| entry.is_held()) else { return };
    (entry.unclaimed, entry.attached, entry.was_attached) = (false, true, true);
}

/// `Engine::tell_release`.
pub fn tell_release(system: &mut System, key: Key, id: AttachmentId) {
    let Some(service) = &system.dpu.service else { return };
    let Some(session) = service.current(key.host) else { return };
    if let Some(stream) = system.host_mut(key).wire.stream_mut(session)
        && stream.agent_listens
    {
        stream.down.push(DpuMessage::Release(key, id));
    }
}

/// The welcome comes before all else that the host was to be told meanwhile.
fn welcomes(system: &mut System, host: HostId, session: SessionId) {
    let Some(service) = system.service_mut() else { return };
    service.greeting.retain(|greeted| *greeted != (host, session));
    if let Some(stream) = system.hosts[usize::from(host)].wire.stream_mut(session)
        && stream.agent_listens
    {
        stream.down.insert(0, DpuMessage::Welcome);
    }
}

fn notices_end(system: &mut System, host: HostId, session: SessionId) {
    system.hosts[usize::from(host)].wire.streams.retain(|stream| stream.session != session);
    let Some(service) = system.service_mut() else { return };
    if service.current(host) == Some(session) {
        service.sessions[usize::from(host)] = None;
    }
}
