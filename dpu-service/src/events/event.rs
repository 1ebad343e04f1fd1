//! One event with its kind, severity and place in the order of events.

use jiff::Timestamp;
pub use offload_proto::event::{EventKind, Severity};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ended::EndedAttachment;
use crate::author::Author;

/// An event that happened once or several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The start of the service that recorded it: a UUIDv7, which contains the time of the start.
    pub boot: Uuid,
    /// Number within that start. Increases with each new event.
    pub sequence: u64,
    /// Increases with each new event and each repetition. Equals `sequence` until the event repeats.
    pub revision: u64,
    /// When it first happened.
    #[serde(with = "rfc3339")]
    pub first_time: Timestamp,
    /// When it last happened.
    #[serde(with = "rfc3339")]
    pub time: Timestamp,
    /// Number of occurrences from `first_time` to `time`.
    pub count: u64,
    pub kind: EventKind,
    /// The reason code of the failure that caused it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who last caused it.
    #[serde(default, skip_serializing_if = "Author::is_service")]
    pub author: Author,
    /// The object: an attachment's id, a VF, a network or a host.
    pub subject: String,
    /// One sentence without a final stop.
    pub message: String,
    /// The attachment that ended with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Box<EndedAttachment>>,
}

/// A position in the order of events: after that revision of that start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCursor {
    pub boot: Uuid,
    /// The latest known revision.
    pub revision: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Events at that time or later. `None`: see [`super::Events::list`].
    pub since: Option<Timestamp>,
    /// Events about this object: its name or, for an attachment, a prefix of its id.
    pub object: Option<String>,
    pub kind: Option<EventKind>,
    pub severity: Option<Severity>,
}

/// Minimum length of an id's prefix.
const SHORTEST_ID: usize = 4;
const ID_LENGTH: usize = 36;

impl EventFilter {
    pub fn matches(&self, event: &Event) -> bool {
        self.since.is_none_or(|since| event.time >= since)
            && self.kind.is_none_or(|kind| event.kind == kind)
            && self.severity.is_none_or(|severity| event.kind.severity() == severity)
            && self.object.as_deref().is_none_or(|object| names(&event.subject, object))
    }
}

/// Whether `object`, as an operator types it, means `subject`.
pub(crate) fn names(subject: &str, object: &str) -> bool {
    // Some subjects include their type, such as `pool/default`.
    let name = subject.rsplit('/').next().unwrap_or(subject);
    let begins = object.len() >= SHORTEST_ID && name.starts_with(object);
    subject == object || name == object || name.len() == ID_LENGTH && begins
}

/// Timestamps as text.
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
