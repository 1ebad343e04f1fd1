//! Errors of a connection to a database.

use std::{io, path::PathBuf};

/// Why a request to a database failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as ovsdb::Error")]
pub enum Error {
    #[error("cannot connect to the database at {socket}")]
    Connect { socket: PathBuf, source: io::Error },
    /// The connection was closed. A transaction in progress may have been carried out.
    #[error("the connection to the database at {socket} has ended: {why}")]
    Closed { socket: PathBuf, why: String },
    /// The server did not respond in time. It may still carry out a transaction.
    #[error("the database at {socket} has not {what} in {milliseconds} ms")]
    TimedOut {
        socket: PathBuf,
        /// What was expected, such as `answered`.
        what: &'static str,
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
    #[error(
        "the schema of database {database} has version {version} and no {missing}: it is too old, or another schema"
    )]
    TooOld { database: String, version: String, missing: String },
    #[error("the database sent a malformed answer: {why}")]
    Garbage { why: &'static str },
}

fn in_brackets(details: &str) -> String {
    if details.is_empty() { String::new() } else { format!(" ({details})") }
}
