//! The thread that writes events to their file, in batches.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use super::{event::Event, file::EventFile, log::Log};

/// How long events are collected before they are written together.
const BATCH: Duration = Duration::from_millis(500);
/// How many events wait for a disk that does not answer.
const WAITING: usize = 4096;
/// How long a start or a stop waits for its batch.
const FLUSH: Duration = Duration::from_secs(2);

enum Message {
    Event(Arc<Event>),
    Flush(Sender<()>),
}

/// The way to the thread that writes. The thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread. It writes to the file at `path`, and at first all of the log to a new file there.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(path: PathBuf, log: Arc<Mutex<Log>>) -> io::Result<Self> {
        let (messages, received) = mpsc::sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let file = Destination { path, log, file: None, dropped: Arc::clone(&dropped) };
        thread::Builder::new().name("events".into()).spawn(move || serve(file, &received))?;
        Ok(Self { messages, dropped })
    }

    /// Queues an event. It is dropped and counted if the disk does not keep up.
    pub(super) fn write(&self, event: Arc<Event>) {
        if let Err(TrySendError::Full(_)) = self.messages.try_send(Message::Event(event)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all queued events are written or dropped, for a bounded time. Blocks.
    pub(super) fn flush(&self) {
        let (done, written) = mpsc::channel();
        if self.messages.try_send(Message::Flush(done)).is_ok() {
            // A disk that hangs must not keep the service from starting or ending.
            let _ = written.recv_timeout(FLUSH);
        }
    }

    /// How many events are not in the file.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn serve(mut file: Destination, messages: &Receiver<Message>) {
    while let Ok(first) = messages.recv() {
        let mut batch = Batch::default();
        batch.add(first);
        batch.gather(messages);
        let events: Vec<_> = batch.events.into_values().collect();
        file.write(&events);
        // The caller may no longer wait.
        for done in &batch.flushes {
            let _ = done.send(());
        }
    }
}

/// Events that are written together. Of an event that repeats, the latest state.
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
        while self.flushes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(message) = messages.recv_timeout(left) else { return };
            self.add(message);
        }
    }
}

/// Where events are written.
struct Destination {
    path: PathBuf,
    log: Arc<Mutex<Log>>,
    /// `None`: it was not written yet, or could not be.
    file: Option<EventFile>,
    dropped: Arc<AtomicU64>,
}

impl Destination {
    fn write(&mut self, events: &[Arc<Event>]) {
        let written = match &mut self.file {
            Some(file) if !file.is_long() => file.append(events),
            _ => self.rewrite(),
        };
        if let Err(error) = written {
            let number = events.len() as u64;
            let dropped = self.dropped.fetch_add(number, Ordering::Relaxed) + number;
            tracing::error!(path = %self.path.display(), %error, dropped, "events were dropped: their file can't be written");
        }
    }

    /// Writes the whole log to a new file, which has no outdated lines.
    fn rewrite(&mut self) -> io::Result<()> {
        let all: Vec<_> = {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.all().cloned().collect()
        };
        self.file = Some(EventFile::create(&self.path, &all)?);
        Ok(())
    }
}
