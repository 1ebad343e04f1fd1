//! Waiting for devices to change.

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

/// The kernel's own events, as opposed to those of udev.
const KERNEL_GROUP: u32 = 1;
/// Longest wait for one event: some changes have none, such as a netdev that leaves a namespace.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// The events of all devices, from when it is opened.
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

    /// Waits until a device changes, but never beyond `deadline` and never long.
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
            // What is lost when the queue overruns is an event too.
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
