//! What happened: the latest events in memory and in a file, and a feed of new ones.
//!
//! [`Events`] owns the log of the latest events (`log.rs`), in which repeated events are one with a count. A thread of
//! its own (`writer.rs`) appends them to a file (`file.rs`) in batches, so that no caller waits for the disk.
//!
//! The log has one lock. It is held for some microseconds and never across an await. The account of dropped events
//! (`dropped.rs`) has another, which may be taken under it. Any thread records events. The feed is served under the
//! lock, so that watchers receive events in the order of their revisions. The writer takes the lock to write the whole
//! log to a new file, and to read the latest event when it tries a failed file again.

mod dropped;
mod ended;
mod event;
mod file;
mod log;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bootstrap::Chain;
use jiff::Timestamp;
use offload_proto::Failure;
use tokio::sync::broadcast;
use uuid::Uuid;

pub(crate) use dropped::DroppedEvents;
pub use ended::EndedAttachment;
pub(crate) use event::names;
pub use event::{Event, EventCursor, EventFilter, EventKind, Severity};

use crate::{
    author::Author,
    model::{HostName, Record},
};
use log::{Log, Occurrence};
use writer::Writer;

/// How far a watcher may fall behind.
const BEHIND: usize = 1024;

/// The file of events in the state folder.
const FILE: &str = "events.jsonl";

/// The latest events and the feed of new ones.
#[derive(Debug)]
pub struct Events {
    log: Arc<Mutex<Log>>,
    feed: broadcast::Sender<Arc<Event>>,
    /// `None`: events are in memory only.
    writer: Option<Writer>,
}

impl Default for Events {
    /// Events in memory only.
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

impl Events {
    /// Events with those of earlier starts, in a file of the state folder. A file that is damaged or can't be used
    /// keeps the service from nothing: it is moved aside and reported. Blocks until the start is in the file, for 2 s at
    /// most.
    #[must_use]
    pub fn open(state_folder: &Path) -> Self {
        let path = state_folder.join(FILE);
        let read = file::read(&path);
        let damage = damage(&path, &read);
        let mut events = Self::with(read.unwrap_or_default().events);
        match Writer::start(path, Arc::clone(&events.log)) {
            Ok(writer) => events.writer = Some(writer),
            Err(error) => tracing::error!(%error, "events are kept in memory only"),
        }
        if let Some(damage) = damage {
            events.record(EventKind::EventsDamaged, "dpu", damage);
        }
        events.note_start();
        // A start that ends within the first batch was a start, too.
        events.flush();
        events
    }

    fn with(earlier: Vec<Event>) -> Self {
        let log = Arc::new(Mutex::new(Log::new(Uuid::now_v7(), earlier)));
        Self { log, feed: broadcast::Sender::new(BEHIND), writer: None }
    }

    /// Records that the service starts, and whether it ended in good order before.
    fn note_start(&self) {
        let is_unclean = {
            let log = self.log();
            let last_boot = log.latest().map(|event| event.boot);
            let mut of_last = log.all().filter(|event| Some(event.boot) == last_boot);
            last_boot.is_some() && !of_last.any(|event| event.kind == EventKind::ServiceStopped)
        };
        if is_unclean {
            let message =
                "the previous start ended without a clean stop, or its stop could not be written";
            self.record(EventKind::ServiceStopUnclean, "dpu", message);
        }
        let version = env!("CARGO_PKG_VERSION");
        self.record(EventKind::ServiceStarted, "dpu", format!("version {version} starts"));
    }

    /// Records that the journal `path` was lost, unless this is the first start: then there was none.
    pub(crate) fn note_new_journal(&self, path: &Path) {
        let is_first = {
            let log = self.log();
            let boot = log.latest().map(|event| event.boot);
            log.all().all(|event| Some(event.boot) == boot)
        };
        if !is_first {
            let message = format!(
                "there was no journal {}: a new, empty one was begun; end or recreate the pods that run, which it does not \
                 know",
                path.display()
            );
            self.record(EventKind::JournalLost, "dpu", message);
        }
    }

    /// Records that the service stops in good order, and waits until that is written. Blocks for a bounded time.
    pub fn close(&self) {
        self.record(EventKind::ServiceStopped, "dpu", "the service stops");
        self.flush();
    }

    fn flush(&self) {
        if let Some(writer) = &self.writer {
            writer.flush();
        }
    }

    /// Records an event of the service itself.
    pub(crate) fn record(
        &self,
        kind: EventKind,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) {
        self.record_by(&Author::Service, kind, subject, message);
    }

    /// Records that an attachment holds its VF and addresses.
    pub(crate) fn record_reserved(&self, record: &Record) {
        self.add(reserved(record));
    }

    /// Records that the pod has its attachment, unless that was recorded: after a restart hosts report their pods again.
    pub(crate) fn record_attached(&self, record: &Record) {
        let message = format!("{} has {}", record.holder(), record.vf);
        let attached = Occurrence::new(EventKind::AttachmentAttached, record.id, message);
        let is_recorded = {
            let log = self.log();
            // The log loses the oldest events first. Without the reservation, what followed may be lost as well.
            log.has(&attached) || !log.has(&reserved(record))
        };
        if !is_recorded {
            self.add(attached);
        }
    }

