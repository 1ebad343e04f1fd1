//! Bounds for a host's clock, from the time in its hello.

use std::time::{Duration, Instant};

use crate::host::HostTime;

/// Maximum age of a hello on arrival.
const ON_THE_WAY: Duration = Duration::from_secs(60);
/// A clock gains less than this fraction of the time that passes.
const DRIFT: u32 = 1000;

#[derive(Debug)]
pub(super) struct HostClock {
    reported: HostTime,
    received: Instant,
}

impl HostClock {
    /// The clock showed `reported` when the host began to collect what arrived now.
    pub(super) fn received_now(reported: HostTime) -> Self {
        Self { reported, received: Instant::now() }
    }

    /// The latest time that the clock can show now. A host without a time may show any.
    pub(super) fn latest(&self) -> HostTime {
        self.latest_after(self.received.elapsed())
    }

    fn latest_after(&self, elapsed: Duration) -> HostTime {
        if self.reported == HostTime::default() {
            return HostTime(u64::MAX);
        }
        let ahead = elapsed + elapsed / DRIFT + ON_THE_WAY;
        let ahead = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
        HostTime(self.reported.0.saturating_add(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_time_grows_from_the_reported_time() {
        const SECOND: u64 = 1_000_000_000;
        let latest = |reported, seconds| {
            HostClock::received_now(HostTime(reported)).latest_after(Duration::from_secs(seconds)).0
        };
        assert_eq!(latest(SECOND, 0), 61 * SECOND);
        assert_eq!(latest(SECOND, 10_000), 10_071 * SECOND);
        assert_eq!(latest(u64::MAX - 1, 1), u64::MAX);
        assert_eq!(latest(0, 0), u64::MAX, "it was not reported");
    }
}
