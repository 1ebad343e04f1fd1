//! The protocol as a model: its bounds, its protections, and all actions.

use crate::{
    agent::{AgentAction, AgentSide, memory::Agent},
    bounds::Bounds,
    explorer::Model,
    faults::{Fault, Faults},
    host::{Container, Function, Host, Life, Place},
    names::{BootId, HostId, HostTime, SessionId, Vf},
    parts, properties,
    protection::{Protection, Protections},
    runtime::RuntimeAction,
    service::{ServiceAction, ServiceSide, memory::Service},
    system::{Budget, Dpu, System},
    wire::Wire,
};

/// The protocol, within bounds.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The bounds.
    pub bounds: Bounds,
    /// The removed protections.
    pub without: Vec<Protection>,
}

/// All actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A runtime acts.
    Runtime(RuntimeAction),
    /// An agent acts.
    Agent(AgentAction),
    /// The service acts.
    Service(ServiceAction),
    /// A host's kernel puts back a VF whose pod's namespace has died.
    KernelPutsBack(Vf),
    /// An agent is started.
    AgentStarts(HostId),
    /// The service is started.
    ServiceStarts,
    /// A fault happens.
    Breaks(Fault),
}

impl Action {
    /// The host at which the action happens, or that it concerns. `None`: the service starts or ends.
    #[must_use]
    pub fn host(self) -> Option<HostId> {
        match self {
            Self::Runtime(action) => Some(action.key().host),
            Self::Agent(action) => Some(action.host()),
            Self::Service(action) => Some(action.host()),
            Self::KernelPutsBack(vf) => Some(vf.host),
            Self::AgentStarts(host) => Some(host),
            Self::ServiceStarts => None,
            Self::Breaks(fault) => fault.host(),
        }
    }
}

impl Protocol {
    fn agents(&self) -> AgentSide<'_> {
        AgentSide::new(Protections::without(&self.without))
    }

    fn service(&self) -> ServiceSide<'_> {
        let Bounds { addresses, offers, .. } = self.bounds;
        ServiceSide::new(Protections::without(&self.without), addresses, offers)
    }

    fn faults(&self) -> Faults<'_> {
        Faults::new(&self.bounds.breakable, self.agents(), self.service())
    }

    fn first_host(&self) -> Host {
        let Bounds { vfs, containers, .. } = self.bounds;
        let container = Container {
            life: Life::Absent,
            sandboxes: 0,
            has_netns: false,
            call: 0,
            confirmed: None,
        };
        Host {
            boot_id: BootId::default(),
            clock: HostTime::default(),
            functions: vec![Function::CLEAN; vfs.into()],
            containers: vec![container; containers.into()],
            disk: Vec::new(),
            agent: Some(Agent::new(containers.into())),
            wire: Wire::default(),
            latest_session: SessionId::default(),
            latest_attachment: 0,
        }
    }
}

impl Model for Protocol {
    type State = System;
    type Action = Action;

    fn initial(&self) -> System {
        let Bounds { hosts, adds, faults, each, .. } = self.bounds;
        let service = Some(Service::restore(&[]));
        let budgets = if each { usize::from(hosts) + 1 } else { 1 };
        System {
            dpu: Dpu { service, ..Dpu::default() },
            hosts: vec![self.first_host(); hosts.into()],
            released: Vec::new(),
            lost: Vec::new(),
            budgets: vec![Budget { adds, faults }; budgets],
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
            self.agents().actions(system, number, &mut |action| add(Action::Agent(action)));
        }
        self.service().actions(system, &mut |action| add(Action::Service(action)));
        system.runtime_actions(&mut |action| add(Action::Runtime(action)));
        self.faults().actions(system, &mut |fault| add(Action::Breaks(fault)));
    }

    fn next(&self, system: &System, action: Action) -> System {
        let mut next = system.clone();
        match action {
            Action::Runtime(action) => next.runtime_does(action),
            Action::Agent(action) => self.agents().does(&mut next, action),
            Action::Service(action) => self.service().does(&mut next, action),
            Action::KernelPutsBack(vf) => next.function_mut(vf).place = Place::Home,
            Action::AgentStarts(host) => self.agents().starts(&mut next, host),
            Action::ServiceStarts => {
                next.dpu.service = Some(Service::restore(&next.dpu.journal));
                self.service().clears_unused(&mut next);
            }
            Action::Breaks(fault) => {
                next.budget_mut(fault.host()).faults -= 1;
                self.faults().breaks(&mut next, fault);
            }
        }
        next.tidy();
        next
    }

    fn is_progress(&self, action: Action) -> bool {
        match action {
            Action::Runtime(action) => action.is_owed(),
            _ => !matches!(action, Action::Breaks(_)),
        }
    }

    fn fingerprint(&self, system: &System) -> u64 {
        parts::fingerprint(system)
    }

    fn broken_invariant(&self, system: &System) -> Option<&'static str> {
        properties::broken(system)
    }

    fn broken_by_step(
        &self,
        before: &System,
        action: Action,
        after: &System,
    ) -> Option<&'static str> {
        properties::broken_by_step(before, action.host(), after)
    }

    fn is_settled(&self, system: &System) -> bool {
        properties::is_settled(system)
    }
}
