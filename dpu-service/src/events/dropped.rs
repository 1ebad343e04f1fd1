//! Counts events that could not be written to their file.

use std::sync::Arc;

use jiff::Timestamp;

use super::event::Event;

/// Events of this start of the service that could not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedEvents {
    pub(crate) number: u64,
    /// When the first of them happened. `None`: all were written.
    pub(crate) since: Option<Timestamp>,
    /// Why the latest write failed: one clause. `None`: it succeeded.
    pub(crate) failure: Option<String>,
}

impl DroppedEvents {
    /// Counts events whose write failed for that reason.
    pub(super) fn note(&mut self, events: &[Arc<Event>], why: impl Into<String>) {
        self.number += events.len() as u64;
        self.since = self.since.or_else(|| events.iter().map(|event| event.time).min());
        self.failure = Some(why.into());
    }

    /// The latest write succeeded. Events dropped before stay dropped.
    pub(super) fn note_written(&mut self) {
        self.failure = None;
    }
}
