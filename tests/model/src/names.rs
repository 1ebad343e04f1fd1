//! The names of things on hosts, in agents and in the service, as in the programs.
//!
//! Hashes of these names leave the host out, so that two hosts with the same numbers have the same hash: see
//! [`crate::parts`].

use std::hash::{Hash, Hasher};

/// A host of the DPU.
pub type HostId = u8;

/// An attachment key: a container of a host. Runtimes may reuse a container's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The host.
    pub host: HostId,
    /// The container.
    pub container: u8,
}

/// A virtual function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vf {
    /// The host.
    pub host: HostId,
    /// The number, from 0.
    pub number: u8,
}

/// An offer: only a request with this number gets the VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offer {
    /// The VF.
    pub vf: Vf,
    /// Higher than the numbers of all earlier offers of the VF. 0: no offer.
    pub number: u8,
}

/// A pod's address, in the layer-2 domain of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u8);

/// An attachment's id, never reused. Numbered per host: the order between two hosts makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachmentId {
    /// The host.
    pub host: HostId,
    /// The number, from 1.
    pub number: u8,
}

/// A session by the host's number of its connection. 0: none yet.
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
    /// The number of the container's sandbox, from 1.
    pub sandbox: u8,
}

/// A call of ADD of one container.
pub type CallId = u8;

/// Whether an attachment is held or being released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// In use.
    Held,
    /// Being released.
    Releasing,
}

/// An attachment as the DPU records and answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// Its id.
    pub id: AttachmentId,
    /// Its key.
    pub key: Key,
    /// Its VF.
    pub vf: Vf,
    /// Its address.
    pub address: Address,
    /// The boot of its host when it was made.
    pub boot_id: BootId,
    /// Its phase.
    pub phase: Phase,
}

impl AttachmentId {
    /// The provisional id of a key's speculative move. The DPU does not know such ids.
    #[must_use]
    pub fn speculative_id(key: Key) -> Self {
        Self { host: key.host, number: u8::MAX - key.container }
    }

    /// Whether it is a provisional id.
    #[must_use]
    pub fn is_speculative_id(self) -> bool {
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
