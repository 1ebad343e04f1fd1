//! The states of attachments.

use std::sync::Arc;

use super::Record;

/// The state of an attachment, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachmentState {
    /// Recorded durably, and not known to be programmed.
    Reserved,
    /// The eswitch forwards for it. The host has not reported the VF in the pod.
    Programmed,
    /// The host has reported the VF in the pod.
    Attached,
    /// Being released.
    Releasing,
    /// It continues, but its host is no longer in the configuration.
    HostRemoved,
}

impl AttachmentState {
    /// All states in order.
    pub const ALL: [Self; 5] =
        [Self::Reserved, Self::Programmed, Self::Attached, Self::Releasing, Self::HostRemoved];

    /// The state's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Programmed => "programmed",
            Self::Attached => "attached",
            Self::Releasing => "releasing",
            Self::HostRemoved => "host_removed",
        }
    }
}

/// An attachment as callers get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentView {
    /// The attachment's record.
    pub record: Arc<Record>,
    /// The attachment's state.
    pub state: AttachmentState,
}
