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
    /// Only those that happened at that time or later.
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

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EventKind {
    /// A VF, a MAC address and addresses were reserved.
    AttachmentReserved,
    /// The representor forwards.
    AttachmentProgrammed,
    /// The host reported that the pod has the VF.
    AttachmentAttached,
    /// The attachment is being released.
    AttachmentReleasing,
    /// All that it held is free.
    AttachmentReleased,
    /// An attach failed and was undone. [`Self::AttachRefused`] reports the failure of the DPU.
    AttachmentFailed,
    /// Its host does not know it and does not have its VF back: it is kept until the VF is.
    AttachmentUnclaimed,
    /// A machine beyond the uplinks uses an address of the attachment.
    AddressConflict,
    /// The machine no longer uses the address.
    AddressConflictCleared,
    /// The pod of the attachment is not as wanted: its host's agent reports why.
    PodDiffers,
    /// The pod is as wanted again.
    PodDiffersCleared,
    /// The kernel differed from the journal; the service repaired it.
    Repaired,
    /// The kernel differs from the journal and could not be repaired.
    RepairFailed,
    /// A VF is not given out any more.
    VfQuarantined,
    /// A quarantined VF is given out again.
    VfCleared,
    /// The fabric lacks something that all ports share.
    FabricFailed,
    /// The fabric has again what it lacked.
    FabricRestored,
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
    /// The service started.
    ServiceStarted,
    /// The service stopped in good order.
    ServiceStopped,
    /// The previous start of the service ended without a clean stop, or its stop could not be written.
    ServiceStopUnclean,
    /// A changed configuration file is in force.
    ConfigurationReloaded,
    /// A changed configuration file is not in force, or in part.
    ConfigurationRefused,
    /// The service uses a new certificate.
    CertificateRenewed,
    /// A new certificate was refused; the earlier one stays in use.
    CertificateRefused,
    /// The certificate expires soon.
    CertificateExpiring,
    /// The certificate has expired.
    CertificateExpired,
    /// The file of events was damaged; its readable events are kept.
    EventsDamaged,
    /// An ADD was refused or has failed for a reason that is the DPU's.
    AttachRefused,
    /// A condition has turned false.
    ConditionFalse,
    /// A condition is true again.
    ConditionTrue,
    /// The service can no longer read what a condition is about.
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
            Self::FabricFailed => "FabricFailed",
            Self::FabricRestored => "FabricRestored",
            Self::HostConnected => "HostConnected",
            Self::HostRenewed => "HostRenewed",
            Self::HostDisconnected => "HostDisconnected",
            Self::HostRemoved => "HostRemoved",
            Self::HostRefused => "HostRefused",
            Self::NetworkApplied => "NetworkApplied",
            Self::NetworkDeleted => "NetworkDeleted",
            Self::Draining => "Draining",
            Self::ServiceStarted => "ServiceStarted",
            Self::ServiceStopped => "ServiceStopped",
            Self::ServiceStopUnclean => "ServiceStopUnclean",
            Self::ConfigurationReloaded => "ConfigurationReloaded",
            Self::ConfigurationRefused => "ConfigurationRefused",
            Self::CertificateRenewed => "CertificateRenewed",
            Self::CertificateRefused => "CertificateRefused",
            Self::CertificateExpiring => "CertificateExpiring",
            Self::CertificateExpired => "CertificateExpired",
            Self::EventsDamaged => "EventsDamaged",
            Self::AttachRefused => "AttachRefused",
            Self::ConditionFalse => "ConditionFalse",
            Self::ConditionTrue => "ConditionTrue",
            Self::ConditionUnknown => "ConditionUnknown",
        }
    }

    /// The kind of that stable name. `None`: there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(name.into()).ok()
    }

    /// How much events of this kind matter to a person.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::AttachmentUnclaimed
            | Self::AttachRefused
            | Self::ConditionFalse
            | Self::ConditionUnknown
            | Self::AddressConflict
            | Self::PodDiffers
            | Self::RepairFailed
            | Self::VfQuarantined
            | Self::FabricFailed
            | Self::HostDisconnected
            | Self::HostRefused
            | Self::ServiceStopUnclean
            | Self::ConfigurationRefused
            | Self::CertificateRefused
            | Self::CertificateExpiring
            | Self::CertificateExpired
            | Self::EventsDamaged => Severity::Warning,
            _ => Severity::Normal,
        }
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
