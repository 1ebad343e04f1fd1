//! The protocol as a model: within which bounds, with which protections, and all that can happen.

use std::fmt;

use clap::ValueEnum;

use crate::{
    agent::{Agent, AgentAction, Step, Wish},
    explorer::Model,
    properties,
    runtime::RuntimeAction,
    service::{Service, ServiceAction},
    system::{
        AgentPhase, BootId, Budget, Container, Dpu, Function, Host, HostTime, Key, Life, Netns,
        Place, SessionId, System, Vf,
    },
    wire::{Call, Detach, HostMessage, InFlight, Request, Wire},
};

/// The protocol, within bounds.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// How much of everything there is.
    pub bounds: Bounds,
    /// What is taken out of it.
    pub without: Vec<Protection>,
}

/// How much of everything there is.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Hosts.
    pub hosts: u8,
    /// VFs of each host.
    pub vfs: u8,
    /// Containers of each host, whose ids are used again.
    pub containers: u8,
    /// Addresses that all pods share.
    pub addresses: u8,
    /// Calls of ADD, over all hosts.
    pub adds: u8,
    /// Faults, over all hosts.
    pub faults: u8,
    /// What may break.
    pub breakable: Vec<Breakage>,
}

/// Something that breaks, or that somebody does without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Breakage {
    /// The agent is killed.
    AgentDies,
    /// The service is killed.
    ServiceDies,
    /// A host reboots, or loses power: its agent's records are not synced, so that they may be lost.
    HostReboots,
    /// A connection breaks.
    ConnectionBreaks,
    /// A call is given up while the session goes on.
    CallTimesOut,
    /// A pod's namespace dies before DEL.
    NetnsDies,
    /// The runtime gives an ADD up.
    RuntimeGivesUp,
    /// Whoever called ADD dies, and nobody calls again.
    CallerDies,
    /// An operator takes an attachment away.
    OperatorReleases,
    /// The agent is killed, and its records are lost.
    RecordsAreLost,
}

/// A part of the protocol that keeps something from happening. Each can be taken out, to see what it
/// is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protection {
    /// A Detach names the attachment that it means.
    AttachmentIdFence,
    /// An Attach of an earlier session is refused.
    SessionCheck,
    /// The agent's record is written before the VF is moved.
    RecordBeforeMove,
    /// The service's record is written before the answer.
    JournalBeforeAnswer,
    /// The representor is programmed before the answer.
    ProgramBeforeAnswer,
    /// A hello lists the attaches under way.
    PendingInHello,
    /// An inventory says nothing of a VF that came back later.
    AsOf,
    /// What is given back is freed only once its VF is home.
    FreedOnlyWhenHome,
    /// An inventory does not free the VF of an Attach under way.
    UnderWay,
    /// The host itself ends its calls by detaching.
    DetachEndsCalls,
    /// An inventory of an earlier session is refused.
    InventoryOfCurrentSession,
    /// What follows from a hello is carried out only while its session is in force.
    VerdictOfCurrentSession,
    /// An attachment that the host does not know is kept until its VF is home.
    UnclaimedKept,
    /// Attachments of an earlier boot are over.
    BootId,
    /// A VF that another record holds is not touched.
    OneRecordPerVf,
    /// An earlier record of the VF is finished first.
    EarlierHolderSettled,
    /// A record stays until the DPU was told.
    ReleasingUntilTold,
    /// A Detach that says that the VF is back offers it.
    ReturnOffers,
    /// What is to be known of a VF is learned while it is in use, too.
    KnownWhileInUse,
    /// An inventory says nothing of a VF that a later Detach has told to be away, either.
    AsOfAbsent,
    /// A host that has an attach under way is told that it was released, too.
    PendingIsToldOfRelease,
    /// A Detach of an earlier session is refused.
    DetachSessionCheck,
    /// A DEL without a record, whose Detach got no answer, is told again; and the inventory with it.
    UnrecordedIsToldAgain,
    /// Who gives up a call that was never answered does not claim that the VF is home.
    DisownClaimsNothing,
    /// A hello that a newer one has overtaken is refused.
    NewestHello,
    /// A caller is looked for before its ADD is done.
    CallerLookedFor,
    /// An ADD that nobody was answered is undone when the agent starts.
    UnansweredUndone,
    /// That an attachment is kept is recorded before the answer.
    KeptBeforeAnswer,
    /// What was answered stays, though the caller of a repeat has gone.
    AnsweredStays,
    /// An Attach that a later Detach of its key has overtaken reserves nothing.
    OvertakenReservesNothing,
    /// A Detach is served before an Attach of its key that was made later on the same connection. The
    /// service does not check that: calls begin in the order in which they come.
    DetachBeforeLaterAttach,
}

