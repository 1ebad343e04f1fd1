//! The lifetime of a connection.

use std::time::{Duration, SystemTime};

/// A connection with less time than this left is not renewed.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) opened: SystemTime,
    pub(crate) end: SystemTime,
}

impl Lifetime {
    pub(crate) fn until(end: SystemTime) -> Self {
        Self { opened: SystemTime::now(), end }
    }

    /// Time until two thirds of the lifetime are over. The last third is for its renewal.
    pub(crate) fn until_near_end(&self, now: SystemTime) -> Duration {
        let all = self.end.duration_since(self.opened).unwrap_or_default();
        (self.end - all / 3).duration_since(now).unwrap_or_default()
    }

    pub(crate) fn is_near_end(&self, now: SystemTime) -> bool {
        self.until_near_end(now).is_zero() && self.left(now) > LAST_MOMENTS
    }

    pub(crate) fn left(&self, now: SystemTime) -> Duration {
        self.end.duration_since(now).unwrap_or_default()
    }
}
