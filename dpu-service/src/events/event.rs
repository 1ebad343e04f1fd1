//! One event: its kind, its severity, and its place in the order of events.

use jiff::Timestamp;
pub use offload_proto::event::{EventKind, Severity};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ended::EndedAttachment;
use crate::author::Author;

/// Something that happened, once or several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The start of the service that recorded it: a UUID of version 7, which has the time of the start.
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