/// All that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The runtime does something.
    Runtime(RuntimeAction),
    /// An agent does something.
    Agent(AgentAction),
    /// The service does something.
    Service(ServiceAction),
    /// A host's kernel puts a VF back whose pod's namespace has died.
    KernelPutsBack(Vf),
    /// An agent is started.
    AgentStarts(u8),
    /// The service is started.
    ServiceStarts,
    /// An agent is killed. What it had forgotten comes up again, or not.
    AgentDies(u8, InFlight, Forgotten),
    /// An agent is killed, and its records are lost.
    RecordsAreLost(u8),
    /// The service is killed.
    ServiceDies,
    /// A host reboots.
    HostReboots(u8, Forgotten),
    /// A host loses power, and with it its records.
    PowerFails(u8),
    /// A host's connection breaks.
    ConnectionBreaks(u8, InFlight),
    /// A call is given up: its deadline has passed.
    CallTimesOut(Key, InFlight),
    /// A pod's namespace dies.
    NetnsDies(Key),
    /// An operator takes an attachment away from its pod.
    OperatorReleases(Key),
}

/// What becomes of records that were forgotten when the agent ends, for nobody waited for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// The disk has heard of it.
    Gone,
    /// The disk has not.
    Back,
}

impl Default for Bounds {
    /// One of everything, of which anything may break, and nothing does.
    fn default() -> Self {
        let breakable = Breakage::value_variants().to_vec();
        Self { hosts: 1, vfs: 1, containers: 1, addresses: 1, adds: 1, faults: 0, breakable }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, vfs, containers, addresses, adds, faults, .. } = self;
        write!(
            out,
            "{hosts} hosts, {vfs} VFs and {containers} containers each, {addresses} addresses, \
             {adds} ADDs, {faults} faults"
        )
    }
}

impl Protocol {
    /// Whether a protection is in place.
    #[must_use]
    pub fn has(&self, protection: Protection) -> bool {
        !self.without.contains(&protection)
    }

    fn can_break(&self, breakage: Breakage) -> bool {
        self.bounds.breakable.contains(&breakage)
    }

    /// Nobody waits for the answer to a key's call any more.
    pub fn abandon(&self, system: &mut System, key: Key, in_flight: InFlight) {
        system.host_mut(key).wire.abandon(key, in_flight);
        if let Some(service) = system.service_mut() {
            for flow in service.flows.iter_mut().filter(|flow| flow.key == key) {
                flow.is_awaited = false;
            }
        }
    }

    fn breakages(&self, system: &System, add: &mut impl FnMut(Action)) {
        if system.dpu.service.is_some() && self.can_break(Breakage::ServiceDies) {
            add(Action::ServiceDies);
        }
        for (number, host) in (0..).zip(&system.hosts) {
            self.host_breakages(number, host, add);
        }
        for key in system.keys() {
            self.key_breakages(system, key, add);
        }
    }

    fn host_breakages(&self, number: u8, host: &Host, add: &mut impl FnMut(Action)) {
        let has_forgotten = host.disk.iter().any(|record| record.is_forgotten);
        let forgotten: &[_] = match has_forgotten {
            true => &[Forgotten::Gone, Forgotten::Back],
            false => &[Forgotten::Gone],
        };
        let has_requests = host.wire.requests.iter().any(|request| request.is_awaited);
        let has_messages =
            host.wire.streams.iter().any(|stream| stream.agent_listens && !stream.up.is_empty());
        let in_flight: &[_] = match has_requests || has_messages {
            true => &[InFlight::Lost, InFlight::Late],
            false => &[InFlight::Lost],
        };
        if self.can_break(Breakage::RecordsAreLost) && !host.disk.is_empty() {
            add(Action::RecordsAreLost(number));
        }
        if self.can_break(Breakage::HostReboots) && !host.disk.is_empty() {
            add(Action::PowerFails(number));
        }
        for &forgotten in forgotten {
            if self.can_break(Breakage::HostReboots) {
                add(Action::HostReboots(number, forgotten));
            }
            for &in_flight in in_flight {
                if host.agent.is_some() && self.can_break(Breakage::AgentDies) {
                    add(Action::AgentDies(number, in_flight, forgotten));
                }
            }
        }
        let is_connected = host.wire.streams.iter().any(|stream| stream.agent_listens);
        if is_connected && self.can_break(Breakage::ConnectionBreaks) {
            in_flight.iter().for_each(|&how| add(Action::ConnectionBreaks(number, how)));
        }
    }