    /// Records an event with its author.
    pub(crate) fn record_by(
        &self,
        author: &Author,
        kind: EventKind,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) {
        let author = author.clone();
        self.add(Occurrence { author, ..Occurrence::new(kind, subject, message) });
    }

    /// Records a failure, with its reason code.
    pub fn record_failure(&self, kind: EventKind, subject: impl fmt::Display, failure: &Failure) {
        self.record_reason(kind, failure.reason.as_str(), subject, &*failure.message);
    }

    /// Records an event with the reason code of a failure or of a condition.
    pub(crate) fn record_reason(
        &self,
        kind: EventKind,
        reason: &str,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) {
        let reason = Some(reason.to_owned());
        self.add(Occurrence { reason, ..Occurrence::new(kind, subject, message) });
    }

    /// Records what a host has reported, with a reason code: repetitions about one subject are one event, whatever the host
    /// says of it.
    pub(crate) fn record_of_host(
        &self,
        host: &HostName,
        kind: EventKind,
        reason: &str,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) {
        let (reason, author) = (Some(reason.to_owned()), Author::Host(host.clone()));
        self.add(Occurrence { reason, author, ..Occurrence::new(kind, subject, message) });
    }

    /// Records the end of an attachment, so that it can be described afterwards.
    pub(crate) fn record_end(
        &self,
        kind: EventKind,
        record: &Record,
        failure: Option<&Failure>,
        message: impl Into<String>,
    ) {
        let reason = failure.map(|failure| failure.reason.as_str().to_owned());
        let ended = Some(Box::new(EndedAttachment::from(record)));
        self.add(Occurrence { reason, ended, ..Occurrence::new(kind, record.id, message) });
    }

    fn add(&self, occurrence: Occurrence) {
        let (mut log, now) = (self.log(), Timestamp::now());
        let is_logged = log.is_logged(&occurrence, now);
        let event = log.add(occurrence, now);
        // No watcher is no error.
        let _ = self.feed.send(Arc::clone(&event));
        if let Some(writer) = &self.writer {
            writer.write(Arc::clone(&event));
        }
        drop(log);
        if is_logged {
            report(&event);
        }
    }

    /// Events from now on. A watcher that falls more than 1024 events behind gets
    /// [`broadcast::error::RecvError::Lagged`].
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Arc<Event>> {
        self.feed.subscribe()
    }

    /// The events after the cursor, and the feed of those that follow, without a gap or an event twice.
    #[must_use]
    pub fn watch_after(
        &self,
        cursor: &EventCursor,
    ) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        let log = self.log();
        (log.after(cursor), self.feed.subscribe())
    }

    /// The events that the filter lets pass, oldest first, and the place after the latest of all. Without a time in the
    /// filter, the list begins with the first event of the last 7 days.
    #[must_use]
    pub fn list(&self, filter: &EventFilter) -> (Vec<Arc<Event>>, EventCursor) {
        let log = self.log();
        (log.list(filter, Timestamp::now()), log.end())
    }

    /// The kept events about `subject`, oldest first.
    #[must_use]
    pub fn about(&self, subject: &str) -> Vec<Event> {
        self.kept(|event| event.subject == subject)
    }

    /// The kept events of that kind, oldest first.
    #[must_use]
    pub(crate) fn of_kind(&self, kind: EventKind) -> Vec<Event> {
        self.kept(|event| event.kind == kind)
    }

    fn kept(&self, is_wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let log = self.log();
        log.all().filter(|event| is_wanted(event)).map(|event| Event::clone(event)).collect()
    }

    /// How many events of each kind this start has recorded, repetitions among them: 0 for a kind that it has not.
    pub(crate) fn counts(&self) -> BTreeMap<EventKind, u64> {
        self.log().counts()
    }

    /// The events that are not in the file: the disk was full or did not answer.
    #[must_use]
    pub(crate) fn dropped(&self) -> DroppedEvents {
        self.writer.as_ref().map(Writer::dropped).unwrap_or_default()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reserved(record: &Record) -> Occurrence {
    let message = format!("{} reserved for {}", record.vf, record.holder());
    Occurrence::new(EventKind::AttachmentReserved, record.id, message)
}

/// Moves a damaged file aside. What was wrong with it: one sentence.
fn damage(path: &Path, read: &io::Result<file::Contents>) -> Option<String> {
    let what = match read {
        Ok(contents) if contents.damaged == 0 => return None,
        Ok(contents) => format!("{} lines of it can't be read", contents.damaged),
        Err(error) => Chain(error).to_string(),
    };
    let moved = file::move_aside(path);
    let path = path.display();
    Some(match moved {
        Ok(aside) => format!("{path} is damaged: {what}; it is kept as {}", aside.display()),
        Err(error) => format!("{path} is damaged: {what}; it can't be moved aside: {error}"),
    })
}

/// Logs an event, or a repetition of it.
fn report(event: &Event) {
    let Event { kind, subject, message, reason, author, count, .. } = event;
    let (kind, reason) = (kind.as_str(), reason.as_deref());
    match event.kind.severity() {
        Severity::Normal => {
            tracing::info!(kind, subject, %author, count, detail = message, "event");
        }
        Severity::Warning => {
            tracing::warn!(kind, subject, reason, %author, count, detail = message, "event");
        }
    }
}
