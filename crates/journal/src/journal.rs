//! The handle of a journal.

use std::{
    fmt,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    task::{Context, Poll},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    Change, OpenError, Outlives, ReadError, Rows, Schema, WriteError, file,
    storage::{FileBackend, StorageBackend},
    store::Store,
    writer::{Health, Message, Statistics, Writer},
};

/// Durable tables of records. Dropping it waits until pending commits have finished.
pub struct Journal {
    schema: Schema,
    health: Arc<Mutex<Health>>,
    /// `None` while the journal is being closed.
    sender: Option<Sender<Message>>,
    writer: Option<JoinHandle<()>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Journal").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in the file `path`, or creates it in an existing directory. `commits` says what commits
    /// survive.
    ///
    /// # Errors
    /// See [`OpenError`]. An existing file is unchanged.
    pub fn open(path: &Path, schema: Schema, commits: Outlives) -> Result<Self, OpenError> {
        Self::open_with(path, schema, commits, |file| file)
    }

    /// Like [`Self::open`], with `wrap` between the journal and its file, so that a test can make the disk fail. The
    /// journal calls `wrap` again when it reopens its file after an error.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_with<B: StorageBackend>(
        path: &Path,
        schema: Schema,
        commits: Outlives,
        wrap: impl Fn(FileBackend) -> B + Send + 'static,
    ) -> Result<Self, OpenError> {
        file::create_if_missing(path, &schema)?;
        file::check(path, &schema)?;
        let place = path.to_owned();
        let open = move || {
            let backend = wrap(file::open_backend(&place)?);
            Store::open(backend, &place, &schema, commits)
        };
        let first = open()?;
        let health = Arc::<Mutex<Health>>::default();
        let (sender, receiver) = mpsc::channel();
        let writer = Writer::new(first, Box::new(open), path, Arc::clone(&health));
        let writer = thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.serve(&receiver))
            .map_err(|source| OpenError::Io {
                doing: "start the writer of",
                path: path.to_owned(),
                source,
            })?;
        Ok(Self { schema, health, sender: Some(sender), writer: Some(writer) })
    }

    /// Returns all rows of `table`. Blocks; intended for a program's start.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_all(&self, table: &'static str) -> Result<Rows, ReadError> {
        if !self.schema.tables.contains(&table) {
            return Err(ReadError::NoTable(table));
        }
        let (answer, rows) = mpsc::channel();
        self.send(Message::Read { table, answer });
        rows.recv().map_err(|_| ReadError::Closed)?
    }

    /// Makes all `changes` in order, or none. They are queued at once in the order of the calls, even if the future is
    /// never polled: a caller that does not need the outcome drops it. A failure is logged.
    ///
    /// # Errors
    /// See [`WriteError`]. Then no change was made.
    pub fn commit(&self, changes: Vec<Change>) -> Commit {
        let is_foreign = |change: &&Change| !self.schema.tables.contains(&change.table);
        match changes.iter().find(is_foreign) {
            Some(change) => {
                tracing::error!(
                    table = change.table,
                    "cannot commit to the journal: unknown table"
                );
                Commit(Err(WriteError::NoTable(change.table)))
            }
            None => Commit(Ok(self.send_write(changes))),
        }
    }

    /// Writes an unused row to check that writing works.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn probe(&self) -> Commit {
        Commit(Ok(self.send_write(vec![Store::probe()])))
    }

    /// The error of the latest transaction. `None`: it succeeded.
    #[must_use]
    pub fn problem(&self) -> Option<WriteError> {
        self.health.lock().problem.clone()
    }

    /// How long the oldest pending write has waited for the disk. `None`: no write is pending.
    #[must_use]
    pub fn waiting(&self) -> Option<Duration> {
        self.health.lock().waiting_since.map(|since| since.elapsed())
    }

    /// Counters since the journal was opened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.health.lock().statistics
    }

    fn send_write(&self, changes: Vec<Change>) -> Answer {
        let (answer, done) = oneshot::channel();
        self.send(Message::Write { changes, answer, queued: Instant::now() });
        done
    }

    /// If the writer has ended the message is dropped with its `answer`, which the caller notices.
    fn send(&self, message: Message) {
        if let Some(sender) = &self.sender {
            let _ = sender.send(message);
        }
    }
}

type Answer = oneshot::Receiver<Result<(), WriteError>>;

/// A pending commit: a future of its outcome. Dropping it does not cancel the commit.
#[derive(Debug)]
pub struct Commit(Result<Answer, WriteError>);

impl Commit {
    /// Blocks until the commit is durable or has failed.
    ///
    /// # Errors
    /// See [`WriteError`]. Then no change was made.
    ///
    /// # Panics
    /// If called on a thread that must not block, such as one of an asynchronous task.
    pub fn wait(self) -> Result<(), WriteError> {
        self.0?.blocking_recv().unwrap_or(Err(WriteError::Closed))
    }
}

impl Future for Commit {
    type Output = Result<(), WriteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(answer) => {
                Pin::new(answer).poll(context).map(|done| done.unwrap_or(Err(WriteError::Closed)))
            }
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the journal's writer thread panicked");
        }
    }
}
