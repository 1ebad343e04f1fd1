//! The faults and when they can happen.

mod effects;

use crate::{
    agent::{
        AgentSide, may_write_record,
        memory::{Step, Task},
    },
    bounds::Breakage,
    host::{Host, Life},
    names::{HostId, Key},
    service::{ServiceSide, memory::Service},
    system::System,
    wire::{InFlight, Request},
};

/// A [`Breakage`] as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An agent is killed. Removed records may return.
    AgentDies(HostId, InFlight, Forgotten),
    /// An agent is killed, and its records are lost.
    RecordsAreLost(HostId),
    /// The service is killed.
    ServiceDies,
    /// A host reboots.
    HostReboots(HostId, Forgotten),
    /// A host loses power, and with it its records.
    PowerFails(HostId),
    /// A host's connection breaks.
    ConnectionBreaks(HostId, InFlight),
    /// A call is abandoned at its deadline.
    CallTimesOut(Key, InFlight),
    /// A pod's namespace dies.
    NetnsDies(Key),
    /// The runtime abandons a call of ADD at its timeout.
    RuntimeGivesUp(Key),
    /// The caller of an ADD dies, and no call follows. An earlier answer stays valid.
    CallerDies(Key),
    /// An operator releases an attachment.
    OperatorReleases(Key),
    /// An operator changes the pools: offers named in calls in flight become invalid.
    PoolsChange(HostId),
}

/// What happens to removed records when the agent ends, since removals do not wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// The removal is on the disk.
    Gone,
    /// The removal is not on the disk.
    Back,
}

impl Fault {
    /// The host of the fault. `None`: the DPU.
    #[must_use]
    pub fn host(self) -> Option<HostId> {
        match self {
            Self::ServiceDies => None,
            Self::AgentDies(host, ..)
            | Self::RecordsAreLost(host)
            | Self::HostReboots(host, _)
            | Self::PowerFails(host)
            | Self::PoolsChange(host)
            | Self::ConnectionBreaks(host, _) => Some(host),
            Self::CallTimesOut(key, _)
            | Self::NetnsDies(key)
            | Self::RuntimeGivesUp(key)
            | Self::CallerDies(key)
            | Self::OperatorReleases(key) => Some(key.host),
        }
    }
}

/// The allowed faults, and their effects on agents and service.
#[derive(Clone, Copy, Debug)]
pub struct Faults<'a> {
    breakable: &'a [Breakage],
    agents: AgentSide<'a>,
    service: ServiceSide<'a>,
}

impl<'a> Faults<'a> {
    /// Faults of these kinds.
    #[must_use]
    pub fn new(breakable: &'a [Breakage], agents: AgentSide<'a>, service: ServiceSide<'a>) -> Self {
        Self { breakable, agents, service }
    }

    /// The possible faults.
    pub fn actions(&self, system: &System, add: &mut impl FnMut(Fault)) {
        let can = |host| system.budget(host).faults > 0;
        if can(None) && system.dpu.service.is_some() && self.can_break(Breakage::ServiceDies) {
            add(Fault::ServiceDies);
        }
        for (number, host) in (0..).zip(&system.hosts).filter(|(number, _)| can(Some(*number))) {
            self.host_faults(number, host, add);
        }
        for key in system.keys().filter(|key| can(Some(key.host))) {
            self.key_faults(system, key, add);
        }
    }

    fn can_break(&self, breakage: Breakage) -> bool {
        self.breakable.contains(&breakage)
    }

    fn host_faults(&self, number: HostId, host: &Host, add: &mut impl FnMut(Fault)) {
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
            add(Fault::RecordsAreLost(number));
        }
        if self.can_break(Breakage::PowerFails) && !host.disk.is_empty() {
            add(Fault::PowerFails(number));
        }
        if self.can_break(Breakage::PoolsChange) && host.wire.has_offer_named() {
            add(Fault::PoolsChange(number));
        }
        for &forgotten in forgotten {
            if self.can_break(Breakage::HostReboots) {
                add(Fault::HostReboots(number, forgotten));
            }
            for &in_flight in in_flight {
                if host.agent.is_some() && self.can_break(Breakage::AgentDies) {
                    add(Fault::AgentDies(number, in_flight, forgotten));
                }
            }
        }
        let is_connected = host.wire.streams.iter().any(|stream| stream.agent_listens);
        if is_connected && self.can_break(Breakage::ConnectionBreaks) {
            in_flight.iter().for_each(|&how| add(Fault::ConnectionBreaks(number, how)));
        }
    }

    fn key_faults(&self, system: &System, key: Key, add: &mut impl FnMut(Fault)) {
        let task = system.host(key).agent.as_ref().and_then(|agent| agent.task(key));
        if let Some(task) = task
            && self.can_break(Breakage::CallTimesOut)
        {
            time_outs(system, key, *task, add);
        }
        let container = system.container(key);
        if container.has_netns && self.can_break(Breakage::NetnsDies) {
            add(Fault::NetnsDies(key));
        }
        if container.life == Life::Adding && self.can_break(Breakage::RuntimeGivesUp) {
            add(Fault::RuntimeGivesUp(key));
        }
        if container.life == Life::Adding && self.can_break(Breakage::CallerDies) {
            add(Fault::CallerDies(key));
        }
        let is_held = |service: &Service| {
            service.by_key(key).is_some_and(|entry| entry.is_held() && !service.is_locked(key))
        };
        let can_release = system.dpu.service.as_ref().is_some_and(is_held);
        if can_release && self.can_break(Breakage::OperatorReleases) {
            add(Fault::OperatorReleases(key));
        }
    }
}

fn time_outs(system: &System, key: Key, task: Task, add: &mut impl FnMut(Fault)) {
    let is_asked = matches!(task.step, Step::AwaitAttach(..) | Step::AwaitDetach(..));
    if is_asked || matches!(task.step, Step::CallAttach(..) | Step::AskAgain(_)) {
        add(Fault::CallTimesOut(key, InFlight::Late));
    }
    if let Step::WriteRecord(_, attachment, _) = task.step
        && !may_write_record(system, key, attachment)
    {
        add(Fault::CallTimesOut(key, InFlight::Lost));
    }
    let is_under_way = |request: &Request| request.is_awaited && request.key == key;
    if is_asked && system.host(key).wire.requests.iter().any(is_under_way) {
        add(Fault::CallTimesOut(key, InFlight::Lost));
    }
}
