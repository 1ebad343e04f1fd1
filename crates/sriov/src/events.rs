//! Kernel events of devices (uevents).

use std::{
    io::{IoSliceMut, Result},
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg,
            setsockopt, socket, sockopt::ReceiveTimeout,
        },
        time::TimeVal,
    },
};

/// Multicast group of the kernel's own events. Group 2 has udev's.
const KERNEL_GROUP: u32 = 1;
/// Longest wait for one event: some changes have none, such as a netdev that leaves a namespace.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// Receives the events of all devices from its opening on.
#[derive(Debug)]
pub(crate) struct DeviceEvents {
    socket: OwnedFd,
}

impl DeviceEvents {
    pub(crate) fn open() -> Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkKObjectUEvent,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        Ok(Self { socket })
    }

    /// Waits for an event, at most until `deadline` and at most [`LONGEST_WAIT`].
    pub(crate) fn wait(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = left.clamp(Duration::from_millis(1), LONGEST_WAIT);
        let microseconds = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        setsockopt(
            &self.socket,
            ReceiveTimeout,
            &TimeVal::new(microseconds / 1_000_000, microseconds % 1_000_000),
        )?;
        let mut nothing = [0; 1];
        let mut buffers = [IoSliceMut::new(&mut nothing)];
        let received =
            recvmsg::<NetlinkAddr>(self.socket.as_raw_fd(), &mut buffers, None, MsgFlags::empty());
        match received {
            // ENOBUFS: the queue overflowed, so events happened.
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