    fn key_breakages(&self, system: &System, key: Key, add: &mut impl FnMut(Action)) {
        let host = system.host(key);
        let task = host.agent.as_ref().and_then(|agent| agent.task(key));
        if let Some(task) = task
            && self.can_break(Breakage::CallTimesOut)
        {
            let is_asked = matches!(task.step, Step::AwaitAttach(..) | Step::AwaitDetach(..));
            if is_asked || matches!(task.step, Step::CallAttach(..)) {
                add(Action::CallTimesOut(key, InFlight::Late));
            }
            let is_under_way = |request: &Request| request.is_awaited && request.key == key;
            if is_asked && host.wire.requests.iter().any(is_under_way) {
                add(Action::CallTimesOut(key, InFlight::Lost));
            }
        }
        let container = system.container(key);
        if container.has_netns && self.can_break(Breakage::NetnsDies) {
            add(Action::NetnsDies(key));
        }
        if container.life == Life::Adding && self.can_break(Breakage::RuntimeGivesUp) {
            add(Action::Runtime(RuntimeAction::GivesUp(key)));
        }
        if container.life == Life::Adding && self.can_break(Breakage::CallerDies) {
            add(Action::Runtime(RuntimeAction::Dies(key)));
        }
        let service = system.dpu.service.as_ref();
        let is_held = |service: &Service| {
            service.by_key(key).is_some_and(|entry| entry.is_held() && !service.is_locked(key))
        };
        if service.is_some_and(is_held) && self.can_break(Breakage::OperatorReleases) {
            add(Action::OperatorReleases(key));
        }
    }

    fn call_times_out(&self, system: &mut System, key: Key, in_flight: InFlight) {
        self.abandon(system, key, in_flight);
        let Some(agent) = &system.host(key).agent else { return };
        match agent.task(key).map(|task| task.step) {
            Some(Step::CallAttach(..) | Step::AwaitAttach(..)) => self.disowns(system, key),
            Some(Step::AwaitDetach(..)) => self.detach_ends(system, key, false),
            _ => {}
        }
    }

    /// The agent's process ends, and what was under way with it.
    fn agent_dies(&self, system: &mut System, host: u8, in_flight: InFlight, forgotten: Forgotten) {
        let keys: Vec<_> = system.keys().filter(|key| key.host == host).collect();
        for key in &keys {
            self.abandon(system, *key, in_flight);
            // Kept, and not answered: this takes a DEL, and so a runtime.
            let is_kept = is_kept_unanswered(system, *key);
            let container = system.container_mut(*key);
            let is_calling = matches!(container.life, Life::Adding | Life::Deleting);
            if is_calling || is_kept && container.life == Life::Abandoned {
                (container.life, container.confirmed) = (Life::Failed, None);
            }
        }
        let host = &mut system.hosts[usize::from(host)];
        host.wire.hang_up(in_flight);
        host.agent = None;
        match forgotten {
            Forgotten::Gone => host.disk.retain(|record| !record.is_forgotten),
            Forgotten::Back => host.disk.iter_mut().for_each(|record| record.is_forgotten = false),
        }
    }

    /// Nothing of the old boot is left: no process, no namespace, no connection. The card makes its VFs
    /// anew, which the agent may be ahead of.
    fn host_reboots(&self, system: &mut System, host: u8, forgotten: Forgotten) {
        self.agent_dies(system, host, InFlight::Lost, forgotten);
        for vf in system.vfs().filter(|vf| system.host_of(*vf) == host).collect::<Vec<_>>() {
            *system.function_mut(vf) = Function { place: Place::Nowhere, carries: None };
        }
        let host = &mut system.hosts[usize::from(host)];
        host.boot_id.0 += 1;
        host.clock = HostTime::default();
        host.wire.requests.clear();
        for container in &mut host.containers {
            (container.life, container.has_netns) = (Life::Absent, false);
            container.confirmed = None;
        }
    }

