//! Waiting for a carrier.

use std::{
    io,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        socket::{setsockopt, sockopt::ReceiveTimeout},
        time::TimeVal,
    },
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
    // Mostly it is there already.
    if has_carrier(rtnl, index)? {
        return Ok(true);
    }
    // Listening begins before the next look, so that no change falls in between.
    let events = monitor::open_socket().map_err(failed)?;
    let mut buffer = Vec::new();
    loop {
        if has_carrier(rtnl, index)? {
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
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            outcome => outcome.map_err(failed)?,
        }
    }
}

fn has_carrier(rtnl: &mut Rtnl, index: u32) -> Result<bool, Error> {
    match rtnl.link_by_index(index)? {
        Some(link) => Ok(link.is_running),
        None => {
            let operation = format!("wait for the carrier of link {index}");
            Err(Error::errno_of(operation, Errno::ENODEV))
        }
    }
}

/// At least a microsecond, because zero means for ever.
fn time_value(duration: Duration) -> TimeVal {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    TimeVal::new(seconds, i64::from(duration.subsec_micros()).max(1))
}
