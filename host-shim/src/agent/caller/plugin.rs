//! The plugin's line: a connection for each call.
//!
//! The plugin shuts its half of the connection down as soon as it has asked, so that the end of its
//! words says nothing. Once it has ended, be it killed, the other half is shut as well, which the
//! kernel tells as a hangup.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
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

use super::{Answer, END_LIMIT, Form};
use crate::protocol::{END_OF_ANSWER, HEARTBEAT};

/// The connection that a call came by.
#[derive(Debug)]
pub(super) struct PluginLine {
    stream: UnixStream,
    /// The same connection, watched for its end alone.
    end: AsyncFd<OwnedFd>,
    form: Form,
}

impl PluginLine {
    pub(super) fn new(stream: UnixStream, form: Form) -> io::Result<Self> {
        let end = stream.as_fd().try_clone_to_owned()?;
        Ok(Self { stream, end: watch(end)?, form })
    }

    pub(super) fn has_ended(&self) -> io::Result<bool> {
        let mut look = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        poll(&mut look, PollTimeout::ZERO)?;
        let found = look[0].revents().unwrap_or(PollFlags::empty());
        Ok(found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    pub(super) async fn ended(&self) -> io::Result<()> {
        self.end.ready(Interest::PRIORITY).await.map(drop)
    }

    pub(super) async fn beat(&self) -> io::Result<()> {
        self.write(HEARTBEAT).await
    }

    pub(super) async fn tell(&self, answer: Answer) -> io::Result<()> {
        let mut document = self.form.document(answer)?;
        document.push(END_OF_ANSWER);
        self.write(&document).await
    }

    /// Says that nothing more will be said.
    pub(super) fn close(&self) -> io::Result<()> {
        Ok(shutdown(self.stream.as_raw_fd(), Shutdown::Write)?)
    }

    /// Waits until a caller that was answered ends, and tells whether it had read the answer: the kernel
    /// resets the connection of one that ends with something unread. Our half stays open until then:
    /// with both halves shut, its end would be told at once.
    pub(super) async fn has_heard(&self) -> io::Result<bool> {
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

/// Watches a socket for its hangup: such a one has nothing of priority, so that this is all that is left
/// to be told of it.
#[expect(deprecated, reason = "sound with an owned descriptor, and what replaces it is unsafe")]
fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(socket, Interest::PRIORITY)
}
