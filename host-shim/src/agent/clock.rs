//! Clocks: the one that orders reports of a VF between host and DPU, and the unit of logged durations.

use std::time::Duration;

use nix::{sys::time::TimeSpec, time::ClockId};

/// Nanoseconds of `CLOCK_BOOTTIME`, which all agents of one boot share.
pub(super) fn nanoseconds_since_boot() -> u64 {
    let clock = ClockId::CLOCK_BOOTTIME.now().unwrap_or(TimeSpec::new(0, 0));
    Duration::from(clock).as_nanos().try_into().unwrap_or(u64::MAX)
}

/// The unit of durations in logs.
pub(super) fn microseconds(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}
