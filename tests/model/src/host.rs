//! A host: its kernel, its runtime and its agent's disk.

use crate::{
    agent::memory::Agent,
    names::{AttachmentId, BootId, CallId, HostTime, Key, Netns, Record, SessionId, Vf},
    wire::Wire,
};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// The kernel's boot.
    pub boot_id: BootId,
    /// The host's clock.
    pub clock: HostTime,
    /// The host's VFs.
    pub functions: Vec<Function>,
    /// The runtime's containers.
    pub containers: Vec<Container>,
    /// The agent's records, on disk.
    pub disk: Vec<AgentRecord>,
    /// The agent's process. `None`: it is not running.
    pub agent: Option<Agent>,
    /// Calls and messages in flight.
    pub wire: Wire,
    /// The number of the latest session.
    pub latest_session: SessionId,
    /// The number of the latest attachment.
    pub latest_attachment: u8,
}

/// A VF on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Where it is.
    pub place: Place,
    /// The attachment whose name and addresses it has. `None`: it is clean.
    pub carries: Option<AttachmentId>,
}

/// Where a VF is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In its host's namespace.
    Home,
    /// In a pod's namespace.
    Pod(Netns),
    /// Its pod's namespace has died, and the kernel has not put it back yet.
    Nowhere,
}

/// A container, from the runtime's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// The state of its life.
    pub life: Life,
    /// The number of sandboxes so far.
    pub sandboxes: u8,
    /// Whether the namespace of its latest sandbox is alive.
    pub has_netns: bool,
    /// The latest call of ADD, counted from 1.
    pub call: CallId,
    /// The result of an earlier ADD while another one is in progress.
    pub confirmed: Option<AttachmentId>,
}

/// The state of a container's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// There is none.
    Absent,
    /// ADD is in progress.
    Adding,
    /// ADD has succeeded with this attachment.
    Attached(AttachmentId),
    /// ADD or DEL has failed, so that DEL is owed.
    Failed,
    /// The caller of ADD died without an answer, and no call will follow.
    Abandoned,
    /// DEL is in progress.
    Deleting,
}

/// The phase of the agent's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentPhase {
    /// An ADD that was not answered works on it.
    Attaching,
    /// The VF belongs in the pod.
    Live,
    /// The VF belongs in the host's namespace, and the DPU has to be informed.
    Releasing,
}

/// The agent's record of an attachment, or of a speculative move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentRecord {
    /// The DPU's answer. For a speculative move: the key and the VF.
    pub attachment: Record,
    /// The pod's namespace.
    pub netns: Netns,
    /// The phase.
    pub phase: AgentPhase,
    /// The record is removed, but the disk may not know: a removal is written with the next record.
    pub is_forgotten: bool,
    /// The VF is home and clean, and the DPU is informed of that. Not on the disk.
    pub is_returned: bool,
}

impl AgentRecord {
    /// A record of an ADD that was not answered.
    #[must_use]
    pub fn attaching(attachment: Record, netns: Netns) -> Self {
        let phase = AgentPhase::Attaching;
        Self { attachment, netns, phase, is_forgotten: false, is_returned: false }
    }

    /// Whether it is of a speculative move, which is no attachment of the DPU's.
    #[must_use]
    pub fn is_speculative(&self) -> bool {
        self.attachment.id.is_speculative_id()
    }
}

impl Function {
    /// At home, without an attachment's name and addresses.
    pub const CLEAN: Self = Self { place: Place::Home, carries: None };
}

impl Host {
    /// The agent's record of a key.
    #[must_use]
    pub fn by_key(&self, key: Key) -> Option<&AgentRecord> {
        self.records().find(|record| record.attachment.key == key)
    }

    /// The agent's record of a key's speculative move.
    #[must_use]
    pub fn speculative(&self, key: Key) -> Option<&AgentRecord> {
        self.by_id(AttachmentId::speculative_id(key))
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

    /// Returns the time after advancing it, because a call to the DPU carries a new time.
    pub fn tick(&mut self) -> HostTime {
        self.clock.0 += 1;
        self.clock
    }

    /// The agent's records.
    pub fn records(&self) -> impl Iterator<Item = &AgentRecord> {
        self.disk.iter().filter(|record| !record.is_forgotten)
    }

    /// `vfs/records.rs::write`: durable, together with all earlier removals.
    pub fn put(&mut self, record: AgentRecord) {
        self.disk
            .retain(|other| !other.is_forgotten && other.attachment.id != record.attachment.id);
        self.disk.push(record);
        self.disk.sort_unstable();
    }

    /// `vfs/records.rs::remove`: does not wait for the disk.
    pub fn forget(&mut self, id: AttachmentId) {
        for record in self.disk.iter_mut().filter(|record| record.attachment.id == id) {
            (record.is_forgotten, record.is_returned) = (true, false);
        }
    }

    /// `vfs/homecoming.rs::note_returned`: in memory only.
    pub fn note_returned(&mut self, id: AttachmentId) {
        for record in self.disk.iter_mut().filter(|record| record.attachment.id == id) {
            record.is_returned = true;
        }
    }
}
