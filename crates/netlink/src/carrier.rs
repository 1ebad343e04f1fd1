//! Waiting for a link's carrier.

use std::{io, time::Duration};

use netlink_sys::Socket;
use nix::errno::Errno;
use tokio::time::timeout;

use crate::{
    error::Error,
    monitor,
    monitor::{LinkEvent, LinkMonitor},
    netns::Netns,
    rtnl::Rtnl,
};

/// Watches a link that had no carrier yet. Its sockets keep the link's namespace alive.
#[derive(Debug)]
pub struct CarrierWatch {
    index: u32,
    rtnl: Rtnl,
    events: Socket,
}

impl CarrierWatch {
    /// Checks the carrier of a link in `netns` and starts to watch the link if it has none. `rtnl` must be open in the
    /// same namespace. Returns `None` if the link has a carrier.
    ///
    /// # Errors
    /// If the link does not exist, or the kernel refuses a request.
    pub fn unless_there(netns: &Netns, rtnl: &mut Rtnl, index: u32) -> Result<Option<Self>, Error> {
        // The common case: a carrier that is present needs no event socket.
        if has_carrier(rtnl, index)? {
            return Ok(None);
        }
        // Subscribe before the second check, so that a carrier that comes between the two is not missed.
        let events = netns.run(monitor::open_socket)?.map_err(|error| failed(index, &error))?;
        if has_carrier(rtnl, index)? {
            return Ok(None);
        }
        Ok(Some(Self { index, rtnl: Rtnl::open_in(netns)?, events }))
    }

    /// Waits for the carrier for at most `limit` and returns whether it came. Must be called within a Tokio runtime;
    /// blocks no thread.
    ///
    /// # Errors
    /// If the link is gone, or the kernel refuses a request.
    pub async fn wait(self, limit: Duration) -> Result<bool, Error> {
        timeout(limit, self.carrier()).await.map_or(Ok(false), |came| came.map(|()| true))
    }

    async fn carrier(mut self) -> Result<(), Error> {
        let mut monitor = LinkMonitor::with_socket(Ok(self.events))?;
        loop {
            let has_carrier = match monitor.next().await? {
                LinkEvent::Changed(link) => link.index == self.index && link.is_running,
                LinkEvent::Gone { index, .. } if index == self.index => return Err(gone(index)),
                LinkEvent::Gone { .. } | LinkEvent::PortChanged { .. } => false,
                LinkEvent::Missed => has_carrier(&mut self.rtnl, self.index)?,
            };
            if has_carrier {
                return Ok(());
            }
        }
    }
}

fn has_carrier(rtnl: &mut Rtnl, index: u32) -> Result<bool, Error> {
    let link = rtnl.link_by_index(index)?;
    link.map(|link| link.is_running).ok_or_else(|| gone(index))
}

fn gone(index: u32) -> Error {
    Error::errno_of(operation(index), Errno::ENODEV)
}

fn failed(index: u32, error: &io::Error) -> Error {
    Error::io(operation(index), error)
}

fn operation(index: u32) -> String {
    format!("wait for the carrier of link {index}")
}