    /// `keep`: records of an earlier boot, and those of ADDs that nobody was answered, are being given
    /// back before anybody is served.
    fn agent_starts(&self, system: &mut System, host: u8) {
        let host = &mut system.hosts[usize::from(host)];
        let boot_id = host.boot_id;
        for record in &mut host.disk {
            let is_over = record.attachment.boot_id != boot_id;
            record.phase = match record.phase {
                _ if is_over => AgentPhase::Releasing,
                AgentPhase::Attaching if self.has(Protection::UnansweredUndone) => {
                    AgentPhase::Releasing
                }
                AgentPhase::Attaching => AgentPhase::Live,
                phase => phase,
            };
        }
        host.disk.sort_unstable();
        host.agent = Some(Agent::new(host.containers.len()));
    }

    /// A host's connection breaks; its agent sees it.
    fn connection_breaks(&self, system: &mut System, host: u8, in_flight: InFlight) {
        for key in system.keys().filter(|key| key.host == host).collect::<Vec<_>>() {
            self.call_fails(system, key, in_flight);
        }
        let host = &mut system.hosts[usize::from(host)];
        host.wire.hang_up(in_flight);
        if let Some(agent) = &mut host.agent {
            agent.standing = crate::agent::Standing::Down;
        }
    }

    /// The service's process ends, and with it all connections.
    fn service_dies(&self, system: &mut System) {
        system.dpu.service = None;
        for host in 0..self.bounds.hosts {
            self.connection_breaks(system, host, InFlight::Lost);
            let host = &mut system.hosts[usize::from(host)];
            host.wire = Wire::default();
        }
    }

    /// What an operator takes away, the host is told to give back.
    fn operator_releases(&self, system: &mut System, key: Key) {
        let Some(service) = system.service_mut() else { return };
        let Some(id) = service.by_key(key).map(|entry| entry.record.id) else { return };
        self.gives_back(service, (key, id), false, None);
        if let Some(flow) = service.flows.iter_mut().find(|flow| flow.key == key) {
            flow.tells_host = true;
        }
        system.released.push(id);
        system.released.sort_unstable();
    }
}

impl Model for Protocol {
    type State = System;
    type Action = Action;

    fn initial(&self) -> System {
        let Bounds { hosts, vfs, containers, adds, faults, .. } = self.bounds;
        let all_vfs = usize::from(hosts * vfs);
        let container = Container {
            life: Life::Absent,
            sandboxes: 0,
            has_netns: false,
            call: 0,
            confirmed: None,
        };
        let host = Host {
            boot_id: BootId::default(),
            clock: HostTime::default(),
            containers: vec![container; containers.into()],
            disk: Vec::new(),
            agent: Some(Agent::new(containers.into())),
            wire: Wire::default(),
            latest_session: SessionId::default(),
            latest_attachment: 0,
        };
        let service = Service::restore(&[], hosts.into(), all_vfs);
        System {
            dpu: Dpu { journal: Vec::new(), ports: vec![None; all_vfs], service: Some(service) },
            hosts: vec![host; hosts.into()],
            functions: vec![Function { place: Place::Home, carries: None }; all_vfs],
            released: Vec::new(),
            lost: Vec::new(),
            budget: Budget { adds, faults },
        }
    }

    fn actions(&self, system: &System, actions: &mut Vec<Action>) {
        let mut add = |action| actions.push(action);
        for vf in system.vfs().filter(|vf| system.function(*vf).place == Place::Nowhere) {
            add(Action::KernelPutsBack(vf));
        }
        if system.dpu.service.is_none() {
            add(Action::ServiceStarts);
        }
        for (number, host) in (0..).zip(&system.hosts) {
            if host.agent.is_none() {
                add(Action::AgentStarts(number));
            }
            self.agent_actions(system, number, &mut |action| add(Action::Agent(action)));
        }
        self.service_actions(system, &mut |action| add(Action::Service(action)));
        system.runtime_actions(&mut |action| add(Action::Runtime(action)));
        if system.budget.faults > 0 {
            self.breakages(system, &mut add);
        }
    }

