//! A call of the plugin: one connection.
//!
//! The plugin shuts down its half of the connection after the request, so end of file says nothing about it. When it
//! exits, killed or not, the kernel also shuts down the other half and reports a hangup.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{Shutdown, shutdown},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
    time::timeout,
};

use super::{Answer, Form};
use crate::protocol::{END_OF_ANSWER, HEARTBEAT};

/// How long a caller may take to exit after the answer. One that takes longer is alive and will read it.
const END_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct PluginCall {
    stream: UnixStream,
    /// A duplicate of the connection, polled only for its hangup.
    end: AsyncFd<OwnedFd>,
    form: Form,
}

impl PluginCall {
    pub(super) fn new(stream: UnixStream, form: Form) -> io::Result<Self> {
        let end = stream.as_fd().try_clone_to_owned()?;
        Ok(Self { stream, end: watch(end)?, form })
    }

    pub(super) fn has_ended(&self) -> io::Result<bool> {
        // The kernel reports POLLHUP and POLLERR without being asked for them.
        let mut look = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        poll(&mut look, PollTimeout::ZERO)?;
        let found = look[0].revents().unwrap_or(PollFlags::empty());
        Ok(found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    pub(super) async fn ended(&self) -> io::Result<()> {
        self.end.ready(Interest::PRIORITY).await.map(drop)
    }

    pub(super) async fn send_heartbeat(&self) -> io::Result<()> {
        self.write(HEARTBEAT).await
    }

    pub(super) async fn send(&self, answer: Answer) -> io::Result<()> {
        let mut document = self.form.document(answer)?;
        document.push(END_OF_ANSWER);
        self.write(&document).await
    }

    /// Shuts down our half of the connection.
    pub(super) fn close(&self) -> io::Result<()> {
        Ok(shutdown(self.stream.as_raw_fd(), Shutdown::Write)?)
    }

    /// Waits until an answered caller exits, and returns whether it had read the answer: the kernel resets the
    /// connection of a socket that closes with unread data. Our half stays open until then, because with both halves
    /// shut down the kernel reports a hangup at once.
    pub(super) async fn has_received(&self) -> io::Result<bool> {
        match timeout(END_LIMIT, self.ended()).await {
            Ok(_) => Ok(self.stream.take_error()?.is_none()),
            Err(_) => Ok(true),
        }
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Watches a socket for its hangup. A Unix socket never has priority data, so this interest only wakes for a hangup.
#[expect(deprecated, reason = "sound with an owned descriptor, and what replaces it is unsafe")]
fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(socket, Interest::PRIORITY)
}
