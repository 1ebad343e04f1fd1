//! Durable tables of records with group commit.
//!
//! A journal is one file with a few tables of keys and values. When a [`Journal::commit`] returns it is in the file,
//! and on the disk unless it only has to [outlive][`Outlives`] the process. Calls that wait at the same time share one
//! transaction and one sync.
//!
//! After an I/O error the journal reopens the file. It first undoes what the failed transaction may have left in it: a
//! commit that returned an error has not happened.
//!
//! One thread, the writer, owns the file; callers send it messages. No lock guards the file.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod change;
mod error;
#[cfg(feature = "fault-injection")]
pub mod faulty_disk;
mod file;
mod journal;
mod metadata;
mod migrate;
mod schema;
pub mod storage;
mod store;
mod syncs;
mod writer;

pub use change::Change;
pub use error::{Cause, OpenError, ReadError, WriteError};
pub use journal::{Commit, Journal};
pub use schema::{Migration, Rows, Schema, Tables};
pub use syncs::Outlives;
pub use writer::Statistics;
