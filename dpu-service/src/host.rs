//! What hosts say: the words of their sessions, for the rooms that hear them.

pub(crate) mod examination;

use std::{fmt, str::FromStr};

use mtls::ConnectionNumber;
use uuid::Uuid;
use vf_alloc::{Device, PfId};

pub use examination::{Examination, ExaminedVf, Holdings, HostRecord};

use crate::model::{AttachmentId, AttachmentKey};

/// Names a session. Unique over all time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(Uuid);

impl SessionId {
    /// One that no session has had.
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

/// A host's first words.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The connection that they came by.
    pub connection: ConnectionNumber,
    /// The agent's version, for people.
    pub agent_version: String,
    /// The host kernel's boot id.
    pub boot_id: String,
    /// What its agent and this service can both do.
    pub capabilities: Vec<&'static str>,
    /// Its PFs and VFs.
    pub inventory: Inventory,
    /// The attachments that it holds records of.
    pub live: Vec<LiveAttachment>,
    /// Keys of calls that it has under way and will repeat on this session.
    pub pending: Vec<AttachmentKey>,
    /// The session that this one goes on with, on another connection.
    pub renewed: Option<SessionId>,
}

/// An attachment that a host holds a record of.
#[derive(Clone, Debug)]
pub struct LiveAttachment {
    /// Its id.
    pub id: AttachmentId,
    /// Whether the VF is in the pod.
    pub in_pod: bool,
}

/// A time on a host's clock: nanoseconds since it booted. 0: not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostTime(pub u64);

/// When a host has asked for an attachment.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// In this session.
    pub session: SessionId,
    /// At this time of its clock.
    pub as_of: HostTime,
}

/// All PFs and VFs of a host.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// When the host began to look.
    pub as_of: HostTime,
    /// The PFs.
    pub pfs: Vec<PhysicalFunction>,
}

/// A PF and its VFs.
#[derive(Clone, Debug)]
pub struct PhysicalFunction {
    /// The PF.
    pub id: PfId,
    /// PCI vendor id of its VFs.
    pub vendor_id: u16,
    /// PCI device id of its VFs.
    pub device_id: u16,
    /// Its VFs.
    pub vfs: Vec<VirtualFunction>,
}

/// A VF as its host sees it.
#[derive(Clone, Debug)]
pub struct VirtualFunction {
    /// Its number within the PF.
    pub number: u16,
    /// What its host knows it by.
    pub device: Device,
    /// How it is.
    pub condition: VfCondition,
}

/// How a VF is on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VfCondition {
    /// In no record, and proven to be as it was before any pod had it; or a device that no program has open.
    Clean,
    /// Held by a record of the agent.
    InUse,
    /// Used by the host itself, or by another program there, and what for: the end of a sentence.
    UsedByHost(String),
    /// Nowhere to be found, or not restored yet.
    Missing,
    /// Promised in this session, and taken for an attach that is under way.
    Taken,
}
