//! What can go wrong between a client and a database.

use std::{io, path::PathBuf};

/// Why a database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as ovsdb::Error")]
pub enum Error {
    /// Nobody can be talked to at that socket.
    #[error("no database can be talked to at {socket}")]
    Connect {
        /// Where.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The connection has ended. A transaction that was under way may have been carried out.
    #[error("the connection to the database at {socket} has ended: {why}")]
    Closed {
        /// Where.
        socket: PathBuf,
        /// By whom or what.
        why: String,
    },
    /// The answer, or what was waited for, did not come in time. A transaction may be carried out yet.
    #[error("the database at {socket} has not {what} in {milliseconds} ms")]
    TimedOut {
        /// Where.
        socket: PathBuf,
        /// What was waited for.
        what: &'static str,
        /// How long.
        milliseconds: u128,
    },
    /// What a check of the transaction asks for does not hold. Nothing was changed.
    #[error("the database was changed meanwhile")]
    NotSame,
    /// The server refused. Nothing was changed.
    #[error("the database refused: {error}{}", in_brackets(details))]
    Refused {
        /// By its name (RFC 7047, section 3.1).
        error: String,
        /// In the server's words; may be empty.
        details: String,
    },
    /// The database is of another kind, or of an older release.
    #[error(
        "the schema of database {database} is of version {version} and has no {missing}: it is older than what this \
         needs, or another one"
    )]
    TooOld {
        /// Its name.
        database: String,
        /// What the server says of it.
        version: String,
        /// What it lacks: a table, or a column of one.
        missing: String,
    },
    /// The server answered something that is no answer.
    #[error("the database answered what is none: {why}")]
    Garbage {
        /// What is wrong with it.
        why: &'static str,
    },
}

fn in_brackets(details: &str) -> String {
    if details.is_empty() { String::new() } else { format!(" ({details})") }
}
