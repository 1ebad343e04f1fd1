//! Measures time.

use std::{
    fs,
    time::{Duration, Instant},
};

/// The kernel's count of time in which some task waited for a processor.
const PRESSURE: &str = "/proc/pressure/cpu";
/// Longest duration of a limit, as a multiple of its length.
const MAX_STRETCH: u32 = 4;
/// Duration of a limit as a multiple of its length if the kernel does not count.
const STRETCH_WITHOUT_PSI: u32 = 3;

/// A reading of the clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Instant,
    /// Waiting time since boot. `None`: the kernel does not count it.
    pub(crate) stalled: Option<Duration>,
}

impl Reading {
    pub(crate) fn take() -> Self {
        let text = fs::read_to_string(PRESSURE).ok();
        Self { at: Instant::now(), stalled: text.as_deref().and_then(stalled_in) }
    }

    /// The time since `begun`, without the time in which some task of the machine waited for a processor.
    pub(crate) fn unstalled_since(&self, begun: &Self) -> Duration {
        let wall = self.at.saturating_duration_since(begun.at);
        match (begun.stalled, self.stalled) {
            (Some(before), Some(now)) => {
                wall.saturating_sub(now.saturating_sub(before)).max(wall / MAX_STRETCH)
            }
            _ => wall / STRETCH_WITHOUT_PSI,
        }
    }
}

/// The total, in microseconds, of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`.
fn stalled_in(pressure: &str) -> Option<Duration> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

/// Measures time from its start.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    begun: Reading,
}

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { begun: Reading::take() }
    }

    /// The time without that in which some task of the machine waited for a processor, for upper bounds. It is at least
    /// a quarter of the wall time, or a third if the kernel does not count.
    #[must_use]
    pub fn unstalled(&self) -> Duration {
        Reading::take().unstalled_since(&self.begun)
    }

    /// The wall time, for lower bounds and measurements.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.at.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What counts of ten seconds of wall time between these totals of the kernel.
    fn unstalled(before: Option<u32>, after: Option<u32>) -> Duration {
        let at = Instant::now();
        let begun = Reading { at, stalled: before.map(|seconds| SECOND * seconds) };
        let now = Reading { at: at + 10 * SECOND, stalled: after.map(|seconds| SECOND * seconds) };
        now.unstalled_since(&begun)
    }

    #[test]
    fn stalled_time_does_not_count() {
        assert_eq!(unstalled(Some(100), Some(100)), 10 * SECOND);
        assert_eq!(unstalled(Some(100), Some(103)), 7 * SECOND);
    }

    #[test]
    fn a_quarter_of_the_wall_time_counts() {
        assert_eq!(unstalled(Some(100), Some(108)), 10 * SECOND / 4);
        assert_eq!(unstalled(Some(100), Some(150)), 10 * SECOND / 4);
    }

    #[test]
    fn a_third_counts_without_pressure() {
        assert_eq!(unstalled(None, None), 10 * SECOND / 3);
        assert_eq!(unstalled(Some(1), None), 10 * SECOND / 3);
        assert_eq!(unstalled(None, Some(1)), 10 * SECOND / 3);
    }

    #[test]
    fn a_total_that_falls_counts_as_none() {
        assert_eq!(unstalled(Some(100), Some(90)), 10 * SECOND);
    }

    #[test]
    fn pressure_is_read_in_microseconds() {
        let text = "some avg10=3.16 avg60=1.26 avg300=1.52 total=56805451\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(stalled_in(text), Some(Duration::from_micros(56_805_451)));
        assert_eq!(stalled_in("full avg10=0.00 total=7\n"), None);
        assert_eq!(stalled_in("some avg10=0.00\n"), None);
        assert_eq!(stalled_in("some total=much\n"), None);
    }
}
