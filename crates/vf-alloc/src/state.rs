//! Facts and states of VFs.

use std::fmt;

use crate::{Device, FunctionId};

/// A host, by a number of the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// A host's facts about a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfFacts {
    /// The host.
    pub host: HostId,
    /// The VF's device on that host.
    pub device: Device,
    /// PCI vendor id.
    pub vendor_id: u16,
    /// PCI device id.
    pub device_id: u16,
}

/// The state of a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VfState {
    /// Available: reported as free by its host, with a port on this DPU, and not held.
    Free,
    /// Held, but not yet in the pod.
    Reserved,
    /// Held and in the pod.
    Attached,
    /// Held until its host reports it back and clean.
    Releasing,
    /// Unavailable until an operator clears it.
    Quarantined {
        /// The reason.
        reason: String,
    },
    /// Unavailable: not reported as free by its host, or without a ready port on this DPU.
    Absent {
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for VfState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => out.write_str("free"),
            Self::Reserved => out.write_str("reserved"),
            Self::Attached => out.write_str("attached"),
            Self::Releasing => out.write_str("being released"),
            Self::Quarantined { reason } => write!(out, "quarantined: {reason}"),
            Self::Absent { reason } => write!(out, "absent: {reason}"),
        }
    }
}

/// The state of a hold in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredState {
    /// Held. The host reports whether the VF is in the pod.
    Held,
    /// Being released.
    Releasing,
}

/// A VF, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfView<'a, K> {
    /// The VF.
    pub vf: FunctionId,
    /// The host's facts. `None`: the host has not reported the VF.
    pub facts: Option<&'a VfFacts>,
    /// The VF's state.
    pub state: VfState,
    /// The holder's key.
    pub holder: Option<&'a K>,
    /// The number of consecutive failed attaches.
    pub failures: u32,
    /// The reason of the quarantine, which also applies to a held VF after its release.
    pub quarantine: Option<&'a str>,
    /// Whether it has a port on this DPU.
    pub has_port: bool,
}

/// The number of VFs in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Available.
    pub free: usize,
    /// Reserved, attached or being released.
    pub in_use: usize,
    /// Quarantined.
    pub quarantined: usize,
    /// Known, but not reported as free by their host, or without a ready port on this DPU.
    pub absent: usize,
}

impl Usage {
    pub(crate) fn count(&mut self, state: &VfState) {
        let counter = match state {
            VfState::Free => &mut self.free,
            VfState::Reserved | VfState::Attached | VfState::Releasing => &mut self.in_use,
            VfState::Quarantined { .. } => &mut self.quarantined,
            VfState::Absent { .. } => &mut self.absent,
        };
        *counter += 1;
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { free, in_use, quarantined, absent } = self;
        write!(out, "{free} free, {in_use} in use, {quarantined} quarantined, {absent} absent")
    }
}
