//! A host: what its kernel, its runtime and its agent's disk have.

use crate::{
    agent::memory::Agent,
    names::{AttachmentId, BootId, CallId, HostTime, Key, Netns, Record, SessionId, Vf},
    wire::Wire,
};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its kernel's boot.
    pub boot_id: BootId,
    /// Its clock.
    pub clock: HostTime,
    /// Its kernel's view of its VFs.
    pub functions: Vec<Function>,
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

/// The agent's record of an attachment, or of a guess: which VF the DPU will answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentRecord {
    /// As the DPU answered it. Of a guess: for whom, and which VF.
    pub attachment: Record,
    /// The pod's namespace.
    pub netns: Netns,
    /// Kept or given back.
    pub phase: AgentPhase,
    /// It is forgotten, but the disk need not know: forgetting is written with the next record.
    pub is_forgotten: bool,
    /// Its VF is home and clean, and so the DPU is told. Of that the disk knows nothing.
    pub is_returned: bool,
}

impl AgentRecord {
    /// One that nobody was answered yet.
    #[must_use]
    pub fn attaching(attachment: Record, netns: Netns) -> Self {
        let phase = AgentPhase::Attaching;
        Self { attachment, netns, phase, is_forgotten: false, is_returned: false }
    }

    /// Whether it is of a guess: no attachment of the DPU's.
    #[must_use]
    pub fn is_guess(&self) -> bool {
        self.attachment.id.is_of_guess()
    }
}

impl Function {
    /// At home, with its own name and nothing of anybody's.
    pub const CLEAN: Self = Self { place: Place::Home, carries: None };
}

impl Host {
    /// The agent's record of a key.
    #[must_use]
    pub fn by_key(&self, key: Key) -> Option<&AgentRecord> {
        self.records().find(|record| record.attachment.key == key)
    }

    /// The agent's record of a guess for a key.
    #[must_use]
    pub fn guess(&self, key: Key) -> Option<&AgentRecord> {
        self.by_id(AttachmentId::of_guess(key))
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

    /// `vfs/records.rs::write`: durably, and with it all that was forgotten before.
    pub fn put(&mut self, record: AgentRecord) {
        self.disk
            .retain(|other| !other.is_forgotten && other.attachment.id != record.attachment.id);
        self.disk.push(record);
        self.disk.sort_unstable();
    }

    /// `vfs/records.rs::remove`: nobody waits for the disk.
    pub fn forget(&mut self, id: AttachmentId) {
        for record in self.disk.iter_mut().filter(|record| record.attachment.id == id) {
            (record.is_forgotten, record.is_returned) = (true, false);
        }
    }

    /// `vfs/homecoming.rs::note_returned`: in memory alone.
    pub fn note_returned(&mut self, id: AttachmentId) {
        for record in self.disk.iter_mut().filter(|record| record.attachment.id == id) {
            record.is_returned = true;
        }
    }
}
