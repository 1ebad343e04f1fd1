//! The events that could not be written to their file.

use std::sync::Arc;

use jiff::Timestamp;

use super::event::Event;

/// The events of this start that could not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedEvents {
    /// How many.
    pub(crate) number: u64,
    /// When the first of them happened. `None`: all were written.
    pub(crate) since: Option<Timestamp>,
    /// Why the file can't be written: one clause. `None`: it can, as far as its latest write tells.
    pub(crate) failure: Option<String>,
}

impl DroppedEvents {
    /// These events could not be written, for that reason.
    pub(super) fn note(&mut self, events: &[Arc<Event>], why: impl Into<String>) {
        self.number += events.len() as u64;
        self.since = self.since.or_else(|| events.iter().map(|event| event.time).min());
        self.failure = Some(why.into());
    }

    /// The latest write succeeded. What was dropped before stays dropped.
    pub(super) fn note_written(&mut self) {
        self.failure = None;
    }
}
