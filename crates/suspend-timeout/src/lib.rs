//! Timeouts that do not count the time in which this process was suspended.
//!
//! Without this, a program that was stopped for longer than its timeout (SIGSTOP, or a suspended machine) would report
//! a silent peer, although the answer has arrived.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::{
    io::{self, ErrorKind},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_socket, setsockopt,
            socket, sockopt::SendTimeout,
        },
        time::{TimeVal, TimeValLike},
    },
};

/// The longest single wait, and the most that one wait counts.
const STRETCH: Duration = Duration::from_millis(100);

/// The remaining waiting time.
#[derive(Debug)]
pub struct SuspendAwareTimeout {
    left: Duration,
}

impl SuspendAwareTimeout {
    /// A timeout of `deadline`.
    #[must_use]
    pub const fn new(deadline: Duration) -> Self {
        Self { left: deadline }
    }

    /// Calls `wait` with the longest time that it may wait. `None`: the timeout has expired, and `wait` was not called.
    pub fn wait<T>(&mut self, wait: impl FnOnce(Duration) -> T) -> Option<T> {
        if self.left.is_zero() {
            return None;
        }
        let begun = Instant::now();
        let outcome = wait(self.left.min(STRETCH));
        self.spend(begun.elapsed());
        Some(outcome)
    }

    // A suspension happens inside one wait, so that it counts as one stretch at most.
    fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited.min(STRETCH));
    }
}

/// Connects to a server's socket, with `deadline` as time limit of connecting and of writes. A stopped server accepts
/// nothing, and with a full queue connecting would block for ever (`unix_stream_connect` in net/unix/af_unix.c).
///
/// # Errors
/// [`ErrorKind::TimedOut`] after `deadline`, or the error of connecting.
pub fn connect(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let stream = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let milliseconds = i64::try_from(deadline.as_millis()).unwrap_or(i64::MAX);
    setsockopt(&stream, SendTimeout, &TimeVal::milliseconds(milliseconds))?;
    match connect_socket(stream.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) => Ok(stream.into()),
        Err(Errno::EAGAIN) => Err(ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    #[test]
    fn full_listen_queue_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let absent = connect(&path, Duration::from_secs(1)).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        let server =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(server.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&server, Backlog::new(1).unwrap()).unwrap();
        let connect = |_| connect(&path, Duration::from_millis(50)).map(drop);
        let refused = (0..4).map(connect).find_map(Result::err).unwrap();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn timeout_ends_after_its_waiting_time() {
        let mut timeout = SuspendAwareTimeout::new(Duration::from_millis(150));
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        let mut wait = |most: Duration| {
            longest = longest.max(most);
            std::thread::park_timeout(most);
        };
        while timeout.wait(&mut wait).is_some() {}
        assert!(begun.elapsed() >= Duration::from_millis(150));
        assert_eq!(longest, STRETCH);
    }

    #[test]
    fn suspension_spends_one_stretch() {
        let mut timeout = SuspendAwareTimeout::new(Duration::from_secs(3));
        timeout.spend(Duration::from_secs(3600));
        assert_eq!(timeout.left, Duration::from_millis(2900));
        for _ in 0..29 {
            timeout.spend(STRETCH);
        }
        assert_eq!(timeout.wait(|_| ()), None);
    }
}
