//! All there is: one DPU, its hosts, and what is under way between them. The names are those of the
//! programs.

use crate::{agent::Agent, service::Service, wire::Wire};

/// A host of the DPU's.
pub type HostId = u8;

/// An attachment key: a container of a host. Runtimes may use a container's id again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The host.
    pub host: HostId,
    /// Its container.
    pub container: u8,
}

/// A virtual function, numbered over all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vf(pub u8);

/// A pod's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u8);

/// An attachment's id, never used again. Numbered by host: which of two hosts came first makes no
/// difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId {
    /// The host.
    pub host: HostId,
    /// Counted from 1.
    pub number: u8,
}

/// A session, as the host numbers its connections. 0: none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u8);

/// The boot of a host's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub u8);

/// A time on a host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostTime(pub u8);

/// A network namespace of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Netns {
    /// The container.
    pub key: Key,
    /// Which of its sandboxes, counted from 1.
    pub sandbox: u8,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct System {
    /// The DPU.
    pub dpu: Dpu,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The kernels' view of all VFs on their hosts.
    pub functions: Vec<Function>,
    /// What may still happen.
    pub budget: Budget,
    /// What operators have taken away.
    pub released: Vec<AttachmentId>,
    /// What agents have lost their records of.
    pub lost: Vec<AttachmentId>,
}

/// What may still happen, so that the exploration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Calls of ADD.
    pub adds: u8,
    /// Things that break.
    pub faults: u8,
}

/// A VF on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Where it is.
    pub place: Place,
    /// Whose name and addresses it carries. `None`: its own, it is clean.
    pub carries: Option<AttachmentId>,
}

/// Where a VF is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In its host's namespace.
    Home,
    /// In a pod's.
    Pod(Netns),
    /// Its pod's namespace has died, and the kernel has not put it back yet.
    Nowhere,
}

/// The DPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dpu {
    /// On its disk.
    pub journal: Vec<Record>,
    /// In its kernel: for whom the VFs' representors are programmed.
    pub ports: Vec<Option<AttachmentId>>,
    /// The process. `None`: it is dead.
    pub service: Option<Service>,
}

/// Whether an attachment is held or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// It is in use.
    Held,
    /// It is being given back.
    Releasing,
}

/// An attachment, as the DPU records and answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// Its id.
    pub id: AttachmentId,
    /// For whom.
    pub key: Key,
    /// Its VF.
    pub vf: Vf,
    /// Its address.
    pub address: Address,
    /// The boot of its host in which it was made.
    pub boot_id: BootId,
    /// Whether it is kept.
    pub phase: Phase,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its kernel's boot.
    pub boot_id: BootId,
    /// Its clock.
    pub clock: HostTime,
    /// What its runtime knows of its containers.
    pub containers: Vec<Container>,
    /// The agent's records, on disk.
    pub disk: Vec<AgentRecord>,
    /// The agent's process. `None`: it is dead.
    pub agent: Option<Agent>,
    /// What is under way to the DPU and back.
    pub wire: Wire,
    /// The latest session.
    pub latest_session: SessionId,
    /// The latest attachment's number.
    pub latest_attachment: u8,
}

/// A container, as the runtime sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// Where its life is.
    pub life: Life,
    /// How many sandboxes it has had.
    pub sandboxes: u8,
    /// Whether the namespace of its latest sandbox is alive.
    pub has_netns: bool,
    /// Its latest call of ADD, counted from 1.
    pub call: CallId,
    /// What an earlier ADD has succeeded with, while another is under way.
    pub confirmed: Option<AttachmentId>,
}

/// A call of ADD, among those of one container.
pub type CallId = u8;

/// Where a container is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// There is none.
    Absent,
    /// ADD is under way.
    Adding,
    /// ADD has succeeded with this attachment.
    Attached(AttachmentId),
    /// ADD or DEL has failed, so that DEL is owed.
    Failed,
    /// Whoever called ADD has died unanswered, and nobody calls again.
    Abandoned,
    /// DEL is under way.
    Deleting,
}

