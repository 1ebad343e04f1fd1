//! How our TCP connections are.

use std::{io, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

/// Has each answer sent at once, instead of waiting for the peer's delayed acknowledgement, which
/// costs 25 ms; and has the kernel close the connection once the peer has taken nothing of what it
/// was sent for `patience`. HTTP/2 can't: it waits to send its farewell to a peer that never reads.
pub(crate) fn prepare(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    setsockopt(stream, sockopt::TcpUserTimeout, &milliseconds)?;
    Ok(())
}
