//! The one thread that has the file.
//!
//! Commits come to it in a queue, in the order of their calls. All that have come while a transaction was
//! being synced are the next one together. Nothing else reads or writes the file, so that no lock guards
//! it; only [`Health`] is looked at by others.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::{Change, OpenError, ReadError, Rows, WriteError, error::Cause, store::Store};

/// How many commits share a transaction at most.
const GROUP: usize = 512;

/// What the writer is asked.
pub(crate) enum Message {
    Read { table: &'static str, answer: Sender<Result<Rows, ReadError>> },
    Write { changes: Vec<Change>, answer: Option<Answer>, queued: Instant },
}

type Answer = oneshot::Sender<Result<(), WriteError>>;

/// A transaction's members.
#[derive(Default)]
struct Group {
    commits: u64,
    changes: Vec<Change>,
    answers: Vec<Answer>,
}

/// What a journal has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Commits that succeeded.
    pub commits: u64,
    /// Transactions that they took.
    pub transactions: u64,
}

/// How the writer is doing.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    problem: Option<WriteError>,
    /// When the oldest write under way was queued. Those in the queue are younger. `None`: none is under way.
    waiting_since: Option<Instant>,
    statistics: Statistics,
}

/// Opens the store again.
type Open = Box<dyn Fn() -> Result<Store, OpenError> + Send>;

pub(crate) struct Writer {
    /// `None` after an error: redb refuses all further work on a file that failed.
    store: Option<Store>,
    open: Open,
    path: Arc<Path>,
    /// What undoes the transaction that failed: it may be in the file all the same, when it was the
    /// sync that failed.
    take_back: Vec<Change>,
    health: Arc<Health>,
}

impl Writer {
    pub(crate) fn new(store: Store, open: Open, path: &Path, health: Arc<Health>) -> Self {
        Self { store: Some(store), open, path: path.into(), take_back: Vec::new(), health }
    }

    /// Serves until all senders are gone and their messages are done.
    pub(crate) fn serve(mut self, messages: &Receiver<Message>) {
        let mut next = None;
        while let Some(message) = next.take().or_else(|| messages.recv().ok()) {
            match message {
                Message::Read { table, answer } => {
                    // A reader that is gone needs no answer.
                    let _ = answer.send(self.read(table));
                }
                Message::Write { changes, answer, queued } => {
                    self.health.begin(queued);
                    let mut group = Group::default();
                    group.add(changes, answer);
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
        self.health.note(&result, group.commits);
        for answer in group.answers {
            // A caller that is gone needs no answer.
            let _ = answer.send(result.clone());
        }
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), Cause> {
        let mut take_back = Vec::new();
        let result = self.opened()?.apply(changes, &mut take_back);
        if result.is_err() {
            self.store = None;
            take_back.reverse();
            self.take_back = take_back;
        }
        Ok(result?)
    }

    /// The store, opened again and set right if need be.
    fn opened(&mut self) -> Result<&Store, Cause> {
        if self.store.is_none() {
            let store = (self.open)()?;
            // Before anything else is written: whoever was told that it failed may have tried again.
            store.apply(&self.take_back, &mut Vec::new())?;
            self.take_back.clear();
            tracing::info!("the journal is open again");
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

    /// Takes in the commits that wait, up to the first message that is none, which it returns.
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
                tracing::error!(%error, cause, commits, "a transaction failed");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
