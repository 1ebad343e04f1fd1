//! The thread that writes events to their file in batches.
//!
//! Owns: the file of events. Callers queue events and never wait for the disk.
//!
//! Locks: the log or the count of dropped events, one after the other, neither during a write.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{event::Event, file::EventFile, log::Log};

/// How long events are collected before they are written together.
const BATCH: Duration = Duration::from_millis(500);
/// Time until a failed write is retried without a new event.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of events queued for a disk that does not answer.
const WAITING: usize = 4096;
/// How long a start or stop waits for its batch.
const FLUSH: Duration = Duration::from_secs(2);

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

enum Message {
    Event(Arc<Event>),
    Flush(Sender<()>),
}

/// Handle of the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    messages: SyncSender<Message>,
    dropped: Arc<Mutex<DroppedEvents>>,
}

impl Writer {
    /// Starts the thread. It first writes the whole log to a new file at `path`.
    pub(super) fn start(path: PathBuf, log: Arc<Mutex<Log>>) -> io::Result<Self> {
        let (messages, received) = mpsc::sync_channel(WAITING);
        let dropped = Arc::<Mutex<DroppedEvents>>::default();
        let file = Destination { path, log, file: None, dropped: Arc::clone(&dropped) };
        thread::Builder::new().name("events".into()).spawn(move || serve(file, &received))?;
        Ok(Self { messages, dropped })
    }

    /// Queues an event. If the queue is full, drops and counts it: no caller may wait for the disk.
    pub(super) fn write(&self, event: Arc<Event>) {
        if let Err(TrySendError::Full(Message::Event(event))) =
            self.messages.try_send(Message::Event(event))
        {
            self.dropped.lock().note(&[event], "the disk does not answer");
        }
    }

    /// Waits until all queued events are written or dropped, for a bounded time. Blocks.
    pub(super) fn flush(&self) {
        let (done, written) = mpsc::channel();
        if self.messages.try_send(Message::Flush(done)).is_ok() {
            // Bounded: a hanging disk must not keep the service from starting or stopping.
            let _ = written.recv_timeout(FLUSH);
        }
    }

    pub(super) fn dropped(&self) -> DroppedEvents {
        self.dropped.lock().clone()
    }
}

fn serve(mut file: Destination, messages: &Receiver<Message>) {
    loop {
        match messages.recv_timeout(RETRY) {
            Ok(first) => serve_batch(&mut file, first, messages),
            Err(RecvTimeoutError::Timeout) => file.try_again(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn serve_batch(file: &mut Destination, first: Message, messages: &Receiver<Message>) {
    let mut batch = Batch::default();
    batch.add(first);
    batch.gather(messages);
    let events: Vec<_> = batch.events.into_values().collect();
    file.write(&events);
    // The caller may have timed out.
    for done in &batch.flushes {
        let _ = done.send(());
    }
}

/// Events that are written together. Of a repeated event only the latest state.
#[derive(Default)]
struct Batch {
    events: BTreeMap<u64, Arc<Event>>,
    flushes: Vec<Sender<()>>,
}

impl Batch {
    fn add(&mut self, message: Message) {
        match message {
            Message::Event(event) => drop(self.events.insert(event.sequence, event)),
            Message::Flush(done) => self.flushes.push(done),
        }
    }

    fn gather(&mut self, messages: &Receiver<Message>) {
        let end = Instant::now() + BATCH;
        // A flush ends the batch early: its caller waits.
        while self.flushes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(message) = messages.recv_timeout(left) else { return };
            self.add(message);
        }
    }
}

/// The file and what is needed to write it again.
struct Destination {
    path: PathBuf,
    log: Arc<Mutex<Log>>,
    /// `None`: not written yet, or the latest attempt failed.
    file: Option<EventFile>,
    dropped: Arc<Mutex<DroppedEvents>>,
}

impl Destination {
    fn write(&mut self, events: &[Arc<Event>]) {
        let written = match &mut self.file {
            Some(file) if !file.is_long() => file.append(events),
            // The log in memory already contains these events, so a rewrite includes them.
            _ => self.rewrite(),
        };
        let mut dropped = self.dropped.lock();
        match written {
            Ok(()) => dropped.note_written(),
            Err(error) => {
                dropped.note(events, error.to_string());
                tracing::error!(path = %self.path.display(), %error, dropped = dropped.number, "cannot write the file of events; events are dropped");
            }
        }
    }

    /// Retries a failed file with the latest event. Writing it twice is harmless: the last line of an event counts.
    fn try_again(&mut self) {
        if self.dropped.lock().failure.is_none() {
            return;
        }
        let latest = self.log.lock().latest().cloned();
        let written = match &mut self.file {
            Some(file) => file.append(latest.as_slice()),
            None => self.rewrite(),
        };
        if written.is_ok() {
            self.dropped.lock().note_written();
        }
    }

    /// Writes the whole log to a new file, which drops outdated lines.
    fn rewrite(&mut self) -> io::Result<()> {
        let all: Vec<_> = {
            let log = self.log.lock();
            log.all().cloned().collect()
        };
        self.file = Some(EventFile::create(&self.path, &all)?);
        Ok(())
    }
}
