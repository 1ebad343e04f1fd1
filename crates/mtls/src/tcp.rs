//! Socket options of TCP connections.

use std::{io, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

/// Sends small messages at once: with Nagle's algorithm an answer waits for the peer's delayed acknowledgement, which
/// costs 25 ms. Closes the connection when sent data stays unacknowledged for `unread`: HTTP/2 cannot, because it waits
/// to send GOAWAY to a peer that never reads.
pub(crate) fn prepare(stream: &TcpStream, unread: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let milliseconds = u32::try_from(unread.as_millis()).unwrap_or(u32::MAX);
    setsockopt(stream, sockopt::TcpUserTimeout, &milliseconds)?;
    Ok(())
}
