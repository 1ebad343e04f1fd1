//! What hosts, agents and service call things: the names are those of the programs.
//!
//! A hash of what names a host leaves the host out, so that two hosts with the same things under the
//! same numbers have the same hash: see [`crate::parts`].

use std::hash::{Hash, Hasher};

/// A host of the DPU's.
pub type HostId = u8;

/// An attachment key: a container of a host. Runtimes may use a container's id again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The host.
    pub host: HostId,
    /// Its container.
    pub container: u8,
}

/// A virtual function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vf {
    /// The host.
    pub host: HostId,
    /// Counted from 0.
    pub number: u8,
}

/// That a VF is given to nobody but who names it with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Promise {
    /// The VF.
    pub vf: Vf,
    /// Higher than those of all promises of the VF before. 0 is of none.
    pub number: u8,
}

/// A pod's address, in the layer-2 domain of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u8);

/// An attachment's id, never used again. Numbered by host: which of two hosts came first makes no
/// difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// A call of ADD, among those of one container.
pub type CallId = u8;

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

impl AttachmentId {
    /// The provisional id under which the agent records its guess for a key: the DPU knows of none such.
    #[must_use]
    pub fn of_guess(key: Key) -> Self {
        Self { host: key.host, number: u8::MAX - key.container }
    }

    /// Whether it is one of those.
    #[must_use]
    pub fn is_of_guess(self) -> bool {
        self.number > u8::MAX / 2
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.container.hash(hasher);
    }
}

impl Hash for Vf {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.number.hash(hasher);
    }
}

impl Hash for AttachmentId {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.number.hash(hasher);
    }
}
