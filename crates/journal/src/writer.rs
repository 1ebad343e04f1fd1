//! The thread that owns the file.
//!
//! Commits arrive in a queue, in the order of their calls. All commits that arrived during a transaction's sync share
//! the next transaction. No other code reads or writes the file, so that no lock guards it. Other threads only read
//! [`Health`], which has a mutex of its own.

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::{Change, OpenError, ReadError, Rows, WriteError, error::Cause, store::Store};

/// Most commits of one transaction.
const GROUP: usize = 512;

pub(crate) enum Message {
    Read { table: &'static str, answer: Sender<Result<Rows, ReadError>> },
    Write { changes: Vec<Change>, answer: Option<Answer>, queued: Instant },
}

type Answer = oneshot::Sender<Result<(), WriteError>>;

#[derive(Default)]
struct Group {
    commits: u64,
    changes: Vec<Change>,
    answers: Vec<Answer>,
}

/// Counters of a journal since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Commits that succeeded.
    pub commits: u64,
    /// Transactions of these commits.
    pub transactions: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    problem: Option<WriteError>,
    /// When the oldest write in progress was queued; queued writes are younger. `None`: no write is in progress.
    waiting_since: Option<Instant>,
    statistics: Statistics,
}

/// Reopens the store.
type Open = Box<dyn Fn() -> Result<Store, OpenError> + Send>;

pub(crate) struct Writer {
    /// `None` after an error: redb refuses all further work on a failed file.
    store: Option<Store>,
    open: Open,
    path: Arc<Path>,
    /// Inverse changes of the failed transaction. The file may contain the transaction even so, if only the sync
    /// failed.
    undo: Vec<Change>,
    health: Arc<Health>,
}

impl Writer {
    pub(crate) fn new(store: Store, open: Open, path: &Path, health: Arc<Health>) -> Self {
        Self { store: Some(store), open, path: path.into(), undo: Vec::new(), health }
    }

    /// Runs until all senders are gone and their messages are handled.
    pub(crate) fn serve(mut self, messages: &Receiver<Message>) {
        let mut next = None;
        while let Some(message) = next.take().or_else(|| messages.recv().ok()) {
            match message {
                Message::Read { table, answer } => {
                    // The caller may have stopped waiting.
                    let _ = answer.send(self.read(table));
                }
                Message::Write { changes, answer, queued } => {
                    self.health.begin(queued);
                    let mut group = Group::default();
                    group.add(changes, answer);
                    // A read ends the group, so that it sees the commits before it and none after it.
                    next = group.gather(messages);
                    self.commit(group);
                }
            }
        }
    }

    fn read(&mut self, table: &'static str) -> Result<Rows, ReadError> {
        let store = self.opened().map_err(ReadError::Failed)?;
        store.read_all(table).map_err(|error| ReadError::Failed(error.into()))
    }

    fn commit(&mut self, group: Group) {
        let result = self.write(&group.changes).map_err(|cause| {
            let (path, source) = (Arc::clone(&self.path), cause.into());
            WriteError::Failed { path, source }
        });
        // Before the answers, so that a caller with an error already finds it in `problem`.
        self.health.note(&result, group.commits);
        for answer in group.answers {
            // The caller may have stopped waiting.
            let _ = answer.send(result.clone());
        }
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), Cause> {
        let mut undo = Vec::new();
        let result = self.opened()?.apply(changes, &mut undo);
        if result.is_err() {
            self.store = None;
            // Later changes of a row must be undone first.
            undo.reverse();
            self.undo = undo;
        }
        Ok(result?)
    }

    /// The store. Reopens it after an error and first undoes the failed transaction.
    fn opened(&mut self) -> Result<&Store, Cause> {
        if self.store.is_none() {
            let store = (self.open)()?;
            // Undo before any other write: a caller that got the error may have queued the same change again.
            store.apply(&self.undo, &mut Vec::new())?;
            self.undo.clear();
            tracing::info!("the journal is open again after an error");
            return Ok(self.store.insert(store));
        }
        self.store.as_ref().ok_or_else(|| "the journal is not open".into())
    }
}

impl Group {
    fn add(&mut self, changes: Vec<Change>, answer: Option<Answer>) {
        self.commits += 1;
        self.changes.extend(changes);
        self.answers.extend(answer);
    }

    /// Adds the waiting commits up to the first message of another kind, which it returns.
    fn gather(&mut self, messages: &Receiver<Message>) -> Option<Message> {
        for _ in 1..GROUP {
            match messages.try_recv().ok()? {
                Message::Write { changes, answer, .. } => self.add(changes, answer),
                read @ Message::Read { .. } => return Some(read),
            }
        }
        None
    }
}

impl Health {
    pub(crate) fn problem(&self) -> Option<WriteError> {
        self.lock().problem.clone()
    }

    pub(crate) fn waiting(&self) -> Option<Duration> {
        self.lock().waiting_since.map(|since| since.elapsed())
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.lock().statistics
    }

    fn begin(&self, queued: Instant) {
        self.lock().waiting_since = Some(queued);
    }

    fn note(&self, result: &Result<(), WriteError>, commits: u64) {
        let mut state = self.lock();
        state.waiting_since = None;
        state.problem = result.as_ref().err().cloned();
        match result {
            Ok(()) => {
                state.statistics.commits += commits;
                state.statistics.transactions += 1;
            }
            Err(error) => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                tracing::error!(%error, cause, commits, "a journal transaction failed");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
