//! The clock by which host and DPU tell which of two reports of a VF is the later, and how durations are logged.

use std::time::Duration;

use nix::{sys::time::TimeSpec, time::ClockId};

/// On the clock of `CLOCK_BOOTTIME`, which all of one boot's agents share.
pub(super) fn nanoseconds_since_boot() -> u64 {
    let clock = ClockId::CLOCK_BOOTTIME.now().unwrap_or(TimeSpec::new(0, 0));
    Duration::from(clock).as_nanos().try_into().unwrap_or(u64::MAX)
}

/// As logs have durations.
pub(super) fn microseconds(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}
