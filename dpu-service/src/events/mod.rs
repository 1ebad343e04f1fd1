//! Events: the latest ones in memory and in a file, and a feed of new ones.
//!
//! Owns: the log of the latest events (`log.rs`), which folds repeated events into one with a count; the thread that
//! appends them to the file (`writer.rs`, `file.rs`) in batches, so that no caller waits for the disk, and counts those
//! that it drops.
//!
//! Locks: the log, for microseconds and never across an await; then the count of dropped events. The feed is sent under
//! the log's lock, so that watchers receive events in the order of their revisions.
//!
//! Concurrently: any thread records events. The writer locks the log to write all of it to a new file, and to read the
//! latest event when it retries a failed file.

mod ended;
mod event;
mod file;
mod log;
#[cfg(test)]
mod tests;
mod writer;

use std::{collections::BTreeMap, fmt, io, path::Path, sync::Arc};

use bootstrap::Chain;
use jiff::Timestamp;
use offload_proto::Failure;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use uuid::Uuid;

pub use ended::EndedAttachment;
pub(crate) use event::names;
pub use event::{Event, EventCursor, EventFilter, EventKind, Severity};
pub(crate) use writer::DroppedEvents;

use crate::author::Author;
use log::{Log, Occurrence};
use model::{HostName, Record};
use writer::Writer;

/// How many events a watcher may fall behind.
const BEHIND: usize = 1024;

/// Name of the file in the state folder.
const FILE: &str = "events.jsonl";

#[derive(Debug)]
pub struct Events {
    log: Arc<Mutex<Log>>,
    feed: broadcast::Sender<Arc<Event>>,
    /// `None`: events are in memory only.
    writer: Option<Writer>,
}

impl Default for Events {
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

impl Events {
    /// Opens the file of events in the state folder, with the events of earlier starts. A damaged file is moved aside
    /// and reported; without a file, events are in memory only. Blocks for up to 2 s, until the start is written.
    pub fn open(state_folder: &Path) -> Self {
        let path = state_folder.join(FILE);
        let read = file::read(&path);
        let damage = damage(&path, &read);
        let mut events = Self::with(read.unwrap_or_default().events);
        match Writer::start(path, Arc::clone(&events.log)) {
            Ok(writer) => events.writer = Some(writer),
            Err(error) => {
                tracing::error!(%error, "cannot start the writer of events; keeping them in memory only");
            }
        }
        if let Some(damage) = damage {
            events.record(EventKind::EventsDamaged, "dpu", damage);
        }
        events.note_start();
        // Written at once: a service that ends within the first batch must not hide its start.
        events.flush();
        events
    }

    fn with(earlier: Vec<Event>) -> Self {
        let log = Arc::new(Mutex::new(Log::new(Uuid::now_v7(), earlier)));
        Self { log, feed: broadcast::Sender::new(BEHIND), writer: None }
    }

    /// Records the start of the service, and whether its previous start ended without a clean stop.
    fn note_start(&self) {
        let is_unclean = {
            let log = self.log.lock();
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

    /// Records that the journal `path` was lost, unless this is the first start.
    pub(crate) fn note_new_journal(&self, path: &Path) {
        let is_first = {
            let log = self.log.lock();
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

    /// Records a clean stop and waits until it is written, for a bounded time. Blocks.
    pub fn close(&self) {
        self.record(EventKind::ServiceStopped, "dpu", "the service stops");
        self.flush();
    }

    fn flush(&self) {
        if let Some(writer) = &self.writer {
            writer.flush();
        }
    }

    /// Records an event caused by the service itself.
    pub(crate) fn record(
        &self,
        kind: EventKind,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) {
        self.record_by(&Author::Service, kind, subject, message);
    }

    /// Records that an attachment has reserved its VF and addresses.
    pub(crate) fn record_reserved(&self, record: &Record) {
        self.add(reserved(record));
    }

    /// Records that the pod has its attachment, once: after a restart hosts report their pods again.
    pub(crate) fn record_attached(&self, record: &Record) {
        let message = format!("{} has {}", record.holder(), record.vf);
        let attached = Occurrence::new(EventKind::AttachmentAttached, record.id, message);
        let is_recorded = {
            let log = self.log.lock();
            // The oldest events are evicted first. If the reservation is gone, an earlier record of this may be gone,
            // too.
            log.has(&attached) || !log.has(&reserved(record))
        };
        if !is_recorded {
            self.add(attached);
        }
    }

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

    pub fn record_failure(&self, kind: EventKind, subject: impl fmt::Display, failure: &Failure) {
        self.record_reason(kind, failure.reason.as_str(), subject, &*failure.message);
    }

    /// Records an event with the reason code of a failure or condition.
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

    /// Records a host's report with a reason code. The code, not the host's text, decides what is a repetition: a host
    /// could otherwise fill the log with invented texts.
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

    /// Records the end of an attachment with its description.
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
        // The time is read under the lock, so that times follow revisions unless the clock is set.
        let (mut log, now) = (self.log.lock(), Timestamp::now());
        let is_logged = log.is_logged(&occurrence, now);
        let event = log.add(occurrence, now);
        // Fails if there is no watcher.
        let _ = self.feed.send(Arc::clone(&event));
        if let Some(writer) = &self.writer {
            writer.write(Arc::clone(&event));
        }
        // Logged without the lock: a slow log must not delay other events.
        drop(log);
        if is_logged {
            report(&event);
        }
    }

    /// Subscribes to new events. A watcher that falls more than 1024 events behind gets
    /// [`broadcast::error::RecvError::Lagged`].
    pub fn watch(&self) -> broadcast::Receiver<Arc<Event>> {
        self.feed.subscribe()
    }

    /// The events after the cursor and the feed of new ones. Both are taken under one lock: no event is missing or
    /// repeated.
    pub fn watch_after(
        &self,
        cursor: &EventCursor,
    ) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        let log = self.log.lock();
        (log.after(cursor), self.feed.subscribe())
    }

    /// The events that match the filter, oldest first, and the position after the latest of all. Without a time in the
    /// filter, the list starts with the first event of the last 7 days.
    pub fn list(&self, filter: &EventFilter) -> (Vec<Arc<Event>>, EventCursor) {
        let log = self.log.lock();
        (log.list(filter, Timestamp::now()), log.end())
    }

    /// The kept events about `subject`, oldest first.
    pub fn about(&self, subject: &str) -> Vec<Event> {
        self.kept(|event| event.subject == subject)
    }

    /// The kept events of that kind, oldest first.
    pub(crate) fn of_kind(&self, kind: EventKind) -> Vec<Event> {
        self.kept(|event| event.kind == kind)
    }

    fn kept(&self, is_wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let log = self.log.lock();
        log.all().filter(|event| is_wanted(event)).map(|event| Event::clone(event)).collect()
    }

    /// Number of events of each kind in this start, including repetitions.
    pub(crate) fn counts(&self) -> BTreeMap<EventKind, u64> {
        self.log.lock().counts()
    }

    /// Events that are not in the file because the disk was full or did not answer.
    pub(crate) fn dropped(&self) -> DroppedEvents {
        self.writer.as_ref().map(Writer::dropped).unwrap_or_default()
    }
}

fn reserved(record: &Record) -> Occurrence {
    let message = format!("{} reserved for {}", record.vf, record.holder());
    Occurrence::new(EventKind::AttachmentReserved, record.id, message)
}

/// Moves a damaged file aside. Returns one sentence on the damage.
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

/// Writes an event or a repetition to the service's log.
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
