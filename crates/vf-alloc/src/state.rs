//! What is known of a VF.

use std::fmt;

use crate::{Device, FunctionId};

/// A host, by a number of the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// What a host says of a VF that it offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfFacts {
    /// The host.
    pub host: HostId,
    /// What the VF is known by on that host.
    pub device: Device,
    /// PCI vendor id.
    pub vendor_id: u16,
    /// PCI device id.
    pub device_id: u16,
}

/// Where a VF is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VfState {
    /// Offered by its host, with a port on this DPU, and held by nobody.
    Free,
    /// Held; not yet in the pod.
    Reserved,
    /// Held and in the pod.
    Attached,
    /// Held until its host has it back and clean.
    Releasing,
    /// Not given out until an operator clears it.
    Quarantined {
        /// Why.
        reason: String,
    },
    /// Not to be had now: not offered by its host, or without a port on this DPU that is ready for it.
    Absent {
        /// Why.
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

/// In which state a journal says that a VF is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredState {
    /// Held. Whether the pod has it is the host's to say.
    Held,
    /// Being released.
    Releasing,
}

/// A VF, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfView<'a, K> {
    /// The VF.
    pub vf: FunctionId,
    /// What its host said of it; `None` until the host has offered it once.
    pub facts: Option<&'a VfFacts>,
    /// Where it is in its life.
    pub state: VfState,
    /// Who holds it.
    pub holder: Option<&'a K>,
    /// Attaches that failed in a row.
    pub failures: u32,
    /// Why it will not be given out again, even while it is still held.
    pub quarantine: Option<&'a str>,
    /// Whether this DPU has its port.
    pub has_port: bool,
}

/// How many VFs are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Ready to be given out.
    pub free: usize,
    /// Reserved, attached or being released.
    pub in_use: usize,
    /// Quarantined.
    pub quarantined: usize,
    /// Known, but not offered by their host, or without a port on this DPU that is ready for them.
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