    fn next(&self, system: &System, action: Action) -> System {
        let mut next = system.clone();
        if is_fault(action) {
            next.budget.faults -= 1;
        }
        match action {
            Action::Runtime(action) => next.runtime_does(action),
            Action::Agent(action) => self.agent_does(&mut next, action),
            Action::Service(action) => self.service_does(&mut next, action),
            Action::KernelPutsBack(vf) => next.function_mut(vf).place = Place::Home,
            Action::AgentStarts(host) => self.agent_starts(&mut next, host),
            Action::ServiceStarts => {
                let Dpu { journal, ports, service } = &mut next.dpu;
                *service = Some(Service::restore(journal, next.hosts.len(), ports.len()));
            }
            Action::AgentDies(host, in_flight, forgotten) => {
                self.agent_dies(&mut next, host, in_flight, forgotten);
            }
            Action::ServiceDies => self.service_dies(&mut next),
            Action::RecordsAreLost(host) => {
                self.agent_dies(&mut next, host, InFlight::Lost, Forgotten::Gone);
                let lost = std::mem::take(&mut next.hosts[usize::from(host)].disk);
                next.lost.extend(lost.iter().map(|record| record.attachment.id));
                next.lost.sort_unstable();
            }
            Action::HostReboots(host, forgotten) => self.host_reboots(&mut next, host, forgotten),
            Action::PowerFails(host) => {
                self.host_reboots(&mut next, host, Forgotten::Gone);
                next.hosts[usize::from(host)].disk.clear();
            }
            Action::ConnectionBreaks(host, in_flight) => {
                self.connection_breaks(&mut next, host, in_flight);
            }
            Action::CallTimesOut(key, in_flight) => self.call_times_out(&mut next, key, in_flight),
            Action::NetnsDies(key) => next.netns_dies(key),
            Action::OperatorReleases(key) => self.operator_releases(&mut next, key),
        }
        next.tidy();
        next
    }

    fn is_progress(&self, action: Action) -> bool {
        match action {
            Action::Runtime(action) => action.is_owed(),
            _ => !is_fault(action),
        }
    }

    fn broken_invariant(&self, system: &System) -> Option<&'static str> {
        properties::broken(system)
    }

    fn is_settled(&self, system: &System) -> bool {
        properties::is_settled(system)
    }
}

fn is_fault(action: Action) -> bool {
    match action {
        Action::Runtime(action) => {
            matches!(action, RuntimeAction::GivesUp(_) | RuntimeAction::Dies(_))
        }
        Action::AgentDies(..)
        | Action::RecordsAreLost(_)
        | Action::ServiceDies
        | Action::HostReboots(..)
        | Action::PowerFails(_)
        | Action::ConnectionBreaks(..)
        | Action::CallTimesOut(..)
        | Action::NetnsDies(_)
        | Action::OperatorReleases(_) => true,
        Action::Agent(_)
        | Action::Service(_)
        | Action::KernelPutsBack(_)
        | Action::AgentStarts(_)
        | Action::ServiceStarts => false,
    }
}

impl System {
    /// A namespace ends. A VF in it is nowhere until the kernel has cleaned up.
    pub fn netns_dies(&mut self, key: Key) {
        let container = self.container_mut(key);
        container.has_netns = false;
        let netns = Netns { key, sandbox: container.sandboxes };
        for function in self.functions.iter_mut().filter(|f| f.place == Place::Pod(netns)) {
            function.place = Place::Nowhere;
        }
    }

    /// Renumbers what only its order matters of, so that fewer states differ: the times of each host
    /// that somebody may still compare, and the calls of containers of which none is under way.
    fn tidy(&mut self) {
        for key in self.keys().collect::<Vec<_>>() {
            let host = self.host(key);
            let number = usize::from(key.container);
            let is_served = host
                .agent
                .as_ref()
                .is_some_and(|agent| agent.calls[number] > 0 || agent.is_repeated(key));
            if !is_served && host.containers[number].life != Life::Adding {
                self.container_mut(key).call = 0;
            }
        }
        for host in 0..self.hosts.len() {
            self.tidy_times(host);
        }
    }

