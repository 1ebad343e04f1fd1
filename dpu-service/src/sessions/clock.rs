//! What a host's clock can show, as far as its hello tells.

use std::time::{Duration, Instant};

use crate::host::HostTime;

/// How old a hello may be when it is heard.
const ON_THE_WAY: Duration = Duration::from_secs(60);
/// A clock gains less than this part of the time that passes.
const DRIFT: u32 = 1000;

/// A host's clock.
#[derive(Debug)]
pub(super) struct HostClock {
    told: HostTime,
    heard: Instant,
}

impl HostClock {
    /// It showed `told` when the host began to say what was heard just now.
    pub(super) fn heard_now(told: HostTime) -> Self {
        Self { told, heard: Instant::now() }
    }

    /// The latest time that it can show by now. A host that does not tell the time may have any.
    pub(super) fn latest(&self) -> HostTime {
        self.latest_after(self.heard.elapsed())
    }

    fn latest_after(&self, elapsed: Duration) -> HostTime {
        if self.told == HostTime::default() {
            return HostTime(u64::MAX);
        }
        let ahead = elapsed + elapsed / DRIFT + ON_THE_WAY;
        let ahead = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
        HostTime(self.told.0.saturating_add(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_from_what_it_told() {
        const SECOND: u64 = 1_000_000_000;
        let latest = |told, seconds| {
            HostClock::heard_now(HostTime(told)).latest_after(Duration::from_secs(seconds)).0
        };
        assert_eq!(latest(SECOND, 0), 61 * SECOND);
        assert_eq!(latest(SECOND, 10_000), 10_071 * SECOND);
        assert_eq!(latest(u64::MAX - 1, 1), u64::MAX);
        assert_eq!(latest(0, 0), u64::MAX, "it was not told");
    }
}
