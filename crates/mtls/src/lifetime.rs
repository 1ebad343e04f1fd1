//! For how long a connection may be used.

use std::time::{Duration, SystemTime};

/// What is not renewed by so much ahead of its end is not renewed ahead of it.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

/// From when until when a connection may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) opened: SystemTime,
    pub(crate) end: SystemTime,
}

impl Lifetime {
    /// From now on.
    pub(crate) fn until(end: SystemTime) -> Self {
        Self { opened: SystemTime::now(), end }
    }

    /// How long it takes until two thirds of it are over, so that a successor has time to come.
    pub(crate) fn until_waning(&self, now: SystemTime) -> Duration {
        let all = self.end.duration_since(self.opened).unwrap_or_default();
        (self.end - all / 3).duration_since(now).unwrap_or_default()
    }

    pub(crate) fn is_waning(&self, now: SystemTime) -> bool {
        self.until_waning(now).is_zero() && self.left(now) > LAST_MOMENTS
    }

    pub(crate) fn left(&self, now: SystemTime) -> Duration {
        self.end.duration_since(now).unwrap_or_default()
    }
}
