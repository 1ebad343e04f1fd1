//! What hosts report over their sessions.

pub(crate) mod examination;

use std::{fmt, str::FromStr};

use mtls::ConnectionNumber;
use uuid::Uuid;
use vf_alloc::{Device, PfId};

pub use examination::{Examination, ExaminedVf, Holdings, HostRecord};

use model::{AttachmentId, AttachmentKey};

/// Id of a session. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(Uuid);

impl SessionId {
    pub(crate) fn new() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, out)
    }
}

impl FromStr for SessionId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

/// The first message of a session.
#[derive(Clone, Debug)]
pub struct Hello {
    pub connection: ConnectionNumber,
    pub agent_version: String,
    pub boot_id: String,
    /// Capabilities that both the agent and this service support.
    pub capabilities: Vec<&'static str>,
    pub inventory: Inventory,
    /// Attachments of which the agent has records.
    pub live: Vec<LiveAttachment>,
    /// Keys of calls under way that the agent will repeat in this session.
    pub pending: Vec<AttachmentKey>,
    /// The earlier session that continues on this new connection.
    pub renewed: Option<SessionId>,
}

/// An attachment of which the host has a record.
#[derive(Clone, Debug)]
pub struct LiveAttachment {
    pub id: AttachmentId,
    pub in_pod: bool,
}

/// Nanoseconds since the host booted, by its clock. 0: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostTime(pub u64);

/// When a host sent an Attach.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub session: SessionId,
    pub as_of: HostTime,
}

/// All PFs and VFs of a host.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// When the host began to collect it. Changes after that may be missing.
    pub as_of: HostTime,
    pub pfs: Vec<PhysicalFunction>,
}

#[derive(Clone, Debug)]
pub struct PhysicalFunction {
    pub id: PfId,
    pub vendor_id: u16,
    pub device_id: u16,
    pub vfs: Vec<VirtualFunction>,
}

/// A VF as its host reports it.
#[derive(Clone, Debug)]
pub struct VirtualFunction {
    /// Number within the PF.
    pub number: u16,
    pub device: Device,
    pub condition: VfCondition,
}

/// Condition of a VF on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VfCondition {
    /// No record holds it and it matches its baseline, or it is a device that no program has open.
    Clean,
    /// A record of the agent holds it.
    InUse,
    /// The host or another program on it uses it. The text ends a sentence: "uses it: …".
    UsedByHost(String),
    /// Not found, or not restored yet.
    Missing,
    /// Offered in this session and taken for an attach under way.
    Held,
}
