//! Why a journal can't be opened, read or written.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What went wrong underneath.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a journal can't be opened. Its file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused something.
    #[error("can't {doing} {}", path.display())]
    Io {
        /// What, such as `create`.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one first", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to another program, or to none.
    #[error("{} is not a journal of {expected}, but {found}: move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The program that wanted it.
        expected: &'static str,
        /// What it is.
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
    /// A version of the program wrote it that is too old for this one.
    #[error(
        "{} has schema version {found}, and this program reads versions from {oldest} on: run one in \
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
    /// What an older version of the program wrote can't be turned into what this one reads.
    #[error(
        "{} can't be migrated from schema version {found}: run the program that wrote it",
        path.display()
    )]
    Migration {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Why not.
        source: Cause,
    },
    /// It can't be read. It is never overwritten.
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

/// Why a journal can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk, or what is on it.
    #[error("can't read the journal")]
    Failed(#[source] Cause),
    /// The schema names no such table.
    #[error("the journal has no table {0:?}")]
    NoTable(&'static str),
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}

/// Why a commit failed. Nothing of it has happened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The disk, or what is on it. Shared by all commits of one transaction.
    #[error("can't write {}", path.display())]
    Failed {
        /// The file.
        path: Arc<Path>,
        /// Why.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The schema names no such table.
    #[error("the journal has no table {0:?}")]
    NoTable(&'static str),
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}