    fn tidy_times(&mut self, host: usize) {
        let own_vfs: Vec<_> =
            self.vfs().filter(|vf| usize::from(self.host_of(*vf)) == host).collect();
        self.forget_told(host, &own_vfs);
        self.forget_overtaken(host);
        let mut times = Vec::new();
        self.each_time(host, &own_vfs, &mut |time| times.push(*time));
        times.sort_unstable();
        times.dedup();
        let rank = |time: &mut HostTime| {
            let rank = times.binary_search(time).unwrap_or_else(|place| place);
            *time = HostTime(u8::try_from(rank).unwrap_or(u8::MAX));
        };
        self.each_time(host, &own_vfs, &mut |time| rank(time));
        let latest = times.len().saturating_sub(1);
        self.hosts[host].clock = HostTime(u8::try_from(latest).unwrap_or(u8::MAX));
    }

    /// What a Detach told makes no difference once no older inventory is under way.
    fn forget_told(&mut self, host: usize, vfs: &[Vf]) {
        let boot_id = self.hosts[host].boot_id;
        let streams = self.hosts[host].wire.streams.iter();
        let under_way = streams.flat_map(|stream| &stream.up).filter_map(|message| match message {
            HostMessage::Hello(hello) => Some(hello.inventory.as_of),
            HostMessage::Inventory(inventory) => Some(inventory.as_of),
            HostMessage::Attached(_) => None,
        });
        let oldest = under_way.min().unwrap_or(self.hosts[host].clock);
        let Some(service) = &mut self.dpu.service else { return };
        for vf in vfs {
            let told = &mut service.told[usize::from(vf.0)];
            *told = told.filter(|(boot, at)| *boot == boot_id && *at > oldest);
        }
    }

    /// That a key was given back makes no difference once no older Attach is under way.
    fn forget_overtaken(&mut self, host: usize) {
        let Host { boot_id, wire, .. } = &self.hosts[host];
        let is_asked_before = |key: Key, until: HostTime| {
            wire.requests.iter().any(|request| match request.call {
                Call::Attach { key: of, as_of, .. } => of == key && as_of <= until,
                Call::Detach(_) => false,
            })
        };
        let Some(service) = &mut self.dpu.service else { return };
        service.overtaken.retain(|(key, boot, until)| {
            usize::from(key.host) != host || boot == boot_id && is_asked_before(*key, *until)
        });
    }

    /// All times on a host's clock.
    fn each_time(&mut self, host: usize, vfs: &[Vf], visit: &mut impl FnMut(&mut HostTime)) {
        let Host { agent, wire, .. } = &mut self.hosts[host];
        if let Some(agent) = agent {
            agent.undelivered.iter_mut().for_each(|detach| visit(&mut detach.as_of));
            for task in agent.tasks.iter_mut().flatten() {
                if let Step::CallDetach(_, detach) | Step::AwaitDetach(_, detach, _) =
                    &mut task.step
                {
                    visit(&mut detach.as_of);
                }
            }
        }
        for request in &mut wire.requests {
            match &mut request.call {
                Call::Attach { as_of, .. } | Call::Detach(Detach { as_of, .. }) => visit(as_of),
            }
        }
        for message in wire.streams.iter_mut().flat_map(|stream| &mut stream.up) {
            match message {
                HostMessage::Hello(hello) => visit(&mut hello.inventory.as_of),
                HostMessage::Inventory(inventory) => visit(&mut inventory.as_of),
                HostMessage::Attached(_) => {}
            }
        }
        let Some(service) = &mut self.dpu.service else { return };
        for (key, _, until) in &mut service.overtaken {
            if usize::from(key.host) == host {
                visit(until);
            }
        }
        for vf in vfs {
            if let Some((_, at)) = &mut service.told[usize::from(vf.0)] {
                visit(at);
            }
        }
    }
}

/// Whether an ADD of the key is between its record and its answer.
fn is_kept_unanswered(system: &System, key: Key) -> bool {
    let agent = system.host(key).agent.as_ref();
    let step = agent.and_then(|agent| agent.task(key)).map(|task| task.step);
    matches!(step, Some(Step::Answer(..)))
}

/// Puts a wish into the queue for its key's lock.
pub fn wish(system: &mut System, key: Key, wish: Wish) {
    if let Some(agent) = system.agent_mut(key) {
        agent.waiting[usize::from(key.container)].push(wish);
    }
}
