//! What can go wrong between a client and a switch.

use std::{io, path::PathBuf};

/// Why a switch did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::error_impl_error, reason = "its users read it as openflow::Error")]
pub enum Error {
    /// Nobody can be talked to at that socket.
    #[error("no switch can be talked to at {socket}")]
    Connect {
        /// Where.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The connection has ended. What was asked for may have been done.
    #[error("the connection to the switch at {socket} has ended")]
    Closed {
        /// Where.
        socket: PathBuf,
    },
    /// The switch has not answered in time. What was asked for may be done yet.
    #[error("the switch at {socket} has not answered in {milliseconds} ms")]
    TimedOut {
        /// Where.
        socket: PathBuf,
        /// How long it was waited for.
        milliseconds: u128,
    },
    /// The switch refused. Nothing was changed.
    #[error("the switch refused: {} (type {kind}, code {code})", name_of(*kind))]
    Refused {
        /// The type of its error (OpenFlow 1.3.5, section 7.4.4).
        kind: u16,
        /// The code within that.
        code: u16,
    },
    /// The switch said something that is no OpenFlow.
    #[error("the switch said something that can't be read: {why}")]
    Garbage {
        /// What is wrong with it.
        why: &'static str,
    },
    /// The switch does not speak OpenFlow 1.3.
    #[error("the switch does not speak OpenFlow 1.3: let the bridge's `protocols` have OpenFlow13")]
    Version,
}

const fn name_of(kind: u16) -> &'static str {
    match kind {
        0 => "no version in common",
        1 => "bad request",
        2 => "bad action",
        3 => "bad instruction",
        4 => "bad match",
        5 => "the flow can't be set",
        12 => "the meter can't be set",
        0xffff | 17 => "the changes can't be made together",
        _ => "an error",
    }
}
