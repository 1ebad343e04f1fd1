//! Waiting for a carrier.

use std::{
    io,
    time::{Duration, Instant},
};

use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};

use crate::{Error, Rtnl, monitor, socket::receive};

/// Waits until a link of the calling thread's namespace has a carrier, at most for `limit`.
/// Returns whether it has.
///
/// # Errors
/// When the link does not exist, or the kernel refuses to be asked.
pub fn wait_for_carrier(rtnl: &mut Rtnl, index: u32, limit: Duration) -> Result<bool, Error> {
    let failed =
        |error: io::Error| Error::io(format!("wait for the carrier of link {index}"), &error);
    let deadline = Instant::now() + limit;
    // Listening begins before the first look, so that no change falls in between.
    let events = monitor::open_socket().map_err(failed)?;
    let mut buffer = Vec::new();
    loop {
        let link = rtnl.link_by_index(index)?.ok_or_else(|| {
            Error::errno_of(
                format!("wait for the carrier of link {index}"),
                nix::errno::Errno::ENODEV,
            )
        })?;
        if link.is_running {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        setsockopt(&events, ReceiveTimeout, &time_value(left))
            .map_err(|errno| failed(errno.into()))?;
        match receive(&events, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // Events were missed: look again.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => {}
            outcome => outcome.map_err(failed)?,
        }
    }
}

/// At least a microsecond, because zero means for ever.
fn time_value(duration: Duration) -> TimeVal {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    TimeVal::new(seconds, i64::from(duration.subsec_micros()).max(1))
}
