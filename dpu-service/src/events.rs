//! What happened: the latest events in memory, and a feed of new ones.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use tokio::sync::broadcast;

/// How many events are kept, and how far a watcher may fall behind.
pub(crate) const KEPT: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts up from 1 since the service started, without gaps.
    pub sequence: u64,
    /// When.
    pub time: Timestamp,
    /// What kind.
    pub kind: EventKind,
    /// What it happened to: an attachment's id, a VF, a network, a host.
    pub subject: String,
    /// One sentence without a final stop.
    pub message: String,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A VF, a MAC address and addresses were reserved.
    AttachmentReserved,
    /// The representor forwards.
    AttachmentProgrammed,
    /// The host said that the pod has the VF.
    AttachmentAttached,
    /// The attachment is being given back.
    AttachmentReleasing,
    /// All that it held is free.
    AttachmentReleased,
    /// An attach failed and was undone.
    AttachmentFailed,
    /// Its host does not know it and does not have its VF back: it is kept until the VF is.
    AttachmentUnclaimed,
    /// A machine beyond the uplinks uses an address of the attachment.
    AddressConflict,
    /// It does no longer.
    AddressConflictCleared,
    /// The pod of the attachment is not as wanted: its host's agent reports why.
    PodDiffers,
    /// It is as wanted again.
    PodDiffersCleared,
    /// The kernel had lost, or kept, something that it should not have; it was mended.
    Repaired,
    /// The kernel differs from the journal and could not be mended.
    RepairFailed,
    /// A VF is not handed out any more.
    VfQuarantined,
    /// A quarantined VF is handed out again.
    VfCleared,
    /// The fabric lacks something that all ports share, or has it again.
    Fabric,
    /// A host opened a session.
    HostConnected,
    /// A host renewed its connection, and its session goes on.
    HostRenewed,
    /// A host's session ended.
    HostDisconnected,
    /// A host is no longer in the configuration.
    HostRemoved,
    /// A connection with a host's certificate was refused.
    HostRefused,
    /// A network was created or changed.
    NetworkApplied,
    /// A network was deleted.
    NetworkDeleted,
    /// The service takes no new attachments, or does so again.
    Draining,
    /// ADDs were refused or failed for a reason that is the DPU's.
    AttachRefused,
    /// A condition has turned false.
    ConditionFalse,
    /// A condition is true again.
    ConditionTrue,
    /// What a condition is about can't be asked any more.
    ConditionUnknown,
}

impl EventKind {
    /// The stable name, such as `AttachmentReserved`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AttachmentReserved => "AttachmentReserved",
            Self::AttachmentProgrammed => "AttachmentProgrammed",
            Self::AttachmentAttached => "AttachmentAttached",
            Self::AttachmentReleasing => "AttachmentReleasing",
            Self::AttachmentReleased => "AttachmentReleased",
            Self::AttachmentFailed => "AttachmentFailed",
            Self::AttachmentUnclaimed => "AttachmentUnclaimed",
            Self::AddressConflict => "AddressConflict",
            Self::AddressConflictCleared => "AddressConflictCleared",
            Self::PodDiffers => "PodDiffers",
            Self::PodDiffersCleared => "PodDiffersCleared",
            Self::Repaired => "Repaired",
            Self::RepairFailed => "RepairFailed",
            Self::VfQuarantined => "VfQuarantined",
            Self::VfCleared => "VfCleared",
            Self::Fabric => "Fabric",
            Self::HostConnected => "HostConnected",
            Self::HostRenewed => "HostRenewed",
            Self::HostDisconnected => "HostDisconnected",
            Self::HostRemoved => "HostRemoved",
            Self::HostRefused => "HostRefused",
            Self::NetworkApplied => "NetworkApplied",
            Self::NetworkDeleted => "NetworkDeleted",
            Self::Draining => "Draining",
            Self::AttachRefused => "AttachRefused",
            Self::ConditionFalse => "ConditionFalse",
            Self::ConditionTrue => "ConditionTrue",
            Self::ConditionUnknown => "ConditionUnknown",
        }
    }
}

/// The latest events and the feed of new ones.
#[derive(Debug)]
pub struct Events {
    ring: Mutex<Ring>,
    feed: broadcast::Sender<Event>,
}

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    kept: VecDeque<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self { ring: Mutex::default(), feed: broadcast::Sender::new(KEPT) }
    }
}

impl Events {
    /// Records an event and feeds it to the watchers.
    pub(crate) fn record(
        &self,
        kind: EventKind,
        subject: impl std::fmt::Display,
        message: impl Into<String>,
    ) {
        let (subject, message) = (subject.to_string(), message.into());
        tracing::info!(kind = kind.as_str(), subject, "{message}");
        // The feed is served under the lock, so that watchers see the sequence in order.
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last += 1;
        let event = Event { sequence: ring.last, time: Timestamp::now(), kind, subject, message };
        if ring.kept.len() == KEPT {
            ring.kept.pop_front();
        }
        ring.kept.push_back(event.clone());
        // No watcher is no error.
        let _ = self.feed.send(event);
    }

    /// Events from now on. A watcher that falls more than [`KEPT`] events behind is told so by
    /// [`broadcast::error::RecvError::Lagged`].
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Event> {
        self.feed.subscribe()
    }

    /// The kept events about `subject`, oldest first.
    #[must_use]
    pub fn about(&self, subject: &str) -> Vec<Event> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.kept.iter().filter(|event| event.subject == subject).cloned().collect()
    }
}

impl Events {
    /// The kept events of that kind, oldest first.
    #[must_use]
    pub(crate) fn of_kind(&self, kind: EventKind) -> Vec<Event> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.kept.iter().filter(|event| event.kind == kind).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_have_no_gaps_and_only_the_latest_are_kept() {
        let events = Events::default();
        let mut feed = events.watch();
        for number in 0..=KEPT {
            events.record(EventKind::Repaired, number, "");
            assert_eq!(feed.try_recv().unwrap().sequence, u64::try_from(number).unwrap() + 1);
        }
        assert!(events.about("0").is_empty());
        assert_eq!(events.about("1")[0].sequence, 2);
    }

    #[test]
    fn a_watcher_sees_only_what_comes_after_it() {
        let events = Events::default();
        events.record(EventKind::HostConnected, "node-1", "");
        let mut feed = events.watch();
        assert!(feed.try_recv().is_err());
    }
}
