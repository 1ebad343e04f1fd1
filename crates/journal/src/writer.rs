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
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{Change, OpenError, ReadError, Rows, WriteError, error::Cause, store::Store};

/// Most commits of one transaction.
const GROUP: usize = 512;

pub(crate) enum Message {
    Read { table: &'static str, answer: Sender<Result<Rows, ReadError>> },
    Write { changes: Vec<Change>, answer: Answer, queued: Instant },
}

type Answer = oneshot::Sender<Result<(), WriteError>>;

#[derive(Default)]
struct Group {
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
pub(crate) struct Health {
    /// The error of the latest transaction.
    pub(crate) problem: Option<WriteError>,
    /// When the oldest write in progress was queued; queued writes are younger. `None`: no write is in progress.
    pub(crate) waiting_since: Option<Instant>,
    pub(crate) statistics: Statistics,
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
    health: Arc<Mutex<Health>>,
}

impl Writer {
    pub(crate) fn new(store: Store, open: Open, path: &Path, health: Arc<Mutex<Health>>) -> Self {
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
                    self.health.lock().waiting_since = Some(queued);
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
        self.note(&result, group.answers.len() as u64);
        for answer in group.answers {
            // The caller may have stopped waiting.
            let _ = answer.send(result.clone());
        }
    }

    fn note(&self, result: &Result<(), WriteError>, commits: u64) {
        let mut health = self.health.lock();
        health.waiting_since = None;
        health.problem = result.as_ref().err().cloned();
        match result {
            Ok(()) => {
                health.statistics.commits += commits;
                health.statistics.transactions += 1;
            }
            Err(error) => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                tracing::error!(%error, cause, commits, "a journal transaction failed");
            }
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
    fn add(&mut self, changes: Vec<Change>, answer: Answer) {
        self.changes.extend(changes);
        self.answers.push(answer);
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
