//! The clock by which host and DPU tell which of two reports of a VF is the later.

use std::time::Duration;

use nix::{sys::time::TimeSpec, time::ClockId};

/// On the clock of `CLOCK_BOOTTIME`, which all of one boot's agents share.
pub(super) fn nanoseconds_since_boot() -> u64 {
    let clock = ClockId::CLOCK_BOOTTIME.now().unwrap_or(TimeSpec::new(0, 0));
    Duration::from(clock).as_nanos().try_into().unwrap_or(u64::MAX)
}
