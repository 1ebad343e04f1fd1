//! One event: its kind, its severity, and its place in the order of events.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ended::EndedAttachment;
use crate::author::Author;

/// Something that happened, once or several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The start of the service that recorded it: random for each start.
    pub boot: Uuid,
    /// Its number within that start. It grows with each new event.
    pub sequence: u64,
    /// Grows with each new event and each repetition. Equals `sequence` until the event repeats.
    pub revision: u64,
    /// When it happened first.
    #[serde(with = "rfc3339")]
    pub first_time: Timestamp,
    /// When it happened last.
    #[serde(with = "rfc3339")]
    pub time: Timestamp,
    /// How often it happened from `first_time` to `time`.
    pub count: u64,
    /// What kind.
    pub kind: EventKind,
    /// The reason code of the failure that caused it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who caused it last.
    #[serde(default, skip_serializing_if = "Author::is_service")]
    pub author: Author,
    /// What it happened to: an attachment's id, a VF, a network, a host.
    pub subject: String,
    /// One sentence without a final stop.
    pub message: String,
    /// The attachment that ended by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Box<EndedAttachment>>,
}

/// How much an event matters to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Part of normal operation.
    Normal,
    /// A person may have to act.
    Warning,
}

/// A place in the order of events: after the event with that revision of that start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCursor {
    /// The start of the service.
    pub boot: Uuid,
    /// The latest revision that is known.
    pub revision: u64,
}

/// Which events are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only those that happened at that time or later. `None`: see [`super::Events::list`].
    pub since: Option<Timestamp>,
    /// Only those about this object: its name, or for an attachment the beginning of its id.
    pub object: Option<String>,
    /// Only those of this kind.
    pub kind: Option<EventKind>,
    /// Only those of this severity.
    pub severity: Option<Severity>,
}

/// The shortest beginning of an attachment's id that means the attachment.
const SHORTEST_ID: usize = 4;
const ID_LENGTH: usize = 36;

impl EventFilter {
    /// Whether the event is wanted.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.since.is_none_or(|since| event.time >= since)
            && self.kind.is_none_or(|kind| event.kind == kind)
            && self.severity.is_none_or(|severity| event.kind.severity() == severity)
            && self.object.as_deref().is_none_or(|object| names(&event.subject, object))
    }
}

/// Whether an operator who types `object` means `subject`.
pub(crate) fn names(subject: &str, object: &str) -> bool {
    // Some subjects have their type, as in `pool/default`.
    let name = subject.rsplit('/').next().unwrap_or(subject);
    let begins = object.len() >= SHORTEST_ID && name.starts_with(object);
    subject == object || name == object || name.len() == ID_LENGTH && begins
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident, $severity:ident;)*) => {
        /// The kinds of events.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum EventKind { $($(#[doc = $doc])* $name,)* }

        impl EventKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name, such as `AttachmentReserved`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// How much events of this kind matter to a person.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }
        }
    };
}

kinds! {
    /// A VF, a MAC address and addresses were reserved.
    AttachmentReserved, Normal;
    /// The representor forwards.
    AttachmentProgrammed, Normal;
    /// The host reported that the pod has the VF.
    AttachmentAttached, Normal;
    /// The attachment is being released.
    AttachmentReleasing, Normal;
    /// All that it held is free.
    AttachmentReleased, Normal;
    /// An attach failed and was undone. [`Self::AttachRefused`] reports the failure of the DPU.
    AttachmentFailed, Normal;
    /// Its host does not know it and does not have its VF back: it is kept until the VF is.
    AttachmentUnclaimed, Warning;
    /// A machine beyond the uplinks uses an address of the attachment.
    AddressConflict, Warning;
    /// The machine no longer uses the address.
    AddressConflictCleared, Normal;
    /// The pod of the attachment is not as wanted: its host's agent reports why.
    PodDiffers, Warning;
    /// The pod is as wanted again.
    PodDiffersCleared, Normal;
    /// The pod of the attachment does not use a VF that the kubelet gave it.
    KubeletVfUnused, Warning;
    /// The pod has no unused VF of the kubelet any more.
    KubeletVfUnusedCleared, Normal;
    /// The kernel differed from the journal; the service repaired it.
    Repaired, Normal;
    /// The kernel differs from the journal and could not be repaired.
    RepairFailed, Warning;
    /// A VF is not given out any more.
    VfQuarantined, Warning;
    /// A quarantined VF is given out again.
    VfCleared, Normal;
    /// The fabric lacks something that all ports share.
    FabricFailed, Warning;
    /// The fabric has again what it lacked.
    FabricRestored, Normal;
    /// A host opened a session.
    HostConnected, Normal;
    /// A host renewed its connection, and its session goes on.
    HostRenewed, Normal;
    /// A host's session ended.
    HostDisconnected, Warning;
    /// A host is no longer in the configuration.
    HostRemoved, Normal;
    /// A connection with a host's certificate was refused.
    HostRefused, Warning;
    /// A network was created or changed.
    NetworkApplied, Normal;
    /// A network was deleted.
    NetworkDeleted, Normal;
    /// The service takes no new attachments, or does so again.
    Draining, Normal;
    /// The service started.
    ServiceStarted, Normal;
    /// The service stopped in good order.
    ServiceStopped, Normal;
    /// The previous start of the service ended without a clean stop, or its stop could not be written.
    ServiceStopUnclean, Warning;
    /// A changed configuration file is in force.
    ConfigurationReloaded, Normal;
    /// A changed configuration file is not in force, or in part.
    ConfigurationRefused, Warning;
    /// The service uses a new certificate.
    CertificateRenewed, Normal;
    /// A new certificate was refused; the earlier one stays in use.
    CertificateRefused, Warning;
    /// The certificate expires soon.
    CertificateExpiring, Warning;
    /// The certificate has expired.
    CertificateExpired, Warning;
    /// The file of events was damaged; its readable events are kept.
    EventsDamaged, Warning;
    /// An ADD was refused or has failed for a reason that is the DPU's.
    AttachRefused, Warning;
    /// A condition has turned false.
    ConditionFalse, Warning;
    /// A condition is true again.
    ConditionTrue, Normal;
    /// The service can no longer read what a condition is about.
    ConditionUnknown, Warning;
}

impl EventKind {
    /// The kind of that stable name. `None`: there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(name.into()).ok()
    }
}

/// Times as text.
mod rfc3339 {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(time)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(input: D) -> Result<Timestamp, D::Error> {
        String::deserialize(input)?.parse().map_err(Error::custom)
    }
}
