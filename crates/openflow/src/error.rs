//! Errors of a connection to a switch.

use std::{io, path::PathBuf};

/// Why a request to a switch failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as openflow::Error")]
pub enum Error {
    #[error("cannot connect to the switch at {socket}")]
    Connect { socket: PathBuf, source: io::Error },
    /// The connection was closed. The request may have been carried out.
    #[error("the connection to the switch at {socket} has ended")]
    Closed { socket: PathBuf },
    /// The switch did not answer in time. It may still carry out the request.
    #[error("the switch at {socket} has not answered in {milliseconds} ms")]
    TimedOut { socket: PathBuf, milliseconds: u128 },
    /// The switch refused. Nothing was changed.
    #[error("the switch refused: {} (type {kind}, code {code})", name_of(*kind))]
    Refused {
        /// Error type (OpenFlow 1.3.5, section 7.4.4).
        kind: u16,
        /// Error code within the type.
        code: u16,
    },
    #[error("the switch sent an invalid message: {why}")]
    Garbage { why: &'static str },
    #[error("the switch does not speak OpenFlow 1.3: add OpenFlow13 to the bridge's `protocols`")]
    Version,
}

const fn name_of(kind: u16) -> &'static str {
    match kind {
        0 => "no version in common",
        1 => "bad request",
        2 => "bad action",
        3 => "bad instruction",
        4 => "bad match",
        5 => "the flow cannot be set",
        12 => "the meter cannot be set",
        0xffff | 17 => "the bundle cannot be committed",
        _ => "an error",
    }
}
