//! A durable table of records with group commit.
//!
//! One file, a few tables of keys and values. A [`Journal::commit`] is in the file, and on the disk
//! unless it need not [outlive][`Outlives`] the machine, when it returns; calls that wait at the same
//! time share one transaction and one sync of the disk.
//! After an I/O error the file is opened again by itself, and what the failed transaction may have
//! left in it is taken back first: a commit that was answered with an error has not happened.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod change;
mod error;
#[cfg(feature = "fault-injection")]
pub mod faulty_disk;
mod file;
mod journal;
mod migrate;
mod own_table;
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
