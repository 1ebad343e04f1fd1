//! The whole state: one DPU, its hosts, and what is in flight between them.

use std::collections::BTreeMap;

use crate::{
    agent::memory::{Agent, LockRequest},
    host::{Container, Function, Host, Life, Place},
    names::{AttachmentId, CallId, HostId, Key, Netns, Record, Vf},
    service::memory::Service,
    wire::InFlight,
};

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct System {
    /// The DPU.
    pub dpu: Dpu,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The remaining calls and faults: of each host, where each has its own, and last of all together.
    pub budgets: Vec<Budget>,
    /// The attachments that operators have released.
    pub released: Vec<AttachmentId>,
    /// The attachments whose records agents have lost.
    pub lost: Vec<AttachmentId>,
}

/// The remaining calls and faults, so that the exploration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The calls of ADD.
    pub adds: u8,
    /// The faults.
    pub faults: u8,
}

/// The DPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dpu {
    /// The journal on the disk.
    pub journal: Vec<Record>,
    /// The programmed representors in the kernel.
    pub ports: BTreeMap<Vf, Port>,
    /// The process. `None`: it is not running.
    pub service: Option<Service>,
}

/// The attachment that a representor is programmed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The attachment's key.
    pub key: Key,
}

impl From<&Record> for Port {
    fn from(record: &Record) -> Self {
        Self { id: record.id, key: record.key }
    }
}

impl Dpu {
    /// The attachment that a VF's representor is programmed for.
    #[must_use]
    pub fn programmed(&self, vf: Vf) -> Option<AttachmentId> {
        self.ports.get(&vf).map(|port| port.id)
    }
}

impl System {
    /// The host of a key.
    #[must_use]
    pub fn host(&self, key: Key) -> &Host {
        &self.hosts[usize::from(key.host)]
    }

    /// The host of a key, mutable.
    pub fn host_mut(&mut self, key: Key) -> &mut Host {
        &mut self.hosts[usize::from(key.host)]
    }

    /// The container of a key.
    #[must_use]
    pub fn container(&self, key: Key) -> &Container {
        &self.host(key).containers[usize::from(key.container)]
    }

    /// The container of a key, mutable.
    pub fn container_mut(&mut self, key: Key) -> &mut Container {
        &mut self.host_mut(key).containers[usize::from(key.container)]
    }

    /// A VF on its host.
    #[must_use]
    pub fn function(&self, vf: Vf) -> &Function {
        &self.hosts[usize::from(vf.host)].functions[usize::from(vf.number)]
    }

    /// A VF on its host, mutable.
    pub fn function_mut(&mut self, vf: Vf) -> &mut Function {
        &mut self.hosts[usize::from(vf.host)].functions[usize::from(vf.number)]
    }

    /// Whether a caller waits for the answer to a call of ADD.
    #[must_use]
    pub fn is_awaited(&self, key: Key, call: CallId) -> bool {
        let container = self.container(key);
        (container.life, container.call) == (Life::Adding, call)
    }

    /// Whether a namespace is alive.
    #[must_use]
    pub fn is_alive(&self, netns: Netns) -> bool {
        let container = self.container(netns.key);
        container.has_netns && container.sandboxes == netns.sandbox
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        (0..).zip(&self.hosts).flat_map(|(host, of_host)| {
            (0..).zip(&of_host.containers).map(move |(container, _)| Key { host, container })
        })
    }

    /// All hosts.
    pub fn host_ids(&self) -> impl Iterator<Item = HostId> + use<> {
        0..u8::try_from(self.hosts.len()).unwrap_or(u8::MAX)
    }

    /// All VFs.
    pub fn vfs(&self) -> impl Iterator<Item = Vf> + use<> {
        let of_each = self.hosts.first().map_or(0, |host| host.functions.len());
        let of_each = u8::try_from(of_each).unwrap_or(u8::MAX);
        self.host_ids().flat_map(move |host| (0..of_each).map(move |number| Vf { host, number }))
    }

    /// The VFs of a host.
    pub fn vfs_of(&self, host: HostId) -> impl Iterator<Item = Vf> + use<> {
        self.vfs().filter(move |vf| vf.host == host)
    }

    /// The remaining calls and faults of a host, or of the DPU (`None`).
    #[must_use]
    pub fn budget(&self, host: Option<HostId>) -> Budget {
        self.budgets[self.payer(host)]
    }

    /// The remaining calls and faults, mutable.
    pub fn budget_mut(&mut self, host: Option<HostId>) -> &mut Budget {
        let payer = self.payer(host);
        &mut self.budgets[payer]
    }

    fn payer(&self, host: Option<HostId>) -> usize {
        let common = self.budgets.len() - 1;
        host.map_or(common, |host| usize::from(host).min(common))
    }

    /// The service, if it runs.
    pub fn service_mut(&mut self) -> Option<&mut Service> {
        self.dpu.service.as_mut()
    }

    /// The agent of a key's host, if it runs.
    pub fn agent_mut(&mut self, key: Key) -> Option<&mut Agent> {
        self.host_mut(key).agent.as_mut()
    }

    /// Queues a request for its key's lock.
    pub fn enqueue(&mut self, key: Key, request: LockRequest) {
        if let Some(agent) = self.agent_mut(key) {
            agent.waiting[usize::from(key.container)].push(request);
        }
    }

    /// The caller stops waiting for the answer to a key's call.
    pub fn abandon(&mut self, key: Key, in_flight: InFlight) {
        self.host_mut(key).wire.abandon(key, in_flight);
        if let Some(service) = self.service_mut() {
            for flow in service.flows.iter_mut().filter(|flow| flow.key == key) {
                flow.is_awaited = false;
            }
        }
    }

    /// A namespace ends. A VF in it is unreachable until the kernel has cleaned up.
    pub fn netns_dies(&mut self, key: Key) {
        let container = self.container_mut(key);
        container.has_netns = false;
        let netns = Netns { key, sandbox: container.sandboxes };
        for host in &mut self.hosts {
            for function in host.functions.iter_mut().filter(|f| f.place == Place::Pod(netns)) {
                function.place = Place::Nowhere;
            }
        }
    }
}

/// Writes an attachment to the journal.
pub fn put(journal: &mut Vec<Record>, record: Record) {
    journal.retain(|other| other.id != record.id);
    journal.push(record);
    journal.sort_unstable();
}