/// Whether the agent keeps an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentPhase {
    /// An ADD is at work on it that nobody was answered.
    Attaching,
    /// The VF belongs into the pod.
    Live,
    /// The VF belongs home, and the DPU is to be told.
    Releasing,
}

/// The agent's record of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentRecord {
    /// As the DPU answered it.
    pub attachment: Record,
    /// The pod's namespace.
    pub netns: Netns,
    /// Kept or given back.
    pub phase: AgentPhase,
    /// It is forgotten, but the disk need not know: forgetting is written with the next record.
    pub is_forgotten: bool,
}

impl System {
    /// The host of a key.
    #[must_use]
    pub fn host(&self, key: Key) -> &Host {
        &self.hosts[usize::from(key.host)]
    }

    /// Likewise.
    pub fn host_mut(&mut self, key: Key) -> &mut Host {
        &mut self.hosts[usize::from(key.host)]
    }

    /// The container of a key.
    #[must_use]
    pub fn container(&self, key: Key) -> &Container {
        &self.host(key).containers[usize::from(key.container)]
    }

    /// Likewise.
    pub fn container_mut(&mut self, key: Key) -> &mut Container {
        &mut self.host_mut(key).containers[usize::from(key.container)]
    }

    /// A VF on its host.
    #[must_use]
    pub fn function(&self, vf: Vf) -> &Function {
        &self.functions[usize::from(vf.0)]
    }

    /// Likewise.
    pub fn function_mut(&mut self, vf: Vf) -> &mut Function {
        &mut self.functions[usize::from(vf.0)]
    }

    /// Whether somebody waits for the answer to a call of ADD.
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

    /// All VFs.
    pub fn vfs(&self) -> impl Iterator<Item = Vf> + use<> {
        (0..u8::try_from(self.functions.len()).unwrap_or(u8::MAX)).map(Vf)
    }

    /// The host that a VF belongs to.
    #[must_use]
    pub fn host_of(&self, vf: Vf) -> HostId {
        let of_each = self.functions.len() / self.hosts.len();
        u8::try_from(usize::from(vf.0) / of_each).unwrap_or(u8::MAX)
    }

    /// The service, where it runs.
    pub fn service_mut(&mut self) -> Option<&mut Service> {
        self.dpu.service.as_mut()
    }

    /// The agent of a key's host, where it runs.
    pub fn agent_mut(&mut self, key: Key) -> Option<&mut Agent> {
        self.host_mut(key).agent.as_mut()
    }
}

impl Host {
    /// The agent's record of a key.
    #[must_use]
    pub fn by_key(&self, key: Key) -> Option<&AgentRecord> {
        self.records().find(|record| record.attachment.key == key)
    }

    /// The agent's record of an attachment.
    #[must_use]
    pub fn by_id(&self, id: AttachmentId) -> Option<&AgentRecord> {
        self.records().find(|record| record.attachment.id == id)
    }

    /// The agent's record that holds a VF.
    #[must_use]
    pub fn by_vf(&self, vf: Vf) -> Option<&AgentRecord> {
        self.records().find(|record| record.attachment.vf == vf)
    }

    /// The time, which goes on whenever it is told to the DPU in a call.
    pub fn tick(&mut self) -> HostTime {
        self.clock.0 += 1;
        self.clock
    }

    /// The agent's records.
    pub fn records(&self) -> impl Iterator<Item = &AgentRecord> {
        self.disk.iter().filter(|record| !record.is_forgotten)
    }

    /// `Records::put`: durably, and with it all that was forgotten before.
    pub fn put(&mut self, record: AgentRecord) {
        self.disk
            .retain(|other| !other.is_forgotten && other.attachment.id != record.attachment.id);
        self.disk.push(record);
        self.disk.sort_unstable();
    }

    /// `Records::remove`: nobody waits for the disk.
    pub fn forget(&mut self, id: AttachmentId) {
        for record in &mut self.disk {
            record.is_forgotten |= record.attachment.id == id;
        }
    }
}
