//! Errors of a connection to a database.

use std::{io, path::PathBuf};

/// Why a request to a database failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as ovsdb::Error")]
pub enum Error {
    /// The client cannot connect to the socket.
    #[error("cannot connect to the database at {socket}")]
    Connect {
        /// Path of the socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The connection was closed. A transaction in progress may have been carried out.
    #[error("the connection to the database at {socket} has ended: {why}")]
    Closed {
        /// Path of the socket.
        socket: PathBuf,
        /// Who closed it, or why.
        why: String,
    },
    /// The server did not respond in time. It may still carry out a transaction.
    #[error("the database at {socket} has not {what} in {milliseconds} ms")]
    TimedOut {
        /// Path of the socket.
        socket: PathBuf,
        /// What was expected, such as `answered`.
        what: &'static str,
        /// The timeout, in milliseconds.
        milliseconds: u128,
    },
    /// A check of the transaction does not hold. Nothing was changed.
    #[error("another client changed the database at the same time")]
    NotSame,
    /// The server refused. Nothing was changed.
    #[error("the database refused: {error}{}", in_brackets(details))]
    Refused {
        /// Name of the error (RFC 7047, section 3.1).
        error: String,
        /// The server's description; may be empty.
        details: String,
    },
    /// The schema is another one, or older than required.
    #[error(
        "the schema of database {database} has version {version} and no {missing}: it is too old, or another schema"
    )]
    TooOld {
        /// Name of the database.
        database: String,
        /// The server's schema version.
        version: String,
        /// The missing table or column.
        missing: String,
    },
    /// The server sent a malformed answer.
    #[error("the database sent a malformed answer: {why}")]
    Garbage {
        /// What is wrong with the answer.
        why: &'static str,
    },
}

fn in_brackets(details: &str) -> String {
    if details.is_empty() { String::new() } else { format!(" ({details})") }
}
