//! Errors of opening, reading and writing a journal.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The underlying error.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a journal cannot be opened. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused an operation.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation, such as `create`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has the file open.
    #[error("{} is in use by another process: stop that process first", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file belongs to another program, or is no journal.
    #[error("{} is not a journal of {expected}, but {found}: move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The program that opens it.
        expected: &'static str,
        /// What the file is.
        found: String,
    },
    /// A newer version of the program wrote it.
    #[error(
        "{} has schema version {found}, and this program knows versions up to {known}: run the \
         newer program", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The file's version is too old to be migrated.
    #[error(
        "{} has schema version {found}, and this program reads versions from {oldest} on: run a version in \
         between first", path.display()
    )]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The oldest version that this program can read.
        oldest: u32,
    },
    /// A migration from an older version failed.
    #[error(
        "{} cannot be migrated from schema version {found}: run the program that wrote it",
        path.display()
    )]
    Migration {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Why it failed.
        source: Cause,
    },
    /// The file is damaged. It is never overwritten.
    #[error(
        "{} is damaged: docs/OPERATIONS.md says under State and backups what to do before it is moved away",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Cause,
    },
}

impl OpenError {
    pub(crate) fn damaged(path: &Path, source: impl Into<Cause>) -> Self {
        Self::Damaged { path: path.to_owned(), source: source.into() }
    }
}

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk or the file's content failed.
    #[error("cannot read the journal")]
    Failed(#[source] Cause),
    /// The schema has no such table.
    #[error("the journal has no table {0:?}")]
    NoTable(&'static str),
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}

/// Why a commit failed. None of its changes were made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The disk or the file's content failed. All commits of the transaction get the same error.
    #[error("cannot write {}", path.display())]
    Failed {
        /// The file.
        path: Arc<Path>,
        /// The underlying error.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The schema has no such table.
    #[error("the journal has no table {0:?}")]
    NoTable(&'static str),
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}
